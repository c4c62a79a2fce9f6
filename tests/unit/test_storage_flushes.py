"""Flushes on real files: their order, and what is read before, during and after one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from bk_spark.protocol.codes import Code
from bookie_server.storage import flush, flush_loop
from bookie_server.storage.disk.files import WouldBlockError
from bookie_server.storage.flush import Flusher
from bookie_server.storage.journal.log_mark import LogMark
from bookie_server.storage.locations import half_and_positions
from tests.support.bookie import KEY
from tests.support.disk_faults import hold_at, record_at
from tests.support.failing_os import FailingOs
from tests.support.running_storage import Place, Running, in_loop, running, stored


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.make(tmp_path / "bookie")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingOs:
    return FailingOs(monkeypatch)


@asynccontextmanager
async def flush_held(bookie: Running, disk: FailingOs, name: str, part: str) -> AsyncIterator[None]:
    """A flush that waits at a call while the block runs, and ends after it."""
    block = hold_at(disk, name, part)
    flush = asyncio.ensure_future(bookie.storage.checkpoint())
    try:
        assert await asyncio.to_thread(block.reached.wait, 60)
        yield
        assert not flush.done()
    finally:
        block.release()
        await flush


Wait = Callable[[Running], Awaitable[None]]

#: What a flush does one after another, as calls on files.
PHASES = [("pwritev", ".log"), ("fdatasync", ".log"), ("pwritev", ".idx"), ("fsync", ".idx"), ("replace", "lastMark")]


@in_loop
async def test_each_step_is_durable_before_the_next(place: Place, disk: FailingOs) -> None:
    place = place.with_settings(journal_max_bytes=100, journal_max_backups=0)
    async with running(place) as bookie:
        await bookie.add(stored(1, 0), stored(2, 0))
        await bookie.add(stored(1, 1))
        calls = record_at(disk, "pwritev", "fdatasync", "fsync", "replace", "remove")
        await bookie.storage.checkpoint()
        disk.heal()

    def places(name: str, part: str) -> list[int]:
        return [i for i, (call, path) in enumerate(calls) if call == name and part in Path(path).name]

    steps = [
        *((name, part) for name, part in PHASES[:4]),
        ("pwritev", "lastMark.tmp"),
        ("fsync", "lastMark.tmp"),
        ("replace", "lastMark"),
        ("fsync", "ledgers"),
        ("remove", ".txn"),
    ]
    after = -1
    for name, part in steps:
        found = [i for i in places(name, part) if i > after]
        assert found, (name, part, calls)
        if (name, part) != ("fsync", "ledgers"):
            assert found == places(name, part), (name, part, calls)
        after = found[-1] if part != "ledgers" else found[0]


@pytest.mark.parametrize(("name", "part"), PHASES)
@in_loop
async def test_reads_in_every_phase(place: Place, disk: FailingOs, name: str, part: str) -> None:
    old = {(ledger, i): stored(ledger, i, 70, b"o") for ledger in (1, 2) for i in range(1500)}
    second = {(ledger, i): stored(ledger, i, 80, b"s") for ledger in (1, 3) for i in range(1000, 2500)}
    newest = {(ledger, i): stored(ledger, i, 90, b"n") for ledger in (1, 4) for i in range(2000, 3000)}
    entries = old | second | newest

    async def check(bookie: Running) -> None:
        assert await bookie.read(*entries) == list(entries.values())
        for pair in ((1, 0), (1, 1200), (1, 2200), (2, 5), (3, 1000), (4, 2999)):
            answer = bookie.read_now(*pair)
            assert answer is None or answer == entries[pair]
        for ledger in (1, 2, 3, 4):
            wanted = [entries[pair] for pair in sorted(entries) if pair[0] == ledger]
            first = min(pair[1] for pair in entries if pair[0] == ledger)
            assert await bookie.batch(ledger, first) == wanted
            assert await bookie.batch(ledger, first + 400, 900) == wanted[400:1300]
            assert await bookie.entry_ids(ledger) == sorted(pair[1] for pair in entries if pair[0] == ledger)
        assert await bookie.read((1, -1), (2, -1), (1, 3000), (3, 0)) == [
            entries[1, 2999],
            entries[2, 1499],
            Code.NO_ENTRY,
            Code.NO_ENTRY,
        ]

    async with running(place) as bookie:
        await bookie.add(*old.values())
        await bookie.storage.checkpoint()
        await bookie.add(*second.values())
        async with flush_held(bookie, disk, name, part):
            await bookie.add(*newest.values())
            await check(bookie)
            if part != "lastMark":
                found = bookie.storage.lookup.locate(1, np.array([0, 1200, 2200]))
                assert found[0] > 0
                assert [half_and_positions(found[i : i + 1])[0] for i in (1, 2)] == [1, 0]
        await check(bookie)
        assert bookie.storage.lookup.locate(1, np.array([0, 1200, 2200]))[:2].min() > 0
        await bookie.storage.checkpoint()
        await check(bookie)
        assert bookie.storage.lookup.locate(1, np.array([0, 1200, 2200])).min() > 0
    async with running(place) as bookie:
        await check(bookie)


@in_loop
async def test_the_newest_copy_wins_wherever_the_others_are(place: Place, disk: FailingOs, tmp_path: Path) -> None:
    async with running(place) as bookie:
        await bookie.add(*[stored(1, i, fill=b"a") for i in range(4)])
        await bookie.storage.checkpoint()
        await bookie.add(*[stored(1, i, fill=b"b") for i in range(1, 4)])
        async with flush_held(bookie, disk, "fdatasync", ".log"):
            await bookie.add(*[stored(1, i, fill=b"c") for i in range(2, 4)])
            await bookie.add(stored(1, 3, fill=b"d"))
            wanted = [stored(1, i, fill=fill) for i, fill in enumerate((b"a", b"b", b"c", b"d"))]
            assert await bookie.read(*[(1, i) for i in range(4)]) == wanted
            assert await bookie.batch(1, 0) == wanted
            killed = place.killed(tmp_path / "killed")
        assert await bookie.read(*[(1, i) for i in range(4)]) == wanted
    for after in (place, killed):
        async with running(after) as bookie:
            assert await bookie.read(*[(1, i) for i in range(4)]) == wanted


@in_loop
async def test_entries_of_a_listing_that_reach_their_file_meanwhile(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index file is read in part, then a flush is through, then the rest is read."""
    async with running(place) as bookie:
        await bookie.add(*[stored(1, i) for i in range(10)])
        index, loop = bookie.storage.index, asyncio.get_running_loop()
        real = index.entry_ids

        def slow(ledger_id: int) -> object:
            found = real(ledger_id)
            asyncio.run_coroutine_threadsafe(bookie.storage.checkpoint(), loop).result(60)
            return found

        monkeypatch.setattr(index, "entry_ids", slow)
        assert await bookie.entry_ids(1) == list(range(10))


