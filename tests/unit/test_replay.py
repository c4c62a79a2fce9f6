"""Replay of real journals into a storage kept in memory: what is done again, what is refused, what is cut off."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import struct
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.disk.removal import Removal
from bookie_server.storage.index.index import MAX_KEY_AND_LAC_BYTES, IndexHeader
from bookie_server.storage.journal import journal
from bookie_server.storage.journal.journal import JournalEnd
from bookie_server.storage.journal.journal_writer import JournalGroup, JournalWriter
from bookie_server.storage.journal.journals import Journals
from bookie_server.storage.journal.log_mark import LogMark
from bookie_server.storage.journal.replay import replay_journals
from bookie_server.storage.ledger_descriptors import LedgerDescriptor
from bookie_server.storage.records import LedgerPart, Records
from tests.support.bookie_settings import bookie_config
from tests.support.entry_log_building import arrival_log
from tests.support.failing_os import FailingOs
from tests.unit.test_group_commit import in_loop

KEY = bytes(range(20))
NO_MARK = LogMark(0, 0)


class MemoryStorage:
    """What a replay brings: entries and descriptors. ``index`` holds descriptors as index files would."""

    def __init__(self, *index: LedgerDescriptor) -> None:
        self.entries: dict[tuple[int, int], bytes] = {}
        self.found = {descriptor.ledger_id: descriptor for descriptor in index}
        self.broken: set[int] = set()
        self.descriptors: Any = SimpleNamespace(get=self._get, create=self._create)

    def _get(self, ledger_id: int) -> LedgerDescriptor | None:
        if ledger_id in self.broken:
            raise CorruptFileError("index file broken")
        return self.found.get(ledger_id)

    def _create(self, ledger_id: int, master_key: bytes) -> LedgerDescriptor:
        self.found[ledger_id] = LedgerDescriptor(ledger_id, master_key)
        return self.found[ledger_id]

    def replay(self, records: Records, parts: list[tuple[LedgerDescriptor, LedgerPart]]) -> None:
        counts = np.zeros(len(records), np.int64)
        for descriptor, part in parts:
            assert descriptor.ledger_id == part.ledger_id
            assert (records.ledger_ids[part.which] == part.ledger_id).all()
            counts[part.which] += 1
        assert (counts == 1).all()
        for i, pair in enumerate(zip(records.ledger_ids.tolist(), records.entry_ids.tolist(), strict=True)):
            self.entries[pair] = bytes(records.data[int(records.offsets[i]) + 4 : int(records.offsets[i + 1])])


def stored(ledger_id: int, entry_id: int, size: int = 100, fill: bytes = b"e") -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0).ljust(size, fill)


def record(entry: bytes) -> bytes:
    return len(entry).to_bytes(4, "big") + entry


def lac_packet(ledger_id: int, lac: int, digest: bytes = b"dig") -> bytes:
    return struct.pack(">qq", ledger_id, lac) + digest


def write(directory: Path, journal_id: int, *groups: list[bytes], **values: Any) -> list[LogMark]:
    """A journal as a kill -9 leaves it; the mark behind each group."""
    writer = JournalWriter(
        str(directory), journal_id, **{"max_file_bytes": 1 << 30, "preallocate_bytes": 1 << 16, **values}
    )
    marks = [writer.write(group, sum(map(len, group))) for group in groups]
    writer.close(intact=False)
    return marks


def replay(storage: MemoryStorage, directory: Path, mark: LogMark = NO_MARK) -> JournalEnd:
    (end,) = replay_journals([str(directory)], [mark], storage)  # type: ignore[arg-type]
    return end


def key(ledger_id: int) -> bytes:
    return journal.master_key_record(ledger_id, KEY)


# --- records -----------------------------------------------------------------------------------


def test_everything_is_done_again_and_twice_changes_nothing(tmp_path: Path) -> None:
    marks = write(
        tmp_path,
        16,
        [key(7), record(stored(7, 0)), key(8), record(stored(8, 5)), record(stored(7, 1))],
        [journal.fence_record(7), record(stored(7, 1, fill=b"n")), journal.explicit_lac_record(8, lac_packet(8, 5))],
    )
    storage = MemoryStorage()
    for _ in range(2):
        assert replay(storage, tmp_path) == JournalEnd(marks[-1], 17)
        assert storage.entries == {
            (7, 0): stored(7, 0),
            (7, 1): stored(7, 1, fill=b"n"),
            (8, 5): stored(8, 5),
        }
        assert {i: (h.master_key, h.fenced, h.explicit_lac) for i, h in storage.found.items()} == {
            7: (KEY, True, None),
            8: (KEY, False, lac_packet(8, 5)),
        }
        assert storage.found[8].last_add_confirmed == 5
        assert storage.found[7].header_dirty


def test_what_needs_a_key_takes_it_from_the_index(tmp_path: Path) -> None:
    write(
        tmp_path,
        16,
        [journal.fence_record(1), journal.explicit_lac_record(2, lac_packet(2, 9)), record(stored(3, 0))],
    )
    storage = MemoryStorage(*[LedgerDescriptor(ledger, KEY) for ledger in (1, 2, 3)])
    replay(storage, tmp_path)
    assert (storage.found[1].fenced, storage.found[1].header_dirty) == (True, True)
    assert (storage.found[2].explicit_lac, storage.found[2].header_dirty) == (lac_packet(2, 9), True)
    assert storage.entries == {(3, 0): stored(3, 0)}
    assert not storage.found[3].header_dirty


@pytest.mark.parametrize("key_bytes", [0, 20, 500, MAX_KEY_AND_LAC_BYTES])
def test_a_key_or_a_packet_that_no_index_file_holds_is_damage(tmp_path: Path, key_bytes: int) -> None:
    """It would be accepted, and then every flush would fail."""
    room, wanted = MAX_KEY_AND_LAC_BYTES - key_bytes, b"k" * key_bytes
    write(tmp_path, 16, [journal.master_key_record(7, wanted)], [journal.explicit_lac_record(7, bytes(room))])
    storage = MemoryStorage()
    replay(storage, tmp_path)
    assert storage.found[7].master_key == wanted
    header = IndexHeader(wanted, False, bytes(room) if room else None)
    assert IndexHeader.decode(header.encode(), "7.idx") == header
    write(tmp_path, 17, [journal.explicit_lac_record(7, bytes(room + 1))])
    with pytest.raises(CorruptFileError, match=rf"11\.txn has a LAC packet of {room + 1} bytes for ledger 7"):
        replay(storage, tmp_path)


@pytest.mark.parametrize("size_bytes", [MAX_KEY_AND_LAC_BYTES + 1, 2**20])
def test_a_huge_key_in_a_journal_is_damage(tmp_path: Path, size_bytes: int) -> None:
    write(tmp_path, 16, [key(8), journal.master_key_record(7, bytes(size_bytes))])
    storage = MemoryStorage()
    with pytest.raises(CorruptFileError, match=rf"10\.txn has a master key of {size_bytes} bytes for ledger 7"):
        replay(storage, tmp_path)
    assert list(storage.found) == [8]
    replay(MemoryStorage(LedgerDescriptor(7, KEY)), tmp_path)  # the ledger has its key: the record means nothing


def test_ledgers_without_a_key_are_skipped_with_one_complaint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    without = [record(stored(ledger, entry)) for entry in range(3) for ledger in range(20, 40)]
    others = [journal.fence_record(50), journal.explicit_lac_record(51, lac_packet(51, 1))]
    write(tmp_path, 16, [key(1), record(stored(1, 0)), *without, record(stored(1, 1))], others)
    storage = MemoryStorage()
    replay(storage, tmp_path)
    assert list(storage.entries) == [(1, 0), (1, 1)]
    assert list(storage.found) == [1]
    (complaint,) = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
    assert "22 ledgers" in complaint
    assert "20, 21, 22, 23, 24, 25, 26, 27, 28, 29 ..." in complaint


def test_entries_of_a_ledger_with_a_broken_index_file_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = [key(5), record(stored(5, 0)), journal.fence_record(5), record(stored(5, 1))]
    write(tmp_path, 16, [*records, key(6), record(stored(6, 0))])
    storage = MemoryStorage()
    storage.broken.add(5)
    replay(storage, tmp_path)
    assert list(storage.entries) == [(5, 0), (5, 1), (6, 0)]
    assert list(storage.found) == [6]
    assert [entry.getMessage() for entry in caplog.records if entry.levelname == "ERROR"] == [
        "ledger 5 was set aside, its entries cannot be read: index file broken"
    ]


@pytest.mark.parametrize("known", ["index", "journal"])
def test_an_explicit_lac_never_goes_back(tmp_path: Path, known: str) -> None:
    descriptor = LedgerDescriptor(1, KEY)
    if known == "index":
        descriptor.explicit_lac = lac_packet(1, 9, b"nine")
    else:
        write(tmp_path, 16, [journal.explicit_lac_record(1, lac_packet(1, 9, b"nine"))])
    write(tmp_path, 17, [journal.explicit_lac_record(1, lac_packet(1, 4)), journal.explicit_lac_record(1, b"short")])
    storage = MemoryStorage(descriptor)
    replay(storage, tmp_path)
    assert descriptor.explicit_lac == lac_packet(1, 9, b"nine")
    write(tmp_path, 18, [journal.explicit_lac_record(1, lac_packet(1, 9, b"same"))])
    replay(storage, tmp_path)
    assert descriptor.explicit_lac == lac_packet(1, 9, b"same")
    write(tmp_path, 19, [journal.explicit_lac_record(1, lac_packet(1, 10))])
    replay(storage, tmp_path)
    assert (descriptor.explicit_lac, descriptor.last_add_confirmed) == (lac_packet(1, 10), 10)


@pytest.mark.parametrize("size_bytes", [1 << 20, (4 << 20) - 30, 4 << 20, (4 << 20) + 1, 20 << 20])
def test_b6_large_entries_are_replayed_byte_for_byte(tmp_path: Path, size_bytes: int) -> None:
    large = [stored(3, i, 32) + random.Random(i).randbytes(size_bytes) for i in range(3)]
    small = [stored(3, 10 + i, 40 + i) for i in range(3)]
    write(tmp_path, 16, [key(3), record(small[0]), record(large[0]), record(small[1])], [record(large[1])])
    write(tmp_path, 17, [record(small[2]), record(large[2])])
    storage = MemoryStorage()
    replay(storage, tmp_path)
    expected = [small[0], large[0], small[1], large[1], small[2], large[2]]
    assert list(storage.entries) == [(3, 10), (3, 0), (3, 11), (3, 1), (3, 12), (3, 2)]
    assert all(a == b for a, b in zip(storage.entries.values(), expected, strict=True))


# --- marks -------------------------------------------------------------------------------------


def test_replay_begins_at_the_mark_and_leaves_out_older_files(tmp_path: Path) -> None:
    write(tmp_path, 15, [key(1), record(stored(1, 0))])
    marks = write(tmp_path, 16, [record(stored(1, 1))], [record(stored(1, 2))])
    last = write(tmp_path, 20, [record(stored(1, 3))])
    storage = MemoryStorage(LedgerDescriptor(1, KEY))
    assert replay(storage, tmp_path, marks[0]) == JournalEnd(last[-1], 21)
    assert list(storage.entries) == [(1, 2), (1, 3)]


def test_the_marks_journal_must_be_there(tmp_path: Path) -> None:
    write(tmp_path, 16, [key(1), record(stored(1, 0))])
    with pytest.raises(CorruptFileError, match=rf"journal 11\.txn.*not in {tmp_path}"):
        replay(MemoryStorage(), tmp_path, LogMark(17, 512))


def test_the_marks_journal_must_not_be_shorter(tmp_path: Path) -> None:
    (mark,) = write(tmp_path, 16, [key(1), record(stored(1, 0))])
    os.truncate(tmp_path / "10.txn", 700)
    with pytest.raises(CorruptFileError, match=rf"offset {mark.offset} of journal {tmp_path}.*ends at 700"):
        replay(MemoryStorage(), tmp_path, mark)


def test_ids_go_up_whatever_the_clock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    future = int(time.time() * 1000) + 1_000_000_000
    write(tmp_path, future, [key(1)])
    assert replay(MemoryStorage(), tmp_path).next_id == future + 1
    empty = tmp_path / "empty"
    empty.mkdir()
    before = int(time.time() * 1000)
    end = replay(MemoryStorage(), empty)
    assert end.mark == NO_MARK
    assert before < end.next_id <= int(time.time() * 1000) + 1


def test_the_end_is_a_mark_that_the_next_start_accepts(tmp_path: Path) -> None:
    """Where no new journal can be begun, that mark is written."""
    write(tmp_path, 16, [key(1), record(stored(1, 0))])
    (tmp_path / "12.txn").write_bytes(b"BKLG" + bytes(5000))  # its creation was cut short
    first = replay(MemoryStorage(), tmp_path)
    assert first == JournalEnd(LogMark(0x12, 0), 0x13)
    storage = MemoryStorage(LedgerDescriptor(1, KEY))
    assert replay(storage, tmp_path, first.mark) == first
    assert storage.entries == {}


def test_each_journal_has_its_own_mark(tmp_path: Path) -> None:
    directories = [tmp_path / name for name in "abc"]
    ends = []
    for number, directory in enumerate(directories):
        directory.mkdir()
        ends.append(
            write(directory, 16 + number, [key(number), record(stored(number, 0))], [record(stored(number, 1))])
        )
    storage = MemoryStorage(LedgerDescriptor(1, KEY), LedgerDescriptor(2, KEY))
    found = replay_journals(
        [str(directory) for directory in directories],
        [NO_MARK, ends[1][0], ends[2][1]],
        storage,  # type: ignore[arg-type]
    )
    assert list(storage.entries) == [(0, 0), (0, 1), (1, 1)]
    assert found == [JournalEnd(marks[-1], 17 + number) for number, marks in enumerate(ends)]


# --- torn ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", ["nothing", "zeros", "random"])
def test_b3_a_torn_end_is_cut_off_before_the_next_journal_begins(tmp_path: Path, garbage: str) -> None:
    """B3, and then the disks are full: the mark stays, a later journal gets records, and the bookie starts again."""
    whole = tmp_path / "whole"
    whole.mkdir()
    marks = write(whole, 16, [key(3), record(stored(3, 0))], [record(stored(3, 1, 40)), record(stored(3, 2, 50))])
    content = (whole / "10.txn").read_bytes()[: marks[1].offset]
    sealed = marks[0].offset + 44 + 54 + 24
    rest = {"nothing": b"", "zeros": bytes(900), "random": random.Random(2220).randbytes(900)}[garbage]
    for cut in range(marks[0].offset, len(content) + 1):
        directory = tmp_path / str(cut)
        directory.mkdir()
        path = directory / "10.txn"
        path.write_bytes(content[:cut] + rest)
        storage = MemoryStorage()
        end = replay(storage, directory)
        there = path.read_bytes()
        complete = len(there) >= marks[1].offset and there[:sealed] == content[:sealed]
        answered = [(3, 0)] + [(3, 1), (3, 2)] * complete
        assert list(storage.entries) == answered
        assert end == JournalEnd(marks[1 if complete else 0], 17)
        write(directory, end.next_id, [journal.fence_record(3)])
        again = MemoryStorage()
        replay(again, directory)
        assert list(again.entries) == answered
        assert again.found[3].fenced
        shutil.rmtree(directory)


def test_nothing_is_cut_off_where_another_journal_is_damaged(tmp_path: Path) -> None:
    torn, damaged = tmp_path / "a", tmp_path / "b"
    torn.mkdir()
    damaged.mkdir()
    write(torn, 16, [key(0), record(stored(0, 0))])
    content = (torn / "10.txn").read_bytes()[:1024] + b"\xff" * 100
    (torn / "10.txn").write_bytes(content)
    marks = write(damaged, 16, [key(1)], [record(stored(1, 0))], [record(stored(1, 1))])
    with (damaged / "10.txn").open("r+b") as file:
        file.seek(marks[0].offset)
        file.write(bytes(100))
    with pytest.raises(CorruptFileError, match="damaged"):
        replay_journals([str(torn), str(damaged)], [NO_MARK, NO_MARK], MemoryStorage())  # type: ignore[arg-type]
    assert (torn / "10.txn").read_bytes() == content


def test_apaches_torn_journal_is_cut_off_too(tmp_path: Path) -> None:
    group = key(1) + record(stored(1, 0, 500))
    pad = -(512 + len(group) + 8) % 512
    sound = b"BKLG\0\0\0\6".ljust(512, b"\0") + group + b"\xff\xff\xff\x00" + pad.to_bytes(4, "big") + bytes(pad)
    (tmp_path / "5.txn").write_bytes(sound + record(stored(1, 1))[:50])
    storage = MemoryStorage()
    assert replay(storage, tmp_path) == JournalEnd(LogMark(5, len(sound)), 6)
    assert list(storage.entries) == [(1, 0)]
    assert (tmp_path / "5.txn").read_bytes() == sound


# --- journals written, killed and replayed -----------------------------------------------------


@pytest.mark.parametrize("sync_data", [True, False])
@in_loop
async def test_b1_b2_the_journal_rolls_and_the_bookie_starts_again_from_any_mark(
    tmp_path: Path, sync_data: bool
) -> None:
    """Whenever the bookie is killed, its last mark is a place in the files at which the next start can begin, and what
    was answered after it is there."""
    current = tmp_path / "current"
    current.mkdir()
    config = bookie_config(
        journal_max_bytes=2000,
        journal_preallocate_bytes=4096,
        journal_max_backups=0,
        journal_sync_data=sync_data,
        journal_page_cache_flush_interval_ms=10,
    )
    applied: dict[tuple[int, int], bytes] = {}
    flushed: dict[tuple[int, int], bytes] = {}
    last_mark = NO_MARK
    killed: list[tuple[Path, LogMark, dict[tuple[int, int], bytes]]] = []
    failures: list[Exception] = []
    loop = asyncio.get_running_loop()
    for round_number in range(3):
        storage = MemoryStorage(LedgerDescriptor(1, KEY))
        end = replay(storage, current, last_mark)
        assert flushed | storage.entries == applied
        journals = Journals(
            config,
            (str(current),),
            [end],
            new_arrival_log=lambda: arrival_log(current),
            on_failure=failures.append,
            on_write_error=failures.append,
        )
        journals.start(loop, lambda group, error: [done(error is None) for done in group.done])  # type: ignore[func-returns-value]
        (mark,) = journals.durable_marks()
        assert mark > last_mark
        for i in range(40):
            entry = stored(1, 100 * round_number + i, 60 + 13 * i)
            through: asyncio.Future[bool] = loop.create_future()

            def fill(
                group: JournalGroup,
                entry: bytes = entry,
                done: asyncio.Future[bool] = through,
                descriptor: LedgerDescriptor = storage.found[1],
            ) -> None:
                group.add_key(descriptor)
                group.add_journal(record(entry))
                group.done.append(done.set_result)

            journals.of(1).add(fill)
            assert await through
            applied[1, 100 * round_number + i] = entry
            if i % 7 == 0:
                (mark,) = journals.durable_marks()
                assert mark >= last_mark
                last_mark, flushed = mark, dict(applied)
                with contextlib.closing(Removal()) as removal:
                    journals.remove_below([mark], removal)
                copy = tmp_path / f"killed{round_number}-{i}"
                shutil.copytree(current, copy)
                killed.append((copy, mark, dict(applied)))
        await loop.run_in_executor(None, journals.stop)
        await asyncio.sleep(0)
        journals.close()
    assert failures == []
    assert len(killed) == 18
    for copy, mark, answered in killed:
        # What the mark says is flushed is in the storage; all else comes from the journal.
        before = MemoryStorage(LedgerDescriptor(1, KEY))
        end = replay(before, copy, mark)
        assert set(before.entries) <= set(answered)
        assert end.mark >= mark
        ids = journal.journal_ids(str(copy))
        assert ids[0] <= mark.journal_id
        assert end.next_id == ids[-1] + 1


@in_loop
async def test_a_torn_write_is_never_followed_by_another_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torn journal and a full disk once ended in a bookie that never starts."""
    current = tmp_path / "current"
    current.mkdir()
    config = bookie_config(journal_max_bytes=1100, journal_preallocate_bytes=4096)
    disk = FailingOs(monkeypatch)
    errors: list[Exception] = []
    loop = asyncio.get_running_loop()
    answered: list[tuple[int, int]] = []
    end = JournalEnd(NO_MARK, 16)
    for start in range(3):
        journals = Journals(
            config,
            (str(current),),
            [end],
            new_arrival_log=lambda: arrival_log(current),
            on_failure=errors.append,
            on_write_error=lambda error: None,
        )
        journals.start(loop, lambda group, error: [done(error is None) for done in group.done])  # type: ignore[func-returns-value]
        descriptor = LedgerDescriptor(1, KEY)
        for i in range(12):
            through: asyncio.Future[bool] = loop.create_future()

            def fill(
                group: JournalGroup,
                entry: bytes = stored(1, 20 * start + i, 300),
                done: asyncio.Future[bool] = through,
                descriptor: LedgerDescriptor = descriptor,
            ) -> None:
                group.add_key(descriptor)
                group.add_journal(record(entry))
                group.done.append(done.set_result)

            if i % 3 == 1:
                disk.fill_disk(37 * i)
            journals.of(1).add(fill)
            if await through:
                answered.append((1, 20 * start + i))
            disk.heal()
        await loop.run_in_executor(None, journals.stop)
        await asyncio.sleep(0)
        journals.close()
        storage = MemoryStorage()
        end = replay(storage, current)
        assert list(storage.entries) == answered
        assert end == replace(end, next_id=journal.journal_ids(str(current))[-1] + 1)
    assert errors == []
    assert len(answered) == 24
