"""Where parts of the storage meet: what each does right alone and two of them may do wrong together."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import MetadataUnavailableError
from bookie_server.gc.compaction import EntryLogCompactor
from bookie_server.gc.entry_log_usage import read_usage
from bookie_server.gc.garbage_collector import GarbageCollector
from bookie_server.gc.throttle import StopSignal, Throttle
from bookie_server.storage.disk.files import SyncFailedError
from bookie_server.storage.index.index import IndexFiles, IndexHeader
from tests.crash.choices import EXTREMES
from tests.crash.crashes import empty_directory
from tests.crash.disk import Disk
from tests.crash.recorder import Recorder, materialise
from tests.crash.subject import Shape, Subject, key_of, make_directories, stored as small_entry
from tests.support.bookie_settings import bookie_config
from tests.support.cluster_identity import ANY_IDENTITY
from tests.support.disk_faults import fail_at, record_at
from tests.support.failing_os import FailingOs
from tests.support.running_storage import KEY, Place, in_loop, running, stored

COLLECTOR = bookie_config(force_allow_compaction=True, compaction_entries_per_s=10**9)


class _NoZooKeeper:
    """Any request fails."""

    def __getattr__(self, name: str) -> None:
        raise MetadataUnavailableError("not in this test")


class _NoStore:
    """Metadata that cannot be reached."""

    root = "/ledgers"
    zk = _NoZooKeeper()


UNUSED_STORE = cast(LedgerStore, _NoStore())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.make(tmp_path / "bookie")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingOs:
    return FailingOs(monkeypatch)


def make_unreachable(path: Path) -> None:
    """Let every look below ``path`` end in an error that does not say "absent", as a failed disk does."""
    path.rename(path.with_name(f"{path.name}-gone"))
    path.symlink_to(path.name)


@in_loop
async def test_a_ledger_whose_disk_fails_is_not_absent(place: Place) -> None:
    async with running(place) as bookie:
        await bookie.add(stored(1, 0))
        assert await bookie.bookie.fence(1, KEY) is Code.OK
    async with running(place, clean_end=False) as bookie:
        make_unreachable(place.ledger / "0")
        assert await bookie.read((1, 0)) == [Code.IO_ERROR]
        assert await bookie.entry_ids(1) is Code.IO_ERROR
        assert await bookie.add(stored(1, 1)) == [Code.IO_ERROR]
        with pytest.raises(OSError, match="symbolic"):
            await bookie.upkeep.locations_of(1, np.array([0]))
        with pytest.raises(OSError, match="symbolic"):
            await bookie.upkeep.local_ledgers()


def test_a_file_that_cannot_be_looked_for_is_not_made_elsewhere(tmp_path: Path) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    for directory in directories:
        directory.mkdir()
    names = [str(directory) for directory in directories]
    index = IndexFiles(names, lambda: names)
    header = IndexHeader(KEY, True, None)
    one = np.array([1])
    index.write(2, header, one, one << 32)
    make_unreachable(directories[0] / "0")
    with pytest.raises(OSError, match="symbolic"):
        index.write(2, header, one, one << 33)
    assert not list(directories[1].rglob("*.idx"))
    index.close()


def test_a_part_of_a_file_that_cannot_be_removed_is_not_taken_for_the_file(tmp_path: Path, disk: FailingOs) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    for directory in directories:
        directory.mkdir()
    names = [str(directory) for directory in directories]
    index = IndexFiles(names, lambda: names)
    fail_at(disk, "ftruncate", "/a/", errno.EIO)
    disk.fail("remove", errno.EROFS)
    ids, locations = np.arange(3), np.arange(1, 4) << 32
    with suppress(OSError):
        index.write(2, IndexHeader(KEY, True, None), ids, locations)
        assert index.read_slots(2, ids).tolist() == locations.tolist()
    disk.heal()
    index.write(2, IndexHeader(KEY, True, None), ids, locations)
    assert index.read_slots(2, ids).tolist() == locations.tolist()
    index.close()


@in_loop
async def test_a_log_left_without_its_map_is_synced(tmp_path: Path, disk: FailingOs) -> None:
    """A flush fills a log; before it goes on in another directory, the first one is full."""
    place = Place.make(tmp_path / "bookie", ledgers=2, entry_log_size_limit_bytes=4096)
    async with running(place) as bookie:
        directories = bookie.storage.directories
        await bookie.add(*(stored(1, i, 1000) for i in range(6)))
        calls = record_at(disk, "fdatasync", "fsync")
        first = place.ledgers[0]

        def write(fd: int, buffers: list[bytes], offset: int) -> int:
            path = os.readlink(f"/proc/self/fd/{fd}")
            if path.startswith(first) and path.endswith(".log"):
                if offset > 1024:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if offset == 1024:
                    directories.set_writable(first, False, "full")
            return os.pwritev(fd, buffers, offset)

        disk.on("pwritev", write)
        await bookie.storage.checkpoint()
        disk.heal()
        logs = [str(path) for path in place.logs()]
        assert [os.path.dirname(path) for path in logs] == list(place.ledgers) + [place.ledgers[1]] * (len(logs) - 2)
        assert {path for _, path in calls} >= set(logs)


def test_a_compaction_that_a_kill_cut_short_is_durable_when_the_old_log_goes() -> None:
    """The index in the page cache is ahead of the disk's when the next process comes."""
    shape = Shape()
    entries = [small_entry(1, i, i - 1, bytes(20)) for i in range(5)]
    with empty_directory() as root:
        make_directories(root, shape)
        recorder = Recorder(root)

        async def record() -> None:
            subject = Subject(root, shape)
            subject.start()
            await subject.add(entries, key_of(1))
            await subject.stop()
            subject = Subject(root, shape)
            subject.start()

            async def killed() -> None:
                recorder.kill()
                raise OSError(errno.EIO, "killed")

            subject.upkeep.sync_index = killed  # type: ignore[method-assign]
            with suppress(OSError):
                await subject.compact(subject.logs_to_compact()[0])
            assert recorder.killed
            await subject.abandon()
            recorder.revive()
            subject = Subject(root, shape)
            subject.start()
            await subject.finish_compactions()
            assert await subject.read_all(1, list(range(5))) == entries
            recorder.kill()
            await subject.abandon()
            recorder.revive()

        async def look(at: Path) -> None:
            subject = Subject(at, shape)
            subject.start()
            await subject.finish_compactions()
            assert await subject.read_all(1, list(range(5))) == entries
            await subject.stop()

        with recorder.installed():
            asyncio.run(record())
        model = Disk(recorder.base, recorder.numbers)
        for operation in recorder.log:
            model.apply(operation)
        for keeps in ("nothing", "all"):
            with empty_directory() as left:
                materialise(model.image(EXTREMES[keeps]), left)
                asyncio.run(look(left))


