"""A storage with several journals; explicit last add confirmed."""

from __future__ import annotations

import asyncio
import errno
import struct
from pathlib import Path

import pytest

from bk_spark.protocol.codes import Code
from bookie_server.storage.journal import journal
from tests.support.disk_faults import fail_at, hold_at
from tests.support.failing_os import FailingOs
from tests.support.running_storage import KEY, Place, in_loop, running, stored


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.make(tmp_path / "bookie", journals=3, ledgers=2)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingOs:
    return FailingOs(monkeypatch)


def contents(place: Place) -> list[bytes]:
    """All there is in each journal directory."""
    return [
        b"".join(path.read_bytes() for path in sorted(Path(directory).glob("*.txn"))) for directory in place.journals
    ]


@in_loop
async def test_a_fence_is_answered_at_once_only_if_an_earlier_one_is_durable(place: Place) -> None:
    async with running(place) as running_bookie:
        bookie = running_bookie.bookie
        assert bookie.fenced_before(1, KEY) is None
        fence = bookie.fence(1, KEY)
        assert bookie.fenced_before(1, KEY) is None
        assert await fence is Code.OK
        assert bookie.fenced_before(1, KEY) is Code.OK
        assert bookie.fenced_before(1, b"another key") is Code.UNAUTHORIZED


@in_loop
async def test_a_ledgers_records_are_in_one_journal_in_order(place: Place, tmp_path: Path) -> None:
    entries = {(ledger, i): stored(ledger, i, 60 + i) for i in range(40) for ledger in range(7)}
    async with running(place) as bookie:
        pairs = list(entries)
        assert set(await bookie.add(*[entries[pair] for pair in pairs[:150]])) == {Code.OK}
        assert await bookie.bookie.fence(4, KEY) is Code.OK
        assert set(await bookie.add(*[entries[pair] for pair in pairs[150:]], recovery=True)) == {Code.OK}
        assert await bookie.bookie.force() is Code.OK
        assert await bookie.bookie.force(4) is Code.OK
        killed = place.killed(tmp_path / "killed")
        for ledger in range(7):
            for number, content in enumerate(contents(place)):
                places = [content.find(entries[ledger, i]) for i in range(40)]
                assert (min(places) > 0) == (number == ledger % 3)
                assert places == sorted(places)
        assert journal.fence_record(4) in contents(place)[1]
        await bookie.storage.checkpoint()
        assert len(place.marks()) == 3
        assert {path.name for path in place.ledger.iterdir() if path.name.startswith("lastMark")} == {
            "lastMark.0",
            "lastMark.1",
            "lastMark.2",
        }
        checkpointed = place.killed(tmp_path / "checkpointed")
    for after in (place, killed, checkpointed):
        async with running(after) as bookie:
            assert await bookie.read(*entries) == list(entries.values())
            assert await bookie.add(stored(4, 100), stored(5, 100)) == [Code.FENCED, Code.OK]


@in_loop
async def test_the_last_copy_wins_with_several_journals(place: Place, tmp_path: Path) -> None:
    async with running(place) as bookie:
        for fill in (b"a", b"b", b"c"):
            await bookie.add(*[stored(ledger, 0, fill=fill) for ledger in (1, 2, 3)])
        killed = place.killed(tmp_path / "killed")
    async with running(killed) as bookie:
        assert await bookie.read((1, 0), (2, 0), (3, 0)) == [stored(ledger, 0, fill=b"c") for ledger in (1, 2, 3)]


@in_loop
async def test_a_run_over_several_journals_is_answered_when_all_are_through(place: Place, disk: FailingOs) -> None:
    async with running(place) as bookie:
        block = hold_at(disk, "fdatasync", "journal1/")
        add = asyncio.ensure_future(bookie.add(stored(0, 0), stored(1, 0), stored(2, 0)))
        assert await asyncio.to_thread(block.reached.wait, 60)
        assert await bookie.add(stored(0, 1), stored(2, 1)) == [Code.OK] * 2
        assert await bookie.read((0, 0), (2, 0)) == [stored(0, 0), stored(2, 0)]
        assert not add.done()
        block.release()
        assert await add == [Code.OK] * 3
        assert await bookie.read((1, 0)) == [stored(1, 0)]


