"""Disks that are full or fail under a storage on real files: nothing acknowledged is lost, and it goes on by itself."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from bk_spark.protocol.codes import Code
from bookie_server.storage.disk.files import SyncFailedError
from tests.support.disk_faults import fail_at, hold_at
from tests.support.failing_os import FailingOs
from tests.support.running_storage import KEY, Place, Running, in_loop, running, stored


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.make(tmp_path / "bookie")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingOs:
    return FailingOs(monkeypatch)


def give_room(bookie: Running, disk: FailingOs) -> None:
    """The disk is well again, and the disk monitor has seen it."""
    disk.heal()
    for path in bookie.storage.directories.paths:
        bookie.storage.directories.set_writable(path, True, "")


#: What fails in a flush, and how; in the order of the flush.
FAULTS = [
    ("pwritev", ".log", errno.ENOSPC),
    ("pwritev", "lastId", errno.ENOSPC),
    ("open", ".log", errno.EMFILE),
    ("open", ".idx", errno.ENOSPC),
    ("pwritev", ".idx", errno.ENOSPC),
    ("ftruncate", ".idx", errno.ENOSPC),
    ("pwritev", "2.idx", errno.EIO),
    ("pwritev", "lastMark", errno.ENOSPC),
    ("replace", "lastMark", errno.EIO),
]


@pytest.mark.parametrize(("name", "part", "error"), FAULTS)
@in_loop
async def test_a_flush_that_fails_is_done_later(
    place: Place, disk: FailingOs, tmp_path: Path, name: str, part: str, error: int
) -> None:
    entries = {(ledger, i): stored(ledger, i, 100 + i) for ledger in (1, 2, 3) for i in range(100)}
    packet = stored(3, 50)[:16] + b"digest"
    async with running(place) as bookie:
        await bookie.add(*[entry for pair, entry in entries.items() if pair[1] < 50])
        assert await bookie.bookie.fence(2, KEY) is Code.OK
        before = place.marks()
        fail_at(disk, name, part, error)
        fails = part != "lastId"  # the log's name tells its id, too
        for attempt in range(3):
            if attempt:
                bookie.storage.directories.set_writable(str(place.ledger), True, "")
            if fails:
                with pytest.raises(OSError, match=os.strerror(error)):
                    await bookie.storage.checkpoint()
                assert place.marks() == before
                assert [source for source, _ in bookie.troubles] == ["storage"]
                assert os.strerror(error) in str(bookie.troubles[0][1])
                assert await bookie.add(stored(1, 70)) == [Code.READ_ONLY]
            assert await bookie.read(*[pair for pair in entries if pair[1] < 50]) == [
                entry for pair, entry in entries.items() if pair[1] < 50
            ]
        killed = [place.killed(tmp_path / "killed in trouble")]
        give_room(bookie, disk)
        await bookie.storage.checkpoint()
        assert place.marks() > before
        assert [reason for _, reason in bookie.troubles[1:]] == [None] * fails
        assert bookie.failures == []
        rest = [entry for pair, entry in entries.items() if pair[1] >= 50]
        assert await bookie.add(*rest, recovery=True) == [Code.OK] * len(rest)
        assert await bookie.bookie.write_lac(packet, KEY) is Code.OK
        assert await bookie.read(*entries) == list(entries.values())
        killed.append(place.killed(tmp_path / "killed afterwards"))
        await bookie.storage.checkpoint()
        killed.append(place.killed(tmp_path / "killed at last"))
    for number, after in enumerate([*killed, place]):
        async with running(after) as bookie:
            there = {pair: entry for pair, entry in entries.items() if number or pair[1] < 50}
            assert await bookie.read(*there) == list(there.values())
            assert await bookie.add(stored(2, 200)) == [Code.FENCED]
            descriptor = bookie.storage.descriptors.get(3)
            assert descriptor is not None
            assert await bookie.bookie.known_lac(descriptor) == (98 if number else 48)
            assert descriptor.explicit_lac == (packet if number else None)


@in_loop
async def test_another_directory_takes_what_one_does_not(tmp_path: Path, disk: FailingOs) -> None:
    place = Place.make(tmp_path / "bookie", ledgers=2, indexes=1)
    async with running(place) as bookie:
        await bookie.add(stored(1, 0))
        await bookie.storage.checkpoint()
        fail_at(disk, "pwritev", "ledgers0/", errno.EIO)
        await bookie.add(stored(1, 1))
        await bookie.storage.checkpoint()
        assert bookie.troubles == []
        assert list(bookie.storage.directories.failures()) == [place.ledgers[0]]
        assert await bookie.read((1, 0), (1, 1)) == [stored(1, 0), stored(1, 1)]
        disk.heal()
        killed = place.killed(tmp_path / "killed")
    for after in (place, killed):
        async with running(after) as bookie:
            assert await bookie.read((1, 0), (1, 1)) == [stored(1, 0), stored(1, 1)]


@in_loop
async def test_full_memory_that_cannot_be_written_refuses_adds(place: Place, disk: FailingOs, tmp_path: Path) -> None:
    """Nothing is lost of what was taken, and the disk's first room is used."""
    place = place.with_settings(write_cache_bytes=1 << 20, flush_interval_ms=50)
    async with running(place) as bookie:
        disk.on("pwritev", _only(place.journal))
        taken = 0
        while not bookie.storage.is_stuck:
            bookie.state.clear("storage")
            assert await bookie.add(stored(1, taken, 20_000)) == [Code.OK]
            taken += 1
            assert taken < 1000
        assert 50 < taken < 200
        bookie.state.clear("storage")
        assert await bookie.add(stored(1, taken), recovery=True, high_priority=True) == [Code.READ_ONLY]
        assert bookie.storage.outstanding_bytes < 100_000
        entries = [stored(1, i, 20_000) for i in range(taken)]
        assert await bookie.read(*[(1, i) for i in range(taken)]) == entries
        killed = place.killed(tmp_path / "killed")
        give_room(bookie, disk)
        while len(bookie.troubles) < 2:
            await asyncio.sleep(0.01)
        assert bookie.troubles[0][0] == "storage"
        assert bookie.troubles[-1] == ("storage", None)
        assert len(bookie.troubles) == 2
        assert await bookie.add(stored(1, taken)) == [Code.OK]
        assert await bookie.batch(1, 0, taken) == entries
    for after in (place, killed):
        async with running(after) as bookie:
            assert await bookie.batch(1, 0, taken) == entries


