"""Pages of index files in memory, bounded, least recently used ones out first. Used in the event loop only.

A page is a numpy array of locations, so a batch of entries is put or looked up with a slice. Only entries that are
durable in the journal get into it. Changed pages go to the files at checkpoints, a batch at a time
(:meth:`LedgerCache.take_dirty`, written by another thread, then :meth:`LedgerCache.flushed`), or when their
room is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from bookie_server.storage.index import PAGE_BYTES, PAGE_SLOTS, IndexFiles, IndexHeader, Page
from bookie_server.storage.index_page import IndexPage, page_of
from bookie_server.storage.records import Int64s

_PAGE_SHIFT: Final = 10
_PAGE_MASK: Final = PAGE_SLOTS - 1
#: Share of the memory that is made free at once when there is too little.
_SWEEP_SHARE: Final = 32
_LEAST_BYTES: Final = 64 * PAGE_BYTES

PageKey = tuple[int, int]


@dataclass(slots=True)
class DirtyLedger:
    """What is to be written of one ledger: its header if that changed, and copies of changed pages."""

    ledger_id: int
    header: IndexHeader | None
    pages: list[tuple[int, Page]]


class LedgerCache:
    """Locations of entries, by ledger and entry id.

    ``take_header(ledger_id)`` gives the header to be written with a ledger's pages, or None where the file's
    is up to date.
    """

    def __init__(self, files: IndexFiles, limit_bytes: int, take_header: Callable[[int], IndexHeader | None]) -> None:
        self._files = files
        self._limit_bytes = max(_LEAST_BYTES, limit_bytes)
        self._take_header = take_header
        self._pages: dict[PageKey, IndexPage] = {}
        self._dirty: set[PageKey] = set()
        self._dirty_pages_of: dict[int, int] = {}
        #: Ledgers whose files were written since they were last synced.
        self._written: set[int] = set()
        self._in_flight: list[PageKey] = []
        self._in_flight_ledgers: set[int] = set()
        #: Memory taken by the pages, about.
        self.size_bytes = 0

    def has_changes(self, ledger_id: int) -> bool:
        """Whether the ledger's file lacks something of what was put here."""
        return ledger_id in self._dirty_pages_of or ledger_id in self._in_flight_ledgers

    def put(self, ledger_id: int, entry_ids: Int64s, locations: Int64s) -> None:
        """Set the locations of entries; a location set before is replaced. Raises OSError."""
        first, last, count = int(entry_ids[0]), int(entry_ids[-1]), len(entry_ids)
        if last - first == count - 1 and (count < 3 or bool((np.diff(entry_ids) == 1).all())):
            done = 0
            while done < count:
                slot = (first + done) & _PAGE_MASK
                step = min(count - done, PAGE_SLOTS - slot)
                page = self._page_to_change(ledger_id, (first + done) >> _PAGE_SHIFT, slot + step)
                page.set_range(slot, locations[done : done + step])
                done += step
            return
        numbers = entry_ids >> _PAGE_SHIFT
        for number in np.unique(numbers).tolist():
            which = numbers == number
            slots = entry_ids[which] & _PAGE_MASK
            self._page_to_change(ledger_id, number, int(slots.max()) + 1).set_at(slots, locations[which])

    def put_one(self, ledger_id: int, entry_id: int, location: int) -> None:
        """The same for one entry."""
        slot = entry_id & _PAGE_MASK
        self._page_to_change(ledger_id, entry_id >> _PAGE_SHIFT, slot + 1).set_one(slot, location)

    def get(self, ledger_id: int, entry_ids: Int64s) -> Int64s:
        """Locations of the entries, 0 where absent. Entry ids must not be negative. Raises OSError."""
        numbers = entry_ids >> _PAGE_SHIFT
        number = int(numbers[0])
        if bool((numbers == number).all()):
            return self._page(ledger_id, number).get_at(entry_ids & _PAGE_MASK)
        result = np.empty(len(entry_ids), np.int64)
        for number in np.unique(numbers).tolist():
            which = numbers == number
            result[which] = self._page(ledger_id, number).get_at(entry_ids[which] & _PAGE_MASK)
        return result

    def get_one(self, ledger_id: int, entry_id: int) -> int:
        """Location of one entry, 0 where absent. Raises OSError."""
        return self._page(ledger_id, entry_id >> _PAGE_SHIFT).get_one(entry_id & _PAGE_MASK)

    def get_run(self, ledger_id: int, first_entry_id: int, limit: int) -> Int64s:
        """Locations from ``first_entry_id`` on, up to ``limit``, the end of its page, or the first absent entry."""
        return self._page(ledger_id, first_entry_id >> _PAGE_SHIFT).get_run(first_entry_id & _PAGE_MASK, limit)

    def dirty_pages(self) -> list[PageKey]:
        """The changed pages in the order of the files."""
        return sorted(self._dirty)

    def take_dirty(self, keys: list[PageKey]) -> list[DirtyLedger]:
        """Copies of those of ``keys`` that are (still) changed, to be written by another thread; they stay in
        memory until :meth:`flushed`. One batch at a time."""
        result: list[DirtyLedger] = []
        for key in keys:
            if key not in self._dirty:
                continue
            ledger_id, number = key
            page = self._pages[key]
            if not result or result[-1].ledger_id != ledger_id:
                result.append(DirtyLedger(ledger_id, self._take_header(ledger_id), []))
            result[-1].pages.append((number, page.whole()))
            page.flushing = True
            self._set_clean(key)
            self._in_flight.append(key)
            self._in_flight_ledgers.add(ledger_id)
        return result

    def take_header(self, ledger_id: int) -> DirtyLedger | None:
        """The same for a header that changed without pages."""
        header = self._take_header(ledger_id)
        if header is None:
            return None
        self._in_flight_ledgers.add(ledger_id)
        return DirtyLedger(ledger_id, header, [])

    def flushed(self) -> None:
        """The batch taken last is in the files (not synced yet)."""
        for key in self._in_flight:
            self._pages[key].flushing = False
        self._written |= self._in_flight_ledgers
        self._in_flight.clear()
        self._in_flight_ledgers.clear()

    def take_written(self) -> list[int]:
        """Ledgers whose files have to be synced; the caller does so."""
        written = sorted(self._written)
        self._written.clear()
        return written

    def _page(self, ledger_id: int, number: int) -> IndexPage:
        key = (ledger_id, number)
        page = self._pages.pop(key, None)
        if page is None:
            if self.size_bytes >= self._limit_bytes:
                self._sweep()
            page = page_of(self._files.read_page(ledger_id, number))
            self.size_bytes += page.size_bytes
        self._pages[key] = page  # now the most recently used
        return page

    def _page_to_change(self, ledger_id: int, number: int, slots: int) -> IndexPage:
        page = self._page(ledger_id, number)
        self.size_bytes += page.reserve(slots)
        if not page.dirty:
            page.dirty = True
            self._dirty.add((ledger_id, number))
            self._dirty_pages_of[ledger_id] = self._dirty_pages_of.get(ledger_id, 0) + 1
        return page

    def _set_clean(self, key: PageKey) -> None:
        self._pages[key].dirty = False
        self._dirty.discard(key)
        left = self._dirty_pages_of[key[0]] - 1
        if left:
            self._dirty_pages_of[key[0]] = left
        else:
            del self._dirty_pages_of[key[0]]

    def _sweep(self) -> None:
        """Make room. Changed pages among the oldest are written first; those on their way to disk stay, for a
        page read back now could miss what is being written."""
        wanted_bytes = self.size_bytes - self._limit_bytes + self._limit_bytes // _SWEEP_SHARE
        victims: list[PageKey] = []
        for key, page in self._pages.items():
            if wanted_bytes <= 0:
                break
            if not page.flushing and not (page.dirty and key[0] in self._in_flight_ledgers):
                victims.append(key)
                wanted_bytes -= page.size_bytes
        changed: dict[int, list[tuple[int, Page]]] = {}
        for ledger_id, number in sorted(key for key in victims if key in self._dirty):
            changed.setdefault(ledger_id, []).append((number, self._pages[ledger_id, number].whole()))
        for ledger_id, pages in changed.items():
            self._files.write(ledger_id, self._take_header(ledger_id), pages)
            self._written.add(ledger_id)
            for number, _ in pages:
                self._set_clean((ledger_id, number))
        for key in victims:
            self.size_bytes -= self._pages.pop(key).size_bytes
