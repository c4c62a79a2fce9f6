"""Journal files in Apache's format: layout and records. Source: compatibility facts §5.2, §5.3.

``<journal dir>/current/<hex id>.txn``::

    header    "BKLG", i32 version; from version 5 on padded with zeros to 512 bytes, before that 8 bytes
    record    i32 length, bytes
    padding   i32 -0x100, i32 padLength, padLength bytes that readers skip: before each flush (version 5 and
              up), so that a flush ends at a multiple of 512
    the rest  zeros (space allocated in advance), or the end of the file

A record begins with ledger id and entry id; entry ids below zero say what else it is::

    -0x1000   master key of the ledger: i32 length, key
    -0x2000   the ledger is fenced: nothing follows
    -0x8000   explicit LAC: i32 length, LAC packet

Apache's records carry no checksum. What this bookie writes has one for each group of records that is synced
together, where Apache's readers do not look: the header goes on with "BKS1" (the format's version is its last
letter) and i32 flags (bit 0: groups were not synced one by one), every group ends with a padding, and a padding's
bytes begin with a *seal*::

    "BKS1", u32 CRC-32C of the group's bytes before the padding, i64 offset at which the group begins

How the end of a journal is told from damage is described in journal_reader.py.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import crc32c

from bookie_server.storage.files import Buffer
from bookie_server.storage.log_mark import LogMark
from bookie_server.storage.records import Records

MAGIC: Final = b"BKLG"
SEAL_MAGIC: Final = b"BKS1"
VERSION: Final = 6
ALIGNMENT_BYTES: Final = 512
HEADER_BYTES: Final = 512
PADDED_FROM_VERSION: Final = 5
UNSYNCED_FLAG: Final = 1

MASTER_KEY_RECORD: Final = -0x1000
FENCE_RECORD: Final = -0x2000
EXPLICIT_LAC_RECORD: Final = -0x8000
PADDING_MASK: Final = -0x100

I32: Final = struct.Struct(">i")
IDS: Final = struct.Struct(">qq")
PADDING: Final = struct.Struct(">ii")
SEAL: Final = struct.Struct(">4sIq")
_FILE_NAME: Final = re.compile(r"([0-9a-f]{1,16})\.txn")
_MIN_END_BYTES: Final = PADDING.size + SEAL.size
#: No padding is longer.
MAX_PADDING_BYTES: Final = 2 * ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True)
class JournalEnd:
    """What replay found of one journal: ``mark``, the end of its records ((0, 0) where there is no file), and the id
    that its next file gets."""

    mark: LogMark
    next_id: int


@dataclass(frozen=True, slots=True)
class MasterKeyRecord:
    ledger_id: int
    master_key: bytes

    def __repr__(self) -> str:
        return f"MasterKeyRecord(ledger_id={self.ledger_id})"


@dataclass(frozen=True, slots=True)
class FenceRecord:
    ledger_id: int


@dataclass(frozen=True, slots=True)
class ExplicitLacRecord:
    ledger_id: int
    packet: bytes


JournalItem = Records | MasterKeyRecord | FenceRecord | ExplicitLacRecord


def file_name(journal_id: int) -> str:
    return f"{journal_id:x}.txn"


def journal_ids(directory: str) -> list[int]:
    """Ids of the journals in ``directory`` (a ``current``), ascending."""
    matches = (_FILE_NAME.fullmatch(name) for name in os.listdir(directory))
    return sorted(int(match[1], 16) for match in matches if match)


def file_header(*, sync_data: bool = True) -> bytes:
    """The header of a journal with sealed groups. ``sync_data``: a group is synced before the next is written."""
    return (MAGIC + I32.pack(VERSION) + SEAL_MAGIC + I32.pack(0 if sync_data else UNSYNCED_FLAG)).ljust(
        HEADER_BYTES, b"\0"
    )


def group_end(start: int, buffers: Sequence[Buffer], size_bytes: int) -> bytes:
    """The sealed padding behind a group of ``size_bytes`` in ``buffers`` that begins at file offset ``start``."""
    checksum = 0
    for buffer in buffers:
        checksum = crc32c.crc32c(buffer, checksum)
    fill = -(start + size_bytes + _MIN_END_BYTES) % ALIGNMENT_BYTES
    return PADDING.pack(PADDING_MASK, SEAL.size + fill) + SEAL.pack(SEAL_MAGIC, checksum, start) + bytes(fill)


def master_key_record(ledger_id: int, master_key: bytes) -> bytes:
    return _record(ledger_id, MASTER_KEY_RECORD, I32.pack(len(master_key)) + master_key)


def fence_record(ledger_id: int) -> bytes:
    return _record(ledger_id, FENCE_RECORD, b"")


def explicit_lac_record(ledger_id: int, packet: bytes) -> bytes:
    return _record(ledger_id, EXPLICIT_LAC_RECORD, I32.pack(len(packet)) + packet)


def special_record(body: bytes) -> JournalItem | None:
    """What a record with an entry id below zero says; None for one that is to be ignored."""
    ledger_id, kind = IDS.unpack_from(body)
    rest = body[IDS.size :]
    if kind == FENCE_RECORD:
        return FenceRecord(ledger_id)
    if kind not in (MASTER_KEY_RECORD, EXPLICIT_LAC_RECORD) or len(rest) < I32.size:
        return None
    (size,) = I32.unpack_from(rest)
    if not 0 <= size <= len(rest) - I32.size:
        return None
    content = rest[I32.size : I32.size + size]
    return MasterKeyRecord(ledger_id, content) if kind == MASTER_KEY_RECORD else ExplicitLacRecord(ledger_id, content)


def _record(ledger_id: int, kind: int, rest: bytes) -> bytes:
    return I32.pack(IDS.size + len(rest)) + IDS.pack(ledger_id, kind) + rest
