"""Entry logs in Apache's format: layout and writing. Source: compatibility.md §5.5.

``<ledger dir>/current/<hex id>.log``::

    header   1024 bytes: "BKLO", i32 version 1, i64 offset of the ledgers map, i32 number of its ledgers, zeros
             (offset and count stay 0 until the log is rotated)
    entry    i32 size, stored entry
    map      at rotation, as entries: i32 size, i64 -1, i64 -2, i32 n, n × (i64 ledger, i64 bytes with
             size fields); at most 10,000 ledgers in each

The location of an entry is ``log id << 32 | offset of the stored entry``; 0 means absent. ``lastId``, in the same
directory, holds the newest id in hex and a line feed. A bookie starts a new log at each start.

Flushes (entry_log_writer.py), compaction and, for large entries, journals (arrival_log.py) write logs.
"""

from __future__ import annotations

import os
import re
import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.disk.files import read_at

MAGIC: Final = b"BKLO"
VERSION: Final = 1
HEADER_BYTES: Final = 1024
OFFSET_BITS: Final = 32
OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1
LAST_LOG_ID: Final = (1 << 31) - 1
#: Magic, version, offset of the map, number of its ledgers.
HEADER: Final = struct.Struct(">4siqi")
#: Offset of :func:`map_pointer` in the header.
MAP_POINTER_AT: Final = 8
_MAP_HEAD: Final = struct.Struct(">iqqi")
_MAP_ITEM: Final = np.dtype([("ledger_id", ">i8"), ("size_bytes", ">i8")])
_MAP_LEDGER: Final = -1
_MAP_ENTRY: Final = -2
_MAP_BATCH: Final = 10_000
_FILE_NAME: Final = re.compile(r"([0-9a-f]{1,8})\.log")
_LAST_ID: Final = re.compile(rb"\s*([0-9a-fA-F]{1,8})\s*(?:\n|$)")
_ANY_NAME: Final = re.compile(r"([0-9a-f]{1,8})\.log(?=$|\.)")


def file_name(entry_log_id: int) -> str:
    """The name of an entry log's file."""
    return f"{entry_log_id:x}.log"


def id_of(name: str) -> int | None:
    """The id in the file name of an entry log; None for any other name."""
    match = _FILE_NAME.fullmatch(name)
    return int(match[1], 16) if match else None


def entry_log_ids(directory: str) -> list[int]:
    """Ids of the entry logs in ``directory`` (a ``current`` directory), ascending."""
    return sorted(found for name in os.listdir(directory) if (found := id_of(name)) is not None)


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
        match = _LAST_ID.match(text)
        if match is None:
            raise CorruptFileError(
                f"{path} does not hold a log id in hex; restore it from a backup, or move it elsewhere, so that the "
                "names of the entry logs decide"
            )
        last = int(match[1], 16)
    names = os.listdir(directory)
    # A name may belong to a compaction in progress: "<new>.log.compacting", "<new>.log.<old>.compacted".
    ids = [int(match[1], 16) for match in map(_ANY_NAME.match, names) if match]
    return max([last, *ids])


def file_header(map_offset: int = 0, ledger_count: int = 0) -> bytes:
    """The header of an entry log. Without arguments, that of a log that is still being written."""
    return HEADER.pack(MAGIC, VERSION, map_offset, ledger_count).ljust(HEADER_BYTES, b"\0")


def map_pointer(map_offset: int, ledger_count: int) -> bytes:
    """The header's pointer to the map, written at MAP_POINTER_AT once the map is durable."""
    return struct.pack(">qi", map_offset, ledger_count)


def ledgers_map(ledger_bytes: dict[int, int]) -> bytes:
    """The map as pseudo entries, to be written after the last entry."""
    items = np.array(sorted(ledger_bytes.items()), _MAP_ITEM)
    parts = []
    for first in range(0, len(items), _MAP_BATCH):
        batch = items[first : first + _MAP_BATCH]
        size = _MAP_HEAD.size - 4 + batch.nbytes
        parts += [_MAP_HEAD.pack(size, _MAP_LEDGER, _MAP_ENTRY, len(batch)), batch.tobytes()]
    return b"".join(parts)


def read_ledgers_map(path: str) -> tuple[Int64s, Int64s] | None:
    """The ledgers in the map of a rotated log (ascending), and the bytes of each. None if there is none, or it is
    damaged: then the log must be scanned. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        header = read_at(fd, HEADER.size, 0)
        if len(header) < HEADER.size:
            return None
        magic, version, position, count = HEADER.unpack(header)
        if magic != MAGIC or version > VERSION or not HEADER_BYTES <= position < size:
            return None
        if not 0 < count <= (size - position) // _MAP_ITEM.itemsize:
            return None
        batches = []
        while count > 0:
            batch = _read_map_batch(fd, position, count)
            if batch is None:
                return None
            batches.append(batch)
            count -= len(batch)
            position += _MAP_HEAD.size + batch.nbytes
    finally:
        os.close(fd)
    items = np.concatenate(batches)
    ids, sizes = items["ledger_id"].astype(np.int64), items["size_bytes"].astype(np.int64)
    if bool((ids < 0).any() or (sizes <= 0).any() or (sizes > size).any()):
        return None
    return sum_by_ledger(ids, sizes)


def _read_map_batch(fd: int, position: int, most: int) -> npt.NDArray[np.void] | None:
    head = read_at(fd, _MAP_HEAD.size, position)
    if len(head) < _MAP_HEAD.size:
        return None
    length, ledger_id, entry_id, count = _MAP_HEAD.unpack(head)
    if (ledger_id, entry_id) != (_MAP_LEDGER, _MAP_ENTRY) or not 0 < count <= min(_MAP_BATCH, most):
        return None
    size_bytes = count * _MAP_ITEM.itemsize
    if length != _MAP_HEAD.size - 4 + size_bytes:
        return None
    items = read_at(fd, size_bytes, position + _MAP_HEAD.size)
    return np.frombuffer(items, _MAP_ITEM) if len(items) == size_bytes else None


def sum_by_ledger(ledger_ids: Int64s, sizes: Int64s) -> tuple[Int64s, Int64s]:
    """Add up ``sizes`` by ledger. Return the ledgers, ascending, and the sum of each."""
    if not len(ledger_ids):
        return ledger_ids, sizes
    order = np.argsort(ledger_ids, kind="stable")
    ids, starts = np.unique(ledger_ids[order], return_index=True)
    return ids, np.add.reduceat(sizes[order], starts)
