"""Protobuf varints of a fixed size, for whole columns at once. Source: protobuf's encoding, "Base 128 Varints".

A varint holds seven bits per byte, the lowest first. Every byte but the last has its top bit set. Zero bytes at its
upper end are legal: ``0x05`` and ``0x85 0x80 0x00`` are both 5, and parsers accept up to ten bytes. Messages with
padded numbers have a fixed size, so numpy can fill many of them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

#: Size that fits every number from 0 to 2⁶³ - 1.
INT64_BYTES: Final = 9
#: Size that fits every number below 2²⁸.
SIZE_BYTES: Final = 4


def padded(value: int, size: int) -> bytes:
    """Return ``value`` (not negative) as a varint of ``size`` bytes."""
    if value < 0 or value >> 7 * size:
        raise ValueError(f"{value} does not fit a varint of {size} bytes")
    last = size - 1
    return bytes([*[value >> shift & 0x7F | 0x80 for shift in range(0, 7 * last, 7)], value >> 7 * last])


def put_padded(column: npt.NDArray[np.uint8], values: npt.NDArray[np.int64]) -> None:
    """Write ``values`` (not negative, and fitting) as varints into the rows of ``column``, of shape (count, size)."""
    last = column.shape[1] - 1
    for place in range(last):
        column[:, place] = values >> 7 * place & 0x7F | 0x80
    column[:, last] = values >> 7 * last


def read_varints(column: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return the numbers (below 2⁶³) whose varints are the rows of ``column``, of shape (count, at most 9)."""
    values: npt.NDArray[Any] = np.zeros(len(column), np.int64)
    for place in range(column.shape[1]):
        values |= (column[:, place] & 0x7F).astype(np.int64) << 7 * place
    return values
