"""Many concurrent commits in a model of time: how long each action takes, and who waits in the lock's queue.

These tests show progress of the machines, given a lock that works as its users expect
(``tests/integration/test_log_store.py`` shows that ours does). The histories show that nothing is lost without it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from bk_spark.log import CommitMessage, CommitRequest, LedgerRange
from bk_spark.log.core import changes
from bk_spark.log.core.applications import LedgerChecks, check_ledgers
from bk_spark.log.core.changes import change_steps
from bk_spark.log.core.commit import BatchCommit
from bk_spark.log.core.steps import (
    Action,
    Done,
    Event,
    Pause,
    Read,
    ReadTimer,
    ReleaseLock,
    Steps,
    Sync,
    TakeLock,
    TimerRead,
    Transact,
)
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.page import SegmentPage, encode_page
from bk_spark.log.formats.segment import SegmentTable
from bk_spark.log.formats.znodes import (
    Head,
    LedgerRegistration,
    Policy,
    encode_head,
    encode_policy,
    encode_registration,
)
from bk_spark.log.gc.reaper import ReapReport, reap_steps
from bk_spark.protocol.metadata.znodes import CreateOp, DeleteOp
from tests.simulation.logs.ledgers import ledger_path
from tests.simulation.logs.zookeeper import LogsZooKeeper, Session

LOG_ID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
PATHS = LogPaths("/logs", "flights", LOG_ID)
START_MS = 1_760_000_000_000
SECOND_MS = 1_000.0

#: As measured on ZooKeeper, in milliseconds; each znode of a read, and each operation of a transaction, adds to it.
ROUND_TRIP_MS = 1.0
ZNODE_MS = 0.15
TRANSACTION_MS = 3.0
OPERATION_MS = 0.02


@dataclass(eq=False)
class Process:
    """Runs one machine after another. ``decide_ms`` is the delay before it sends a transaction."""

    name: str
    scripts: Iterator[tuple[float, Callable[[], Steps[Any]]]]
    session: Session
    decide_ms: float = 1.0
    machine: Steps[Any] | None = None
    place: str = ""
    begun_ms: float = 0.0
    took_ms: list[float] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    finished: bool = False


class Contention:
    """A log, and a clock that jumps from one event to the next."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.zk = LogsZooKeeper(self.clock)
        page = encode_page(SegmentPage(LOG_ID, 0, 0, SegmentTable.of(())))
        names = (PATHS.identity, PATHS.settings, PATHS.pages, PATHS.apps, PATHS.ledgers, PATHS.lock, PATHS.appended)
        self.zk.transact([CreateOp("/logs"), CreateOp(PATHS.head, encode_head(Head(LOG_ID))), *map(CreateOp, names)])
        self.zk.transact([CreateOp(PATHS.policy, encode_policy(Policy())), CreateOp(PATHS.page(0), page)])
        self.zk.transact([CreateOp(ledger_path(1).rpartition("/")[0])])
        self._events: list[tuple[float, int, Process, Action | None]] = []
        self._numbers = count()
        self._queue: list[Process] = []
        self._waiting: dict[Process, bool] = {}

    def clock(self) -> int:
        return START_MS + int(self.now_ms)

    def register(self, app: str, run: str, ledger_ids: range) -> None:
        run_path = PATHS.run(app, run)
        data = encode_registration(LedgerRegistration())
        self.zk.transact([CreateOp(PATHS.runs_at(app)), CreateOp(run_path)])
        for first in range(ledger_ids.start, ledger_ids.stop, 500):
            part = range(first, min(first + 500, ledger_ids.stop))
            self.zk.transact([CreateOp(f"{run_path}/{ledger_id}", data) for ledger_id in part])

    def add(
        self, name: str, scripts: Iterator[tuple[float, Callable[[], Steps[Any]]]], decide_ms: float = 1.0
    ) -> Process:
        process = Process(name, scripts, Session(self.zk, Random(name)), decide_ms)
        self._next_machine(process)
        return process

    def run(self, until: Callable[[], bool], at_most_ms: float) -> None:
        while not until():
            assert self.now_ms < at_most_ms, f"not done after {self.now_ms / 1000:.0f} s"
            self.now_ms, _, process, action = heapq.heappop(self._events)
            self._go(process, None if action is None else self._perform(process, action))

    # --- processes ---

    def _next_machine(self, process: Process) -> None:
        at_ms, machine = next(process.scripts, (0.0, None))
        if machine is None:
            process.finished = True
            return
        process.machine = machine()
        self._schedule(max(at_ms, self.now_ms), process, None)

    def _schedule(self, at_ms: float, process: Process, action: Action | None) -> None:
        heapq.heappush(self._events, (at_ms, next(self._numbers), process, action))

    def _go(self, process: Process, event: Event | None) -> None:
        assert process.machine is not None
        if event is None:
            process.begun_ms = self.now_ms
        try:
            action = process.machine.send(event)  # type: ignore[arg-type]
        except StopIteration as end:
            process.took_ms.append(self.now_ms - process.begun_ms)
            process.results.append(end.value)
            self._next_machine(process)
            return
        if isinstance(action, TakeLock):
            self._take_lock(process)
            return
        self._schedule(self.now_ms + self._duration_ms(process, action), process, action)

    def _duration_ms(self, process: Process, action: Action) -> float:
        match action:
            case Read(paths):
                return ROUND_TRIP_MS + ZNODE_MS * len(paths)
            case Transact(operations):
                return process.decide_ms + TRANSACTION_MS + OPERATION_MS * len(operations)
            case Pause(about_ms):
                return about_ms
            case ReadTimer():
                return 0.0
            case ReleaseLock():
                return TRANSACTION_MS
        return ROUND_TRIP_MS

    def _perform(self, process: Process, action: Action) -> Event:
        match action:
            case Transact(operations):
                return process.session.transact(operations)
            case TakeLock() | Pause():
                return Done()
            case ReadTimer():
                return TimerRead(int(self.now_ms))
            case ReleaseLock():
                return self._release_lock(process)
            case _:
                if isinstance(action, Read):
                    # The schedule contains the duration: a read shows the state at its end.
                    process.session.read(Sync(PATHS.head))
                return process.session.read(action).event  # type: ignore[arg-type]

    # --- the lock ---

    def _take_lock(self, process: Process) -> None:
        if process not in self._queue:
            process.place = f"{PATHS.lock}/{process.name}-{next(self._numbers):010d}"
            self.zk.transact([CreateOp(process.place)])
            self._queue.append(process)
        if self._queue[0] is process:
            self._schedule(self.now_ms + TRANSACTION_MS + ROUND_TRIP_MS, process, TakeLock())
        else:
            self._waiting[process] = True

    def _release_lock(self, process: Process) -> Done:
        self.zk.transact([DeleteOp(process.place)])
        self._queue.remove(process)
        if self._queue and self._waiting.pop(self._queue[0], False):
            self._schedule(self.now_ms + 2 * ROUND_TRIP_MS, self._queue[0], TakeLock())
        return Done()


