"""Entry logs of a stopped bookie: which entries they hold, and the bytes of each ledger in them."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.errors import InvalidArgumentError, StorageError
from bookie_server.offline.directories import BookieDirectories, DirectoryKind
from bookie_server.offline.numbered_files import NumberedFiles
from bookie_server.storage.disk.files import read_at
from bookie_server.storage.entrylog.entry_log import (
    HEADER,
    HEADER_BYTES,
    LAST_LOG_ID,
    MAGIC,
    VERSION,
    file_name,
    id_of,
    read_ledgers_map,
    sum_by_ledger,
)
from bookie_server.storage.entrylog.entry_log_scan import EntryLogScan, FoundEntries
from bookie_server.storage.records import LENGTH_BYTES

_LOGS: Final = NumberedFiles("an", "entry log", DirectoryKind.LEDGER, LAST_LOG_ID, id_of, file_name, "--entrylog")
#: Ledger id, entry id, last add confirmed.
_ENTRY_HEAD: Final = struct.Struct(">qqq")

#: Called with bytes done and bytes in all.
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """The wanted entries: of one ledger, in a range of entry ids, and overlapping a range of offsets in the file. The
    last of each range is part of it. None: no limit."""

    ledger_id: int | None = None
    first_entry: int | None = None
    last_entry: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None

    def select(self, found: FoundEntries) -> FoundEntries:
        """The wanted ones of ``found``."""
        wanted = np.ones(len(found), bool)
        if self.ledger_id is not None:
            wanted &= found.ledger_ids == self.ledger_id
        if self.first_entry is not None:
            wanted &= found.entry_ids >= self.first_entry
        if self.last_entry is not None:
            wanted &= found.entry_ids <= self.last_entry
        if self.first_offset is not None:
            wanted &= found.offsets + found.sizes > self.first_offset
        if self.last_offset is not None:
            wanted &= found.offsets - LENGTH_BYTES <= self.last_offset
        return found if wanted.all() else found.select(np.flatnonzero(wanted))


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry. ``offset`` is where its record begins, with the size field; ``size_bytes`` is without that field."""

    ledger_id: int
    entry_id: int
    offset: int
    size_bytes: int


def find_log(bookie: BookieDirectories, name: str) -> str:
    """Path of the entry log: ``name`` is its id in decimal digits, its file name, or a path with a slash.

    Raises InvalidArgumentError.
    """
    paths = _LOGS.find(bookie, name)
    if len(paths) > 1:
        raise InvalidArgumentError(f"several entry logs have this id; give the path of one: {', '.join(paths)}")
    return paths[0]


class EntryLogFile:
    """One entry log, open for reading. A context manager.

    ``on_problem`` gets a text for everything in the file that is wrong.
    """

    def __init__(self, path: str, on_problem: Callable[[str], None]) -> None:
        """Raises StorageError."""
        self.path = path
        self._on_problem = on_problem
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(f"entry log {path} cannot be read: {error.strerror}") from error

    def __enter__(self) -> EntryLogFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def entries(self, wanted: EntryFilter, on_progress: OnProgress) -> Iterator[LogEntry]:
        """Yield the wanted entries in file order. Raises OSError."""
        for found in self._scan(on_progress):
            chosen = wanted.select(found)
            columns = (chosen.ledger_ids, chosen.entry_ids, chosen.offsets - LENGTH_BYTES, chosen.sizes)
            for values in zip(*(column.tolist() for column in columns), strict=True):
                yield LogEntry(*values)
            if (
                wanted.last_offset is not None
                and len(found)
                and int(found.offsets[-1]) > wanted.last_offset + LENGTH_BYTES
            ):
                return

    def content(self, entry: LogEntry) -> memoryview:
        """The stored entry. Raises StorageError."""
        data = read_at(self._fd, entry.size_bytes, entry.offset + LENGTH_BYTES)
        if len(data) < entry.size_bytes:
            raise StorageError(f"entry log {self.path} became shorter while it was read")
        return memoryview(data)

    def ledger_bytes(self, on_progress: OnProgress) -> tuple[dict[int, int], bool]:
        """Bytes of each ledger, with size fields, and whether they are from the file's map. A log that is not complete
        has no map and is scanned. Raises OSError."""
        if not header_problem(self._fd):
            from_map = read_ledgers_map(self.path)
            if from_map is not None:
                return _by_ledger(*from_map), True
            header = read_at(self._fd, HEADER.size, 0)
            if header and HEADER.unpack(header)[2]:
                self._on_problem(f"{self.path}: the map of ledgers is damaged; the file was scanned")
        found: dict[int, int] = {}
        for entries in self._scan(on_progress):
            some = _by_ledger(*sum_by_ledger(entries.ledger_ids, entries.sizes + LENGTH_BYTES))
            found.update({ledger_id: found.get(ledger_id, 0) + size for ledger_id, size in some.items()})
        return dict(sorted(found.items())), False

    def _scan(self, on_progress: OnProgress) -> Iterator[FoundEntries]:
        problem = header_problem(self._fd)
        if problem:
            self._on_problem(f"{self.path}: {problem}")
        scan = EntryLogScan(self.path)
        scan.problem = ""
        try:
            size = os.fstat(self._fd).st_size
            while not scan.at_end:
                found = scan.step()
                if scan.problem:
                    self._on_problem(f"{self.path}: {scan.problem}; what follows was searched for the next entry")
                    scan.problem = ""
                if len(found):
                    yield found
                on_progress(scan.position, size)
        finally:
            scan.close()


def _by_ledger(ledger_ids: Int64s, sizes: Int64s) -> dict[int, int]:
    return dict(zip(ledger_ids.tolist(), sizes.tolist(), strict=True))


def header_problem(fd: int) -> str:
    """What is wrong with the header of an entry log, or "". An empty file has been created ahead and is not wrong."""
    size = os.fstat(fd).st_size
    header = read_at(fd, HEADER.size, 0)
    if not header:
        return ""
    if size < HEADER_BYTES:
        return f"the file has {size} bytes, less than a header: it is truncated, or not an entry log"
    magic, version, map_offset, ledgers = HEADER.unpack(header)
    if magic != MAGIC:
        return f"the header does not begin with {MAGIC.decode()}: it is damaged, or this is not an entry log"
    if version not in (0, VERSION):
        return f"the header has version {version}, known is {VERSION}: it is damaged, or from another release"
    if map_offset and not HEADER_BYTES <= map_offset < size:
        return f"the header names a map of ledgers at {map_offset}, but the file has {size} bytes"
    return "" if ledgers >= 0 else f"the header names a map of {ledgers} ledgers"


def last_add_confirmed(entry: memoryview) -> int | None:
    """The last add confirmed in a stored entry; None if the entry is too short to have one."""
    return int(_ENTRY_HEAD.unpack_from(entry)[2]) if len(entry) >= _ENTRY_HEAD.size else None
