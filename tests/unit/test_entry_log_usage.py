"""What an entry log holds: by its map, by a scan, and where it is damaged (B4, B5)."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bookie_server.gc.entry_log_usage import EntryLogUsage, EntryLogUsageCache, read_usage
from bookie_server.storage.entrylog import entry_log_scan
from bookie_server.storage.entrylog.entry_log import HEADER_BYTES, file_header, ledgers_map
from bookie_server.storage.entrylog.entry_log_scan import EntryLogScan, FoundEntries
from tests.support.collected_storage import SmallStorage, payload

KEYS = [(ledger_id, entry_id) for ledger_id in (3, 7, 9) for entry_id in range(40)]


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[SmallStorage]:
    with contextlib.closing(SmallStorage(tmp_path)) as storage:
        yield storage


def totals(usage: EntryLogUsage) -> dict[int, int]:
    return dict(zip(usage.ledger_ids.tolist(), usage.ledger_bytes.tolist(), strict=True))


def sizes_of(keys: list[tuple[int, int]]) -> dict[int, int]:
    result: dict[int, int] = {}
    for ledger_id, entry_id in keys:
        result[ledger_id] = result.get(ledger_id, 0) + 4 + len(payload(ledger_id, entry_id))
    return result


def scan_all(path: str) -> tuple[list[tuple[int, int]], str]:
    scan = EntryLogScan(path)
    found: list[tuple[int, int]] = []
    try:
        while not scan.at_end:
            step: FoundEntries = scan.step()
            found += zip(step.ledger_ids.tolist(), step.entry_ids.tolist(), strict=True)
    finally:
        scan.close()
    return found, scan.problem


@pytest.mark.parametrize("with_map", [True, False])
def test_map_and_scan_tell_the_same(storage: SmallStorage, with_map: bool) -> None:
    path = storage.write_log(5, KEYS, with_map=with_map)
    usage = read_usage(5, path)
    assert totals(usage) == sizes_of(KEYS)
    assert (usage.problem, usage.from_map, usage.file_bytes) == ("", with_map, os.path.getsize(path))
    assert usage.live_ledgers(np.array([1, 7, 9, 11])).tolist() == [7, 9]
    assert usage.live_bytes(np.array([7])) == sizes_of(KEYS)[7]
    assert usage.live_bytes(np.array([], np.int64)) == 0


def test_a_scan_finds_the_same_whatever_the_chunk(storage: SmallStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [(1, i) for i in range(500)] + [(2, 7)] * 300 + [(4, i % 3) for i in range(200)]
    path = storage.write_log(1, keys)
    for chunk_bytes in (997, 4096, 1024 * 1024):
        monkeypatch.setattr(entry_log_scan, "CHUNK_BYTES", chunk_bytes)
        assert scan_all(path) == (keys, "")


def test_maps_in_several_batches(tmp_path: Path) -> None:
    ledger_bytes = dict.fromkeys(range(25000), 24)
    path = tmp_path / "1.log"
    body = b"".join(struct.pack(">iqqi", 20, ledger_id, 0, 0) for ledger_id in ledger_bytes)
    path.write_bytes(file_header(HEADER_BYTES + len(body), 25_000) + body + ledgers_map(ledger_bytes))
    usage = read_usage(1, str(path))
    assert usage.from_map
    assert totals(usage) == ledger_bytes
    assert usage.size_in_memory < 1024 * 1024


@pytest.mark.parametrize(
    ("at", "damage"),
    [
        (8, struct.pack(">qi", 2**40, 3)),
        (8, struct.pack(">qi", 1500, 3)),
        (8, struct.pack(">qi", -1, 3)),
        (16, struct.pack(">i", 2**31 - 1)),
        (16, struct.pack(">i", 4)),
    ],
)
def test_a_pointer_to_no_map_is_not_believed(storage: SmallStorage, at: int, damage: bytes) -> None:
    path = storage.write_log(5, KEYS)
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(damage)
    usage = read_usage(5, path)
    assert not usage.from_map
    assert totals(usage) == sizes_of(KEYS)
    assert usage.problem == ""


@pytest.mark.parametrize("header", [bytes(HEADER_BYTES), b"\x5a" * HEADER_BYTES])
def test_b4_a_log_without_a_header_is_scanned_and_not_sound(storage: SmallStorage, header: bytes) -> None:
    path = storage.write_log(5, KEYS)
    with open(path, "r+b") as file:
        file.write(header)
    usage = read_usage(5, path)
    assert totals(usage) == sizes_of(KEYS)
    assert "header" in usage.problem


def test_a_record_cut_short_and_zeros_behind_the_last_are_noticed(storage: SmallStorage) -> None:
    path = storage.write_log(5, KEYS, with_map=False)
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[:-10])
    usage = read_usage(5, path)
    assert totals(usage) == sizes_of(KEYS[:-1])
    assert usage.problem
    Path(path).write_bytes(whole + bytes(3_000_000))
    usage = read_usage(5, path)
    assert totals(usage) == sizes_of(KEYS)
    assert usage.problem


@pytest.mark.parametrize(
    "garbage",
    [
        bytes(700),
        bytes(5_000_000),
        b"\xff" * 5000,
        struct.pack(">i", 2**31 - 1) + b"\x55" * 300,
        struct.pack(">iqq", 17, -5, 3) + b"\x55" * 100,
        struct.pack(">iqq", 50, 3, 2**60) + b"\x55" * 100,
        b"\x00\x00\x00\x05hello",
        np.random.default_rng(5).bytes(2_000_000),
    ],
    ids=["zeros", "many zeros", "negative", "huge", "ledger", "entry", "small", "random"],
)
def test_b5_what_follows_garbage_is_found(storage: SmallStorage, garbage: bytes) -> None:
    first = storage.write_log(1, KEYS[:50], with_map=False)
    second = storage.write_log(2, KEYS[50:], with_map=False)
    path = storage.directories.paths[0] + "/3.log"
    Path(path).write_bytes(Path(first).read_bytes() + garbage + Path(second).read_bytes()[HEADER_BYTES:])
    found, problem = scan_all(path)
    assert found == KEYS
    assert problem.startswith("no entry at ")


@pytest.mark.parametrize(
    "payload_bytes",
    [[22, 750, 22, 900, 900], [22] * 30],
    ids=["before what looks the same", "up to a record"],
)
def test_b5_ids_and_lengths_of_entries_are_not_taken_for_records(tmp_path: Path, payload_bytes: list[int]) -> None:
    """From the last bytes of an entry's id on: a size, the last add confirmed as ledger id, the length as entry id.
    What lies behind that record looks the same in the third entry, or the record ends where the fifteenth begins."""
    entries = [
        struct.pack(">qqqqI", 0, 848 + n, 847 + n, 18568, 0x55555555) + b"\x55" * size
        for n, size in enumerate(payload_bytes)
    ]
    records = [struct.pack(">i", len(entry)) + entry for entry in entries]
    damaged = bytearray(file_header() + b"".join(records))
    damaged[HEADER_BYTES] = 0xF0
    path = tmp_path / "1.log"
    path.write_bytes(damaged)
    found, problem = scan_all(str(path))
    assert found == [(0, 848 + n) for n in range(1, len(entries))]
    assert problem == f"no entry at {HEADER_BYTES}"


def test_b5_two_records_in_a_row_are_not_enough_where_they_are_no_clients_entries(tmp_path: Path) -> None:
    """The payload of an entry whose size is damaged holds what looks like two of them."""
    payloads = [struct.pack(">iqqiqq", 16, 7, 9, 16, 7, 10) + b"\x55" * 100, b"\x55" * 22, b"\x55" * 22]
    entries = [
        struct.pack(">qqqqI", 0, n, n - 1, 18568, 0x55555555) + payload_bytes
        for n, payload_bytes in enumerate(payloads)
    ]
    damaged = bytearray(file_header() + b"".join(struct.pack(">i", len(entry)) + entry for entry in entries))
    damaged[HEADER_BYTES] = 0xF0
    path = tmp_path / "1.log"
    path.write_bytes(damaged)
    assert scan_all(str(path))[0] == [(0, 1), (0, 2)]


def test_garbage_alone_ends(tmp_path: Path) -> None:
    path = tmp_path / "1.log"
    path.write_bytes(file_header() + struct.pack(">ixxxxxxxxxxxx", 20) * 200_000)
    found, problem = scan_all(str(path))
    assert problem
    assert len(found) <= 200_000


@pytest.mark.parametrize("size", [0, 3, 1023])
def test_b4_an_empty_file_is_not_sound(tmp_path: Path, size: int) -> None:
    path = tmp_path / "1.log"
    path.write_bytes(file_header()[:size])
    usage = read_usage(1, str(path))
    assert usage.problem
    assert totals(usage) == {}


def test_a_header_alone_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "1.log"
    path.write_bytes(file_header())
    assert read_usage(1, str(path)).problem == ""


def test_the_cache_is_bounded_and_drops_maps_first(storage: SmallStorage) -> None:
    paths = {
        entry_log_id: storage.write_log(entry_log_id, KEYS, with_map=entry_log_id != 2) for entry_log_id in range(1, 6)
    }
    size = read_usage(1, paths[1]).size_in_memory
    cache = EntryLogUsageCache(2 * size)
    scanned = cache.get(2, paths[2], lambda: None)
    for entry_log_id, path in paths.items():
        assert totals(cache.get(entry_log_id, path, lambda: None)) == sizes_of(KEYS)
    assert cache.get(2, paths[2], lambda: None) is scanned
    first = cache.get(1, paths[1], lambda: None)
    assert cache.get(1, paths[1], lambda: None) is first
    cache.keep_only({2})
    assert cache.get(1, paths[1], lambda: None) is not first


def test_a_scan_can_be_stopped(storage: SmallStorage) -> None:
    path = storage.write_log(5, KEYS, with_map=False)

    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        read_usage(5, path, stop)
