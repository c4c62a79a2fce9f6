"""What follows a commit that took over from another run: its order, and that no failure of it fails the commit."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from bk_spark.bookie.runners import run_blocking
from bk_spark.log import CommitMessage, CommitRequest, CommitStatus, LedgerRange
from bk_spark.log.core.steps import (
    Action,
    Event,
    Failed,
    Found,
    InSession,
    ListChildren,
    Listed,
    LogMachine,
    OutcomeUnknown,
    Read,
    Recovered,
    RecoverLedgers,
    Sync,
    Unavailable,
)
from bk_spark.log.core.takeover import TAKEOVER_MS, Committed, commit_steps
from bk_spark.protocol.errors import BookieUnavailableError, MetadataUnavailableError, OutcomeUnknownError
from tests.support.log_model import LOG_ID, PATHS, Client, ModelLog

pytestmark = pytest.mark.unit


def request(run: str, batch_id: int, ledger_id: int) -> CommitRequest:
    part = LedgerRange(ledger_id, 0, 9, 10, 10)
    return CommitRequest.from_messages([CommitMessage(LOG_ID, "app", run, "query", batch_id, 0, (part,), batch_id)])


class Takeover:
    """Run r1 commits after r0, whose ledgers are 1, 2 and 13. ``answer`` performs what comes after the commit."""

    def __init__(self, answer: Callable[[Action], Event]) -> None:
        self.zk = ModelLog()
        self.zk.register("app", "r0", 2, 13, 1)
        self.zk.register("app", "r1", 21)
        self._client = Client(self.zk, Random(1))
        self._answer = answer
        self.after: list[Action] = []
        self._run(request("r0", 0, 1))

    def commit(self) -> Committed:
        return self._run(request("r1", 1, 21))

    def _run(self, batch: CommitRequest) -> Committed:
        return run_blocking(LogMachine(commit_steps(PATHS, batch, lambda: 1_000)), self._perform)

    def _perform(self, action: Action) -> Event | InSession:
        if isinstance(action, ListChildren | RecoverLedgers):
            self.after.append(action)
            event = self._answer(action)
        else:
            event = self._client.perform(action)
        return InSession(action, event, 1, 1) if isinstance(action, Sync | Read | ListChildren) else event


def listed(action: Action) -> Event:
    if isinstance(action, ListChildren):
        return Listed(("2", "13", "1"))
    assert isinstance(action, RecoverLedgers), action
    return Recovered({}, ())


def test_s3_ledgers_of_a_retired_run_are_closed_the_newest_first() -> None:
    takeover = Takeover(listed)
    assert takeover.after == [], "the first run took over from nobody"
    committed = takeover.commit()
    assert takeover.after == [ListChildren(PATHS.run("app", "r0")), RecoverLedgers((13, 2, 1), TAKEOVER_MS)]
    assert committed.problems == ()
    assert committed.result.status is CommitStatus.COMMITTED
    assert committed.result.retired_runs == ("r0",)


def test_a_znode_of_others_does_not_keep_the_ledgers_beside_it_open() -> None:
    def with_others(action: Action) -> Event:
        return Listed(("2", "backup", "13", "007")) if isinstance(action, ListChildren) else listed(action)

    takeover = Takeover(with_others)
    assert takeover.commit().problems == ()
    assert takeover.after[-1] == RecoverLedgers((13, 2), TAKEOVER_MS)


def unavailable(action: Action) -> Event:
    return Unavailable("away")


def broken(action: Action) -> Event:
    raise ZeroDivisionError("a mistake")


def answer(event: Event) -> Callable[[Action], Event]:
    return lambda action: event if isinstance(action, RecoverLedgers) else listed(action)


@pytest.mark.parametrize(
    ("fails", "told"),
    [
        (unavailable, "away"),
        (broken, "a mistake"),
        (answer(Failed(MetadataUnavailableError("no ZooKeeper"))), "no ZooKeeper"),
        (answer(Recovered({13: BookieUnavailableError("no bookie")}, ())), "ledger 13: no bookie"),
        (answer(Recovered({}, (2, 1))), "2 were not closed in 30 s"),
        (
            answer(Recovered({13: BookieUnavailableError("no bookie"), 2: BookieUnavailableError("nor there")}, (1,))),
            "ledger 13: no bookie, 1 more failed, 1 were not closed in 30 s",
        ),
    ],
)
def test_what_goes_wrong_after_a_commit_is_told_and_does_not_fail_it(
    fails: Callable[[Action], Event], told: str
) -> None:
    committed = Takeover(fails).commit()
    assert committed.result.status is CommitStatus.COMMITTED
    (problem,) = committed.problems
    assert "retired run r0 of application 'app'" in problem
    assert told in problem


def test_a_reading_in_another_session_than_that_of_the_sync_is_unavailable() -> None:
    """The server of a new session may be behind."""

    def steps() -> object:
        first = yield Sync("/a")
        seen = [first, (yield Read(("/a",)))]
        yield Sync("/a")
        return [*seen, (yield Read(("/a",)))]

    machine = LogMachine(steps())  # type: ignore[arg-type]
    found = Found({"/a": None})
    for session, event in ((1, OutcomeUnknown("any event")), (2, found), (2, found), (2, found)):
        (action,) = machine.take_actions()
        assert isinstance(action, Sync | Read)
        machine.handle(InSession(action, event, session, session))
    assert machine.outcome is not None
    assert machine.outcome.result == [  # type: ignore[union-attr]
        OutcomeUnknown("any event"),
        Unavailable("the session with ZooKeeper ended"),
        found,
    ]

    def reads() -> object:
        return [(yield Read(("/a",), after_sync=True)), (yield Read(("/a",)))]

    for sessions, expected in (
        (((1, 1), (1, 1)), [found, found]),
        (((1, 2), (2, 2)), [Unavailable("the session with ZooKeeper ended")] * 2),
        (((1, 1), (2, 2)), [found, Unavailable("the session with ZooKeeper ended")]),
    ):
        machine = LogMachine(reads())  # type: ignore[arg-type]
        for before, after in sessions:
            (action,) = machine.take_actions()
            assert isinstance(action, Read)
            machine.handle(InSession(action, found, before, after))
        assert machine.outcome is not None
        assert machine.outcome.result == expected  # type: ignore[union-attr]

    machine = LogMachine(steps())  # type: ignore[arg-type]
    (action,) = machine.take_actions()
    assert isinstance(action, Sync)
    # The session ended while it was synced.
    machine.handle(InSession(action, found, 1, 2))
    (action,) = machine.take_actions()
    assert isinstance(action, Read)
    machine.handle(InSession(action, found, 2, 2))
    machine.take_actions()
    machine.fail(OutcomeUnknownError("the end"))
