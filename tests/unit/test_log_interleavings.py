"""Commits of several drivers at once, in every order, with broken connections: seeded random schedules.

Two applications append to one log. Each has an old driver (run ``r0``) and a new one (``r1``), as after a
restart whose first process did not really die: both go through the same batches, from ledgers of their own.
Connections break with a transaction lost, applied, or still under way; servers lag behind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

from bk_spark.log import CommitMessage, CommitRequest, CommitResult, CommitStatus, LedgerRange
from bk_spark.log.changes import MAX_CONFLICTS, MAX_UNAVAILABLE, change_steps
from bk_spark.log.commit import BatchCommit
from bk_spark.log.steps import (
    Action,
    Conflict,
    Event,
    OutcomeUnknown,
    Steps,
    Sync,
    TakeLock,
    Transact,
    Unavailable,
)
from bk_spark.protocol.errors import (
    MetadataConflictError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    RunRetiredError,
)
from tests.support.log_model import LOG_ID, PATHS, Client, ModelZooKeeper

BATCHES = 6
APPS = ("clicks", "orders/eu")
RUNS = ("r0", "r1")


def ledger_of(app: str, run: str, task: int) -> int:
    return 1000 + APPS.index(app) * 100 + RUNS.index(run) * 10 + task


def entries_of(batch_id: int) -> tuple[int, int]:
    """First and last entry of a batch in any ledger; the gap stands for a task that was killed."""
    return batch_id * 10 + 1, batch_id * 10 + 5


def request_of(app: str, run: str, batch_id: int) -> CommitRequest:
    first, last = entries_of(batch_id)
    messages = [
        CommitMessage(
            LOG_ID, app, run, "query", batch_id, task, (LedgerRange(ledger_of(app, run, task), first, last, 5, 50),)
        )
        for task in range(2)
        # Some batches are empty.
        if batch_id != 3
    ]
    return CommitRequest(LOG_ID, app, run, "query", batch_id, tuple(messages))


def commit_steps(request: CommitRequest, now_ms: int) -> Steps[CommitResult]:
    return change_steps(BatchCommit(PATHS, request), lambda: now_ms)


@dataclass
class Driver:
    """A streaming query's driver: one batch after another until it is told that it was replaced."""

    app: str
    run: str
    client: Client
    batch_id: int = 0
    results: list[CommitResult] = field(default_factory=list)
    steps: Steps[CommitResult] | None = None
    event: Event | None = None
    action: Action | None = None
    ended: str = ""
    locks: int = 0

    def step(self) -> None:
        """Perform one action, or start the next batch."""
        try:
            if self.steps is None:
                self.steps = commit_steps(request_of(self.app, self.run, self.batch_id), 1_000)
                self.action = next(self.steps)
                return
            assert self.action is not None
            self.locks += isinstance(self.action, TakeLock)
            self.action = self.steps.send(self.client.perform(self.action))
        except StopIteration as done:
            self.results.append(done.value)
            self.steps = None
            self.batch_id += 1
            if self.batch_id == BATCHES:
                self.ended = "finished"
        except RunRetiredError:
            self.ended = "retired"
        except (OutcomeUnknownError, MetadataUnavailableError, MetadataConflictError):
            # The query fails and is started again: the same batch comes again, from the same run here.
            self.steps = None


def committed_batches(zk: ModelZooKeeper) -> Iterator[tuple[str, str, int, int]]:
    """(application, run, batch, task) of each segment, in the log's order."""
    owners = {ledger_of(app, run, task): (app, run, task) for app in APPS for run in RUNS for task in range(2)}
    for segment in zk.segments():
        app, run, task = owners[segment.ledger_id]
        batch_id = segment.first_entry // 10
        assert (segment.first_entry, segment.last_entry) == entries_of(batch_id)
        yield app, run, batch_id, task


def check(zk: ModelZooKeeper, drivers: list[Driver]) -> None:
    order: dict[str, list[int]] = defaultdict(list)
    listed: dict[tuple[str, int], list[tuple[str, int]]] = defaultdict(list)
    for app, run, batch_id, task in committed_batches(zk):
        order[app].append(batch_id)
        listed[app, batch_id].append((run, task))
    for app, batches in order.items():
        assert batches == sorted(batches), f"batches of {app} out of order: {batches}"
    for (app, batch_id), tasks in listed.items():
        run = tasks[0][0]
        assert tasks == [(run, 0), (run, 1)], f"batch {batch_id} of {app} is listed as {tasks}"
    for driver in drivers:
        for batch_id in range(driver.batch_id):
            assert batch_id == 3 or (driver.app, batch_id) in listed, f"{driver} lost batch {batch_id}"


