"""A small storage of real files for tests of the collector, and entry logs on demand."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bookie_server.storage.disk import files
from bookie_server.storage.disk.directories import LedgerDirectories
from bookie_server.storage.entrylog import entry_log
from bookie_server.storage.index.index import IndexFiles, IndexHeader

#: (ledger id, entry id)
EntryKey = tuple[int, int]


def payload(ledger_id: int, entry_id: int) -> bytes:
    """A stored entry; sizes differ between entries."""
    return struct.pack(">qq", ledger_id, entry_id) + bytes([entry_id % 251]) * (20 + entry_id % 7 * 30)


class SmallStorage:
    """A LedgerStorage for the collector that keeps everything in files from the start."""

    def __init__(self, *directories: Path) -> None:
        for directory in directories:
            directory.mkdir(parents=True, exist_ok=True)
        self.directories = LedgerDirectories([str(directory) for directory in directories])
        self.index = IndexFiles(self.directories.index_paths, self.directories.writable_index)
        self.being_written: set[int] = set()
        self.index_syncs = 0

    # --- making --------------------------------------------------------------------------------

    def write_log(
        self,
        entry_log_id: int,
        keys: list[EntryKey],
        *,
        directory: int = 0,
        with_map: bool = True,
        indexed: bool = True,
    ) -> str:
        """Create a log with the entries ``keys`` in this order; the index points to them."""
        path = os.path.join(self.directories.paths[directory], entry_log.file_name(entry_log_id))
        content, position = [entry_log.file_header()], entry_log.HEADER_BYTES
        ledger_bytes: dict[int, int] = {}
        for ledger_id, entry_id in keys:
            entry = payload(ledger_id, entry_id)
            content += [len(entry).to_bytes(4, "big"), entry]
            if indexed:
                self.point(ledger_id, entry_id, entry_log_id << 32 | position + 4)
            position += 4 + len(entry)
            ledger_bytes[ledger_id] = ledger_bytes.get(ledger_id, 0) + 4 + len(entry)
        if with_map:
            content.append(entry_log.ledgers_map(ledger_bytes))
            content[0] = entry_log.file_header(position, len(ledger_bytes))
        Path(path).write_bytes(b"".join(content))
        return path

    def point(self, ledger_id: int, entry_id: int, location: int) -> None:
        header = IndexHeader(b"key", False, None) if self.index.path(ledger_id) is None else None
        self.index.write(ledger_id, header, np.array([entry_id]), np.array([location]))

    # --- looking -------------------------------------------------------------------------------

    def location(self, ledger_id: int, entry_id: int) -> int:
        return int(self.index.read_slots(ledger_id, np.array([entry_id]))[0])

    def read(self, ledger_id: int, entry_id: int) -> bytes:
        """The entry to which the index points."""
        location = self.location(ledger_id, entry_id)
        assert location
        data = Path(self.entry_log_path(location >> 32)).read_bytes()
        offset = location & entry_log.OFFSET_MASK
        size = int.from_bytes(data[offset - 4 : offset], "big")
        return data[offset : offset + size]

    def names(self) -> set[str]:
        """All files of entry logs and compactions."""
        return {name for path in self.directories.paths for name in os.listdir(path) if ".log" in name}

    def close(self) -> None:
        self.index.close()

    # --- what the collector uses ---------------------------------------------------------------

    async def local_ledgers(self) -> Int64s:
        return self.index.ledger_ids()

    def mark_ledger(self, ledger_id: int) -> bool:
        return self.index.path(ledger_id) is not None

    async def settle(self) -> None:
        """No adds are in progress."""

    async def remove_ledger(self, ledger_id: int) -> None:
        self.index.remove(ledger_id)

    def unmark_ledger(self, ledger_id: int) -> None:
        """Marks refuse nothing here."""

    async def sync_deletions(self) -> None:
        self.index.sync()

    async def locations_of(self, ledger_id: int, entry_ids: Int64s) -> Int64s:
        return self.index.read_slots(ledger_id, entry_ids)

    async def replace_locations(self, ledger_id: int, entry_ids: Int64s, old: Int64s, new: Int64s) -> int:
        same = np.flatnonzero(self.index.read_slots(ledger_id, entry_ids) == old)
        if len(same):
            self.index.write(ledger_id, None, entry_ids[same], new[same])
        return len(same)

    def allocate_entry_log_id(self) -> int:
        return max(entry_log.last_log_id(path) for path in self.directories.paths) + 1

    def entry_logs_being_written(self) -> set[int]:
        return self.being_written

    async def remove_entry_log(self, entry_log_id: int) -> None:
        path = self.entry_log_path(entry_log_id)
        files.remove(path)
        files.sync_directory(os.path.dirname(path))

    def entry_log_path(self, entry_log_id: int) -> str:
        for directory in self.directories.paths:
            path = os.path.join(directory, entry_log.file_name(entry_log_id))
            if os.path.exists(path):
                return path
        raise FileNotFoundError(entry_log.file_name(entry_log_id))

    def entry_log_ids(self) -> list[int]:
        return sorted(entry_log_id for path in self.directories.paths for entry_log_id in entry_log.entry_log_ids(path))

    def index_path(self, ledger_id: int) -> str | None:
        return self.index.path(ledger_id)

    async def flush(self) -> None:
        """Nothing is in memory."""

    async def sync_index(self) -> None:
        self.index_syncs += 1
        self.index.sync()
