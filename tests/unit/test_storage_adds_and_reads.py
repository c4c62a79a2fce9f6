"""What a client may ask of a bookie, on real files: adds, reads, fences, last add confirmed."""

from __future__ import annotations

import asyncio
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bk_spark.protocol.codes import Code
from bookie_server.storage.journal import journal
from tests.support.disk_faults import hold_at
from tests.support.failing_os import FailingOs
from tests.support.running_storage import KEY, OTHER_KEY, Place, in_loop, running, stored


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.make(tmp_path / "bookie")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingOs:
    return FailingOs(monkeypatch)


@in_loop
async def test_add_and_read(place: Place) -> None:
    async with running(place) as bookie:
        entries = [stored(1, i, 64 + i) for i in range(3000)]
        assert set(await bookie.add(*entries)) == {Code.OK}
        assert await bookie.read(*[(1, i) for i in range(3000)]) == entries
        assert await bookie.read((1, 2999), (1, 5), (1, 7)) == [entries[2999], entries[5], entries[7]]
        assert await bookie.read((1, -1)) == [entries[-1]]
        assert await bookie.read((1, 3000), (1, 3), (2, 0), (1, -7)) == [
            Code.NO_ENTRY,
            entries[3],
            Code.NO_LEDGER,
            Code.NO_ENTRY,
        ]