def commit(world: Contention, app: str, batch_id: int, ranges: tuple[LedgerRange, ...]) -> Callable[[], Steps[Any]]:
    message = CommitMessage(LOG_ID, app, "run", "query", batch_id, 0, ranges)
    request = CommitRequest(LOG_ID, app, "run", "query", batch_id, (message,))
    return lambda: change_steps(BatchCommit(PATHS, request), world.clock)


def small_commits(world: Contention, number: int, processes: int, rate: float) -> Process:
    """One of ``processes`` that together make ``rate`` commits a second, of one range each."""
    app, ledger_id = f"small{number}", 100 + number
    world.register(app, "run", range(ledger_id, ledger_id + 1))
    every_ms = processes * SECOND_MS / rate

    def scripts() -> Iterator[tuple[float, Callable[[], Steps[Any]]]]:
        for batch_id in count():
            part = LedgerRange(ledger_id, 10 * batch_id, 10 * batch_id + 9, 10, 1000)
            yield (batch_id + number / processes) * every_ms, commit(world, app, batch_id, (part,))

    return world.add(app, scripts())


def large_commit(world: Contention, at_ms: float, ledgers: int = 5_000) -> Process:
    world.register("large", "run", range(10_000, 10_000 + ledgers))
    ranges = tuple(LedgerRange(10_000 + n, 0, 99, 100, 10_000) for n in range(ledgers))
    return world.add("large", iter([(at_ms, commit(world, "large", 0, ranges))]), decide_ms=100.0)


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


