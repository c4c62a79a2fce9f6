"""The collector over a real storage: logs shrink, everything stays readable, and no pass ends the loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.codes import Code
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, Segment
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.quorum import Quorum
from bookie_server.config.collection import CompactionSettings
from bookie_server.config.config import BookieConfig
from bookie_server.gc import compaction
from bookie_server.gc.entry_log_collection import EntryLogCollection
from bookie_server.gc.entry_log_rewrite import EntryLogRewrite
from bookie_server.gc.garbage_collector import DISKS, MAJOR, MINOR, OPERATOR, GarbageCollector
from bookie_server.gc.throttle import GarbageCollectorStoppedError
from bookie_server.storage.disk import files
from tests.support.bookie_settings import bookie_config, major, minor
from tests.support.cluster_identity import joined
from tests.support.running_storage import Place, Running, in_loop, running, stored

BOOKIE = "127.0.0.1:3181"
HOUR_MS = 3_600_000
CONFIG = bookie_config(
    gc_interval_ms=HOUR_MS,
    gc_over_replicated_interval_ms=0,
    **minor(CompactionSettings(HOUR_MS, 0.2)),
    **major(CompactionSettings(2 * HOUR_MS, 0.8)),
    compaction_entries_per_s=1_000_000,
)
ENTRIES = 60
SIZE = 400


@pytest.fixture
def store(zookeeper: ZooKeeper, ledgers_root: str) -> LedgerStore:
    return LedgerStore(zookeeper, MetadataServiceUri.parse(f"zk://{zookeeper.servers}{ledgers_root}"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.make(tmp_path / "bookie", ledgers=2, entry_log_size_limit_bytes=64 * 1024)


@contextlib.asynccontextmanager
async def collecting(
    bookie: Running,
    store: LedgerStore,
    config: BookieConfig = CONFIG,
    failures: list[Exception] | None = None,
) -> AsyncIterator[GarbageCollector]:
    told = [] if failures is None else failures
    collector = GarbageCollector(bookie.upkeep, config, store, joined(store.zk, store.root, BOOKIE), told.append)
    await collector.complete_compactions()
    collector.start()
    try:
        yield collector
    finally:
        await collector.stop()
    assert failures is not None or not told


def create(store: LedgerStore, *ledger_ids: int) -> None:
    for ledger_id in ledger_ids:
        store.create(LedgerMetadata(Quorum(1, 1, 1), (Segment(0, (BOOKIE,)),)), ledger_id=ledger_id)


async def add(bookie: Running, *ledger_ids: int, first: int = 0, count: int = ENTRIES) -> None:
    """Entries of all ledgers, mixed."""
    keys = [(ledger, entry) for entry in range(first, first + count) for ledger in ledger_ids]
    assert set(await bookie.add(*(stored(*key, SIZE) for key in keys))) == {Code.OK}


async def assert_readable(bookie: Running, *ledger_ids: int, count: int = ENTRIES) -> None:
    keys = [(ledger, entry) for ledger in ledger_ids for entry in range(count)]
    assert await bookie.read(*keys) == [stored(*key, SIZE) for key in keys]


def log_bytes(place: Place) -> int:
    return sum(os.path.getsize(path) for path in place.logs())


def leftovers(place: Place) -> list[str]:
    return [name for path in place.ledgers for name in os.listdir(path) if name.endswith(("compacting", "compacted"))]


async def fill(bookie: Running, store: LedgerStore) -> None:
    """Ledgers 1 to 10 in several complete logs, of which 1, 2 and 3 will live."""
    create(store, *range(1, 11))
    for first in range(0, ENTRIES, 20):
        await add(bookie, *range(1, 11), first=first, count=20)
        await bookie.storage.checkpoint()
    create(store, 99)
    await add(bookie, 99, count=200)
    await bookie.storage.checkpoint()


@in_loop
async def test_compaction_shrinks_and_everything_stays_readable(place: Place, store: LedgerStore) -> None:
    async with running(place) as bookie, collecting(bookie, store) as collector:
        await fill(bookie, store)
        before = log_bytes(place)
        await collector.run(force_major=True)
        assert collector.counters.entry_logs_compacted == 0
        for ledger_id in range(4, 11):
            store.delete(ledger_id)
        status = await collector.run(force_major=True)
        assert status.problem == ""
        assert (status.major_count, status.minor_count) == (2, 0)
        assert status.last_major_ms == status.last_minor_ms > 0
        counters = collector.counters
        assert counters.ledgers_deleted == 7
        assert counters.entry_logs_compacted >= 2
        # What is live in the log that is being written stays there.
        assert 2 * ENTRIES <= counters.entries_moved <= 3 * ENTRIES + 200
        reclaimed = counters.reclaimed_by_compaction_bytes + counters.reclaimed_by_deletion_bytes
        assert before - log_bytes(place) == reclaimed > 0.4 * before
        assert leftovers(place) == []
        await assert_readable(bookie, 1, 2, 3)
        await assert_readable(bookie, 99, count=200)
        assert await bookie.read((4, 0)) == [Code.NO_LEDGER]
        compacted = counters.entry_logs_compacted
        await collector.run(force_major=True)
        assert counters.entry_logs_compacted == compacted
        reasons = [state.reason for state in await collector.entry_logs()]
        assert set(reasons) <= {"live 100% is not below 80%", "being written"}
    async with running(place) as again:
        await assert_readable(again, 1, 2, 3)
        await assert_readable(again, 99, count=200)


@in_loop
async def test_reads_and_adds_go_on_during_compaction(place: Place, store: LedgerStore) -> None:
    async with running(place) as bookie, collecting(bookie, store) as collector:
        await fill(bookie, store)
        for ledger_id in range(4, 11):
            store.delete(ledger_id)
        ended = asyncio.Event()

        async def read_on() -> int:
            rounds = 0
            while not ended.is_set():
                await assert_readable(bookie, 1, 2, 3)
                await asyncio.sleep(0)
                rounds += 1
            return rounds

        async def add_on() -> int:
            count = 200
            while not ended.is_set():
                await add(bookie, 99, first=count, count=20)
                count += 20
                await bookie.storage.checkpoint()
            return count

        reading, adding = asyncio.ensure_future(read_on()), asyncio.ensure_future(add_on())
        try:
            await collector.run(force_major=True)
        finally:
            ended.set()
            rounds, count = await asyncio.gather(reading, adding)
        assert collector.counters.entry_logs_compacted >= 2
        assert rounds > 0
        await assert_readable(bookie, 1, 2, 3)
        await assert_readable(bookie, 99, count=count)


@in_loop
async def test_entries_added_again_during_compaction_win(
    place: Place, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    async with running(place) as bookie, collecting(bookie, store) as collector:
        await fill(bookie, store)
        for ledger_id in range(4, 11):
            store.delete(ledger_id)
        make = compaction.make_available
        newer = stored(1, 3, SIZE, b"n")

        async def add_again() -> None:
            assert await bookie.add(newer) == [Code.OK]
            await bookie.storage.checkpoint()

        def meanwhile(marker: compaction.CompactionMarker) -> str:
            asyncio.run_coroutine_threadsafe(add_again(), loop).result(60)
            return make(marker)

        monkeypatch.setattr(compaction, "make_available", meanwhile)
        assert (await collector.run(force_major=True)).problem == ""
        assert collector.counters.entry_logs_compacted >= 2
        assert await bookie.read((1, 3)) == [newer]
    async with running(place) as again:
        assert await again.read((1, 3)) == [newer]
        await assert_readable(again, 2, 3)


@in_loop
async def test_a_kill_between_the_steps_is_finished_at_the_next_start(
    place: Place, store: LedgerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files as they are when the new log is complete, and when the index points into it."""
    killed: list[Place] = []
    async with running(place) as bookie, collecting(bookie, store) as collector:
        await fill(bookie, store)
        for ledger_id in range(4, 11):
            store.delete(ledger_id)
        link, sync_index = files.link, bookie.upkeep.sync_index

        def linked(path: str, new_path: str) -> None:
            link(path, new_path)
            if len(killed) < 2:
                killed.append(place.killed(tmp_path / f"killed{len(killed)}"))

        async def synced() -> None:
            await sync_index()
            if len(killed) < 3:
                killed.append(place.killed(tmp_path / f"killed{len(killed)}"))

        monkeypatch.setattr(files, "link", linked)
        monkeypatch.setattr(bookie.upkeep, "sync_index", synced)
        await collector.run(force_major=True)
    monkeypatch.undo()
    assert len(killed) == 3
    for copy in killed:
        assert leftovers(copy)
        async with running(copy) as bookie:
            await assert_readable(bookie, 1, 2, 3)
            async with collecting(bookie, store) as collector:
                assert leftovers(copy) == []
                await assert_readable(bookie, 1, 2, 3)
                assert (await collector.run(force_major=True)).problem == ""
            await assert_readable(bookie, 1, 2, 3)
            await assert_readable(bookie, 99, count=200)


