"""One page of locations in memory: up to 1024 consecutive entries.

Most ledgers of a busy bookie are short, so a page in memory is only as long as its last entry needs, rounded up to a
power of two. In the file it always has 1024 slots (index.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bookie_server.storage.index.index import PAGE_BYTES, PAGE_DTYPE, PAGE_SLOTS, Page

PAGE_SHIFT: Final = 10
PAGE_MASK: Final = PAGE_SLOTS - 1
_LEAST_SLOTS: Final = 16
#: Approximate overhead of Python and numpy beside the locations.
_OVERHEAD_BYTES: Final = 400


class IndexPage:
    """Missing slots are 0, which means "absent", as in the file."""

    __slots__ = ("_slots",)

    def __init__(self, slots: Page) -> None:
        self._slots = slots

    @property
    def size_bytes(self) -> int:
        """What the page takes in memory."""
        return _OVERHEAD_BYTES + self._slots.nbytes

    def reserve(self, count: int) -> int:
        """Make room for ``count`` slots. Return the number of bytes by which the page grew."""
        have = len(self._slots)
        if count <= have:
            return 0
        slots = np.zeros(min(PAGE_SLOTS, max(_LEAST_SLOTS, 1 << (count - 1).bit_length())), PAGE_DTYPE)
        slots[:have] = self._slots
        self._slots = slots
        return slots.nbytes - 8 * have

    def set_one(self, slot: int, location: int) -> None:
        """Set one location. There must be room (:meth:`reserve`), as for the next two."""
        self._slots[slot] = location

    def set_range(self, slot: int, locations: Int64s) -> None:
        """Set the locations of consecutive slots, from ``slot`` on."""
        self._slots[slot : slot + len(locations)] = locations

    def set_at(self, slots: Int64s, locations: Int64s) -> None:
        """Set the locations of any slots."""
        self._slots[slots] = locations

    def get_one(self, slot: int) -> int:
        """The location in a slot, 0 if it is absent or beyond the page."""
        return int(self._slots[slot]) if slot < len(self._slots) else 0

    def get_at(self, slots: Int64s) -> Int64s:
        """The locations in some slots, 0 where they are absent or beyond the page."""
        have = len(self._slots)
        if have == PAGE_SLOTS or int(slots.max()) < have:
            locations: Int64s = self._slots[slots].astype(np.int64)
            return locations
        result = np.zeros(len(slots), np.int64)
        there = slots < have
        result[there] = self._slots[slots[there]]
        return result

    def used(self) -> tuple[Int64s, Int64s]:
        """The slots that hold a location, ascending, and the locations."""
        slots = np.flatnonzero(self._slots)
        return slots, self._slots[slots].astype(np.int64)


def empty_page() -> IndexPage:
    """A page without room for any slot."""
    return IndexPage(np.zeros(0, PAGE_DTYPE))


def page_of(data: bytes) -> IndexPage:
    """The page whose bytes in the file are ``data`` (shorter at the end of the file)."""
    slots = np.frombuffer(data[: min(len(data) // 8 * 8, PAGE_BYTES)], PAGE_DTYPE)
    used = np.flatnonzero(slots)
    page = empty_page()
    if len(used):
        count = int(used[-1]) + 1
        page.reserve(count)
        page.set_range(0, slots[:count].astype(np.int64))
    return page


def follow_each_other(entry_ids: Int64s) -> bool:
    """Whether the ids are consecutive."""
    count = len(entry_ids)
    return int(entry_ids[-1]) - int(entry_ids[0]) == count - 1 and (count < 3 or bool((np.diff(entry_ids) == 1).all()))


def by_page(entry_ids: Int64s) -> Iterator[tuple[int, Int64s | slice]]:
    """(page number, positions in ``entry_ids`` that lie in it), in the original order within a page."""
    first, last = int(entry_ids[0]) >> PAGE_SHIFT, int(entry_ids[-1]) >> PAGE_SHIFT
    if follow_each_other(entry_ids):
        start, count = int(entry_ids[0]), len(entry_ids)
        for number in range(first, last + 1):
            begin = number << PAGE_SHIFT
            yield number, slice(max(0, begin - start), min(count, begin + PAGE_SLOTS - start))
        return
    numbers = entry_ids >> PAGE_SHIFT
    if first == last and bool((numbers == first).all()):
        yield first, slice(None)
        return
    for number in np.unique(numbers).tolist():
        yield number, np.flatnonzero(numbers == number)


def set_locations(page_to_change: Callable[[int, int], IndexPage | None], entry_ids: Int64s, locations: Int64s) -> None:
    """Set locations page by page. ``page_to_change(number, slots)`` returns the page with room for that many slots, or
    None to skip it."""
    for number, which in by_page(entry_ids):
        ids = entry_ids[which] & PAGE_MASK
        page = page_to_change(number, int(ids.max()) + 1)
        if page is not None:
            page.set_at(ids, locations[which])
