"""Keys and digests of entries. Source: compatibility facts §1.6, §2.1.

======== ===== ==========================================================
digest   bytes what is stored
======== ===== ==========================================================
CRC32    8     zlib CRC-32, as i64 (upper half zero)
HMAC     20    HMAC-SHA1 with key SHA1("mac" || password)
CRC32C   4     CRC-32C (Castagnoli)
DUMMY    0     nothing
======== ===== ==========================================================

Each covers the 32 bytes of the entry's header and then the payload (or the 16 bytes of a LAC packet).
"""

from __future__ import annotations

import hashlib
import hmac
import zlib
from collections.abc import Callable

import crc32c as _crc32c

from bk_spark.protocol.codes import DigestType

Buffer = bytes | bytearray | memoryview
#: Takes header and payload, gives the digest bytes.
DigestFunction = Callable[[Buffer, Buffer], bytes]


def master_key(password: bytes) -> bytes:
    """20 bytes that a writer presents to bookies: SHA1("ledger" || password), for any digest type."""
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()


def digest_function(digest_type: DigestType, password: bytes) -> DigestFunction:
    """The digest of ``digest_type`` as a function of (header, payload)."""
    if digest_type is DigestType.CRC32C:
        return _digest_crc32c
    if digest_type is DigestType.CRC32:
        return _digest_crc32
    if digest_type is DigestType.DUMMY:
        return _digest_dummy
    keyed = hmac.new(hashlib.sha1(b"mac" + password, usedforsecurity=False).digest(), digestmod=hashlib.sha1)

    def digest_hmac(header: Buffer, payload: Buffer) -> bytes:
        mac = keyed.copy()
        mac.update(header)
        mac.update(payload)
        return mac.digest()

    return digest_hmac


def _digest_crc32c(header: Buffer, payload: Buffer) -> bytes:
    return _crc32c.crc32c(payload, _crc32c.crc32c(header)).to_bytes(4, "big")


def _digest_crc32(header: Buffer, payload: Buffer) -> bytes:
    return zlib.crc32(payload, zlib.crc32(header)).to_bytes(8, "big")


def _digest_dummy(header: Buffer, payload: Buffer) -> bytes:
    return b""
