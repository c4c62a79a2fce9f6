"""Keys and digests of entries. Source: compatibility.md §1.6, §2.1.

======== ===== ==========================================================
digest   bytes stored value
======== ===== ==========================================================
CRC32    8     zlib CRC-32, as i64 (upper half zero)
HMAC     20    HMAC-SHA1 with key SHA1("mac" || password)
CRC32C   4     CRC-32C (Castagnoli)
DUMMY    0     nothing
======== ===== ==========================================================

Each covers the 32 bytes of the entry's header and then the payload (or the 16 bytes of a LAC packet).

Both checksums are affine over the bits of a message of given length. The checksum of a header is the exclusive or of
one table value per byte. So numpy computes the checksums of many headers at once, and only the payload needs one call
per entry.

Many payloads of one size are checked with a single checksum over all of them. A CRC is affine in its start value, too:
``crc(b, v) == crc(b, 0) ^ M(v)``, where the linear map M depends only on the length of ``b``. So with payloads p0, p1,
… of one size, ``crc(p0 + p1 + …, 0)`` follows from ``crc(p0, 0)``, ``crc(p1, 0)``, …. It is the exclusive or of these,
after M is applied to each once for every payload that follows it. The digests of the entries give the expected checksum
of each payload. From these, numpy computes the expected checksum of the whole. One call computes the actual one. A
changed payload changes the whole as it would change its own checksum. Several changes cancel out with a probability of
one in 2³², the same as for a wrong payload that fits its digest.
"""

from __future__ import annotations

import hashlib
import hmac
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Final

import crc32c as _crc32c
import numpy as np
import numpy.typing as npt

from bk_spark.protocol.codes import DigestType

Buffer = bytes | bytearray | memoryview
Bytes2D = npt.NDArray[np.uint8]
_Uint32s = npt.NDArray[np.uint32]
_Checksum = Callable[[Buffer, int], int]

#: Size of the header before the payload, when many digests are computed at once.
_HEADER_BYTES: Final = 32
#: With fewer entries, numpy's fixed costs exceed the work.
_TABLES_MIN: Final = 24
#: Above this payload size, one checksum call for each payload costs little.
_RUN_MAX_BYTES: Final = 16 * 1024
_CRC_BITS: Final = 32


def master_key(password: bytes) -> bytes:
    """Return the 20 bytes that a writer presents to bookies: SHA1("ledger" || password), for any digest type."""
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()


class DigestFunction(ABC):
    """Computes digests."""

    @abstractmethod
    def __call__(self, header: Buffer, payload: Buffer) -> bytes:
        """Return the digest of one entry."""

    @abstractmethod
    def many(self, headers: Bytes2D, payloads: Sequence[Buffer]) -> Bytes2D:
        """Return the digests of many entries, one row each. Each row of ``headers`` is one header (32 bytes)."""

    def all_right(self, headers: Bytes2D, digests: Bytes2D, payloads: memoryview, size: int) -> bool:
        """Return whether ``digests`` fit the entries. Their payloads of ``size`` bytes are in one buffer."""
        parts = [payloads[row * size : (row + 1) * size] for row in range(len(headers))]
        return bool((self.many(headers, parts) == digests).all())


def digest_function(digest_type: DigestType, password: bytes) -> DigestFunction:
    """Return the digest of ``digest_type`` as a function of (header, payload)."""
    if digest_type is DigestType.CRC32C:
        return _CRC32C
    if digest_type is DigestType.CRC32:
        return _CRC32
    if digest_type is DigestType.DUMMY:
        return _DUMMY
    return _Hmac(password)


class _Crc(DigestFunction):
    def __init__(self, checksum: _Checksum, digest_bytes: int) -> None:
        self._checksum = checksum
        self._digest_bytes = digest_bytes
        self._dtype = np.dtype(f">u{digest_bytes}")

    def __call__(self, header: Buffer, payload: Buffer) -> bytes:
        checksum = self._checksum
        return checksum(payload, checksum(header, 0)).to_bytes(self._digest_bytes, "big")

    def many(self, headers: Bytes2D, payloads: Sequence[Buffer]) -> Bytes2D:
        checksum = self._checksum
        if len(headers) < _TABLES_MIN:
            befores = [checksum(header.data, 0) for header in headers]
        else:
            befores = _header_checksums(checksum, headers).tolist()
        # One call per entry. All other work here is done for all entries at once.
        found = list(map(checksum, payloads, befores))
        return np.array(found, self._dtype).view(np.uint8).reshape(len(found), self._digest_bytes)

    def all_right(self, headers: Bytes2D, digests: Bytes2D, payloads: memoryview, size: int) -> bool:
        if len(headers) < _TABLES_MIN or size > _RUN_MAX_BYTES:
            return super().all_right(headers, digests, payloads, size)
        checksum = self._checksum
        stored = np.ascontiguousarray(digests).view(self._dtype)[:, 0]
        if self._digest_bytes > 4 and (stored >> 32).any():
            return False
        befores = _header_checksums(checksum, headers)
        # The digest is the payload's checksum, started from the header's. Remove that start, so that it starts from 0.
        each = stored.astype(np.uint32) ^ _moved(checksum, size, befores)
        return _joined(checksum, size, each) == checksum(payloads[: len(headers) * size], 0)


