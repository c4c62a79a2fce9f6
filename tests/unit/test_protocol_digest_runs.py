"""Many payloads checked by one checksum, against one checksum for each."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import Bytes2D, digest_function

PASSWORD = b"secret"


def made(
    random_: random.Random, digest_type: DigestType, sizes: list[int]
) -> tuple[Bytes2D, Bytes2D, bytearray, Int64s]:
    """Headers, digests, payloads and their offsets."""
    count = len(sizes)
    headers = np.frombuffer(random_.randbytes(32 * count), np.uint8).reshape(count, 32).copy()
    payloads = bytearray(random_.randbytes(sum(sizes)))
    offsets = np.array([0, *itertools.accumulate(sizes)], np.int64)
    digest = digest_function(digest_type, PASSWORD)
    bounds = itertools.pairwise(offsets.tolist())
    rows = [digest(header.tobytes(), payloads[start:end]) for header, (start, end) in zip(headers, bounds, strict=True)]
    return headers, np.frombuffer(b"".join(rows), np.uint8).reshape(count, -1).copy(), payloads, offsets


@pytest.mark.parametrize("digest_type", [DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC], ids=lambda t: t.name)
@pytest.mark.parametrize("count", [1, 2, 3, 24, 25, 64, 127, 1000])
def test_right_digests_are_right_and_any_change_is_found(digest_type: DigestType, count: int) -> None:
    random_ = random.Random(f"{digest_type} {count}")
    digest = digest_function(digest_type, PASSWORD)
    for size in (1, 4, 7, 100, 1024, None):
        sizes = [size] * count if size else [random_.randrange(4, 300) for _ in range(count)]
        headers, digests, payloads, offsets = made(random_, digest_type, sizes)
        assert digest.all_right(headers, digests, memoryview(payloads), offsets)
        # The buffer may be longer than what is checked, and may not be changed meanwhile.
        longer = bytearray(b"before") + payloads + b"more"
        assert digest.all_right(headers, digests, memoryview(longer), offsets + 6)
        assert digest.all_right(headers, digests, memoryview(bytes(longer)), offsets + 6)
        assert longer == b"before" + payloads + b"more"
        for _ in range(12):
            where = random_.choice([headers.reshape(-1), digests.reshape(-1), np.frombuffer(payloads, np.uint8)])
            at, bits = random_.randrange(len(where)), random_.randrange(1, 256)
            where[at] ^= bits
            before = bytes(payloads)
            assert not digest.all_right(headers, digests, memoryview(payloads), offsets)
            assert payloads == before
            where[at] ^= bits
        del where
        if count > 1 and size and size > 1:
            # Two payloads, each whole, in each other's place.
            swapped = payloads[size : 2 * size] + payloads[:size] + payloads[2 * size :]
            assert not digest.all_right(headers, digests, memoryview(swapped), offsets)
        if count > 1:
            # An entry, each part whole, in the place of the last one.
            assert not digest.all_right(headers[::-1].copy(), digests, memoryview(payloads), offsets)
            moved = offsets.copy()
            moved[1:-1] += 1
            assert not digest.all_right(headers, digests, memoryview(payloads), moved)
        assert digest.all_right(headers, digests, memoryview(payloads), offsets)


@pytest.mark.parametrize("sizes", [[0] * 50, [0, 1, 2, 3, 4, 100] * 10])
def test_payloads_without_room_for_a_checksum_are_checked_one_by_one(sizes: list[int]) -> None:
    headers, digests, payloads, offsets = made(random.Random(1), DigestType.CRC32C, sizes)
    digest = digest_function(DigestType.CRC32C, PASSWORD)
    assert digest.all_right(headers, digests, memoryview(payloads), offsets)
    headers[49, 3] ^= 1
    assert not digest.all_right(headers, digests, memoryview(payloads), offsets)
