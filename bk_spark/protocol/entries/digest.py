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
"""

from __future__ import annotations

import hashlib
import hmac
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

import crc32c as _crc32c
import numpy as np
import numpy.typing as npt

from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries import crc_runs

Buffer = bytes | bytearray | memoryview
Bytes2D = npt.NDArray[np.uint8]
_Checksum = Callable[[Buffer, int], int]

#: Size of the header before the payload, when many digests are computed at once.
_HEADER_BYTES: Final = 32
#: With fewer entries, numpy's fixed costs exceed the work.
_TABLES_MIN: Final = 24
#: Above this payload size, one checksum call for each payload costs little.
_RUN_MAX_BYTES: Final = 16 * 1024


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
        each = stored.astype(np.uint32) ^ crc_runs.moved(checksum, size, befores)
        return crc_runs.joined(checksum, size, each) == checksum(payloads[: len(headers) * size], 0)


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


def _header_checksums(checksum: _Checksum, headers: Bytes2D) -> npt.NDArray[np.uint32]:
    zeros, tables = _tables(checksum)
    found = np.full(len(headers), zeros, np.uint32)
    for table, column in zip(tables, headers.T, strict=True):
        found ^= table[column]
    return found


@cache
def _tables(checksum: _Checksum) -> tuple[int, npt.NDArray[np.uint32]]:
    """Return the checksum of a header of zeros, and how each value of each byte changes it."""
    zeros = checksum(bytes(_HEADER_BYTES), 0)
    changes = np.empty((_HEADER_BYTES, 256), np.uint32)
    for position in range(_HEADER_BYTES):
        for value in range(256):
            header = bytearray(_HEADER_BYTES)
            header[position] = value
            changes[position, value] = checksum(header, 0) ^ zeros
    return zeros, changes


_CRC32C: Final = _Crc(_crc32c.crc32c, 4)
_CRC32: Final = _Crc(zlib.crc32, 8)
_DUMMY: Final = _Dummy()