def simulate(seed: int, fault_rate: float) -> tuple[ModelZooKeeper, list[Driver]]:
    rng = Random(seed)
    zk = ModelZooKeeper()
    for app in APPS:
        for run in RUNS:
            zk.register(app, run, *(ledger_of(app, run, task) for task in range(2)))
    drivers = [Driver(app, run, Client(zk, rng, fault_rate)) for app in APPS for run in RUNS]
    # The new run starts where the application was at some moment, as its checkpoint says.
    asleep = {id(driver): rng.randrange(0, 120) for driver in drivers if driver.run == "r1"}
    for moment in range(20_000):
        alive = [driver for driver in drivers if not driver.ended and asleep.get(id(driver), 0) <= moment]
        if not alive and all(driver.ended for driver in drivers):
            break
        for driver in drivers:
            if driver.client.in_flight and rng.random() < 0.05:
                driver.client.deliver_late()
        if not alive:
            continue
        driver = rng.choice(alive)
        if driver.steps is None and driver.run == "r1" and not driver.results:
            application = zk.application(driver.app)
            done = -1 if application is None else application.batch_id
            driver.batch_id = max(driver.batch_id, rng.choice([done, done + 1]), 0)
            if driver.batch_id >= BATCHES:
                driver.ended = "nothing to do"
                continue
        states = len(zk.states)
        driver.step()
        if len(zk.states) != states:
            check(zk, drivers)
    assert all(driver.ended for driver in drivers), f"stuck: {drivers}"
    for driver in drivers:
        while driver.client.in_flight:
            driver.client.deliver_late()
    check(zk, drivers)
    return zk, drivers


@pytest.mark.parametrize("seed", range(80))
def test_s1_s3_l1_l4_every_batch_is_in_the_log_once(seed: int) -> None:
    zk, drivers = simulate(seed, fault_rate=0.12)
    for app in APPS:
        application = zk.application(app)
        assert application is not None
        assert application.batch_id == BATCHES - 1
        finished = [driver for driver in drivers if driver.app == app and driver.ended == "finished"]
        assert finished


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("inline_pages", [0, 8])
def test_l1_so_it_is_when_every_commit_needs_new_pages(
    seed: int, inline_pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pages so small that they hold about two segments, prepared before the commit or inline; and with
    applications that move their ledgers' last entries into the registrations whenever they can."""
    monkeypatch.setattr("bk_spark.log.applications.IN_USE_KEPT", 0)
    monkeypatch.setattr("bk_spark.log.page.MAX_PAGE_BYTES", 64)
    monkeypatch.setattr("bk_spark.log.page._FULL_BYTES", 50)
    monkeypatch.setattr("bk_spark.log.append.MAX_INLINE_PAGES", inline_pages)
    zk, _ = simulate(seed, fault_rate=0.12)
    assert zk.head().tail_page >= 5


def test_schedules_reach_what_they_are_for() -> None:
    """Lost replies, late transactions, zombies told off, batches found done: all of it happens in these seeds."""
    lost = retired = done = locks = 0
    for seed in range(60):
        _, drivers = simulate(seed, fault_rate=0.12)
        lost += sum(driver.client.lost_replies for driver in drivers)
        retired += sum(driver.ended == "retired" for driver in drivers)
        done += sum(result.status is CommitStatus.ALREADY_DONE for driver in drivers for result in driver.results)
        locks += sum(driver.locks for driver in drivers)
    print(f"{lost} replies lost, {retired} zombies retired, {done} batches found done, {locks} locks")
    assert min(lost, retired, done, locks) > 5


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


def new_log() -> tuple[ModelZooKeeper, Client]:
    zk = ModelZooKeeper()
    zk.register(APPS[0], "r0", ledger_of(APPS[0], "r0", 0), ledger_of(APPS[0], "r0", 1))
    zk.register(APPS[0], "r1", ledger_of(APPS[0], "r1", 0), ledger_of(APPS[0], "r1", 1))
    return zk, Client(zk, Random(0))


def test_s1_a_lost_reply_ends_as_committed_with_the_runs_it_retired() -> None:
    zk, client = new_log()
    run_to_end(commit_steps(request_of(APPS[0], "r0", 0), 5), client)
    lost: list[Action] = []

    def perform(action: Action) -> Event:
        event = client.perform(action)
        if isinstance(action, Transact) and not lost:
            lost.append(action)
            return OutcomeUnknown("reply lost")
        return event

    result = run_to_end(commit_steps(request_of(APPS[0], "r1", 1), 6), client, perform)
    assert result == CommitResult(CommitStatus.COMMITTED, 10, 20, 6, ("r0",))
    assert len(zk.segments()) == 4


def test_conflicts_without_end_are_given_up() -> None:
    _, client = new_log()
    seen: list[type[Action]] = []

    def perform(action: Action) -> Event:
        seen.append(type(action))
        return Conflict("head") if isinstance(action, Transact) else client.perform(action)

    with pytest.raises(MetadataConflictError, match=f"changed by others {MAX_CONFLICTS} times"):
        run_to_end(commit_steps(request_of(APPS[0], "r0", 0), 5), client, perform)
    assert seen.count(Transact) == MAX_CONFLICTS + 1
    assert seen.count(TakeLock) == 1
    assert seen[: seen.index(TakeLock)].count(Transact) == 2


@pytest.mark.parametrize("sent", [False, True])
def test_a_zookeeper_that_stays_away_is_given_up_with_what_is_known(sent: bool) -> None:
    zk, client = new_log()
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
        run_to_end(commit_steps(request_of(APPS[0], "r0", 0), 5), client, perform)
    assert isinstance(caught.value, OutcomeUnknownError) == sent
    assert seen.count(Transact) == sent, "nothing is sent again before it was read"
    assert seen.count(Sync) <= MAX_UNAVAILABLE + 2
    assert zk.segments() == []
