"""Writing the entries of a flush, sorted by ledger, to entry logs. Format: entry_log.py.

One entry log is written at a time, in one of the directories with room. When it is full, the next one is started. The
header is written first. At the end the ledgers map is written and synced, then the header's pointer to it. Each writer
belongs to one thread, that of flushes or that of a journal (arrival_log.py). They share :class:`EntryLogIds`.

In directories with direct writes (appended_file.py) entries are gathered in aligned memory, and an entry log that was
not completed ends with zeros up to the next block (entry_log_scan.py). Map and pointer go through the page cache.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence, Set as AbstractSet
from typing import Final, Protocol

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.disk import files
from bookie_server.storage.disk.appended_file import AlignedMemory, AppendedFile, BufferedFile, DirectFile
from bookie_server.storage.disk.directories import LedgerDirectories
from bookie_server.storage.entrylog import entry_log
from bookie_server.storage.entrylog.entry_log import HEADER_BYTES, LAST_LOG_ID, OFFSET_BITS
from bookie_server.storage.records import LENGTH_BYTES, Records
from bookie_server.storage.write_cache import CacheHalf

_LOG: Final = logging.getLogger(__name__)
#: Written bytes are synced in steps of about this size, so that a sync of a journal on the disk never waits for many of
#: them.
SYNC_STEP_BYTES: Final = 4 * 1024 * 1024


class Steps(Protocol):
    """The steps in which an append is written and synced."""

    @property
    def step_bytes(self) -> int:
        """The size of the next step."""
        ...

    def synced(self, size_bytes: int) -> None:
        """A step of ``size_bytes`` is durable. May wait before the next one."""
        ...


class _AtOnce:
    step_bytes: Final = SYNC_STEP_BYTES

    def synced(self, size_bytes: int) -> None:
        pass


class EntryLogIds:
    """Assigns ids to entry logs, ascending across all directories and starts. Thread-safe."""

    def __init__(self, directories: LedgerDirectories) -> None:
        self._directories = directories
        self._lock = threading.Lock()
        self._last = max(entry_log.last_log_id(path) for path in directories.paths)

    def allocate(self) -> int:
        """Take the next id and write it to ``lastId`` in every directory that can be written.

        Raises CorruptFileError if no id is left, SyncFailedError.
        """
        with self._lock:
            if self._last >= LAST_LOG_ID:
                raise CorruptFileError(f"entry log ids are used up at {LAST_LOG_ID:x}")
            self._note(self._last + 1)
            return self._last

    @property
    def last(self) -> int:
        """The newest id; -1 if there is none."""
        return self._last

    def skip_to(self, entry_log_id: int) -> None:
        """Let the next id be higher than ``entry_log_id``. Raises SyncFailedError."""
        with self._lock:
            if entry_log_id > self._last:
                self._note(entry_log_id)

    def _note(self, entry_log_id: int) -> None:
        self._last = entry_log_id
        for path in self._directories.paths:
            try:
                files.replace_file(os.path.join(path, "lastId"), b"%x\n" % entry_log_id)
            except files.SyncFailedError:
                raise
            except OSError as error:
                _LOG.warning("cannot note log id %x in %s: %s", entry_log_id, path, error.strerror)


class EntryLogWriter:
    """Appends entries to the current entry log.

    If a write fails, the partial append is cut off, the directory is taken out of use, and the whole append goes to a
    new entry log in another directory. Entries are written directly in the directories ``direct``.
    """

    def __init__(
        self,
        directories: LedgerDirectories,
        ids: EntryLogIds,
        size_limit_bytes: int,
        direct: AbstractSet[str] = frozenset(),
    ) -> None:
        self._directories = directories
        self._ids = ids
        self._size_limit_bytes = size_limit_bytes
        self._direct = direct
        self._memory = AlignedMemory() if direct else None
        self._fd = -1
        self._file: AppendedFile | None = None
        self._position = 0
        self._unsynced = False
        self._path = ""
        self._ledger_bytes: dict[int, int] = {}
        self._next_directory = 0
        #: The steps of the append under way.
        self._steps: Steps = _AtOnce()
        #: Id of the current entry log; -1 if there is none.
        self.entry_log_id = -1
        #: Entry logs with entries that are not yet in the index: a flush is running or has failed.
        self.unfinished: set[int] = set()

    def append(
        self,
        half: CacheHalf,
        ledgers: list[tuple[int, int, int]],
        positions: Int64s,
        sizes: Int64s,
        steps: Steps | None = None,
    ) -> Int64s:
        """Write entries of ``half`` and make them durable. Return their locations. ``ledgers`` as in SortedEntries.

        Raises OSError if no directory can be written, SyncFailedError.
        """
        self._steps = _AtOnce() if steps is None else steps
        locations = np.empty(len(positions), np.int64)
        failure: OSError | None = None
        for _ in self._directories.paths:
            begun_log, begun_at = self.entry_log_id, self._position
            try:
                self._append_all(half, ledgers, positions, sizes, locations)
                return locations
            except files.SyncFailedError:
                raise
            except NoWritableDirectoryError as error:
                raise failure or error from None
            except OSError as error:
                self._give_up(begun_log, begun_at, error)
                failure = error
        assert failure is not None
        raise failure

    def append_records(self, some: Sequence[Records]) -> list[Int64s]:
        """Write ``some`` records in their order, and make them durable. Return the locations of their entries.

        Raises OSError with nothing of it left in the current log, SyncFailedError.
        """
        begun_log, begun_at = self.entry_log_id, self._position
        try:
            locations = self._append_in_order(some)
            files.sync_data(self._fd)
            self._unsynced = False
        except (files.SyncFailedError, NoWritableDirectoryError):
            raise
        except OSError as error:
            self._give_up(begun_log, begun_at, error)
            raise
        return locations

    def _append_in_order(self, some: Sequence[Records]) -> list[Int64s]:
        locations: list[Int64s] = []
        buffers: list[memoryview] = []
        for records in some:
            size = len(records.data)
            if not self._takes(size):
                self._put(buffers)
                buffers = []
                self._begin_next()
            starts = self._position + LENGTH_BYTES + records.offsets[:-1]
            locations.append((self.entry_log_id << OFFSET_BITS) | starts)
            buffers.append(records.data)
            self._position += size
            ids, sizes = entry_log.sum_by_ledger(records.ledger_ids, np.diff(records.offsets))
            for ledger_id, ledger_size in zip(ids.tolist(), sizes.tolist(), strict=True):
                self._ledger_bytes[ledger_id] = self._ledger_bytes.get(ledger_id, 0) + ledger_size
        self._put(buffers)
        return locations

    def _takes(self, size_bytes: int) -> bool:
        """Whether the current log has room for so many bytes, in a directory that is in use."""
        if self._fd < 0 or os.path.dirname(self._path) not in self._directories.for_flushes():
            return False
        return self._position + size_bytes <= self._size_limit_bytes or self._position == HEADER_BYTES

    def _begin_next(self) -> None:
        if self._fd >= 0 and os.path.dirname(self._path) not in self._directories.for_flushes():
            self.end()
        self.leave()
        self._open()

    def _put(self, buffers: list[memoryview]) -> None:
        if buffers:
            assert self._file is not None
            self._unsynced = True
            self._file.put(buffers)
            self._file.finish()

    def finished(self) -> None:
        """Note that the index has all appended entries."""
        self.unfinished = set()

    def leave(self) -> None:
        """Finish the current log, if any: write its map. Raises OSError, SyncFailedError."""
        if self._fd < 0:
            return
        if isinstance(self._file, DirectFile):
            self._use_page_cache()
        files.write_at(self._fd, [entry_log.ledgers_map(self._ledger_bytes)], self._position)
        files.sync_data(self._fd)  # the header must not point to a missing map
        pointer = entry_log.map_pointer(self._position, len(self._ledger_bytes))
        files.write_at(self._fd, [pointer], entry_log.MAP_POINTER_AT)
        files.sync_file(self._fd)
        self.close()

    def close(self) -> None:
        """Close the current log as it is."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._file, self.entry_log_id, self._ledger_bytes, self._unsynced = -1, None, -1, {}, False

    def end(self) -> None:
        """Finish a log whose directory is full. If its map cannot be written, the log has none and will be scanned."""
        try:
            self.leave()
        except files.SyncFailedError:
            raise
        except OSError as error:
            _LOG.warning("cannot write the ledgers map of %s: %s", self._path, error.strerror)
            if self._unsynced:  # the append continues in the next log, and reports in the end that all is durable
                files.sync_data(self._fd)
            self.close()

    def _append_all(
        self,
        half: CacheHalf,
        ledgers: list[tuple[int, int, int]],
        positions: Int64s,
        sizes: Int64s,
        locations: Int64s,
    ) -> None:
        if self.entry_log_id >= 0:
            self.unfinished.add(self.entry_log_id)
        done = 0
        while done < len(positions):
            done = self._append_to_log(half, ledgers, positions, sizes, done, locations)
        if self._fd >= 0:
            files.sync_data(self._fd)
            self._unsynced = False

    def _append_to_log(
        self,
        half: CacheHalf,
        ledgers: list[tuple[int, int, int]],
        positions: Int64s,
        sizes: Int64s,
        first: int,
        locations: Int64s,
    ) -> int:
        """Write as many entries, from ``first`` on, as the log has room for. Return where to continue."""
        if self._fd >= 0 and os.path.dirname(self._path) not in self._directories.for_flushes():
            self.end()
        if self._fd < 0:
            self._open()
        ends = np.cumsum(sizes[first:] + LENGTH_BYTES)
        room = self._size_limit_bytes - self._position
        count = int(np.searchsorted(ends, room, side="right"))
        if count == 0 and self._position > HEADER_BYTES:
            self.leave()
            return first
        count = max(count, 1)
        last = first + count
        starts = self._position + LENGTH_BYTES + ends[:count] - (sizes[first:last] + LENGTH_BYTES)
        locations[first:last] = (self.entry_log_id << OFFSET_BITS) | starts
        self._write(half, positions[first:last], sizes[first:last])
        for ledger_id, begin, end in ledgers:
            a, b = max(begin, first), min(end, last)
            if a < b:
                size = int(sizes[a:b].sum()) + LENGTH_BYTES * (b - a)
                self._ledger_bytes[ledger_id] = self._ledger_bytes.get(ledger_id, 0) + size
        return last

    def _write(self, half: CacheHalf, positions: Int64s, sizes: Int64s) -> None:
        assert self._file is not None
        synced_to = self._position
        self._unsynced = True
        for _ in half.copy(positions, sizes, self._file):
            written = self._file.position - synced_to
            if written >= self._steps.step_bytes:
                self._file.write_blocks()
                files.sync_data(self._fd)
                self._steps.synced(written)
                synced_to += written
        self._file.finish()
        self._position = self._file.position

    def _use_page_cache(self) -> None:
        """Cut off the zeros after the last entry, and write the rest of the log through the page cache."""
        fd = files.open_file(self._path)
        os.close(self._fd)
        self._fd, self._file = fd, BufferedFile(fd, self._position)
        files.truncate(fd, self._position)

    def _open(self) -> None:
        writable = self._directories.for_flushes()
        if not writable:
            reasons = "; ".join(f"{path}: {reason}" for path, reason in self._directories.failures().items())
            raise NoWritableDirectoryError(f"no ledger directory takes a new entry log ({reasons})")
        directory = writable[self._next_directory % len(writable)]
        self._next_directory += 1
        entry_log_id = self._ids.allocate()
        self.unfinished.add(entry_log_id)  # before the file exists, so that it always counts as being written
        self._path = os.path.join(directory, entry_log.file_name(entry_log_id))
        memory = self._memory if directory in self._direct else None
        self._fd = files.create_file(self._path, direct=memory is not None)
        self._file = BufferedFile(self._fd, 0) if memory is None else DirectFile(self._fd, memory)
        self.entry_log_id, self._ledger_bytes = entry_log_id, {}
        self._file.put([entry_log.file_header()])
        self._file.finish()
        self._position = self._file.position
        files.sync_directory(directory)

    def _give_up(self, begun_log: int, begun_at: int, error: OSError) -> None:
        """Cut off what a failed append wrote to the current log, close the log, and take its directory out of use."""
        self._directories.note_failed(os.path.dirname(self._path), error)
        _LOG.warning("cannot write entry log %s: %s", self._path, error.strerror or error)
        if self._fd < 0:
            return
        try:
            if self.entry_log_id == begun_log:
                files.truncate(self._fd, begun_at)
            else:
                files.remove(self._path)
        except OSError as cut_error:
            _LOG.warning("cannot cut %s: %s; it holds some useless entries", self._path, cut_error.strerror)
        self.close()


class NoWritableDirectoryError(OSError):
    """Writes have failed in every ledger directory."""
