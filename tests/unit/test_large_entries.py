"""Large entries go to an entry log before they are acknowledged, and the journal says where they are."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bk_spark.bkctl import main
from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import CorruptFileError
from bookie_server.gc.entry_log_usage import read_usage
from bookie_server.offline.journals import JournalFile, RecordKind
from bookie_server.storage.disk.files import SyncFailedError
from bookie_server.storage.entrylog.entry_log import OFFSET_BITS
from bookie_server.storage.journal import journal
from bookie_server.storage.journal.journal import FenceRecord, MasterKeyRecord
from bookie_server.storage.journal.journal_reader import JournalReader
from bookie_server.storage.journal.located_record import LocatedRecord, located_record, parse_located
from bookie_server.storage.journal.named_logs import highest_named_log
from bookie_server.storage.records import Records
from tests.support.failing_os import FailingOs
from tests.support.running_storage import KEY, Place, Running, delete_ledger, in_loop, records, running, stored

LARGE = 1000
#: Bytes of an entry that is not large.
SMALL = 100


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.make(tmp_path / "bookie", large_entry_bytes=500)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingOs:
    return FailingOs(monkeypatch)


def large(ledger_id: int, entry_id: int, fill: bytes = b"L") -> bytes:
    return stored(ledger_id, entry_id, LARGE, fill)


def items(place: Place) -> list[Any]:
    """All that the journals hold."""
    found: list[Any] = []
    for journal_id in journal.journal_ids(str(place.journal)):
        found += JournalReader(str(place.journal / journal.file_name(journal_id))).items()
    return found


def versions(place: Place) -> list[int]:
    """The versions of the journals."""
    names = [journal.file_name(journal_id) for journal_id in journal.journal_ids(str(place.journal))]
    return [int.from_bytes((place.journal / name).read_bytes()[4:8], "big") for name in names]


async def check(bookie: Running, entries: dict[tuple[int, int], bytes]) -> None:
    """Every way of reading finds these entries."""
    assert await bookie.read(*entries) == list(entries.values())
    assert [bookie.read_now(*pair) or entries[pair] for pair in entries] == list(entries.values())
    for ledger in {ledger for ledger, _ in entries}:
        ids = sorted(entry for each, entry in entries if each == ledger)
        assert await bookie.entry_ids(ledger) == ids
        assert await bookie.batch(ledger, ids[0]) == [entries[ledger, entry] for entry in ids]


@pytest.mark.parametrize("direct", [False, True])
@in_loop
async def test_each_byte_is_written_once(place: Place, tmp_path: Path, direct: bool) -> None:
    place = place.with_settings(entry_log_direct_io=direct)
    entries = {(ledger, i): large(ledger, i) for ledger in (1, 2) for i in range(5)}
    small = {(1, 5): stored(1, 5, SMALL)}
    async with running(place) as bookie:
        assert set(await bookie.add(*entries.values())) == {Code.OK}
        assert await bookie.add(*small.values()) == [Code.OK]
        await check(bookie, entries | small)
        killed = place.killed(tmp_path / "killed")
        assert bookie.storage.write_cache.active.data_bytes == SMALL + 4
        found = items(place)
        assert [type(item) for item in found] == [MasterKeyRecord, MasterKeyRecord, LocatedRecord, Records]
        await bookie.storage.checkpoint()
        await check(bookie, entries | small)
        large_log = place.ledger / "0.log"
        assert large_log.read_bytes().count(b"L" * (LARGE - 32)) == len(entries)
    assert [path.read_bytes().count(b"L" * (LARGE - 32)) for path in place.logs()] == [len(entries), 0]
    assert read_usage(0, str(large_log)).from_map
    for after in (place, killed):
        async with running(after) as bookie:
            await check(bookie, entries | small)


@in_loop
async def test_readjournal_says_where_they_are(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    async with running(place) as bookie:
        await bookie.add(large(1, 0), large(2, 7, b"M"), large(1, 1))
        (path,) = [place.journal / journal.file_name(each) for each in journal.journal_ids(str(place.journal))][-1:]
    found = [each for each in JournalFile(str(path)).records() if each.kind is RecordKind.LOCATED]
    assert [(each.ledger_id, each.entry_id) for each in found] == [(1, 0), (2, 7), (1, 1)]
    for each in found:
        assert each.location is not None
        name, offset = each.location
        at = (place.ledger / name).read_bytes()[offset : offset + 20]
        assert struct.unpack(">iqq", at) == (LARGE, each.ledger_id, each.entry_id)
    assert main(["readjournal", str(path), "--ledger", "2", "--first-entry", "7", "--json"]) == 0
    *_, told = map(json.loads, capsys.readouterr().out.splitlines())
    assert (told["kind"], told["entry"]) == ("located", 7)
    assert (told["entry_log"], told["entry_log_offset"]) == found[1].location


@in_loop
async def test_only_runs_of_large_entries(place: Place) -> None:
    async with running(place) as bookie:
        await bookie.add(large(1, 0), stored(1, 1, SMALL))
        assert LocatedRecord not in [type(item) for item in items(place)]
        assert versions(place)[-1] == 6


@pytest.mark.parametrize("settings", [{"large_entry_bytes": 0}, {"journal_sync_data": False}])
@in_loop
async def test_off(place: Place, settings: dict[str, Any]) -> None:
    async with running(place.with_settings(**settings)) as bookie:
        assert await bookie.add(large(1, 0)) == [Code.OK]
        await check(bookie, {(1, 0): large(1, 0)})
        assert [type(item) for item in items(place)] == [MasterKeyRecord, Records]
        assert place.logs() == []


@in_loop
async def test_apaches_bookie_is_kept_off_until_a_clean_stop(place: Place, tmp_path: Path) -> None:
    """It would skip what a journal says about entry logs, so it must not know the journal's version."""
    async with running(place) as bookie:
        await bookie.add(stored(1, 0, SMALL))
        assert versions(place) == [6]
        await bookie.add(large(1, 1))
        await bookie.add(stored(1, 2, SMALL))
        await bookie.storage.checkpoint()
        assert versions(place)[-1] == 7
        killed = place.killed(tmp_path / "killed")
    assert versions(place)[-1] == 6
    (mark,) = place.marks()
    assert mark.journal_id == journal.journal_ids(str(place.journal))[-1]
    async with running(killed) as bookie:
        assert await bookie.read((1, 0), (1, 1), (1, 2)) == [stored(1, 0, SMALL), large(1, 1), stored(1, 2, SMALL)]
    assert versions(killed)[-1] == 6


