"""The write cache: entries in memory, their order on the way to a log, the memory they are said to take."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest

from bk_spark.protocol.arrays import Bytes, Int64s
from bookie_server.storage.write_cache import CacheHalf, WriteCache
from tests.support.entry_log_building import fill, record, stored


def ids(*entry_ids: int) -> Int64s:
    return np.array(entry_ids, np.int64)


def put_run(half: CacheHalf, ledger_id: int, entry_ids: list[int], size: int = 100) -> None:
    """Put entries of one ledger with one call, as a group brings them."""
    data = b"".join(record(ledger_id, entry_id, size) for entry_id in entry_ids)
    base = half.store(memoryview(data))
    half.put(ledger_id, ids(*entry_ids), base + 4 + np.arange(len(entry_ids)) * (size + 4))


class Collected:
    """What a flush would write."""

    def __init__(self) -> None:
        self.parts: list[memoryview] = []

    def put(self, buffers: Sequence[memoryview]) -> None:
        self.parts += buffers

    def room(self, size_bytes: int) -> Bytes:
        memory = np.empty(size_bytes, np.uint8)
        self.parts.append(memory.data)
        return memory


def copied(half: CacheHalf, positions: Int64s, sizes: Int64s) -> list[memoryview]:
    collected = Collected()
    for _ in half.copy(positions, sizes, collected):
        pass
    return collected.parts


def in_order(half: CacheHalf) -> list[tuple[int, int, bytes]]:
    """(ledger, entry, stored entry) as a flush would write them."""
    entries = half.sorted_entries()
    written = b"".join(copied(half, entries.positions, entries.sizes)) if len(entries.entry_ids) else b""
    result, at = [], 0
    for ledger_id, first, last in entries.ledgers:
        for i in range(first, last):
            size = int(entries.sizes[i])
            assert int.from_bytes(written[at : at + 4], "big") == size
            result.append((ledger_id, int(entries.entry_ids[i]), written[at + 4 : at + 4 + size]))
            at += 4 + size
    assert at == len(written)
    return result


@pytest.mark.parametrize("size", [100, 5_000, 100_000, 3_000_000])
def test_a_part_of_a_copy_is_small_however_the_entries_lie(size: int) -> None:
    """A flush syncs after parts. Entries of one ledger mostly lie side by side."""
    half, run, count = CacheHalf(), max(1, 2_000_000 // size), 0
    for ledger_id in (1, 2, 3):
        put_run(half, ledger_id, list(range(run)), size)
        fill(half, (ledger_id, run, 70))
        count += run * (size + 4) + 74
    entries, collected, done = half.sorted_entries(), Collected(), [0]
    for _ in half.copy(entries.positions, entries.sizes, collected):
        done.append(sum(map(len, collected.parts)))
    assert done[-1] == count
    assert max(later - earlier for earlier, later in itertools.pairwise(done)) <= 1024 * 1024
    assert len(in_order(half)) == 3 * (run + 1)


def test_entries_of_several_ledgers_and_pages_are_found() -> None:
    half = CacheHalf()
    fill(half, (1, 0, 50), (2, 7, 60), (1, 1, 70), (1, 5000, 80))
    put_run(half, 3, list(range(1000, 3100)))
    assert bytes(half.fetch_one(half.get_one(1, 5000))) == stored(1, 5000, 80)
    assert (half.get_one(1, 2), half.get_one(1, 900_000), half.get_one(9, 0)) == (-1, -1, -1)
    positions = half.get(3, ids(2047, 2048, 999, 3099, 1 << 39))
    assert positions is not None
    assert (positions >= 0).tolist() == [True, True, False, True, False]
    assert bytes(half.fetch_one(int(positions[1]))) == stored(3, 2048)
    assert half.get(9, ids(0)) is None
    assert half.get(1, ids(1024, 1025)) is None
    assert [half.entry_ids(ledger).tolist() for ledger in (1, 2, 9)] == [[0, 1, 5000], [7], []]
    assert half.entry_ids(3).tolist() == list(range(1000, 3100))
    assert (3 in half, 9 in half, len(half)) == (True, False, 3)


def test_a_flush_gets_everything_by_ledger_and_entry() -> None:
    half = CacheHalf()
    generator = np.random.default_rng(3)
    wanted = {}
    for i in range(5000):
        ledger, entry = int(generator.integers(0, 9)), int(generator.integers(0, 3000))
        size = 40 + int(generator.integers(0, 2000))
        if i % 500 == 0:
            size = 70_000  # an extent of its own
        fill(half, (ledger, entry, size))
        wanted[ledger, entry] = stored(ledger, entry, size)
    assert in_order(half) == [(*pair, wanted[pair]) for pair in sorted(wanted)]


def test_the_last_of_several_copies_counts() -> None:
    half = CacheHalf()
    fill(half, (1, 0, 50), (1, 1, 50), (1, 0, 90))
    put_run(half, 1, [5, 6, 5], 40)
    assert bytes(half.fetch_one(half.get_one(1, 0))) == stored(1, 0, 90)
    assert [(entry, len(data)) for _, entry, data in in_order(half)] == [(0, 90), (1, 50), (5, 40), (6, 40)]
    entries = half.sorted_entries()
    assert entries.positions[2] > entries.positions[3]


def test_what_lies_together_is_one_buffer() -> None:
    half = CacheHalf()
    put_run(half, 1, list(range(1000)))
    put_run(half, 2, list(range(1000)))
    put_run(half, 1, list(range(1000, 2000)))
    entries = half.sorted_entries()
    assert [len(part) for part in copied(half, entries.positions, entries.sizes)] == [104_000] * 3
    some = slice(500, 1500)
    assert [len(part) for part in copied(half, entries.positions[some], entries.sizes[some])] == [52_000] * 2


def test_an_empty_half() -> None:
    half = CacheHalf()
    assert half.sorted_entries().ledgers == []
    assert half.size_bytes == half.data_bytes == 0
    half.drop(4)


def test_large_buffers_are_kept_and_small_ones_copied() -> None:
    half = CacheHalf()
    large, small = bytearray(record(1, 0, 2_000_000)), bytearray(record(1, 1, 200))
    half.put_one(1, 0, half.store(memoryview(large)) + 4)
    half.put_one(1, 1, half.store(memoryview(small)) + 4)
    large[-1], small[-1] = 0x51, 0x51
    assert bytes(half.fetch_one(half.get_one(1, 0))[-1:]) == b"\x51"
    assert bytes(half.fetch_one(half.get_one(1, 1))[-1:]) == b"1"


def test_what_was_read_stays_when_the_half_goes() -> None:
    cache = WriteCache(1 << 20)
    fill(cache.active, (1, 0, 100))
    found = cache.active.fetch(ids(cache.active.get_one(1, 0)), 1)
    one = cache.active.fetch_one(cache.active.get_one(1, 0))
    cache.swap()
    cache.drop_flushed()
    fill(cache.active, (1, 0, 300))
    assert bytes(found.entry(0)) == bytes(one) == stored(1, 0)


def test_fetching_many_is_bounded_and_copies_nothing() -> None:
    half = CacheHalf()
    put_run(half, 1, list(range(100)))
    fill(half, (1, 100, 2_000_000), (1, 101, 100))
    positions = half.get(1, ids(*range(102)))
    assert positions is not None
    assert len(half.fetch(positions, 1).sizes) == 1
    assert len(half.fetch(positions, 104 * 20).sizes) == 20
    assert len(half.fetch(positions, 104 * 20 - 1).sizes) == 19
    first = half.fetch(positions, 1 << 30)
    assert first.contiguous
    assert [bytes(first.entry(i)) for i in range(len(first.sizes))] == [stored(1, i) for i in range(100)]
    rest = half.fetch(positions[100:], 1 << 30)
    assert rest.sizes.tolist() == [2_000_000]
    assert np.shares_memory(first.data, half.fetch(positions[101:], 1).data)


def test_dropping_a_ledger_leaves_the_others() -> None:
    half = CacheHalf()
    fill(half, (1, 0, 100))
    before = half.size_bytes
    fill(half, (2, 0, 100), (2, 9000, 100), (3, 0, 100))
    half.drop(3)
    half.drop(2)
    assert half.size_bytes - before < 1500
    assert [pair[:2] for pair in in_order(half)] == [(1, 0)]
    assert half.get_one(2, 0) == -1


@pytest.mark.parametrize(("ledgers", "entries", "size"), [(10_000, 1, 40), (10, 10_000, 40), (4, 60, 100_000)])
def test_the_memory_taken_is_known(ledgers: int, entries: int, size: int) -> None:
    """Also of what entries need beside their bytes: many tiny ledgers must not take memory without end."""
    tracemalloc.start()
    try:
        half = CacheHalf()
        for entry in range(entries):
            for ledger in range(ledgers):
                half.put_one(ledger, entry, half.store(memoryview(bytes(size))) + 4)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.7 * taken < half.size_bytes < 2 * taken
    assert half.data_bytes == ledgers * entries * size


def test_halves_change_places() -> None:
    cache = WriteCache(3 << 20)
    fill(cache.active, (1, 0, 2 << 20))
    assert (cache.is_full, cache.excess_bytes) == (False, 0)
    fill(cache.active, (2, 0, 2 << 20))
    assert (cache.is_full, cache.excess_bytes >> 20) == (True, 1)
    first = cache.swap()
    assert (cache.is_full, cache.excess_bytes) == (False, 0)
    fill(cache.active, (3, 0, 100))
    assert [ledger in cache for ledger in (1, 2, 3, 4)] == [True, True, True, False]
    with pytest.raises(AssertionError):
        cache.swap()
    cache.drop(2)
    assert [ledger for ledger, _, _ in first.sorted_entries().ledgers] == [1]
    cache.drop_flushed()
    assert [ledger in cache for ledger in (1, 2, 3)] == [False, False, True]
    assert cache.swap() is not first
