"""Writing entry logs: rolling, several directories, disks that fail."""

from __future__ import annotations

import errno
import itertools
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bookie_server.storage.disk import files
from bookie_server.storage.disk.files import SyncFailedError
from bookie_server.storage.entrylog import entry_log
from bookie_server.storage.entrylog.entry_log_writer import EntryLogIds, NoWritableDirectoryError
from tests.support.entry_log_building import Logs, mapped, record, stored
from tests.support.failing_os import FailingOs


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two ledger directories."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    return tmp_path / "a", tmp_path / "b"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingOs:
    return FailingOs(monkeypatch)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def full(path: Path, error: int = errno.ENOSPC, room_bytes: int = 0) -> Callable[..., Any]:
    """Stands in for pwritev: files below ``path`` take ``room_bytes`` more."""
    left = room_bytes

    def write(fd: int, buffers: list[Any], offset: int) -> int:
        nonlocal left
        if not os.readlink(f"/proc/self/fd/{fd}").startswith(f"{path}/"):
            return os.pwritev(fd, buffers, offset)
        if not left:
            raise OSError(error, os.strerror(error))
        taken = b"".join(buffers)[:left]
        left -= len(taken)
        return os.pwrite(fd, taken, offset)

    return write


@pytest.mark.parametrize("size", [5_000, 2_000_000])
def test_a_long_append_is_synced_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Journals on the same disk wait for each of these syncs."""
    synced, sync = [0], files.sync_data

    def noted(fd: int) -> None:
        synced.append(os.fstat(fd).st_size)
        sync(fd)

    monkeypatch.setattr(files, "sync_data", noted)
    logs, count = Logs(tmp_path), 20_000_000 // size
    try:
        logs.write(*((1, entry_id, size) for entry_id in range(count)))
        assert synced[-1] == entry_log.HEADER_BYTES + count * (size + 4)
        assert (
            max(later - earlier for earlier, later in itertools.pairwise(synced))
            <= 5 * 1024 * 1024 + entry_log.HEADER_BYTES
        )
        entries = logs.read([(1, entry_id) for entry_id in range(count)])
        assert [bytes(entries.entry(i)) for i in range(count)] == [stored(1, i, size) for i in range(count)]
    finally:
        logs.close()


def assert_readable(logs: Logs) -> None:
    pairs = sorted(logs.locations)
    entries = logs.read(pairs)
    assert [bytes(entries.entry(i)) for i in range(len(pairs))] == [stored(*pair) for pair in pairs]


def test_an_append_is_synced(tmp_path: Path, disk: FailingOs) -> None:
    logs = Logs(tmp_path)
    logs.write((1, 0, 100))
    assert disk.calls[-1] == "fdatasync"
    assert disk.calls[-3:] == ["fsync", "pwritev", "fdatasync"]  # the directory, entries, the log
    disk.calls.clear()
    logs.write((1, 1, 100))
    assert disk.calls == ["pwritev", "fdatasync"]
    logs.close()


def test_rolling_writes_the_ledgers_map(tmp_path: Path) -> None:
    (tmp_path / "lastId").write_bytes(b"e\n")
    logs = Logs(tmp_path, limit_bytes=4096)
    logs.write(*[(5 + i % 3, i, 100) for i in range(40)])
    assert entry_log.entry_log_ids(str(tmp_path)) == [0xF, 0x10]
    assert (tmp_path / "lastId").read_bytes() == b"10\n"
    content = (tmp_path / "f.log").read_bytes()
    magic, version, at, count = struct.unpack_from(">4siqi", content)
    assert (magic, version, count) == (b"BKLO", 1, 3)
    size, ledger, entry, ledgers = struct.unpack_from(">iqqi", content, at)
    assert (size, ledger, entry, ledgers) == (20 + 3 * 16, -1, -2, 3)
    assert at + 4 + size == len(content)
    assert at <= 4096
    found = mapped(tmp_path / "f.log")
    assert found is not None
    assert sum(found.values()) == at - 1024
    assert set(found) == {5, 6, 7}
    assert mapped(tmp_path / "10.log") is None
    logs.writer.leave()
    rest = mapped(tmp_path / "10.log")
    assert rest is not None
    assert {ledger: found[ledger] + rest.get(ledger, 0) for ledger in found} == {5: 14 * 104, 6: 13 * 104, 7: 13 * 104}
    assert_readable(logs)
    logs.close()


def test_a_map_speaks_of_all_appends_to_its_log(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    logs.write((1, 0, 100), (2, 0, 300))
    logs.write((1, 1, 100), (3, 0, 50))
    logs.writer.end()
    assert logs.writer.entry_log_id == -1
    assert mapped(tmp_path / "0.log") == {1: 208, 2: 304, 3: 54}


def test_an_entry_larger_than_a_log_gets_one_of_its_own(tmp_path: Path) -> None:
    logs = Logs(tmp_path, limit_bytes=4096)
    assert [location >> 32 for location in logs.write((1, 0, 100), (1, 1, 10_000), (1, 2, 100))] == [0, 1, 2]
    entries = logs.read([(1, 0), (1, 1), (1, 2)])
    assert entries.sizes.tolist() == [100, 10_000, 100]
    logs.close()


def test_directories_are_used_in_turn(two: tuple[Path, Path]) -> None:
    logs = Logs(*two, limit_bytes=2048)
    logs.write(*[(1, i, 100) for i in range(40)])
    assert [entry_log.entry_log_ids(str(path)) for path in two] == [[0, 2, 4], [1, 3]]
    assert {(path / "lastId").read_bytes() for path in two} == {b"4\n"}
    assert_readable(logs)
    logs.close()
    assert EntryLogIds(logs.directories).allocate() == 5


def test_a_directory_that_takes_no_more_is_left(two: tuple[Path, Path]) -> None:
    a, b = two
    logs = Logs(a, b)
    logs.write((1, 0, 100))
    logs.directories.set_writable(str(a), False, "full")
    logs.write((1, 1, 100))
    logs.write((1, 2, 100))
    assert (entry_log.entry_log_ids(str(a)), entry_log.entry_log_ids(str(b))) == ([0], [1])
    assert mapped(a / "0.log") == {1: 104}
    logs.directories.set_writable(str(a), True, "")
    logs.directories.set_writable(str(b), False, "full")
    logs.write((1, 3, 100))
    assert entry_log.entry_log_ids(str(a)) == [0, 2]
    assert_readable(logs)
    logs.close()


def test_directories_called_full_are_used_where_there_are_no_others(two: tuple[Path, Path], disk: FailingOs) -> None:
    """What is flushed has been acknowledged, and there is room left."""
    a, b = two
    logs = Logs(a, b)
    for path in two:
        logs.directories.set_writable(str(path), False, "full")
    logs.write((1, 0, 100))
    logs.write((1, 1, 100))
    assert (entry_log.entry_log_ids(str(a)), entry_log.entry_log_ids(str(b))) == ([0], [])
    disk.on("pwritev", full(a))
    logs.write((1, 2, 100))
    assert entry_log.entry_log_ids(str(b)) == [1]
    disk.fail("pwritev")
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        logs.write((1, 3, 100))
    disk.heal()
    with pytest.raises(NoWritableDirectoryError, match=r"/a: a write failed.*/b: a write failed"):
        logs.write((1, 3, 100))
    logs.directories.set_writable(str(b), False, "full")  # as the disk monitor sees it
    logs.write((1, 3, 100))
    assert_readable(logs)
    logs.close()


def test_a_failed_append_is_cut_off_and_done_elsewhere(two: tuple[Path, Path], disk: FailingOs) -> None:
    a, b = two
    logs = Logs(a, b)
    logs.write((1, 0, 100))
    disk.on("pwritev", full(a, room_bytes=150))
    assert {location >> 32 for location in logs.write((1, 1, 100), (1, 2, 100))} == {1}
    assert (a / "0.log").read_bytes()[1024:] == record(1, 0)
    assert (b / "1.log").read_bytes()[1024:] == record(1, 1) + record(1, 2)
    assert list(logs.directories.failures()) == [str(a)]
    assert_readable(logs)
    logs.close()


def test_an_append_that_fails_after_a_roll(two: tuple[Path, Path], disk: FailingOs) -> None:
    """The log that it began goes, those that it filled stay until it is done: nothing points to what they got."""
    a, b = two
    logs = Logs(a, b, limit_bytes=2048)
    logs.write((1, 0, 100))
    disk.on("pwritev", full(b, room_bytes=1024 + 500))
    logs.write(*[(1, i, 100) for i in range(1, 30)])
    assert entry_log.entry_log_ids(str(b)) == []
    assert entry_log.entry_log_ids(str(a)) == [0, 2, 3, 4, 5]
    assert logs.writer.unfinished >= {0, 2, 3, 4, 5}
    assert min(location >> 32 for pair, location in logs.locations.items() if pair != (1, 0)) == 2
    assert_readable(logs)
    logs.writer.finished()
    assert logs.writer.unfinished == set()
    logs.close()


@pytest.mark.parametrize("failing", ["header", "entries", "open"])
def test_where_nothing_can_be_written_nothing_is_left_open(
    two: tuple[Path, Path], disk: FailingOs, failing: str
) -> None:
    logs = Logs(*two)
    before = open_files()
    if failing == "open":
        disk.fail("open", errno.EMFILE)
    else:
        room_bytes = {"header": 500, "entries": 1050}[failing]
    for _ in range(3):
        if failing != "open":
            disk.fill_disk(room_bytes)
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE if failing == "open" else errno.ENOSPC)):
            logs.write((1, 0, 100))
        for path in two:
            logs.directories.set_writable(str(path), True, "")
    assert open_files() == before
    assert logs.writer.entry_log_id == -1
    assert [entry_log.entry_log_ids(str(path)) for path in two] == [[], []]
    disk.heal()
    logs.write((1, 0, 100))
    assert_readable(logs)
    logs.close()


def test_the_cause_is_told_and_not_that_no_directory_is_left(tmp_path: Path, disk: FailingOs) -> None:
    logs = Logs(tmp_path)
    disk.fail("pwritev", errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)) as raised:
        logs.write((1, 0, 100))
    assert raised.value.errno == errno.EIO
    with pytest.raises(NoWritableDirectoryError, match=os.strerror(errno.EIO)):
        logs.write((1, 0, 100))


def test_a_failed_sync_is_not_tried_again(tmp_path: Path, disk: FailingOs) -> None:
    logs = Logs(tmp_path)
    disk.fail("fdatasync", errno.EIO, times=1)
    with pytest.raises(SyncFailedError):
        logs.write((1, 0, 100))
    assert disk.calls.count("fdatasync") == 1
    logs.close()


def test_a_log_without_room_for_its_map_is_left_without(two: tuple[Path, Path], disk: FailingOs) -> None:
    a, b = two
    logs = Logs(a, b)
    logs.write((1, 0, 100))
    logs.directories.set_writable(str(a), False, "full")
    disk.on("pwritev", full(a))
    logs.write((1, 1, 100))
    assert mapped(a / "0.log") is None
    assert_readable(logs)
    logs.close()


def test_ids_go_on_where_a_directory_does_not_take_them(two: tuple[Path, Path], disk: FailingOs) -> None:
    a, b = two
    ids = EntryLogIds(Logs(a, b).directories)
    assert ids.allocate() == 0
    disk.on("pwritev", full(a))
    assert ids.allocate() == 1
    assert ((a / "lastId").read_bytes(), (b / "lastId").read_bytes()) == (b"0\n", b"1\n")
    assert EntryLogIds(Logs(a, b).directories).allocate() == 2


def test_a_new_log_is_never_seen_as_one_that_nobody_writes_to(tmp_path: Path, disk: FailingOs) -> None:
    """Garbage collection lists the logs, then asks which of them are being written."""
    logs = Logs(tmp_path)
    seen: list[tuple[list[int], set[int]]] = []

    def opened(path: str, *arguments: Any) -> int:
        fd = os.open(path, *arguments)
        seen.append((entry_log.entry_log_ids(str(tmp_path)), logs.writer.unfinished | {logs.writer.entry_log_id}))
        return fd

    disk.on("open", opened)
    logs.write((1, 0, 100))
    assert any(ids for ids, _ in seen)
    assert all(written.issuperset(ids) for ids, written in seen)
    logs.close()
