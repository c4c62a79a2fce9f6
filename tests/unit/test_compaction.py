"""Compaction of entry logs with real files, cut off at every step."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bookie_server.gc import compaction, live_entries
from bookie_server.gc.compaction import CompactionRefusedError, CompactionResult, EntryLogCompactor
from bookie_server.gc.entry_log_rewrite import EntryLogRewrite
from bookie_server.gc.entry_log_usage import read_usage
from bookie_server.gc.throttle import GarbageCollectorStoppedError, StopSignal, Throttle
from bookie_server.storage.disk import files
from bookie_server.storage.entrylog.entry_log import HEADER_BYTES
from bookie_server.storage.flush_pace import PACED_STEP_BYTES
from bookie_server.storage.index.index_pointers import ledgers_pointing
from tests.support import collected_storage
from tests.support.collected_storage import EntryKey, SmallStorage, payload

#: As two flushes leave them: each sorted.
KEYS: list[EntryKey] = [
    (ledger, entry) for part in (0, 1) for ledger in (1, 2, 3) for entry in range(part * 30, 30 + part * 30)
]
LIVE = [key for key in KEYS if key[0] != 2]
CHANGES = (
    "create_file",
    "write_at",
    "truncate",
    "sync_data",
    "sync_file",
    "sync_directory",
    "sync_file_system",
    "replace_file",
    "remove",
    "rename",
    "link",
)


class CrashError(Exception):
    """The process ended here."""


class Crash:
    """Lets ``steps`` changes of files happen and no more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
        self.left = steps
        self.happened = False
        for name in CHANGES:
            monkeypatch.setattr(files, name, self._wrapped(getattr(files, name)))

    def _wrapped(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            if self.left <= 0:
                self.happened = True
                raise CrashError
            self.left -= 1
            return change(*arguments)

        return wrapped


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[SmallStorage]:
    storage = SmallStorage(tmp_path / "a", tmp_path / "b")
    yield storage
    storage.close()


def compactor(storage: SmallStorage, stop: StopSignal | None = None, **options: Any) -> EntryLogCompactor:
    async def run_blocking(function: Callable[..., Any], /, *arguments: Any) -> Any:
        return function(*arguments)

    settings = {"throttle_by_bytes": False, "throttle_step": 1000} | options
    return EntryLogCompactor(storage, run_blocking, Throttle(0), stop or StopSignal(), **settings)


def compact(
    storage: SmallStorage, entry_log_id: int, ledgers: list[int], *, full_disks: bool = False, **options: Any
) -> CompactionResult:
    usage = read_usage(entry_log_id, storage.entry_log_path(entry_log_id))
    work = compactor(storage, **options).compact(usage, np.array(ledgers), full_disks=full_disks)
    return asyncio.run(work)


def finish(storage: SmallStorage) -> dict[int, str]:
    return asyncio.run(compactor(storage).finish_leftovers())


def delete(storage: SmallStorage, *ledgers: int) -> None:
    for ledger_id in ledgers:
        storage.index.remove(ledger_id)


def assert_readable(storage: SmallStorage, keys: list[EntryKey]) -> None:
    assert [storage.read(*key) for key in keys] == [payload(*key) for key in keys]


@pytest.mark.parametrize("with_map", [True, False])
@pytest.mark.parametrize("by_bytes", [True, False])
def test_live_entries_survive_sorted_and_the_old_log_goes(
    storage: SmallStorage, with_map: bool, by_bytes: bool
) -> None:
    old = storage.write_log(0x1A, KEYS, with_map=with_map)
    old_size = os.path.getsize(old)
    delete(storage, 2)
    result = compact(storage, 0x1A, [1, 3], throttle_by_bytes=by_bytes, throttle_step=300)
    assert storage.names() == {"1b.log"}
    assert (result.new_id, result.entries, result.old_bytes) == (0x1B, len(LIVE), old_size)
    assert result.new_bytes == os.path.getsize(storage.entry_log_path(0x1B)) < old_size
    assert_readable(storage, LIVE)
    locations = [storage.location(*key) for key in sorted(LIVE)]
    assert locations == sorted(locations)
    usage = read_usage(0x1B, storage.entry_log_path(0x1B))
    assert usage.from_map
    assert usage.ledger_ids.tolist() == [1, 3]
    scanned = read_usage(0x1B, _without_map(storage.entry_log_path(0x1B)))
    assert scanned.problem == ""
    assert scanned.ledger_bytes.tolist() == usage.ledger_bytes.tolist()
    assert storage.index_syncs == 1


def _without_map(path: str) -> str:
    data = bytearray(Path(path).read_bytes())
    data[8:20] = bytes(12)
    Path(path + ".copy").write_bytes(data)
    return path + ".copy"


def test_windows_and_ledgers_with_many_entries(storage: SmallStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_entries, "WINDOW_ENTRIES", 37)
    monkeypatch.setattr(compaction, "_MOVE_ENTRIES", 11)
    storage.write_log(1, KEYS)
    assert compact(storage, 1, [1, 2, 3]).entries == len(KEYS)
    assert_readable(storage, KEYS)


def test_only_what_the_index_points_at_is_live(storage: SmallStorage) -> None:
    """Entries that were added again lie in a newer log; a second copy in the same log counts once."""
    storage.write_log(1, [*KEYS, (1, 0), (1, 1)])
    storage.write_log(2, [(3, entry) for entry in range(60)])
    result = compact(storage, 1, [1, 2, 3])
    assert result.entries == 120
    assert_readable(storage, KEYS)
    assert storage.location(3, 5) >> 32 == 2
    assert storage.names() == {"2.log", "3.log"}


def test_a_log_without_live_entries_goes_without_a_new_one(storage: SmallStorage) -> None:
    storage.write_log(1, KEYS)
    storage.write_log(2, KEYS)
    assert compact(storage, 1, [1, 2, 3]) == CompactionResult(-1, 0, compact_size(storage), 0)
    assert storage.names() == {"2.log"}


def compact_size(storage: SmallStorage) -> int:
    return os.path.getsize(storage.entry_log_path(2))


def test_an_entry_that_moves_during_compaction_is_not_moved_back(
    storage: SmallStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.write_log(1, KEYS)
    make = compaction.make_available

    def meanwhile(marker: compaction.CompactionMarker) -> str:
        storage.write_log(9, [(1, 4)])
        delete(storage, 3)
        return make(marker)

    monkeypatch.setattr(compaction, "make_available", meanwhile)
    compact(storage, 1, [1, 2, 3])
    assert storage.location(1, 4) >> 32 == 9
    assert storage.location(3, 4) == 0
    assert_readable(storage, [key for key in KEYS if key[0] != 3])


def test_the_new_log_may_lie_in_another_directory(storage: SmallStorage) -> None:
    storage.write_log(1, KEYS)
    storage.directories.set_writable(storage.directories.paths[0], False, "full")
    compact(storage, 1, [1, 2, 3])
    assert storage.entry_log_path(2).startswith(storage.directories.paths[1])
    assert storage.names() == {"2.log"}
    assert_readable(storage, KEYS)


def test_no_directory_with_room(storage: SmallStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.write_log(1, KEYS)
    monkeypatch.setattr(compaction, "_ROOM_LEFT_BYTES", 2**60)
    with pytest.raises(CompactionRefusedError, match="no room: it needs .* bytes"):
        compact(storage, 1, [1, 2, 3])
    monkeypatch.setattr(compaction, "_ROOM_LEFT_BYTES", 0)
    for path in storage.directories.paths:
        storage.directories.set_writable(path, False, "full")
    with pytest.raises(CompactionRefusedError, match="no room: no ledger directory"):
        compact(storage, 1, [1, 2, 3])
    assert storage.names() == {"1.log"}
    assert compact(storage, 1, [1, 2, 3], full_disks=True).entries == len(KEYS)
    assert_readable(storage, KEYS)


def test_a_failed_write_leaves_the_old_log_and_nothing_else(
    storage: SmallStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.write_log(1, KEYS)
    written = 0

    def full(fd: int, buffers: Any, offset: int) -> int:
        nonlocal written
        written += 1
        if written > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_at(fd, buffers, offset)

    write_at = files.write_at
    monkeypatch.setattr(files, "write_at", full)
    with pytest.raises(OSError, match="No space"):
        compact(storage, 1, [1, 2, 3], throttle_step=10)
    monkeypatch.undo()
    assert storage.names() == {"1.log"}
    assert_readable(storage, KEYS)
    assert compact(storage, 1, [1, 2, 3]).entries == len(KEYS)


@pytest.mark.parametrize("with_map", [True, False])
def test_b5_a_damaged_log_is_compacted_if_all_live_entries_are_there(storage: SmallStorage, with_map: bool) -> None:
    path = storage.write_log(1, KEYS, with_map=with_map)
    delete(storage, 2)
    _damage(path, storage.location(1, 29) + len(payload(1, 29)) + 8)  # in an entry of ledger 2
    usage = read_usage(1, path)
    assert bool(usage.problem) is not with_map
    ledgers = ledgers_pointing({1}, np.array([1, 3]), storage.index_path, lambda: None)[1].tolist()
    assert ledgers == [1, 3]
    assert compact(storage, 1, ledgers).entries == len(LIVE)
    assert_readable(storage, LIVE)
    assert storage.names() == {"2.log"}


@pytest.mark.parametrize("with_map", [True, False])
def test_b5_a_log_with_a_live_entry_that_cannot_be_read_stays(storage: SmallStorage, with_map: bool) -> None:
    path = storage.write_log(1, KEYS, with_map=with_map)
    delete(storage, 2)
    _damage(path, storage.location(3, 10))
    before = Path(path).read_bytes()
    with pytest.raises(CompactionRefusedError, match="cannot be read: entry 10 of ledger 3"):
        compact(storage, 1, [1, 3])
    assert storage.names() == {"1.log"}
    assert Path(path).read_bytes() == before
    assert storage.location(1, 1) >> 32 == 1


def _damage(path: str, location: int) -> None:
    """Garbage in place of the head of the entry at ``location``."""
    with open(path, "r+b") as file:
        file.seek((location & 0xFFFFFFFF) - 4)
        file.write(b"\x7f" * 24)


def test_a_stop_leaves_the_old_log_and_nothing_else(storage: SmallStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.write_log(1, KEYS)
    stop = StopSignal()
    copy = EntryLogRewrite.copy

    def copy_and_stop(self: EntryLogRewrite, entries: Any) -> None:
        copy(self, entries)
        stop.set()

    monkeypatch.setattr(EntryLogRewrite, "copy", copy_and_stop)
    with pytest.raises(GarbageCollectorStoppedError):
        compact(storage, 1, [1, 2, 3], stop=stop, throttle_step=10)
    assert storage.names() == {"1.log"}
    assert_readable(storage, KEYS)


def test_a_journals_sync_never_waits_for_much(storage: SmallStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    def large(ledger_id: int, entry_id: int) -> bytes:
        return payload(ledger_id, entry_id).ljust(PACED_STEP_BYTES * 2 // 7, b"x")

    monkeypatch.setattr(collected_storage, "payload", large)
    storage.write_log(1, KEYS[:30])
    write_at, sync_data, unsynced, most = files.write_at, files.sync_data, 0, 0

    def write(fd: int, buffers: Any, offset: int) -> int:
        nonlocal unsynced, most
        end = write_at(fd, buffers, offset)
        unsynced += end - offset
        most = max(most, unsynced)
        return end

    def sync(fd: int) -> None:
        nonlocal unsynced
        sync_data(fd)
        unsynced = 0

    monkeypatch.setattr(files, "write_at", write)
    monkeypatch.setattr(files, "sync_data", sync)
    result = compact(storage, 1, [1, 2, 3])
    assert result.new_bytes > 8 * PACED_STEP_BYTES
    # The header, too, is written before the first step.
    assert PACED_STEP_BYTES // 2 < most <= PACED_STEP_BYTES + HEADER_BYTES


def test_a_crash_at_any_step_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    steps, completed, names_seen = 0, False, set()
    while not completed:
        storage = SmallStorage(tmp_path / f"{steps}a", tmp_path / f"{steps}b")
        storage.write_log(1, KEYS, directory=1)
        delete(storage, 2)
        storage.directories.set_writable(storage.directories.paths[1], False, "full")
        with pytest.MonkeyPatch.context() as patched:
            crash = Crash(patched, steps)
            with contextlib.suppress(CrashError):
                compact(storage, 1, [1, 3], throttle_step=20)
            completed = not crash.happened
        storage.close()
        names_seen.add(frozenset(storage.names()))
        _reopen_and_check(storage, steps)
        steps += 1
    assert steps > 12
    # Every state between the steps was seen.
    assert {
        frozenset({"1.log"}),
        frozenset({"1.log", "2.log.compacting"}),
        frozenset({"1.log", "2.log.compacting", "2.log.1.compacted"}),
        frozenset({"1.log", "2.log.compacting", "2.log.1.compacted", "2.log"}),
        frozenset({"1.log", "2.log.1.compacted", "2.log"}),
        frozenset({"2.log.1.compacted", "2.log"}),
        frozenset({"2.log"}),
    } == names_seen


def _reopen_and_check(crashed: SmallStorage, steps: int) -> None:
    """What the crash left is finished at the next start; that may crash as well, and is finished at the one after."""
    for again in range(0, 12, 3):
        storage = SmallStorage(*map(Path, crashed.directories.paths))
        assert_readable(storage, LIVE)
        with pytest.MonkeyPatch.context() as patched:
            Crash(patched, again)
            with contextlib.suppress(CrashError):
                finish(storage)
        storage.close()
    storage = SmallStorage(*map(Path, crashed.directories.paths))
    assert finish(storage) == {}
    assert storage.names() in ({"1.log"}, {"2.log"}), steps
    assert_readable(storage, LIVE)
    if storage.names() == {"1.log"}:
        compact(storage, 1, [1, 3])
        assert_readable(storage, LIVE)
    storage.close()


def test_a_damaged_new_log_holds_both_logs(storage: SmallStorage) -> None:
    """What is left of a compaction is not finished where its new log cannot be read to the end."""
    storage.write_log(1, KEYS)
    new = storage.write_log(2, KEYS, indexed=False)
    _damage(new, storage.location(2, 40))
    os.rename(new, f"{storage.directories.paths[0]}/2.log.1.compacted")
    held = finish(storage)
    assert held.keys() == {1, 2}
    assert "2.log" in held[1]
    assert {"1.log", "2.log", "2.log.1.compacted"} == storage.names()
    assert {storage.location(*key) >> 32 for key in KEYS} == {1}
    assert_readable(storage, KEYS)


def test_a_marker_beside_another_log_of_its_id_holds_both(storage: SmallStorage) -> None:
    storage.write_log(1, KEYS)
    new = storage.write_log(2, KEYS, indexed=False)
    os.rename(new, f"{storage.directories.paths[0]}/2.log.1.compacted")
    storage.write_log(2, [(8, 8)])
    held = finish(storage)
    assert " differs from " in held[2]
    assert storage.location(1, 1) >> 32 == 1
    assert_readable(storage, [*KEYS, (8, 8)])
