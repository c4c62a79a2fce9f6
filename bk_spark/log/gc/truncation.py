"""Truncation: makes the log begin at a later offset. No I/O.

Whole segments leave the log, from its start. The head is written, and the tail page if the log records commits. The
reaper removes the segments and pages before it later. A sealed segment never changes and never moves to another page.
So where a segment starts (:class:`SegmentStart`) stays true, and only the version of the head must be checked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bk_spark.log.core.append import ReadHead, plan_pages, read_head, read_tail
from bk_spark.log.core.plan import AlreadyDone, Plan, Readings, StaleError
from bk_spark.log.formats.commits import CommitKind, CommitRecord
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.page import SegmentPage, decode_page
from bk_spark.log.formats.segment import SegmentTable
from bk_spark.log.formats.znodes import Head
from bk_spark.protocol.errors import InvalidArgumentError, MetadataConflictError
from bk_spark.protocol.metadata.znodes import CheckOp, TransactionOp


@dataclass(frozen=True, slots=True)
class SegmentStart:
    """A sealed segment starts at ``offset`` and is in page ``page``."""

    offset: int
    page: int


class Truncate:
    """The change that drops all segments entirely below ``up_to_offset``. Its result is the new first offset.

    The segment that holds ``up_to_offset`` stays whole. The log's end, or an offset in an open tail, drops everything
    sealed; the open tail stays. An offset beyond the end is refused: it would drop everything by mistake.
    ``start`` says where the segment starts. It is required if the segment's page has left ZooKeeper for the index, and
    optional otherwise. ``tail_end`` is the end of an open tail as the caller saw it, because the list does not hold it.
    """

    def __init__(
        self, paths: LogPaths, up_to_offset: int, start: SegmentStart | None = None, *, tail_end: int = 0
    ) -> None:
        if up_to_offset < 0:
            raise InvalidArgumentError(f"log {paths.name}: the offset must not be negative, got {up_to_offset}")
        self.paths = paths
        self._up_to_offset = up_to_offset
        self._start = start
        self._tail_end = tail_end

    @property
    def what(self) -> str:
        """For error texts: names the log and the offset."""
        return f"truncation of log {self.paths.name} up to offset {self._up_to_offset}"

    @property
    def again(self) -> str:
        """A repetition drops no more than the first attempt."""
        return "truncate again: a repetition changes nothing"

    def decide(self, readings: Readings, now_ms: int, maybe: int | None) -> AlreadyDone[int] | Plan[int]:
        """Raises NoSuchLogError, LogReplacedError, InvalidArgumentError for an offset beyond the end,
        MetadataConflictError if ``start`` is required and was not given, and MetadataFormatError if a znode cannot be
        decoded."""
        read = read_head(readings, self.paths)
        head = read.head
        # Data appended after it took effect stays, even if it lies below the offset too.
        wanted = self._up_to_offset if maybe is None else maybe
        if wanted <= head.first_offset:
            return AlreadyDone(head.first_offset)
        # Once sealed, a tail ends no earlier than its end as seen.
        end = max(head.next_offset, self._tail_end)
        if self._up_to_offset > end:
            raise InvalidArgumentError(
                f"log {self.paths.name} ends at offset {end}: it cannot be truncated up to {self._up_to_offset}; "
                f"give an offset up to {end}, which drops all that is sealed"
            )
        checks: tuple[TransactionOp, ...] = ()
        if self._up_to_offset >= head.next_offset:
            start = SegmentStart(head.next_offset, head.tail_page)
        elif self._start is not None:
            start = self._start
        else:
            page, version = _page_with(readings, self.paths, head, self._up_to_offset)
            start = _start_in(page, self._up_to_offset)
            checks = (CheckOp(self.paths.page(page.number), version),)
        if start.offset <= head.first_offset:
            return AlreadyDone(head.first_offset)
        if head.kept_offset is None:
            new_head = replace(head, first_offset=start.offset, first_page=max(head.first_page, start.page))
            write = read.write(self.paths, new_head)
            return Plan((), (CheckOp(self.paths.identity, -1), *checks, write), start.offset)
        return self._recorded(readings, read, start.offset, checks, now_ms)

    def _recorded(
        self, readings: Readings, read: ReadHead, first_offset: int, checks: tuple[TransactionOp, ...], now_ms: int
    ) -> Plan[int]:
        """Truncate a log that records commits. What is dropped stays in the list as long as its policy says."""
        tail = read_tail(readings, self.paths, read.head)
        time_ms = read.head.change_time_ms(now_ms)
        record = CommitRecord(CommitKind.TRUNCATE, 0, time_ms, first_offset=first_offset)
        opened = SegmentTable.of(() if tail.open is None else (tail.open,))
        append = plan_pages(readings, self.paths, read, opened, time_ms, tail, (record,))
        new_head = replace(append.head, first_offset=first_offset, last_change_time_ms=time_ms)
        # The tail page may be the page that was looked at: it is written then.
        written = {op.path for op in append.operations}
        others = [check for check in checks if check.path not in written]
        write = read.write(self.paths, new_head)
        return Plan(
            append.preparations, (CheckOp(self.paths.identity, -1), *others, *append.operations, write), first_offset
        )


def _page_with(readings: Readings, paths: LogPaths, head: Head, offset: int) -> tuple[SegmentPage, int]:
    """Find the page that holds ``offset``, which is in the log, by bisection. Returns the page and its version."""
    if head.index is not None and offset < head.index.end_offset:
        # The caller saw a list that ended before this offset. Pages that it saw come with where the segment starts.
        raise MetadataConflictError(
            f"log {paths.name}: since this truncation began, the log grew past offset {offset}, and the offset's page "
            "left ZooKeeper for the index ledger; truncate again"
        )
    low, high = head.first_znode_page, head.tail_page
    while low < high:
        middle = (low + high + 1) // 2
        if _page(readings, paths, head, middle)[0].base_offset <= offset:
            low = middle
        else:
            high = middle - 1
    return _page(readings, paths, head, low)


def _page(readings: Readings, paths: LogPaths, head: Head, number: int) -> tuple[SegmentPage, int]:
    path = paths.page(number)
    znode = readings.get(path)
    if znode is None:
        # It left ZooKeeper after the head was read. Otherwise the list is damaged, and a retry reads the same.
        raise StaleError(f"page {path} is missing")
    return decode_page(znode.data, path, log_id=head.log_id, number=number), znode.version


def _start_in(page: SegmentPage, offset: int) -> SegmentStart:
    position = int(np.searchsorted(page.table.base_offset, offset, side="right")) - 1
    if position < 0 or offset >= page.end_offset:
        raise StaleError(f"page {page.number} holds offsets [{page.base_offset}, {page.end_offset}), not {offset}")
    return SegmentStart(int(page.table.base_offset[position]), page.number)