def large_beside_small(at_most_ms: float = 60 * SECOND_MS) -> tuple[float, list[float]]:
    """How long the commit of 5,000 ledgers took, and each of the small ones, 50 a second, until some seconds later."""
    world = Contention()
    small = [small_commits(world, number, 10, 50.0) for number in range(10)]
    large = large_commit(world, 2 * SECOND_MS)
    world.run(lambda: large.finished, at_most_ms=at_most_ms)
    end_ms = world.now_ms + 5 * SECOND_MS
    world.run(lambda: world.now_ms > end_ms, at_most_ms=end_ms + SECOND_MS)
    return large.took_ms[0], [took for process in small for took in process.took_ms]


@pytest.fixture(scope="module")
def alone_ms() -> float:
    world = Contention()
    large = large_commit(world, 0.0)
    world.run(lambda: large.finished, at_most_ms=60 * SECOND_MS)
    return large.took_ms[0]


def test_s7_a_commit_of_5000_ledgers_beside_50_commits_a_second_gets_through(alone_ms: float) -> None:
    took_ms, small_ms = large_beside_small()
    print(f"alone {alone_ms:.0f} ms, beside {took_ms:.0f} ms; small ones: p99 {p99(small_ms):.0f} ms, {max(small_ms)}")
    assert took_ms < 2 * alone_ms
    assert len(small_ms) > 300
    assert max(small_ms) < 500, "they wait while the large one has the lock, and not while it reads registrations"


def no_one_waits_for_others() -> AbstractContextManager[Any]:
    return patch.object(changes, "_writes", lambda plan, path: False)


def registrations_are_read_each_time() -> AbstractContextManager[Any]:
    stack = ExitStack()
    stack.enter_context(patch.object(changes, "is_unchanged", lambda then, now: False))
    stack.enter_context(patch.object(LedgerChecks, "check", lambda self, *arguments: check_ledgers(*arguments)))
    return stack


def test_s7_without_newcomers_that_wait_it_would_starve(alone_ms: float) -> None:
    with no_one_waits_for_others(), pytest.raises(AssertionError, match="not done after"):
        large_beside_small(2 * SECOND_MS + 5 * alone_ms)


def test_s7_without_keeping_what_was_read_the_others_would_wait_for_seconds() -> None:
    with registrations_are_read_each_time():
        _, small_ms = large_beside_small()
    assert max(small_ms) > 700


def test_s7_the_reaper_gets_through_beside_17_commits_a_second() -> None:
    """1,500 orphans of a retired run, whose ledgers no longer have metadata: condemned, and deleted two hours later."""

    def reap(rate: float) -> tuple[float, list[ReapReport]]:
        world = Contention()
        world.register("old", "r0", range(20_000, 21_500))
        world.register("next", "run", range(30_000, 30_001))
        retired = CommitRequest(LOG_ID, "old", "r0", "query", 0)
        successor = CommitRequest(LOG_ID, "old", "r1", "query", 1)
        small = [small_commits(world, number, 4, rate) for number in range(4)] if rate else []

        def scripts() -> Iterator[tuple[float, Callable[[], Steps[Any]]]]:
            for request in (retired, successor):
                yield 0.0, lambda request=request: change_steps(BatchCommit(PATHS, request), world.clock)
            for hour in (0, 1):
                later = 2 * hour * 3_600_000
                yield (
                    0.0,
                    lambda later=later: reap_steps(PATHS, ledger_path, lambda: world.clock() + later, lambda: None),
                )

        reaper = world.add("reaper", scripts(), decide_ms=20.0)
        world.run(lambda: reaper.finished, at_most_ms=600 * SECOND_MS)
        assert not small or max(max(process.took_ms) for process in small) < 500
        return sum(reaper.took_ms[2:]), reaper.results[2:]

    alone_ms, _ = reap(0.0)
    took_ms, (first, second) = reap(17.0)
    print(f"alone {alone_ms:.0f} ms, beside {took_ms:.0f} ms")
    assert (len(first.condemned), len(second.deleted)) == (1_500, 1_500)
    assert took_ms < 10 * alone_ms
