"""Appending directly to the disk leaves the same bytes as appending through the page cache."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bookie_server.gc.entry_log_usage import read_usage
from bookie_server.storage.disk import files
from bookie_server.storage.disk.appended_file import (
    MAX_ROOM_BYTES,
    MEMORY_BYTES,
    AlignedMemory,
    AppendedFile,
    BufferedFile,
    DirectFile,
    choose_direct,
)
from bookie_server.storage.disk.files import BLOCK_BYTES
from bookie_server.storage.entrylog.entry_log_scan import EntryLogScan
from bookie_server.storage.journal import journal
from bookie_server.storage.journal.journal_reader import JournalReader
from bookie_server.storage.journal.journal_writer import JournalWriter
from bookie_server.storage.records import Records
from tests.support.entry_log_building import Logs, mapped, stored
from tests.support.machine import cannot_run


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A directory on a disk."""
    if not files.takes_direct_writes(str(tmp_path)):
        cannot_run(f"{tmp_path} takes no direct writes")
    return tmp_path


@pytest.fixture(params=["buffered", "direct"])
def appended(request: pytest.FixtureRequest, disk: Path) -> Iterator[tuple[AppendedFile, Path]]:
    path = disk / "file"
    fd = files.create_file(str(path), direct=request.param == "direct")
    yield DirectFile(fd, AlignedMemory()) if request.param == "direct" else BufferedFile(fd, 0), path
    os.close(fd)


def content(path: Path, size: int) -> bytes:
    """The first ``size`` bytes of a file; after them there may be zeros up to the next block."""
    data = path.read_bytes()
    assert not data[size:].strip(b"\0")
    assert len(data) < size + BLOCK_BYTES
    return data[:size]


@pytest.mark.parametrize("seed", range(5))
def test_everything_is_there_in_order(appended: tuple[AppendedFile, Path], seed: int) -> None:
    file, path = appended
    rng = random.Random(seed)
    expected = bytearray()
    sizes = (1, 100, BLOCK_BYTES - 1, BLOCK_BYTES, 70_000, 1 << 20, MEMORY_BYTES, MEMORY_BYTES + 5)
    for _ in range(30):
        kind = rng.random()
        if kind < 0.3:
            data = rng.randbytes(min(rng.choice(sizes), MAX_ROOM_BYTES))
            file.room(len(data))[:] = np.frombuffer(data, np.uint8)
            expected += data
        elif kind < 0.8:
            parts = [rng.randbytes(rng.choice(sizes[:6])) for _ in range(rng.randrange(4))]
            if kind > 0.75:
                parts.append(rng.randbytes(rng.choice(sizes)))
            file.put([memoryview(part) for part in parts])
            expected += b"".join(parts)
        else:
            file.finish()
            assert content(path, len(expected)) == expected
        assert file.position == len(expected)
    file.finish()
    assert content(path, len(expected)) == expected


@pytest.mark.parametrize("lost_bytes", [10, BLOCK_BYTES, 2 * MEMORY_BYTES])
@pytest.mark.parametrize("kept_bytes", [0, 10, 2 * BLOCK_BYTES, 2 * BLOCK_BYTES + 10])
def test_going_back(appended: tuple[AppendedFile, Path], kept_bytes: int, lost_bytes: int) -> None:
    """What is cut off is not written again, and what was before it stays."""
    file, path = appended
    kept = random.Random(1).randbytes(kept_bytes)
    file.put([kept])
    file.finish()
    for _ in range(2):
        file.put([b"lost" * (lost_bytes // 4)])
        os.truncate(path, kept_bytes)
        file.back_to(kept_bytes)
    file.put([b"more"])
    file.finish()
    assert content(path, kept_bytes + 4) == kept + b"more"


def test_a_file_system_in_memory_takes_no_direct_writes(disk: Path) -> None:
    if not os.path.isdir("/dev/shm"):
        cannot_run("there is no file system in memory")
    assert not files.takes_direct_writes("/dev/shm")
    assert choose_direct([str(disk), "/dev/shm"], True, "journals") == {str(disk)}
    assert choose_direct([str(disk)], False, "journals") == frozenset()


def test_a_journal_is_the_same_either_way(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "new_nonce", lambda: b"16 random bytes.")
    rng = random.Random(1)
    records = [rng.randbytes(size) for size in (100, 5000, 3, MEMORY_BYTES + 9, 400, 60, 70_000)]
    found = []
    for direct in (False, True):
        (disk / str(direct)).mkdir()
        writer = JournalWriter(
            str(disk / str(direct)), 1, max_file_bytes=1 << 30, preallocate_bytes=1 << 16, direct=direct
        )
        writer.open()
        for record in records:
            writer.write([record[:2], record[2:]], len(record))
            writer.sync()
        writer.close()
        found.append((disk / str(direct) / journal.file_name(1)).read_bytes())
    assert found[0] == found[1]


def test_a_killed_process_leaves_a_journal_that_ends_with_zeros(disk: Path) -> None:
    writer = JournalWriter(str(disk), 1, max_file_bytes=1 << 30, preallocate_bytes=1 << 12, direct=True)
    writer.open()
    for entry_id in range(40):
        entry = stored(1, entry_id)
        writer.write([len(entry).to_bytes(4, "big") + entry], len(entry) + 4)
    writer.close(intact=False)
    reader = JournalReader(str(disk / journal.file_name(1)))
    items = [item for item in reader.items() if isinstance(item, Records)]
    assert sum(map(len, items)) == 40
    assert not reader.torn


ENTRIES = [(ledger, entry, size) for ledger in (1, 2) for entry, size in enumerate((100, 100, 5000, 70_000, 100))]


def test_an_entry_log_is_the_same_either_way(disk: Path) -> None:
    found = []
    for direct in (False, True):
        path = disk / str(direct)
        path.mkdir()
        logs = Logs(path, direct=direct)
        logs.write(*ENTRIES)
        logs.write(*[(3, i, 100) for i in range(50_000)])
        entries = logs.read([(ledger, entry) for ledger, entry, _ in ENTRIES])
        assert [bytes(entries.entry(i)) for i in range(len(ENTRIES))] == [stored(*entry) for entry in ENTRIES]
        logs.writer.end()
        logs.close()
        found.append((path / "0.log").read_bytes())
        assert mapped(path / "0.log") is not None
    assert found[0] == found[1]


def test_a_log_that_was_not_completed_is_sound(disk: Path) -> None:
    """Its last block ends with zeros. More of them, or anything else there, is damage."""
    logs = Logs(disk, direct=True)
    logs.write(*ENTRIES)
    logs.close()
    path = disk / "0.log"
    data = path.read_bytes()
    assert len(data) % BLOCK_BYTES == 0
    assert data.endswith(bytes(100))
    assert scanned(path) == (len(ENTRIES), "")
    assert read_usage(0, str(path)).problem == ""
    for damaged in (data + bytes(BLOCK_BYTES), data[:-1] + b"\1", data[:-1]):
        path.write_bytes(damaged)
        count, problem = scanned(path)
        assert count == len(ENTRIES)
        assert "no entry at" in problem


def scanned(path: Path) -> tuple[int, str]:
    scan = EntryLogScan(str(path))
    count = 0
    while not scan.at_end:
        count += len(scan.step())
    scan.close()
    return count, scan.problem
