"""The election of the auditor (bookie_server/replication/auditing/election.py)."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from bk_spark.protocol.errors import MetadataUnavailableError, OutcomeUnknownError
from bk_spark.protocol.machine import EndedBy, StartTimer, StepMachine, Succeeded, TimerFired
from bookie_server.replication.actions import (
    CreateVote,
    Done,
    ReadVotes,
    SessionLost,
    Vote,
    VotesRead,
    WatchVote,
    WithdrawVote,
    WriteAuditor,
)
from bookie_server.replication.auditing.auditor_performer import ElectionPerformer
from bookie_server.replication.auditing.election import election_steps

pytestmark = pytest.mark.unit


def vote(number: int, mine: bool = False) -> Vote:
    return Vote(f"/V_{number:010d}", number, mine)


class Candidate:
    def __init__(self) -> None:
        self.machine: StepMachine[Any, Any, str] = StepMachine(election_steps())
        self.votes: list[Vote] = []

    def expect(self, action: Any, answer: Any) -> Candidate:
        assert self.machine.take_actions() == [action]
        if isinstance(answer, Exception):
            self.machine.fail(answer)
        else:
            self.machine.handle(answer)
        return self

    def read(self, *votes: Vote) -> Candidate:
        return self.expect(ReadVotes(), VotesRead(votes))


def test_the_smallest_vote_wins_and_its_owner_says_so() -> None:
    candidate = Candidate().read().expect(CreateVote(), Done()).read(vote(7, True), vote(9))
    candidate.expect(WriteAuditor(), Done())
    assert candidate.machine.outcome == Succeeded("/V_0000000007")


def test_the_others_watch_the_vote_before_theirs() -> None:
    candidate = Candidate().read(vote(2), vote(9), vote(5), vote(7, True))
    candidate.expect(WatchVote("/V_0000000005"), Done())
    candidate.read(vote(2), vote(9), vote(7, True)).expect(WatchVote("/V_0000000002"), Done())
    candidate.read(vote(7, True)).expect(WriteAuditor(), Done())
    assert candidate.machine.outcome == Succeeded("/V_0000000007")


def test_a_lost_reply_leaves_one_vote() -> None:
    candidate = Candidate().read().expect(CreateVote(), OutcomeUnknownError("lost"))
    assert isinstance(candidate.machine.take_actions()[0], StartTimer)
    candidate.machine.handle(TimerFired("election"))
    # It was created: no second one. Two are there if the first create came late.
    candidate.read(vote(3, True), vote(4, True))
    candidate.expect(WithdrawVote("/V_0000000004"), Done()).expect(WriteAuditor(), Done())
    assert candidate.machine.outcome == Succeeded("/V_0000000003")


def test_a_vote_that_went_with_its_session_is_made_again() -> None:
    candidate = Candidate().read(vote(3), vote(4, True)).expect(WatchVote("/V_0000000003"), Done())
    candidate.read(vote(5)).expect(CreateVote(), Done())
    candidate.read(vote(5), vote(6, True)).expect(WatchVote("/V_0000000005"), Done())
    assert candidate.machine.outcome is None


def test_it_waits_while_zookeeper_does_not_answer() -> None:
    candidate = Candidate().expect(ReadVotes(), MetadataUnavailableError("no answer"))
    candidate.expect(StartTimer("election", 1_000), TimerFired("election"))
    candidate.read(vote(1, True)).expect(WriteAuditor(), MetadataUnavailableError("no answer"))
    candidate.expect(StartTimer("election", 1_000), TimerFired("election"))
    candidate.read(vote(1, True)).expect(WriteAuditor(), Done())
    assert candidate.machine.outcome == Succeeded("/V_0000000001")


def test_the_end_of_its_session_ends_it() -> None:
    candidate = Candidate().read(vote(1), vote(2, True))
    lost = RuntimeError(SessionLost())
    candidate.machine.fail(lost)
    assert candidate.machine.outcome == EndedBy(lost)


@pytest.mark.parametrize("action", [CreateVote(), WithdrawVote("/V_0000000001"), WriteAuditor()], ids=repr)
def test_an_action_that_is_cancelled_before_it_begins_leaves_no_coroutine(action: Any) -> None:
    """A runner closes the coroutine of a task that never ran. Another one within it would be called never awaited."""

    async def call(*_: object) -> None:
        raise AssertionError("nothing may run")

    access: Any = SimpleNamespace(call=call, bookie_id="b1", election=SimpleNamespace(vote=None, withdraw=None))
    ElectionPerformer(access)(action).close()
    gc.collect()