def _only(directory: Path) -> Any:
    """Stands in for pwritev: only files in ``directory`` take anything."""

    def write(fd: int, buffers: list[Any], offset: int) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").startswith(str(directory)):
            return os.pwritev(fd, buffers, offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return write


@pytest.mark.parametrize("also", [(), ("lastMark",)])
@in_loop
async def test_a_start_with_full_disks(place: Place, disk: FailingOs, tmp_path: Path, also: tuple[str, ...]) -> None:
    """What was replayed is served from memory and written when there is room; a second kill loses nothing."""
    entries = [stored(1, i, 10_000) for i in range(300)]
    async with running(place) as bookie:
        await bookie.add(*entries)
        await bookie.bookie.fence(1, KEY)
        killed = place.killed(tmp_path / "killed").with_settings(write_cache_bytes=1 << 20)
    for number in range(3):
        disk.on("pwritev", _only(killed.journal))
        async with running(killed, clean_end=False) as bookie:
            await asyncio.sleep(0)
            assert [source for source, _ in bookie.troubles] == ["storage"]
            assert await bookie.batch(1, 0) == entries
            assert await bookie.add(stored(1, 300), recovery=True) == [Code.READ_ONLY]
            assert killed.marks() == place_marks(killed, number)
            if number == 2:
                again = killed.killed(tmp_path / "again")
                give_room(bookie, disk)
                await bookie.storage.checkpoint()
                assert bookie.troubles[1:] == [("storage", None)]
                assert await bookie.add(stored(1, 300), recovery=True) == [Code.OK]
    disk.heal()
    for after, last in ((killed, [stored(1, 300)]), (again, [])):
        async with running(after) as bookie:
            assert await bookie.batch(1, 0) == entries + last
            assert await bookie.add(stored(1, 301)) == [Code.FENCED]


_MARKS: dict[Path, Any] = {}


def place_marks(place: Place, number: int) -> Any:
    """The marks of the first look."""
    if not number:
        _MARKS[place.root] = place.marks()
    return _MARKS[place.root]


@in_loop
async def test_a_start_with_a_full_journal_disk(place: Place, disk: FailingOs) -> None:
    async with running(place) as bookie:
        await bookie.add(stored(1, 0))
    fail_at(disk, "pwritev", ".txn", errno.ENOSPC)
    async with running(place) as bookie:
        await asyncio.sleep(0)
        assert [source for source, _ in bookie.troubles] == ["journal"]
        assert await bookie.read((1, 0)) == [stored(1, 0)]
        assert await bookie.add(stored(1, 1)) == [Code.READ_ONLY]
        disk.heal()
        bookie.state.clear("journal")
        assert await bookie.add(stored(1, 1)) == [Code.OK]
    async with running(place) as bookie:
        assert await bookie.batch(1, 0) == [stored(1, 0), stored(1, 1)]


@pytest.mark.parametrize(
    ("name", "part"), [("fdatasync", ".log"), ("fsync", ".idx"), ("fsync", "lastMark"), ("fsync", "lastId")]
)
@in_loop
async def test_a_failed_sync_ends_the_bookie(
    place: Place, disk: FailingOs, tmp_path: Path, name: str, part: str
) -> None:
    async with running(place, clean_end=False) as bookie:
        await bookie.add(*[stored(1, i) for i in range(10)])
        before = place.marks()
        fail_at(disk, name, part, errno.EIO)
        with pytest.raises(SyncFailedError):
            await bookie.storage.checkpoint()
        disk.heal()
        assert len(bookie.failures) == 1
        assert bookie.storage.failed
        assert bookie.troubles == []
        assert place.marks() == before
        assert await bookie.batch(1, 0) == [stored(1, i) for i in range(10)]
        killed = place.killed(tmp_path / "killed")
    assert place.marks() == before  # the end did not try again
    for after in (place, killed):
        async with running(after) as bookie:
            assert await bookie.batch(1, 0) == [stored(1, i) for i in range(10)]


@in_loop
async def test_an_error_that_nobody_thought_of_ends_the_bookie(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush that never comes again would fill the memory in silence."""
    place = place.with_settings(flush_interval_ms=20)
    async with running(place, clean_end=False) as bookie:

        def broken(*arguments: object) -> None:
            raise ValueError("a defect")

        monkeypatch.setattr(bookie.storage.entry_log_writer, "append", broken)
        await bookie.add(stored(1, 0))
        while not bookie.failures:
            await asyncio.sleep(0.01)
        assert str(bookie.failures[0]) == "a defect"
        assert await bookie.read((1, 0)) == [stored(1, 0)]
        monkeypatch.undo()


@in_loop
async def test_flushes_go_on_by_themselves(place: Place, disk: FailingOs) -> None:
    place = place.with_settings(flush_interval_ms=20)
    async with running(place) as bookie:
        fail_at(disk, "pwritev", ".idx", errno.ENOSPC)
        await bookie.add(stored(1, 0))
        while not bookie.troubles:
            await asyncio.sleep(0.01)
        failures = bookie.storage.flusher.counters.failures
        while bookie.storage.flusher.counters.failures < failures + 3:
            await asyncio.sleep(0.01)
        give_room(bookie, disk)
        while len(bookie.troubles) < 2:
            await asyncio.sleep(0.01)
        assert bookie.troubles[1] == ("storage", None)
        assert len(place.logs()) == 1


# --- the journal -----------------------------------------------------------------------------------


@in_loop
async def test_a_full_journal_takes_back_what_it_promised(place: Place, disk: FailingOs, tmp_path: Path) -> None:
    """Fences, explicit LACs and keys of groups that failed; those that are durable stay."""
    old, newer, newest = (stored(3, lac)[:16] + b"digest" for lac in (5, 7, 9))
    async with running(place) as bookie:
        await bookie.add(stored(1, 0), stored(2, 0), stored(3, 0))
        assert await bookie.bookie.write_lac(old, KEY) is Code.OK
        fail_at(disk, "pwritev", ".txn", errno.ENOSPC)
        fence = bookie.bookie.fence(1, KEY)
        lacs = [bookie.bookie.write_lac(packet, KEY) for packet in (newer, newest)]
        add = bookie.add(stored(2, 1), stored(9, 0))
        fence_again = bookie.bookie.fence(1, KEY)
        outcomes = await asyncio.gather(fence, *lacs, add, fence_again)
        assert outcomes == [Code.IO_ERROR, Code.IO_ERROR, Code.IO_ERROR, [Code.IO_ERROR] * 2, Code.IO_ERROR]
        assert bookie.troubles[0][0] == "journal"
        descriptor = bookie.storage.descriptors.get(3)
        assert descriptor is not None
        assert descriptor.explicit_lac == old
        assert await bookie.bookie.known_lac(descriptor) == 5
        disk.heal()
        bookie.state.clear("journal")
        assert await bookie.add(stored(1, 1), stored(9, 0)) == [Code.OK] * 2
        assert await bookie.bookie.fence(2, KEY) is Code.OK
        assert await bookie.read((2, 1), (9, 0)) == [Code.NO_ENTRY, stored(9, 0)]
        killed = place.killed(tmp_path / "killed")
    for after in (place, killed):
        async with running(after) as bookie:
            assert await bookie.add(stored(1, 2), stored(2, 2), stored(9, 1)) == [Code.OK, Code.FENCED, Code.OK]
            descriptor = bookie.storage.descriptors.get(3)
            assert descriptor is not None
            assert descriptor.explicit_lac == old
            assert await bookie.read((1, 1), (2, 1), (9, 0)) == [stored(1, 1), Code.NO_ENTRY, stored(9, 0)]


@in_loop
async def test_a_promise_that_is_taken_back_after_a_flush_wrote_it(place: Place, disk: FailingOs) -> None:
    packet = stored(3, 7)[:16] + b"digest"
    async with running(place) as bookie:
        await bookie.add(stored(1, 0), stored(3, 0))
        block = hold_at(disk, "pwritev", ".txn")
        fence, lac = bookie.bookie.fence(1, KEY), bookie.bookie.write_lac(packet, KEY)
        assert await asyncio.to_thread(block.reached.wait, 60)
        await bookie.storage.checkpoint()
        block.release(error=errno.ENOSPC)
        assert (await fence, await lac) == (Code.IO_ERROR, Code.IO_ERROR)
        bookie.state.clear("journal")
        assert await bookie.add(stored(1, 1)) == [Code.OK]
    async with running(place) as bookie:
        assert await bookie.add(stored(1, 2)) == [Code.OK]
        descriptor = bookie.storage.descriptors.get(3)
        assert descriptor is not None
        assert descriptor.explicit_lac is None


@in_loop
async def test_a_failed_journal_sync_is_told_once_and_nothing_more_is_accepted(place: Place, disk: FailingOs) -> None:
    async with running(place, clean_end=False) as bookie:
        assert await bookie.add(stored(1, 0)) == [Code.OK]
        fail_at(disk, "fdatasync", ".txn")
        assert await bookie.add(stored(1, 1)) == [Code.IO_ERROR]
        disk.heal()
        assert await bookie.bookie.fence(1, KEY) is Code.IO_ERROR
        assert await bookie.add(stored(2, 1)) == [Code.IO_ERROR]
        assert await bookie.bookie.force() is Code.IO_ERROR
        assert len(bookie.failures) == 1
        assert await bookie.read((1, 0), (1, 1)) == [stored(1, 0), Code.NO_ENTRY]


@in_loop
async def test_nothing_is_flushed_after_a_failed_journal_sync(place: Place, disk: FailingOs) -> None:
    """A mark must not pass what may be lost."""
    place = place.with_settings(flush_interval_ms=20)
    async with running(place, clean_end=False) as bookie:
        flushed = asyncio.Event()
        bookie.storage.flusher.on_flush = lambda seconds, entry_bytes, ok: flushed.set()
        await asyncio.wait_for(flushed.wait(), 60)
        fail_at(disk, "fdatasync", ".txn")
        assert await bookie.add(stored(1, 1)) == [Code.IO_ERROR]
        disk.heal()
        async with bookie.storage.flusher.lock:  # one that was under way has ended
            flushed.clear()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(flushed.wait(), 0.2)
