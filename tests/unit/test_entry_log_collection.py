"""Which entry logs go, which are compacted, and why the others stay."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookie_server.config.collection import CompactionSettings
from bookie_server.config.config import BookieConfig
from bookie_server.gc import compaction
from bookie_server.gc.collector_status import GarbageCollectorCounters
from bookie_server.gc.entry_log_collection import EntryLogCollection
from bookie_server.gc.throttle import StopSignal
from bookie_server.storage.disk import files
from tests.support.bookie_settings import bookie_config, major, minor
from tests.support.collected_storage import SmallStorage, payload

CONFIG = bookie_config(compaction_entries_per_s=10**9)


class Logs:
    """The log part of a collector over a small storage."""

    def __init__(self, storage: SmallStorage, config: BookieConfig = CONFIG) -> None:
        self.storage = storage
        self.config = config
        self.counters = GarbageCollectorCounters()
        self.logs = EntryLogCollection(config, storage, _run_blocking, StopSignal(), self.counters)

    def look(self) -> dict[int, str]:
        """Remove what is dead; why the others stay, by log id."""

        async def work() -> dict[int, str]:
            await self.logs.finish_leftovers()
            await self.logs.remove_dead()
            self.logs.explain_waiting()
            return await self._reasons()

        return asyncio.run(work())

    def compact(self, which: CompactionSettings, is_suspended: Callable[[], bool] = lambda: False) -> dict[int, str]:
        async def work() -> dict[int, str]:
            await self.logs.finish_leftovers()
            await self.logs.remove_dead()
            await self.logs.compact(which, is_suspended)
            return await self._reasons()

        return asyncio.run(work())

    async def _reasons(self) -> dict[int, str]:
        return {state.entry_log_id: state.reason for state in await self.logs.states()}


async def _run_blocking(function: Callable[..., Any], /, *arguments: Any) -> Any:
    return function(*arguments)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[SmallStorage]:
    storage = SmallStorage(tmp_path / "a", tmp_path / "b")
    yield storage
    storage.close()


def entries(ledger_id: int, count: int = 20) -> list[tuple[int, int]]:
    return [(ledger_id, entry_id) for entry_id in range(count)]


def test_logs_without_live_ledgers_go(storage: SmallStorage) -> None:
    storage.write_log(1, entries(1))
    storage.write_log(2, entries(2), with_map=False)
    storage.write_log(3, entries(3), directory=1)
    size = os.path.getsize(storage.entry_log_path(1)) + os.path.getsize(storage.entry_log_path(2))
    logs = Logs(storage)
    assert logs.look() == dict.fromkeys((1, 2, 3), "live 100% is not below 80%")
    for ledger_id in (1, 2):
        storage.index.remove(ledger_id)
    assert logs.look().keys() == {3}
    assert storage.names() == {"3.log"}
    assert (logs.counters.entry_logs_removed, logs.counters.reclaimed_by_deletion_bytes) == (2, size)


def test_logs_being_written_are_not_touched(storage: SmallStorage) -> None:
    storage.write_log(1, entries(1), indexed=False)
    Path(storage.directories.paths[0], "2.log").touch()
    storage.being_written = {1, 2}
    assert Logs(storage).look() == {1: "being written", 2: "being written"}
    storage.being_written = set()
    assert Logs(storage).look() == {}


def test_a_ledger_that_comes_while_logs_are_looked_at_keeps_its_log(storage: SmallStorage) -> None:
    """Its log was not complete when the logs were listed, so it is left alone even if it is complete later."""
    logs, list_ledgers = Logs(storage), storage.local_ledgers

    async def late() -> Any:
        ledgers = await list_ledgers()
        storage.write_log(2, entries(2))
        storage.being_written = set()
        return ledgers

    storage.write_log(1, entries(1))
    storage.being_written = {2}
    storage.local_ledgers = late  # type: ignore[method-assign]
    logs.look()
    assert storage.names() == {"1.log", "2.log"}


@pytest.mark.parametrize("damage", ["zeros", "garbage", "empty", "short"])
def test_b4_a_log_that_cannot_be_told_stays_while_the_index_points_at_it(storage: SmallStorage, damage: str) -> None:
    path = storage.write_log(1, entries(1))
    whole = Path(path).read_bytes()
    storage.write_log(2, entries(2))
    content = {
        "zeros": bytes(len(whole)),
        "garbage": b"\xa5" * len(whole),
        "empty": b"",
        "short": whole[:100],
    }[damage]
    Path(path).write_bytes(content)
    logs = Logs(storage)
    assert logs.compact(CONFIG.major_compaction)[1].startswith("cannot be read: entry 0 of ledger 1 is not at")
    assert storage.names() == {"1.log", "2.log"}
    assert Path(path).read_bytes() == content
    storage.index.remove(1)
    assert logs.look().keys() == {2}


def test_b4_a_log_with_a_broken_header_is_read_nevertheless(storage: SmallStorage) -> None:
    path = storage.write_log(1, entries(1) + entries(2))
    with open(path, "r+b") as file:
        file.write(bytes(1024))
    storage.index.remove(2)
    logs = Logs(storage)
    assert logs.look() == {1: "waits for major compaction: live 49%"}
    assert logs.compact(CONFIG.major_compaction) == {2: "not examined yet"}
    assert [storage.read(1, entry) for entry in range(20)] == [payload(1, entry) for entry in range(20)]


def test_b5_one_damaged_log_does_not_keep_others(storage: SmallStorage) -> None:
    path = storage.write_log(1, entries(1) + entries(2), with_map=False)
    with open(path, "r+b") as file:
        file.seek((storage.location(1, 3) & 0xFFFFFFFF) - 4)
        file.write(b"\x7f\xff\xff\xff")
    storage.write_log(3, entries(3))
    storage.index.remove(2)
    storage.index.remove(3)
    logs = Logs(storage)
    assert logs.compact(CONFIG.major_compaction)[1].startswith("cannot be read: entry 3 of ledger 1")
    assert storage.names() == {"1.log"}


def test_an_unreadable_index_file_keeps_damaged_logs_only(
    storage: SmallStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = storage.write_log(1, entries(1))
    Path(path).write_bytes(b"")
    storage.write_log(2, entries(2))
    storage.write_log(3, entries(3))
    storage.index.remove(1)
    storage.index.remove(2)
    index_file = storage.index.path(3)
    assert index_file is not None
    monkeypatch.setattr(storage, "index_path", lambda _: os.path.dirname(index_file))  # a directory: EISDIR
    logs = Logs(storage)
    assert logs.look() == {
        1: "damaged (0 bytes), and not every index file can be read",
        3: "live 100% is not below 80%",
    }
    monkeypatch.undo()
    assert logs.look().keys() == {3}


def test_a_log_that_cannot_be_read_stays_and_says_so(storage: SmallStorage) -> None:
    path = storage.write_log(1, entries(1))
    os.remove(path)
    os.mkdir(path)
    assert Logs(storage).look()[1].startswith("cannot be read: ")
    assert storage.names() == {"1.log"}


def test_emptiest_first_and_only_below_the_threshold(storage: SmallStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.write_log(1, entries(1, 70) + entries(9, 30))
    storage.write_log(2, entries(2, 10) + entries(9, 90))
    storage.write_log(3, entries(3, 90) + entries(9, 10))
    storage.write_log(4, entries(4, 15) + entries(9, 85))
    storage.index.remove(9)
    order: list[int] = []
    compact = compaction.EntryLogCompactor.compact

    async def noted(self: compaction.EntryLogCompactor, usage: Any, *arguments: Any, **options: Any) -> Any:
        order.append(usage.entry_log_id)
        return await compact(self, usage, *arguments, **options)

    monkeypatch.setattr(compaction.EntryLogCompactor, "compact", noted)
    logs = Logs(storage)
    reasons = logs.compact(CONFIG.minor_compaction)
    assert order == [2, 4]
    assert reasons[1] == "waits for major compaction: live 71%"
    assert reasons[3] == "live 91% is not below 80%"
    logs.compact(CONFIG.major_compaction)
    assert order == [2, 4, 1]
    assert logs.counters.entry_logs_compacted == 3
    assert logs.counters.entries_moved == 95
    assert logs.counters.reclaimed_by_compaction_bytes > 0
    assert "3.log" in storage.names()
    keys = [(ledger_id, entry) for ledger_id, count in ((1, 70), (2, 10), (3, 90), (4, 15)) for entry in range(count)]
    assert [storage.read(*key) for key in keys] == [payload(*key) for key in keys]


def test_usage_against_the_size_limit(storage: SmallStorage) -> None:
    storage.write_log(1, entries(1))
    limit = 10 * os.path.getsize(storage.entry_log_path(1))
    config = replace(CONFIG, gc_use_target_log_size=True, entry_log_size_limit_bytes=limit)
    assert Logs(storage, config).look()[1].startswith("waits for minor compaction: live ")


def test_a_suspension_and_the_time_limit_end_a_compaction(storage: SmallStorage) -> None:
    for entry_log_id in (1, 2, 3):
        storage.write_log(entry_log_id, entries(entry_log_id, 2) + entries(9, 90))
    storage.index.remove(9)
    logs = Logs(storage)
    logs.compact(CONFIG.major_compaction, lambda: logs.counters.entry_logs_compacted == 1)
    assert logs.counters.entry_logs_compacted == 1
    logs.compact(replace(CONFIG.major_compaction, max_time_ms=-5))
    assert logs.counters.entry_logs_compacted == 3


def test_no_room_is_said_and_dead_logs_go_nevertheless(storage: SmallStorage) -> None:
    storage.write_log(1, entries(1, 2) + entries(9))
    storage.write_log(2, entries(9))
    storage.index.remove(9)
    for path in storage.directories.paths:
        storage.directories.set_writable(path, False, "full")
    assert Logs(storage).compact(CONFIG.minor_compaction) == {1: "no room: no ledger directory takes a new entry log"}
    full = replace(CONFIG, force_gc_when_no_space=True)
    assert Logs(storage, full).compact(CONFIG.minor_compaction) == {2: "not examined yet"}


def test_a_full_disk_ends_the_compaction_of_this_time(storage: SmallStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.write_log(1, entries(1, 2) + entries(9))
    storage.write_log(2, entries(2, 3) + entries(9))
    storage.index.remove(9)
    tries = 0

    def full(path: str) -> int:
        nonlocal tries
        tries += 1
        raise OSError(errno.ENOSPC, "No space left on device", path)

    monkeypatch.setattr(files, "create_file", full)
    logs = Logs(storage)
    assert logs.compact(CONFIG.minor_compaction)[1].startswith("compaction failed: [Errno 28] No space left")
    assert tries == 1
    monkeypatch.undo()
    assert logs.compact(CONFIG.minor_compaction).keys() == {3, 4}
    assert storage.names() == {"3.log", "4.log"}


def test_a_failed_sync_is_not_taken_for_a_failed_write(storage: SmallStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.write_log(1, entries(1, 2) + entries(9))
    storage.index.remove(9)

    def failed(fd: int) -> None:
        raise files.SyncFailedError(errno.EIO, "sync failed")

    monkeypatch.setattr(files, "sync_data", failed)
    with pytest.raises(files.SyncFailedError):
        Logs(storage).compact(CONFIG.minor_compaction)
    assert "1.log" in storage.names()


def test_logs_of_a_compaction_that_cannot_be_finished_stay(storage: SmallStorage) -> None:
    storage.write_log(1, entries(1))
    new = storage.write_log(2, entries(1), indexed=False)
    with open(new, "r+b") as file:
        file.seek(1024)
        file.write(b"\xff" * 24)
    os.rename(new, f"{storage.directories.paths[0]}/2.log.1.compacted")
    storage.index.remove(1)
    reasons = Logs(storage).look()
    assert reasons.keys() == {1, 2}
    assert all(reason.startswith("compaction of 1.log to 2.log waits: ") for reason in reasons.values())


def test_the_index_is_asked_once_about_a_damaged_log(storage: SmallStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    path = storage.write_log(1, entries(1), with_map=False)
    Path(path).write_bytes(Path(path).read_bytes() + bytes(50))
    asked: list[int] = []
    index_path = storage.index_path

    def noted(ledger_id: int) -> str | None:
        asked.append(ledger_id)
        return index_path(ledger_id)

    monkeypatch.setattr(storage, "index_path", noted)
    logs = Logs(storage)
    kept = logs.look()
    assert kept[1] != ""
    assert "index file" not in kept[1]
    assert logs.look() == kept
    assert asked == [1]


def test_disabled_compactions_are_named(storage: SmallStorage) -> None:
    storage.write_log(1, entries(1, 2) + entries(9, 98))
    storage.index.remove(9)
    off = replace(CONFIG, **minor(CompactionSettings(0, 0.2)), **major(CompactionSettings(1000, 0.0)))
    assert Logs(storage, off).look() == {1: "live 1%, and compaction is off"}
    forced = replace(off, force_allow_compaction=True)
    assert Logs(storage, forced).look() == {1: "waits for minor compaction: live 1%"}
