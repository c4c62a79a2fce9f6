"""Entry logs: bytes as Apache writes them, and reading that never takes damage for absence."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bk_spark.protocol.arrays import Bytes
from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.disk.files import WouldBlockError
from bookie_server.storage.entrylog import entry_log
from bookie_server.storage.entrylog.entry_log_reader import MOST_AT_ONCE_BYTES
from tests.support.entry_log_building import Logs, mapped, record, stored


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    logs = Logs(tmp_path)
    yield logs
    logs.close()


def test_layout(logs: Logs, tmp_path: Path) -> None:
    assert logs.write((5, 0, 100), (5, 1, 100)) == [0x404, 0x404 + 104]
    content = (tmp_path / "0.log").read_bytes()
    assert content[:1024] == b"BKLO" + b"\0\0\0\1" + bytes(1016)
    assert content[1024:] == record(5, 0) + record(5, 1)
    assert (tmp_path / "lastId").read_bytes() == b"0\n"


def test_a_map_of_more_ledgers_than_a_batch_holds(tmp_path: Path) -> None:
    ledgers = {i: i * 7 + 1 for i in range(25_001)}
    body = entry_log.ledgers_map(ledgers)
    path = tmp_path / "0.log"
    path.write_bytes(entry_log.file_header(1024, len(ledgers)) + body)
    assert mapped(path) == ledgers


@pytest.mark.parametrize("cut", [1, 500, 30_000])
def test_a_broken_map_is_no_map(tmp_path: Path, cut: int) -> None:
    ledgers = dict.fromkeys(range(12_000), 9)
    path = tmp_path / "0.log"
    path.write_bytes((entry_log.file_header(1024, len(ledgers)) + entry_log.ledgers_map(ledgers))[:-cut])
    assert mapped(path) is None
    path.write_bytes(bytes(2000))
    assert mapped(path) is None


def test_last_log_id(tmp_path: Path) -> None:
    assert entry_log.last_log_id(str(tmp_path)) == -1
    (tmp_path / "lastId").write_bytes(b"1f\n")
    assert entry_log.last_log_id(str(tmp_path)) == 0x1F
    (tmp_path / "2a.log").write_bytes(b"")
    assert entry_log.last_log_id(str(tmp_path)) == 0x2A
    (tmp_path / "2c.log.compacting").write_bytes(b"")
    assert entry_log.last_log_id(str(tmp_path)) == 0x2C
    (tmp_path / "2f.log.2a.compacted").write_bytes(b"")
    assert entry_log.last_log_id(str(tmp_path)) == 0x2F
    assert entry_log.entry_log_ids(str(tmp_path)) == [0x2A]
    for content in (b"what\n", b"-5\n", b"0x5\n", b"1_0\n", b"100000000\n"):
        (tmp_path / "lastId").write_bytes(content)
        with pytest.raises(CorruptFileError, match="lastId"):
            entry_log.last_log_id(str(tmp_path))


@pytest.mark.parametrize("at_once_bytes", [None, MOST_AT_ONCE_BYTES])
def test_reading_gives_the_entries_of_any_order_and_size(logs: Logs, at_once_bytes: int | None) -> None:
    sizes = {(ledger, entry): 32 + ledger * 1000 + entry * 13 for ledger in (1, 2, 90) for entry in range(30)}
    logs.write(*[(ledger, entry, size) for (ledger, entry), size in sizes.items()])
    for pairs in (sorted(sizes), sorted(sizes, reverse=True), [(90, 3)], [(1, 0), (90, 29)]):
        entries = logs.read(pairs, at_once_bytes=at_once_bytes)
        for i, pair in enumerate(pairs):
            assert bytes(entries.entry(i)) == stored(*pair, sizes[pair])
        assert not entries.contiguous or pairs == sorted(pairs)


def test_what_would_wait_for_a_disk_is_told(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.write((4, 0, 100))

    def cold(fd: int, buffers: object, offset: int, flags: int = 0) -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "preadv", cold)
    with pytest.raises(WouldBlockError):
        logs.read([(4, 0)], at_once_bytes=MOST_AT_ONCE_BYTES)
    assert logs.reader.read_one(4, 0, logs.locations[4, 0]) is None


def test_one_entry_at_once(logs: Logs) -> None:
    logs.write((4, 0, 100), (4, 1, 100), (4, 2, 50_000))
    found = logs.reader.read_one(4, 1, logs.locations[4, 1])
    assert found is not None
    assert bytes(found) == stored(4, 1)
    for ledger, entry, location in (
        (4, 0, logs.locations[4, 1]),
        (5, 1, logs.locations[4, 1]),
        (4, 1, 0x20),
        (4, 1, 7 << 32 | 0x404),
        (4, 2, logs.locations[4, 2]),  # larger than what was read before
    ):
        assert logs.reader.read_one(ledger, entry, location) is None


def test_contiguous_entries_are_a_copy_of_the_log(logs: Logs) -> None:
    logs.write(*[(4, i, 40 + i) for i in range(50)])
    entries = logs.read([(4, i) for i in range(10, 30)])
    assert entries.contiguous
    start, end = int(entries.starts[0]) - 4, int(entries.starts[-1] + entries.sizes[-1])
    assert bytes(entries.data[start:end]) == b"".join(record(4, i, 40 + i) for i in range(10, 30))


@pytest.mark.parametrize("size", [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\x0f", b"\0\x10\0\0"])
def test_a_garbage_size_is_unreadable_and_its_neighbours_are_not(logs: Logs, tmp_path: Path, size: bytes) -> None:
    logs.write(*[(4, i, 100) for i in range(5)])
    path = tmp_path / "0.log"
    content = bytearray(path.read_bytes())
    at = (logs.locations[4, 2] & 0xFFFFFFFF) - 4
    content[at : at + 4] = size
    path.write_bytes(bytes(content))
    assert (logs.read([(4, i) for i in range(5)]).sizes >= 0).tolist() == [True, True, False, True, True]
    assert logs.read([(4, 2)]).sizes.tolist() == [-1]


def test_another_entry_in_its_place_is_unreadable(logs: Logs) -> None:
    logs.write(*[(4, i, 100) for i in range(3)])
    logs.locations[4, 7] = logs.locations[4, 1]
    logs.locations[5, 1] = logs.locations[4, 1]
    assert logs.read([(4, 7)]).sizes.tolist() == [-1]
    assert logs.read([(5, 1)]).sizes.tolist() == [-1]
    assert logs.read([(4, 0), (4, 7), (4, 2)]).sizes.tolist() == [100, -1, 100]


def test_missing_and_short_logs_are_unreadable(logs: Logs, tmp_path: Path) -> None:
    logs.write((4, 0, 100), (4, 1, 100))
    path = tmp_path / "0.log"
    whole = path.read_bytes()
    path.write_bytes(whole[:-50])
    assert logs.read([(4, 0), (4, 1)]).sizes.tolist() == [100, -1]
    for location in (3 << 32 | 0x404, 0x20, -5):
        found = logs.reader.read(np.array([6]), np.array([0]), np.array([location]), 1, at_once_bytes=None)
        assert found.sizes.tolist() == [-1]


@pytest.mark.parametrize("size", [100, 65_572, 200_000])
def test_neighbours_are_fetched_by_one_call(logs: Logs, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    logs.write(*[(4, i, size) for i in range(10)])
    logs.read([(4, 0)])  # now the reader knows the size of entries
    calls: list[int] = []
    preadv = os.preadv

    def counted(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        calls.append(offset)
        return preadv(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", counted)
    entries = logs.read([(4, i) for i in range(10)])
    assert [bytes(entries.entry(i)) for i in range(10)] == [stored(4, i, size) for i in range(10)]
    assert len(calls) == 1


def test_large_entries_before_a_damaged_end_are_read(logs: Logs, tmp_path: Path) -> None:
    logs.write(*[(4, i, 70_000) for i in range(5)])
    logs.read([(4, 0)])
    os.truncate(tmp_path / "0.log", (logs.locations[4, 4] & 0xFFFFFFFF) + 10)
    left, good = [(4, i) for i in range(5)], []
    while left:
        sizes = logs.read(left).sizes.tolist()
        good += [size == 70_000 for size in sizes]
        left = left[len(sizes) :]
    assert good == [True, True, True, True, False]


@pytest.mark.parametrize(("limit", "count"), [(1, 1), (1003, 1), (2007, 1), (2008, 2), (9035, 8), (9036, 9), (9999, 9)])
def test_neighbours_that_do_not_fit_are_not_fetched(logs: Logs, limit: int, count: int) -> None:
    logs.write(*[(4, i, 1000) for i in range(9)], (5, 0, 5000))
    ids = [(4, i) for i in range(9)]
    logs.read(ids[:2])  # now the reader knows the size of entries
    entries = logs.read(ids, limit=limit)
    assert entries.sizes.tolist() == [1000] * count
    assert len(entries.data) == 1004 * count


def test_of_the_last_neighbour_the_size_is_guessed(logs: Logs) -> None:
    logs.write((4, 0, 1000), (4, 1, 1000), (4, 2, 60_000), (4, 3, 20))
    assert logs.read([(4, i) for i in range(3)], limit=3012).sizes.tolist() == [1000, 1000, 60_000]
    assert logs.read([(4, i) for i in range(4)], limit=3012).sizes.tolist() == [1000, 1000]


def test_entries_are_read_into_the_memory_that_is_given(logs: Logs) -> None:
    logs.write(*[(4, i, 1000) for i in range(9)])
    given: list[Bytes] = []

    def room(size_bytes: int) -> Bytes:
        given.append(np.empty(size_bytes, np.uint8))
        return given[-1]

    entries = logs.read([(4, i) for i in range(9)], room=room)
    assert entries.data is given[-1]
    assert [bytes(entries.entry(i)) for i in range(9)] == [stored(4, i, 1000) for i in range(9)]


def test_what_is_fetched_at_once_is_bounded(logs: Logs) -> None:
    half = [(5, i, 100_000 if i % 100 == 0 else 20) for i in range(1000)]
    logs.write(*half, *[(4, i, 1000) for i in range(1000)])
    ids = [(4, i) for i in range(1000)]
    for limit in (1, 5000, 100_000, 200_000):
        got = logs.read(ids, limit=limit)
        assert max(1, limit // 1200) <= len(got.sizes) <= limit // 1000 + 1
        assert len(got.data) <= limit + 20_000
        assert [bytes(got.entry(i)) for i in range(len(got.sizes))] == [
            stored(4, i, 1000) for i in range(len(got.sizes))
        ]
    assert len(logs.read(ids).sizes) == 1000
    logs.locations[4, 0] = 0x20
    assert logs.read(ids, limit=1).sizes.tolist()[0] == -1


def test_a_log_that_is_removed_while_it_is_read(logs: Logs, tmp_path: Path) -> None:
    """A reader that has it open goes on; whoever comes later does not find it."""
    logs.write((4, 0, 100))
    assert logs.read([(4, 0)]).sizes.tolist() == [100]
    (tmp_path / "0.log").unlink()
    assert logs.read([(4, 0)]).sizes.tolist() == [100]
    logs.reader.forget(0)
    assert logs.read([(4, 0)]).sizes.tolist() == [-1]
