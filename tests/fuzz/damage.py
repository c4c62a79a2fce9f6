"""Bytes that nobody should have sent: valid ones that were changed, cut, extended or mixed, and random ones."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Final

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

#: Numbers that lengths, counts and ids go wrong at.
EDGES: Final = (0, 1, -1, 2, 127, 128, 255, 256, 2**15, 2**16, 2**28, 2**31 - 1, -(2**31), 2**32 - 1, 2**40, 2**63 - 1)
_WAYS: Final = ("flip", "set", "number", "varint", "cut", "drop", "insert", "repeat", "splice")
_MOST_CHANGES: Final = 3
_MAX_BYTES: Final = 64 * 1024
_LEVELS: Final = 2_000

INT64: Final = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from(EDGES))
COUNT: Final = st.one_of(st.integers(0, 2**63 - 1), st.integers(0, 300), st.sampled_from([e for e in EDGES if e >= 0]))


def hostile(valid: SearchStrategy[bytes], random_bytes: int = 200) -> SearchStrategy[bytes]:
    """Mostly bytes of ``valid`` that were damaged, sometimes random ones or valid ones."""
    hurt, short = damaged(valid), st.builds(_beginning, valid, st.integers(0, 1000))
    return st.one_of(valid, valid, hurt, hurt, hurt, short, st.binary(max_size=random_bytes))


def _beginning(data: bytes, thousandths: int) -> bytes:
    return data[: len(data) * thousandths // 1000]


@st.composite
def damaged(draw: st.DrawFn, valid: SearchStrategy[bytes]) -> bytes:
    """One to three changes of ``valid`` bytes."""
    data = draw(valid)
    for _ in range(draw(st.integers(1, _MOST_CHANGES))):
        data = _changed(draw, data, valid)
    return data[:_MAX_BYTES]


def _changed(draw: st.DrawFn, data: bytes, valid: SearchStrategy[bytes]) -> bytes:
    way = draw(st.sampled_from(_WAYS))
    at = draw(st.integers(0, max(0, len(data) - 1)))
    if way in ("drop", "repeat"):
        end = min(len(data), at + draw(st.integers(1, 40)))
        return (
            data[:at] + data[end:]
            if way == "drop"
            else data[:end] + data[at:end] * draw(st.integers(1, 20)) + data[end:]
        )
    if way == "flip" and data:
        return data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :]
    if way == "set":
        return data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
    if way == "number":
        size = draw(st.sampled_from((2, 4, 8)))
        number = draw(st.sampled_from(EDGES)) & (1 << 8 * size) - 1
        return data[:at] + number.to_bytes(size, "big") + data[at + size :]
    if way == "varint":
        return data[:at] + varint(draw(st.sampled_from(EDGES)) & (1 << 64) - 1) + data[at + 1 :]
    if way == "cut":
        return data[:at]
    if way == "insert":
        return data[:at] + draw(st.binary(min_size=1, max_size=20)) + data[at:]
    other = draw(valid)
    return data[:at] + other[draw(st.integers(0, max(0, len(other) - 1))) :]


def with_long_number(valid: SearchStrategy[bytes]) -> SearchStrategy[bytes]:
    """``valid`` bytes in which a number has more digits than Python turns into one."""
    return st.builds(_lengthened, valid, st.integers(0, 100))


def _lengthened(data: bytes, which: int) -> bytes:
    numbers = list(re.finditer(rb"\d+", data))
    if not numbers:
        return data
    chosen = numbers[which % len(numbers)]
    return data[: chosen.start()] + b"9" * 5_000 + data[chosen.end() :]


def deep() -> SearchStrategy[bytes]:
    """Brackets that nest deeper than Python's functions can follow. Parsers in C follow them since Python 3.12."""
    lists, objects = b"[" * _LEVELS, b'{"a":' * _LEVELS
    closed = [lists + b"]" * _LEVELS, objects + b"1" + b"}" * _LEVELS]
    return st.sampled_from([lists, objects, *closed, b"a {" * _LEVELS])


def varint(number: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def pieces(sizes: Sequence[int]) -> SearchStrategy[list[int]]:
    """Sizes of the parts in which bytes arrive, to be repeated: see :func:`parts_of`."""
    return st.lists(st.sampled_from(sizes), min_size=1, max_size=4)


def parts_of(data: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    """Cut ``data`` into parts of these sizes, and again from the first one on."""
    for size in itertools.cycle(sizes):
        if not data:
            return
        yield data[:size]
        data = data[size:]
