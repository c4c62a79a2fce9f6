"""In-memory entries that are durable in the journal but not yet in an entry log, and the locations of large ones that
are in an entry log but not yet in the index.

The cache has two halves. Entries are added to the *active* half. A flush takes it as the *flushing* half, writes it to
entry logs sorted by ledger, and drops it once the index points there. Lookups try the active half, then the flushing
half, then the index (ledger_storage.py), so the newest copy of an entry wins.

A half keeps bytes in *extents*, which are append-only arrays, so entries can be sent without a copy. A position is
``extent << 32 | offset of the stored entry``. As in an entry log, the 4-byte size precedes the stored entry. A location
in an entry log stands for itself as ``-1 - location``, below -1 (:func:`locations_of`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from bk_spark.protocol.arrays import Bytes, Int64s, gather
from bookie_server.storage.entrylog.entry_log_reader import StoredEntries
from bookie_server.storage.index.index_page import PAGE_MASK, PAGE_SHIFT, IndexPage, by_page, empty_page, set_locations
from bookie_server.storage.records import LENGTH_BYTES, MAX_ENTRY_ID, gather_int32

_EXTENT_BITS: Final = 32
_EXTENT_MASK: Final = (1 << _EXTENT_BITS) - 1
#: Large enough for huge pages: page faults of small pages cost more than the copy.
_EXTENT_BYTES: Final = 4 * 1024 * 1024
#: Larger data is kept as received, without a copy.
_COPY_BELOW_BYTES: Final = 1024 * 1024
#: Equal-sized buffers up to this size are joined for a flush: a copy is cheaper than one object for each.
_GATHER_UP_TO_BYTES: Final = 4 * 1024
_SPANS_AT_ONCE: Final = 2048
#: So many bytes are joined at most.
_GATHER_BYTES: Final = 1024 * 1024
#: So many bytes of other entries are appended at once: whoever syncs after a part does not have many to sync.
_PART_BYTES: Final = 1024 * 1024
#: Approximate Python overhead per ledger.
_LEDGER_OVERHEAD_BYTES: Final = 400


@dataclass(frozen=True, slots=True)
class SortedEntries:
    """Entries by ledger and entry id: the position of each stored entry and its size, without its length field; 0 for
    an entry that is in an entry log. ``ledgers`` says which part of the arrays belongs to which ledger."""

    ledgers: list[tuple[int, int, int]]
    entry_ids: Int64s
    positions: Int64s
    sizes: Int64s

    def held(self) -> tuple[list[tuple[int, int, int]], Int64s]:
        """The entries whose bytes are in memory: their part for each ledger, and where they are in these arrays."""
        which = np.flatnonzero(self.positions >= 0)
        if len(which) == len(self.positions):
            return self.ledgers, which
        before = np.concatenate(([0], np.cumsum(self.positions >= 0)))
        parts = [(ledger_id, int(before[first]), int(before[last])) for ledger_id, first, last in self.ledgers]
        return [part for part in parts if part[1] < part[2]], which


class Target(Protocol):
    """Where a flush copies entries (appended_file.py)."""

    def put(self, buffers: Sequence[memoryview]) -> None:
        """Append ``buffers``."""
        ...

    def room(self, size_bytes: int) -> Bytes:
        """Append ``size_bytes`` bytes, which the caller fills in before the next call."""
        ...


def locations_of(positions: Int64s) -> Int64s:
    """The locations in entry logs for positions that stand for one, 0 for others."""
    locations: Int64s = np.where(positions < -1, -1 - positions, 0)
    return locations


class CacheHalf:
    """One half. Filled in the event loop; once it is no longer active, the flush thread reads it too."""

    def __init__(self) -> None:
        self._extents: list[Bytes] = []
        self._room_in: int = -1
        self._room_at = 0
        self._ledgers: dict[int, dict[int, IndexPage]] = {}
        #: Approximate memory used; and bytes of entries with their sizes.
        self.size_bytes = 0
        self.data_bytes = 0
        #: Entries put here; a repeated one counts each time.
        self.entry_count = 0

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._ledgers

    def __len__(self) -> int:
        """How many ledgers have entries here."""
        return len(self._ledgers)

    def store(self, data: memoryview) -> int:
        """Keep ``data``, records without gaps. Return the position of its first byte."""
        size = len(data)
        self.data_bytes += size
        self.size_bytes += size
        if size >= _COPY_BELOW_BYTES:
            self._extents.append(np.frombuffer(data, np.uint8))
            return (len(self._extents) - 1) << _EXTENT_BITS
        if self._room_in < 0 or self._room_at + size > _EXTENT_BYTES:
            self._extents.append(np.empty(_EXTENT_BYTES, np.uint8))
            self._room_in, self._room_at = len(self._extents) - 1, 0
        at = self._room_at
        self._extents[self._room_in].data[at : at + size] = data
        self._room_at = at + size
        return self._room_in << _EXTENT_BITS | at

    def put_one(self, ledger_id: int, entry_id: int, position: int) -> None:
        """Set the position of an entry, replacing an earlier one."""
        slot = entry_id & PAGE_MASK
        self.entry_count += 1
        self._page(ledger_id, entry_id >> PAGE_SHIFT, slot + 1).set_one(slot, position + 1)

    def put(self, ledger_id: int, entry_ids: Int64s, positions: Int64s) -> None:
        """Set the positions of many entries of a ledger, replacing earlier ones."""
        self.entry_count += len(entry_ids)
        set_locations(lambda number, slots: self._page(ledger_id, number, slots), entry_ids, positions + 1)

    def put_located(self, ledger_id: int, entry_ids: Int64s, locations: Int64s) -> None:
        """Set the locations in entry logs of entries of a ledger, replacing earlier ones."""
        self.put(ledger_id, entry_ids, -1 - locations)

    def get_one(self, ledger_id: int, entry_id: int) -> int:
        """The position of an entry, -1 if it is not here."""
        pages = self._ledgers.get(ledger_id)
        page = pages.get(entry_id >> PAGE_SHIFT) if pages is not None else None
        return -1 if page is None else page.get_one(entry_id & PAGE_MASK) - 1

    def get(self, ledger_id: int, entry_ids: Int64s) -> Int64s | None:
        """Positions of the entries, -1 for an entry that is not here; None if the ledger has no entries here. Entry ids
        must not be negative."""
        pages = self._ledgers.get(ledger_id)
        if pages is None:
            return None
        numbers = entry_ids >> PAGE_SHIFT
        number = int(numbers[0])
        if bool((numbers == number).all()):
            page = pages.get(number)
            return None if page is None else page.get_at(entry_ids & PAGE_MASK) - 1
        result = np.full(len(entry_ids), -1, np.int64)
        for number, which in by_page(entry_ids):
            page = pages.get(number)
            if page is not None:
                result[which] = page.get_at(entry_ids[which] & PAGE_MASK) - 1
        return result

    def fetch(self, positions: Int64s, limit_bytes: int) -> StoredEntries:
        """The entries at the first of ``positions``: at least one, and as many as lie in one extent and total about
        ``limit_bytes``. Nothing is copied."""
        extents = positions >> _EXTENT_BITS
        others = np.flatnonzero(extents != extents[0])
        count = int(others[0]) if len(others) else len(positions)
        data = self._extents[int(extents[0])]
        starts = positions[:count] & _EXTENT_MASK
        sizes = gather_int32(data, starts - LENGTH_BYTES)
        fitting = max(1, int(np.searchsorted(np.cumsum(sizes + LENGTH_BYTES), limit_bytes, side="right")))
        return StoredEntries(data, starts[:fitting], sizes[:fitting])

    def fetch_one(self, position: int) -> memoryview:
        """The stored entry at ``position``."""
        data = self._extents[position >> _EXTENT_BITS].data
        start = position & _EXTENT_MASK
        return data[start : start + int.from_bytes(data[start - LENGTH_BYTES : start], "big")]

    def entry_ids(self, ledger_id: int, first: int = 0, last: int = MAX_ENTRY_ID) -> Int64s:
        """Ids of the ledger's entries here, ascending: those from ``first`` to ``last``."""
        pages = self._ledgers.get(ledger_id, {})
        numbers = sorted(number for number in pages if first >> PAGE_SHIFT <= number <= last >> PAGE_SHIFT)
        ids = [pages[number].used()[0] + (number << PAGE_SHIFT) for number in numbers]
        found: Int64s = np.concatenate(ids) if ids else np.empty(0, np.int64)
        return found[np.searchsorted(found, first) : np.searchsorted(found, last, side="right")]

    def drop(self, ledger_id: int) -> None:
        """Forget a ledger's entries; their bytes are freed with the half. Not while a flush reads this half."""
        for page in self._ledgers.pop(ledger_id, {}).values():
            self.size_bytes -= page.size_bytes

    def sorted_entries(self) -> SortedEntries:
        """All entries by ledger and entry id."""
        ledgers: list[tuple[int, int, int]] = []
        ids: list[Int64s] = []
        positions: list[Int64s] = []
        at = 0
        for ledger_id in sorted(self._ledgers):
            first = at
            for number, page in sorted(self._ledgers[ledger_id].items()):
                slots, found = page.used()
                ids.append(slots + (number << PAGE_SHIFT))
                positions.append(found - 1)
                at += len(slots)
            ledgers.append((ledger_id, first, at))
        if not at:
            return SortedEntries([], np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))
        where = np.concatenate(positions)
        sizes = np.zeros(len(where), np.int64)
        held = where >= 0
        if held.any():
            sizes[held] = self._sizes(where[held])
        return SortedEntries(ledgers, np.concatenate(ids), where, sizes)

    def copy(self, positions: Int64s, sizes: Int64s, target: Target) -> Iterator[None]:
        """Append the entries with their sizes to ``target``, in order, in as few buffers as is cheap. Yields after each
        part."""
        breaks = np.flatnonzero(positions[1:] != positions[:-1] + (sizes[:-1] + LENGTH_BYTES)) + 1
        firsts = positions[np.concatenate(([0], breaks))] - LENGTH_BYTES
        lasts = np.append(breaks, len(positions)) - 1
        lengths = positions[lasts] + sizes[lasts] - firsts
        ends = np.cumsum(lengths)
        views: dict[int, memoryview] = {}
        first = 0
        while first < len(firsts):
            size = int(lengths[first])
            some = slice(first, first + min(_SPANS_AT_ONCE, max(1, _GATHER_BYTES // size)))
            if size <= _GATHER_UP_TO_BYTES and bool((lengths[some] == size).all()):
                extents, starts = firsts[some] >> _EXTENT_BITS, firsts[some] & _EXTENT_MASK
                self._gather(extents, starts, size, target.room(size * len(starts)))
                first += len(starts)
                yield
                continue
            fitting = int(np.searchsorted(ends, int(ends[first]) - size + _PART_BYTES, side="right")) - first
            some = slice(first, first + min(_SPANS_AT_ONCE, max(1, fitting)))
            extents, starts = firsts[some] >> _EXTENT_BITS, firsts[some] & _EXTENT_MASK
            spans = []
            stops = (starts + lengths[some]).tolist()
            for extent, start, stop in zip(extents.tolist(), starts.tolist(), stops, strict=True):
                view = views.get(extent)
                if view is None:
                    view = views[extent] = self._extents[extent].data
                spans.append(view[start:stop])
            first += len(spans)
            if fitting:
                target.put(spans)
                yield
                continue
            for begin in range(0, size, _PART_BYTES):
                target.put([spans[0][begin : begin + _PART_BYTES]])
                yield

    def _gather(self, extents: Int64s, starts: Int64s, size_bytes: int, result: Bytes) -> None:
        """Copy ``size_bytes`` bytes from each of ``starts`` into ``result``."""
        rows = result.view(f"V{size_bytes}")
        for which in _equal(extents):
            rows[which] = gather(self._extents[int(extents[which[0]])], starts[which], size_bytes)

    def _sizes(self, positions: Int64s) -> Int64s:
        sizes = np.empty(len(positions), np.int64)
        extents = positions >> _EXTENT_BITS
        for which in _equal(extents):
            data = self._extents[int(extents[which[0]])]
            sizes[which] = gather_int32(data, (positions[which] & _EXTENT_MASK) - LENGTH_BYTES)
        return sizes

    def _page(self, ledger_id: int, number: int, slots: int) -> IndexPage:
        pages = self._ledgers.get(ledger_id)
        if pages is None:
            pages = self._ledgers[ledger_id] = {}
            self.size_bytes += _LEDGER_OVERHEAD_BYTES
        page = pages.get(number)
        if page is None:
            page = pages[number] = empty_page()
            self.size_bytes += page.size_bytes
        self.size_bytes += page.reserve(slots)
        return page


class WriteCache:
    """The two halves. ``limit_bytes`` is the limit of one half. While the other half is being written, entries accepted
    earlier may take the active half above its limit. Event loop only."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.active = CacheHalf()
        self.flushing: CacheHalf | None = None

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self.active or (self.flushing is not None and ledger_id in self.flushing)

    @property
    def is_full(self) -> bool:
        """Whether a flush is due."""
        return self.active.size_bytes >= self.limit_bytes

    @property
    def filled(self) -> float:
        """Share of the active half that is in use. Any thread."""
        return self.active.size_bytes / self.limit_bytes

    @property
    def excess_bytes(self) -> int:
        """Bytes by which the active half exceeds the limit."""
        return max(0, self.active.size_bytes - self.limit_bytes)

    def swap(self) -> CacheHalf:
        """Take the active half for a flush. The previous one must have been dropped."""
        if self.flushing is not None:
            raise AssertionError("a half is being flushed")
        self.flushing, self.active = self.active, CacheHalf()
        return self.flushing

    def drop_flushed(self) -> None:
        """Drop the flushing half, which is now in entry logs and index files."""
        self.flushing = None

    def drop(self, ledger_id: int) -> None:
        """Forget a ledger. Not while a flush is running."""
        self.active.drop(ledger_id)
        if self.flushing is not None:
            self.flushing.drop(ledger_id)


def _equal(values: Int64s) -> list[Int64s]:
    """Groups of positions with equal values, each ascending."""
    order = np.argsort(values, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(values[order])) + 1)
