"""Stored entries: header, digest, payload. Source: compatibility.md §2.

====== ==== ===============================================================================
offset size field
====== ==== ===============================================================================
0      8    ledger id
8      8    entry id
16     8    last add confirmed when the entry was packaged (-1: none)
24     8    length: payload bytes of the ledger up to and including this entry
32     D    digest (0, 4, 8 or 20 bytes, see digest.py)
32+D   …    payload
====== ==== ===============================================================================

All integers are big-endian. A LAC packet (explicit LAC) is ledger id, LAC, digest over those 16 bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np

from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import Buffer, DigestFunction
from bk_spark.protocol.errors import DigestMismatchError

ENTRY_HEADER: Final = struct.Struct(">qqqq")
ENTRY_HEADER_BYTES: Final = 32
LAC_PACKET_HEADER: Final = struct.Struct(">qq")

#: The entry header as a numpy record, for runs of entries of equal size.
ENTRY_HEADER_DTYPE: Final = np.dtype([("ledger", ">i8"), ("entry", ">i8"), ("lac", ">i8"), ("length", ">i8")])


@dataclass(frozen=True, slots=True)
class Entry:
    """One verified entry. ``payload`` is a view into the received bytes."""

    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    length: int
    payload: memoryview


def pack_entry(
    ledger_id: int, entry_id: int, last_add_confirmed: int, length: int, payload: Buffer, digest: DigestFunction
) -> bytes:
    """Return the stored form of one entry."""
    header = ENTRY_HEADER.pack(ledger_id, entry_id, last_add_confirmed, length)
    return b"".join((header, digest(header, payload), payload))


def verify_entry(
    stored: Buffer, ledger_id: int, entry_id: int | None, digest_type: DigestType, digest: DigestFunction
) -> Entry:
    """Check a stored entry as a reader must: size, digest, ledger id, and entry id (None in LAC reads: any).

    Raises DigestMismatchError.
    """
    view = memoryview(stored)
    payload_at = ENTRY_HEADER_BYTES + digest_type.digest_bytes
    if len(view) < payload_at:
        raise DigestMismatchError(
            f"entry of {len(view)} bytes is shorter than its header", ledger_id=ledger_id, entry_id=entry_id
        )
    found_ledger, found_entry, lac, length = ENTRY_HEADER.unpack_from(view)
    if found_ledger != ledger_id or (entry_id is not None and found_entry != entry_id):
        raise DigestMismatchError(
            f"asked for this entry, got ledger {found_ledger} entry {found_entry}",
            ledger_id=ledger_id,
            entry_id=entry_id,
        )
    payload = view[payload_at:]
    if digest(view[:ENTRY_HEADER_BYTES], payload) != view[ENTRY_HEADER_BYTES:payload_at]:
        raise DigestMismatchError(
            f"{digest_type.name} digest does not match", ledger_id=ledger_id, entry_id=found_entry
        )
    return Entry(found_ledger, found_entry, lac, length, payload)


def pack_lac(ledger_id: int, last_add_confirmed: int, digest: DigestFunction) -> bytes:
    """Return a LAC packet for WRITE_LAC."""
    header = LAC_PACKET_HEADER.pack(ledger_id, last_add_confirmed)
    return header + digest(header, b"")


def verify_lac(packet: Buffer, ledger_id: int, digest_type: DigestType, digest: DigestFunction) -> int:
    """Return the last add confirmed in a LAC packet. Raises DigestMismatchError."""
    view = memoryview(packet)
    if len(view) != LAC_PACKET_HEADER.size + digest_type.digest_bytes:
        raise DigestMismatchError(f"LAC packet of {len(view)} bytes", ledger_id=ledger_id)
    found_ledger, lac = LAC_PACKET_HEADER.unpack_from(view)
    if found_ledger != ledger_id or digest(view[:16], b"") != view[16:]:
        raise DigestMismatchError("LAC packet's digest or ledger does not match", ledger_id=ledger_id)
    return int(lac)
