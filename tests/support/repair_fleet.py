"""Many replication workers with the marks of one lost bookie, in model time: how long until the last mark is gone.

The workers are the shipped machines. What they wait for is modelled: requests to ZooKeeper, and repairs, of which a
worker shares its bytes per second equally among the most that it does at once. Run it for the figures of
docs/design/replication.md with ``python -m tests.support.repair_fleet``.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from bk_spark.protocol.machine import StartTimer, TimerFired
from bookie_server.replication.actions import DisabledRead
from bookie_server.replication.worker import ReplicationWorker, WorkerSettings
from bookie_server.replication.worker_actions import (
    Finish,
    Lock,
    Locked,
    LocksRead,
    MarksChanged,
    MarksRead,
    NotLocked,
    ReadLocks,
    ReadMarks,
    Release,
    Released,
    Repair,
    RepairEnd,
    RepairEnded,
    WatchSwitch,
)

_PAGE_MARKS = 256


@dataclass(frozen=True, slots=True)
class Loss:
    """What a bookie lost, and what repairs it. ``marks_per_s``: how fast the auditor marks its ledgers."""

    ledgers: int
    size_bytes: float
    workers: int
    bytes_per_s: float
    marks_per_s: float
    request_ms: float = 5.0
    settings: WorkerSettings = field(default_factory=WorkerSettings)

    @property
    def on_paper_s(self) -> float:
        """The time that the bytes take, if every worker is busy to the end and all ledgers are marked at once."""
        return self.size_bytes / (self.workers * self.bytes_per_s)


class RepairFleet:
    """Plays one loss. The same seed gives the same history."""

    def __init__(self, loss: Loss, seed: int = 1) -> None:
        self.loss = loss
        self.now_ms = 0.0
        #: Attempts to take a lock that another worker had.
        self.in_vain = 0
        self._marks: dict[int, None] = {}
        self._repaired = 0
        self._locks: set[int] = set()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._random = Random(seed)
        self._workers = [ReplicationWorker(loss.settings, Random(seed + n)) for n in range(1, loss.workers + 1)]
        self._pages: dict[int, list[list[int]]] = {}

    def play(self) -> float:
        """Return the seconds from the first mark until the last one is gone."""
        for worker in self._workers:
            self._perform(worker)
        for ledger_id in range(self.loss.ledgers):
            self._after(ledger_id * 1000 / self.loss.marks_per_s, lambda each=ledger_id: self._mark(each))
        while self._repaired < self.loss.ledgers:
            self.now_ms, _, happen = heapq.heappop(self._events)
            happen()
        return self.now_ms / 1000

    def _after(self, wait_ms: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ms + wait_ms, next(self._numbers), happen))

    def _tell(self, worker: ReplicationWorker, event: Any) -> None:
        worker.handle(event)
        self._perform(worker)

    def _mark(self, ledger_id: int) -> None:
        self._marks[ledger_id] = None
        if len(self._marks) == 1:
            self._spread()

    def _spread(self) -> None:
        some = bool(self._marks)
        for worker in self._workers:
            self._after(self.loss.request_ms, lambda each=worker: self._tell(each, MarksChanged(some)))

    def _perform(self, worker: ReplicationWorker) -> None:
        loss = self.loss
        for action in worker.take_actions():
            match action:
                case WatchSwitch():
                    self._after(0, lambda: self._tell(worker, DisabledRead(False)))
                case StartTimer(name, after_ms):
                    self._after(after_ms, lambda name=name: self._tell(worker, TimerFired(name)))
                case Repair(ledger_id):
                    share = loss.bytes_per_s / loss.settings.at_once
                    took_ms = loss.size_bytes / loss.ledgers / share * 1000
                    ended = RepairEnded(ledger_id, RepairEnd.REPAIRED)
                    self._after(took_ms, lambda ended=ended: self._tell(worker, ended))
                case _:
                    self._after(loss.request_ms, lambda action=action: self._tell(worker, self._answer(worker, action)))

    def _answer(self, worker: ReplicationWorker, action: Any) -> Any:
        match action:
            case ReadLocks():
                return LocksRead(frozenset(self._locks))
            case ReadMarks(first):
                if first:
                    marks = list(self._marks)
                    self._random.shuffle(marks)
                    self._pages[id(worker)] = [
                        marks[start : start + _PAGE_MARKS] for start in range(0, len(marks), _PAGE_MARKS)
                    ]
                pages = self._pages[id(worker)]
                return MarksRead(pages.pop(), more=True) if pages else MarksRead((), more=False)
            case Lock(ledger_id):
                if ledger_id in self._locks:
                    self.in_vain += 1
                    return NotLocked(ledger_id)
                self._locks.add(ledger_id)
                return Locked(ledger_id, 0 if ledger_id in self._marks else None)
            case Finish(ledger_id) | Release(ledger_id):
                self._locks.discard(ledger_id)
                if isinstance(action, Finish):
                    del self._marks[ledger_id]
                    self._repaired += 1
                    if not self._marks:
                        self._spread()
                return Released(ledger_id)
        raise AssertionError(action)


def main() -> None:
    """Print the figures of docs/design/replication.md: a bookie of 10 TB among 1,000, with a million ledgers."""
    for workers, bytes_per_s in itertools.product((10, 100), (17.6e6, 50e6)):
        # A search reads 989 ledgers a second, and three of a thousand name the bookie.
        loss = Loss(3_000, 10e12, workers, bytes_per_s, marks_per_s=2.967)
        fleet = RepairFleet(loss)
        print(
            f"{workers} x {bytes_per_s / 1e6:g} MB/s: paper {loss.on_paper_s / 60:.1f} min, "
            f"model {fleet.play() / 60:.1f} min, {fleet.in_vain} locks in vain"
        )


if __name__ == "__main__":
    main()
