"""Messages of protobuf that are laid out alike: the same fields, in the same order, each of as many bytes.

What one writer sends is mostly so. Then the fields of one message, found byte by byte, are those of all others: they
differ in no bit of a tag, of a length, or of those that end a number. To compare that takes a few operations of numpy,
whatever the number of fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Bools
from bk_spark.protocol.pulsar.fields import FieldError, varint_at

#: Longer messages are not compared: they are seldom alike.
_MAX_BYTES: Final = 128
#: The bytes of numbers that are read at once.
_MAX_NUMBER_BYTES: Final = 8
_NUMBER: Final = 0
_BYTES: Final = 2
#: Bytes by wire type, for the numbers of fixed size, of which Pulsar has none.
_FIXED: Final = {1: 8, 5: 4}


@dataclass(frozen=True, slots=True)
class LaidOutField:
    """One field that is wanted: where its number or its bytes begin in the message, and how many bytes that are."""

    number: int
    kind: int
    at: int
    size: int


@dataclass(frozen=True, slots=True)
class Layout:
    """How a message is laid out.

    Parameters
    ----------
    size
        The bytes of the message.
    words
        For each eight bytes of it that tell layouts apart: where they begin, the bits that do, and what these are.
    fields
        The wanted fields, in order.
    """

    size: int
    words: tuple[tuple[int, np.uint64, np.uint64], ...]
    fields: tuple[LaidOutField, ...]

    def fits(self, words: npt.NDArray[np.uint64], at: npt.NDArray[np.int64]) -> Bools:
        """Return which messages are laid out so. ``words`` has the eight bytes from each place on; all messages have
        this layout's size."""
        found: Bools = np.ones(len(at), np.bool_)
        for offset, mask, value in self.words:
            found &= (words[at + offset] & mask) == value
        return found


def layout_of(data: bytes | memoryview, begin: int, end: int, wanted: Mapping[int, int]) -> Layout | None:
    """Return the layout of one message. None if it is long, malformed, or has what only a reader of fields can judge.

    Parameters
    ----------
    data
        The buffer with the message.
    begin, end
        Where it is.
    wanted
        The wire type of each field to keep.
    """
    if end - begin > _MAX_BYTES:
        return None
    message = bytes(data[begin:end])
    at, size = 0, len(message)
    #: The bits of each byte that tell layouts apart.
    mask = bytearray(-(-size // 8) * 8)
    fields = []
    try:
        while at < size:
            tag, body_at = varint_at(message, at, size)
            mask[at:body_at] = b"\xff" * (body_at - at)
            kind, number = tag & 7, tag >> 3
            if kind == _NUMBER:
                _, after = varint_at(message, body_at, size)
                mask[body_at:after] = b"\x80" * (after - body_at)
            elif kind == _BYTES:
                length, at = varint_at(message, body_at, size)
                mask[body_at:at] = b"\xff" * (at - body_at)
                body_at, after = at, at + length
            elif kind in _FIXED:
                after = body_at + _FIXED[kind]
            else:
                return None
            if not number or after > size or (kind == _NUMBER and after - body_at > _MAX_NUMBER_BYTES):
                return None
            if number in wanted:
                if wanted[number] != kind:
                    return None
                fields.append(LaidOutField(number, kind, body_at, after - body_at))
            at = after
    except FieldError:
        return None
    masks = np.frombuffer(bytes(mask), "<u8")
    values = np.frombuffer(message.ljust(len(mask), b"\0"), "<u8") & masks
    words = tuple((8 * place, masks[place], values[place]) for place in np.flatnonzero(masks).tolist())
    return Layout(size, words, tuple(fields))
