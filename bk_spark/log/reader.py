"""Reads a log without Spark: ranges of offsets, or following the log as it grows.

Data moves in blocks of verified entries, never entry by entry. After the sealed segments there may be an open tail: the
ledger that a log writer is writing. It is read up to its last add confirmed. Confirmed entries stay in the log no
matter who seals the tail, so their offsets are final.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from bk_spark.bookie.blocking_reader import BlockingReader
from bk_spark.bookie.reading.range_windows import EntryRange
from bk_spark.log.blocking import BlockingLog
from bk_spark.log.core.follow import (
    Arm,
    Armed,
    AwaitChange,
    Changed,
    Delivered,
    Ended,
    Follow,
    FollowAction,
    FollowEvent,
    FollowTail,
    ListTaken,
    LookAtTail,
    More,
    ReadSealed,
    TailSeen,
    TakeList,
    TimeIsUp,
)
from bk_spark.log.formats.segment import Segment
from bk_spark.log.snapshot import LogSnapshot
from bk_spark.log.znode_watch import ZnodeWatch
from bk_spark.protocol.entries.entry_block import EntryBlock
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import (
    InvalidArgumentError,
    LogRangeGoneError,
    NoSuchLedgerError,
)
from bk_spark.protocol.machine import EndedBy, StepMachine

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
        seen = -1
        while True:
            snapshot = self._log.snapshot()
            tail = snapshot.open_tail if end > snapshot.next_offset else None
            if tail is not None or end <= snapshot.next_offset or snapshot.next_offset == seen:
                break
            # The tail may have been sealed after the snapshot was taken.
            seen = snapshot.next_offset
        if tail is None:
            snapshot.tables(start, end)
        else:
            readable = self._tail_end(tail)
            if end > readable:
                raise LogRangeGoneError(
                    f"log {self._log.name}: offsets [{max(start, readable)}, {end}) are not written yet, the log can "
                    f"be read up to {readable}"
                )
            snapshot.tables(min(start, tail.base_offset), tail.base_offset)
        return self._read(snapshot, start, end, tail)

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
        if max_wait_ms is not None and max_wait_ms < 0:
            raise InvalidArgumentError(f"max_wait_ms must not be negative, got {max_wait_ms}")
        machine = StepMachine(Follow(self._log.name, start, max_wait_ms).steps())
        following = _Following(self)
        try:
            while machine.outcome is None:
                for action in machine.take_actions():
                    try:
                        found = following.perform(action)
                    except Exception as error:
                        machine.fail(error)
                        continue
                    if isinstance(found, LogBlock):
                        yield found
                        found = Delivered(found.end_offset, _now_ms())
                    machine.handle(found)
        finally:
            following.close()
        if isinstance(machine.outcome, EndedBy):
            raise machine.outcome.error

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
        tail = snapshot.open_tail
        if tail is None:
            return snapshot.next_offset
        try:
            return self._tail_end(tail)
        except NoSuchLedgerError:
            if snapshot.open_tail is None:
                return snapshot.next_offset
            raise

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

    def _read(
        self, snapshot: LogSnapshot, start: int, end: int, tail: Segment | None
    ) -> Generator[LogBlock, None, None]:
        if start < snapshot.next_offset:
            committed = min(end, snapshot.next_offset)
            for table in snapshot.tables(start, committed):
                yield from self._series([segment.clip(start, committed) for segment in table])
        if tail is not None and end > tail.base_offset:
            first = max(start, tail.base_offset) - tail.base_offset + tail.first_entry
            last = end - 1 - tail.base_offset + tail.first_entry
            base = max(start, tail.base_offset)
            yield from self._series(
                [Segment(tail.ledger_id, first, last, base, last - first + 1, _UNKNOWN_BYTES, tail.commit_time_ms)]
            )

    def _series(self, parts: list[Segment]) -> Iterator[LogBlock]:
        """Read the entries of sealed segments, one after the other."""
        ranges = [
            EntryRange(part.ledger_id, part.first_entry, part.entry_at(part.end_offset - 1), part.size_bytes)
            for part in parts
        ]
        todo = iter(parts)
        part = next(todo)
        reached = part.base_offset
        with closing(self._ledgers.read_series(ranges)) as lists:
            try:
                for payloads in lists:
                    start = 0
                    while start < len(payloads):
                        if reached == part.end_offset:
                            part = next(todo)
                        end = min(len(payloads), start + part.end_offset - reached)
                        block = EntryBlock(part.entry_at(reached), payloads.part(start, end), -1)
                        yield LogBlock(reached, part.ledger_id, part.commit_time_ms, block)
                        reached += end - start
                        start = end
            except NoSuchLedgerError as error:
                first_offset = self._log.snapshot().first_offset
                if reached >= first_offset:
                    raise
                raise LogRangeGoneError(
                    f"log {self._log.name}: offsets [{reached}, {first_offset}) were truncated while they were read"
                ) from error

    def _follow_tail(self, action: FollowTail) -> Generator[LogBlock, None, None]:
        """Read entries of the open tail as they are confirmed, until its ledger is closed or the time is up."""
        tail = action.tail
        left_ms = None if action.until_ms is None else int(max(0.0, action.until_ms - _now_ms()))
        with closing(self._ledgers.reader(tail.ledger_id).tail(action.first_entry, max_wait_ms=left_ms)) as blocks:
            for block in blocks:
                base = tail.base_offset + block.first_entry_id - tail.first_entry
                yield LogBlock(base, tail.ledger_id, tail.commit_time_ms, block)

    def _tail_end(self, tail: Segment) -> int:
        if self._tail is None or self._tail.ledger_id != tail.ledger_id:
            self._tail = self._ledgers.reader(tail.ledger_id)
        return tail.base_offset + self._tail.read_last_add_confirmed() + 1 - tail.first_entry


class _Following:
    """Performs the actions of :class:`bk_spark.log.core.follow.Follow`. Returns blocks for the caller to hand over."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._snapshot: LogSnapshot | None = None
        self._blocks: Generator[LogBlock, None, None] | None = None

    def perform(self, action: FollowAction) -> FollowEvent | LogBlock:
        reader = self._reader
        match action:
            case Arm():
                reader._changed.clear()
                reader._watch.arm()
                return Armed(_now_ms())
            case TakeList():
                self._snapshot = reader._log.snapshot()
                return ListTaken(self._snapshot.next_offset)
            case ReadSealed(start, end):
                assert self._snapshot is not None
                return self._begin(reader._read(self._snapshot, start, end, None))
            case LookAtTail():
                assert self._snapshot is not None
                return TailSeen(*self._snapshot.look_at_tail())
            case FollowTail():
                return self._begin(reader._follow_tail(action))
            case More():
                return self._next()
            case AwaitChange(until_ms):
                left_s = None if until_ms is None else max(0.0, until_ms - _now_ms()) / 1000
                return Changed() if reader._changed.wait(left_s) else TimeIsUp()

    def close(self) -> None:
        if self._blocks is not None:
            self._blocks.close()

    def _begin(self, blocks: Generator[LogBlock, None, None]) -> FollowEvent | LogBlock:
        self.close()
        self._blocks = blocks
        return self._next()

    def _next(self) -> FollowEvent | LogBlock:
        assert self._blocks is not None
        block = next(self._blocks, None)
        return Ended() if block is None else block


def _now_ms() -> float:
    return time.monotonic() * 1000
