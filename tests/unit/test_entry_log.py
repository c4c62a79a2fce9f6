"""Entry logs: bytes as Apache writes them, and reading that never takes damage for absence."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage import entry_log
from bookie_server.storage.entry_log import EntryLogPositions, EntryLogWriter, FinishLog, LogOperation, LogWrite
from bookie_server.storage.entry_log_reader import EntryLogReader, StoredEntries


def stored(ledger_id: int, entry_id: int, size: int = 100) -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0).ljust(size, b"%d" % (entry_id % 10))


def record(ledger_id: int, entry_id: int, size: int = 100) -> bytes:
    return size.to_bytes(4, "big") + stored(ledger_id, entry_id, size)


class Log:
    """Writes records one by one and remembers their locations."""

    def __init__(self, directory: Path, limit: int = 1 << 30, first: int = 0) -> None:
        self.directory = directory
        self.positions = EntryLogPositions(first, limit)
        self.writer = EntryLogWriter(str(directory))
        self.reader = EntryLogReader(str(directory))
        self.operations: list[LogOperation] = []
        self.locations: dict[tuple[int, int], int] = {}

    def add(self, ledger_id: int, entry_id: int, size: int = 100) -> int:
        data = record(ledger_id, entry_id, size)
        location = self.positions.place(data, [(ledger_id, len(data))], self.operations) + 4
        self.locations[ledger_id, entry_id] = location
        return location

    def write(self) -> None:
        self.writer.run(self.operations)
        self.operations = []

    def read(self, *ids: tuple[int, int], may_wait: bool = True, limit: int = 1 << 30) -> StoredEntries:
        newest = max(self.locations.values())
        path = self.directory / entry_log.file_name(newest >> 32)
        written_to = newest >> 32 << 32 | path.stat().st_size
        return self.reader.read(
            np.array([ledger for ledger, _ in ids]),
            np.array([entry for _, entry in ids]),
            np.array([self.locations[pair] for pair in ids]),
            written_to,
            limit,
            may_wait=may_wait,
        )


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_layout(log: Log) -> None:
    assert log.add(5, 0) == 0x404
    assert log.add(5, 1) == 0x404 + 104
    log.write()
    content = (log.directory / "0.log").read_bytes()
    assert content[:1024] == b"BKLO" + b"\0\0\0\1" + bytes(1016)
    assert content[1024:] == record(5, 0) + record(5, 1)
    assert (log.directory / "lastId").read_bytes() == b"0\n"


def test_neighbours_are_written_in_one_operation(log: Log) -> None:
    for i in range(10):
        log.add(5, i)
    assert len(log.operations) == 1
    assert isinstance(log.operations[0], LogWrite)
    assert len(log.operations[0].buffers) == 10


def test_rotation_writes_the_ledgers_map(tmp_path: Path) -> None:
    log = Log(tmp_path, limit=4096, first=0xF)
    for i in range(40):
        log.add(5 + i % 3, i)
    assert any(isinstance(operation, FinishLog) for operation in log.operations)
    log.write()
    first = tmp_path / "f.log"
    assert entry_log.log_ids(str(tmp_path)) == [0xF, 0x10]
    assert (tmp_path / "lastId").read_bytes() == b"10\n"
    content = first.read_bytes()
    magic, version, at, count = struct.unpack_from(">4siqi", content)
    assert (magic, version, count) == (b"BKLO", 1, 3)
    size, ledger, entry, ledgers = struct.unpack_from(">iqqi", content, at)
    assert (size, ledger, entry, ledgers) == (20 + 3 * 16, -1, -2, 3)
    assert at + 4 + size == len(content)
    found = entry_log.read_ledgers_map(str(first))
    assert found is not None
    assert sum(found.values()) == at - 1024
    assert set(found) == {5, 6, 7}
    assert entry_log.read_ledgers_map(str(tmp_path / "10.log")) is None
    pairs = [(5 + i % 3, i) for i in range(40)]
    assert log.read(*pairs).sizes.tolist() == [100] * 40


def test_a_map_of_more_ledgers_than_a_batch_holds(tmp_path: Path) -> None:
    ledgers = {i: i * 7 + 1 for i in range(25_001)}
    body = entry_log.ledgers_map(ledgers)
    path = tmp_path / "0.log"
    path.write_bytes(entry_log.file_header(1024, len(ledgers)) + body)
    assert entry_log.read_ledgers_map(str(path)) == ledgers


@pytest.mark.parametrize("cut", [1, 500, 30_000])
def test_a_broken_map_is_no_map(tmp_path: Path, cut: int) -> None:
    ledgers = dict.fromkeys(range(12_000), 9)
    path = tmp_path / "0.log"
    path.write_bytes((entry_log.file_header(1024, len(ledgers)) + entry_log.ledgers_map(ledgers))[:-cut])
    assert entry_log.read_ledgers_map(str(path)) is None
    path.write_bytes(bytes(2000))
    assert entry_log.read_ledgers_map(str(path)) is None


def test_next_log_id(tmp_path: Path) -> None:
    assert entry_log.next_log_id(str(tmp_path)) == 0
    (tmp_path / "lastId").write_bytes(b"1f\n")
    assert entry_log.next_log_id(str(tmp_path)) == 0x20
    (tmp_path / "2a.log").write_bytes(b"")
    assert entry_log.next_log_id(str(tmp_path)) == 0x2B
    (tmp_path / "lastId").write_bytes(b"what\n")
    with pytest.raises(CorruptFileError, match="lastId"):
        entry_log.next_log_id(str(tmp_path))


@pytest.mark.parametrize("may_wait", [True, False])
def test_reading_gives_the_entries_of_any_order_and_size(log: Log, may_wait: bool) -> None:
    sizes = {(ledger, entry): 32 + ledger * 1000 + entry * 13 for ledger in (1, 2, 90) for entry in range(30)}
    for (ledger, entry), size in sizes.items():
        log.add(ledger, entry, size)
    log.write()
    for pairs in (sorted(sizes), sorted(sizes, reverse=True), [(90, 3)], [(1, 0), (90, 29)]):
        entries = log.read(*pairs, may_wait=may_wait)
        for i, pair in enumerate(pairs):
            assert bytes(entries.entry(i)) == stored(*pair, sizes[pair])
        assert not entries.contiguous or pairs == sorted(pairs)


def test_contiguous_entries_are_a_copy_of_the_log(log: Log) -> None:
    for i in range(50):
        log.add(4, i, 40 + i)
    log.write()
    entries = log.read(*[(4, i) for i in range(10, 30)])
    assert entries.contiguous
    start, end = int(entries.starts[0]) - 4, int(entries.starts[-1] + entries.sizes[-1])
    assert bytes(entries.data[start:end]) == b"".join(record(4, i, 40 + i) for i in range(10, 30))


@pytest.mark.parametrize("size", [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\x0f", b"\0\x10\0\0"])
def test_a_garbage_size_is_unreadable_and_its_neighbours_are_not(log: Log, size: bytes) -> None:
    for i in range(5):
        log.add(4, i)
    log.write()
    path = log.directory / "0.log"
    content = bytearray(path.read_bytes())
    at = (log.locations[4, 2] & 0xFFFFFFFF) - 4
    content[at : at + 4] = size
    path.write_bytes(bytes(content))
    assert (log.read(*[(4, i) for i in range(5)]).sizes >= 0).tolist() == [True, True, False, True, True]
    assert log.read((4, 2)).sizes.tolist() == [-1]


def test_another_entry_in_its_place_is_unreadable(log: Log) -> None:
    for i in range(3):
        log.add(4, i)
    log.write()
    log.locations[4, 7] = log.locations[4, 1]
    log.locations[5, 1] = log.locations[4, 1]
    assert log.read((4, 7)).sizes.tolist() == [-1]
    assert log.read((5, 1)).sizes.tolist() == [-1]
    assert log.read((4, 0), (4, 7), (4, 2)).sizes.tolist() == [100, -1, 100]


def test_missing_and_short_logs_are_unreadable(log: Log) -> None:
    log.add(4, 0)
    log.add(4, 1)
    log.write()
    path = log.directory / "0.log"
    whole = path.read_bytes()
    path.write_bytes(whole[:-50])
    assert log.read((4, 0), (4, 1)).sizes.tolist() == [100, -1]
    log.locations[6, 0] = 3 << 32 | 0x404
    log.locations[6, 1] = 0 << 32 | 0x20
    log.locations[6, 2] = -5
    log.writer.close()
    reader = log.reader
    for entry in range(3):
        found = reader.read(
            np.array([6]), np.array([entry]), np.array([log.locations[6, entry]]), 0x404, 1, may_wait=True
        )
        assert found.sizes.tolist() == [-1]


def test_what_is_fetched_at_once_is_bounded(log: Log) -> None:
    for i in range(1000):
        log.add(4, i, 1000)
        log.add(5, i, 100_000 if i % 100 == 0 else 20)
    log.write()
    ids = [(4, i) for i in range(1000)]
    for limit in (1, 5000, 100_000, 200_000):
        got = log.read(*ids, limit=limit)
        assert max(1, limit // 1200) <= len(got.sizes) <= limit // 1000 + 1
        assert len(got.data) <= limit + 20_000
        assert [bytes(got.entry(i)) for i in range(len(got.sizes))] == [
            stored(4, i, 1000) for i in range(len(got.sizes))
        ]
    assert len(log.read(*ids).sizes) == 1000
    log.locations[4, 0] = 0x20
    assert log.read(*ids, limit=1).sizes.tolist()[0] == -1
