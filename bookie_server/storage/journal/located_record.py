"""The record of entries that are in an entry log already. Layout:

``i64 ledger id of the first entry, i64 -0x10000, i32 layout (1), i32 count, count × (i64 ledger id, i64 entry id,
i64 last add confirmed, i64 location)``

Large entries are written to an entry log, which is synced, and then the journal gets their locations only
(arrival_log.py). So such a record in a whole group proves that the entries are durable where it says. Only journals of
version 7 have such records: Apache's bookie would skip them, and lose entries that were acknowledged. It knows versions
up to 6, and refuses to start.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.entrylog.entry_log import HEADER_BYTES, OFFSET_MASK
from bookie_server.storage.records import MAX_ENTRY_ID, Records

LOCATED_RECORD: Final = -0x10000
_LAYOUT: Final = 1
_HEAD: Final = struct.Struct(">iqqii")
_LENGTH_BYTES: Final = 4
_ITEM: Final = np.dtype([("ledger_id", ">i8"), ("entry_id", ">i8"), ("lac", ">i8"), ("location", ">i8")])


@dataclass(frozen=True, slots=True)
class LocatedRecord:
    """Entries in order of arrival, and where they are in entry logs."""

    ledger_ids: Int64s
    entry_ids: Int64s
    last_adds_confirmed: Int64s
    locations: Int64s

    @property
    def ledger_id(self) -> int:
        """The ledger of the first entry."""
        return int(self.ledger_ids[0])


def located_record(records: Records, locations: Int64s) -> bytes:
    """The record that says that the entries are at ``locations``."""
    items = np.empty(len(records), _ITEM)
    items["ledger_id"], items["entry_id"] = records.ledger_ids, records.entry_ids
    items["lac"], items["location"] = records.last_adds_confirmed, locations
    length = _HEAD.size - _LENGTH_BYTES + items.nbytes
    head = _HEAD.pack(length, int(records.ledger_ids[0]), LOCATED_RECORD, _LAYOUT, len(items))
    return head + items.tobytes()


def parse_located(body: bytes) -> LocatedRecord:
    """Decode a record, without its length. Raises CorruptFileError: ignoring it would lose entries."""
    if len(body) < _HEAD.size - _LENGTH_BYTES:
        raise CorruptFileError("a record of the journal about entries in entry logs is cut short")
    _, _, layout, count = struct.unpack_from(">qqii", body)
    if layout != _LAYOUT:
        raise CorruptFileError(
            f"a record of the journal about entries in entry logs has layout {layout}, written by another release; use "
            "that one"
        )
    rest = memoryview(body)[_HEAD.size - _LENGTH_BYTES :]
    if count <= 0 or len(rest) != count * _ITEM.itemsize:
        raise CorruptFileError(f"a record of the journal names {count} entries in {len(rest)} bytes")
    items = np.frombuffer(rest, _ITEM)
    ledger_ids, entry_ids, lacs, locations = (items[name].astype(np.int64) for name in _ITEM.names or ())
    wrong = (ledger_ids < 0) | (entry_ids < 0) | (entry_ids > MAX_ENTRY_ID)
    wrong |= (locations <= 0) | (locations & OFFSET_MASK < HEADER_BYTES)
    if wrong.any():
        raise CorruptFileError("a record of the journal names impossible entries or locations in entry logs")
    return LocatedRecord(ledger_ids, entry_ids, lacs, locations)