async def blocking(function: Callable[..., Any], /, *arguments: Any) -> Any:
    return function(*arguments)


@in_loop
async def test_compaction_needs_no_room_for_what_is_in_memory(tmp_path: Path, disk: FailingOs) -> None:
    """Else a full disk could not be made emptier."""
    place = Place.make(tmp_path / "bookie")
    async with running(place) as bookie:
        await bookie.add(*(stored(1, i) for i in range(5)))
    async with running(place) as bookie:
        await bookie.add(stored(1, 5))
        fail_at(disk, "pwritev", "1.log", errno.ENOSPC)
        with pytest.raises(OSError, match="space"):
            await bookie.storage.checkpoint()
        compactor = EntryLogCompactor(
            bookie.upkeep, blocking, Throttle(0), StopSignal(), throttle_by_bytes=True, throttle_step=1 << 20
        )
        ledgers = await bookie.upkeep.local_ledgers()
        await compactor.compact(read_usage(0, bookie.upkeep.entry_log_path(0)), ledgers, full_disks=True)
        assert [path.name for path in place.logs()] == ["2.log"]
        disk.heal()
        bookie.storage.directories.set_writable(place.ledgers[0], True, "")
        assert await bookie.read(*((1, i) for i in range(6))) == [stored(1, i) for i in range(6)]


@in_loop
async def test_a_sync_that_fails_in_collection_is_the_end_of_the_storage(place: Place, disk: FailingOs) -> None:
    """A flush at the end would sync again, with success, and move the mark."""
    async with running(place) as bookie:
        await bookie.add(stored(1, 0))
        before = place.marks()
        (place.ledger / "9.log.compacting").write_bytes(b"")
        fail_at(disk, "fsync", "/ledgers", errno.EIO)
        collector = GarbageCollector(bookie.upkeep, COLLECTOR, UNUSED_STORE, ANY_IDENTITY, bookie.storage.fail)
        await collector.complete_compactions()
        await collector.stop()
        disk.heal()
        assert bookie.storage.failed
        assert [type(error) for error in bookie.failures] == [SyncFailedError]
    assert place.marks() == before


@in_loop
async def test_no_compaction_where_the_look_at_the_logs_failed(place: Place) -> None:
    """What the last pass saw may not be so any more."""
    async with running(place) as bookie:
        await bookie.add(stored(1, 0), stored(2, 0))
    async with running(place, clean_end=False) as bookie:
        collector = GarbageCollector(bookie.upkeep, COLLECTOR, UNUSED_STORE, ANY_IDENTITY, bookie.storage.fail)
        collector.start()
        await collector.run()
        before = [path.name for path in place.logs()]
        make_unreachable(place.ledger / "0")
        status = await collector.run(force_major=True)
        assert "symbolic" in status.problem
        assert status.major_count == 0
        assert [path.name for path in place.logs()] == before
        await collector.stop()


@in_loop
async def test_a_stray_name_among_index_files_does_not_stop_collection(place: Place) -> None:
    async with running(place) as bookie:
        await bookie.add(stored(1, 0), stored((1 << 63) - 1, 0))
        await bookie.storage.checkpoint()
        (place.ledger / "0" / "1" / "ffffffffffffffff.idx").write_bytes(b"")
        assert (await bookie.upkeep.local_ledgers()).tolist() == [1, (1 << 63) - 1]
