"""What garbage collection does to the storage: ledgers that go and come again, entries that move, logs that go."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.codes import Code
from bookie_server.storage.deleted_ledgers import DeletedLedgers
from bookie_server.storage.disk import removal
from bookie_server.storage.disk.files import WouldBlockError
from bookie_server.storage.entrylog import entry_log, entry_log_reader
from tests.support.disk_faults import fail_at, hold_at
from tests.support.failing_os import FailingOs
from tests.support.running_storage import KEY, OTHER_KEY, Place, Running, delete_ledger, in_loop, running, stored


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.make(tmp_path / "bookie")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingOs:
    return FailingOs(monkeypatch)


@asynccontextmanager
async def held(work: asyncio.Future[None], disk: FailingOs, name: str, part: str) -> AsyncIterator[None]:
    """``work``, which waits at a call while the block runs, and ends after it."""
    block = hold_at(disk, name, part)
    try:
        assert await asyncio.to_thread(block.reached.wait, 60)
        yield
        assert not work.done()
    finally:
        block.release()
        await work


async def ledgers(bookie: Running) -> list[int]:
    found: list[int] = (await bookie.upkeep.local_ledgers()).tolist()
    return found


# --- deleting ledgers ------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["memory", "disk", "both"])
@in_loop
async def test_a_deleted_ledger_is_gone_and_the_others_stay(place: Place, where: str) -> None:
    async with running(place) as bookie:
        await bookie.add(stored(1, 0), stored(2, 0), stored(1, 5000))
        if where != "memory":
            await bookie.storage.checkpoint()
            assert await bookie.read((1, 0), (1, 5000)) == [stored(1, 0), stored(1, 5000)]
        if where == "both":
            await bookie.add(stored(1, 1))
        assert await ledgers(bookie) == [1, 2]
        await delete_ledger(bookie.upkeep, 1)
        await delete_ledger(bookie.upkeep, 77)
        await bookie.upkeep.sync_deletions()
        assert await ledgers(bookie) == [2]
        assert bookie.upkeep.index_path(1) is None
        assert await bookie.read((1, 0), (2, 0)) == [Code.NO_LEDGER, stored(2, 0)]
        assert await bookie.entry_ids(1) is Code.NO_LEDGER
        assert await bookie.add(stored(1, 3), key=OTHER_KEY) == [Code.OK]
        assert await bookie.read((1, 0), (1, 3), (1, 5000)) == [Code.NO_ENTRY, stored(1, 3), Code.NO_ENTRY]
    async with running(place) as bookie:
        assert await bookie.read((1, 0), (1, 3), (2, 0)) == [Code.NO_ENTRY, stored(1, 3), stored(2, 0)]


@in_loop
async def test_deletion_waits_for_adds_under_way_and_takes_no_more(place: Place, disk: FailingOs) -> None:
    async with running(place) as bookie:
        await bookie.add(stored(1, 0), stored(2, 0))
        block = hold_at(disk, "fdatasync", ".txn")
        add = asyncio.ensure_future(bookie.add(stored(1, 1)))
        assert await asyncio.to_thread(block.reached.wait, 60)
        deletion = asyncio.ensure_future(delete_ledger(bookie.upkeep, 1))
        await asyncio.sleep(0)
        assert await bookie.add(stored(1, 2), stored(1, 3)) == [Code.IO_ERROR] * 2
        assert await bookie.bookie.fence(1, KEY) is Code.IO_ERROR
        assert bookie.read_now(1, 0) == stored(1, 0)
        assert not deletion.done()
        block.release()
        assert await add == [Code.OK]
        await deletion
        assert await bookie.read((1, 0), (1, 1)) == [Code.NO_LEDGER] * 2
        assert 1 not in bookie.storage.write_cache


@in_loop
async def test_a_handle_that_is_being_deleted_is_not_swept(place: Place, disk: FailingOs) -> None:
    """Else the ledger would be read from its file again, and take what is lost with it."""
    place = place.with_settings(descriptor_limit=4)
    async with running(place) as bookie:
        await bookie.add(stored(1, 0))
        await bookie.storage.checkpoint()
        deletion = asyncio.ensure_future(delete_ledger(bookie.upkeep, 1))
        async with held(deletion, disk, "remove", "1.idx"):
            for ledger in range(10, 40):
                await bookie.add(stored(ledger, 0))
                assert await bookie.add(stored(1, 1)) == [Code.IO_ERROR]
        assert await bookie.add(stored(1, 1)) == [Code.OK]
        await bookie.storage.checkpoint()
        assert await bookie.read((1, 1), (39, 0)) == [stored(1, 1), stored(39, 0)]


@in_loop
async def test_deletion_while_a_failed_flush_is_held(place: Place, disk: FailingOs) -> None:
    """The ledger leaves what is to be tried again, which does not bring it back."""
    async with running(place) as bookie:
        await bookie.add(stored(1, 0), stored(2, 0), stored(3, 0))
        for failing in (("pwritev", ".log"), ("open", "2.idx")):
            fail_at(disk, *failing)
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                await bookie.storage.checkpoint()
            bookie.storage.directories.set_writable(str(place.ledger), True, "")
            disk.heal()
            await delete_ledger(bookie.upkeep, 1)
        assert await bookie.read((1, 0), (2, 0)) == [Code.NO_LEDGER, stored(2, 0)]
        assert await bookie.add(stored(1, 7)) == [Code.READ_ONLY]
        await bookie.storage.checkpoint()
        assert bookie.upkeep.index_path(1) is None
        assert await ledgers(bookie) == [2, 3]
        assert await bookie.add(stored(1, 7), key=OTHER_KEY) == [Code.OK]
        await bookie.storage.checkpoint()
    async with running(place) as bookie:
        assert await bookie.read((1, 0), (1, 7), (2, 0), (3, 0)) == [
            Code.NO_ENTRY,
            stored(1, 7),
            stored(2, 0),
            stored(3, 0),
        ]


@in_loop
async def test_a_failed_deletion_leaves_the_ledger(place: Place, disk: FailingOs) -> None:
    async with running(place) as bookie:
        await bookie.add(stored(1, 0))
        await bookie.storage.checkpoint()
        fail_at(disk, "remove", "1.idx")
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            await delete_ledger(bookie.upkeep, 1)
        assert await bookie.read((1, 0)) == [stored(1, 0)]
        assert await bookie.add(stored(1, 1)) == [Code.OK]
        disk.heal()
        await delete_ledger(bookie.upkeep, 1)
        assert await ledgers(bookie) == []


@in_loop
async def test_a_ledger_with_a_broken_header_can_be_deleted(place: Place, disk: FailingOs) -> None:
    async with running(place) as bookie:
        await bookie.add(stored(1, 0))
    index = place.ledger / "0" / "1" / "1.idx"
    index.write_bytes(b"garbage!" + index.read_bytes()[8:])
    async with running(place) as bookie:
        assert await bookie.read((1, 0)) == [Code.IO_ERROR]
        assert await ledgers(bookie) == [1]
        fail_at(disk, "remove", "1.idx")
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            await delete_ledger(bookie.upkeep, 1)
        assert await bookie.add(stored(1, 1)) == [Code.IO_ERROR]
        disk.heal()
        deletion = asyncio.ensure_future(delete_ledger(bookie.upkeep, 1))
        async with held(deletion, disk, "remove", "1.idx"):
            assert await bookie.add(stored(1, 1), recovery=True) == [Code.IO_ERROR]
        assert await ledgers(bookie) == []
        # It may have been fenced.
        assert await bookie.add(stored(1, 1)) == [Code.FENCED]
        assert await bookie.add(stored(1, 1), recovery=True) == [Code.OK]


@in_loop
async def test_long_polls_end_with_their_ledger(place: Place) -> None:
    async with running(place) as bookie:
        await bookie.add(stored(1, 0))
        await bookie.bookie.fence(1, KEY)
        descriptor = bookie.storage.descriptors.get(1)
        assert descriptor is not None
        seen: list[int] = []
        descriptor.watch_lac(1 << 40, lambda: seen.append(1))
        await delete_ledger(bookie.upkeep, 1)
        assert seen == [1]


# --- ledgers that come again (C12, C15) ------------------------------------------------------------


@in_loop
async def test_c12_a_fenced_ledger_that_was_deleted_does_not_come_again_for_its_writer(place: Place) -> None:
    async with running(place) as bookie:
        await bookie.add(stored(1, 0), stored(2, 0))
        assert await bookie.bookie.fence(1, KEY) is Code.OK
        await delete_ledger(bookie.upkeep, 1)
        await delete_ledger(bookie.upkeep, 2)
        assert await bookie.add(stored(1, 1), stored(2, 1), stored(3, 1)) == [Code.FENCED, Code.OK, Code.OK]
        assert await bookie.bookie.fence(1, KEY) is Code.NO_LEDGER
        assert await bookie.bookie.write_lac(stored(1, 0)[:16] + b"digest", KEY) is Code.NO_LEDGER
        assert await bookie.read((1, 0), (1, 1)) == [Code.NO_LEDGER] * 2
        assert await ledgers(bookie) == [2, 3]


@pytest.mark.parametrize("restart", [False, True])
@in_loop
async def test_c15_recovery_brings_a_deleted_ledger_again_and_it_is_fenced(place: Place, restart: bool) -> None:
    async with running(place) as bookie:
        await bookie.add(stored(1, 0))
        await bookie.bookie.fence(1, KEY)
        await delete_ledger(bookie.upkeep, 1)
        assert await bookie.add(stored(1, 1), recovery=True) == [Code.OK]
        killed = place.killed(place.root.parent / "killed")
        if not restart:
            assert await bookie.add(stored(1, 2)) == [Code.FENCED]
            assert await bookie.add(stored(1, 2), recovery=True) == [Code.OK]
            assert await bookie.read((1, 1), (1, 2)) == [stored(1, 1), stored(1, 2)]
    if restart:
        async with running(killed) as bookie:
            assert await bookie.add(stored(1, 2)) == [Code.FENCED]
            assert await bookie.read((1, 1)) == [stored(1, 1)]


@in_loop
async def test_c15_where_the_recovery_add_fails_the_writer_is_still_refused(place: Place, disk: FailingOs) -> None:
    async with running(place) as bookie:
        await bookie.add(stored(1, 0))
        await bookie.bookie.fence(1, KEY)
        await delete_ledger(bookie.upkeep, 1)
        fail_at(disk, "pwritev", ".txn", errno.ENOSPC)
        assert await bookie.add(stored(1, 1), recovery=True) == [Code.IO_ERROR]
        disk.heal()
        bookie.state.clear("journal")
        assert await bookie.add(stored(1, 1)) == [Code.FENCED]
        assert await bookie.read((1, 1)) == [Code.NO_LEDGER]
        assert await bookie.add(stored(1, 1), recovery=True) == [Code.OK]
        assert await bookie.add(stored(1, 2)) == [Code.FENCED]


def test_deleted_ledgers_are_remembered_for_seven_days_and_not_without_end() -> None:
    now = 0.0
    deleted = DeletedLedgers(most=3, clock=lambda: now)
    for ledger in (1, 2, 3, 1, 4):
        deleted.note(ledger)
    assert [ledger in deleted for ledger in (1, 2, 3, 4)] == [True, False, True, True]
    deleted.forget(3)
    now = 7 * 24 * 3600 - 1
    assert [ledger in deleted for ledger in (1, 3, 4)] == [True, False, True]
    now += 1
    assert 1 not in deleted


# --- moving entries and removing logs --------------------------------------------------------------


async def compacted(bookie: Running, entry_log_id: int, ledger_id: int, entry_ids: Int64s) -> tuple[Int64s, Int64s]:
    """Copies a log whole, as compaction would; (old, new) locations."""
    old = await bookie.upkeep.locations_of(ledger_id, entry_ids)
    assert set((old >> 32).tolist()) == {entry_log_id}
    new_id = await asyncio.to_thread(bookie.upkeep.allocate_entry_log_id)
    path = bookie.upkeep.entry_log_path(entry_log_id)
    shutil.copy(path, os.path.join(os.path.dirname(path), entry_log.file_name(new_id)))
    return old, old + ((new_id - entry_log_id) << 32)


@in_loop
async def test_reads_go_on_while_entries_move(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place = place.with_settings(entry_log_size_limit_bytes=40_000)
    ids = np.arange(500)
    entries = [stored(1, i, 100) for i in range(500)]
    async with running(place) as bookie:
        await bookie.add(*entries)
        await bookie.storage.checkpoint()
        assert bookie.upkeep.entry_logs_being_written() == {1}
        assert bookie.upkeep.entry_log_ids() == [0, 1]
        first = ids[(await bookie.upkeep.locations_of(1, ids)) >> 32 == 0]
        assert 300 < len(first) < 500
        old, new = await compacted(bookie, 0, 1, first)
        await bookie.add(stored(1, 7, 100, b"n"))
        await bookie.storage.checkpoint()
        entries[7] = stored(1, 7, 100, b"n")

        reader = bookie.storage.reader
        real, waiting, go_on = reader.read, threading.Event(), threading.Event()

        def read(*arguments: Any, at_once_bytes: int | None, room: object) -> Any:
            """Waits with the locations that were looked up."""
            if at_once_bytes is not None:
                raise WouldBlockError
            waiting.set()
            assert go_on.wait(60)
            return real(*arguments, at_once_bytes=None)

        monkeypatch.setattr(reader, "read", read)
        reads = [
            asyncio.ensure_future(bookie.read(*[(1, i) for i in range(500)])),
            asyncio.ensure_future(bookie.batch(1, 0)),
        ]
        assert await asyncio.to_thread(waiting.wait, 60)
        assert await bookie.upkeep.replace_locations(1, first, old, new) == len(first) - 1
        await bookie.upkeep.sync_index()
        await bookie.upkeep.remove_entry_log(0)
        go_on.set()
        assert await asyncio.gather(*reads) == [entries, entries]
        monkeypatch.setattr(reader, "read", real)
        assert bookie.upkeep.entry_log_ids() == [1, 2]
        assert await bookie.read(*[(1, i) for i in range(500)]) == entries
        assert await bookie.batch(1, 0) == entries
    async with running(place) as bookie:
        assert await bookie.batch(1, 0) == entries


class _HeldReads:
    """``os``, whose reads from the disk wait."""

    def __init__(self) -> None:
        self.waiting, self.go_on = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def preadv(self, fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError(errno.EAGAIN, "not in the page cache")
        self.waiting.set()
        assert self.go_on.wait(60)
        return os.preadv(fd, buffers, offset)


@in_loop
async def test_a_read_that_has_opened_an_entry_log_ends_after_its_removal(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "_STEP_BYTES", 256)
    entries = [stored(1, i, 100) for i in range(300)]
    held = _HeldReads()
    async with running(place.with_settings(entry_log_size_limit_bytes=20_000)) as bookie:
        await bookie.add(*entries)
        await bookie.storage.checkpoint()
        monkeypatch.setattr(entry_log_reader, "os", held)
        reading = asyncio.ensure_future(bookie.read(*[(1, i) for i in range(100)]))
        assert await asyncio.to_thread(held.waiting.wait, 60)
        await bookie.upkeep.remove_entry_log(0)
        held.go_on.set()
        assert await reading == entries[:100]


@in_loop
async def test_a_cancelled_removal_of_an_entry_log_keeps_no_descriptor(
    place: Place, disk: FailingOs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks of a file without a name are free when nobody has it open."""
    monkeypatch.setattr(removal, "_STEP_BYTES", 256)
    async with running(place.with_settings(entry_log_size_limit_bytes=20_000)) as bookie:
        await bookie.add(*[stored(1, i, 100) for i in range(600)])
        await bookie.storage.checkpoint()
        block = disk.block("ftruncate")
        first = asyncio.ensure_future(bookie.upkeep.remove_entry_log(0))
        assert await asyncio.to_thread(block.reached.wait, 60)
        second = asyncio.ensure_future(bookie.upkeep.remove_entry_log(1))
        # It uses the same thread, so the name of the second has gone then.
        await asyncio.sleep(0)
        await bookie.upkeep.locations_of(1, np.arange(1))
        assert not second.done()
        second.cancel()
        await asyncio.wait([second])
        block.release()
        await first
        async with asyncio.timeout(60):
            while any("/1.log (deleted)" in name for name in _open_files()):
                await asyncio.sleep(0.01)


