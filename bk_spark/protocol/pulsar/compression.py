"""How payloads and znodes are compressed. Source: docs/design/pulsar.md §2.4.

ZLIB is a stream without an end: the Java client flushes it and never finishes it. LZ4 is a raw block, SNAPPY as well.
The size comes from outside, and is checked before anything is allocated.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import pyarrow as pa

from bk_spark.protocol.entries.digest import Buffer


class Compression(IntEnum):
    """Numbers of the codecs."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


class CompressionError(Exception):
    """The bytes cannot be decompressed. Callers raise an error that says whose they are."""


def decompress(codec: int, data: Buffer, size: int, max_bytes: int) -> Buffer:
    """Return what was compressed.

    Parameters
    ----------
    codec
        The number of the codec.
    data
        The compressed bytes.
    size
        How many bytes they are without compression, as their writer says.
    max_bytes
        The most that may be allocated.

    Raises
    ------
    CompressionError
        If the codec is unknown, the size is larger than ``max_bytes``, or the bytes are not what they should be.
    """
    if codec == Compression.NONE:
        return data
    if codec not in Compression.__members__.values():
        raise CompressionError(f"compression {codec} is unknown: this release knows 0 to {max(Compression):d}")
    name = Compression(codec).name
    if not 0 <= size <= max_bytes:
        raise CompressionError(f"{size} bytes are compressed by {name}, at most {max_bytes} are allowed")
    try:
        return _CODECS[Compression(codec)](data, size)
    except (OSError, zlib.error, pa.ArrowInvalid) as error:
        raise CompressionError(f"data that {name} cannot decompress to {size} bytes: {str(error)[:200]}") from error


def _lz4(data: Buffer, size: int) -> Buffer:
    codec = pa.Codec("lz4_raw")
    found = memoryview(codec.decompress(data, decompressed_size=size))
    # Arrow does not say how many bytes it has filled. The rest would be old memory, so fewer bytes must not suffice.
    if size:
        try:
            codec.decompress(data, decompressed_size=size - 1)
        except OSError:
            return found
        raise CompressionError(f"LZ4 gives fewer than the {size} bytes that are announced")
    return found


def _snappy(data: Buffer, size: int) -> Buffer:
    # The block begins with its size. Arrow checks that its buffer is not smaller, but not that it is filled.
    own, shift = 0, 0
    for byte in bytes(data[:5]):
        own |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if own != size:
        raise CompressionError(f"SNAPPY gives {own} bytes, {size} are announced")
    return memoryview(pa.Codec("snappy").decompress(data, decompressed_size=size))


def _zstd(data: Buffer, size: int) -> Buffer:
    return memoryview(pa.Codec("zstd").decompress(data, decompressed_size=size))


def _zlib(data: Buffer, size: int) -> Buffer:
    # One byte more than there should be: too many are an error, and never allocated.
    found = zlib.decompressobj().decompress(data, size + 1)
    if len(found) != size:
        raise CompressionError(f"ZLIB gives {len(found)} bytes or more, {size} are announced")
    return found


_CODECS: Final[dict[Compression, Callable[[Buffer, int], Buffer]]] = {
    Compression.LZ4: _lz4,
    Compression.ZLIB: _zlib,
    Compression.ZSTD: _zstd,
    Compression.SNAPPY: _snappy,
}