@in_loop
async def test_a_journal_stays_as_it_is_where_the_last_flush_fails(place: Place, disk: FailingOs) -> None:
    async with running(place, clean_end=False) as bookie:
        await bookie.add(large(1, 0))
        disk.fail("replace")
    disk.heal()
    assert versions(place)[-1] == 7
    async with running(place) as bookie:
        await check(bookie, {(1, 0): large(1, 0)})
    assert versions(place)[-1] == 6


@in_loop
async def test_the_newest_copy_wins_in_every_order(place: Place, tmp_path: Path) -> None:
    """Large, then small, then large again, with and without flushes between: as it was added, so it is replayed."""
    contents = [large(1, 0, b"a"), stored(1, 0, SMALL, b"b"), large(1, 0, b"c"), stored(1, 0, SMALL, b"d")]
    for flushes in range(1 << len(contents)):
        here = Place.make(tmp_path / f"flushes {flushes}", large_entry_bytes=500)
        async with running(here) as bookie:
            for i, content in enumerate(contents):
                assert await bookie.add(content) == [Code.OK]
                assert await bookie.read((1, 0)) == [content]
                assert bookie.read_now(1, 0) in (content, None)
                killed = here.killed(tmp_path / f"killed {flushes} {i}")
                if flushes >> i & 1:
                    await bookie.storage.checkpoint()
                    assert await bookie.read((1, 0)) == [content]
                async with running(killed) as again:
                    assert await again.read((1, 0)) == [content]


