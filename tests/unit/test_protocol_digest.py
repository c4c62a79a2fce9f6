"""Keys and digests against vectors from Apache's classes (compatibility.md §1.6, §2.2, §2.3)."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import digest_function, master_key

HEADER = bytes.fromhex("0000000000000005 0000000000000007 0000000000000006 0000000000000064")
VECTORS = {
    DigestType.CRC32: ("00000000177e796d", "000000004f4fab2f"),
    DigestType.HMAC: ("063b9f5733526932891ff7b10fbcca59600124cd", "df287064120100de088ac1e1594f7e0f2703f6cd"),
    DigestType.CRC32C: ("a94560f6", "4e206979"),
    DigestType.DUMMY: ("", ""),
}


@pytest.mark.parametrize(
    ("password", "key"),
    [
        (b"", "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"),
        (b"testPasswd", "2e2a69d870796fe05c0e77c52a29ce5e4222b758"),
        (b"golden", "615ed0089f3a2db1c1f7182910edc04428396d09"),
    ],
)
def test_master_key(password: bytes, key: str) -> None:
    assert master_key(password).hex() == key


@pytest.mark.parametrize("digest_type", DigestType)
def test_digest_of_an_entry_and_of_a_lac_packet(digest_type: DigestType) -> None:
    digest = digest_function(digest_type, b"testPasswd")
    of_entry, of_lac = VECTORS[digest_type]
    assert digest(HEADER, b"hello").hex() == of_entry
    lac_packet = HEADER[:8] + HEADER[16:24]
    assert digest(lac_packet, b"").hex() == of_lac
    assert len(digest(HEADER, b"hello")) == digest_type.digest_bytes


@pytest.mark.parametrize("digest_type", DigestType)
def test_any_kind_of_buffer_and_any_number_of_calls(digest_type: DigestType) -> None:
    digest = digest_function(digest_type, b"testPasswd")
    first = digest(HEADER, b"hello")
    assert digest(memoryview(HEADER), memoryview(bytearray(b"xhellox"))[1:6]) == first
    assert digest(bytearray(HEADER), bytearray(b"hello")) == first


def test_crc32c_is_castagnoli() -> None:
    assert digest_function(DigestType.CRC32C, b"")(b"1234", b"56789").hex() == "e3069283"


def test_only_hmac_depends_on_the_password() -> None:
    for digest_type in DigestType:
        one, other = (digest_function(digest_type, password)(HEADER, b"hello") for password in (b"a", b"b"))
        assert (one != other) is (digest_type is DigestType.HMAC)


@pytest.mark.parametrize("count", [0, 1, 23, 24, 300])
@pytest.mark.parametrize("digest_type", DigestType, ids=lambda kind: kind.name)
def test_many_at_once_are_as_one_by_one(digest_type: DigestType, count: int) -> None:
    random = Random(count)
    digest = digest_function(digest_type, b"testPasswd")
    headers = np.frombuffer(random.randbytes(40 * count), np.uint8).reshape(count, 40)[:, 8:]
    sizes = [random.choice([0, 1, 7, 100, 4096]) for _ in range(count)]
    data = memoryview(random.randbytes(sum(sizes)))
    ends = np.cumsum(sizes, dtype=np.int64).tolist()
    starts = [end - size for end, size in zip(ends, sizes, strict=True)]
    found = digest.many(headers, [data[start:end] for start, end in zip(starts, ends, strict=True)])
    assert found.shape == (count, digest_type.digest_bytes)
    for row, header, start, end in zip(found, headers, starts, ends, strict=True):
        assert row.tobytes() == digest(header.tobytes(), data[start:end])


@pytest.mark.parametrize("size", [0, 1, 100, 416, 417, 2000])
@pytest.mark.parametrize("digest_type", DigestType, ids=lambda kind: kind.name)
def test_rows_of_one_size_are_as_one_by_one(digest_type: DigestType, size: int) -> None:
    digest = digest_function(digest_type, b"pw")
    table = np.frombuffer(Random(size).randbytes(60 * (size + 50)), np.uint8).reshape(60, size + 50)
    # The rows lie within longer ones, as in frames.
    rows = table[:, 18:]
    expected = [digest(row[:32].tobytes(), row[32:].tobytes()) for row in rows]
    assert [bytes(one) for one in digest.of_rows(rows)] == expected


@pytest.mark.parametrize("digest_type", DigestType, ids=lambda kind: kind.name)
def test_headers_that_differ_in_any_byte_alone_have_digests_of_their_own(digest_type: DigestType) -> None:
    digest, random = digest_function(digest_type, b"testPasswd"), Random(1)
    payloads = [memoryview(random.randbytes(10))] * 24
    for position in range(32):
        headers = np.frombuffer(random.randbytes(32) * 24, np.uint8).reshape(24, 32).copy()
        headers[random.randrange(24), position] ^= random.randrange(1, 256)
        found = digest.many(headers, payloads)
        assert [row.tobytes() for row in found] == [digest(row.tobytes(), payloads[0]) for row in headers]
