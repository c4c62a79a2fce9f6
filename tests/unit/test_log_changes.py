"""How a change ends when others, or the connection, do not let it through. (Every order of commits with all else that
happens to a log: tests/simulation/logs.)"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from bk_spark.log import CommitMessage, CommitRequest, CommitResult, CommitStatus, LedgerRange
from bk_spark.log.changes import MAX_CONFLICTS, MAX_UNAVAILABLE, change_steps
from bk_spark.log.commit import BatchCommit
from bk_spark.log.steps import Action, Conflict, Event, OutcomeUnknown, Steps, Sync, TakeLock, Transact, Unavailable
from bk_spark.protocol.errors import MetadataConflictError, MetadataUnavailableError, OutcomeUnknownError
from tests.support.log_model import LOG_ID, PATHS, Client, ModelZooKeeper

APP = "clicks"
LEDGERS = {"r0": (1000, 1001), "r1": (1010, 1011)}


def commit_steps(run: str, batch_id: int, now_ms: int) -> Steps[CommitResult]:
    """A batch of two tasks with five entries each."""
    first = batch_id * 10 + 1
    messages = tuple(
        CommitMessage(LOG_ID, APP, run, "query", batch_id, task, (LedgerRange(ledger_id, first, first + 4, 5, 50),))
        for task, ledger_id in enumerate(LEDGERS[run])
    )
    request = CommitRequest(LOG_ID, APP, run, "query", batch_id, messages)
    return change_steps(BatchCommit(PATHS, request), lambda: now_ms)


@pytest.fixture
def zk() -> ModelZooKeeper:
    zk = ModelZooKeeper()
    for run, ledgers in LEDGERS.items():
        zk.register(APP, run, *ledgers)
    return zk


@pytest.fixture
def client(zk: ModelZooKeeper) -> Client:
    return Client(zk, Random(0))


def run_to_end(
    steps: Steps[CommitResult], client: Client, perform: Callable[[Action], Event] | None = None
) -> CommitResult:
    try:
        action = next(steps)
        for _ in range(1000):
            action = steps.send((perform or client.perform)(action))
    except StopIteration as done:
        result: CommitResult = done.value
        return result
    raise AssertionError("does not end")


def test_s1_a_lost_reply_ends_as_committed_with_the_runs_it_retired(zk: ModelZooKeeper, client: Client) -> None:
    run_to_end(commit_steps("r0", 0, 5), client)
    lost: list[Action] = []

    def perform(action: Action) -> Event:
        event = client.perform(action)
        if isinstance(action, Transact) and not lost:
            lost.append(action)
            return OutcomeUnknown("reply lost")
        return event

    result = run_to_end(commit_steps("r1", 1, 6), client, perform)
    assert result == CommitResult(CommitStatus.COMMITTED, 10, 20, 6, ("r0",))
    assert len(zk.segments()) == 4


def test_conflicts_without_end_are_given_up(client: Client) -> None:
    seen: list[type[Action]] = []

    def perform(action: Action) -> Event:
        seen.append(type(action))
        return Conflict("head") if isinstance(action, Transact) else client.perform(action)

    with pytest.raises(MetadataConflictError, match=f"changed by others {MAX_CONFLICTS} times"):
        run_to_end(commit_steps("r0", 0, 5), client, perform)
    assert seen.count(Transact) == MAX_CONFLICTS + 1
    assert seen.count(TakeLock) == 1
    assert seen[: seen.index(TakeLock)].count(Transact) == 2


@pytest.mark.parametrize("sent", [False, True])
def test_a_zookeeper_that_stays_away_is_given_up_with_what_is_known(
    zk: ModelZooKeeper, client: Client, sent: bool
) -> None:
    seen: list[type[Action]] = []

    def perform(action: Action) -> Event:
        seen.append(type(action))
        if Transact in seen and isinstance(action, Transact):
            return OutcomeUnknown("broken")
        if not sent or Transact in seen:
            return Unavailable("away") if isinstance(action, Sync) else client.perform(action)
        return client.perform(action)

    error = OutcomeUnknownError if sent else MetadataUnavailableError
    with pytest.raises(error, match="may or may not have taken effect" if sent else "nothing was changed") as caught:
        run_to_end(commit_steps("r0", 0, 5), client, perform)
    assert isinstance(caught.value, OutcomeUnknownError) == sent
    assert seen.count(Transact) == sent, "nothing is sent again before it was read"
    assert seen.count(Sync) <= MAX_UNAVAILABLE + 2
    assert zk.segments() == []
