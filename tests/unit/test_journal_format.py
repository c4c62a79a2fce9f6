"""Journal files: bytes as Apache writes them, and what reading back makes of torn and damaged ones."""

from __future__ import annotations

import os
import random
from pathlib import Path

import crc32c
import numpy as np
import pytest

from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.entries.entry import pack_entry
from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.journal import journal
from bookie_server.storage.journal.journal import (
    ExplicitLacRecord,
    FenceRecord,
    JournalItem,
    MasterKeyRecord,
)
from bookie_server.storage.journal.journal_header import holds_records
from bookie_server.storage.journal.journal_reader import JournalReader
from bookie_server.storage.journal.journal_writer import JournalWriter
from bookie_server.storage.journal.log_mark import LogMark
from bookie_server.storage.records import Records

KEY = bytes(range(20))
NONCE = b"16 random bytes."
_DIGEST = digest_function(DigestType.CRC32C, b"")


def record(ledger_id: int, entry_id: int, payload: bytes = b"hello") -> bytes:
    entry = pack_entry(ledger_id, entry_id, entry_id - 1, len(payload), payload, _DIGEST)
    return len(entry).to_bytes(4, "big") + entry


def write_journal(
    directory: Path, groups: list[list[bytes]], journal_id: int = 0x1A, *, sync_data: bool = True
) -> tuple[Path, list[LogMark]]:
    """A journal with these groups; its path and the mark behind each group."""
    writer = JournalWriter(
        str(directory), journal_id, max_file_bytes=1 << 30, preallocate_bytes=1 << 16, sync_data=sync_data
    )
    writer.open()
    marks = [writer.write(group, sum(map(len, group))) for group in groups]
    writer.close(intact=False)  # as a kill leaves it: the space allocated in advance stays
    return directory / journal.file_name(journal_id), marks


def apaches_journal(groups: list[list[bytes]], version: int = 6) -> tuple[bytes, list[int]]:
    """A journal as Apache's bookie writes it (no seals), and the offset behind each group."""
    content = (b"BKLG" + version.to_bytes(4, "big")).ljust(512 if version >= 5 else 8, b"\0")
    ends = []
    for group in groups:
        content += b"".join(group)
        if version >= 5 and len(content) % 512:
            left = -len(content) % 512
            pad = left - 8 if left >= 8 else 512 - (8 - left)
            content += b"\xff\xff\xff\x00" + pad.to_bytes(4, "big") + bytes(pad)
        ends.append(len(content))
    return content, ends


def read(path: Path, offset: int = 0, *, may_end_torn: bool = True) -> tuple[list[JournalItem], JournalReader]:
    reader = JournalReader(str(path), offset, may_end_torn=may_end_torn)
    return list(reader.items()), reader


def entries(items: list[JournalItem]) -> list[tuple[int, int]]:
    return [
        pair
        for item in items
        if isinstance(item, Records)
        for pair in zip(item.ledger_ids.tolist(), item.entry_ids.tolist(), strict=True)
    ]


def test_special_records_are_apaches_bytes() -> None:
    packet = bytes.fromhex("00000000000000050000000000000006000000004f4fab2f")
    assert journal.explicit_lac_record(5, packet).hex() == (
        "0000002c" + "0000000000000005" + "ffffffffffff8000" + "00000018" + packet.hex()
    )
    assert journal.fence_record(5).hex() == "00000010" + "0000000000000005" + "ffffffffffffe000"
    assert journal.master_key_record(5, KEY).hex() == (
        "00000028" + "0000000000000005" + "fffffffffffff000" + "00000014" + KEY.hex()
    )


def test_header_and_file_name() -> None:
    for sync_data in (True, False):
        header = b"BKLG" + b"\0\0\0\6" + b"BKS2" + b"\0\0\0" + bytes([not sync_data]) + NONCE
        checksum = crc32c.crc32c(header).to_bytes(4, "big")
        assert journal.file_header(NONCE, sync_data=sync_data) == (header + checksum).ljust(512, b"\0")
        assert journal.sealed_header(journal.file_header(NONCE, sync_data=sync_data)) == (not sync_data, NONCE)
    assert journal.file_name(0x1A1FC36EB1E) == "1a1fc36eb1e.txn"


@pytest.mark.parametrize("size", [1, 400, 470, 471, 472, 473, 504, 512, 1000])
def test_a_group_ends_with_a_padding_that_apache_skips_and_a_seal_in_it(size: int) -> None:
    group = os.urandom(size)
    end = journal.group_end(NONCE, 1024, [group[:1], group[1:]], size)
    assert (1024 + size + len(end)) % 512 == 0
    assert end[:4] == b"\xff\xff\xff\x00"
    assert int.from_bytes(end[4:8], "big") == len(end) - 8
    assert 40 <= len(end) < 512 + 40
    assert end[8:36] == NONCE + (1024).to_bytes(8, "big") + crc32c.crc32c(group).to_bytes(4, "big")
    assert end[36:40] == crc32c.crc32c(end[:36]).to_bytes(4, "big")
    assert not end[40:].strip(b"\0")
    assert journal.seal_at(group + end, size, NONCE) == journal.GroupSeal(1024, crc32c.crc32c(group))


