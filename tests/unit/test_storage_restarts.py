"""What survives a stop, a kill, full caches, damaged files; what a checkpoint moves."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import numpy as np
import pytest

from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.journal import journal
from bookie_server.storage.journal.log_mark import LogMark
from tests.support.running_storage import KEY, OTHER_KEY, Place, in_loop, records, running, stored


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.make(tmp_path / "bookie")


@in_loop
async def test_the_last_add_of_an_entry_wins(place: Place, tmp_path: Path) -> None:
    async with running(place) as bookie:
        await bookie.add(stored(1, 0, fill=b"a"), stored(1, 1), stored(1, 0, fill=b"b"))
        assert await bookie.read((1, 0)) == [stored(1, 0, fill=b"b")]
        await bookie.storage.checkpoint()
        await bookie.add(stored(1, 0, fill=b"c"))
        assert await bookie.read((1, 0)) == [stored(1, 0, fill=b"c")]
        killed = place.killed(tmp_path / "killed")
    async with running(killed) as bookie:
        assert await bookie.read((1, 0), (1, 1)) == [stored(1, 0, fill=b"c"), stored(1, 1)]


@pytest.mark.parametrize("end", ["stop", "kill", "kill after checkpoint", "kill twice"])
@in_loop
async def test_everything_answered_is_there_after_a_restart(place: Place, tmp_path: Path, end: str) -> None:
    entries = {(ledger, i): stored(ledger, i, 100 + i) for ledger in (1, 2) for i in range(1500)}
    async with running(place) as bookie:
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
        after = place.killed(tmp_path / "killed")
    if end == "stop":
        after = place
    if end == "kill twice":
        after.storage()
        after = after.killed(tmp_path / "again")
    async with running(after) as bookie:
        assert await bookie.read(*entries) == list(entries.values())
        assert await bookie.read((1, -1), (2, -1), (3, -1)) == [entries[1, 1499], entries[2, 1499], Code.NO_ENTRY]
        assert await bookie.add(stored(1, 5)) == [Code.FENCED]
        assert await bookie.add(stored(3, 0)) == [Code.FENCED]
        assert await bookie.add(stored(2, 1500), key=OTHER_KEY) == [Code.UNAUTHORIZED]
        assert await bookie.add(stored(2, 1500)) == [Code.OK]
        descriptor = bookie.storage.descriptors.get(4)
        assert descriptor is not None
        assert await bookie.bookie.known_lac(descriptor) == 78
        descriptor = bookie.storage.descriptors.get(2)
        assert descriptor is not None
        assert descriptor.explicit_lac == packet
        assert await bookie.bookie.known_lac(descriptor) == 1499
        assert await bookie.add(stored(50, -1), stored(51, 1 << 50)) == [Code.BAD_REQUEST] * 2
        assert await bookie.read((50, 0), (51, 0)) == [Code.NO_LEDGER] * 2


@in_loop
async def test_checkpoint_moves_the_mark_forward_and_drops_journals(place: Place) -> None:
    place = place.with_settings(journal_max_bytes=10_000, journal_max_backups=2)
    directory = place.journal
    marks = []
    async with running(place) as bookie:
        marks.append(place.marks()[0])
        for i in range(12):
            await bookie.add(stored(1, i, 6000))
            if i % 3 == 2:
                await asyncio.gather(*(bookie.storage.checkpoint() for _ in range(3)))
                marks.append(place.marks()[0])
        assert len(list(directory.glob("*.txn"))) == 3
        assert marks[-1].journal_id == max(journal.journal_ids(str(directory)))
    assert marks == sorted(set(marks))
    async with running(place) as bookie:
        assert await bookie.read(*[(1, i) for i in range(12)]) == [stored(1, i, 6000) for i in range(12)]
        assert place.marks()[0] > marks[-1]


@in_loop
async def test_entry_logs_roll_and_all_are_read(place: Place) -> None:
    place = place.with_settings(entry_log_size_limit_bytes=100_000)
    entries = {(1 + i % 2, i): stored(1 + i % 2, i, 5000) for i in range(100)}
    for _ in range(2):
        async with running(place) as bookie:
            for i in range(0, 100, 4):
                await bookie.add(*list(entries.values())[i : i + 4])
            assert await bookie.read(*entries) == list(entries.values())
    logs = list(place.ledger.glob("*.log"))
    assert len(logs) >= 11
    assert max(log.stat().st_size for log in logs) < 101_000


@in_loop
async def test_caches_smaller_than_the_ledgers(place: Place, tmp_path: Path) -> None:
    """More ledgers and pages than memory may hold: they come and go, before, during and after checkpoints."""
    place = place.with_settings(index_cache_bytes=1, descriptor_limit=8)
    generator = np.random.default_rng(7)
    entries: dict[tuple[int, int], bytes] = {}
    async with running(place) as bookie:
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
        assert len(list(bookie.storage.descriptors)) <= 9
        killed = place.killed(tmp_path / "killed")
    for end in (place, killed):
        async with running(end) as bookie:
            assert await bookie.read(*entries) == list(entries.values())
            assert await bookie.add(stored(min(entries)[0], 1), key=OTHER_KEY) == [Code.UNAUTHORIZED]


@in_loop
async def test_a_broken_index_file_is_set_aside_and_the_rest_served(place: Place, tmp_path: Path) -> None:
    async with running(place) as bookie:
        await bookie.add(stored(1, 0), stored(2, 0))
        await bookie.storage.checkpoint()
        await bookie.add(stored(1, 1), stored(2, 1))
        killed = place.killed(tmp_path / "killed")
    path = killed.ledger / "0" / "1" / "1.idx"
    path.write_bytes(b"garbage!" + path.read_bytes()[8:])
    async with running(killed) as bookie:
        assert await bookie.read((1, 0), (2, 0), (2, 1)) == [Code.IO_ERROR, stored(2, 0), stored(2, 1)]
        assert await bookie.add(stored(1, 2)) == [Code.IO_ERROR]
    with path.open("r+b") as file:
        file.write(b"BKLE\0\0\0\1")
    async with running(killed) as bookie:
        assert await bookie.read((1, 0), (1, 1)) == [stored(1, 0), stored(1, 1)]


@in_loop
async def test_start_without_the_marks_journal_is_refused(place: Place) -> None:
    async with running(place) as bookie:
        await bookie.add(stored(1, 0))
    mark = place.marks()[0]
    (place.journal / journal.file_name(mark.journal_id)).unlink()
    with pytest.raises(CorruptFileError, match=f"{mark.journal_id:x}.txn"):
        place.storage()


@in_loop
async def test_a_crash_at_start_after_a_torn_journal_does_not_hinder_the_next_start(
    place: Place, tmp_path: Path
) -> None:
    async with running(place) as bookie:
        await bookie.add(stored(1, 0))
        await bookie.add(stored(1, 1))
        killed = place.killed(tmp_path / "killed")
    (newest,) = killed.journal.glob("*.txn")
    content = newest.read_bytes()
    at = content.index(stored(1, 1))
    newest.write_bytes(content[:at] + b"\xff" * 300 + bytes(5000))
    mark = killed.marks()[0]
    killed.storage()
    # The crash came when the new journal was there and the mark not yet.
    (killed.ledger / "lastMark").write_bytes(struct.pack(">qq", mark.journal_id, mark.offset))
    async with running(killed) as bookie:
        assert await bookie.read((1, 0), (1, 1)) == [stored(1, 0), Code.NO_ENTRY]


@in_loop
async def test_entries_without_a_known_key_are_left_out_of_replay(place: Place) -> None:
    data = records([stored(5, 0), stored(6, 0), stored(5, 1)])
    content = journal.master_key_record(5, KEY) + bytes(data.data) + journal.fence_record(77)
    nonce = journal.new_nonce()
    content = journal.file_header(nonce) + content + journal.group_end(nonce, 512, [content], len(content))
    (place.journal / "1.txn").write_bytes(content)
    async with running(place) as bookie:
        assert await bookie.read((5, 0), (5, 1), (6, 0)) == [stored(5, 0), stored(5, 1), Code.NO_LEDGER]
    assert place.marks()[0] == LogMark(2, 512)
