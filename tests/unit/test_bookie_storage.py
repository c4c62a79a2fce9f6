"""The storage as a whole, on real files: what survives a stop, a kill, full caches; what a checkpoint moves."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec

import numpy as np
import pytest

from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import CorruptFileError
from bookie_server.bookie import Bookie, Int32s
from bookie_server.storage import journal
from bookie_server.storage.checkpoint import read_last_mark
from bookie_server.storage.journal import LogMark
from bookie_server.storage.ledger_storage import LedgerStorage, StorageConfig
from bookie_server.storage.records import Records

P = ParamSpec("P")
KEY = bytes(range(20))
OTHER_KEY = bytes(20)


def stored(ledger_id: int, entry_id: int, size: int = 64, fill: bytes = b"e") -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0).ljust(size, fill)


def records(entries: Sequence[bytes]) -> Records:
    offsets = np.cumsum([0, *(len(entry) + 4 for entry in entries)])
    ids = np.array([struct.unpack_from(">qqq", entry.ljust(24, b"\0")) for entry in entries], np.int64)
    data = b"".join(struct.pack(">i", len(entry)) + entry for entry in entries)
    return Records(ids[:, 0].copy(), ids[:, 1].copy(), ids[:, 2].copy(), memoryview(data), offsets)


def in_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """Run a test that is a coroutine."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@pytest.fixture
def config(tmp_path: Path) -> StorageConfig:
    for name in ("journal", "ledgers"):
        (tmp_path / name).mkdir()
    return StorageConfig(str(tmp_path / "journal"), str(tmp_path / "ledgers"), flush_interval_ms=3_600_000)


class Running:
    """A bookie over a storage, with waiting calls."""

    def __init__(self, storage: LedgerStorage, failures: list[Exception]) -> None:
        self.storage = storage
        self.bookie = Bookie(storage)
        self.failures = failures

    async def add(self, *entries: bytes, key: bytes = KEY, recovery: bool = False) -> list[Code]:
        outcome: asyncio.Future[Code | Int32s] = asyncio.get_running_loop().create_future()
        self.bookie.add(records(entries), key, recovery=recovery, done=outcome.set_result)
        codes = await outcome
        return [codes] * len(entries) if isinstance(codes, Code) else [Code(code) for code in codes.tolist()]

    async def read(self, *ids: tuple[int, int]) -> list[bytes | Code]:
        ledgers = np.array([ledger for ledger, _ in ids], np.int64)
        entries = np.array([entry for _, entry in ids], np.int64)
        result: list[bytes | Code] = []
        while len(result) < len(ids):
            part = await self.bookie.read(ledgers[len(result) :], entries[len(result) :], 100_000)
            found = 0
            for code in part.codes.tolist():
                if code == Code.OK:
                    assert part.entries is not None
                    result.append(bytes(part.entries.entry(found)))
                    found += 1
                else:
                    result.append(Code(code))
        return result


@asynccontextmanager
async def running(config: StorageConfig) -> AsyncIterator[Running]:
    failures: list[Exception] = []
    storage = LedgerStorage(config, failures.append)
    storage.start()
    bookie = Running(storage, failures)
    try:
        yield bookie
    finally:
        await storage.close()
        bookie.bookie.close()


def copy_as_killed(config: StorageConfig, to: Path) -> StorageConfig:
    """The directories as they are now, as a kill -9 would leave them."""
    shutil.copytree(config.journal_directory, to / "journal")
    shutil.copytree(config.ledger_directory, to / "ledgers")
    return replace(config, journal_directory=str(to / "journal"), ledger_directory=str(to / "ledgers"))


@in_loop
async def test_add_and_read(config: StorageConfig) -> None:
    async with running(config) as bookie:
        entries = [stored(1, i, 64 + i) for i in range(3000)]
        assert set(await bookie.add(*entries)) == {Code.OK}
        assert await bookie.read(*[(1, i) for i in range(3000)]) == entries
        assert await bookie.read((1, 2999), (1, 5), (1, 7)) == [entries[2999], entries[5], entries[7]]
        assert await bookie.read((1, -1)) == [entries[-1]]
        assert await bookie.read((1, 3000), (1, 3), (2, 0), (1, -7)) == [
            Code.NO_ENTRY,
            entries[3],
            Code.NO_LEDGER,
            Code.NO_ENTRY,
        ]