@in_loop
async def test_room_is_told_as_soon_as_there_is_some(place: Place, disk: FailingOs) -> None:
    """When a flush takes the full half, not when it is through: adds would wait for two flushes."""
    place = place.with_settings(write_cache_bytes=1 << 20)
    async with running(place) as bookie:
        told: list[int] = []
        bookie.bookie.on_room(lambda: told.append(bookie.bookie.excess_bytes))
        block = hold_at(disk, "fdatasync", ".log")
        assert set(await bookie.add(*[stored(1, i, 3000) for i in range(1000)])) == {Code.OK}
        assert await asyncio.to_thread(block.reached.wait, 60)
        assert told == [0]
        await bookie.add(*[stored(1, i, 3000) for i in range(1000, 2000)])
        assert bookie.bookie.excess_bytes > 1_900_000
        block.release()
        while len(told) < 2:
            await asyncio.sleep(0.01)
        assert told == [0, 0]
        assert bookie.troubles == []


async def _checkpoint(bookie: Running) -> None:
    await bookie.storage.checkpoint()


async def _remove_a_ledger(bookie: Running) -> None:
    assert bookie.upkeep.mark_ledger(2)
    await bookie.upkeep.remove_ledger(2)


async def _read_the_index(bookie: Running) -> None:
    await bookie.upkeep.locations_of(1, np.array([0]))


async def _fill_the_cache(bookie: Running) -> None:
    await bookie.add(*[stored(1, i, 50_000) for i in range(100, 160)])


async def _ask_for_new_ledgers(bookie: Running) -> None:
    bookie.storage.descriptors.unwritten = 1 << 20
    assert bookie.storage.new_ledgers_wait


@pytest.mark.parametrize(
    "who_waits", [_checkpoint, _remove_a_ledger, _read_the_index, _fill_the_cache, _ask_for_new_ledgers, None]
)
@in_loop
async def test_a_flush_takes_its_time_until_somebody_waits(
    place: Place, disk: FailingOs, monkeypatch: pytest.MonkeyPatch, who_waits: Wait | None
) -> None:
    monkeypatch.setattr(flush_loop, "_MOST_PAUSED_S", 600.0)
    place = place.with_settings(write_cache_bytes=4 << 20)
    async with running(place) as bookie:
        flusher = bookie.storage.flusher
        calls = record_at(disk, "fdatasync")
        await bookie.add(stored(2, 0))
        await bookie.add(*[stored(1, i, 50_000) for i in range(90)])

        def syncs() -> int:
            return sum(path.endswith(".log") for _, path in calls)

        while not syncs():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # a flush without pauses would be through
        assert flusher.lock.locked()
        assert syncs() == 1
        if who_waits is not None:
            async with asyncio.timeout(60):
                await who_waits(bookie)
                while not flusher.counters.flushes:
                    await asyncio.sleep(0.01)
    # The end of the bookie does not wait, either.
    assert bookie.failures == []


