"""Index pages in memory: cold ones, changes while one is loaded, bounds."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bk_spark.protocol.arrays import Int64s
from bookie_server.storage.disk.files import WouldBlockError
from bookie_server.storage.index.index import IndexFiles, IndexHeader
from bookie_server.storage.index.ledger_cache import ColdPageError, LedgerCache
from tests.support.kept import kept
from tests.support.running_storage import in_loop


def ids(*entry_ids: int) -> Int64s:
    return np.array(entry_ids, np.int64)


class ColdIndex(IndexFiles):
    """Pages are never in the system's page cache while ``cold`` is set. Reads that may wait do: for ``go_on``."""

    def __init__(self, directory: Path) -> None:
        super().__init__([str(directory)], lambda: [str(directory)])
        self.cold = True
        self.reading = threading.Semaphore(0)
        self.go_on = threading.Semaphore(1 << 20)

    def read_page(self, ledger_id: int, number: int, *, may_wait: bool) -> bytes:
        if not may_wait:
            if self.cold:
                raise WouldBlockError
            return super().read_page(ledger_id, number, may_wait=False)
        data = super().read_page(ledger_id, number, may_wait=True)
        self.reading.release()
        assert self.go_on.acquire(timeout=60)
        return data

    def hold(self) -> None:
        """Reads wait from now on."""
        self.go_on = threading.Semaphore(0)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[ColdIndex]:
    index = ColdIndex(tmp_path)
    index.write(1, IndexHeader(b"key", False, None), ids(0, 1024, 5000), ids(10, 20, 30))
    yield index
    index.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


async def reading(index: ColdIndex) -> None:
    """Until a page has been read and waits to be let go."""
    assert await asyncio.to_thread(index.reading.acquire, True, 60)


@in_loop
async def test_cold_pages_are_told_all_at_once(index: ColdIndex, threads: ThreadPoolExecutor) -> None:
    cache = LedgerCache(index, 1 << 20)
    with pytest.raises(ColdPageError) as cold:
        cache.get(1, ids(1024, 5000, 3, 1025))
    assert sorted(cold.value.keys) == [(1, 0), (1, 1), (1, 4)]
    with pytest.raises(ColdPageError):
        cache.get_one(1, 5000)
    for key in cold.value.keys:
        await cache.load(key, threads)
    assert cache.get(1, ids(1024, 5000, 3, 1025)).tolist() == [20, 30, 0, 0]
    assert cache.get_one(1, 5000) == 30


def test_who_may_wait_gets_cold_pages(index: ColdIndex) -> None:
    cache = LedgerCache(index, 1 << 20)
    assert cache.get(1, ids(0, 1024), may_wait=True).tolist() == [10, 20]


def test_the_page_cache_of_the_system_is_asked_without_waiting(
    index: ColdIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.cold = False

    def not_there(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        assert flags == os.RWF_NOWAIT
        raise BlockingIOError(11, "would block")

    monkeypatch.setattr(os, "preadv", not_there)
    with pytest.raises(ColdPageError):
        LedgerCache(index, 1 << 20).get(1, ids(0))


@in_loop
async def test_a_page_that_changes_while_it_is_loaded_is_not_kept(
    index: ColdIndex, threads: ThreadPoolExecutor
) -> None:
    cache = LedgerCache(index, 1 << 20)
    index.hold()
    load = asyncio.ensure_future(cache.load((1, 0), threads))
    await reading(index)
    index.write(1, None, ids(0, 1), ids(11, 12))
    cache.update(1, ids(0, 1), ids(11, 12))
    index.go_on.release(100)
    await load
    with pytest.raises(ColdPageError):
        cache.get_one(1, 0)
    await cache.load((1, 0), threads)
    assert cache.get(1, ids(0, 1)).tolist() == [11, 12]


@in_loop
async def test_two_loads_of_a_page_and_a_change_between(index: ColdIndex, threads: ThreadPoolExecutor) -> None:
    """The second load has read the page before the change, and ends when a third has begun."""
    others = np.arange(1023, 1 << 17, 1024)
    index.write(2, IndexHeader(b"key", False, None), others, others)
    cache = LedgerCache(index, 1)
    index.hold()
    loads = [asyncio.ensure_future(cache.load((1, 0), threads)) for _ in range(2)]
    await reading(index)
    await reading(index)
    index.go_on.release()
    await asyncio.wait(loads, return_when=asyncio.FIRST_COMPLETED)
    index.write(1, None, ids(0), ids(11))
    cache.update(1, ids(0), ids(11))
    index.cold = False
    cache.get(2, others)
    index.cold = True
    with pytest.raises(ColdPageError):  # it was swept
        cache.get_one(1, 0)
    loads.append(asyncio.ensure_future(cache.load((1, 0), threads)))
    await reading(index)
    index.go_on.release(100)
    await asyncio.gather(*loads)
    index.cold = False
    assert cache.get_one(1, 0) == 11


@in_loop
async def test_a_ledger_that_is_removed_while_its_page_is_loaded(index: ColdIndex, threads: ThreadPoolExecutor) -> None:
    cache = LedgerCache(index, 1 << 20)
    index.hold()
    load = asyncio.ensure_future(cache.load((1, 4), threads))
    await reading(index)
    index.remove(1)
    cache.drop(1, 5000)
    index.go_on.release(100)
    await load
    index.cold = False
    assert cache.get_one(1, 5000) == 0


@in_loop
async def test_a_load_that_fails_or_is_cancelled_leaves_nothing(index: ColdIndex, threads: ThreadPoolExecutor) -> None:
    cache = LedgerCache(index, 1 << 20)
    index.hold()
    load = asyncio.ensure_future(cache.load((1, 0), threads))
    await reading(index)
    load.cancel()
    await asyncio.wait([load])
    assert load.cancelled()
    index.go_on.release(100)
    assert kept(cache, list) == []
    assert cache.size_bytes == 0


@pytest.mark.parametrize("last_entry", [5000, (1 << 40) - 1])
def test_a_dropped_ledger_frees_its_memory(index: ColdIndex, last_entry: int) -> None:
    index.cold = False
    index.write(2, IndexHeader(b"key", False, None), ids(7), ids(70))
    cache = LedgerCache(index, 1 << 20)
    cache.get(2, ids(7))
    before = cache.size_bytes
    cache.get(1, ids(0, 1024, 5000))
    cache.drop(1, last_entry)
    assert cache.size_bytes == before
    assert cache.get_one(2, 7) == 70
    assert (cache.hits, cache.misses) == (1, 4)


def test_memory_is_bounded_and_changes_reach_what_is_there(index: ColdIndex) -> None:
    index.cold = False
    cache = LedgerCache(index, 1)
    many = np.arange(0, 1024 * 1000, 512)
    index.write(3, IndexHeader(b"key", False, None), many, many + 1)
    for first in range(0, len(many), 50):
        part = many[first : first + 50]
        assert cache.get(3, part).tolist() == (part + 1).tolist()
        assert cache.size_bytes <= 64 * 8192 + 9000
    index.write(3, None, many, many + 2)
    cache.update(3, many, many + 2)
    for first in range(0, len(many), 50):
        part = many[first : first + 50]
        assert cache.get(3, part).tolist() == (part + 2).tolist()
    cache.drop(3, int(many[-1]))
    assert cache.size_bytes == 0