@in_loop
async def test_a_read_waits_for_an_add_under_way(config: StorageConfig) -> None:
    async with running(config) as bookie:
        add = asyncio.ensure_future(bookie.add(stored(1, 0)))
        await asyncio.sleep(0)
        assert await bookie.read((1, 0)) == [stored(1, 0)]
        assert add.done()


@in_loop
async def test_several_ledgers_in_one_run(config: StorageConfig) -> None:
    async with running(config) as bookie:
        entries = [stored(i % 7, i // 7 + 1000, 50 + i) for i in range(700)]
        assert set(await bookie.add(*entries)) == {Code.OK}
        assert await bookie.read(*[(i % 7, i // 7 + 1000) for i in range(700)]) == entries
        order = np.random.default_rng(1).permutation(700).tolist()
        assert await bookie.read(*[(i % 7, i // 7 + 1000) for i in order]) == [entries[i] for i in order]


@in_loop
async def test_refusals_are_per_entry(config: StorageConfig) -> None:
    async with running(config) as bookie:
        assert await bookie.bookie.fence(2, KEY) is Code.OK
        assert await bookie.add(stored(3, 0), key=OTHER_KEY) == [Code.OK]
        codes = await bookie.add(
            stored(1, 0), stored(2, 0), stored(3, 1), stored(1, -4), stored(1, 1 << 41), stored(1, 9)[:20], stored(1, 1)
        )
        assert codes == [
            Code.OK,
            Code.FENCED,
            Code.UNAUTHORIZED,
            Code.BAD_REQUEST,
            Code.BAD_REQUEST,
            Code.BAD_REQUEST,
            Code.OK,
        ]
        assert await bookie.add(stored(2, 0), stored(2, 1)) == [Code.FENCED] * 2
        assert await bookie.add(stored(2, 0), recovery=True) == [Code.OK]
        assert await bookie.read((1, 0), (1, 1), (2, 0), (3, 1), (1, 9)) == [
            stored(1, 0),
            stored(1, 1),
            stored(2, 0),
            Code.NO_ENTRY,
            Code.NO_ENTRY,
        ]


@in_loop
async def test_the_last_add_of_an_entry_wins(config: StorageConfig, tmp_path: Path) -> None:
    async with running(config) as bookie:
        await bookie.add(stored(1, 0, fill=b"a"), stored(1, 1), stored(1, 0, fill=b"b"))
        assert await bookie.read((1, 0)) == [stored(1, 0, fill=b"b")]
        await bookie.storage.checkpoint()
        await bookie.add(stored(1, 0, fill=b"c"))
        assert await bookie.read((1, 0)) == [stored(1, 0, fill=b"c")]
        killed = copy_as_killed(config, tmp_path / "killed")
    async with running(killed) as bookie:
        assert await bookie.read((1, 0), (1, 1)) == [stored(1, 0, fill=b"c"), stored(1, 1)]


@pytest.mark.parametrize("end", ["stop", "kill", "kill after checkpoint", "kill twice"])
@in_loop
async def test_everything_answered_is_there_after_a_restart(config: StorageConfig, tmp_path: Path, end: str) -> None:
    entries = {(ledger, i): stored(ledger, i, 100 + i) for ledger in (1, 2) for i in range(1500)}
    async with running(config) as bookie:
        pairs = list(entries)
        await bookie.add(*[entries[pair] for pair in pairs[:1000]])
        assert await bookie.bookie.fence(1, KEY) is Code.OK
        if end == "kill after checkpoint":
            await bookie.storage.checkpoint()
        await bookie.add(*[entries[pair] for pair in pairs[1000:]], recovery=True)
        packet = struct.pack(">qq", 2, 77) + b"dig"
        assert await bookie.bookie.write_lac(struct.pack(">qq", 4, 78), KEY) is Code.OK
        assert await bookie.bookie.write_lac(packet, KEY) is Code.OK
        assert await bookie.bookie.fence(3, KEY) is Code.OK
        after = copy_as_killed(config, tmp_path / "killed")
    if end == "stop":
        after = config
    if end == "kill twice":
        LedgerStorage(after, lambda error: None)
        after = copy_as_killed(after, tmp_path / "again")
    async with running(after) as bookie:
        assert await bookie.read(*entries) == list(entries.values())
        assert await bookie.read((1, -1), (2, -1), (3, -1)) == [entries[1, 1499], entries[2, 1499], Code.NO_ENTRY]
        assert await bookie.add(stored(1, 5)) == [Code.FENCED]
        assert await bookie.add(stored(3, 0)) == [Code.FENCED]
        assert await bookie.add(stored(2, 1500), key=OTHER_KEY) == [Code.UNAUTHORIZED]
        assert await bookie.add(stored(2, 1500)) == [Code.OK]
        handle = bookie.storage.handles.get(4)
        assert handle is not None
        assert await bookie.bookie.known_lac(handle) == 78
        handle = bookie.storage.handles.get(2)
        assert handle is not None
        assert handle.explicit_lac == packet
        assert await bookie.bookie.known_lac(handle) == 1499
        assert await bookie.add(stored(50, -1), stored(51, 1 << 50)) == [Code.BAD_REQUEST] * 2
        assert await bookie.read((50, 0), (51, 0)) == [Code.NO_LEDGER] * 2


@in_loop
async def test_known_lac_is_found_in_the_last_entry_after_a_restart(config: StorageConfig) -> None:
    async with running(config) as bookie:
        await bookie.add(stored(1, 0), stored(1, 1), stored(1, 2))
    async with running(config) as bookie:
        handle = bookie.storage.handles.get(1)
        assert handle is not None
        assert await bookie.bookie.known_lac(handle) == 1


@in_loop
async def test_fence_waits_for_its_record_and_is_journaled_once(config: StorageConfig, tmp_path: Path) -> None:
    async with running(config) as bookie:
        add = asyncio.ensure_future(bookie.add(stored(1, 0)))
        await asyncio.sleep(0)
        first, second = bookie.bookie.fence(1, KEY), bookie.bookie.fence(1, KEY)
        assert not first.done()
        assert not second.done()
        assert await bookie.add(stored(1, 1)) == [Code.FENCED]
        assert (await first, await second) == (Code.OK, Code.OK)
        assert add.done()
        assert await add == [Code.OK]
        third = bookie.bookie.fence(1, KEY)
        assert third.done()
        assert await bookie.bookie.fence(1, OTHER_KEY) is Code.UNAUTHORIZED
        files = list(Path(config.journal_directory).glob("*.txn"))
        content = b"".join(file.read_bytes() for file in files)
        assert content.count(journal.fence_record(1)) == 1
        assert content.count(journal.master_key_record(1, KEY)) == 1
        assert content.index(journal.master_key_record(1, KEY)) < content.index(stored(1, 0))


@in_loop
async def test_checkpoint_moves_the_mark_forward_and_drops_journals(config: StorageConfig) -> None:
    config = replace(config, journal_max_bytes=10_000, journal_max_backups=2)
    directory = Path(config.journal_directory)
    marks = []
    async with running(config) as bookie:
        marks.append(read_last_mark(config.ledger_directory))
        for i in range(12):
            await bookie.add(stored(1, i, 6000))
            if i % 3 == 2:
                await asyncio.gather(*(bookie.storage.checkpoint() for _ in range(3)))
                marks.append(read_last_mark(config.ledger_directory))
        assert len(list(directory.glob("*.txn"))) == 3
        assert marks[-1].journal_id == max(journal.journal_ids(str(directory)))
    assert marks == sorted(set(marks))
    async with running(config) as bookie:
        assert await bookie.read(*[(1, i) for i in range(12)]) == [stored(1, i, 6000) for i in range(12)]
        assert read_last_mark(config.ledger_directory) > marks[-1]


@in_loop
async def test_entry_logs_roll_and_all_are_read(config: StorageConfig) -> None:
    config = replace(config, log_size_limit_bytes=100_000)
    entries = {(1 + i % 2, i): stored(1 + i % 2, i, 5000) for i in range(100)}
    for _ in range(2):
        async with running(config) as bookie:
            for i in range(0, 100, 4):
                await bookie.add(*list(entries.values())[i : i + 4])
            assert await bookie.read(*entries) == list(entries.values())
    logs = list(Path(config.ledger_directory).glob("*.log"))
    assert len(logs) >= 11
    assert max(log.stat().st_size for log in logs) < 101_000


@in_loop
async def test_caches_smaller_than_the_ledgers(config: StorageConfig, tmp_path: Path) -> None:
    """More ledgers and pages than memory may hold: they come and go, before, during and after checkpoints."""
    config = replace(config, index_cache_bytes=1, handle_limit=8)
    generator = np.random.default_rng(7)
    entries: dict[tuple[int, int], bytes] = {}
    async with running(config) as bookie:
        for round_number in range(30):
            batch = []
            for ledger in generator.integers(0, 100, 40).tolist():
                entry = int(generator.integers(0, 20_000))
                content = stored(ledger, entry, 40 + int(generator.integers(0, 50)), b"%d" % (round_number % 10))
                entries[ledger, entry] = content
                batch.append(content)
            checkpoint = asyncio.ensure_future(bookie.storage.checkpoint()) if round_number % 5 == 0 else None
            assert set(await bookie.add(*batch)) == {Code.OK}
            if checkpoint is not None:
                await checkpoint
        assert bookie.storage.cache.size_bytes < 64 * 8192 + 9000
        assert await bookie.read(*entries) == list(entries.values())
        await bookie.storage.checkpoint()
        await bookie.add(stored(1000, 0))
        assert len(list(bookie.storage.handles)) <= 9
        killed = copy_as_killed(config, tmp_path / "killed")
    for end in (config, killed):
        async with running(end) as bookie:
            assert await bookie.read(*entries) == list(entries.values())
            assert await bookie.add(stored(min(entries)[0], 1), key=OTHER_KEY) == [Code.UNAUTHORIZED]


@in_loop
async def test_a_corrupt_entry_is_an_error_and_not_absent(config: StorageConfig) -> None:
    async with running(config) as bookie:
        await bookie.add(*[stored(1, i, 500) for i in range(10)])
    log = next(Path(config.ledger_directory).glob("*.log"))
    content = bytearray(log.read_bytes())
    at = content.index(stored(1, 4, 500))
    content[at : at + 16] = bytes(16)
    log.write_bytes(bytes(content))
    async with running(config) as bookie:
        assert await bookie.read((1, 3), (1, 4), (1, 5)) == [stored(1, 3, 500), Code.IO_ERROR, stored(1, 5, 500)]
        code, found = await bookie.bookie.read_batch(1, 0, 0, 1 << 20)
        assert code is Code.OK
        assert sum(len(part.sizes) for part in found) == 4
        assert (await bookie.bookie.read_batch(1, 4, 0, 1 << 20))[0] is Code.IO_ERROR
    log.unlink()
    async with running(config) as bookie:
        assert await bookie.read((1, 3)) == [Code.IO_ERROR]


@in_loop
async def test_a_broken_index_file_is_set_aside_and_the_rest_served(config: StorageConfig, tmp_path: Path) -> None:
    async with running(config) as bookie:
        await bookie.add(stored(1, 0), stored(2, 0))
        await bookie.storage.checkpoint()
        await bookie.add(stored(1, 1), stored(2, 1))
        killed = copy_as_killed(config, tmp_path / "killed")
    path = Path(killed.ledger_directory) / "0" / "1" / "1.idx"
    path.write_bytes(b"garbage!" + path.read_bytes()[8:])
    async with running(killed) as bookie:
        assert await bookie.read((1, 0), (2, 0), (2, 1)) == [Code.IO_ERROR, stored(2, 0), stored(2, 1)]
        assert await bookie.add(stored(1, 2)) == [Code.IO_ERROR]
    with path.open("r+b") as file:
        file.write(b"BKLE\0\0\0\1")
    async with running(killed) as bookie:
        assert await bookie.read((1, 0), (1, 1)) == [stored(1, 0), stored(1, 1)]


@in_loop
async def test_batch_reads(config: StorageConfig) -> None:
    entries = [stored(1, i, 100) for i in range(2500)]

    async def batch(bookie: Running, first: int, count: int, limit: int) -> list[bytes]:
        code, parts = await bookie.bookie.read_batch(1, first, count, limit)
        assert code is Code.OK
        return [bytes(part.entry(i)) for part in parts for i in range(len(part.sizes))]

    async with running(config) as bookie:
        for i in range(0, 2500, 100):
            await bookie.add(*entries[i : i + 100])
            await bookie.add(stored(2, i, 20_000))
        await bookie.add(stored(1, 2502))
        assert await batch(bookie, 0, 0, 1 << 20) == entries
        assert await batch(bookie, 7, 5, 1 << 20) == entries[7:12]
        assert await batch(bookie, 7, 0, 104 * 20) == entries[7:27]
        assert await batch(bookie, 7, 0, 104 * 20 - 1) == entries[7:26]
        assert await batch(bookie, 7, 0, 1) == entries[7:8]
        assert await batch(bookie, 7, 0, -5) == entries[7:8]
        assert await batch(bookie, 2490, 100, 1 << 20) == entries[2490:]
        assert await batch(bookie, -1, 100, 1 << 20) == [stored(1, 2502)]
        assert (await bookie.bookie.read_batch(1, 2500, 1, 1000))[0] is Code.NO_ENTRY
        assert (await bookie.bookie.read_batch(5, 0, 1, 1000))[0] is Code.NO_LEDGER


@in_loop
async def test_a_failing_disk_is_told_and_nothing_more_is_accepted(config: StorageConfig) -> None:
    async with running(config) as bookie:
        assert await bookie.add(stored(1, 0)) == [Code.OK]
        fd = bookie.storage._journal._fd
        read_only = os.open("/dev/full", os.O_WRONLY)
        os.dup2(read_only, fd)
        os.close(read_only)
        first = asyncio.ensure_future(bookie.add(stored(1, 1)))
        assert await first == [Code.IO_ERROR]
        assert await bookie.bookie.fence(1, KEY) is Code.IO_ERROR
        assert await bookie.add(stored(2, 1)) == [Code.IO_ERROR]
        assert await bookie.bookie.force() is Code.IO_ERROR
        assert len(bookie.failures) == 1
        assert await bookie.read((1, 0), (1, 1)) == [stored(1, 0), Code.NO_ENTRY]


@in_loop
async def test_start_without_the_marks_journal_is_refused(config: StorageConfig) -> None:
    async with running(config) as bookie:
        await bookie.add(stored(1, 0))
    mark = read_last_mark(config.ledger_directory)
    (Path(config.journal_directory) / journal.file_name(mark.journal_id)).unlink()
    with pytest.raises(CorruptFileError, match=f"{mark.journal_id:x}.txn"):
        LedgerStorage(config, lambda error: None)


@in_loop
async def test_a_crash_at_start_after_a_torn_journal_does_not_hinder_the_next_start(
    config: StorageConfig, tmp_path: Path
) -> None:
    async with running(config) as bookie:
        await bookie.add(stored(1, 0))
        await bookie.add(stored(1, 1))
        killed = copy_as_killed(config, tmp_path / "killed")
    (newest,) = Path(killed.journal_directory).glob("*.txn")
    content = newest.read_bytes()
    at = content.index(stored(1, 1))
    newest.write_bytes(content[:at] + b"\xff" * 300 + bytes(5000))
    mark = read_last_mark(killed.ledger_directory)
    LedgerStorage(killed, lambda error: None)
    # The crash came when the new journal was there and the mark not yet.
    (Path(killed.ledger_directory) / "lastMark").write_bytes(struct.pack(">qq", mark.journal_id, mark.offset))
    async with running(killed) as bookie:
        assert await bookie.read((1, 0), (1, 1)) == [stored(1, 0), Code.NO_ENTRY]


@in_loop
async def test_entries_without_a_known_key_are_left_out_of_replay(config: StorageConfig) -> None:
    data = records([stored(5, 0), stored(6, 0), stored(5, 1)])
    content = journal.master_key_record(5, KEY) + bytes(data.data) + journal.fence_record(77)
    content = journal.file_header() + content + journal.group_end(512, [content], len(content))
    (Path(config.journal_directory) / "1.txn").write_bytes(content)
    async with running(config) as bookie:
        assert await bookie.read((5, 0), (5, 1), (6, 0)) == [stored(5, 0), stored(5, 1), Code.NO_LEDGER]
    assert read_last_mark(config.ledger_directory) == LogMark(2, 512)


@in_loop
async def test_long_poll(config: StorageConfig) -> None:
    async with running(config) as bookie:
        await bookie.add(stored(1, 0))
        handle = bookie.storage.handles.get(1)
        assert handle is not None
        assert await bookie.bookie.wait_for_lac(handle, -1, 10) is False
        wait = asyncio.ensure_future(bookie.bookie.wait_for_lac(handle, -1, 60_000))
        await asyncio.sleep(0)
        await bookie.add(stored(1, 1))
        assert await wait is True
        wait = asyncio.ensure_future(bookie.bookie.wait_for_lac(handle, 5, 60_000))
        await asyncio.sleep(0)
        await bookie.bookie.write_lac(struct.pack(">qq", 1, 6), KEY)
        assert await wait is True
        wait = asyncio.ensure_future(bookie.bookie.wait_for_lac(handle, 9, 60_000))
        await asyncio.sleep(0)
        await bookie.bookie.fence(1, KEY)
        assert await wait is True
        assert handle.lac_watchers == []
