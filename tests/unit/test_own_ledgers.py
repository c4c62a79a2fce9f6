"""What a bookie has of its ledgers in limbo: over a real storage."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from bk_spark.protocol.codes import LAST_ENTRY, Code
from bk_spark.protocol.errors import CorruptFileError
from bookie_server.integrity.limbo_check import OwnFound, StateFound
from bookie_server.integrity.own_ledgers import OwnLedgers
from bookie_server.storage.entrylog.entry_log import OFFSET_BITS, OFFSET_MASK
from bookie_server.storage.index.index import IndexFiles, IndexHeader
from bookie_server.storage.records import MIN_RECORD_BYTES
from tests.support.running_storage import KEY, OTHER_KEY, Place, delete_ledger, in_loop, running, stored


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.make(tmp_path / "bookie")


def put_in_limbo(place: Place, *ledger_ids: int, key: bytes = KEY) -> None:
    """The bookie does not run."""
    index = IndexFiles([str(place.ledger)], lambda: [str(place.ledger)])
    nothing = np.empty(0, np.int64)
    for ledger_id in ledger_ids:
        index.write(ledger_id, IndexHeader(key, ledger_id == 1, None, limbo=True), nothing, nothing)
    index.close()


async def held(own: OwnLedgers, ledger_id: int, first: int, last: int) -> list[int]:
    result: list[int] = (await own.read(ledger_id, first, last)).entry_ids.tolist()
    return result


@in_loop
async def test_what_is_in_memory_and_in_entry_logs_that_exist(place: Place) -> None:
    async with running(place) as bookie:
        await bookie.add(*(stored(1, entry_id) for entry_id in (0, 1, 2, 3, 5, 3000)))
        await bookie.add(stored(3, 0))
    put_in_limbo(place, 1, 2)
    async with running(place) as bookie:
        own = OwnLedgers(bookie.storage)
        assert await own.in_limbo() == [1, 2]
        assert await held(own, 1, 0, 4000) == [0, 1, 2, 3, 5, 3000]
        assert await held(own, 1, 1, 5) == [1, 2, 3, 5]
        assert await held(own, 2, 0, 9) == []
        await bookie.add(stored(1, 4), stored(2, 7), recovery=True)
        assert await held(own, 1, 1, 5) == [1, 2, 3, 4, 5]
        assert await held(own, 2, 7, 7) == [7]
        # Much of a ledger may be in memory, and only these entries are asked for.
        for first, last in ((0, 6), (8, 9), (1024, 4000)):
            assert await held(own, 2, first, last) == []
        # A log has become shorter: less than its smallest possible size is left of entry 3.
        (location,) = bookie.storage.index.read_slots(1, np.array([3])).tolist()
        end = (location & OFFSET_MASK) + MIN_RECORD_BYTES
        path = bookie.storage.reader.path(location >> OFFSET_BITS)
        os.truncate(path, end)
        assert await held(own, 1, 0, 4000) == [0, 1, 2, 3, 4]
        os.truncate(path, end - 1)
        assert await held(own, 1, 0, 4000) == [0, 1, 2, 4]
        # The index has outlived a lost directory of entry logs.
        for log in place.logs():
            log.unlink()
        assert await held(own, 1, 0, 4000) == [4]


@in_loop
async def test_limbo_ends_once_and_for_good(place: Place) -> None:
    async with running(place) as bookie:
        await bookie.add(stored(1, 0))
    put_in_limbo(place, 1, 2)
    async with running(place) as bookie:
        own = OwnLedgers(bookie.storage)
        assert await own.state(1) == StateFound(in_limbo=True, fenced=True)
        assert await own.state(2) == StateFound(in_limbo=True, fenced=False)
        assert await own.state(3) == StateFound(in_limbo=False, fenced=False)
        unknown = Code.UNKNOWN_LEDGER_STATE
        assert await bookie.read((1, 0), (1, 1), (1, LAST_ENTRY)) == [stored(1, 0), unknown, unknown]
        assert (bookie.read_now(1, 1), bookie.read_now(1, LAST_ENTRY)) == (None, None)
        assert await bookie.batch(1, 0) == [stored(1, 0)]
        assert await bookie.batch(1, LAST_ENTRY) is unknown
        assert await bookie.entry_ids(1) is unknown
        await own.end_limbo(1)
        assert await own.state(1) == StateFound(in_limbo=False, fenced=True)
        assert await bookie.read((1, 0), (1, 1), (1, LAST_ENTRY)) == [stored(1, 0), Code.NO_ENTRY, stored(1, 0)]
        assert await bookie.entry_ids(1) == [0]
        await delete_ledger(bookie.upkeep, 2)
        await own.end_limbo(2)
        assert await own.state(2) == StateFound(in_limbo=False, fenced=False)
    async with running(place) as bookie:
        assert await OwnLedgers(bookie.storage).in_limbo() == []
        assert await bookie.add(stored(1, 1)) == [Code.FENCED]


@in_loop
async def test_a_ledger_whose_key_nobody_knows_takes_the_first_one_after_limbo_too(place: Place) -> None:
    put_in_limbo(place, 2, 3, key=b"")
    async with running(place) as bookie:
        for ledger_id in (2, 3):
            await OwnLedgers(bookie.storage).end_limbo(ledger_id)
        # Before and after a restart, which reads header and journal.
        assert await bookie.add(stored(2, 0)) == [Code.OK]
        killed = place.killed(place.root.with_name("killed"))
    for each in (place, killed):
        async with running(each) as bookie:
            assert await bookie.add(stored(3, 0)) == [Code.OK]
            for ledger_id in (2, 3):
                assert await bookie.add(stored(ledger_id, 1), key=OTHER_KEY) == [Code.UNAUTHORIZED]
                assert await bookie.add(stored(ledger_id, 1)) == [Code.OK]


@in_loop
async def test_a_key_that_follows_an_empty_one_is_journaled(place: Place) -> None:
    """v3 has room for an empty key, which no client sends."""
    async with running(place) as bookie:
        assert await bookie.add(stored(1, 0), key=b"") == [Code.OK]
        assert await bookie.add(stored(1, 1)) == [Code.OK]
        killed = place.killed(place.root.with_name("killed"))
    async with running(killed) as bookie:
        assert await bookie.add(stored(1, 2), key=OTHER_KEY) == [Code.UNAUTHORIZED]
        assert await bookie.add(stored(1, 2)) == [Code.OK]


@in_loop
async def test_a_broken_index_file_ends_the_check_of_its_ledger_alone(place: Place) -> None:
    put_in_limbo(place, 1, 2)
    path = place.ledger / "0" / "1" / "1.idx"
    path.write_bytes(b"garbage".ljust(path.stat().st_size, b"x"))
    async with running(place) as bookie:
        own = OwnLedgers(bookie.storage)
        assert await own.in_limbo() == [2]
        for work in (own.state(1), own.end_limbo(1)):
            with pytest.raises(CorruptFileError):
                await work


@in_loop
async def test_the_ids_of_a_long_ledger_are_compared_in_a_thread(place: Place) -> None:
    """Requests of all clients wait for the event loop."""
    entry_ids = np.arange(1 << 19)
    index = IndexFiles([str(place.ledger)], lambda: [str(place.ledger)])
    index.write(1, IndexHeader(KEY, False, None), entry_ids, 5 << OFFSET_BITS | entry_ids + 1)
    index.close()
    with Path(place.ledger, "5.log").open("wb") as log:
        log.truncate(1 << 20)
    async with running(place) as bookie:
        await bookie.add(stored(1, 3), stored(1, len(entry_ids)))
        everything = [*entry_ids.tolist(), len(entry_ids)]
        own = OwnLedgers(bookie.storage)
        for work in (lambda: own.read(1, 0, len(entry_ids)), lambda: bookie.bookie.list_entries(1)):
            loop_before_s, all_before_s = time.thread_time(), time.process_time()
            result = await work()
            loop_s, all_s = time.thread_time() - loop_before_s, time.process_time() - all_before_s
            assert (result.entry_ids if isinstance(result, OwnFound) else result[1]).tolist() == everything
            assert loop_s < all_s / 4
