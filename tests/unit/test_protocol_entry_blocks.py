"""Verification of many entries at once: the fast paths give what entry by entry gives."""

from __future__ import annotations

import random
import struct
from unittest.mock import patch

import pytest

from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries import entry
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.entries.entry import EntryBlock, pack_entry, verify_records, verify_stored
from bk_spark.protocol.errors import DigestMismatchError, WireFormatError
from tests.support.wire import captured

LEDGER = 7
CHECKED = [digest_type for digest_type in DigestType if digest_type is not DigestType.DUMMY]


def stored_entries(digest_type: DigestType, payloads: list[bytes], first: int = 0, step: int = 1) -> list[bytes]:
    digest = digest_function(digest_type, b"pw")
    return [
        pack_entry(LEDGER, first + index * step, first + index * step - 1 - index % 3, 0, payload, digest)
        for index, payload in enumerate(payloads)
    ]


def records_of(stored: list[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(one)) + one for one in stored)


def verify(records: bytes | bytearray | memoryview, digest_type: DigestType, first: int = 0) -> EntryBlock:
    """Verify copies of ``records``: one stays as it is, in the other payloads are moved together."""
    digest = digest_function(digest_type, b"pw")
    block = verify_records(memoryview(records), LEDGER, first, digest_type, digest)
    with patch.multiple(entry, _MOVED_BYTES=0, _MOVED_ENTRY_BYTES=0):
        moved = verify_records(memoryview(bytearray(records)), LEDGER, first, digest_type, digest, may_change=True)
    assert (moved.first_entry_id, moved.max_lac, payloads_of(moved)) == (
        block.first_entry_id, block.max_lac, payloads_of(block),
    )  # fmt: skip
    return block


def payloads_of(block: EntryBlock) -> list[bytes]:
    return [bytes(payload) for payload in block.payloads]


SHAPES = {
    "one": [5],
    "three": [5, 5, 5],
    "uniform": [24] * 9,
    "uniform empty": [0] * 6,
    "one empty": [0],
    "mixed": [1, 0, 300, 300, 2, 9, 9],
    "last differs": [8] * 7 + [9],
    "first differs": [9] + [8] * 7,
    # Sizes that add up to a multiple of the first, so that only the prefixes tell.
    "sums alike": [8, 7, 9, 8, 8, 8],
}


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("shape", SHAPES)
def test_all_right(digest_type: DigestType, shape: str) -> None:
    random_ = random.Random(shape)
    payloads = [random_.randbytes(size) for size in SHAPES[shape]]
    stored = stored_entries(digest_type, payloads, first=40)
    highest = max(struct.unpack_from(">q", one, 16)[0] for one in stored)
    digest = digest_function(digest_type, b"pw")
    for block in (
        verify(records_of(stored), digest_type, 40),
        verify_stored([memoryview(one) for one in stored], LEDGER, 40, digest_type, digest),
    ):
        assert (block.first_entry_id, len(block), block.max_lac) == (40, len(payloads), highest)
        assert payloads_of(block) == payloads


@pytest.mark.parametrize("digest_type", CHECKED)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_longest_right_prefix_is_kept(digest_type: DigestType, shape: str) -> None:
    payloads = [bytes([index]) * size for index, size in enumerate(SHAPES[shape])]
    stored = stored_entries(digest_type, payloads)
    for wrong in range(len(stored)):
        for position in (0, 7, 8, 15, 20, 31, 32, len(stored[wrong]) - 1):
            corrupt = bytearray(stored[wrong])
            corrupt[position] ^= 0x10
            records = records_of([*stored[:wrong], bytes(corrupt), *stored[wrong + 1 :]])
            if wrong == 0:
                with pytest.raises(DigestMismatchError):
                    verify(records, digest_type)
                continue
            block = verify(records, digest_type)
            assert payloads_of(block) == payloads[:wrong]
            assert block.max_lac == max(struct.unpack_from(">q", one, 16)[0] for one in stored[:wrong])


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("count", [1, 3, 4, 10])
def test_wrong_ledger_and_gaps(digest_type: DigestType, count: int) -> None:
    stored = stored_entries(digest_type, [b"abc"] * count)
    with pytest.raises(DigestMismatchError):
        verify(records_of(stored), digest_type, first=1)
    gap = stored_entries(digest_type, [b"abc"] * count, step=2)
    assert len(verify(records_of(gap), digest_type)) == 1
    repeated = records_of([stored[0], *stored])
    assert len(verify(repeated, digest_type)) == 1
    with pytest.raises(DigestMismatchError):
        verify_records(memoryview(records_of(stored)), LEDGER + 1, 0, digest_type, digest_function(digest_type, b"pw"))


