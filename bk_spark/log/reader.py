"""Reads a log without Spark: ranges of offsets, or following the log as it grows.

Data moves in blocks of verified entries, never entry by entry. After the sealed segments there may be an open tail: the
ledger that a log writer is writing. It is read up to its last add confirmed. Confirmed entries stay in the log no
matter who seals the tail, so their offsets are final.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final, TypeAlias

from bk_spark.bookie.blocking import BlockingReader
from bk_spark.bookie.runners import HandOver, iterate_blocking, run_blocking
from bk_spark.log.core.readers.follow import Follow
from bk_spark.log.core.readers.read_range import ReadRange, readable_end_steps
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
from bk_spark.log.formats.segment import Segment
from bk_spark.log.io.blocking import BlockingLog
from bk_spark.log.io.snapshot import LogSnapshot
from bk_spark.log.io.znode_watch import ZnodeWatch
from bk_spark.protocol.entries.entry import EntryBlock
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.ledger.reading.range_windows import EntryRange
from bk_spark.protocol.machine import StepMachine

#: Assumed size of a part of an open tail, whose size the list does not hold. Too large to be read ahead at once.
_UNKNOWN_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class LogBlock:
    """Entries at consecutive offsets in one segment.

    Parameters
    ----------
    base_offset
        The offset of the first entry.
    ledger_id
        The ledger that holds the entries.
    commit_time_ms
        When the entries were committed, in Unix milliseconds. Entries of a log writer: when their ledger was opened.
    block
        The entries, with their ids in the ledger.
    """

    base_offset: int
    ledger_id: int
    commit_time_ms: int
    block: EntryBlock

    def __len__(self) -> int:
        return len(self.block)

    @property
    def end_offset(self) -> int:
        """The offset after the last entry."""
        return self.base_offset + len(self.block)

    @property
    def payloads(self) -> Payloads:
        """The payloads of the entries."""
        return self.block.payloads


class SegmentSeries:
    """Parts of sealed segments, one after the other, and the blocks that their entries make."""

    def __init__(self, parts: list[Segment]) -> None:
        self.ranges = [
            EntryRange(part.ledger_id, part.first_entry, part.entry_at(part.end_offset - 1), part.size_bytes)
            for part in parts
        ]
        self._todo = iter(parts)
        self._part = next(self._todo)
        self._reached = self._part.base_offset

    def blocks(self, payloads: Payloads) -> Iterator[LogBlock]:
        """Yield the next entries as blocks, none of which is in two segments."""
        start = 0
        while start < len(payloads):
            if self._reached == self._part.end_offset:
                self._part = next(self._todo)
            part, reached = self._part, self._reached
            end = min(len(payloads), start + part.end_offset - reached)
            block = EntryBlock(part.entry_at(reached), payloads.part(start, end), -1)
            yield LogBlock(reached, part.ledger_id, part.commit_time_ms, block)
            self._reached += end - start
            start = end


def part_of_tail(tail: Segment, start: int, end: int) -> Segment:
    """Return offsets ``[start, end)`` of an open tail as a segment."""
    first = start - tail.base_offset + tail.first_entry
    last = first + end - start - 1
    return Segment(tail.ledger_id, first, last, start, end - start, _UNKNOWN_BYTES, tail.commit_time_ms)


def block_of_tail(tail: Segment, block: EntryBlock) -> LogBlock:
    """Return entries of an open tail with their offsets."""
    base = tail.base_offset + block.first_entry_id - tail.first_entry
    return LogBlock(base, tail.ledger_id, tail.commit_time_ms, block)


#: A block for the caller. Once the caller is done with it, the machine receives ``Delivered``.
BlockFound: TypeAlias = HandOver[LogBlock, ReaderEvent]


def block_found(block: LogBlock, now_ms: Callable[[], float]) -> BlockFound:
    """Return a block for the caller to take. ``now_ms`` tells the time, of a monotonic clock."""
    return HandOver(block, lambda: Delivered(block.end_offset, now_ms()))


class ListPerformer:
    """Performs the actions that are one blocking call each: about the list, and how far the open tail is readable.

    Parameters
    ----------
    log
        The log.
    reader_of
        Returns a reader of the ledger with this id. It may be an old one.
    snapshot
        The list taken, if there is one already.
    """

    def __init__(
        self, log: BlockingLog, reader_of: Callable[[int], BlockingReader], snapshot: LogSnapshot | None = None
    ) -> None:
        self._log = log
        self._reader_of = reader_of
        self._snapshot = snapshot

    def perform(self, action: TakeList | CheckListed | LookAtTail | AskTailEnd) -> ReaderEvent:
        """Do the action and return its event."""
        match action:
            case TakeList():
                self._snapshot = self._log.snapshot()
                return ListTaken(self._snapshot.first_offset, self._snapshot.next_offset)
            case CheckListed(start, end):
                self._taken.tables(start, end)
                return Checked()
            case LookAtTail():
                return TailSeen(*self._taken.look_at_tail())
            case AskTailEnd(tail):
                confirmed = self._reader_of(tail.ledger_id).read_last_add_confirmed()
                return TailEnd(tail.base_offset + confirmed + 1 - tail.first_entry)

    def parts(self, start: int, end: int) -> Iterator[list[Segment]]:
        """Yield the parts of sealed segments that have the offsets ``[start, end)``, one page of the list at a time."""
        for table in self._taken.tables(start, end):
            yield [segment.clip(start, end) for segment in table]

    @property
    def _taken(self) -> LogSnapshot:
        assert self._snapshot is not None
        return self._snapshot


class LogReader:
    """Reads one log in blocks of entries. Use it from one thread at a time.

    Closing an iterator stops its pending work (``contextlib.closing``). Created by :meth:`Log.open_reader`.
    """

    def __init__(self, log: BlockingLog) -> None:
        self._log = log
        self._ledgers = log.ledgers
        #: The head has changed, or may have.
        self._changed = threading.Event()
        self._watch = ZnodeWatch(log.zk, log.paths.head, self._changed)
        #: Reader of the open tail whose end was asked for last.
        self._tail: BlockingReader | None = None

    def __repr__(self) -> str:
        return f"LogReader({self._log.name})"

    def read(self, start: int, end: int) -> Generator[LogBlock, None, None]:
        """Read a range of offsets in order.

        Parameters
        ----------
        start
            The first offset.
        end
            The offset after the last one, at most :meth:`readable_end`.

        Returns
        -------
        iterator of LogBlock
            The entries, each once.

        Raises
        ------
        LogRangeGoneError
            If part of the range was truncated, or is not written yet.
        EntryUnknownError
            If bookies could not return an entry. The entries before it are valid.
        """
        machine = ReadRange(self._log.name, start, end)
        performer = _Performer(self)
        run_blocking(StepMachine(machine.plan_steps()), performer.perform_event)
        return performer.blocks(machine.read_steps())

    def follow(self, start: int, *, max_wait_ms: int | None = None) -> Generator[LogBlock, None, None]:
        """Read entries in order as the log grows.

        Parameters
        ----------
        start
            The first offset.
        max_wait_ms
            End when nothing new has arrived for this long, in milliseconds. Default: never end. Entries that were
            readable before the call are returned in any case.

        Yields
        ------
        LogBlock
            The entries, each once. To resume, even after an error, follow from the ``end_offset`` of the last block.

        Raises
        ------
        LogRangeGoneError
            If entries were truncated before they were read, or ``start`` is beyond the log's end.
        NoSuchLogError
            If the log was deleted.
        EntryUnknownError
            If bookies could not return an entry.
        """
        yield from _Performer(self).blocks(Follow(self._log.name, start, max_wait_ms).steps())

    def readable_end(self, snapshot: LogSnapshot | None = None) -> int:
        """Find the end of the readable entries. If a log writer holds the tail, this asks bookies.

        Parameters
        ----------
        snapshot
            The list to use. Default: the current list.

        Returns
        -------
        int
            The offset after the last readable entry.

        Raises
        ------
        EntryUnknownError
            If too few bookies of the open tail respond.
        """
        if snapshot is None:
            snapshot = self._log.snapshot()
        performer = _Performer(self, snapshot)
        return run_blocking(StepMachine(readable_end_steps(snapshot.next_offset)), performer.perform_event)

    def offset_at(self, time_ms: int) -> int:
        """Find the first offset at or after a time.

        Parameters
        ----------
        time_ms
            Unix time in milliseconds. It is compared with the time of each commit. Entries of a log writer have the
            time when their ledger was opened.

        Returns
        -------
        int
            The offset. If all entries are older: the end of the sealed segments.
        """
        return self._log.snapshot().offset_at(time_ms)

    def _sealed(self, pages: Iterator[list[Segment]]) -> Generator[LogBlock, None, None]:
        for parts in pages:
            yield from self._series(parts)

    def _series(self, parts: list[Segment]) -> Generator[LogBlock, None, None]:
        """Read the entries of sealed segments, one after the other."""
        series = SegmentSeries(parts)
        with closing(self._ledgers.read_series(series.ranges)) as lists:
            for payloads in lists:
                yield from series.blocks(payloads)

    def _follow_tail(self, action: FollowTail) -> Generator[LogBlock, None, None]:
        """Read entries of the open tail as they are confirmed, until its ledger is closed or the time is up."""
        tail = action.tail
        left_ms = None if action.until_ms is None else int(max(0.0, action.until_ms - _now_ms()))
        with closing(self._ledgers.reader(tail.ledger_id).tail(action.first_entry, max_wait_ms=left_ms)) as blocks:
            for block in blocks:
                yield block_of_tail(tail, block)

    def _reader_of_tail(self, ledger_id: int) -> BlockingReader:
        if self._tail is None or self._tail.ledger_id != ledger_id:
            self._tail = self._ledgers.reader(ledger_id)
        return self._tail


class _Performer:
    """Performs the actions of machines that read entries."""

    def __init__(self, reader: LogReader, snapshot: LogSnapshot | None = None) -> None:
        self._reader = reader
        self._list = ListPerformer(reader._log, reader._reader_of_tail, snapshot)
        self._blocks: Generator[LogBlock, None, None] | None = None

    def blocks(self, steps: Generator[ReaderAction, ReaderEvent, None]) -> Generator[LogBlock, None, None]:
        """Run a machine and yield the blocks that it reads. Raises the machine's error."""
        try:
            yield from iterate_blocking(StepMachine(steps), self.perform)
        finally:
            self._end()

    def perform_event(self, action: ReaderAction) -> ReaderEvent:
        found = self.perform(action)
        assert not isinstance(found, HandOver), action
        return found

    def perform(self, action: ReaderAction) -> ReaderEvent | BlockFound:
        reader = self._reader
        match action:
            case Arm():
                reader._changed.clear()
                reader._watch.arm()
                return Armed(_now_ms())
            case TakeList() | CheckListed() | LookAtTail() | AskTailEnd():
                return self._list.perform(action)
            case ReadSealed(start, end):
                return self._begin(reader._sealed(self._list.parts(start, end)))
            case ReadTail(tail, start, end):
                return self._begin(reader._series([part_of_tail(tail, start, end)]))
            case FollowTail():
                return self._begin(reader._follow_tail(action))
            case More():
                return self._next()
            case AwaitChange(until_ms):
                left_s = None if until_ms is None else max(0.0, until_ms - _now_ms()) / 1000
                return Changed() if reader._changed.wait(left_s) else TimeIsUp()

    def _begin(self, blocks: Generator[LogBlock, None, None]) -> ReaderEvent | BlockFound:
        self._end()
        self._blocks = blocks
        return self._next()

    def _next(self) -> ReaderEvent | BlockFound:
        assert self._blocks is not None
        block = next(self._blocks, None)
        return Ended() if block is None else block_found(block, _now_ms)

    def _end(self) -> None:
        if self._blocks is not None:
            self._blocks.close()


def _now_ms() -> float:
    return time.monotonic() * 1000