class _Hmac(DigestFunction):
    def __init__(self, password: bytes) -> None:
        key = hashlib.sha1(b"mac" + password, usedforsecurity=False).digest()
        self._keyed = hmac.new(key, digestmod=hashlib.sha1)

    def __call__(self, header: Buffer, payload: Buffer) -> bytes:
        mac = self._keyed.copy()
        mac.update(header)
        mac.update(payload)
        return mac.digest()

    def many(self, headers: Bytes2D, payloads: Sequence[Buffer]) -> Bytes2D:
        joined = b"".join(self(header.data, payload) for header, payload in zip(headers, payloads, strict=True))
        return np.frombuffer(joined, np.uint8).reshape(len(headers), self._keyed.digest_size)


class _Dummy(DigestFunction):
    def __call__(self, header: Buffer, payload: Buffer) -> bytes:
        return b""

    def many(self, headers: Bytes2D, payloads: Sequence[Buffer]) -> Bytes2D:
        return np.empty((len(headers), 0), np.uint8)


def _header_checksums(checksum: _Checksum, headers: Bytes2D) -> _Uint32s:
    first, tables = headers[0], _tables(checksum)
    words = np.ascontiguousarray(np.ascontiguousarray(headers).view(np.uint64).T)
    # Most bytes are equal in all headers of an answer: those of the ledger's id, and the high ones of other numbers.
    varying = np.flatnonzero(np.bitwise_or.reduce(words ^ words[:, :1], axis=1).view(np.uint8)).tolist()
    start = checksum(first.data, 0)
    for position in varying:
        start ^= int(tables[position, first[position]])
    found = np.full(len(headers), start, np.uint32)
    for position in varying:
        found ^= tables[position].take(headers[:, position])
    return found


@cache
def _tables(checksum: _Checksum) -> _Uint32s:
    """Return how each value of each byte changes the checksum of a header of zeros."""
    zeros = checksum(bytes(_HEADER_BYTES), 0)
    changes = np.empty((_HEADER_BYTES, 256), np.uint32)
    for position in range(_HEADER_BYTES):
        for value in range(256):
            header = bytearray(_HEADER_BYTES)
            header[position] = value
            changes[position, value] = checksum(header, 0) ^ zeros
    return changes


def _moved(checksum: _Checksum, size: int, values: _Uint32s) -> _Uint32s:
    """Return how each of ``values``, used as the start of a checksum over ``size`` bytes, changes that checksum."""
    return _apply(_map(checksum, size, 0), values)


def _joined(checksum: _Checksum, size: int, each: _Uint32s) -> int:
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
def _map(checksum: _Checksum, size: int, level: int) -> _Uint32s:
    """Return M of ``size << level`` bytes, as the result for each byte position and each byte value."""
    if level:
        half = _map(checksum, size, level - 1)
        images = _apply(half, _apply(half, np.uint32(1) << np.arange(_CRC_BITS, dtype=np.uint32)))
    else:
        zeros = bytes(size)
        still = checksum(zeros, 0)
        images = np.array([checksum(zeros, 1 << bit) ^ still for bit in range(_CRC_BITS)], np.uint32)
    tables = np.zeros((_CRC_BITS // 8, 256), np.uint32)
    for bit, image in enumerate(images):
        table, low = tables[bit // 8], 1 << bit % 8
        table[low : 2 * low] = table[:low] ^ image
    return tables


def _apply(tables: _Uint32s, values: _Uint32s) -> _Uint32s:
    parts = np.ascontiguousarray(values).astype("<u4", copy=False).view(np.uint8).reshape(-1, _CRC_BITS // 8)
    found: _Uint32s = tables[0].take(parts[:, 0])
    for position in range(1, _CRC_BITS // 8):
        found ^= tables[position].take(parts[:, position])
    return found


_CRC32C: Final = _Crc(_crc32c.crc32c, 4)
_CRC32: Final = _Crc(zlib.crc32, 8)
_DUMMY: Final = _Dummy()