@pytest.mark.parametrize("may_change", [False, True])
@pytest.mark.parametrize("more", [0, 3], ids=["of one size", "of different sizes"])
@pytest.mark.parametrize("size", [100, 16 * 1024])
def test_only_large_entries_in_records_of_ones_own_are_moved(size: int, more: int, may_change: bool) -> None:
    payloads = [bytes([index]) * (size + index * more) for index in range(40)]
    stored = records_of(stored_entries(DigestType.CRC32C, payloads))
    records = bytearray(stored)
    digest = digest_function(DigestType.CRC32C, b"pw")
    block = verify_records(memoryview(records), LEDGER, 0, DigestType.CRC32C, digest, may_change=may_change)
    assert payloads_of(block) == payloads
    is_moved = may_change and size > 100
    assert (block.payloads.data.obj is records) == is_moved
    assert (records == stored) == (not is_moved)
    # What cannot be written to stays.
    block = verify_records(memoryview(stored), LEDGER, 0, DigestType.CRC32C, digest, may_change=True)
    assert payloads_of(block) == payloads


def test_entries_of_a_stripe() -> None:
    digest = digest_function(DigestType.CRC32C, b"pw")
    stored = stored_entries(DigestType.CRC32C, [b"a", b"bb", b"ccc"], first=4, step=3)
    views = [memoryview(one) for one in stored]
    assert payloads_of(verify_stored(views, LEDGER, 4, DigestType.CRC32C, digest, 3)) == [b"a", b"bb", b"ccc"]
    assert payloads_of(verify_stored(views, LEDGER, 4, DigestType.CRC32C, digest, 2)) == [b"a"]


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("shape", ["one", "uniform", "mixed", "sums alike"])
def test_torn_records_are_a_format_error(digest_type: DigestType, shape: str) -> None:
    records = records_of(stored_entries(digest_type, [bytes(size) for size in SHAPES[shape]]))
    for size in range(len(records)):
        boundary = size in boundaries(records)
        if boundary and size:
            assert len(verify(records[:size], digest_type)) >= 1
        else:
            with pytest.raises(WireFormatError):
                verify(records[:size], digest_type)


def boundaries(records: bytes) -> set[int]:
    found, position = {0}, 0
    while position < len(records):
        position += 4 + struct.unpack_from(">I", records, position)[0]
        found.add(position)
    return found


@pytest.mark.parametrize("count", [1, 4, 12])
def test_records_too_short_for_an_entry(count: int) -> None:
    for size in (0, 1, 31, 35):
        with pytest.raises(DigestMismatchError):
            verify(records_of([bytes(size)] * count), DigestType.CRC32C)
    good = stored_entries(DigestType.CRC32C, [b"abc"] * count)
    assert len(verify(records_of([*good, b""]), DigestType.CRC32C)) == count


def test_a_captured_batch_read() -> None:
    (answer,) = [one for one in captured("wire-v2", "v2") if one.scene == "batch-read" and not one.request]
    digest = digest_function(DigestType.CRC32C, b"golden")
    ledger_id = answer.says["ledger"]
    block = verify_records(memoryview(answer.body[32:]), ledger_id, answer.says["entry"], DigestType.CRC32C, digest)
    assert len(block) == 3
    assert [len(payload) for payload in block.payloads] == [10, 10, 10]


def test_what_was_verified_outlives_the_received_buffer() -> None:
    received = bytearray(records_of(stored_entries(DigestType.CRC32C, [b"abcd"] * 6)))
    block = verify(received, DigestType.CRC32C)
    received[:] = bytes(len(received))
    assert payloads_of(block) == [b"abcd"] * 6
