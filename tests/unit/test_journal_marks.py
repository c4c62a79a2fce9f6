"""Marks that Apache's bookie leaves in journals, ours and its own, and that we go on from (H1)."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.journal import journal
from bookie_server.storage.journal.journal_header import holds_records, is_ours
from bookie_server.storage.journal.log_mark import LogMark
from tests.unit.test_journal_format import KEY, apaches_journal, entries, read, record, write_journal
from tests.unit.test_replay import MemoryStorage, replay

_GROUPS = [[journal.master_key_record(3, KEY), record(3, 0)], [record(3, i, b"q" * 300) for i in range(1, 4)]]


def apaches_scan(content: bytes, position: int) -> tuple[int, list[int]]:
    """Where Apache's reader (``Journal.scanJournal``) stands when it has read a journal, which is its mark then, and
    the lengths of the records that it took."""
    if position == 0:
        known = len(content) >= 8 and content[:4] == b"BKLG"
        version = int.from_bytes(content[4:8], "big") if known else 1
        position = 512 if version >= 5 else 8 if version >= 2 else 0
    taken = []
    while True:
        field = content[position : position + 4]
        position += len(field)
        if len(field) < 4:
            return position, taken
        (length,) = struct.unpack(">i", field)
        if length == 0:
            return position, taken
        is_padding = length == -0x100
        if is_padding:
            field = content[position : position + 4]
            position += len(field)
            if len(field) < 4:
                return position, taken
            (length,) = struct.unpack(">i", field)
        assert length >= 0, "Apache's bookie does not start"
        if len(content) - position < length:
            return len(content), taken
        position += length
        if length and not is_padding:
            taken.append(length)


@pytest.mark.parametrize("may_end_torn", [True, False])
@pytest.mark.parametrize("starts", [1, 2, 5])
def test_h1_a_mark_behind_the_last_group_in_zeros_allocated_in_advance(
    tmp_path: Path, starts: int, may_end_torn: bool
) -> None:
    """Apache's bookie was started ``starts`` times on what ours left when it was killed."""
    path, marks = write_journal(tmp_path, _GROUPS)
    content, mark = path.read_bytes(), 0
    for _ in range(starts):
        mark, _ = apaches_scan(content, mark)
    assert mark == marks[-1].offset + 4 * starts
    items, reader = read(path, mark, may_end_torn=may_end_torn)
    assert (items, reader.position, reader.torn) == ([], mark, False)


def test_h1_a_mark_at_the_end_of_a_journal_of_ours_that_was_closed(tmp_path: Path) -> None:
    path, marks = write_journal(tmp_path, _GROUPS)
    os.truncate(path, marks[-1].offset)
    mark, taken = apaches_scan(path.read_bytes(), 0)
    assert (mark, len(taken)) == (marks[-1].offset, 5)
    items, reader = read(path, mark, may_end_torn=False)
    assert (items, reader.position, reader.torn) == ([], mark, False)


@pytest.mark.parametrize("size", [0, 5000])
def test_h1_a_mark_in_a_journal_whose_creation_was_cut_short(tmp_path: Path, size: int) -> None:
    """Apache's reader takes a file without a header for one of the first version, and its first bytes for a length."""
    path = tmp_path / "1.txn"
    path.write_bytes(bytes(size))
    mark = 0
    for _ in range(3):
        mark, _ = apaches_scan(bytes(size), mark)
        assert mark <= 12
        items, reader = read(path, mark, may_end_torn=False)
        assert (items, reader.torn) == ([], False)


@pytest.mark.parametrize("rest", [0, 5000])
def test_h1_a_mark_in_an_empty_journal_of_apaches(tmp_path: Path, rest: int) -> None:
    """Apache's bookie was idle and was started again."""
    path = tmp_path / "1.txn"
    content = apaches_journal([])[0] + bytes(rest)
    path.write_bytes(content)
    mark, _ = apaches_scan(content, 0)
    assert mark == (516 if rest else 512)
    items, reader = read(path, mark, may_end_torn=False)
    assert (items, reader.torn) == ([], False)


def test_h1_a_mark_anywhere_in_a_torn_group_that_apache_has_read(tmp_path: Path) -> None:
    """Any sectors of our last group are missing; Apache's bookie took what it could, and its journals follow."""
    path, marks = write_journal(tmp_path, [*_GROUPS, [record(3, i, b"t" * 130) for i in range(4, 24)]])
    whole = path.read_bytes()
    begin, end = marks[1].offset, marks[2].offset
    stood = set()
    for first in range(begin, end, 512):
        for last in range(first + 512, end + 512, 512):
            content = whole[:first] + bytes(last - first) + whole[last:]
            try:
                mark, _ = apaches_scan(content, begin)
            except AssertionError:
                continue  # it is not started
            stood.add(mark % 512)
            path.write_bytes(content)
            for may_end_torn in (True, False):
                if not may_end_torn and content[mark:].strip(b"\0"):
                    continue  # one of ours follows: it would have been cut off
                items, reader = read(path, mark, may_end_torn=may_end_torn)
                assert (items, reader.position) == ([], mark)
    assert len(stood) > 3


