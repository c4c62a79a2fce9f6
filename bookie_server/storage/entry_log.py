"""Entry logs in Apache's format: layout and writing. Source: compatibility facts §5.5.

``<ledger dir>/current/<hex id>.log``::

    header   1024 bytes: "BKLO", i32 version 1, i64 offset of the ledgers map, i32 its ledgers, zeros
             (offset and count stay 0 until the log is rotated)
    entry    i32 size, stored entry
    map      at rotation, as entries: i32 size, i64 -1, i64 -2, i32 n, n × (i64 ledger, i64 bytes with
             size fields); at most 10,000 ledgers in each

The location of an entry is ``log id << 32 | offset of the stored entry``; 0 means absent. ``lastId`` beside the
logs holds the newest id in hex and a line feed. A bookie begins a new log at each start.

Positions are given out in the event loop (:class:`EntryLogPositions`), files are written in the commit thread
(:class:`EntryLogWriter`); operations travel in groups, in order.
"""

from __future__ import annotations

import os
import re
import struct
import threading
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.files import Buffer, read_at, replace_file, sync_directory, write_at

MAGIC: Final = b"BKLO"
VERSION: Final = 1
HEADER_BYTES: Final = 1024
OFFSET_BITS: Final = 32
OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1
LAST_LOG_ID: Final = (1 << 31) - 1
_MAP_AT: Final = 8
_MAP_HEAD: Final = struct.Struct(">iqqi")
_MAP_ITEM: Final = struct.Struct(">qq")
_MAP_LEDGER: Final = -1
_MAP_ENTRY: Final = -2
_MAP_BATCH: Final = 10_000
_FILE_NAME: Final = re.compile(r"([0-9a-f]{1,8})\.log")


@dataclass(slots=True)
class LogWrite:
    """Bytes for one log from ``offset`` on."""

    log_id: int
    offset: int
    buffers: list[Buffer]
    end: int


@dataclass(frozen=True, slots=True)
class FinishLog:
    """The log is full: write its ledgers map at ``offset``, sync and close it."""

    log_id: int
    offset: int
    ledger_bytes: dict[int, int]


LogOperation = LogWrite | FinishLog


def file_name(log_id: int) -> str:
    return f"{log_id:x}.log"


def log_ids(directory: str) -> list[int]:
    """Ids of the entry logs in ``directory`` (a ``current``), ascending."""
    matches = (_FILE_NAME.fullmatch(name) for name in os.listdir(directory))
    return sorted(int(match[1], 16) for match in matches if match)


def next_log_id(directory: str) -> int:
    """The first id above ``lastId`` and above every log in ``directory``. Raises CorruptFileError."""
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
            raise CorruptFileError(f"{path} does not hold a log id in hex; remove it to let the logs decide") from error
    existing = log_ids(directory)
    return max([last, *existing[-1:]]) + 1


def file_header(map_offset: int = 0, ledger_count: int = 0) -> bytes:
    return (MAGIC + struct.pack(">iqi", VERSION, map_offset, ledger_count)).ljust(HEADER_BYTES, b"\0")


def ledgers_map(ledger_bytes: dict[int, int]) -> bytes:
    """The map as pseudo entries, ready to be written behind the last entry."""
    items = sorted(ledger_bytes.items())
    parts = []
    for first in range(0, len(items), _MAP_BATCH):
        batch = items[first : first + _MAP_BATCH]
        size = _MAP_HEAD.size - 4 + len(batch) * _MAP_ITEM.size
        parts.append(_MAP_HEAD.pack(size, _MAP_LEDGER, _MAP_ENTRY, len(batch)))
        parts += [_MAP_ITEM.pack(ledger_id, size_bytes) for ledger_id, size_bytes in batch]
    return b"".join(parts)


def read_ledgers_map(path: str) -> dict[int, int] | None:
    """Ledger → bytes of a rotated log; None where there is no (sound) map and the log must be scanned."""
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


class EntryLogPositions:
    """Gives out places in the logs, in the event loop, before anything is written."""

    def __init__(self, first_log_id: int, size_limit_bytes: int) -> None:
        self._log_id = first_log_id
        self._size_limit_bytes = size_limit_bytes
        self._position = HEADER_BYTES
        self._ledger_bytes: dict[int, int] = {}

    @property
    def log_id(self) -> int:
        return self._log_id

    def place(self, data: Buffer, ledger_bytes: list[tuple[int, int]], operations: list[LogOperation]) -> int:
        """Give ``data`` a place and append what the writer has to do to ``operations``; the location of its
        first byte. ``ledger_bytes`` says how much of it belongs to which ledger."""
        size = len(data)
        if self._position + size > self._size_limit_bytes and self._position > HEADER_BYTES:
            operations.append(FinishLog(self._log_id, self._position, self._ledger_bytes))
            self._log_id += 1
            if self._log_id > LAST_LOG_ID:
                raise CorruptFileError(f"entry log ids are used up at {LAST_LOG_ID:x}")
            self._position = HEADER_BYTES
            self._ledger_bytes = {}
        offset = self._position
        self._position = offset + size
        for ledger_id, count in ledger_bytes:
            self._ledger_bytes[ledger_id] = self._ledger_bytes.get(ledger_id, 0) + count
        last = operations[-1] if operations else None
        if isinstance(last, LogWrite) and last.log_id == self._log_id and last.end == offset:
            last.buffers.append(data)
            last.end = self._position
        else:
            operations.append(LogWrite(self._log_id, offset, [data], self._position))
        return self._log_id << OFFSET_BITS | offset


class EntryLogWriter:
    """Writes entry logs in ``directory``. Commit thread; :meth:`sync` may be called from another."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._log_id = -1
        self._fd = -1
        #: Bytes written since the last sync.
        self.unsynced_bytes = 0

    def run(self, operations: list[LogOperation]) -> None:
        """Do ``operations`` in order. Raises OSError; after one the writer must not be used again."""
        for operation in operations:
            if operation.log_id != self._log_id:
                self._open(operation.log_id)
            if isinstance(operation, LogWrite):
                write_at(self._fd, operation.buffers, operation.offset)
                self.unsynced_bytes += operation.end - operation.offset
            else:
                self._finish(operation)

    def sync(self) -> None:
        """Make what was written so far durable. Any thread."""
        with self._lock:
            if self._fd < 0:
                return
            fd = os.dup(self._fd)
            self.unsynced_bytes = 0
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
                self._log_id = -1

    def _open(self, log_id: int) -> None:
        path = os.path.join(self._directory, file_name(log_id))
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with self._lock:
            self._fd, self._log_id = fd, log_id
        write_at(fd, [file_header()], 0)
        sync_directory(self._directory)
        replace_file(os.path.join(self._directory, "lastId"), b"%x\n" % log_id)

    def _finish(self, operation: FinishLog) -> None:
        write_at(self._fd, [ledgers_map(operation.ledger_bytes)], operation.offset)
        os.fdatasync(self._fd)  # the header must not point at a map that is not there
        write_at(self._fd, [struct.pack(">qi", operation.offset, len(operation.ledger_bytes))], _MAP_AT)
        os.fsync(self._fd)
        self.close()