@in_loop
async def test_n1_a_flush_pauses_between_the_index_files_of_many_new_ledgers(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever fences thousands of unknown ledgers would have the disk and the processor all the time."""
    paused: list[float] = []

    def note(took_s: float, filled: float) -> float:
        paused.append(took_s)
        return 0.0

    monkeypatch.setattr(flush, "headers_pause_s", note)
    async with running(place.with_settings(flush_interval_ms=600_000)) as bookie:

        async def fence(first: int, count: int) -> None:
            fences = [bookie.bookie.fence(ledger_id, KEY) for ledger_id in range(first, first + count)]
            assert set(await asyncio.gather(*fences)) == {Code.OK}
            await bookie.storage.checkpoint()

        await fence(0, 15)
        assert not paused
        await fence(100, 100)
        assert len(paused) == 6
        assert sorted(bookie.storage.index.ledger_ids().tolist()) == [*range(15), *range(100, 200)]
        bookie.storage.flusher.end_pauses()
        await fence(200, 100)
        assert len(paused) == 6


@in_loop
async def test_a_cancelled_checkpoint_leaves_nothing_half_done(place: Place, disk: FailingOs) -> None:
    async with running(place) as bookie:
        await bookie.add(stored(1, 0))
        block = hold_at(disk, "fdatasync", ".log")
        flush = asyncio.ensure_future(bookie.storage.checkpoint())
        assert await asyncio.to_thread(block.reached.wait, 60)
        flush.cancel()
        another = asyncio.ensure_future(bookie.storage.checkpoint())
        await asyncio.sleep(0)
        assert not flush.done()  # the thread works; nobody may come between
        block.release()
        with pytest.raises(asyncio.CancelledError):
            await flush
        await another
        assert bookie.storage.lookup.locate(1, np.array([0]))[0] > 0
        assert await bookie.read((1, 0)) == [stored(1, 0)]
        assert len(place.logs()) == 1


@in_loop
async def test_a_sync_that_fails_after_its_checkpoint_was_cancelled(place: Place, disk: FailingOs) -> None:
    async with running(place, clean_end=False) as bookie:
        await bookie.add(stored(1, 0))
        block = hold_at(disk, "fdatasync", ".log")
        flush = asyncio.ensure_future(bookie.storage.checkpoint())
        assert await asyncio.to_thread(block.reached.wait, 60)
        flush.cancel()
        block.release(error=5)
        with pytest.raises(OSError, match="sync failed"):
            await flush
        assert len(bookie.failures) == 1


@in_loop
async def test_more_cold_pages_than_memory_holds(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that never says what is in its page cache."""
    place = place.with_settings(index_cache_bytes=1)
    ids = [i * 1024 + 1023 for i in range(200)]
    async with running(place) as bookie:
        await bookie.add(*[stored(1, i) for i in ids])
    async with running(place) as bookie:
        index = bookie.storage.index
        real, cold = index.read_page, 0

        def read_page(ledger_id: int, number: int, *, may_wait: bool) -> bytes:
            nonlocal cold
            if not may_wait:
                cold += 1
                raise WouldBlockError
            return real(ledger_id, number, may_wait=True)

        monkeypatch.setattr(index, "read_page", read_page)
        assert await bookie.read(*[(1, i) for i in ids]) == [stored(1, i) for i in ids]
        assert cold > 400


@in_loop
async def test_a_mark_never_goes_back(tmp_path: Path) -> None:
    """Each journal's mark takes part only if it is newer: files below the older one may have been removed."""
    place = Place.make(tmp_path / "bookie", journals=2, ledgers=2)
    removed: list[list[LogMark]] = []
    async with running(place) as bookie:
        storage, newest, older = bookie.storage, LogMark(1 << 50, 1024), LogMark(1 << 50, 512)
        durable = [newest, older]

        async def sync_journals() -> None:
            synced: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            assert not storage.journals.sync_written(synced.set_result) or await synced

        flusher = Flusher(
            directories=storage.directories,
            write_cache=storage.write_cache,
            cache=storage.cache,
            descriptors=storage.descriptors,
            index=storage.index,
            entry_log_writer=storage.entry_log_writer,
            entry_limit=storage.entry_limit,
            last_marks=place.marks(),
            sync_journals=sync_journals,
            durable_marks=lambda: list(durable),
            remove_journals=lambda marks: removed.append(list(marks)),
            release_logs=lambda entry_log_ids: None,
            executor=storage.executor,
        )
        await flusher.run()
        assert flusher.last_marks == place.marks() == [newest, older]
        durable[:] = [older, newest]
        await flusher.run()
        assert flusher.last_marks == place.marks() == [newest, newest]
        durable[:] = [LogMark(1, 1 << 40), older]
        flusher.run_blocking()
        assert flusher.last_marks == place.marks() == [newest, newest]
        assert removed == [[newest, older], [newest, newest]]
