"""Many payloads checked by one checksum, against one checksum for each."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import Bytes2D, digest_function

PASSWORD = b"secret"


def made(random_: random.Random, digest_type: DigestType, count: int, size: int) -> tuple[Bytes2D, Bytes2D, bytearray]:
    headers = np.frombuffer(random_.randbytes(32 * count), np.uint8).reshape(count, 32).copy()
    payloads = bytearray(random_.randbytes(count * size))
    digest = digest_function(digest_type, PASSWORD)
    rows = [digest(headers[i].tobytes(), payloads[i * size : (i + 1) * size]) for i in range(count)]
    return headers, np.frombuffer(b"".join(rows), np.uint8).reshape(count, -1).copy(), payloads


@pytest.mark.parametrize("digest_type", [DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC], ids=lambda t: t.name)
@pytest.mark.parametrize("count", [1, 2, 3, 24, 25, 64, 127, 1000])
def test_right_digests_are_right_and_any_change_is_found(digest_type: DigestType, count: int) -> None:
    random_ = random.Random(f"{digest_type} {count}")
    digest = digest_function(digest_type, PASSWORD)
    for size in (1, 7, 100, 1024):
        headers, digests, payloads = made(random_, digest_type, count, size)
        assert digest.all_right(headers, digests, memoryview(payloads), size)
        # The buffer may be longer than what is checked.
        assert digest.all_right(headers, digests, memoryview(payloads + b"more"), size)
        for _ in range(12):
            where = random_.choice([headers.reshape(-1), digests.reshape(-1), np.frombuffer(payloads, np.uint8)])
            at, bits = random_.randrange(len(where)), random_.randrange(1, 256)
            where[at] ^= bits
            assert not digest.all_right(headers, digests, memoryview(payloads), size)
            where[at] ^= bits
        del where
        if count > 1 and size > 1:
            # Two payloads, each whole, in each other's place.
            swapped = payloads[size : 2 * size] + payloads[:size] + payloads[2 * size :]
            assert not digest.all_right(headers, digests, memoryview(swapped), size)
        assert digest.all_right(headers, digests, memoryview(payloads), size)


def test_empty_payloads_are_checked_by_their_headers() -> None:
    headers, digests, payloads = made(random.Random(1), DigestType.CRC32C, 50, 0)
    digest = digest_function(DigestType.CRC32C, PASSWORD)
    assert digest.all_right(headers, digests, memoryview(payloads), 0)
    headers[49, 3] ^= 1
    assert not digest.all_right(headers, digests, memoryview(payloads), 0)