def test_what_was_written_is_read_back_in_order(tmp_path: Path) -> None:
    packet = bytes(16)
    path, marks = write_journal(
        tmp_path,
        [
            [journal.master_key_record(7, KEY), record(7, 0), record(7, 1)],
            [record(7, 2, b"x" * 2000), journal.explicit_lac_record(7, packet), record(7, 3)],
            [journal.fence_record(7)],
        ],
    )
    items, reader = read(path)
    assert [type(item).__name__ for item in items] == [
        "MasterKeyRecord",
        "Records",
        "ExplicitLacRecord",
        "Records",
        "FenceRecord",
    ]
    assert items[0] == MasterKeyRecord(7, KEY)
    assert entries(items) == [(7, 0), (7, 1), (7, 2), (7, 3)]
    assert items[2] == ExplicitLacRecord(7, packet)
    assert items[4] == FenceRecord(7)
    first = items[1]
    assert isinstance(first, Records)
    assert bytes(first.data) == record(7, 0) + record(7, 1) + record(7, 2, b"x" * 2000)
    assert first.last_adds_confirmed.tolist() == [-1, 0, 1]
    assert (reader.position, reader.torn) == (marks[-1].offset, False)
    assert [mark.offset % 512 for mark in marks] == [0, 0, 0]


def test_reading_starts_at_the_mark(tmp_path: Path) -> None:
    path, marks = write_journal(tmp_path, [[record(7, 0)], [record(7, 1)]])
    assert entries(read(path, marks[0].offset)[0]) == [(7, 1)]
    assert entries(read(path, marks[1].offset)[0]) == []


def test_a_long_run_of_equal_records_and_one_beyond_a_chunk(tmp_path: Path) -> None:
    many = [record(9, i, b"y" * 100) for i in range(60_000)]
    big = record(9, 60_000, os.urandom(5_000_000))
    path, _ = write_journal(tmp_path, [many, [big], [record(9, 60_001)]])
    items, _ = read(path)
    assert [entry_id for _, entry_id in entries(items)] == list(range(60_002))
    runs = [item for item in items if isinstance(item, Records)]
    data = b"".join(bytes(run.data) for run in runs)
    assert data == b"".join(many) + big + record(9, 60_001)
    for run in runs:
        assert int(run.offsets[-1]) == len(run.data)
        assert np.all(np.diff(run.offsets) > 0)


@pytest.mark.parametrize("garbage", ["nothing", "zeros", "ones", "random"])
def test_b3_last_group_cut_at_every_byte(tmp_path: Path, garbage: str) -> None:
    """B3: whatever follows the cut, reading succeeds and every group before is there whole."""
    groups = [[journal.master_key_record(3, KEY), record(3, 0)], [record(3, 1), record(3, 2, b"z" * 700)]]
    last = [record(3, 3, b"a" * 30), record(3, 4, b"b" * 60)]
    path, marks = write_journal(tmp_path, [*groups, last])
    whole = path.read_bytes()[: marks[-1].offset]
    sealed = marks[1].offset + sum(map(len, last)) + 40
    generator = random.Random(2220)
    answered = [(3, 0), (3, 1), (3, 2)]
    for cut in range(marks[1].offset, marks[2].offset + 1):
        rest = {"nothing": b"", "zeros": bytes(1500), "ones": b"\xff" * 1500, "random": generator.randbytes(1500)}
        path.write_bytes(whole[:cut] + rest[garbage])
        items, reader = read(path)
        # A group counts as a whole or not at all; what follows its seal means nothing.
        there = path.read_bytes()
        complete = len(there) >= marks[2].offset and there[:sealed] == whole[:sealed]
        assert entries(items) == answered + [(3, 3), (3, 4)] * complete, cut
        assert reader.position == marks[2 if complete else 1].offset


def test_b3_a_seal_torn_within_its_offset_is_no_proof_of_a_later_group(tmp_path: Path) -> None:
    path, marks = write_journal(tmp_path, [[record(3, 0)], [record(3, 1, b"z" * 3000)]])
    whole = path.read_bytes()
    seals_end = marks[0].offset + len(record(3, 1, b"z" * 3000)) + 40
    for garbage in (1, 3, 7, 0x3F, 0xFF):
        for torn in range(1, 41):
            if whole[seals_end - torn : seals_end] == bytes([garbage]) * torn:
                continue  # by chance, a seal with this random nonce ends like that
            path.write_bytes(whole[: seals_end - torn] + bytes([garbage]) * torn + bytes(2000))
            items, reader = read(path)
            assert (entries(items), reader.position, reader.torn) == ([(3, 0)], marks[0].offset, True)


