"""How a change ends when others, or the connection, do not let it through. (Every order of commits with all else that
happens to a log: tests/simulation/logs.)"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from bk_spark.log import CommitMessage, CommitRequest, CommitResult, CommitStatus, LedgerRange
from bk_spark.log.core import applications
from bk_spark.log.core.changes import (
    MAX_CONFLICTS_MS,
    MAX_UNAVAILABLE,
    MAX_UNCHANGED,
    MIN_CONFLICTS,
    SeenTail,
    change_steps,
)
from bk_spark.log.core.commit import BatchCommit
from bk_spark.log.core.steps import (
    Action,
    Conflict,
    Event,
    OutcomeUnknown,
    Read,
    ReadTimer,
    ReleaseLock,
    Steps,
    TakeLock,
    TimerRead,
    Transact,
    Unavailable,
)
from bk_spark.log.formats import page
from bk_spark.log.formats.znodes import LedgerRegistration, encode_registration
from bk_spark.protocol.errors import (
    LedgerRefusedError,
    MetadataConflictError,
    MetadataUnavailableError,
    OutcomeUnknownError,
)
from bk_spark.protocol.metadata.znodes import CreateOp, DeleteOp, SetOp
from tests.support.log_model import LOG_ID, PATHS, Client, ModelLog

APP = "clicks"
LEDGERS = {"r0": (1000, 1001), "r1": (1010, 1011)}


def commit_steps(run: str, batch_id: int, now_ms: int, seen: SeenTail | None = None) -> Steps[CommitResult]:
    """A batch of two tasks with five entries each."""
    first = batch_id * 10 + 1
    messages = tuple(
        CommitMessage(LOG_ID, APP, run, "query", batch_id, task, (LedgerRange(ledger_id, first, first + 4, 5, 50),))
        for task, ledger_id in enumerate(LEDGERS[run])
    )
    request = CommitRequest(LOG_ID, APP, run, "query", batch_id, messages)
    return change_steps(BatchCommit(PATHS, request), lambda: now_ms, seen)


@pytest.fixture
def zk() -> ModelLog:
    zk = ModelLog()
    for run, ledgers in LEDGERS.items():
        zk.register(APP, run, *ledgers)
    return zk


@pytest.fixture
def client(zk: ModelLog) -> Client:
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


def test_s1_a_lost_reply_ends_as_committed_with_the_runs_it_retired(zk: ModelLog, client: Client) -> None:
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


def test_refusals_of_a_state_that_nobody_changes_are_given_up(client: Client) -> None:
    seen: list[type[Action]] = []

    def perform(action: Action) -> Event:
        seen.append(type(action))
        return Conflict("head") if isinstance(action, Transact) else client.perform(action)

    with pytest.raises(MetadataConflictError, match=f"refused {MAX_UNCHANGED} times, though nothing changed"):
        run_to_end(commit_steps("r0", 0, 5), client, perform)
    assert seen.count(Transact) == MAX_UNCHANGED + 1
    assert seen[: seen.index(TakeLock)].count(Transact) == 2
    assert seen[-1] is ReleaseLock


def others_commit(zk: ModelLog) -> None:
    """The head is written, as every commit does."""
    znode = zk.read(PATHS.head)
    assert znode is not None
    zk.transact([SetOp(PATHS.head, znode.data, znode.version)])


def once_before_sending(client: Client, work: Callable[[], None]) -> tuple[Callable[[Action], Event], list[Transact]]:
    """Performs actions, with ``work`` before the first transaction; the transactions sent."""
    sent: list[Transact] = []

    def perform(action: Action) -> Event:
        if isinstance(action, Transact):
            sent.append(action)
            if len(sent) == 1:
                work()
        return client.perform(action)

    return perform, sent


def delete_run(zk: ModelLog) -> None:
    zk.transact([DeleteOp(PATHS.registration(APP, "r0", ledger_id)) for ledger_id in LEDGERS["r0"]])
    zk.transact([DeleteOp(PATHS.run(APP, "r0"), 0)])


@pytest.mark.parametrize("conflicts", [MIN_CONFLICTS - 1, 100])
def test_s7_conflicts_end_by_time_not_by_their_number(zk: ModelLog, client: Client, conflicts: int) -> None:
    """Others are faster so many times, and in the end more time has passed than is given."""
    seen: list[type[Action]] = []

    def perform(action: Action) -> Event:
        seen.append(type(action))
        if isinstance(action, Transact) and seen.count(Transact) <= conflicts:
            others_commit(zk)
        if isinstance(action, ReadTimer):
            return TimerRead(MAX_CONFLICTS_MS + 9 if seen.count(Transact) >= conflicts else seen.count(ReadTimer))
        return client.perform(action)

    if conflicts < MIN_CONFLICTS:
        # The process was stopped for long, and did not try often: that is no reason to give up.
        assert run_to_end(commit_steps("r0", 0, 5), client, perform).status is CommitStatus.COMMITTED
    else:
        with pytest.raises(MetadataConflictError, match="the log was changed by others for 120 s"):
            run_to_end(commit_steps("r0", 0, 5), client, perform)
        assert seen.count(Transact) == conflicts
    assert seen[-1] is ReleaseLock


def test_s7_another_attempt_reads_only_what_may_have_changed(zk: ModelLog, client: Client) -> None:
    read: list[tuple[str, ...]] = []
    sent = 0

    def perform(action: Action) -> Event:
        nonlocal sent
        if isinstance(action, Read):
            read.append(action.paths)
        if isinstance(action, Transact):
            sent += 1
            if sent <= 3:
                others_commit(zk)
        return client.perform(action)

    assert run_to_end(commit_steps("r0", 0, 5), client, perform).status is CommitStatus.COMMITTED
    changing = (PATHS.head, PATHS.app(APP), PATHS.run(APP, "r0"))
    registrations = tuple(PATHS.registration(APP, "r0", ledger_id) for ledger_id in LEDGERS["r0"])
    assert read[:3] == [(*changing, PATHS.lock), registrations, (PATHS.page(0),)]
    again = (*changing, PATHS.page(0))
    assert read[3:] == [(*again, PATHS.lock), again, again], "one reading for each attempt; without the lock while held"


def test_a_commit_reads_all_at_once_with_the_tail_page_of_the_one_before(zk: ModelLog, client: Client) -> None:
    seen = SeenTail()
    done: list[Action] = []

    def perform(action: Action) -> Event:
        done.append(action)
        return client.perform(action)

    run_to_end(commit_steps("r0", 0, 5, seen), client, perform)
    assert [type(action) for action in done] == [Read, Read, Read, Transact]
    done.clear()
    run_to_end(commit_steps("r0", 1, 6, seen), client, perform)
    assert [type(action) for action in done] == [Read, Transact]
    assert done[0] == Read(
        (PATHS.head, PATHS.app(APP), PATHS.run(APP, "r0"), PATHS.page(0), PATHS.lock), after_sync=True
    )
    assert len(zk.segments()) == 4


@pytest.mark.parametrize("number", [99, 0], ids=["a page that is not there", "an earlier page"])
def test_another_page_than_the_tail_s_may_be_read_ahead(
    zk: ModelLog, client: Client, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Others have filled pages since, or retention has removed them."""
    monkeypatch.setattr(page, "MAX_PAGE_BYTES", 64)
    monkeypatch.setattr(page, "_FULL_BYTES", 50)
    for batch_id in range(4):
        run_to_end(commit_steps("r0", batch_id, 5), client)
    seen = SeenTail(PATHS.page(number))
    assert run_to_end(commit_steps("r0", 4, 5, seen), client).status is CommitStatus.COMMITTED
    tail = max(range(99), key=lambda each: (zk.read(PATHS.page(each)) is not None, each))
    assert tail > 0
    assert seen.path == PATHS.page(tail)
    assert len(zk.segments()) == 10


