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

Many entries are checked with a single checksum over all of their payloads, which lie one after the other. A CRC is
affine in its start value and in its message: to start the checksum of ``b`` from ``v ^ w`` instead of ``v`` does the
same as the exclusive or of ``w`` with the first four bytes of ``b``. Where payload i begins, the checksum so far is the
digest of entry i - 1, if all are right, and it must go on from the checksum of header i. So the exclusive or of these
two is applied to the first bytes of payload i, and the checksum of all payloads, started from the first header's, must
be the last digest. A wrong payload, header or digest changes it as it would change its own checksum. Several changes
cancel out with a probability of one in 2³², the same as for a wrong payload that fits its digest.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

import crc32c as _crc32c
import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.codes import DigestType

Buffer = bytes | bytearray | memoryview
Bytes2D = npt.NDArray[np.uint8]
_Uint32s = npt.NDArray[np.uint32]
_Checksum = Callable[..., int]

#: Size of the header before the payload, when many digests are computed at once.
_HEADER_BYTES: Final = 32
#: With fewer entries, numpy's fixed costs exceed the work.
_TABLES_MIN: Final = 24
_CRC_BYTES: Final = 4
#: Copies of larger rows do not come from Python's own allocator. How long they take depends on the state of the heap.
_ROW_MOST_BYTES: Final = 448


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

    def of_rows(self, rows: Bytes2D) -> Bytes2D:
        """Return the digests of entries of one size, one row each. A row is a header (32 bytes) and its payload."""
        return self.many(rows[:, :_HEADER_BYTES], _as_bytes(rows[:, _HEADER_BYTES:]))

    def all_right(self, headers: Bytes2D, digests: Bytes2D, payloads: memoryview, offsets: Int64s) -> bool:
        """Return whether ``digests`` fit the entries. Payload ``i`` is ``payloads[offsets[i] : offsets[i + 1]]``.

        Nobody else may use the buffer meanwhile. It is as before afterwards.
        """
        parts = [payloads[start:end] for start, end in itertools.pairwise(offsets.tolist())]
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
        return self._stored(list(map(checksum, payloads, befores)))

    def of_rows(self, rows: Bytes2D) -> Bytes2D:
        if rows.shape[1] > _ROW_MOST_BYTES:
            return super().of_rows(rows)
        # To start a checksum from that of the header costs more than to let it go over the header.
        return self._stored(list(map(self._checksum, _as_bytes(rows))))

    def _stored(self, checksums: list[int]) -> Bytes2D:
        count = len(checksums)
        packed = struct.pack(f">{count}{'I' if self._digest_bytes == 4 else 'Q'}", *checksums)
        return np.frombuffer(packed, np.uint8).reshape(count, self._digest_bytes)

    def all_right(self, headers: Bytes2D, digests: Bytes2D, payloads: memoryview, offsets: Int64s) -> bool:
        count = len(headers)
        if count < _TABLES_MIN or payloads.readonly:
            return super().all_right(headers, digests, payloads, offsets)
        sizes = np.diff(offsets)
        size = int(sizes.min())
        if size < _CRC_BYTES:
            return super().all_right(headers, digests, payloads, offsets)
        checksum = self._checksum
        stored = np.ascontiguousarray(digests).view(self._dtype)[:, 0]
        if self._digest_bytes > 4 and (stored >> 32).any():
            return False
        befores = _header_checksums(checksum, headers)
        changes = stored[:-1].astype(np.uint32) ^ befores[1:]
        start, end = int(offsets[0]), int(offsets[-1])
        if size == int(sizes.max()):
            firsts = np.ndarray((count - 1,), "<u4", payloads, start + size, (size,))
            which: slice | Int64s = slice(None)
        else:
            firsts, which = np.ndarray((end - _CRC_BYTES + 1,), "<u4", payloads, strides=(1,)), offsets[1:-1]
        firsts[which] ^= changes
        try:
            return checksum(payloads[start:end], int(befores[0])) == int(stored[-1])
        finally:
            firsts[which] ^= changes


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


def _as_bytes(rows: Bytes2D) -> Sequence[Buffer]:
    """Return a copy of each row. Copies cost an eighth of views, and Python's cycle collector does not look at them."""
    count, size = rows.shape
    if not size:
        return [b""] * count
    found: list[bytes] = rows.view(f"V{size}")[:, 0].tolist()
    return found


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


_CRC32C: Final = _Crc(_crc32c.crc32c, 4)
_CRC32: Final = _Crc(zlib.crc32, 8)
_DUMMY: Final = _Dummy()