@in_loop
async def test_adds_before_a_fence_are_durable_when_it_is_answered(
    place: Place, tmp_path: Path, disk: FailingOs
) -> None:
    async with running(place) as bookie:
        await bookie.add(large(1, 0))
        block = disk.block("fdatasync")
        before = asyncio.ensure_future(bookie.add(large(1, 1)))
        while not block.reached.is_set():
            await asyncio.sleep(0.001)
        fence = bookie.bookie.fence(1, KEY)
        assert await bookie.add(large(1, 2)) == [Code.FENCED]
        await asyncio.sleep(0.05)  # an answer that does not wait for the disk would be there
        assert not before.done()
        assert not fence.done()
        block.release()
        assert await fence is Code.OK
        assert before.done()
        killed = place.killed(tmp_path / "killed")
    kinds = [type(item) for item in items(killed)]
    assert kinds.index(FenceRecord) > kinds.index(LocatedRecord)
    async with running(killed) as bookie:
        assert await bookie.read((1, 0), (1, 1)) == [large(1, 0), large(1, 1)]
        assert await bookie.add(large(1, 2)) == [Code.FENCED]


@pytest.mark.parametrize("room_bytes", [0, 1, 700, 2000])
@in_loop
async def test_entry_logs_without_room_leave_large_entries_to_the_journal(
    place: Place, disk: FailingOs, room_bytes: int, tmp_path: Path
) -> None:
    entries = {(1, i): large(1, i) for i in range(6)}
    async with running(place.with_settings(journal_direct_io=False)) as bookie:
        assert set(await bookie.add(*[entries[1, i] for i in range(2)])) == {Code.OK}
        left = room_bytes

        def write(fd: int, buffers: list[Any], offset: int) -> int:
            nonlocal left
            if not os.readlink(f"/proc/self/fd/{fd}").endswith(".log"):
                return os.pwritev(fd, buffers, offset)
            if not left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            taken = b"".join(buffers)[:left]
            left -= len(taken)
            return os.pwrite(fd, taken, offset)

        disk.on("pwritev", write)
        assert set(await bookie.add(*[entries[1, i] for i in (2, 3)])) == {Code.OK}
        await check(bookie, {pair: entry for pair, entry in entries.items() if pair[1] < 4})
        disk.heal()
        bookie.storage.directories.set_writable(place.ledgers[0], True, "")
        assert set(await bookie.add(*[entries[1, i] for i in (4, 5)])) == {Code.OK}
        await check(bookie, entries)
        killed = place.killed(tmp_path / "killed")
    for after in (place, killed):
        async with running(after) as bookie:
            await check(bookie, entries)


@in_loop
async def test_a_failed_sync_of_the_log_is_final(place: Place, disk: FailingOs) -> None:
    async with running(place, clean_end=False) as bookie:
        await bookie.add(large(1, 0))
        disk.fail("fdatasync", errno.EIO, times=1)
        assert await bookie.add(large(1, 1)) == [Code.IO_ERROR]
        assert [type(failure) for failure in bookie.failures] == [SyncFailedError]
        assert await bookie.add(large(1, 2)) == [Code.IO_ERROR]


@in_loop
async def test_logs_are_held_until_the_marks_have_passed_their_entries(place: Place, disk: FailingOs) -> None:
    place = place.with_settings(entry_log_size_limit_bytes=4096)
    async with running(place) as bookie:
        for i in range(8):
            await bookie.add(large(1, i))
        logs = set(bookie.upkeep.entry_log_ids())
        assert len(logs) > 2
        assert bookie.upkeep.entry_logs_being_written() >= logs
        disk.fail("replace")
        with pytest.raises(OSError, match="No space"):
            await bookie.storage.checkpoint()
        assert bookie.upkeep.entry_logs_being_written() >= logs
        disk.heal()
        await bookie.storage.checkpoint()
        assert bookie.upkeep.entry_logs_being_written() & logs == {max(logs)}
        await delete_ledger(bookie.upkeep, 1)


@in_loop
async def test_logs_that_a_replay_names_are_held_until_it_is_flushed(
    place: Place, tmp_path: Path, disk: FailingOs
) -> None:
    async with running(place) as bookie:
        await bookie.add(large(1, 0))
        killed = place.killed(tmp_path / "killed")
    disk.fail("replace")
    async with running(killed, clean_end=False) as bookie:
        assert 0 in bookie.upkeep.entry_logs_being_written()
        disk.heal()
        await bookie.storage.checkpoint()
        assert 0 not in bookie.upkeep.entry_logs_being_written()
        await check(bookie, {(1, 0): large(1, 0)})


