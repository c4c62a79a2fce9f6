"""Readers: the real snapshots of a log, through a ZooKeeper session and a ledger client of the model world.

Snapshots are blocking code. It runs in its own thread, and only while the reader's actor makes a step. Each call on
ZooKeeper or a ledger is an action like a machine's, and anything can happen between two of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from queue import SimpleQueue
from typing import Any, ClassVar, TypeVar

from bk_spark.bookie.metadata.cluster_clock import MAX_DIFFERENCE_MS
from bk_spark.log.core.steps import (
    Answered,
    AskList,
    EntryRead,
    Failed,
    Found,
    ListChildren,
    Listed,
    ReadEntry,
    Sync,
    Unavailable,
)
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.segment import Segment
from bk_spark.log.gc.maintenance import maintenance_steps
from bk_spark.log.gc.reaper import reap_steps
from bk_spark.log.gc.retention import retention_steps
from bk_spark.log.io.snapshot import LogSnapshot
from bk_spark.log.log import Log
from bk_spark.log.positions.texts import AsOf, Time
from bk_spark.log.store import LogStore
from bk_spark.protocol.errors import (
    BookieUnavailableError,
    InvalidArgumentError,
    LogRangeGoneError,
    LogReplacedError,
    MetadataUnavailableError,
    NoSuchLogError,
)
from bk_spark.protocol.metadata.znodes import Znode
from tests.simulation.logs.chores import Chore
from tests.simulation.logs.invariants import MAINTENANCE, RETENTION
from tests.simulation.logs.ledger_rules import DELETE_GRACE_MS, ListWatch, require
from tests.simulation.logs.ledgers import ledger_path
from tests.simulation.logs.world import NAME, ROOT, SETTINGS, Wait, World
from tests.simulation.logs.zookeeper import Look

_T = TypeVar("_T")
_Ask = Callable[[Any], Any]


class _ProcessEndedError(BaseException):
    """Ends the thread of a process that was killed."""


def in_thread(call: Callable[[_Ask], _T]) -> Generator[Any, Any, _T]:
    """The result of ``call(ask)``, where ``ask(action)`` returns the action's event."""
    said: SimpleQueue[tuple[str, Any]] = SimpleQueue()
    heard: SimpleQueue[Any] = SimpleQueue()

    def ask(action: Any) -> Any:
        said.put(("asks", action))
        event = heard.get()
        if isinstance(event, _ProcessEndedError):
            raise event
        return event

    def run() -> None:
        try:
            said.put(("returns", call(ask)))
        except BaseException as error:
            said.put(("raises", error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while True:
            what, value = said.get()
            if what == "returns":
                result: _T = value
                return result
            if what == "raises":
                raise value
            event = yield value
            heard.put(event)
    finally:
        heard.put(_ProcessEndedError())
        thread.join()


class ReaderZooKeeper:
    """The part of :class:`bk_spark.bookie.metadata.zookeeper.ZooKeeper` that snapshots need."""

    def __init__(self, ask: _Ask, session_id: Callable[[], int]) -> None:
        self._ask = ask
        self._session_id = session_id

    @property
    def session_id(self) -> int:
        return self._session_id()

    def sync(self, path: str) -> None:
        self._answer(Sync(path))

    def get(self, path: str) -> Znode | None:
        return self.get_many((path,))[path]

    def get_latest(self, path: str) -> Znode | None:
        while True:
            session = self.session_id
            self.sync(path)
            znode = self.get(path)
            if self.session_id == session:
                return znode

    def get_many(self, paths: Sequence[str]) -> dict[str, Znode | None]:
        found = self._answer(Look(tuple(paths)))
        assert isinstance(found, Found)
        return dict(found.znodes)

    def children(self, path: str) -> list[str] | None:
        listed = self._answer(ListChildren(path))
        assert isinstance(listed, Listed)
        return None if listed.names is None else list(listed.names)

    def _answer(self, action: Any) -> Any:
        event = self._ask(action)
        if isinstance(event, Unavailable):
            raise MetadataUnavailableError(event.reason)
        return event


class ReaderLedgers:
    """The part of :class:`bk_spark.log.io.ledgers.LogLedgers`, its client and its readers that snapshots need."""

    def __init__(self, ask: _Ask, zookeeper: ReaderZooKeeper) -> None:
        self._ask = ask
        self.zookeeper = zookeeper

    @property
    def client(self) -> ReaderLedgers:
        return self

    def reader(self, ledger_id: int) -> _Ledger:
        return _Ledger(self, ledger_id)

    def read_entry(self, ledger_id: int, entry_id: int) -> bytes:
        event = self._ask(ReadEntry(ledger_id, entry_id))
        if isinstance(event, Failed):
            raise event.error
        assert isinstance(event, EntryRead)
        return event.payload


class _Ledger:
    def __init__(self, ledgers: ReaderLedgers, ledger_id: int) -> None:
        self._ledgers = ledgers
        self._ledger_id = ledger_id

    def read(self, first: int, last: int) -> list[bytes]:
        return [self._ledgers.read_entry(self._ledger_id, entry_id) for entry_id in range(first, last + 1)]


class SnapshotUser(Chore):
    """Runs code that reads snapshots."""

    def open(self, ask: _Ask) -> LogSnapshot:
        self._ask = ask
        zookeeper: Any = ReaderZooKeeper(self._ask_now, lambda: self.session.session)
        ledgers: Any = ReaderLedgers(self._ask_now, zookeeper)
        log = LogStore(zookeeper, ROOT, now_ms=self.now_ms).open_log(NAME, log_id=self.paths.log_id)
        return Log(zookeeper, log.paths, SETTINGS, self.now_ms, ledgers).snapshot()

    def later(self, call: Callable[[], _T]) -> Generator[Any, Any, _T]:
        """Let ``call`` use an existing snapshot. The snapshot outlives the thread that took it: it asks through the
        thread that uses it."""

        def run(ask: _Ask) -> _T:
            self._ask = ask
            return call()

        return in_thread(run)

    def _ask_now(self, action: Any) -> Any:
        return self._ask(action)

    def answered(self, steps: Generator[Any, Any, _T]) -> Generator[Any, Any, _T]:
        """Run ``steps``; snapshots answer their questions about the list."""
        try:
            action = next(steps)
            while True:
                try:
                    event = (yield from self._answer(action)) if isinstance(action, AskList) else (yield action)
                except Exception as error:
                    action = steps.throw(error)
                else:
                    action = steps.send(event)
        except StopIteration as end:
            result: _T = end.value
            return result

    def _answer(self, action: AskList) -> Generator[Any, Any, Answered]:
        snapshot = yield from in_thread(self.open)
        return Answered((yield from self.later(lambda: action.question(snapshot))))

    def right_clock(self) -> Callable[[], None]:
        """The check of this machine's clock."""
        ahead_ms, jumps = self.clock.ahead_ms, self.clock.jumps

        def check() -> None:
            self.clock.cluster.check()
            require(abs(ahead_ms) <= MAX_DIFFERENCE_MS or self.clock.jumps > jumps, "a wrong clock is taken for right")

        return check


class Retention(SnapshotUser):
    """Applies a policy, by time or by size."""

    kind: ClassVar[str] = RETENTION

    def once(self) -> Generator[Any, Any, object]:
        try:
            return (yield from self.answered(retention_steps(self.paths, self.now_ms, self.right_clock())))
        except LogRangeGoneError as error:
            # Another process truncated it meanwhile.
            return error


class Maintenance(SnapshotUser):
    """Retention, moves of pages and the reaper, in the way of processes that commit."""

    kind: ClassVar[str] = MAINTENANCE
    begun = left_to_others = 0

    def once(self) -> Generator[Any, Any, object]:
        token = self.world.random.randbytes(16)
        steps = maintenance_steps(self.paths, ledger_path, self.now_ms, self.right_clock(), token)
        report = yield from self.answered(steps)
        if report.begun:
            self.begun += 1
        else:
            self.left_to_others += 1
            claims = self.world.watch.logs[self.paths.log_id].claims
            require(token not in claims, "told to leave it to others, though its claim took effect")
        return report


class Reaper(SnapshotUser):
    """Runs one round of the reaper after another."""

    kind: ClassVar[str] = "reaped"

    def __init__(self, world: World, name: str, paths: LogPaths, times: int = 1, pause_steps: int = 0) -> None:
        super().__init__(world, name, paths, times, pause_steps)
        self.condemned = self.deleted = self.removed = 0

    def once(self) -> Generator[Any, Any, object]:
        report = yield from self.answered(reap_steps(self.paths, ledger_path, self.now_ms, self.right_clock()))
        self.condemned += len(report.condemned)
        self.deleted += len(report.deleted)
        self.removed += len(report.removed)
        for what, why in report.failed:
            require("damaged" not in why, f"{what}: {why}")
        return report


class PastReader(SnapshotUser):
    """Reads states of the log as of commits, again and again: each stays as it was, or is gone when it may be."""

    kind: ClassVar[str] = "read the past"

    def __init__(self, world: World, name: str, paths: LogPaths, times: int = 1, pause_steps: int = 0) -> None:
        super().__init__(world, name, paths, times, pause_steps)
        self._seen: dict[AsOf, tuple[int, int]] = {}
        self.states = self.gone = 0

    def once(self) -> Generator[Any, Any, object]:
        watch, random = self.world.watch.logs[self.paths.log_id], self.world.random
        as_of: AsOf
        if self._seen and random.random() < 0.5:
            as_of = random.choice(list(self._seen))
        elif random.random() < 0.5:
            as_of = Time(self.world.now_ms - random.choice([0, 3, 20, 60, 600]) * 60_000)
        else:
            as_of = random.randrange(watch.head.next_offset + 1)
        # What is kept at the beginning may be let go of until the end.
        asked_ms = self.world.now_ms
        try:
            snapshot = yield from in_thread(self.open)
            state = yield from self.later(lambda: snapshot.as_of(as_of, self.measured_now_ms))
            segments = yield from self.later(lambda: list(state.segments()))
        except LogRangeGoneError as error:
            self._check_gone(watch, as_of, asked_ms, error)
            self.gone += 1
            return "gone"
        except InvalidArgumentError as error:
            require(as_of not in self._seen, f"as of {as_of} was {self._seen.get(as_of)}: {error}")
            return error
        except (NoSuchLogError, LogReplacedError):
            require(watch.deleted, "refused, and the log is still there")
            raise
        except (MetadataUnavailableError, BookieUnavailableError) as error:
            return error
        found = (state.first_offset, state.next_offset)
        require(self._seen.setdefault(as_of, found) == found, f"as of {as_of}: {found}, before {self._seen[as_of]}")
        is_state = any((first, end) == found for _, first, end in watch.states)
        within_tail = isinstance(as_of, int) and as_of + 1 == state.next_offset
        require(is_state or within_tail, f"as of {as_of} the log never was {found}: {watch.states}")
        reached = state.first_offset
        for segment in segments:
            require(watch.sealed.get(segment.base_offset) == segment, f"there is no such segment: {segment}")
            require(segment.base_offset <= reached < segment.end_offset, f"{segment} does not hold offset {reached}")
            reached = min(segment.end_offset, state.next_offset)
        require(reached == state.next_offset, f"{state} ends at {reached}")
        self.states += 1
        return state

    def measured_now_ms(self) -> int:
        self._ask(Sync(self.paths.head))
        return self.now_ms()

    def _check_gone(self, watch: ListWatch, as_of: AsOf, asked_ms: int, error: Exception) -> None:
        """What the policy promised all the time is not gone."""
        if not isinstance(as_of, Time) or watch.deleted:
            return
        since_ms = self.world.now_ms - as_of.time_ms
        promised_ms = watch.least_history_ms(as_of.time_ms)
        require(since_ms > promised_ms, f"as of {since_ms} ms ago is gone, {promised_ms} ms were promised: {error}")


class LogReader(SnapshotUser):
    """Takes a snapshot, holds it for a while, and reads its list; then continues from its checkpoint, like a query."""

    kind: ClassVar[str] = "read"

    def __init__(self, world: World, name: str, paths: LogPaths, times: int = 1, pause_steps: int = 0) -> None:
        super().__init__(world, name, paths, times, pause_steps)
        #: The end of what it has read.
        self.checkpoint: int | None = None
        self.segments = self.gone = 0
        self._hold_steps = world.random.choice([0, 20, 100])

    def once(self) -> Generator[Any, Any, object]:
        watch = self.world.watch.logs[self.paths.log_id]
        end_before = watch.head.next_offset
        try:
            snapshot = yield from in_thread(self.open)
            require(
                snapshot.next_offset >= max(end_before, self.checkpoint or 0),
                f"{snapshot} is older than what was there before it was asked for: {end_before}",
            )
            due = self.world.steps + self.world.random.randint(0, 2 * self._hold_steps)
            yield Wait(lambda: self.world.steps >= due or self.world.healed, "hold")
            start = snapshot.first_offset if self.checkpoint is None else self.checkpoint
            segments = yield from self.later(lambda: list(snapshot.segments(start)))
        except LogRangeGoneError:
            require(watch.head.first_offset > (self.checkpoint or 0), f"gone? The log starts at {watch.head}")
            self.gone += 1
            self.checkpoint = None
            return "gone"
        except (NoSuchLogError, LogReplacedError):
            require(watch.deleted, "refused, and the log is still there")
            raise
        except (MetadataUnavailableError, BookieUnavailableError) as error:
            return error
        self._check(watch, start, snapshot, segments)
        self.segments += len(segments)
        self.checkpoint = snapshot.next_offset
        return segments

    def _check(self, watch: ListWatch, start: int, snapshot: LogSnapshot, segments: list[Segment]) -> None:
        reached = start
        for segment in segments:
            require(watch.sealed.get(segment.base_offset) == segment, f"there is no such segment: {segment}")
            require(segment.base_offset <= reached < segment.end_offset, f"{segment} does not hold offset {reached}")
            reached = min(segment.end_offset, snapshot.next_offset)
            left_ms = watch.left_ms.get(segment.ledger_id, self.world.now_ms)
            there = self.world.ledgers.exists(segment.ledger_id)
            require(
                there or watch.deleted or self.world.now_ms - left_ms >= DELETE_GRACE_MS,
                f"ledger {segment.ledger_id} of {snapshot} is gone",
            )
        require(reached == max(start, snapshot.next_offset), f"{snapshot} from {start} on ends at {reached}")