@in_loop
async def test_n1_a_large_entry_in_an_entry_log_is_read_in_a_thread(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory may be fresh: half a millisecond for a megabyte, which is more than a turn of the event loop may take.
    That of a peer that takes its answers is not, unless the entry is much larger."""
    async with running(place) as bookie:
        small, large, huge = stored(1, 0, 60_000), stored(1, 1, 1_000_000), stored(1, 2, 3_000_000)
        await bookie.add(small, large, huge)
        await bookie.storage.checkpoint()
        reader, waited = bookie.storage.reader, []
        real = reader.read

        def read(*arguments: Any, at_once_bytes: int | None, **how: Any) -> Any:
            found = real(*arguments, at_once_bytes=at_once_bytes, **how)
            waited.append((at_once_bytes is None, threading.current_thread() is threading.main_thread()))
            return found

        monkeypatch.setattr(reader, "read", read)
        assert await bookie.read((1, 0)) == [small]
        assert await bookie.read((1, 1)) == [large]
        assert waited == [(False, True), (True, False)]
        waited.clear()
        assert await bookie.read((1, 1), taken=True) == [large]
        assert await bookie.batch(1, 0, 2, taken=True) == [small, large]
        assert set(waited) == {(False, True)}
        waited.clear()
        assert await bookie.read((1, 2), taken=True) == [huge]
        assert waited == [(True, False)]


@in_loop
async def test_a_read_waits_for_an_add_under_way(place: Place) -> None:
    async with running(place) as bookie:
        add = asyncio.ensure_future(bookie.add(stored(1, 0)))
        await asyncio.sleep(0)
        assert await bookie.read((1, 0)) == [stored(1, 0)]
        assert add.done()


@in_loop
async def test_a_durable_entry_that_a_recovery_adds_again_is_read_without_waiting_for_the_journal(
    place: Place, disk: FailingOs
) -> None:
    async with running(place) as bookie:
        assert await bookie.add(stored(1, 0)) == [Code.OK]
        block = hold_at(disk, "fdatasync", ".txn")
        again = asyncio.ensure_future(bookie.add(stored(1, 0), stored(1, 1), recovery=True))
        assert await asyncio.to_thread(block.reached.wait, 30)
        assert await bookie.read((1, 0)) == [stored(1, 0)] == await bookie.batch(1, 0, 1)
        assert bookie.read_now(1, 0) == stored(1, 0)
        # What comes with it for the first time is neither there nor absent.
        assert bookie.read_now(1, 1) is None
        waiting = [asyncio.ensure_future(read) for read in (bookie.read((1, 0), (1, 1)), bookie.batch(1, 1))]
        done, _ = await asyncio.wait(waiting, timeout=0.05)
        assert not done
        assert not again.done()
        block.release()
        assert await waiting[0] == [stored(1, 0), stored(1, 1)]
        assert await waiting[1] == [stored(1, 1)]
        assert await again == [Code.OK] * 2


@in_loop
async def test_several_ledgers_in_one_run(place: Place) -> None:
    async with running(place) as bookie:
        entries = [stored(i % 7, i // 7 + 1000, 50 + i) for i in range(700)]
        assert set(await bookie.add(*entries)) == {Code.OK}
        assert await bookie.read(*[(i % 7, i // 7 + 1000) for i in range(700)]) == entries
        order = np.random.default_rng(1).permutation(700).tolist()
        assert await bookie.read(*[(i % 7, i // 7 + 1000) for i in order]) == [entries[i] for i in order]


@in_loop
async def test_refusals_are_per_entry(place: Place) -> None:
    async with running(place) as bookie:
        assert await bookie.bookie.fence(2, KEY) is Code.OK
        assert await bookie.add(stored(3, 0), key=OTHER_KEY) == [Code.OK]
        codes = await bookie.add(
            stored(1, 0), stored(2, 0), stored(3, 1), stored(1, -4), stored(1, 1 << 41), stored(1, 9)[:20], stored(1, 1)
        )
        assert codes == [
            Code.OK,
            Code.FENCED,
            Code.UNAUTHORIZED,
            Code.BAD_REQUEST,
            Code.BAD_REQUEST,
            Code.BAD_REQUEST,
            Code.OK,
        ]
        assert await bookie.add(stored(2, 0), stored(2, 1)) == [Code.FENCED] * 2
        assert await bookie.add(stored(2, 0), recovery=True) == [Code.OK]
        assert await bookie.read((1, 0), (1, 1), (2, 0), (3, 1), (1, 9)) == [
            stored(1, 0),
            stored(1, 1),
            stored(2, 0),
            Code.NO_ENTRY,
            Code.NO_ENTRY,
        ]


@in_loop
async def test_known_lac_is_found_in_the_last_entry_after_a_restart(place: Place) -> None:
    async with running(place) as bookie:
        await bookie.add(stored(1, 0), stored(1, 1), stored(1, 2))
    async with running(place) as bookie:
        descriptor = bookie.storage.descriptors.get(1)
        assert descriptor is not None
        assert await bookie.bookie.known_lac(descriptor) == 1


@in_loop
async def test_fence_waits_for_its_record_and_is_journaled_once(place: Place, tmp_path: Path) -> None:
    async with running(place) as bookie:
        add = asyncio.ensure_future(bookie.add(stored(1, 0)))
        await asyncio.sleep(0)
        first, second = bookie.bookie.fence(1, KEY), bookie.bookie.fence(1, KEY)
        assert not first.done()
        assert not second.done()
        assert await bookie.add(stored(1, 1)) == [Code.FENCED]
        assert (await first, await second) == (Code.OK, Code.OK)
        assert add.done()
        assert await add == [Code.OK]
        third = bookie.bookie.fence(1, KEY)
        assert third.done()
        assert await bookie.bookie.fence(1, OTHER_KEY) is Code.UNAUTHORIZED
        files = list(place.journal.glob("*.txn"))
        content = b"".join(file.read_bytes() for file in files)
        assert content.count(journal.fence_record(1)) == 1
        assert content.count(journal.master_key_record(1, KEY)) == 1
        assert content.index(journal.master_key_record(1, KEY)) < content.index(stored(1, 0))


@in_loop
async def test_a_corrupt_entry_is_an_error_and_not_absent(place: Place) -> None:
    async with running(place) as bookie:
        await bookie.add(*[stored(1, i, 500) for i in range(10)])
    log = next(place.ledger.glob("*.log"))
    content = bytearray(log.read_bytes())
    at = content.index(stored(1, 4, 500))
    content[at : at + 16] = bytes(16)
    log.write_bytes(bytes(content))
    async with running(place) as bookie:
        assert await bookie.read((1, 3), (1, 4), (1, 5)) == [stored(1, 3, 500), Code.IO_ERROR, stored(1, 5, 500)]
        code, found = await bookie.bookie.read_batch(1, 0, 0, 1 << 20)
        assert code is Code.OK
        assert sum(len(part.sizes) for part in found) == 4
        assert (await bookie.bookie.read_batch(1, 4, 0, 1 << 20))[0] is Code.IO_ERROR
    log.unlink()
    async with running(place) as bookie:
        assert await bookie.read((1, 3)) == [Code.IO_ERROR]


@in_loop
async def test_batch_reads(place: Place) -> None:
    entries = [stored(1, i, 100) for i in range(2500)]

    async with running(place) as bookie:
        for i in range(0, 2500, 100):
            await bookie.add(*entries[i : i + 100])
            await bookie.add(stored(2, i, 20_000))
        await bookie.add(stored(1, 2502))
        assert await bookie.batch(1, 0, 0, 1 << 20) == entries
        assert await bookie.batch(1, 7, 5, 1 << 20) == entries[7:12]
        assert await bookie.batch(1, 7, 0, 104 * 20) == entries[7:27]
        assert await bookie.batch(1, 7, 0, 104 * 20 - 1) == entries[7:26]
        assert await bookie.batch(1, 7, 0, 1) == entries[7:8]
        assert await bookie.batch(1, 7, 0, -5) == entries[7:8]
        assert await bookie.batch(1, 2490, 100, 1 << 20) == entries[2490:]
        assert await bookie.batch(1, -1, 100, 1 << 20) == [stored(1, 2502)]
        assert (await bookie.bookie.read_batch(1, 2500, 1, 1000))[0] is Code.NO_ENTRY
        assert (await bookie.bookie.read_batch(5, 0, 1, 1000))[0] is Code.NO_LEDGER


@in_loop
async def test_a_batch_read_looks_up_what_will_fit(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up has a fixed cost. So there are few for many small entries, and none is much larger than the answer."""
    async with running(place) as bookie:
        small = [stored(1, i, 40) for i in range(20_000)]
        large = [stored(1, 20_000 + i, 20_000) for i in range(60)]
        await bookie.add(*small)
        await bookie.add(*large)
        lookup, asked = bookie.storage.lookup, list[int]()
        real = lookup.locate

        def locate(ledger_id: int, entry_ids: Any, **how: Any) -> Any:
            asked.append(len(entry_ids))
            return real(ledger_id, entry_ids, **how)

        monkeypatch.setattr(lookup, "locate", locate)
        for flushed in (False, True):
            if flushed:
                await bookie.storage.checkpoint()
            # The first is asked for alone, to resolve its id.
            asked.clear()
            assert await bookie.batch(1, 500, 0, 1 << 24) == [*small[500:], *large]
            assert asked[:2] == [1, 524]
            assert len(asked) < 8
            assert max(asked) == 8192
            asked.clear()
            assert await bookie.batch(1, 500, 0, 44 * 600) == small[500:1100]
            assert asked == [1, 524, 76]
            asked.clear()
            assert await bookie.batch(1, 500, 10, 1 << 24) == small[500:510]
            assert asked == [1, 10]
            # The estimate is wrong in both directions.
            assert await bookie.batch(1, 19_990, 0, 300_000) == [*small[19_990:], *large[:14]]
            assert await bookie.batch(1, 20_000, 0, 1 << 24) == large


@in_loop
async def test_a_batch_read_of_entries_in_many_places_looks_up_few_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second entry was added again after a flush: each look-up serves one entry."""
    async with running(place) as bookie:
        entries = [stored(1, i, 40) for i in range(3000)]
        await bookie.add(*entries)
        await bookie.storage.checkpoint()
        await bookie.add(*entries[::2])
        lookup, asked = bookie.storage.lookup, list[int]()
        real = lookup.locate

        def locate(ledger_id: int, entry_ids: Any, **how: Any) -> Any:
            asked.append(len(entry_ids))
            return real(ledger_id, entry_ids, **how)

        monkeypatch.setattr(lookup, "locate", locate)
        assert await bookie.batch(1, 0, 200, 1 << 24) == entries[:200]
        assert await bookie.batch(1, 0, 0, 44 * 2000) == entries[:2000]
        assert max(asked) <= 1024


@in_loop
async def test_long_poll(place: Place) -> None:
    async with running(place) as bookie:
        await bookie.add(stored(1, 0))
        descriptor = bookie.storage.descriptors.get(1)
        assert descriptor is not None
        assert await descriptor.wait_for_lac(-1, 10) is False
        wait = asyncio.ensure_future(descriptor.wait_for_lac(-1, 60_000))
        await asyncio.sleep(0)
        await bookie.add(stored(1, 1))
        assert await wait is True
        wait = asyncio.ensure_future(descriptor.wait_for_lac(5, 60_000))
        await asyncio.sleep(0)
        await bookie.bookie.write_lac(struct.pack(">qq", 1, 6), KEY)
        assert await wait is True
        wait = asyncio.ensure_future(descriptor.wait_for_lac(9, 60_000))
        await asyncio.sleep(0)
        await bookie.bookie.fence(1, KEY)
        assert await wait is True
        assert not descriptor.lac_watchers