def test_a_group_torn_inside_is_left_out_whole(tmp_path: Path) -> None:
    """After a power cut any sectors of the last group may be missing, with its end already on disk."""
    path, marks = write_journal(tmp_path, [[record(3, 0)], [record(3, i, b"t" * 1000) for i in range(1, 6)]])
    whole = path.read_bytes()
    for sector in range(marks[0].offset, marks[1].offset, 512):
        path.write_bytes(whole[:sector] + bytes(512) + whole[sector + 512 :])
        items, reader = read(path)
        assert (entries(items), reader.position, reader.torn) == ([(3, 0)], marks[0].offset, True)


def test_damage_in_a_group_that_is_followed_by_others_is_an_error(tmp_path: Path) -> None:
    path, marks = write_journal(tmp_path, [[record(3, i, b"q" * 900)] for i in range(5)])
    whole = bytearray(path.read_bytes())
    damaged = marks[1].offset
    bads = [b"\x7f\xff\xff\xff", b"\0\0\0\3", b"\x80\0\0\1", bytes(4), bytes(512), b"\xff" * 700, bytes(900)]
    for bad in [*bads, bytes(marks[2].offset - damaged)]:
        path.write_bytes(bytes(whole[:damaged]) + bad + bytes(whole[damaged + len(bad) :]))
        with pytest.raises(
            CorruptFileError, match=rf"{path}.*offset {damaged}\b.*synced later.*offset {marks[2].offset}"
        ):
            read(path)


def test_a_flipped_bit_is_damage(tmp_path: Path) -> None:
    path, marks = write_journal(tmp_path, [[record(3, i, b"q" * 900)] for i in range(3)])
    whole = bytearray(path.read_bytes())
    whole[marks[0].offset + 500] ^= 4
    path.write_bytes(bytes(whole))
    with pytest.raises(CorruptFileError, match=f"offset {marks[0].offset}"):
        read(path)


def test_apaches_journals_are_read_too(tmp_path: Path) -> None:
    groups = [[journal.master_key_record(7, KEY), record(7, 0)], [record(7, 1, b"p" * 981)], [record(7, 2)] * 40]
    content, ends = apaches_journal(groups)
    path = tmp_path / "5.txn"
    for rest in (b"", bytes(5000)):
        path.write_bytes(content + rest)
        items, reader = read(path)
        assert entries(items) == [(7, 0), (7, 1)] + [(7, 2)] * 40
        assert (reader.position, reader.torn) == (ends[-1], False)
    for cut in range(ends[1], ends[2]):
        path.write_bytes(content[:cut] + b"\xff" * 600)
        assert entries(read(path)[0])[:2] == [(7, 0), (7, 1)]
    path.write_bytes(content[: ends[0]] + b"\x7f\xff\xff\xff" + content[ends[0] + 4 :])
    with pytest.raises(CorruptFileError, match=rf"offset {ends[0]}\b.*offset {ends[1]}"):
        read(path)


def test_damage_in_the_last_group_is_a_torn_tail(tmp_path: Path) -> None:
    path, marks = write_journal(tmp_path, [[record(3, i, b"q" * 900)] for i in range(3)])
    whole = bytearray(path.read_bytes())
    whole[marks[1].offset : marks[1].offset + 4] = b"\x7f\xff\xff\xff"
    path.write_bytes(bytes(whole))
    items, reader = read(path)
    assert entries(items) == [(3, 0), (3, 1)]
    assert (reader.position, reader.torn) == (marks[1].offset, True)


def test_a_journal_that_one_of_ours_follows_must_not_end_torn(tmp_path: Path) -> None:
    path, marks = write_journal(tmp_path, [[record(3, 0)], [record(3, 1)]])
    assert entries(read(path, may_end_torn=False)[0]) == [(3, 0), (3, 1)]
    whole = path.read_bytes()
    path.write_bytes(whole[: marks[0].offset + 20])
    with pytest.raises(CorruptFileError, match=f"damaged at offset {marks[0].offset}"):
        read(path, may_end_torn=False)


@pytest.mark.parametrize("content", [b"", b"BK", b"BKLG", b"BKLG\0\0\0\6", bytes(512), b"BKLG\0\0\0\6" + bytes(100)])
def test_a_journal_whose_creation_was_cut_short_holds_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "1.txn"
    path.write_bytes(content)
    assert read(path)[0] == []


