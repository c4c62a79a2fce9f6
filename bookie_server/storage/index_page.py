"""One page of an index file in memory: the locations of up to 1024 entries that follow one another.

Most ledgers of a busy bookie are short, so a page in memory is only as long as its last entry needs, in powers
of two. In the file it always has 1024 slots (index.py).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from bookie_server.storage.index import PAGE_BYTES, PAGE_DTYPE, PAGE_SLOTS, Page
from bookie_server.storage.records import Int64s

_LEAST_SLOTS: Final = 16
#: What Python and numpy need beside the locations, about.
_OVERHEAD_BYTES: Final = 400


class IndexPage:
    """``dirty``: holds what the file does not. ``flushing``: is being written by another thread. Slots that are not
    there are 0, as in the file."""

    __slots__ = ("_slots", "dirty", "flushing")

    def __init__(self, slots: Page) -> None:
        self._slots = slots
        self.dirty = False
        self.flushing = False

    @property
    def size_bytes(self) -> int:
        return _OVERHEAD_BYTES + self._slots.nbytes

    def whole(self) -> Page:
        """A copy of the page as it is in the file."""
        page = np.zeros(PAGE_SLOTS, PAGE_DTYPE)
        page[: len(self._slots)] = self._slots
        return page

    def reserve(self, count: int) -> int:
        """Make room for ``count`` slots; the bytes by which the page grew."""
        have = len(self._slots)
        if count <= have:
            return 0
        slots = np.zeros(min(PAGE_SLOTS, max(_LEAST_SLOTS, 1 << (count - 1).bit_length())), PAGE_DTYPE)
        slots[:have] = self._slots
        self._slots = slots
        return slots.nbytes - 8 * have

    def set_one(self, slot: int, location: int) -> None:
        self._slots[slot] = location

    def set_range(self, slot: int, locations: Int64s) -> None:
        self._slots[slot : slot + len(locations)] = locations

    def set_at(self, slots: Int64s, locations: Int64s) -> None:
        self._slots[slots] = locations

    def get_one(self, slot: int) -> int:
        return int(self._slots[slot]) if slot < len(self._slots) else 0

    def get_at(self, slots: Int64s) -> Int64s:
        have = len(self._slots)
        if have == PAGE_SLOTS or int(slots.max()) < have:
            locations: Int64s = self._slots[slots].astype(np.int64)
            return locations
        result = np.zeros(len(slots), np.int64)
        there = slots < have
        result[there] = self._slots[slots[there]]
        return result

    def get_run(self, slot: int, limit: int) -> Int64s:
        """Locations from ``slot`` on, up to ``limit``, the end of the page, or the first absent entry."""
        slots = self._slots[slot : slot + limit]
        absent = np.flatnonzero(slots == 0)
        return (slots[: int(absent[0])] if len(absent) else slots).astype(np.int64)


def page_of(data: bytes) -> IndexPage:
    """The page whose bytes in the file are ``data`` (fewer than a page's at the end of the file)."""
    slots = np.frombuffer(data[: min(len(data) // 8 * 8, PAGE_BYTES)], PAGE_DTYPE)
    used = np.flatnonzero(slots)
    page = IndexPage(np.zeros(0, PAGE_DTYPE))
    if len(used):
        count = int(used[-1]) + 1
        page.reserve(count)
        page.set_range(0, slots[:count].astype(np.int64))
    return page
