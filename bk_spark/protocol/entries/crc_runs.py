"""The checksums of many payloads of one size, checked by a single checksum over all of them.

A CRC is affine: ``crc(b, v) == crc(b, 0) ^ M(v)``, where the linear map M depends on the length of ``b`` only. So with
payloads p0, p1, … of one size, ``crc(p0 + p1 + …, 0)`` follows from ``crc(p0, 0)``, ``crc(p1, 0)``, …: their sum, each
moved by M as often as payloads follow it. Whoever has what these should be (from the digests that came with the
entries) computes what the whole should be with numpy, and the whole with one call. A changed payload changes the
whole as it would its own checksum; that changes in several cancel out is as likely as that a wrong payload fits its
digest, one in 2³².
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
    """What each of ``values``, given as the start of a checksum over ``size`` bytes, changes in it."""
    return _apply(_map(checksum, size, 0), values)


def joined(checksum: Checksum, size: int, each: Uint32s) -> int:
    """The checksum (from 0) of payloads of ``size`` bytes one after the other, of which ``each`` are the checksums."""
    level = 0
    while len(each) > 1:
        if len(each) % 2:
            # Zero is what an empty beginning has, wherever it is moved.
            each = np.concatenate([np.zeros(1, np.uint32), each])
        each = _apply(_map(checksum, size, level), each[::2]) ^ each[1::2]
        level += 1
    return int(each[0])


@lru_cache(256)
def _map(checksum: Checksum, size: int, level: int) -> Uint32s:
    """M of ``size << level`` bytes: for each byte of a value, and each value of that byte, what it becomes."""
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
