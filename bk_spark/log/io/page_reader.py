"""Reads pages of one log from ZooKeeper or from index ledgers.

Pages before the tail page never change. A page is in an index ledger before it leaves ZooKeeper. If a page is in
neither place according to the given head, it is looked up with the current head: it was moved or truncated, or the
list is damaged.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, TypeVar

import numpy as np

from bk_spark.bookie.blocking import BlockingReader
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.log.core.append import head_of
from bk_spark.log.core.index import PageIndex, decode_directory, decode_indexed_page, entry_name
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.page import SegmentPage, decode_page
from bk_spark.log.formats.znodes import Head, IndexPosition
from bk_spark.log.io.ledgers import LogLedgers
from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.errors import (
    InvalidArgumentError,
    LogRangeGoneError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from bk_spark.protocol.metadata.znodes import Znode

#: A segment takes 64 bytes in columns.
_MAX_CACHED_SEGMENTS: Final = 1 << 17
_MAX_INDEXES: Final = 4
_MAX_READERS: Final = 4
#: Pages (up to 32 KiB each) that are read at once when many consecutive ones are needed.
_MAX_AHEAD: Final = 16
_MAX_SESSIONS: Final = 3
_MAX_TRIES: Final = 3

_T = TypeVar("_T")


class _NotThereError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class _Found:
    """A page's bytes. ``index`` is None for a page read from a znode."""

    number: int
    data: bytes
    index: PageIndex | None


