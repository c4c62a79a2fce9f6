"""Padded varints are what protobuf reads, one by one and in columns."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3.varints import INT64_BYTES, SIZE_BYTES, padded, put_padded, read_varints

EDGES = [0, 1, 127, 128, 16383, 16384, 2**21 - 1, 2**28 - 1, 2**28, 2**31, 2**40, 2**56 - 1, 2**62, 2**63 - 1]


def numbers() -> list[int]:
    random_ = random.Random(1)
    return EDGES + [random_.getrandbits(random_.randint(1, 63)) for _ in range(300)]


@pytest.mark.parametrize("value", EDGES)
def test_protobuf_reads_padded_numbers(value: int) -> None:
    assert pb.ReadLacRequest.FromString(b"\x08" + padded(value, INT64_BYTES)).ledgerId == value
    assert pb.ReadLacRequest.FromString(b"\x08" + padded(value, 10)).ledgerId == value


def test_protobuf_reads_padded_sizes() -> None:
    data = b"\x08\x01\x10\x02\x1a" + padded(3, SIZE_BYTES) + b"abc\x22" + padded(0, SIZE_BYTES)
    assert pb.AddRequest.FromString(data) == pb.AddRequest(ledgerId=1, entryId=2, masterKey=b"abc", body=b"")


def test_columns_equal_single_numbers() -> None:
    values = numbers()
    column = np.zeros((len(values), INT64_BYTES), np.uint8)
    put_padded(column, np.array(values, np.int64))
    assert [row.tobytes() for row in column] == [padded(value, INT64_BYTES) for value in values]
    assert read_varints(column).tolist() == values


def test_columns_of_the_numbers_natural_size() -> None:
    for size in range(1, INT64_BYTES + 1):
        values = [value for value in numbers() if max(1, -(-value.bit_length() // 7)) == size]
        rows = [pb.ReadLacRequest(ledgerId=value).SerializeToString()[1:] for value in values]
        assert {len(row) for row in rows} == {size}
        column = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), size)
        assert read_varints(column).tolist() == values


@pytest.mark.parametrize(("value", "size"), [(-1, 9), (128, 1), (2**28, 4), (2**63, 9)])
def test_what_does_not_fit(value: int, size: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        padded(value, size)