@in_loop
async def test_entries_of_a_missing_log_are_unknown_and_never_absent(place: Place, tmp_path: Path) -> None:
    async with running(place) as bookie:
        await bookie.add(large(1, 0))
        killed = place.killed(tmp_path / "killed")
    (killed.ledger / "0.log").unlink()
    async with running(killed) as bookie:
        assert await bookie.read((1, 0), (1, 1)) == [Code.IO_ERROR, Code.NO_ENTRY]
        assert await bookie.add(large(1, 0), recovery=True) == [Code.OK]
        await check(bookie, {(1, 0): large(1, 0)})


@in_loop
async def test_what_the_index_knows_stays_where_a_log_is_missing(place: Place, tmp_path: Path) -> None:
    """A log may be gone for good reasons if the newest marks were lost: its entries were moved since."""
    async with running(place) as bookie:
        await bookie.add(large(1, 0), large(1, 1))
        marks = (place.ledger / "lastMark").read_bytes() if (place.ledger / "lastMark").exists() else bytes(16)
        await bookie.add(stored(1, 0, SMALL, b"m"))
        await bookie.storage.checkpoint()
        killed = place.killed(tmp_path / "killed")
    (killed.ledger / "lastMark").write_bytes(marks)
    (killed.ledger / "0.log").unlink()
    # Only the record about the log is replayed, not the later copy.
    (name,) = [path for path in killed.journal.glob("*.txn") if path.read_bytes()[4:8] == b"\0\0\0\7"]
    content = name.read_bytes()
    nonce = content[16:32]
    ends = [at for at in range(512, len(content), 512) if content[at - 512 : at].find(nonce) >= 0]
    name.write_bytes(content[: ends[1]])  # the header, and the first group
    assert [type(item) for item in items(killed)] == [MasterKeyRecord, LocatedRecord]
    async with running(killed) as bookie:
        assert await bookie.read((1, 0), (1, 1)) == [stored(1, 0, SMALL, b"m"), Code.IO_ERROR]


@in_loop
async def test_the_logs_that_a_journal_names_are_found(place: Place) -> None:
    """After a loss of their directory no new log may get their ids."""
    place = place.with_settings(entry_log_size_limit_bytes=4096)
    assert highest_named_log(place.journals) == -1
    async with running(place) as bookie:
        for i in range(8):
            await bookie.add(large(1, i))
        assert highest_named_log(place.journals) == max(bookie.upkeep.entry_log_ids()) > 1
    path = max(place.journal.glob("*.txn"))
    path.write_bytes(path.read_bytes().replace(b"BKS2", b"BKS1"))
    assert highest_named_log(place.journals) == -1


def test_the_record_has_every_place() -> None:
    some = records([large(5, 0), large(4, 9)])
    record = located_record(some, np.array([3 << OFFSET_BITS | 1028, 3 << OFFSET_BITS | 5000]))
    found = parse_located(record[4:])
    assert int.from_bytes(record[:4], "big") == len(record) - 4
    assert (found.ledger_ids.tolist(), found.entry_ids.tolist()) == ([5, 4], [0, 9])
    assert found.locations.tolist() == [3 << 32 | 1028, 3 << 32 | 5000]
    assert found.last_adds_confirmed.tolist() == [-1, 8]
    assert journal.special_record(record[4:]) is not None


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        (16, b"\0\0\0\2", "layout 2, written by another release"),
        (20, b"\0\0\0\3", "names 3 entries"),
        (20, b"\0\0\0\0", "names 0 entries"),
        (24, b"\x80", "impossible"),
        (48, b"\0" * 8, "impossible"),
    ],
)
def test_a_record_that_makes_no_sense_is_refused(at: int, value: bytes, says: str) -> None:
    body = bytearray(located_record(records([large(5, 0), large(4, 9)]), np.array([1028, 3 << OFFSET_BITS | 5000]))[4:])
    body[at : at + len(value)] = value
    with pytest.raises(CorruptFileError, match=says):
        parse_located(bytes(body))
    with pytest.raises(CorruptFileError, match="cut short"):
        parse_located(bytes(body[:20]))
