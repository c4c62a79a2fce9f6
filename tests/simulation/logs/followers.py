"""Readers of entries: the shipped machines, over lists from real snapshots, and model ledgers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, ClassVar

from bk_spark.log.core.readers import follow
from bk_spark.log.core.readers.read_range import ReadRange
from bk_spark.log.core.readers.reader_actions import (
    Arm,
    Armed,
    AskTailEnd,
    AwaitChange,
    Changed,
    Checked,
    CheckListed,
    Delivered,
    Ended,
    FollowTail,
    ListTaken,
    LookAtTail,
    More,
    ReaderAction,
    ReaderEvent,
    ReadSealed,
    ReadTail,
    TailEnd,
    TailSeen,
    TakeList,
    TimeIsUp,
)
from bk_spark.log.core.steps import Found
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.segment import Segment
from bk_spark.log.io.snapshot import LogSnapshot
from bk_spark.protocol.errors import (
    BookKeeperError,
    LogRangeGoneError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from bk_spark.protocol.machine import EndedBy, StepMachine
from tests.simulation.logs.invariants import require
from tests.simulation.logs.readers import SnapshotUser, in_thread
from tests.simulation.logs.world import NAME, Wait, World
from tests.simulation.logs.zookeeper import Look

#: A block: its offset, ledger, first entry and number of entries.
_Block = tuple[int, int, int, int]


class EntryReader(SnapshotUser):
    """Runs machines that read entries."""

    def __init__(self, world: World, name: str, paths: LogPaths, times: int = 1, pause_steps: int = 0) -> None:
        super().__init__(world, name, paths, times, pause_steps)
        #: The end of the entries received so far.
        self.offset = 0
        self.entries = self.from_tails = 0
        self._snapshot: LogSnapshot | None = None
        self._read: Callable[[], Generator[Any, Any, _Block | None]] | None = None

    def _run(self, steps: Generator[Any, Any, None]) -> Generator[Any, Any, None]:
        machine = StepMachine(steps)
        while machine.outcome is None:
            for action in machine.take_actions():
                try:
                    event = yield from self._perform(action)
                except BookKeeperError as error:
                    machine.fail(error)
                else:
                    machine.handle(event)
        if isinstance(machine.outcome, EndedBy):
            error = machine.outcome.error
            # A ledger is deleted only after its segments have left the list.
            require(
                not isinstance(error, NoSuchLedgerError) or self.world.watch.logs[self.paths.log_id].deleted,
                f"{self.name} at {self.offset}: {error}",
            )
            raise error

    def _perform(self, action: Any) -> Generator[Any, Any, ReaderEvent]:
        if isinstance(action, TakeList):
            self._snapshot = yield from in_thread(self.open)
            return ListTaken(self._snapshot.first_offset, self._snapshot.next_offset)
        snapshot = self._snapshot
        assert snapshot is not None
        match action:
            case CheckListed(start, end):
                yield from self.later(lambda: snapshot.tables(start, end))
                return Checked()
            case LookAtTail():
                return TailSeen(*(yield from self.later(snapshot.look_at_tail)))
            case AskTailEnd(tail):
                yield Wait(lambda: True, "end of tail")
                self._check_there(tail.ledger_id)
                ledger = self.world.ledgers.all[tail.ledger_id]
                entries = ledger.acknowledged if ledger.end is None else ledger.end + 1
                return TailEnd(tail.base_offset + entries - tail.first_entry)
            case ReadSealed(start, end):
                segments = yield from self.later(lambda: list(snapshot.segments(start, end)))
                parts = iter([segment.clip(start, end) for segment in segments])
                self._read = lambda: self._next_sealed(next(parts, None))
                return (yield from self._deliver())
            case ReadTail(tail, start, end):
                first = tail.first_entry + start - tail.base_offset
                parts = iter([Segment(tail.ledger_id, first, first + end - start - 1, start, end - start, 0, 0)])
                self._read = lambda: self._next_sealed(next(parts, None))
                return (yield from self._deliver())
            case More():
                return (yield from self._deliver())
        raise AssertionError(action)

    def _deliver(self) -> Generator[Any, Any, ReaderEvent]:
        assert self._read is not None
        block = yield from self._read()
        if block is None:
            return Ended()
        base, ledger_id, first, count = block
        require(base == self.offset, f"{self.name} is given offset {base} after {self.offset}")
        if not self.world.watch.logs[self.paths.log_id].deleted:
            for n in range(count):
                # From now on no other entry may get this offset.
                self.world.watch.acknowledged(self.paths, base + n, ledger_id, first + n)
        self.offset += count
        self.entries += count
        return Delivered(self.offset, 0.0)

    def _next_sealed(self, part: Segment | None) -> Generator[Any, Any, _Block | None]:
        yield Wait(lambda: True, "block")
        if part is None:
            return None
        self._check_there(part.ledger_id)
        return part.base_offset, part.ledger_id, part.first_entry, part.entries

    def _check_there(self, ledger_id: int) -> None:
        if not self.world.ledgers.exists(ledger_id):
            raise NoSuchLedgerError("model", ledger_id=ledger_id)


class Follower(EntryReader):
    """Follows the log from its start, each time from its last position."""

    kind: ClassVar[str] = "follow"

    def __init__(self, world: World, name: str, paths: LogPaths, times: int = 1, pause_steps: int = 0) -> None:
        super().__init__(world, name, paths, times, pause_steps)
        self._due = 0
        #: The session and the head version with which the watch was set.
        self._watched: tuple[int, int | None] | None = None

    def once(self) -> Generator[Any, Any, object]:
        self._due = self.world.steps + self.world.random.randint(20, 400)
        log = self.world.watch.logs[self.paths.log_id]
        try:
            yield from self._run(follow.Follow(NAME, self.offset, 1.0).steps())
        except LogRangeGoneError as error:
            require(log.deleted or log.head.first_offset > self.offset, f"{self.name} at {self.offset}: {error}")
            self.offset = log.head.first_offset
            return self.offset
        if self._is_last() and not log.deleted:
            tail = 0 if log.open_tail is None else self.world.ledgers.all[log.open_tail.ledger_id].acknowledged
            end = log.head.next_offset + tail
            require(self.offset >= end, f"{self.name} ends at {self.offset}, the log at {end}")
        return self.offset

    def _perform(self, action: ReaderAction) -> Generator[Any, Any, ReaderEvent]:
        match action:
            case Arm():
                if self._watched is None or self._has_changed():
                    found = yield Look((self.paths.head,))
                    if not isinstance(found, Found):
                        raise MetadataUnavailableError("model")
                    znode = found.znodes[self.paths.head]
                    self._watched = (self.session.session, None if znode is None else znode.version)
                return Armed(0.0)
            case FollowTail(tail, first_entry):
                # A ledger has no entries before its first.
                self._read = lambda: self._next_of_tail(tail, max(first_entry, 0) + self.offset - start)
                start = self.offset
                return (yield from self._deliver())
            case AwaitChange():
                yield Wait(lambda: self._has_changed() or self._is_over(), "change")
                return Changed() if self._has_changed() else TimeIsUp()
        return (yield from super()._perform(action))

    def _next_of_tail(self, tail: Segment, entry: int) -> Generator[Any, Any, _Block | None]:
        ledger = self.world.ledgers.all[tail.ledger_id]

        def last() -> int:
            return ledger.acknowledged - 1 if ledger.end is None else ledger.end

        def is_there() -> bool:
            return self.world.ledgers.exists(tail.ledger_id)

        yield Wait(lambda: not is_there() or last() >= entry or ledger.end is not None or self._is_over(), "tail")
        self._check_there(tail.ledger_id)
        if last() < entry:
            if ledger.end is not None and entry > ledger.end + 1:
                raise NoSuchEntryError("model", ledger_id=tail.ledger_id)
            return None
        count = self.world.random.randint(1, last() - entry + 1)
        self.from_tails += count
        return tail.base_offset + entry - tail.first_entry, tail.ledger_id, entry, count

    def _has_changed(self) -> bool:
        znode = self.world.zk.read(self.paths.head)
        return not self.world.zk.is_alive(self.session.session) or self._watched != (
            self.session.session,
            None if znode is None else znode.version,
        )

    def _is_over(self) -> bool:
        """Its time is up."""
        return self._is_last() if self.world.healed else self.world.steps >= self._due

    def _is_last(self) -> bool:
        """No actor is left that could add to the log."""
        return self.world.healed and all(isinstance(actor, EntryReader) for actor in self.world.alive)


class RangeReader(EntryReader):
    """Reads ranges of offsets, some of them with a part of the open tail, some beyond the end."""

    kind: ClassVar[str] = "read range"

    def once(self) -> Generator[Any, Any, object]:
        log, random = self.world.watch.logs[self.paths.log_id], self.world.random
        tail = 0 if log.open_tail is None else self.world.ledgers.all[log.open_tail.ledger_id].acknowledged
        readable = log.head.next_offset + tail
        self.offset = start = random.randint(log.head.first_offset, readable)
        end = random.randint(start, readable + 1)
        machine = ReadRange(NAME, start, end)
        try:
            yield from self._run(machine.plan_steps())
            yield from self._run(machine.read_steps())
        except LogRangeGoneError as error:
            require(
                log.deleted or end > readable or log.head.first_offset > self.offset,
                f"{self.name} of [{start}, {end}) at {self.offset}: {error}",
            )
            return error
        require(self.offset == end, f"{self.name} of [{start}, {end}) ends at {self.offset}")
        return end
