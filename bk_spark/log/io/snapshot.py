"""A log's segment list as it was at one moment.

The head is read once. Pages are read on demand, from ZooKeeper or from index ledgers. Pages before the tail page never
change, and the tail page only gains segments at its end. So the result of a snapshot does not depend on when it is
asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

import numpy as np

from bk_spark.log.core.index import PageIndex
from bk_spark.log.formats.page import SegmentPage
from bk_spark.log.formats.segment import Segment, SegmentTable
from bk_spark.log.formats.znodes import Head
from bk_spark.log.history.commits import Commit
from bk_spark.log.history.states import LogStates
from bk_spark.log.io.page_reader import PageReader
from bk_spark.log.positions.texts import AsOf
from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.errors import InvalidArgumentError, LogRangeGoneError, MetadataFormatError
from bk_spark.protocol.metadata.znodes import Znode

_NEVER_MS: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class _Key:
    """A value of each page. It does not decrease from page to page."""

    of_page: Callable[[SegmentPage], int]
    of_index: Callable[[PageIndex], Int64s]


_OFFSET: Final = _Key(lambda page: page.base_offset, lambda index: index.base_offset)
# Only the tail page can be empty.
_TIME: Final = _Key(
    lambda page: int(page.table.commit_time_ms[0]) if len(page.table) else _NEVER_MS, lambda index: index.first_time_ms
)


class LogSnapshot:
    """A log's segment list as it was at one moment: the offsets ``[first_offset, next_offset)``.

    ``last_commit_time_ms`` is the time of the last commit that changed the list, in Unix milliseconds. It is 0 before
    the first commit.

    Methods raise LogRangeGoneError if part of a range was truncated or is not written yet, MetadataFormatError if the
    list is damaged, and InvalidArgumentError if part of the list is in index ledgers and the log was opened without
    its password.
    """

    def __init__(self, name: str, head: Head, pages: PageReader, *, is_past: bool = False) -> None:
        self.name = name
        self.log_id = head.log_id
        self.first_offset = head.first_offset
        self.next_offset = head.next_offset
        self.last_commit_time_ms = head.last_commit_time_ms
        #: The first offset in the list. What is before ``first_offset`` is kept for reads of earlier states.
        self.kept_from = head.list_offset
        self._head = head
        self._pages = pages
        self._tail: SegmentPage | None = None
        #: Whether this is an earlier state of the log.
        self._is_past = is_past
        self._states = LogStates(
            name, head, self._page, self._page_of, lambda time_ms: self._last_page(_TIME, time_ms + 1)
        )

    def __repr__(self) -> str:
        return f"LogSnapshot({self.name}, [{self.first_offset}, {self.next_offset}))"

    @property
    def open_tail(self) -> Segment | None:
        """The segment that a log writer is writing, which starts at ``next_offset``, or None.

        Each call reads it again. After the tail was sealed it is None, and ``next_offset`` does not change.
        """
        return self.look_at_tail()[0]

    @property
    def was_sealed(self) -> bool:
        """Whether the log had no open tail, and ended at ``next_offset``, when the tail page was first read.

        False if the tail page was not read yet.
        """
        page = self._tail
        return self._is_past or (page is not None and not page.open_tail and page.end_offset == self.next_offset)

    @property
    def tail_path(self) -> str:
        """The path of the tail page."""
        return self._pages.tail_path(self._head)

    def look_at_tail(self, read: Znode | None = None) -> tuple[Segment | None, bool]:
        """Read the open tail, and check whether the tail was sealed since this snapshot.

        Parameters
        ----------
        read
            The znode of the tail page, if the caller has read it after the snapshot.

        Returns
        -------
        tail : Segment or None
            See :attr:`open_tail`.
        is_outdated : bool
            Whether the tail page has more sealed entries than this snapshot. If so, the log does not end at
            ``next_offset``, even if there is no open tail.
        """
        if self._is_past:
            return None, False
        page = self._tail_page_now() if read is None else self._pages.tail_page(self._head, read)
        if self._tail is None:
            self._tail = page
        tail = next(iter(page.table[-1:])) if page.open_tail else None
        if tail is not None and tail.base_offset != self.next_offset:
            tail = None
        return tail, page.end_offset > self.next_offset

    def segments(self, start: int | None = None, end: int | None = None) -> Iterator[Segment]:
        """List the segments that hold a range of offsets.

        Parameters
        ----------
        start
            The first offset. Default: the log's first.
        end
            The offset after the last one. Default: the log's end.

        Returns
        -------
        iterator of Segment
            The segments in order. The first and the last may extend beyond the range.
        """
        return chain.from_iterable(self.tables(start, end))

    def tables(self, start: int | None = None, end: int | None = None) -> Iterator[SegmentTable]:
        """List the segments that hold a range of offsets, in columns. Suited to long lists.

        Parameters
        ----------
        start
            The first offset. Default: the log's first.
        end
            The offset after the last one. Default: the log's end.

        Returns
        -------
        iterator of SegmentTable
            The segments in order, one page at a time.
        """
        start = self.first_offset if start is None else start
        end = self.next_offset if end is None else end
        self._check_range(start, end)
        return self._tables(start, end)

    def tables_from_end(self) -> Iterator[SegmentTable]:
        """List all segments in columns, the last page first. For callers that may not need the whole list.

        Yields
        ------
        SegmentTable
            The segments of one page, in order.
        """
        end = self.next_offset
        while end > self.first_offset:
            table = self._page(self._page_of(end - 1)).table.overlapping(self.first_offset, end)
            if not len(table) or table.end_offset < end:
                raise self._broken(end)
            yield table
            end = int(table.base_offset[0])

    def segment_at(self, offset: int) -> tuple[int, Segment]:
        """Find the segment that holds an offset.

        Parameters
        ----------
        offset
            The offset. It must be committed.

        Returns
        -------
        page : int
            The number of the segment's page. It never changes.
        segment : Segment
            The segment.
        """
        self._check_range(offset, offset + 1)
        number = self._page_of(offset)
        for segment in self._page(number).table.overlapping(offset, offset + 1):
            return number, segment
        raise self._broken(offset)

    def offset_at(self, time_ms: int) -> int:
        """Find the first offset at or after a time.

        Parameters
        ----------
        time_ms
            Unix time in milliseconds. It is compared with the time of each commit.

        Returns
        -------
        int
            The offset. If all entries are older: ``next_offset``.
        """
        page = self._page(self._last_page(_TIME, time_ms))
        position = int(np.searchsorted(page.table.commit_time_ms, time_ms, side="left"))
        offset = int(page.table.base_offset[position]) if position < len(page.table) else page.end_offset
        return min(max(offset, self.first_offset), self.next_offset)

    def commits(self) -> Iterator[Commit]:
        """List the commits that led to this state, the newest first.

        Returns
        -------
        iterator of Commit
            Commits, truncations, and log writers' ledgers. Those of which nothing is in the list are left out.
        """
        return self._states.commits()

    def as_of(self, commit: AsOf, now_ms: Callable[[], int]) -> LogSnapshot:
        """Return the log as a commit left it.

        Parameters
        ----------
        commit
            An offset: the commit that holds it. A time: the last commit at that time or before. Or a transaction.
        now_ms
            Returns the cluster's time in Unix milliseconds. Called only for a time after the last commit.

        Returns
        -------
        LogSnapshot
            That state. It does not change, whatever happens to the log. It can be read as long as the log's policy
            keeps its rows.

        Raises
        ------
        LogRangeGoneError
            If rows of that state are gone.
        InvalidArgumentError
            If there is no such commit, or the state at that time may still change.
        """
        state = self._states.of(commit, now_ms)
        head = replace(
            self._head,
            first_offset=state.first_offset,
            next_offset=state.end_offset,
            last_commit_time_ms=state.time_ms,
            kept_offset=None,
        )
        past = LogSnapshot(self.name, head, self._pages, is_past=True)
        past._tail = self._tail
        return past

    def first_offset_at(self, time_ms: int) -> int | None:
        """Return where the log began at a time, or None if its list does not say so."""
        return self._states.first_offset_at(time_ms)

    def page_of(self, offset: int) -> int:
        """Return the number of the page with an offset, which may be before ``first_offset``, or the log's end."""
        return self._head.tail_page if offset >= self.next_offset else self._page_of(offset)

    def _tables(self, start: int, end: int) -> Iterator[SegmentTable]:
        reached = start
        if reached < end:
            first = self._page_of(start)
            for page in chain(self._pages.pages(first, self._head.tail_page, self._head), self._tail_pages()):
                table = page.table.overlapping(reached, end)
                if len(table):
                    if table.base_offset[0] > reached or (reached > start and table.base_offset[0] < reached):
                        break
                    yield table
                    reached = table.end_offset
                if reached >= end:
                    return
            raise self._broken(reached)

    def _broken(self, offset: int) -> MetadataFormatError:
        return MetadataFormatError(f"log {self.name}: its list of segments is broken at offset {offset}")

    def _check_range(self, start: int, end: int) -> None:
        if start > end:
            raise InvalidArgumentError(f"log {self.name}: offsets [{start}, {end}) end before they start")
        if start < self.first_offset:
            raise LogRangeGoneError(
                f"log {self.name}: offsets [{start}, {min(end, self.first_offset)}) are gone, the log starts at "
                f"{self.first_offset}"
            )
        if end > self.next_offset:
            raise LogRangeGoneError(
                f"log {self.name}: offsets [{max(start, self.next_offset)}, {end}) are not written yet, the log ends "
                f"at {self.next_offset}"
            )

    def _page_of(self, offset: int) -> int:
        """Return the last page that starts at or before ``offset``."""
        return self._last_page(_OFFSET, offset + 1)

    def _last_page(self, key: _Key, bound: int) -> int:
        """Return the last page whose ``key`` is below ``bound``, or the first page if there is none.

        Searches backwards from the tail in growing steps, because most readers are near the tail.
        """
        head, index = self._head, self._head.index
        if index is None or key is not _OFFSET or bound > index.end_offset:
            lowest = head.first_znode_page
            low, high, step = head.tail_page, head.tail_page + 1, 1
            while high > lowest:
                if key.of_page(self._page(low)) < bound:
                    return self._bisect(key, bound, low, high)
                low, high, step = max(lowest, low - step), low, 2 * step
        if index is None or index.end_page <= head.first_page:
            return head.first_page
        return self._pages.last_indexed(head, key.of_index, bound)

    def _bisect(self, key: _Key, bound: int, low: int, high: int) -> int:
        """Return the last page of ``[low, high)`` that is below ``bound``. Page ``low`` must be below it."""
        while high - low > 1:
            middle = (low + high) // 2
            if key.of_page(self._page(middle)) < bound:
                low = middle
            else:
                high = middle
        return low

    def _tail_page_now(self) -> SegmentPage:
        return self._pages.page(self._head.tail_page, self._head)

    def _page(self, number: int) -> SegmentPage:
        if number == self._head.tail_page:
            return next(self._tail_pages())
        return self._pages.page(number, self._head)

    def _tail_pages(self) -> Iterator[SegmentPage]:
        """Yield the tail page. It is read once, so later segments are not in this snapshot."""
        if self._tail is None:
            self._tail = self._tail_page_now()
        yield self._tail