@in_loop
async def test_stop_in_the_middle_of_a_slow_compaction(place: Place, store: LedgerStore) -> None:
    slow = replace(CONFIG, compaction_entries_per_s=2)
    async with running(place) as bookie:
        async with collecting(bookie, store, slow) as collector:
            await fill(bookie, store)
            for ledger_id in range(4, 11):
                store.delete(ledger_id)
            request = asyncio.ensure_future(collector.run(force_major=True))
            while not leftovers(place):
                await asyncio.sleep(0.01)
            assert collector.status().in_major
            begun = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - begun < 20
        with pytest.raises(GarbageCollectorStoppedError):
            await request
        assert leftovers(place) == []
        await assert_readable(bookie, 1, 2, 3)
        with pytest.raises(GarbageCollectorStoppedError):
            await collector.run()


@in_loop
async def test_an_error_in_a_pass_does_not_end_the_loop(
    place: Place, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(place) as bookie, collecting(bookie, store) as collector:
        create(store, 1)
        await add(bookie, 1, 2)

        async def fail(self: EntryLogCollection) -> None:
            raise ValueError("a mistake")

        monkeypatch.setattr(EntryLogCollection, "remove_dead", fail)
        assert (await collector.run()).problem == "a mistake"
        assert await bookie.read((2, 0)) == [Code.NO_LEDGER]
        assert collector.counters.passes.failed == 1
        monkeypatch.undo()
        assert (await collector.run()).problem == ""
        assert collector.counters.passes.done == 1


@in_loop
async def test_a_failed_sync_ends_the_bookie(place: Place, store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[Exception] = []
    async with running(place) as bookie, collecting(bookie, store, failures=failures) as collector:
        await fill(bookie, store)
        for ledger_id in range(4, 11):
            store.delete(ledger_id)

        def fail(self: EntryLogRewrite, marker_path: str) -> None:
            raise files.SyncFailedError(errno.EIO, "sync failed")

        monkeypatch.setattr(EntryLogRewrite, "complete", fail)
        with pytest.raises(GarbageCollectorStoppedError):
            await collector.run(force_major=True)
        assert [type(error) for error in failures] == [files.SyncFailedError]
        await assert_readable(bookie, 1, 2, 3)


@in_loop
async def test_passes_come_by_themselves_and_compactions_when_due(place: Place, store: LedgerStore) -> None:
    soon = replace(
        CONFIG, gc_interval_ms=20, **minor(CompactionSettings(20, 0.5)), **major(CompactionSettings(HOUR_MS, 0.8))
    )
    async with running(place) as bookie:
        await fill(bookie, store)
        for ledger_id in range(2, 11):
            store.delete(ledger_id)
        async with collecting(bookie, store, soon) as collector:
            while collector.status().minor_count < 2:
                await asyncio.sleep(0.01)
            assert collector.status().major_count == 0
            assert collector.counters.ledgers_deleted == 9
            assert collector.counters.entry_logs_compacted >= 2
            await assert_readable(bookie, 1)


@in_loop
async def test_suspended_by_disks_or_by_an_operator(place: Place, store: LedgerStore) -> None:
    async with running(place) as bookie, collecting(bookie, store) as collector:
        await fill(bookie, store)
        for ledger_id in range(4, 11):
            store.delete(ledger_id)
        collector.suspend(MAJOR, DISKS, True)
        collector.suspend(MINOR, OPERATOR, True)
        status = await collector.run(force_minor=True, force_major=True)
        assert (status.minor_count, status.major_count) == (0, 0)
        # Ledgers go nevertheless, and what is dead.
        assert collector.counters.ledgers_deleted == 7
        collector.suspend(MAJOR, OPERATOR, True)
        collector.suspend(MAJOR, DISKS, False)
        assert (await collector.run(force_major=True)).major_count == 0
        collector.suspend(MAJOR, OPERATOR, False)
        collector.force_by_disks(True)
        assert (await collector.run()).major_count >= 1
        assert collector.counters.entry_logs_compacted >= 2


@in_loop
async def test_a_compaction_that_is_off_is_forced_only_where_that_is_allowed(place: Place, store: LedgerStore) -> None:
    off = replace(CONFIG, **minor(CompactionSettings(0, 0.2)), **major(CompactionSettings(0, 0.0)))
    async with running(place) as bookie:
        async with collecting(bookie, store, off) as collector:
            assert (await collector.run(force_minor=True, force_major=True)).minor_count == 0
        async with collecting(bookie, store, replace(off, force_allow_compaction=True)) as collector:
            status = await collector.run(force_minor=True, force_major=True)
            assert (status.minor_count, status.major_count) == (1, 0)


@in_loop
async def test_requests_that_wait_are_done_as_one(place: Place, store: LedgerStore) -> None:
    async with running(place) as bookie, collecting(bookie, store) as collector:
        statuses = await asyncio.gather(
            collector.run(), collector.run(force_minor=True), collector.run(force_major=True)
        )
        assert {status.last_run_ms for status in statuses} == {statuses[0].last_run_ms}
        assert collector.counters.passes.done == 1
        assert statuses[0].major_count == 1
