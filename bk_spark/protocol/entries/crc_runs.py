"""Checks the checksums of many payloads of one size with a single checksum over all of them.

A CRC is affine: ``crc(b, v) == crc(b, 0) ^ M(v)``, where the linear map M depends only on the length of ``b``. So with
payloads p0, p1, … of one size, ``crc(p0 + p1 + …, 0)`` follows from ``crc(p0, 0)``, ``crc(p1, 0)``, …. It is the
exclusive or of these, after M is applied to each once for every payload that follows it.

The digests of the entries give the expected checksum of each payload. From these, numpy computes the expected checksum
of the whole. One call computes the actual one. A changed payload changes the whole as it would change its own checksum.
Several changes cancel out with a probability of one in 2³², the same as for a wrong payload that fits its digest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

Checksum = Callable[[bytes | bytearray | memoryview, int], int]
Uint32s = npt.NDArray[np.uint32]

_BITS: Final = 32


def moved(checksum: Checksum, size: int, values: Uint32s) -> Uint32s:
    """Return how each of ``values``, used as the start of a checksum over ``size`` bytes, changes that checksum."""
    return _apply(_map(checksum, size, 0), values)


def joined(checksum: Checksum, size: int, each: Uint32s) -> int:
    """Return the checksum (from 0) of concatenated payloads of ``size`` bytes with the checksums ``each``."""
    level = 0
    while len(each) > 1:
        if len(each) % 2:
            # Pad with zero: M maps it to zero, so it changes nothing.
            each = np.concatenate([np.zeros(1, np.uint32), each])
        each = _apply(_map(checksum, size, level), each[::2]) ^ each[1::2]
        level += 1
    return int(each[0])


@lru_cache(256)
def _map(checksum: Checksum, size: int, level: int) -> Uint32s:
    """Return M of ``size << level`` bytes, as the result for each byte position and each byte value."""
    if level:
        half = _map(checksum, size, level - 1)
        images = _apply(half, _apply(half, np.uint32(1) << np.arange(_BITS, dtype=np.uint32)))
    else:
        zeros = bytes(size)
        still = checksum(zeros, 0)
        images = np.array([checksum(zeros, 1 << bit) ^ still for bit in range(_BITS)], np.uint32)
    tables = np.zeros((_BITS // 8, 256), np.uint32)
    for bit, image in enumerate(images):
        table, low = tables[bit // 8], 1 << bit % 8
        table[low : 2 * low] = table[:low] ^ image
    return tables


def _apply(tables: Uint32s, values: Uint32s) -> Uint32s:
    found: Uint32s = tables[0][values & 0xFF]
    for position in (1, 2, 3):
        found ^= tables[position][values >> np.uint32(8 * position) & 0xFF]
    return found
