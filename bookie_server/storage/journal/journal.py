"""Journal files in Apache's format: layout and records. Source: compatibility.md §5.2, §5.3.

``<journal dir>/current/<hex id>.txn``::

    header    "BKLG", i32 version; from version 5 on padded with zeros to 512 bytes, before that 8 bytes. We write 6, or
              7 where large entries are located in entry logs
    record    i32 length, bytes
    padding   i32 -0x100, i32 padLength, padLength bytes that readers skip: written before each flush (version 5
              and up), so that a flush ends at a multiple of 512
    the rest  zeros (preallocated space), or the end of the file

A record begins with ledger id and entry id. A negative entry id gives the record's type::

    -0x1000   master key of the ledger: i32 length, key
    -0x2000   the ledger is fenced: nothing follows
    -0x8000   explicit LAC: i32 length, LAC packet
    -0x10000  entries are in an entry log (located_record.py); only in version 7, which Apache's bookie refuses

Apache's records have no checksum. This bookie writes one for each group of records that it syncs together, in places
that Apache's readers skip. The header continues::

    8     "BKS2": sealed groups; the last letter is the version of everything described here
    12    i32 flags; bit 0: groups were not synced one by one
    16    nonce: 16 random bytes of this file
    32    u32 CRC-32C of the preceding 32 bytes

Every group ends with a padding, and the padding's bytes begin with a *seal*::

    nonce of the file, i64 offset at which the group begins, u32 CRC-32C of the group's bytes before the padding,
    u32 CRC-32C of the padding's mask and length and of the seal up to here

The header is synced before the first group is written. The nonce never appears in an answer or a log, so no payload can
contain a seal of its own file. Seals copied from other files have another nonce.

journal_reader.py describes how the end of a journal differs from damage.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import crc32c

from bookie_server.storage.disk.files import Buffer
from bookie_server.storage.journal.located_record import LOCATED_RECORD, LocatedRecord, parse_located
from bookie_server.storage.journal.log_mark import LogMark
from bookie_server.storage.records import Records

MAGIC: Final = b"BKLG"
SEALS_MARK: Final = b"BKS2"
VERSION: Final = 6
#: The version of journals in which entries may be located in entry logs.
LOCATING_VERSION: Final = 7
ALIGNMENT_BYTES: Final = 512
HEADER_BYTES: Final = 512
PADDED_FROM_VERSION: Final = 5
UNSYNCED_FLAG: Final = 1

MASTER_KEY_RECORD: Final = -0x1000
FENCE_RECORD: Final = -0x2000
EXPLICIT_LAC_RECORD: Final = -0x8000
PADDING_MASK: Final = -0x100

I32: Final = struct.Struct(">i")
U32: Final = struct.Struct(">I")
IDS: Final = struct.Struct(">qq")
PADDING: Final = struct.Struct(">ii")
#: Nonce, start and CRC of the group; then the CRC of the seal.
SEAL: Final = struct.Struct(">16sqII")
_SEALED_HEADER: Final = struct.Struct(">4si4si16s")
NONCE_BYTES: Final = 16
#: The part of our header that is not zeros.
SEALED_HEADER_BYTES: Final = _SEALED_HEADER.size + 4
_FILE_NAME: Final = re.compile(r"([0-9a-f]{1,16})\.txn")
_MIN_END_BYTES: Final = PADDING.size + SEAL.size
_SEAL_CHECKSUM_AT: Final = _MIN_END_BYTES - 4
#: Upper limit for the length of a padding.
MAX_PADDING_BYTES: Final = 2 * ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True)
class JournalEnd:
    """What replay found in one journal: ``mark``, the end of its records ((0, 0) without a file), and the id of its
    next file."""

    mark: LogMark
    next_id: int


@dataclass(frozen=True, slots=True)
class MasterKeyRecord:
    """The ledger's master key, before its first entry in a journal. Its repr does not show the key."""

    ledger_id: int
    master_key: bytes

    def __repr__(self) -> str:
        return f"MasterKeyRecord(ledger_id={self.ledger_id})"


@dataclass(frozen=True, slots=True)
class FenceRecord:
    """The ledger is fenced from here on."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class ExplicitLacRecord:
    """An explicit LAC. ``packet`` is as the client sent it."""

    ledger_id: int
    packet: bytes


JournalItem = Records | MasterKeyRecord | FenceRecord | ExplicitLacRecord | LocatedRecord


def file_name(journal_id: int) -> str:
    """The name of a journal's file."""
    return f"{journal_id:x}.txn"


