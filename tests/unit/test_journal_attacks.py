"""Clients choose payloads: none of them may make a torn tail look like damage, or damage like a torn tail."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import pytest

from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.journal import journal
from bookie_server.storage.journal.journal_writer import JournalWriter
from tests.unit.test_journal_format import KEY, entries, read, record, write_journal

_FIRST: Final = [journal.master_key_record(3, KEY), record(3, 0)]
#: Where the second group begins, and with it the client's record; where its payload begins.
_SECOND: Final = 1024
_PAYLOAD: Final = _SECOND + len(record(3, 1, b""))


@pytest.fixture
def imitation(tmp_path: Path) -> bytes:
    """Another journal of the same bookie with the same first group, and then many small ones: what a client would send
    that knows the format, every offset, and other journals, but not this one."""
    directory = tmp_path / "other"
    directory.mkdir()
    path, _ = write_journal(directory, [_FIRST, *([record(3, i, b"look")] for i in range(1, 8))])
    return path.read_bytes()


def forged(image: bytes, end: int = 2400) -> list[bytes]:
    """A group whose bytes, but for the beginning of its first record, are those of ``image`` up to ``end``."""
    return [record(3, 1, image[_PAYLOAD:end]), record(3, 2)]


@pytest.mark.parametrize("garbage", ["nothing", "zeros", "the imitation", "random"])
def test_a_torn_tail_of_payloads_full_of_copied_seals_is_a_torn_tail(
    tmp_path: Path, imitation: bytes, garbage: str
) -> None:
    """Cut at every byte, whatever follows: it is never refused, and all that was answered is there."""
    path, marks = write_journal(tmp_path, [_FIRST, forged(imitation)])
    whole = path.read_bytes()[: marks[-1].offset]
    assert marks[0].offset == _SECOND
    assert whole[_PAYLOAD:2400] == imitation[_PAYLOAD:2400]
    generator = random.Random(5)
    for cut in range(_SECOND, marks[1].offset):
        rest = {
            "nothing": b"",
            "zeros": bytes(1500),
            "the imitation": imitation[cut : cut + 1500],
            "random": generator.randbytes(1500),
        }
        path.write_bytes(whole[:cut] + rest[garbage])
        there = path.read_bytes()
        complete = len(there) >= len(whole) and there.startswith(whole.rstrip(b"\0"))
        items, reader = read(path)
        assert entries(items) == [(3, 0)] + [(3, 1), (3, 2)] * complete, cut
        assert reader.position == marks[complete].offset


def test_a_torn_tail_that_lost_any_sectors_of_forged_payloads_is_a_torn_tail(tmp_path: Path, imitation: bytes) -> None:
    path, marks = write_journal(tmp_path, [_FIRST, forged(imitation)])
    whole = path.read_bytes()
    for first in range(_SECOND, marks[1].offset, 512):
        for end in range(first + 512, marks[1].offset + 1, 512):
            path.write_bytes(whole[:first] + bytes(end - first) + whole[end:])
            items, reader = read(path)
            assert (entries(items), reader.position) == ([(3, 0)], _SECOND), (first, end)


def test_without_a_random_nonce_the_imitation_is_taken_for_damage(
    tmp_path: Path, imitation: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tests above rest on: with a nonce that a client knows, each of them would fail."""
    monkeypatch.setattr(journal, "new_nonce", lambda: imitation[16:32])
    path, marks = write_journal(tmp_path, [_FIRST, forged(imitation)])
    path.write_bytes(path.read_bytes()[: marks[1].offset - 512])
    with pytest.raises(CorruptFileError, match="synced later"):
        read(path)


def test_copies_of_seals_of_the_same_file_prove_nothing(tmp_path: Path) -> None:
    """A client that had seen the journal as it was could copy only seals of groups before its own."""
    groups = [_FIRST, *([record(3, i)] for i in range(1, 5))]
    path, marks = write_journal(tmp_path, groups)
    known = path.read_bytes()[: marks[-1].offset]
    (tmp_path / "again").mkdir()
    nonce = known[16:32]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(journal, "new_nonce", lambda: nonce)
        path, marks = write_journal(tmp_path / "again", [*groups, [record(3, 5, known[512:]), record(3, 6)]])
    whole = path.read_bytes()
    assert whole.startswith(known)
    assert whole.count(nonce) > 10
    for cut in range(marks[4].offset, marks[5].offset - 512, 7):
        path.write_bytes(whole[:cut] + bytes(3000))
        items, reader = read(path)
        assert (entries(items)[-1], reader.position) == ((3, 4), marks[4].offset)


def test_each_file_has_a_nonce_of_its_own_and_payloads_never_see_it(tmp_path: Path) -> None:
    writer = JournalWriter(str(tmp_path), 16, max_file_bytes=600, preallocate_bytes=1 << 16)
    for i in range(6):
        writer.write([record(3, i)], len(record(3, i)))
    writer.close()
    nonces = [(tmp_path / journal.file_name(i)).read_bytes()[16:32] for i in journal.journal_ids(str(tmp_path))]
    assert len(set(nonces)) == len(nonces) == 6


@pytest.mark.parametrize("torn", [1, 40, 400, 1400])
def test_a_seal_of_a_later_group_is_proof_though_that_group_is_torn(tmp_path: Path, torn: int) -> None:
    """The group before it had been synced, and answered, before anything of the later one was written."""
    path, marks = write_journal(tmp_path, [_FIRST, [record(3, 1)], [record(3, i, b"t" * 700) for i in range(2, 4)]])
    whole = bytearray(path.read_bytes())
    whole[marks[0].offset + 30] ^= 1
    whole[marks[1].offset : marks[1].offset + torn] = bytes(torn)
    path.write_bytes(whole)
    with pytest.raises(CorruptFileError, match=rf"offset {marks[0].offset}\b.*offset {marks[1].offset}"):
        read(path)


def test_a_seal_that_is_torn_itself_is_no_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its nonce is on the disk; where its group begins is garbage."""
    path, marks = write_journal(tmp_path, [_FIRST, [record(3, 1, b"z" * 3000)]])
    whole = bytearray(path.read_bytes())
    seal = marks[0].offset + len(record(3, 1, b"z" * 3000)) + 8
    whole[seal + 16 : seal + 24] = (1 << 20).to_bytes(8, "big")
    path.write_bytes(whole)
    items, reader = read(path)
    assert (entries(items), reader.position, reader.torn) == ([(3, 0)], marks[0].offset, True)
    # What this rests on: the seal's own checksum.
    monkeypatch.setattr(
        journal, "seal_at", lambda data, at, nonce: journal.GroupSeal(*journal.SEAL.unpack_from(data, at + 8)[1:3])
    )
    with pytest.raises(CorruptFileError, match="synced later"):
        read(path)


@pytest.mark.parametrize("at", range(12, 36))
def test_a_header_that_was_damaged_is_told_from_one_that_was_torn(tmp_path: Path, at: int) -> None:
    """Groups are written only behind a header that was synced; without its nonce none of them can be believed."""
    path, marks = write_journal(tmp_path, [_FIRST, [record(3, 1)]])
    whole = bytearray(path.read_bytes())
    whole[at] ^= 0x10
    path.write_bytes(whole)
    with pytest.raises(CorruptFileError, match=f"journal {path} has a damaged header"):
        read(path)
    with pytest.raises(CorruptFileError, match=f"journal {path} has a damaged header"):
        read(path, marks[0].offset)
    # Nothing is needed any more of what the header was for.
    assert read(path, marks[1].offset)[0] == []
    path.write_bytes(whole[:512] + bytes(4096))
    assert read(path)[0] == []