def test_h1_apaches_mark_in_damage_is_told_by_the_groups_behind_it(tmp_path: Path) -> None:
    """Apache's bookie reads to the damage, and goes on without what follows; ours had acknowledged that."""
    path, marks = write_journal(tmp_path, [*_GROUPS, [record(3, 4)]])
    whole = bytearray(path.read_bytes())
    whole[marks[0].offset : marks[0].offset + 512] = bytes(512)
    path.write_bytes(whole)
    mark, _ = apaches_scan(bytes(whole), 0)
    assert mark == marks[0].offset + 4
    with pytest.raises(CorruptFileError, match=rf"offset {mark}\b.*synced later begin at offset {marks[1].offset}"):
        read(path, mark)


def test_h1_what_apaches_bookie_passed_over_in_its_own_journal_is_not_looked_at(tmp_path: Path) -> None:
    """A power failure left a later batch of those that were not synced; Apache's bookie was started on that since."""
    content, ends = apaches_journal([*_GROUPS, [record(3, 4)]])
    content = content[: ends[0]] + bytes(600) + content[ends[0] + 600 :]
    path = tmp_path / "1.txn"
    path.write_bytes(content)
    mark, _ = apaches_scan(content, 0)
    with pytest.raises(CorruptFileError, match="synced later"):
        read(path)
    items, reader = read(path, mark)
    assert (items, reader.position, reader.torn) == ([], mark, True)


@pytest.mark.parametrize("ours_follows", [True, False])
def test_h1_a_torn_end_before_a_journal_of_apaches_is_no_damage(tmp_path: Path, ours_follows: bool) -> None:
    """Apache's bookie cuts nothing off, and its mark may not have moved. Ours would have cut it off."""
    path, marks = write_journal(tmp_path, [*_GROUPS, [record(3, i) for i in range(4, 40)]], 16)
    os.truncate(path, marks[2].offset - 600)
    if ours_follows:
        write_journal(tmp_path, [[record(3, 50)]], 17)
    else:
        (tmp_path / journal.file_name(17)).write_bytes(apaches_journal([[record(3, 50)]])[0] + bytes(4096))
    write_journal(tmp_path, [], 18)
    storage = MemoryStorage()
    if ours_follows:
        with pytest.raises(CorruptFileError, match=rf"{path} is damaged at offset {marks[1].offset}"):
            replay(storage, tmp_path)
        return
    replay(storage, tmp_path)
    assert sorted(storage.entries) == [(3, 0), (3, 1), (3, 2), (3, 3), (3, 50)]
    assert path.stat().st_size == marks[1].offset
    # The same with a mark within the torn end.
    again = MemoryStorage()
    again.descriptors.create(3, KEY)
    replay(again, tmp_path, LogMark(16, marks[1].offset))
    assert sorted(again.entries) == [(3, 50)]


def test_h1_random_walks_of_kills_and_starts_lose_nothing(tmp_path: Path) -> None:
    """Journals of both kinds, each with what a kill leaves; Apache's reader moves the mark at its starts, ours the
    replay: at the end of each walk all entries were read by one of them."""
    for seed in range(60):
        _walk(tmp_path / str(seed), random.Random(seed))


def _walk(directory: Path, rng: random.Random) -> None:
    directory.mkdir()
    mark, next_id, written = LogMark(0, 0), 16, 0
    seen: set[int] = set()
    for _ in range(8):
        apaches = rng.random() < 0.5
        ids = [i for i in journal.journal_ids(str(directory)) if i >= mark.journal_id]
        if apaches:
            for journal_id in ids:
                content = (directory / journal.file_name(journal_id)).read_bytes()
                start = mark.offset if journal_id == mark.journal_id else 0
                seen |= _entries_from(content, start)
                mark = LogMark(journal_id, apaches_scan(content, start)[0])
        else:
            storage = MemoryStorage()
            storage.descriptors.create(3, KEY)
            end = replay(storage, directory, mark)
            seen |= {entry_id for _, entry_id in storage.entries}
            if rng.random() < 0.7:  # else it is killed before a flush
                mark = end.mark
        assert seen == set(range(written)), "an entry is lost"
        groups = [[record(3, written + i)] for i in range(rng.choice((0, 0, 1, 3)))]
        written += len(groups)
        path = directory / journal.file_name(next_id)
        if apaches:
            content, ends = apaches_journal(groups)
            path.write_bytes(content + bytes(rng.choice((0, 4096))))
            stops = [512, *ends]
        else:
            _, marks = write_journal(directory, groups, next_id)
            if rng.random() < 0.5:
                os.truncate(path, marks[-1].offset if marks else 512)
            stops = [512, *(mark.offset for mark in marks)]
        if rng.random() < 0.3 and mark.journal_id:
            mark = LogMark(next_id, rng.choice(stops))
            seen |= set(range(written))  # flushed before the mark moved
        next_id += 1


def _entries_from(content: bytes, start: int) -> set[int]:
    position = start or 512
    _, lengths = apaches_scan(content, start)
    found = set()
    for length in lengths:
        position = content.index(length.to_bytes(4, "big"), position)
        ledger_id, entry_id = struct.unpack_from(">qq", content, position + 4)
        if entry_id >= 0:
            assert ledger_id == 3
            found.add(entry_id)
        position += 4 + length
    return found


def test_journals_are_told_apart(tmp_path: Path) -> None:
    path, _ = write_journal(tmp_path, [])
    assert (is_ours(str(path)), holds_records(str(path))) == (True, False)
    path.write_bytes(apaches_journal([[record(3, 0)]])[0])
    assert (is_ours(str(path)), holds_records(str(path))) == (False, True)
    assert entries(read(path)[0]) == [(3, 0)]
