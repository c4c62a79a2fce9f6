"""Entry logs in Apache's format: layout and writing. Source: compatibility.md §5.5.

``<ledger dir>/current/<hex id>.log``::

    header   1024 bytes: "BKLO", i32 version 1, i64 offset of the ledgers map, i32 number of its ledgers, zeros
             (offset and count stay 0 until the log is rotated)
    entry    i32 size, stored entry
    map      at rotation, as entries: i32 size, i64 -1, i64 -2, i32 n, n × (i64 ledger, i64 bytes with
             size fields); at most 10,000 ledgers in each

The location of an entry is ``log id << 32 | offset of the stored entry``; 0 means absent. ``lastId``, in the same
directory, holds the newest id in hex and a line feed. A bookie starts a new log at each start.

Only flushes (entry_log_writer.py) and compaction write logs.
"""

from __future__ import annotations

import os
import re
import struct
from typing import Final

from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.files import read_at

MAGIC: Final = b"BKLO"
VERSION: Final = 1
HEADER_BYTES: Final = 1024
OFFSET_BITS: Final = 32
OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1
LAST_LOG_ID: Final = (1 << 31) - 1
#: Offset of :func:`map_pointer` in the header.
MAP_POINTER_AT: Final = 8
_MAP_HEAD: Final = struct.Struct(">iqqi")
_MAP_ITEM: Final = struct.Struct(">qq")
_MAP_LEDGER: Final = -1
_MAP_ENTRY: Final = -2
_MAP_BATCH: Final = 10_000
_FILE_NAME: Final = re.compile(r"([0-9a-f]{1,8})\.log")
_ANY_NAME: Final = re.compile(r"([0-9a-f]{1,8})\.log(?=$|\.)")


def file_name(entry_log_id: int) -> str:
    return f"{entry_log_id:x}.log"


def entry_log_ids(directory: str) -> list[int]:
    """Ids of the entry logs in ``directory`` (a ``current`` directory), ascending."""
    matches = (_FILE_NAME.fullmatch(name) for name in os.listdir(directory))
    return sorted(int(match[1], 16) for match in matches if match)


def last_log_id(directory: str) -> int:
    """The highest id in ``lastId`` or a log's name in ``directory``; -1 if there is none. Raises CorruptFileError."""
    last = -1
    path = os.path.join(directory, "lastId")
    try:
        with open(path, "rb") as file:
            text = file.read(64)
    except FileNotFoundError:
        text = b""
    if text.strip():
        try:
            last = int(text.split(b"\n")[0], 16)
        except ValueError as error:
            raise CorruptFileError(
                f"{path} does not hold a log id in hex; restore it from a backup, or move it elsewhere, so that the "
                "names of the entry logs decide"
            ) from error
    names = os.listdir(directory)
    # A name may belong to a compaction in progress: "<new>.log.compacting", "<new>.log.<old>.compacted".
    ids = [int(match[1], 16) for match in map(_ANY_NAME.match, names) if match]
    return max([last, *ids])


def file_header(map_offset: int = 0, ledger_count: int = 0) -> bytes:
    return (MAGIC + struct.pack(">iqi", VERSION, map_offset, ledger_count)).ljust(HEADER_BYTES, b"\0")


def map_pointer(map_offset: int, ledger_count: int) -> bytes:
    """The header's pointer to the map, written at MAP_POINTER_AT once the map is durable."""
    return struct.pack(">qi", map_offset, ledger_count)


def ledgers_map(ledger_bytes: dict[int, int]) -> bytes:
    """The map as pseudo entries, to be written after the last entry."""
    items = sorted(ledger_bytes.items())
    parts = []
    for first in range(0, len(items), _MAP_BATCH):
        batch = items[first : first + _MAP_BATCH]
        size = _MAP_HEAD.size - 4 + len(batch) * _MAP_ITEM.size
        parts.append(_MAP_HEAD.pack(size, _MAP_LEDGER, _MAP_ENTRY, len(batch)))
        parts += [_MAP_ITEM.pack(ledger_id, size_bytes) for ledger_id, size_bytes in batch]
    return b"".join(parts)


def read_ledgers_map(path: str) -> dict[int, int] | None:
    """Ledger → bytes of a rotated log; None if there is no valid map and the log must be scanned."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        header = read_at(fd, 20, 0)
        if len(header) < 20 or header[:4] != MAGIC:
            return None
        _, position, count = struct.unpack_from(">iqi", header, 4)
        if not HEADER_BYTES <= position < size or count <= 0:
            return None
        result: dict[int, int] = {}
        while len(result) < count:
            head = read_at(fd, _MAP_HEAD.size, position)
            if len(head) < _MAP_HEAD.size:
                return None
            length, ledger_id, entry_id, batch = _MAP_HEAD.unpack(head)
            if (ledger_id, entry_id) != (_MAP_LEDGER, _MAP_ENTRY) or not 0 < batch <= _MAP_BATCH:
                return None
            if length != _MAP_HEAD.size - 4 + batch * _MAP_ITEM.size:
                return None
            items = read_at(fd, batch * _MAP_ITEM.size, position + _MAP_HEAD.size)
            if len(items) < batch * _MAP_ITEM.size:
                return None
            result.update(_MAP_ITEM.iter_unpack(items))
            position += 4 + length
        return result if len(result) == count else None
    finally:
        os.close(fd)