def id_of(name: str) -> int | None:
    """The id in the file name of a journal; None for any other name."""
    match = _FILE_NAME.fullmatch(name)
    return int(match[1], 16) if match else None


def journal_ids(directory: str) -> list[int]:
    """Ids of the journals in ``directory`` (a ``current`` directory), ascending."""
    return sorted(found for name in os.listdir(directory) if (found := id_of(name)) is not None)


def new_nonce() -> bytes:
    """Draw the nonce of a new file."""
    return os.urandom(NONCE_BYTES)


def file_header(nonce: bytes, *, sync_data: bool = True, locates: bool = False) -> bytes:
    """The header of a journal with sealed groups. ``sync_data``: a group is synced before the next is written.
    ``locates``: there may be records of entries in entry logs that no index file has yet."""
    version = LOCATING_VERSION if locates else VERSION
    header = _SEALED_HEADER.pack(MAGIC, version, SEALS_MARK, 0 if sync_data else UNSYNCED_FLAG, nonce)
    return (header + U32.pack(crc32c.crc32c(header))).ljust(HEADER_BYTES, b"\0")


def sealed_header(header: bytes) -> tuple[int, bytes] | None:
    """Flags and nonce of a header with sealed groups; None if the header is incomplete."""
    if len(header) < SEALED_HEADER_BYTES:
        return None
    *_, flags, nonce = _SEALED_HEADER.unpack_from(header)
    (checksum,) = U32.unpack_from(header, _SEALED_HEADER.size)
    if crc32c.crc32c(header[: _SEALED_HEADER.size]) != checksum:
        return None
    return flags, nonce


@dataclass(frozen=True, slots=True)
class GroupSeal:
    """The content of a group's seal."""

    start: int
    checksum: int


def group_end(nonce: bytes, start: int, buffers: Sequence[Buffer], size_bytes: int) -> bytes:
    """The sealed padding after a group of ``size_bytes`` in ``buffers`` that begins at file offset ``start``."""
    checksum = 0
    for buffer in buffers:
        checksum = crc32c.crc32c(buffer, checksum)
    fill = -(start + size_bytes + _MIN_END_BYTES) % ALIGNMENT_BYTES
    end = bytearray(_MIN_END_BYTES + fill)
    PADDING.pack_into(end, 0, PADDING_MASK, SEAL.size + fill)
    SEAL.pack_into(end, PADDING.size, nonce, start, checksum, 0)
    U32.pack_into(end, _SEAL_CHECKSUM_AT, crc32c.crc32c(end[:_SEAL_CHECKSUM_AT]))
    return bytes(end)


def seal_at(data: bytes, position: int, nonce: bytes) -> GroupSeal | None:
    """The seal of a group whose padding begins at ``position`` of ``data``; None if there is no complete seal with this
    nonce."""
    if not 0 <= position <= len(data) - _MIN_END_BYTES:
        return None
    found, start, checksum, own = SEAL.unpack_from(data, position + PADDING.size)
    if found != nonce or crc32c.crc32c(data[position : position + _SEAL_CHECKSUM_AT]) != own:
        return None
    return GroupSeal(start, checksum)


def master_key_record(ledger_id: int, master_key: bytes) -> bytes:
    """Bytes of a :class:`MasterKeyRecord`, with the length."""
    return _record(ledger_id, MASTER_KEY_RECORD, I32.pack(len(master_key)) + master_key)


def fence_record(ledger_id: int) -> bytes:
    """Bytes of a :class:`FenceRecord`, with the length."""
    return _record(ledger_id, FENCE_RECORD, b"")


def explicit_lac_record(ledger_id: int, packet: bytes) -> bytes:
    """Bytes of an :class:`ExplicitLacRecord`, with the length."""
    return _record(ledger_id, EXPLICIT_LAC_RECORD, I32.pack(len(packet)) + packet)


def special_record(body: bytes) -> JournalItem | None:
    """Decode a record with a negative entry id; None if the record is to be ignored. Raises CorruptFileError."""
    ledger_id, kind = IDS.unpack_from(body)
    if kind == LOCATED_RECORD:
        return parse_located(body)
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
