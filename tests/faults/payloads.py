"""What entry number n of a run holds: a function of the seed and n, so that anybody can tell what belongs where."""

from __future__ import annotations

import struct

_HEAD = struct.Struct(">QQ")


def payload(seed: int, number: int) -> bytes:
    """Up to 600 bytes, and 40,000 now and then."""
    mixed = (number * 0x9E3779B97F4A7C15 + seed) & 0xFFFFFFFFFFFFFFFF
    size = 40_000 if number % 997 == 0 else mixed >> 40 & 0x1FF
    filler = mixed.to_bytes(8, "big") * (size // 8 + 1)
    return _HEAD.pack(seed, number) + filler[:size]


def number_of(data: bytes) -> str:
    """For messages: which entry of which run this claims to be."""
    if len(data) < _HEAD.size:
        return f"{len(data)} bytes"
    seed, number = _HEAD.unpack_from(data)
    return f"number {number} of seed {seed}, {len(data)} bytes"
