"""Writes the new entry log of a compaction, and the marker that says it is complete. Blocking; see compaction.py."""

from __future__ import annotations

import contextlib
import os

import numpy as np

from bookie_server.gc.live_entries import UnreadableEntryError
from bookie_server.storage.disk import files
from bookie_server.storage.entrylog import entry_log
from bookie_server.storage.entrylog.entry_log_scan import FoundEntries
from bookie_server.storage.flush_pace import PACED_STEP_BYTES
from bookie_server.storage.records import LENGTH_BYTES, gather_int32, gather_int64


class EntryLogRewrite:
    """Copies entries of the entry log at ``old_path`` to a new one at ``path``."""

    def __init__(self, old_path: str, path: str) -> None:
        self._old_path = old_path
        self._path = path
        self._old_fd = -1
        self._fd = -1
        self._unsynced_bytes = 0
        self._ledger_bytes: dict[int, int] = {}
        #: Bytes written, with the header.
        self.size_bytes = 0
        #: Entries written.
        self.entries = 0

    def begin(self) -> None:
        """Open the files. Raises OSError."""
        self._old_fd = os.open(self._old_path, os.O_RDONLY | os.O_CLOEXEC)
        self._fd = files.create_file(self._path)
        self.size_bytes = files.write_at(self._fd, [entry_log.file_header()], 0)

    def copy(self, entries: FoundEntries) -> None:
        """Append ``entries``, which must fit into memory. What is written and not synced is one step (flush_pace.py) at
        most, or ``entries``. Raises UnreadableEntryError, OSError, SyncFailedError."""
        steps = entries.sizes + LENGTH_BYTES
        ends = np.cumsum(steps)
        buffer = memoryview(bytearray(int(ends[-1])))
        begins = entries.offsets - LENGTH_BYTES
        breaks = (np.flatnonzero(begins[1:] != begins[:-1] + steps[:-1]) + 1).tolist()
        for first, last in zip([0, *breaks], [*breaks, len(entries)], strict=True):
            begin = int(ends[first] - steps[first])
            self._read(buffer[begin : int(ends[last - 1])], int(begins[first]))
        starts = ends - entries.sizes
        data = np.frombuffer(buffer, np.uint8)
        ids = gather_int64(data, starts, 2)
        wrong = gather_int32(data, starts - LENGTH_BYTES) != entries.sizes
        wrong |= (ids[:, 0] != entries.ledger_ids) | (ids[:, 1] != entries.entry_ids)
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            raise UnreadableEntryError(
                f"entry {entries.entry_ids[i]} of ledger {entries.ledger_ids[i]} is not at offset "
                f"{entries.offsets[i]} of {self._old_path}"
            )
        if self._unsynced_bytes + len(buffer) > PACED_STEP_BYTES:
            files.sync_data(self._fd)
            self._unsynced_bytes = 0
        self.size_bytes = files.write_at(self._fd, [buffer], self.size_bytes)
        self._unsynced_bytes += len(buffer)
        self.entries += len(entries)
        for ledger_id, size in _bytes_by_ledger(entries):
            self._ledger_bytes[ledger_id] = self._ledger_bytes.get(ledger_id, 0) + size

    def complete(self, marker_path: str) -> None:
        """Complete the new entry log, make it durable, and create the marker. Raises OSError, SyncFailedError."""
        map_at = self.size_bytes
        self.size_bytes = files.write_at(self._fd, [entry_log.ledgers_map(self._ledger_bytes)], map_at)
        files.sync_data(self._fd)  # the header must not point to a map that is not on disk
        pointer = entry_log.map_pointer(map_at, len(self._ledger_bytes))
        files.write_at(self._fd, [pointer], entry_log.MAP_POINTER_AT)
        files.sync_file(self._fd)
        self._close()
        files.link(self._path, marker_path)
        files.sync_directory(os.path.dirname(marker_path))

    def abandon(self) -> None:
        """Remove the new file. If that fails, the next start does it."""
        self._close()
        with contextlib.suppress(OSError):
            files.remove(self._path)

    def _read(self, buffer: memoryview, offset: int) -> None:
        have = 0
        while have < len(buffer):
            count = os.preadv(self._old_fd, [buffer[have:]], offset + have)
            if count == 0:
                raise UnreadableEntryError(f"{self._old_path} ends at {offset + have}")
            have += count

    def _close(self) -> None:
        for fd in (self._old_fd, self._fd):
            if fd >= 0:
                os.close(fd)
        self._old_fd = self._fd = -1


def _bytes_by_ledger(entries: FoundEntries) -> list[tuple[int, int]]:
    ledger_ids, starts = np.unique(entries.ledger_ids, return_index=True)  # entries are sorted by ledger
    sizes = np.add.reduceat(entries.sizes + LENGTH_BYTES, starts)
    return list(zip(ledger_ids.tolist(), sizes.tolist(), strict=True))
