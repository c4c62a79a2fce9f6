"""A bounded LRU cache of index file pages. Used in the event loop only.

Pages hold what the files hold. A change stays in the write cache until a flush has written it to the files, in order;
then the cached pages are updated (:meth:`LedgerCache.update`).
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from functools import partial
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bookie_server.storage.disk.files import WouldBlockError
from bookie_server.storage.index.index import PAGE_BYTES, IndexFiles
from bookie_server.storage.index.index_page import (
    PAGE_MASK,
    PAGE_SHIFT,
    IndexPage,
    by_page,
    page_of,
    set_locations,
)

#: Share of the memory that is freed at once when the cache is full.
_SWEEP_SHARE: Final = 32
_LEAST_BYTES: Final = 64 * PAGE_BYTES

PageKey = tuple[int, int]


class ColdPageError(Exception):
    """Pages are neither cached here nor in the page cache. Load them with :meth:`LedgerCache.load` and retry."""

    def __init__(self, keys: list[PageKey]) -> None:
        super().__init__(f"{len(keys)} pages are to be read, the first is page {keys[0][1]} of ledger {keys[0][0]}")
        self.keys = keys


class _Load:
    """A page that is being read. ``stale``: it was changed meanwhile, so the bytes read may lack the change."""

    __slots__ = ("stale",)

    def __init__(self) -> None:
        self.stale = False


class LedgerCache:
    """Locations of entries in entry logs, by ledger and entry id."""

    def __init__(self, index: IndexFiles, limit_bytes: int) -> None:
        self._index = index
        self._limit_bytes = max(_LEAST_BYTES, limit_bytes)
        self._pages: dict[PageKey, IndexPage] = {}
        self._loading: dict[PageKey, list[_Load]] = {}
        #: Approximate memory used by the pages.
        self.size_bytes = 0
        self.hits = self.misses = 0

    def get(self, ledger_id: int, entry_ids: Int64s, *, may_wait: bool = False) -> Int64s:
        """Locations of the entries, 0 for absent ones. Entry ids must not be negative.

        Raises OSError; ColdPageError only with ``may_wait=False``.
        """
        numbers = entry_ids >> PAGE_SHIFT
        number = int(numbers[0])
        if bool((numbers == number).all()):
            return self._page(ledger_id, number, may_wait).get_at(entry_ids & PAGE_MASK)
        result = np.empty(len(entry_ids), np.int64)
        cold: list[PageKey] = []
        for number, which in by_page(entry_ids):
            try:
                result[which] = self._page(ledger_id, number, may_wait).get_at(entry_ids[which] & PAGE_MASK)
            except ColdPageError as error:
                cold += error.keys
        if cold:
            raise ColdPageError(cold)
        return result

    def get_one(self, ledger_id: int, entry_id: int) -> int:
        """Location of one entry, 0 if absent. Raises ColdPageError, OSError."""
        return self._page(ledger_id, entry_id >> PAGE_SHIFT, False).get_one(entry_id & PAGE_MASK)

    def update(self, ledger_id: int, entry_ids: Int64s, locations: Int64s) -> None:
        """Update cached pages with locations that were written to the ledger's file."""

        def page_to_change(number: int, slots: int) -> IndexPage | None:
            key = (ledger_id, number)
            for load in self._loading.get(key, ()):
                load.stale = True
            page = self._pages.get(key)
            if page is not None:
                self.size_bytes += page.reserve(slots)
            return page

        set_locations(page_to_change, entry_ids, locations)

    def drop(self, ledger_id: int, last_entry_id: int) -> None:
        """Drop the pages of a ledger whose file was removed."""
        for key, loads in self._loading.items():
            if key[0] == ledger_id:
                for load in loads:
                    load.stale = True
        last = last_entry_id >> PAGE_SHIFT
        if last < len(self._pages):
            keys = [(ledger_id, number) for number in range(last + 1) if (ledger_id, number) in self._pages]
        else:
            keys = [key for key in self._pages if key[0] == ledger_id]
        for key in keys:
            self.size_bytes -= self._pages.pop(key).size_bytes

    async def load(self, key: PageKey, executor: Executor) -> None:
        """Read a page from its file in a thread of ``executor``. It is cached unless it changed meanwhile.

        Raises OSError.
        """
        load = _Load()
        loads = self._loading.setdefault(key, [])
        loads.append(load)
        try:
            read = partial(self._index.read_page, *key, may_wait=True)
            data = await asyncio.get_running_loop().run_in_executor(executor, read)
            if not load.stale and key not in self._pages:
                self._put(key, page_of(data))
        finally:
            loads.remove(load)
            if not loads:
                del self._loading[key]

    def _page(self, ledger_id: int, number: int, may_wait: bool) -> IndexPage:
        key = (ledger_id, number)
        page = self._pages.pop(key, None)
        if page is not None:
            self.hits += 1
            self._pages[key] = page  # now the most recently used
            return page
        self.misses += 1
        try:
            page = page_of(self._index.read_page(ledger_id, number, may_wait=may_wait))
        except WouldBlockError as error:
            raise ColdPageError([key]) from error
        self._put(key, page)
        return page

    def _put(self, key: PageKey, page: IndexPage) -> None:
        if self.size_bytes >= self._limit_bytes:
            self._sweep()
        self._pages[key] = page
        self.size_bytes += page.size_bytes

    def _sweep(self) -> None:
        wanted_bytes = self.size_bytes - self._limit_bytes + self._limit_bytes // _SWEEP_SHARE
        victims: list[PageKey] = []
        for key, page in self._pages.items():
            if wanted_bytes <= 0:
                break
            victims.append(key)
            wanted_bytes -= page.size_bytes
        for key in victims:
            self.size_bytes -= self._pages.pop(key).size_bytes
