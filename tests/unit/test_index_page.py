"""Pages of locations in memory."""

from __future__ import annotations

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bookie_server.storage.index.index import PAGE_DTYPE, PAGE_SLOTS
from bookie_server.storage.index.index_page import IndexPage, empty_page, page_of, set_locations


def ids(*entry_ids: int) -> Int64s:
    return np.array(entry_ids, np.int64)


def page_bytes(**slots: int) -> bytes:
    result = np.zeros(PAGE_SLOTS, PAGE_DTYPE)
    for name, location in slots.items():
        result[int(name[1:])] = location
    return result.tobytes()


def test_a_page_in_memory_is_as_long_as_it_needs_to_be() -> None:
    short = page_of(b"")
    assert (short.get_one(3), short.get_at(ids(0, 9)).tolist()) == (0, [0, 0])
    for slot in (0, 17, 40):
        short.reserve(slot + 1)
        short.set_one(slot, slot + 100)
    assert short.size_bytes < 1100
    assert short.get_at(ids(17, 500, 0, 1023)).tolist() == [117, 0, 100, 0]
    assert short.reserve(1024) == 8 * (1024 - 64)
    short.set_range(1020, ids(1, 2, 3, 4))
    slots, locations = short.used()
    assert dict(zip(slots.tolist(), locations.tolist(), strict=True)) == {
        0: 100, 17: 117, 40: 140, 1020: 1, 1021: 2, 1022: 3, 1023: 4,
    }  # fmt: skip
    file = page_bytes(s0=100, s17=117, s40=140, s1020=1)
    assert page_of(file).get_at(ids(0, 17, 40, 1020, 1021)).tolist() == [100, 117, 140, 1, 0]
    assert page_of(file[:200]).get_at(ids(0, 17, 40)).tolist() == [100, 117, 0]
    assert page_of(file[:205]).size_bytes < 700


def test_locations_are_set_page_by_page() -> None:
    pages: dict[int, IndexPage] = {}

    def page(number: int, slots: int) -> IndexPage | None:
        if number == 7:
            return None
        found = pages.setdefault(number, empty_page())
        found.reserve(slots)
        return found

    set_locations(page, ids(*range(1000, 3000)), ids(*range(1, 2001)))
    set_locations(page, ids(5, 1001, 1001, 7 * 1024, 1020), ids(91, 92, 93, 94, 95))
    assert sorted(pages) == [0, 1, 2]
    assert pages[0].get_at(ids(5, 999, 1000, 1001, 1020, 1023)).tolist() == [91, 0, 1, 93, 95, 24]
    assert pages[1].get_at(ids(0, 1023)).tolist() == [25, 1048]
    assert pages[2].get_at(ids(0, 951, 952)).tolist() == [1049, 2000, 0]