@pytest.mark.parametrize("sync_data", [True, False])
@pytest.mark.parametrize("rest", [0, 5000])
def test_a_header_cut_at_any_byte_holds_nothing(tmp_path: Path, rest: int, sync_data: bool) -> None:
    """Also with the space that was allocated in advance behind it."""
    path = tmp_path / "1.txn"
    header = journal.file_header(NONCE, sync_data=sync_data)
    for cut in range(len(header)):
        path.write_bytes(header[:cut] + bytes(rest))
        items, reader = read(path, may_end_torn=False)
        assert (items, reader.torn) == ([], False)
        assert not holds_records(str(path))


@pytest.mark.parametrize("offset", [512, 1024, 5000])
def test_a_mark_in_a_journal_whose_header_is_missing_is_refused(tmp_path: Path, offset: int) -> None:
    path = tmp_path / "1.txn"
    path.write_bytes(bytes(8192))
    with pytest.raises(CorruptFileError, match=rf"offset {offset} of journal {path}"):
        read(path, offset)


def test_a_mark_beyond_the_end_is_refused(tmp_path: Path) -> None:
    path, marks = write_journal(tmp_path, [[record(7, 0)], [record(7, 1)]])
    os.truncate(path, marks[0].offset)
    assert read(path, marks[0].offset)[0] == []
    with pytest.raises(CorruptFileError, match=rf"offset {marks[1].offset}.*{path}.*ends at {marks[0].offset}"):
        read(path, marks[1].offset)


@pytest.mark.parametrize("at", [8, 400, 512, 700])
@pytest.mark.parametrize("sync_data", [True, False])
def test_a_mark_in_the_middle_of_a_whole_group_is_refused(tmp_path: Path, at: int, sync_data: bool) -> None:
    """What was in front of it may be in no entry log; what is behind it would not be replayed."""
    path, marks = write_journal(
        tmp_path, [[record(7, 0)], [record(7, 1, b"m" * 900), record(7, 2)], [record(7, 3)]], sync_data=sync_data
    )
    for following in (True, False):
        with pytest.raises(CorruptFileError, match="the mark is wrong|records synced later begin"):
            read(path, marks[0].offset + at)
        if following:
            os.truncate(path, marks[1].offset)


def test_without_syncs_the_records_end_at_the_first_bad_group(tmp_path: Path) -> None:
    """A power failure may leave later groups and lose an earlier one: no damage, if none of them was synced."""
    path, marks = write_journal(tmp_path, [[record(3, i, b"q" * 900)] for i in range(4)], sync_data=False)
    assert entries(read(path)[0]) == [(3, i) for i in range(4)]
    whole = path.read_bytes()
    path.write_bytes(whole[: marks[1].offset] + bytes(1024) + whole[marks[1].offset + 1024 :])
    items, reader = read(path)
    assert entries(items) == [(3, 0), (3, 1)]
    assert (reader.position, reader.torn, reader.synced_groups) == (marks[1].offset, True, False)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"BKLE" + bytes(508), "does not begin with BKLG"),
        (b"BKLG\0\0\0\x08" + bytes(504), "version 8"),
        (b"BKLG\0\0\0\1" + bytes(504), "version 1"),
        (b"BKLG\0\0\0\6BKS1" + bytes(500), "seals of version b'1'"),
    ],
)
def test_unknown_headers_are_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "1.txn"
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match=says):
        read(path)


def test_older_versions_without_padding_are_read(tmp_path: Path) -> None:
    path = tmp_path / "1.txn"
    path.write_bytes(apaches_journal([[record(3, 0)], [record(3, 1)]], version=4)[0] + bytes(100))
    assert entries(read(path)[0]) == [(3, 0), (3, 1)]


def test_keys_do_not_show_in_texts() -> None:
    assert repr(MasterKeyRecord(5, b"secret")) == "MasterKeyRecord(ledger_id=5)"


def test_writer_rolls_by_size_and_gives_space_back(tmp_path: Path) -> None:
    writer = JournalWriter(str(tmp_path), 16, max_file_bytes=3000, preallocate_bytes=1 << 16)
    marks = [writer.write([data], len(data)) for data in (record(1, i, b"w" * 1000) for i in range(6))]
    writer.close()
    assert [mark.journal_id for mark in marks] == [16, 16, 17, 17, 18, 18]
    assert journal.journal_ids(str(tmp_path)) == [16, 17, 18]
    found = []
    for journal_id in (16, 17, 18):
        path = tmp_path / journal.file_name(journal_id)
        items, reader = read(path, may_end_torn=journal_id == 18)
        found += entries(items)
        assert reader.position == path.stat().st_size
    assert found == [(1, i) for i in range(6)]
