"""Batches of payloads in one buffer."""

from __future__ import annotations

import numpy as np

from bk_spark.protocol.entries.payloads import Payloads


def test_of_separate_buffers() -> None:
    payloads = Payloads.of([b"ab", b"", bytearray(b"cde"), memoryview(b"f")])
    assert [bytes(one) for one in payloads] == [b"ab", b"", b"cde", b"f"]
    assert [bytes(payloads[index]) for index in range(4)] == [b"ab", b"", b"cde", b"f"]
    assert payloads.sizes.tolist() == [2, 0, 3, 1]
    assert (len(payloads), payloads.size_bytes) == (4, 6)


def test_of_nothing_and_of_one() -> None:
    assert (len(Payloads.of([])), Payloads.of([]).size_bytes, list(Payloads.of([]))) == (0, 0, [])
    only = bytearray(b"only")
    payloads = Payloads.of([only])
    assert payloads.data.obj is only
    assert bytes(payloads[0]) == b"only"


def test_parts_share_the_buffer() -> None:
    payloads = Payloads(memoryview(b"..abbccc"), np.array([2, 3, 5, 8], np.int64))
    part = payloads.part(1, 3)
    assert [bytes(one) for one in part] == [b"bb", b"ccc"]
    assert (part.data is payloads.data, part.size_bytes) == (True, 5)
    assert len(payloads.part(1, 1)) == 0
    assert len(payloads.part(2, 9)) == 1


def test_parts_are_joined() -> None:
    whole = Payloads(memoryview(b"..abbccc"), np.array([2, 3, 5, 8], np.int64))
    assert Payloads.joined([whole]) is whole
    joined = Payloads.joined([whole.part(1, 3), Payloads.of([]), whole.part(0, 0), Payloads.of([b"", b"x"]), whole])
    assert [bytes(one) for one in joined] == [b"bb", b"ccc", b"", b"x", b"a", b"bb", b"ccc"]
    assert joined.offsets.dtype == np.int64