class PageReader:
    """Reads the head and pages of one log. Caches immutable pages, up to a limit. Thread-safe.

    Without ``ledgers``, pages that have left ZooKeeper cannot be read (InvalidArgumentError).
    """

    def __init__(self, zk: ZooKeeper, paths: LogPaths, ledgers: LogLedgers | None) -> None:
        self._zk = zk
        self._paths = paths
        self._ledgers = ledgers
        self._synced_session: int | None = None
        #: Guards the fields below.
        self._lock = threading.Lock()
        self._cache: OrderedDict[int, SegmentPage] = OrderedDict()
        self._cached_segments = 0
        self._indexes: OrderedDict[IndexPosition, PageIndex] = OrderedDict()
        self._readers: OrderedDict[int, BlockingReader] = OrderedDict()
        #: Index of the newest head that led to a page.
        self._newest: IndexPosition | None = None

    def head(self) -> Head:
        """Return the current head as the server knows it. Raises NoSuchLogError, LogReplacedError."""
        return head_of(self.get(self._paths.head), self._paths).head

    def get(self, path: str) -> Znode | None:
        """Return a znode of the log, or None."""
        return self._in_session(lambda: self._zk.get(path))

    def synced(self, session: int) -> None:
        """Note that the caller has synced this session's server."""
        self._synced_session = session

    def tail_path(self, head: Head) -> str:
        """Return the znode of the last page in the list of ``head``, for a caller that reads the page itself."""
        return self._paths.page(head.tail_page)

    def tail_page(self, head: Head, znode: Znode) -> SegmentPage:
        """Return the tail page from a znode that the caller has read. Raises MetadataFormatError if it is damaged."""
        return self._decode(_Found(head.tail_page, znode.data, None))

    def page(self, number: int, head: Head) -> SegmentPage:
        """Return page ``number`` of the list of ``head``.

        Raises LogRangeGoneError if the page was dropped since, MetadataFormatError if it is missing or damaged, and
        the errors of reading a ledger.
        """
        return next(self.pages(number, number + 1, head))

    def pages(self, first: int, end: int, head: Head) -> Iterator[SegmentPage]:
        """Yield pages ``[first, end)`` of the list of ``head``, with read-ahead. Raises the errors of :meth:`page`."""
        ahead = 1
        while first < end:
            page = self._cached(first)
            if page is not None:
                first += 1
                yield page
                continue
            for found in self._fetch(first, min(ahead, end - first), head):
                page = self._decode(found)
                if found.number < head.tail_page:
                    self._keep(page)
                first += 1
                yield page
            ahead = min(2 * ahead, _MAX_AHEAD)

    def last_indexed(self, head: Head, column: Callable[[PageIndex], Int64s], bound: int) -> int:
        """Find the last page in ``head.index`` whose value in ``column`` is below ``bound``.

        Returns ``head.first_page`` if there is none. The column must not decrease.
        """
        assert head.index is not None
        index = self._through_index(
            head.first_page,
            head.index,
            lambda position: self._index(position, head.first_page, lambda known: column(known)[0] < bound),
        )
        line = int(np.searchsorted(column(index), bound, side="left")) - 1
        return max(head.first_page, index.first_page + line)

    def _in_session(self, read: Callable[[], _T]) -> _T:
        """Call ``read`` in a synced session.

        Within a session, a later read is never older than an earlier one. A new session may be connected to a server
        that is behind, so each session is synced before its first read.
        """
        for _ in range(_MAX_SESSIONS):
            session = self._zk.session_id
            if session != self._synced_session:
                self._zk.sync(self._paths.head)
            found = read()
            if self._zk.session_id == session:
                self._synced_session = session
                return found
        raise MetadataUnavailableError(
            f"log {self._paths.name}: sessions with ZooKeeper ended {_MAX_SESSIONS} times while it was read"
        )

    def _cached(self, number: int) -> SegmentPage | None:
        with self._lock:
            if number in self._cache:
                self._cache.move_to_end(number)
            return self._cache.get(number)

    def _keep(self, page: SegmentPage) -> None:
        with self._lock:
            if page.number not in self._cache:
                self._cache[page.number] = page
                self._cached_segments += len(page.table)
            while self._cached_segments > _MAX_CACHED_SEGMENTS and len(self._cache) > 1:
                self._cached_segments -= len(self._cache.popitem(last=False)[1].table)

    def _decode(self, found: _Found) -> SegmentPage:
        if found.index is not None:
            return decode_indexed_page(found.data, self._paths, found.index, found.number)
        path = self._paths.page(found.number)
        return decode_page(found.data, path, log_id=self._paths.log_id, number=found.number)

    def _fetch(self, first: int, count: int, head: Head) -> list[_Found]:
        """Fetch page ``first``, and up to ``count - 1`` pages after it."""
        position = self._covering(first, head)
        if position is None:
            paths = [self._paths.page(number) for number in range(first, first + count)]
            znodes = self._in_session(lambda: self._zk.get_many(paths))
            there = takewhile(lambda znode: znode is not None, (znodes[path] for path in paths))
            found = [_Found(first + n, znode.data, None) for n, znode in enumerate(there) if znode is not None]
            if found:
                return found
            position = self._moved_to(first)
            if position is None:
                raise MetadataFormatError(f"page of segments {paths[0]} is missing")
        return self._through_index(first, position, lambda position: self._fetch_indexed(first, count, position))

    def _covering(self, number: int, head: Head) -> IndexPosition | None:
        """Return the index position for a page that has left ZooKeeper.

        Prefer the index of ``head``: it may still lead to pages that were truncated since.
        """
        for position in (head.index, self._newest):
            if position is not None and number < position.end_page:
                return position
        return None

    def _moved_to(self, number: int) -> IndexPosition | None:
        """Return the position that leads to the page now, or None. Raises LogRangeGoneError if the page was dropped."""
        head = self.head()
        if number < head.first_page:
            raise LogRangeGoneError(
                f"log {self._paths.name} was truncated or overwritten while its list was read: it now starts at "
                f"offset {head.first_offset}"
            )
        if head.index is None or number >= head.index.end_page:
            return None
        with self._lock:
            if self._newest is None or self._newest.end_page < head.index.end_page:
                self._newest = head.index
        return head.index

    def _through_index(self, number: int, position: IndexPosition, read: Callable[[IndexPosition], _T]) -> _T:
        """Call ``read`` with ``position``. If its ledgers are gone, use the current head's index.

        After a later move, other directories lead to the page.
        """
        lost: Exception | None = None
        for _ in range(_MAX_TRIES):
            try:
                return read(position)
            except (NoSuchLedgerError, NoSuchEntryError, _NotThereError) as error:
                lost = error
                # The ledger client may have its own session with a server that is behind. It may have read metadata
                # from before the ledger was closed.
                self._need_ledgers().client.zookeeper.sync(self._paths.head)
                with self._lock:
                    self._readers.clear()
                position = self._moved_to(number) or position
        raise MetadataFormatError(
            f"log {self._paths.name}: page {number} of its list is lost, which "
            f"{entry_name(self._paths, position.ledger_id, position.entry_id)} leads to: {lost}"
        ) from lost

    def _fetch_indexed(self, first: int, count: int, position: IndexPosition) -> list[_Found]:
        index = self._index(position, first, lambda known: known.first_page <= first)
        if index.first_page > first:
            # An index drops only what leads to truncated pages.
            raise _NotThereError(f"its directories begin at page {index.first_page}")
        ledger_id, entry_id = index.place(first)
        count = min(count, index.end_page - first)
        neighbours = sum(
            1 for _ in takewhile(lambda n: index.place(first + n) == (ledger_id, entry_id + n), range(count))
        )
        payloads = self._reader(ledger_id).read(entry_id, entry_id + neighbours - 1)
        return [_Found(first + n, payload, index) for n, payload in enumerate(payloads)]

    def _index(self, position: IndexPosition, page: int, enough: Callable[[PageIndex], bool]) -> PageIndex:
        """Read the index at ``position``, back to ``page`` or until ``enough`` is satisfied."""
        with self._lock:
            index = self._indexes.get(position)
        if index is None:
            index = self._directory(position)
        while index.first_page > page and index.previous is not None and not enough(index):
            index = self._directory(index.previous).then(index)
        with self._lock:
            known = self._indexes.get(position)
            if known is None or len(known) < len(index):
                self._indexes[position] = index
            self._indexes.move_to_end(position)
            while len(self._indexes) > _MAX_INDEXES:
                self._indexes.popitem(last=False)
        return index

    def _directory(self, position: IndexPosition) -> PageIndex:
        payload = self._need_ledgers().read_entry(position.ledger_id, position.entry_id)
        return decode_directory(payload, self._paths, position)

    def _reader(self, ledger_id: int) -> BlockingReader:
        with self._lock:
            reader = self._readers.get(ledger_id)
        if reader is None:
            reader = self._need_ledgers().reader(ledger_id)
        with self._lock:
            self._readers[ledger_id] = reader
            self._readers.move_to_end(ledger_id)
            while len(self._readers) > _MAX_READERS:
                self._readers.popitem(last=False)
        return reader

    def _need_ledgers(self) -> LogLedgers:
        if self._ledgers is None:
            raise InvalidArgumentError(
                f"log {self._paths.name}: a part of its list has left ZooKeeper for index ledgers: open the log with "
                "its password, from a store that has a client"
            )
        return self._ledgers