@in_loop
async def test_where_one_of_the_journals_fails_the_run_does(place: Place, disk: FailingOs, tmp_path: Path) -> None:
    async with running(place) as bookie:
        await bookie.bookie.fence(5, KEY)
        fail_at(disk, "pwritev", "journal1/", errno.ENOSPC)
        codes = await bookie.add(stored(0, 0), stored(1, 0), stored(5, 0), stored(2, 0), stored(2, -1))
        assert codes == [Code.IO_ERROR, Code.IO_ERROR, Code.FENCED, Code.IO_ERROR, Code.BAD_REQUEST]
        assert [source for source, _ in bookie.troubles] == ["journal"]
        assert await bookie.read((1, 0)) == [Code.NO_ENTRY]
        disk.heal()
        bookie.state.clear("journal")
        assert await bookie.add(stored(0, 0), stored(1, 0), stored(2, 0)) == [Code.OK] * 3
        killed = place.killed(tmp_path / "killed")
    for after in (place, killed):
        async with running(after) as bookie:
            assert await bookie.read((0, 0), (1, 0), (2, 0)) == [stored(0, 0), stored(1, 0), stored(2, 0)]


@in_loop
async def test_one_ledger_directory_of_two_is_lost_to_marks(place: Place, disk: FailingOs) -> None:
    """The highest mark counts: old journals were removed by it."""
    place = place.with_settings(journal_max_bytes=100, journal_max_backups=0)
    async with running(place) as bookie:
        await bookie.add(*[stored(ledger, 0) for ledger in range(3)])
        await bookie.storage.checkpoint()
        fail_at(disk, "replace", "ledgers0/lastMark")
        for i in range(1, 4):
            await bookie.add(*[stored(ledger, i) for ledger in range(3)])
            await bookie.storage.checkpoint()
        assert (place.ledger / "lastMark.0").read_bytes() < (Path(place.ledgers[1]) / "lastMark.0").read_bytes()
        assert not list(place.ledger.glob("lastMark.*.tmp"))
        assert len(list(place.journal.glob("*.txn"))) == 1
        disk.heal()
    async with running(place) as bookie:
        assert await bookie.batch(1, 0) == [stored(1, i) for i in range(4)]


# --- explicit last add confirmed ---------------------------------------------------------------------


def packet(ledger_id: int, lac: int) -> bytes:
    return struct.pack(">qq", ledger_id, lac) + b"digest%d" % lac


@pytest.mark.parametrize("end", ["stop", "kill"])
@in_loop
async def test_an_explicit_lac_never_goes_back(place: Place, disk: FailingOs, tmp_path: Path, end: str) -> None:
    async with running(place) as bookie:
        write, descriptors = bookie.bookie.write_lac, bookie.storage.descriptors
        assert await write(packet(1, 7), KEY) is Code.OK
        descriptor = descriptors.get(1)
        assert descriptor is not None
        assert await write(packet(1, 5), KEY) is Code.OK
        assert (descriptor.explicit_lac, await bookie.bookie.known_lac(descriptor)) == (packet(1, 7), 7)
        # A lower one is not answered before the higher one is durable.
        block = hold_at(disk, "fdatasync", ".txn")
        higher, lower = write(packet(1, 9), KEY), write(packet(1, 8), KEY)
        assert await asyncio.to_thread(block.reached.wait, 60)
        assert await bookie.bookie.known_lac(descriptor) == 7
        assert not lower.done()
        block.release()
        assert (await higher, await lower) == (Code.OK, Code.OK)
        assert (descriptor.explicit_lac, await bookie.bookie.known_lac(descriptor)) == (packet(1, 9), 9)
        if end == "kill":
            place = place.killed(tmp_path / "killed")
    async with running(place) as bookie:
        descriptor = bookie.storage.descriptors.get(1)
        assert descriptor is not None
        assert (descriptor.explicit_lac, await bookie.bookie.known_lac(descriptor)) == (packet(1, 9), 9)


@in_loop
async def test_packets_that_cannot_be_are_refused(place: Place) -> None:
    async with running(place) as bookie:
        assert await bookie.bookie.write_lac(packet(1, 7)[:15], KEY) is Code.BAD_REQUEST
        assert await bookie.bookie.write_lac(packet(1, 7) + bytes(1000), KEY) is Code.BAD_REQUEST
        assert await bookie.bookie.write_lac(packet(-1, 7), KEY) is Code.BAD_REQUEST
        bookie.state.set_read_only("manual", "a test")
        assert await bookie.bookie.write_lac(packet(1, 7), KEY) is Code.READ_ONLY
        assert await bookie.bookie.fence(1, KEY) is Code.OK


@in_loop
async def test_n1_the_front_end_is_told_when_all_who_waited_for_a_group_were(tmp_path: Path) -> None:
    told: list[str] = []
    async with running(Place.make(tmp_path / "bookie", flush_interval_ms=600_000)) as bookie:
        bookie.bookie.on_answered(lambda: told.append("front end"))
        fence = bookie.bookie.fence(1, KEY)
        bookie.storage.barrier(lambda ok: told.append("barrier"))
        assert await fence is Code.OK
        assert told == ["barrier", "front end"]
