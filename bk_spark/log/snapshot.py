"""A log's list of segments as it stood at one moment.

The head is read once; pages are read when they are asked for. Pages before the tail page never change, and
the tail page only gains segments at its end, so what a snapshot returns does not depend on when it is asked.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from typing import Final

from bk_spark.bookie.zookeeper import Znode, ZooKeeper
from bk_spark.log.append import head_of
from bk_spark.log.formats import Head
from bk_spark.log.names import LogPaths
from bk_spark.log.page import SegmentPage, decode_page
from bk_spark.log.segment import Segment, SegmentTable
from bk_spark.protocol.errors import (
    InvalidArgumentError,
    LogRangeGoneError,
    MetadataFormatError,
    MetadataUnavailableError,
)

# Each up to 32 KiB in ZooKeeper, and about ten times that as columns.
_MAX_CACHED_PAGES: Final = 32
_MAX_SESSIONS: Final = 3


class PageReader:
    """Reads pages of one log and keeps those that can no longer change. Thread-safe."""

    def __init__(self, zk: ZooKeeper, paths: LogPaths) -> None:
        self._zk = zk
        self._paths = paths
        self._lock = threading.Lock()
        self._cache: OrderedDict[int, SegmentPage] = OrderedDict()
        self._synced_session: int | None = None

    def head(self) -> Head:
        """The present head, as the server knows it. Raises NoSuchLogError, LogReplacedError."""
        return head_of(self.get(self._paths.head), self._paths).head

    def page(self, number: int, head: Head) -> SegmentPage:
        """Page ``number`` of the list of ``head``. Raises LogRangeGoneError where it was dropped since."""
        with self._lock:
            if number in self._cache:
                self._cache.move_to_end(number)
                return self._cache[number]
        path = self._paths.page(number)
        znode = self.get(path)
        if znode is None:
            raise self._missing(number)
        page = decode_page(znode.data, path, log_id=self._paths.log_id, number=number)
        if number < head.tail_page:
            with self._lock:
                self._cache[number] = page
                while len(self._cache) > _MAX_CACHED_PAGES:
                    self._cache.popitem(last=False)
        return page

    def get(self, path: str) -> Znode | None:
        """A znode of the log, or None.

        Within a session a later reading is never older than an earlier one; a new session may have come to
        a server that is behind. So each is synced before its first reading.
        """
        for _ in range(_MAX_SESSIONS):
            session = self._zk.session_id
            if session != self._synced_session:
                self._zk.sync(self._paths.head)
            znode = self._zk.get(path)
            if self._zk.session_id == session:
                self._synced_session = session
                return znode
        raise MetadataUnavailableError(f"sessions with ZooKeeper ended {_MAX_SESSIONS} times while {path} was read")

    def _missing(self, number: int) -> Exception:
        head = self.head()
        if number < head.first_page:
            return LogRangeGoneError(
                f"log {self._paths.name} was truncated or overwritten while its list was read: it now starts at "
                f"offset {head.first_offset}"
            )
        if head.index is not None and number < head.index.end_page:
            return _index_refused(self._paths.name)
        return MetadataFormatError(f"page of segments {self._paths.page(number)} is missing")


class LogSnapshot:
    """Committed offsets ``[first_offset, next_offset)`` of a log and their segments.

    ``last_commit_time_ms`` is the time of the last commit that changed the list (0 before the first).
    """

    def __init__(self, name: str, head: Head, pages: PageReader) -> None:
        self.name = name
        self.log_id = head.log_id
        self.first_offset = head.first_offset
        self.next_offset = head.next_offset
        self.last_commit_time_ms = head.last_commit_time_ms
        self._head = head
        self._pages = pages

    def __repr__(self) -> str:
        return f"LogSnapshot({self.name}, [{self.first_offset}, {self.next_offset}))"

    @property
    def open_tail(self) -> Segment | None:
        """The segment that a log writer is writing, from offset ``next_offset`` on. Read anew at each call: after it
        was sealed this is None, though this snapshot's offsets stay what they were."""
        page = self._page(self._head.tail_page)
        if not page.open_tail:
            return None
        tail = next(iter(page.table[-1:]))
        return tail if tail.base_offset == self.next_offset else None

    def segments(self, start: int | None = None, end: int | None = None) -> Iterator[Segment]:
        """Segments that hold offsets ``[start, end)``, in order; the first and the last may reach beyond it.

        Defaults: all that is committed. Raises LogRangeGoneError where a part of the range is not in the log
        (any more, or yet), MetadataFormatError where the list is damaged.
        """
        return chain.from_iterable(self.tables(start, end))

    def tables(self, start: int | None = None, end: int | None = None) -> Iterator[SegmentTable]:
        """The same in columns, a page at a time: for long lists."""
        start = self.first_offset if start is None else start
        end = self.next_offset if end is None else end
        self._check_range(start, end)
        return self._tables(start, end)

    def _tables(self, start: int, end: int) -> Iterator[SegmentTable]:
        reached = start
        for number in range(self._page_of(start), self._head.tail_page + 1):
            table = self._page(number).table.overlapping(reached, end)
            if len(table):
                if table.base_offset[0] > reached or (reached > start and table.base_offset[0] < reached):
                    break
                yield table
                reached = table.end_offset
        if reached < end:
            raise MetadataFormatError(f"log {self.name}: its list of segments is broken at offset {reached}")

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
        index = self._head.index
        if index is not None and start < min(end, index.end_offset):
            raise _index_refused(self.name)

    def _page_of(self, offset: int) -> int:
        """The last page that starts at or before ``offset``."""
        index = self._head.index
        low, high = max(self._head.first_page, index.end_page if index else 0), self._head.tail_page
        while low < high:
            middle = (low + high + 1) // 2
            if self._page(middle).base_offset <= offset:
                low = middle
            else:
                high = middle - 1
        return low

    def _page(self, number: int) -> SegmentPage:
        return self._pages.page(number, self._head)


def _index_refused(name: str) -> MetadataFormatError:
    return MetadataFormatError(
        f"log {name}: its oldest segments are in an index ledger, which this release does not read: use a later one"
    )
