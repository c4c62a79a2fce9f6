"""Entry logs as a flush writes them, one call at a time."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bookie_server.storage.disk.directories import LedgerDirectories
from bookie_server.storage.entrylog.arrival_log import ArrivalLog
from bookie_server.storage.entrylog.entry_log import read_ledgers_map
from bookie_server.storage.entrylog.entry_log_reader import EntryLogReader, Room, StoredEntries
from bookie_server.storage.entrylog.entry_log_writer import EntryLogIds, EntryLogWriter
from bookie_server.storage.write_cache import CacheHalf


def stored(ledger_id: int, entry_id: int, size: int = 100) -> bytes:
    """An entry as it is stored."""
    return struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0).ljust(size, b"%d" % (entry_id % 10))


def record(ledger_id: int, entry_id: int, size: int = 100) -> bytes:
    """The entry with its size, as in a log."""
    return size.to_bytes(4, "big") + stored(ledger_id, entry_id, size)


def mapped(path: Path) -> dict[int, int] | None:
    """The ledgers in the map of an entry log, and the bytes of each."""
    found = read_ledgers_map(str(path))
    return None if found is None else dict(zip(*(column.tolist() for column in found), strict=True))


def arrival_log(path: Path) -> ArrivalLog:
    """The log of a journal's large entries, in the directory ``path``."""
    directories = LedgerDirectories([str(path)])
    return ArrivalLog(directories, EntryLogIds(directories), 1 << 30, frozenset())


def fill(half: CacheHalf, *entries: tuple[int, int, int]) -> None:
    """Put (ledger, entry, size) into a half, one by one."""
    for ledger_id, entry_id, size in entries:
        half.put_one(ledger_id, entry_id, half.store(memoryview(record(ledger_id, entry_id, size))) + 4)


class Logs:
    """A writer and a reader over some directories; remembers where entries were written."""

    def __init__(self, *paths: Path, limit_bytes: int = 1 << 30, direct: bool = False) -> None:
        self.directories = LedgerDirectories([str(path) for path in paths])
        written_directly = frozenset(self.directories.paths if direct else ())
        self.writer = EntryLogWriter(self.directories, EntryLogIds(self.directories), limit_bytes, written_directly)
        self.reader = EntryLogReader(self.directories.paths)
        self.locations: dict[tuple[int, int], int] = {}

    def write(self, *entries: tuple[int, int, int]) -> list[int]:
        """Write (ledger, entry, size) with one append; return the locations, by ledger and entry."""
        half = CacheHalf()
        fill(half, *entries)
        sorted_entries = half.sorted_entries()
        locations: list[int] = self.writer.append(
            half, sorted_entries.ledgers, sorted_entries.positions, sorted_entries.sizes
        ).tolist()
        pairs = sorted({(ledger_id, entry_id) for ledger_id, entry_id, _ in entries})
        self.locations.update(zip(pairs, locations, strict=True))
        return locations

    def read(
        self,
        pairs: Sequence[tuple[int, int]],
        *,
        at_once_bytes: int | None = None,
        limit: int = 1 << 30,
        room: Room | None = None,
    ) -> StoredEntries:
        return self.reader.read(
            np.array([ledger for ledger, _ in pairs]),
            np.array([entry for _, entry in pairs]),
            np.array([self.locations[pair] for pair in pairs]),
            limit,
            at_once_bytes=at_once_bytes,
            room=room,
        )

    def close(self) -> None:
        self.writer.close()
        self.reader.close()
