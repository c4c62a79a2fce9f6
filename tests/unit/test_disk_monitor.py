"""Which directories are full or have failed, and what follows for the bookie (compatibility.md §5.10)."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.config.config import BookieConfig
from bookie_server.disks.disk_monitor import CollectorHooks, DiskMonitor
from bookie_server.disks.disk_probe import DiskProber, DiskUsage, check_disk
from bookie_server.state import DISK, JOURNAL, STORAGE, BookieState
from bookie_server.storage.disk.directories import LedgerDirectories

_MIB = 1024 * 1024
_URI = MetadataServiceUri.parse("zk://localhost/ledgers")


class Disks:
    """Directories with disks that are as full as told."""

    def __init__(self, *, journals: int = 1, ledgers: int = 2, indexes: int = 0, **settings: Any) -> None:
        self.journal_paths = [f"/j{i}/current" for i in range(journals)]
        self.ledger_paths = [f"/l{i}/current" for i in range(ledgers)]
        self.index_paths = [f"/i{i}/current" for i in range(indexes)]
        paths = self.journal_paths + self.ledger_paths + self.index_paths
        #: Percent used, or what a look raises.
        self.used: dict[str, float | OSError] = dict.fromkeys(paths, 50.0)
        self.total_bytes = 1000 * _MIB
        self.unwritable: set[str] = set()
        self.no_room: set[str] = set()
        self.writes: list[str] = []
        self.state = BookieState()
        self.directories = LedgerDirectories(self.ledger_paths, self.index_paths)
        self.hooked: list[tuple[str, bool]] = []
        self.journal_failed = False
        self.flushes = 0
        settings = {"journal_preallocate_bytes": _MIB, "journal_max_memory_bytes": 9 * _MIB, **settings}
        self.config = BookieConfig(_URI, "b:1", "h", "h", **settings)
        self.monitor = DiskMonitor(
            self.config,
            self.directories,
            self.journal_paths,
            self.state,
            flush=self._flush,
            probe_journals=self._probe_journals,
            prober=DiskProber(5000, self._look),
        )

    def _look(self, path: str, write: bool) -> DiskUsage:
        found = self.used[path]
        if isinstance(found, OSError):
            raise found
        if write:
            self.writes.append(path)
            if path in self.unwritable:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            if path in self.no_room:
                return DiskUsage(0, self.total_bytes, hash(path))
        return DiskUsage(round(self.total_bytes * (100 - found) / 100), self.total_bytes, hash(path))

    async def _flush(self) -> None:
        self.flushes += 1
        if self.unwritable:
            raise OSError(errno.EIO, "Input/output error")
        self.state.clear(STORAGE)

    def _probe_journals(self, done: Callable[[bool], None]) -> bool:
        asyncio.get_running_loop().call_soon(done, not self.journal_failed)
        return True

    def hook(self) -> None:
        def noting(name: str) -> Callable[[bool], None]:
            return lambda value: self.hooked.append((name, value))

        self.monitor.set_hooks(CollectorHooks(noting("minor"), noting("major"), noting("force")))

    def check(self, **used: float | OSError) -> None:
        """Look, with the disks used as said: ``l0=96``."""
        for name, value in used.items():
            self.used[f"/{name}/current"] = value

        async def check() -> None:
            await self.monitor.check()
            await self.monitor.stop()

        asyncio.run(check())


def test_a_disk_above_the_threshold_is_full_and_one_at_it_is_not() -> None:
    disks = Disks(ledgers=1)
    disks.check(l0=95)
    assert not disks.state.read_only
    assert disks.directories.writable() == ["/l0/current"]
    disks.check(l0=95.1)
    assert disks.state.reasons == {DISK: "/l0/current: full: 95.1% used"}
    assert disks.directories.writable() == []
    assert disks.directories.failures() == {"/l0/current": "full: 95.1% used"}
    disks.check(l0=95)
    assert disks.state.read_only, "not below the low-water mark yet"
    disks.check(l0=94.9)
    assert not disks.state.read_only
    assert disks.directories.writable() == ["/l0/current"]


@pytest.mark.parametrize("any_full", [True, False])
def test_one_full_disk_of_two(any_full: bool) -> None:
    disks = Disks(read_only_on_any_disk_full=any_full)
    disks.check(l1=99)
    assert disks.state.read_only is any_full
    assert disks.directories.writable() == ["/l0/current"]
    disks.check(l0=99)
    assert disks.state.read_only
    assert disks.directories.writable() == []
    assert "/l0/current" in disks.state.reasons[DISK]
    assert "/l1/current" in disks.state.reasons[DISK]


def test_after_all_were_full_all_together_must_be_below_the_low_water_mark() -> None:
    disks = Disks(disk_usage_low_water_mark=0.90, read_only_on_any_disk_full=False)
    disks.check(l0=96, l1=98)
    disks.check(l0=84, l1=98)
    assert disks.state.read_only, "91 % of both"
    disks.check(l0=80, l1=98)
    assert not disks.state.read_only, "89 % of both"
    assert disks.directories.writable() == ["/l0/current"]
    # With one that is good the mark does not count.
    disks.check(l1=94)
    assert disks.directories.writable() == ["/l0/current", "/l1/current"]


def test_full_disks_take_what_was_accepted_as_long_as_there_is_room() -> None:
    disks = Disks(min_usable_entry_log_bytes=20 * _MIB)
    disks.check(l0=97, l1=99)
    assert disks.state.read_only
    assert disks.directories.writable() == ["/l0/current"]
    disks.check(l0=99)
    assert disks.directories.writable() == []
    # Where another disk is good, a full one takes nothing.
    disks.check(l0=97, l1=50)
    assert disks.directories.writable() == ["/l1/current"]


def test_adds_of_high_priority_go_on_while_a_full_disk_has_room() -> None:
    disks = Disks(ledgers=1, min_usable_high_priority_bytes=20 * _MIB)
    disks.check(l0=97)
    assert not disks.state.may_add(False)
    assert disks.state.may_add(True)
    disks.check(l0=98)
    assert not disks.state.may_add(True)
    disks.check(l0=50)
    assert disks.state.may_add(True)


def test_index_directories_have_a_fullness_of_their_own() -> None:
    disks = Disks(ledgers=1, indexes=2, read_only_on_any_disk_full=False)
    disks.check(i0=99)
    assert not disks.state.read_only
    assert disks.directories.writable_index() == ["/i1/current"]
    disks.check(i1=99)
    assert disks.state.reasons[DISK].startswith("/i0/current: full")
    assert disks.directories.writable() == ["/l0/current"]


def test_compaction_is_suspended_by_full_disks() -> None:
    disks = Disks(ledgers=1, disk_usage_warn_threshold=0.90)
    disks.hook()
    disks.check(l0=50)
    assert disks.hooked == []
    disks.check(l0=91)
    assert disks.hooked == [("major", True)]
    disks.check(l0=96)
    assert disks.hooked == [("major", True), ("minor", True)]
    disks.check(l0=97)
    disks.check(l0=91)
    disks.check(l0=50)
    assert disks.hooked[2:] == [("minor", False), ("major", False)]


def test_disks_that_are_almost_full_force_collections_where_that_is_allowed() -> None:
    disks = Disks(ledgers=1, force_gc_when_no_space=True)
    disks.check(l0=96)
    disks.hook()
    assert disks.hooked == [("force", True)], "told at once what was found before"
    disks.check(l0=50)
    assert disks.hooked == [("force", True), ("force", False)]


def test_a_directory_that_fails_counts_as_full_with_its_reason() -> None:
    disks = Disks()
    disks.check(l1=OSError(errno.EIO, "Input/output error"))
    assert disks.state.reasons == {DISK: "/l1/current: failed: Input/output error"}
    assert disks.directories.writable() == ["/l0/current"]
    disks.check(l1=50)
    assert not disks.state.read_only
    assert disks.writes == ["/l1/current"], "a directory that failed is good when a file was written there"


def test_a_failed_write_is_forgotten_when_a_file_can_be_written() -> None:
    disks = Disks()
    disks.check()
    disks.directories.note_failed("/l0/current", OSError(errno.EIO, "Input/output error"))
    disks.unwritable.add("/l0/current")
    for _ in range(2):
        disks.check()
        assert disks.directories.failures() == {"/l0/current": "failed: Input/output error"}
    disks.unwritable.clear()
    disks.check()
    assert disks.directories.failures() == {}
    assert disks.writes == ["/l0/current"] * 3
    disks.check()
    assert len(disks.writes) == 3


def test_a_write_that_fails_during_the_look_is_for_the_next_one() -> None:
    disks = Disks()
    disks.check()

    async def fail_meanwhile() -> None:
        check = asyncio.create_task(disks.monitor.check())
        await asyncio.sleep(0)
        disks.directories.note_failed("/l0/current", OSError(errno.ENOSPC, "No space left on device"))
        disks.state.set_read_only(JOURNAL, "cannot be written")
        await check

    asyncio.run(fail_meanwhile())
    assert disks.directories.writable() == ["/l1/current"]
    assert JOURNAL in disks.state.reasons
    disks.check()
    assert disks.directories.writable() == ["/l0/current", "/l1/current"]
    assert not disks.state.read_only


def test_a_journal_directory_needs_room_for_what_may_come() -> None:
    disks = Disks(journals=2)
    disks.check(j1=99)  # 10 MiB of 1000, just enough
    assert not disks.state.read_only
    disks.check(j1=99.1)
    assert disks.state.reasons[JOURNAL].startswith("journal directory /j1/current: 9437184 bytes left")
    assert not disks.state.may_add(True)
    disks.check(j1=99)
    assert disks.state.read_only, "twice as much is needed to come back"
    disks.check(j1=98)
    assert not disks.state.read_only


def test_a_journal_that_failed_is_good_when_it_can_be_written_itself() -> None:
    disks = Disks()
    disks.check()
    disks.state.set_read_only(JOURNAL, "a journal cannot be written: No space left on device")
    disks.journal_failed = True
    disks.check()
    assert disks.state.read_only
    disks.journal_failed = False
    disks.check()
    assert not disks.state.read_only


def test_a_flush_that_failed_is_tried_when_a_directory_takes_files() -> None:
    disks = Disks()
    disks.check(l0=99, l1=99)
    disks.state.set_read_only(STORAGE, "entries cannot be written")
    disks.unwritable.add("/l0/current")
    disks.check()
    assert disks.flushes == 1, "a directory is called full long before it is"
    disks.check(l0=50, l1=50)
    assert disks.flushes == 2
    assert disks.state.reasons == {STORAGE: "entries cannot be written"}, "the storage says itself that it succeeded"
    disks.unwritable.clear()
    disks.check()
    assert disks.flushes == 3
    assert not disks.state.read_only
    disks.check()
    assert disks.flushes == 3


def test_free_space_counts_each_disk_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    monitor = DiskMonitor(
        BookieConfig(_URI, "b:1", "h", "h"),
        LedgerDirectories(paths),
        [paths[0]],
        BookieState(),
        flush=lambda: asyncio.sleep(0),
        probe_journals=lambda _: False,
    )

    async def look() -> tuple[int, int]:
        await monitor.check()
        found = monitor.space()
        assert found is not None
        return found

    free, total = asyncio.run(look())
    found = os.statvfs(tmp_path)
    assert total == found.f_blocks * found.f_frsize
    assert 0 < free <= total
    assert monitor.used(paths[0]) == pytest.approx(1 - free / total, abs=0.01)


def test_real_directories_that_are_gone_or_no_directories(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        check_disk(str(tmp_path / "gone"), False)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        check_disk(str(tmp_path / "file"), False)
    assert check_disk(str(tmp_path), True).total_bytes > 0
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "the file written to try is gone"


def test_a_disk_that_hangs_hangs_nobody() -> None:
    released = threading.Event()
    looks: list[str] = []

    def look(path: str, _write: bool) -> DiskUsage:
        looks.append(path)
        if path == "/hangs":
            released.wait()
        return DiskUsage(1, 2)

    async def probe() -> None:
        prober = DiskProber(500, look)
        answers = await asyncio.gather(prober.probe("/hangs", write=False), prober.probe("/works", write=False))
        assert isinstance(answers[0], TimeoutError)
        assert answers[1] == DiskUsage(1, 2)
        assert isinstance(await prober.probe("/hangs", write=False), TimeoutError)
        assert looks.count("/hangs") == 1, "no second thread for the same disk"
        released.set()
        while isinstance(answer := await prober.probe("/hangs", write=False), OSError):
            await asyncio.sleep(0)  # its thread answers in the event loop
        assert answer == DiskUsage(1, 2)

    asyncio.run(probe())


def test_a_directory_without_room_for_a_file_is_full_whatever_the_file_system_says() -> None:
    """Such as where a quota is used up."""
    disks = Disks(ledgers=1)
    disks.check()
    disks.directories.note_failed("/l0/current", OSError(errno.EDQUOT, "Disk quota exceeded"))
    disks.no_room.add("/l0/current")
    for _ in range(3):
        disks.check()
        assert disks.state.reasons == {DISK: "/l0/current: full: 100.0% used"}
    disks.no_room.clear()
    disks.check()
    assert not disks.state.read_only