def _open_files() -> list[str]:
    names = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the directory
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
    return names


@in_loop
async def test_moves_that_a_crash_takes_back(place: Place, tmp_path: Path) -> None:
    """Without a checkpoint the old log must still be there, and with it everything is read."""
    ids = np.arange(20)
    async with running(place) as bookie:
        await bookie.add(*[stored(1, i) for i in range(20)])
    async with running(place) as bookie:
        assert bookie.upkeep.entry_logs_being_written() == {-1}
        old, new = await compacted(bookie, 0, 1, ids)
        assert await bookie.batch(1, 0) == [stored(1, i) for i in range(20)]
        assert await bookie.upkeep.replace_locations(1, ids, old, new) == 20
        assert await bookie.upkeep.replace_locations(1, ids, old, new) == 0
        assert await bookie.upkeep.replace_locations(1, ids[:0], old[:0], new[:0]) == 0
        assert (await bookie.upkeep.locations_of(1, np.array([3, 19, 20]))).tolist() == [*new[[3, 19]].tolist(), 0]
        assert await bookie.batch(1, 0) == [stored(1, i) for i in range(20)]
        assert bookie.storage.lookup.locate(1, ids).tolist() == new.tolist()


@in_loop
async def test_logs_of_a_failed_flush_are_not_touched(place: Place, disk: FailingOs) -> None:
    """The index does not know them, but it will."""
    place = place.with_settings(entry_log_size_limit_bytes=4096)
    async with running(place) as bookie:
        await bookie.add(*[stored(1, i, 1000) for i in range(10)])
        fail_at(disk, "open", "1.idx")
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            await bookie.storage.checkpoint()
        logs = set(bookie.upkeep.entry_log_ids())
        assert len(logs) > 3
        assert bookie.upkeep.entry_logs_being_written() >= logs
        disk.heal()
        await bookie.storage.checkpoint()
        assert bookie.upkeep.entry_logs_being_written() == {max(logs)}
        assert set(bookie.upkeep.entry_log_ids()) == logs


@in_loop
async def test_a_ledger_that_gets_its_file_while_files_are_listed_is_not_missed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its descriptor leaves memory before the listing is through. Logs of a ledger that is missed would be removed."""
    async with running(place) as bookie:
        await bookie.add(stored(1, 0))
        index, loop = bookie.storage.index, asyncio.get_running_loop()
        real = index.ledger_ids

        def ledger_ids() -> Int64s:
            found = real()
            asyncio.run_coroutine_threadsafe(bookie.storage.checkpoint(), loop).result(60)
            bookie.storage.descriptors.drop(1)
            return found

        monkeypatch.setattr(index, "ledger_ids", ledger_ids)
        assert await ledgers(bookie) == [1]