@pytest.mark.parametrize("changed", [False, True])
def test_s7_another_attempt_checks_ledgers_again_only_if_its_run_or_application_changed(
    zk: ModelLog, client: Client, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    checked = 0

    def check(*arguments: Any) -> applications.CheckedLedgers:
        nonlocal checked
        checked += 1
        return check_ledgers(*arguments)

    check_ledgers = applications.check_ledgers
    monkeypatch.setattr(applications, "check_ledgers", check)

    def change() -> None:
        others_commit(zk)
        zk.transact([SetOp(PATHS.run(APP, "r0"), b"", 0)] if changed else [])

    perform, sent = once_before_sending(client, change)
    assert run_to_end(commit_steps("r0", 0, 5), client, perform).status is CommitStatus.COMMITTED
    # The first call of a state asks for its registrations.
    assert (len(sent), checked) == (2, 4 if changed else 2)


@pytest.mark.parametrize("how", ["written", "made again"])
def test_s7_registrations_are_read_again_where_the_runs_znode_is_another(
    zk: ModelLog, client: Client, how: str
) -> None:
    """Between two attempts the reaper condemned a ledger of the batch. (And where the run's znode went and came again
    since, it has the version that it had.)"""
    path = PATHS.registration(APP, "r0", LEDGERS["r0"][1])

    def condemn() -> None:
        others_commit(zk)
        if how == "written":
            zk.transact([SetOp(PATHS.run(APP, "r0"), b"", 0)])
        else:
            delete_run(zk)
            zk.register(APP, "r0", *LEDGERS["r0"])
        zk.transact([SetOp(path, encode_registration(LedgerRegistration(None, 7)), 0)])

    perform, sent = once_before_sending(client, condemn)
    with pytest.raises(LedgerRefusedError, match="about to be deleted"):
        run_to_end(commit_steps("r0", 0, 5), client, perform)
    assert len(sent) == 1


def test_s7_who_is_about_to_write_waits_behind_those_who_wait(zk: ModelLog, client: Client) -> None:
    """Another change holds the lock, or waits for it: its place below the lock's znode tells."""
    place = f"{PATHS.lock}/0000000000"
    seen: list[Action] = []

    def perform(action: Action) -> Event:
        seen.append(action)
        if isinstance(action, TakeLock):
            assert not any(isinstance(one, Transact) for one in seen), "nothing is sent before the others' turn"
            # They got through.
            others_commit(zk)
            zk.transact([DeleteOp(place)])
        return client.perform(action)

    zk.transact([CreateOp(place)])
    assert run_to_end(commit_steps("r0", 0, 5), client, perform).status is CommitStatus.COMMITTED
    assert [type(one) for one in seen if isinstance(one, TakeLock | Transact | ReleaseLock)] == [
        TakeLock,
        Transact,
        ReleaseLock,
    ]
    # A batch that is done has nothing to write, and so it need not wait.
    zk.transact([CreateOp(place)])
    before = len(seen)
    assert run_to_end(commit_steps("r0", 0, 5), client, perform).status is CommitStatus.ALREADY_DONE
    assert not any(isinstance(one, TakeLock) for one in seen[before:])


def test_the_lock_is_let_go_by_who_is_refused(zk: ModelLog, client: Client) -> None:
    seen: list[type[Action]] = []

    def perform(action: Action) -> Event:
        seen.append(type(action))
        if isinstance(action, Transact):
            others_commit(zk)
        if isinstance(action, TakeLock):
            delete_run(zk)
        return client.perform(action)

    with pytest.raises(LedgerRefusedError, match="no ledger is registered"):
        run_to_end(commit_steps("r0", 0, 5), client, perform)
    assert seen[-1] is ReleaseLock


@pytest.mark.parametrize("sent", [False, True])
def test_a_zookeeper_that_stays_away_is_given_up_with_what_is_known(zk: ModelLog, client: Client, sent: bool) -> None:
    seen: list[type[Action]] = []

    def perform(action: Action) -> Event:
        seen.append(type(action))
        if isinstance(action, Transact):
            return OutcomeUnknown("broken")
        if isinstance(action, Read) and action.after_sync and (not sent or Transact in seen):
            return Unavailable("away")
        return client.perform(action)

    error = OutcomeUnknownError if sent else MetadataUnavailableError
    with pytest.raises(error, match="may or may not have taken effect" if sent else "nothing was changed") as caught:
        run_to_end(commit_steps("r0", 0, 5), client, perform)
    assert isinstance(caught.value, OutcomeUnknownError) == sent
    assert seen.count(Transact) == sent, "nothing is sent again before it was read"
    assert seen[seen.index(Transact) if sent else 0 :].count(Read) == MAX_UNAVAILABLE + (not sent)
    assert zk.segments() == []
