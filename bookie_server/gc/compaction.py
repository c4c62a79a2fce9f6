"""Compaction: copies the live entries of an entry log to a new one and removes the old one. compatibility.md §5.12.

A compaction is a transaction with the file names of Apache's transactional compaction. A crash at any point loses
nothing, and the next start cleans up:

1. Write the live entries, sorted by ledger and entry, the ledgers map and the header to ``<new>.log.compacting``; sync.
2. Link it to ``<new>.log.<old>.compacted``, the marker; sync the directory. The new entry log is now complete.
3. Link it to ``<new>.log``; sync the directory.
4. Point the index to the new entry log where it points to the old one; sync.
5. Remove ``.compacting``, the old entry log, and then the marker; sync the directory.

A ``.compacting`` file without a marker is removed. With a marker, steps 3 to 5 are repeated. They need only the new
entry log, whatever the first attempt did. All files of one compaction are in one directory, which may differ from the
old entry log's.
"""

from __future__ import annotations

import contextlib
import filecmp
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bookie_server.gc.collected_storage import CollectedStorage, RunBlocking
from bookie_server.gc.entry_log_rewrite import EntryLogRewrite
from bookie_server.gc.entry_log_usage import EntryLogUsage
from bookie_server.gc.live_entries import (
    UnreadableEntryError,
    UnsoundLogError,
    indexed_windows,
    live_only,
    move_pointers,
    scanned_windows,
)
from bookie_server.gc.throttle import StopSignal, Throttle
from bookie_server.storage.disk import files
from bookie_server.storage.entrylog.entry_log import HEADER_BYTES, file_name
from bookie_server.storage.entrylog.entry_log_scan import EntryLogScan, FoundEntries, joined
from bookie_server.storage.records import LENGTH_BYTES

_LOG: Final = logging.getLogger(__name__)
_COMPACTING: Final = re.compile(r"([0-9a-f]{1,8})\.log\.compacting")
_MARKER: Final = re.compile(r"([0-9a-f]{1,8})\.log\.([0-9a-f]{1,8})\.compacted")
#: Bytes copied at a time, unless one entry is larger.
_STEP_BYTES: Final = 1024 * 1024
#: Index entries moved at a time.
_MOVE_ENTRIES: Final = 64 * 1024
#: Room that a disk must have beside the new entry log.
_ROOM_LEFT_BYTES: Final = 16 * 1024 * 1024


class CompactionRefusedError(Exception):
    """An entry log is not compacted. The message says why."""


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The result of a compaction. ``new_id`` is -1 if no entry was live. Bytes are sizes of files."""

    new_id: int
    entries: int
    old_bytes: int
    new_bytes: int


@dataclass(frozen=True, slots=True)
class CompactionMarker:
    """A compaction whose new entry log is complete. ``directory`` holds all its files."""

    directory: str
    new_id: int
    old_id: int

    @property
    def path(self) -> str:
        """The marker's file."""
        return os.path.join(self.directory, f"{file_name(self.new_id)}.{self.old_id:x}.compacted")


def compacting_path(directory: str, new_id: int) -> str:
    """The file of a new entry log while it is being written."""
    return os.path.join(directory, f"{file_name(new_id)}.compacting")


class EntryLogCompactor:
    """Compacts entry logs of ``storage``, one at a time. Event loop only; ``run_blocking`` does file work."""

    def __init__(
        self,
        storage: CollectedStorage,
        run_blocking: RunBlocking,
        throttle: Throttle,
        stop: StopSignal,
        *,
        throttle_by_bytes: bool,
        throttle_step: int,
    ) -> None:
        self._storage = storage
        self._run = run_blocking
        self._throttle = throttle
        self._stop = stop
        self._by_bytes = throttle_by_bytes
        self._throttle_step = max(1, throttle_step)

    async def compact(self, usage: EntryLogUsage, ledgers: Int64s, *, full_disks: bool) -> CompactionResult:
        """Compact an entry log.

        Parameters
        ----------
        usage
            What the entry log holds.
        ledgers
            All ledgers that may have live entries in it, ascending.
        full_disks
            Use a directory that takes no new entry logs if there is no other.

        Raises CompactionRefusedError or OSError if the old entry log stays; :meth:`finish_leftovers` cleans up. Also
        raises GarbageCollectorStoppedError, SyncFailedError.
        """
        directory = self._choose_directory(usage, usage.live_bytes(ledgers), full_disks)
        if not usage.problem:
            try:
                return await self._compact(usage, ledgers, directory, by_index=False)
            except UnsoundLogError as error:
                _LOG.warning("%s: %s. Its live entries are looked up in the index", usage.path, error)
        try:
            return await self._compact(usage, ledgers, directory, by_index=True)
        except UnreadableEntryError as error:
            raise CompactionRefusedError(f"cannot be read: {error}") from error

    async def finish_leftovers(self) -> dict[int, str]:
        """Remove or finish compactions that a crash, a stop or an error cut short. Return the entry logs that must not
        be touched now, with the reason. Raises OSError, SyncFailedError, GarbageCollectorStoppedError."""
        held: dict[int, str] = {}
        for marker in await self._run(self._clean_names):
            try:
                await self._run(_check_whole, await self._run(make_available, marker), self._stop.check)
                await self.finish(marker)
            except files.SyncFailedError:
                raise
            except (OSError, CompactionRefusedError) as error:
                reason = f"compaction of {file_name(marker.old_id)} to {file_name(marker.new_id)} waits: {error}"
                _LOG.error("%s", reason)
                held |= {marker.old_id: reason, marker.new_id: reason}
        return held

    async def finish(self, marker: CompactionMarker) -> None:
        """Steps 3 to 5. Raises CompactionRefusedError, OSError, SyncFailedError, GarbageCollectorStoppedError."""
        path = await self._run(make_available, marker)
        scan = await self._run(EntryLogScan, path)
        try:
            while not scan.at_end:
                self._stop.check()
                entries = await self._run(_some_entries, scan)
                if len(entries):
                    await move_pointers(self._storage, marker.old_id, marker.new_id, entries)
        finally:
            scan.close()
        if scan.problem:
            raise CompactionRefusedError(f"{path}: {scan.problem}")
        await self._storage.sync_index()
        await self._run(_remove_if_there, compacting_path(marker.directory, marker.new_id))
        with contextlib.suppress(FileNotFoundError):  # a crash came between this and the removal of the marker
            await self._storage.remove_entry_log(marker.old_id)
        await self._run(_remove_if_there, marker.path)
        await self._run(files.sync_directory, marker.directory)

    async def _compact(
        self, usage: EntryLogUsage, ledgers: Int64s, directory: str, *, by_index: bool
    ) -> CompactionResult:
        new_id = await self._run(self._storage.allocate_entry_log_id)
        rewrite = EntryLogRewrite(usage.path, compacting_path(directory, new_id))
        check = self._stop.check
        if by_index:
            windows = indexed_windows(usage.entry_log_id, usage.path, ledgers, self._storage.index_path, check)
        else:
            windows = scanned_windows(usage.path, ledgers, check)
        try:
            await self._run(rewrite.begin)
            while (window := await self._run(_next_or_none, windows)) is not None:
                live = await live_only(self._storage, usage.entry_log_id, window)
                for step in self._steps(live):
                    await self._stop.sleep(self._throttle.take(self._units(step)))
                    await self._run(rewrite.copy, step)
            self._stop.check()
            if rewrite.entries:
                marker = CompactionMarker(directory, new_id, usage.entry_log_id)
                await self._run(rewrite.complete, marker.path)
        except BaseException:
            await self._run(rewrite.abandon)
            raise
        finally:
            await self._run(windows.close)
        if not rewrite.entries:
            await self._run(rewrite.abandon)
            await self._storage.remove_entry_log(usage.entry_log_id)
            return CompactionResult(-1, 0, usage.file_bytes, 0)
        await self.finish(marker)
        _LOG.info(
            "compacted %s (%d bytes) to %s (%d bytes)",
            usage.path,
            usage.file_bytes,
            os.path.join(directory, file_name(new_id)),
            rewrite.size_bytes,
        )
        return CompactionResult(new_id, rewrite.entries, usage.file_bytes, rewrite.size_bytes)

    def _choose_directory(self, usage: EntryLogUsage, live_bytes: int, full_disks: bool) -> str:
        """The old entry log's directory, or the one with the most room."""
        home = os.path.dirname(usage.path)
        candidates = self._storage.directories.writable()
        if not candidates and full_disks:
            candidates = [home]
        if not candidates:
            raise CompactionRefusedError("no room: no ledger directory takes a new entry log")
        # A damaged entry log may have more live entries than its usage says.
        needed = (usage.file_bytes if usage.problem else live_bytes) + HEADER_BYTES + 32 * len(usage.ledger_ids)
        rooms = {path: shutil.disk_usage(path).free for path in candidates}
        best = home if home in rooms and rooms[home] >= needed + _ROOM_LEFT_BYTES else max(rooms, key=rooms.__getitem__)
        if rooms[best] < needed + _ROOM_LEFT_BYTES:
            raise CompactionRefusedError(f"no room: it needs {needed} bytes, and {best} has {rooms[best]}")
        return best

    def _steps(self, entries: FoundEntries) -> Iterator[FoundEntries]:
        """Split ``entries`` into parts of about a megabyte, and of no more than the rate allows in a second."""
        ends = np.cumsum(entries.sizes + LENGTH_BYTES)
        limit_bytes = min(_STEP_BYTES, self._throttle_step) if self._by_bytes else _STEP_BYTES
        first = 0
        while first < len(entries):
            start = int(ends[first - 1]) if first else 0
            last = int(np.searchsorted(ends, start + limit_bytes, side="right"))
            if not self._by_bytes:
                last = min(last, first + self._throttle_step)
            last = max(last, first + 1)
            yield entries.select(np.arange(first, last))
            first = last

    def _units(self, entries: FoundEntries) -> int:
        return int((entries.sizes + LENGTH_BYTES).sum()) if self._by_bytes else len(entries)

    def _clean_names(self) -> list[CompactionMarker]:
        """Remove incomplete new entry logs. Return the markers of complete ones."""
        markers: list[CompactionMarker] = []
        for directory in self._storage.directories.paths:
            names = os.listdir(directory)
            here = [
                CompactionMarker(directory, int(match[1], 16), int(match[2], 16))
                for match in map(_MARKER.fullmatch, names)
                if match
            ]
            complete = {marker.new_id for marker in here}
            rubbish = [
                name for name in names if (match := _COMPACTING.fullmatch(name)) and int(match[1], 16) not in complete
            ]
            for name in rubbish:
                files.remove(os.path.join(directory, name))
                _LOG.info("removed %s: its compaction was not complete", os.path.join(directory, name))
            if rubbish:
                files.sync_directory(directory)
            markers += here
        return sorted(markers, key=lambda marker: marker.new_id)


def make_available(marker: CompactionMarker) -> str:
    """Do step 3. Return the new entry log's path."""
    path = os.path.join(marker.directory, file_name(marker.new_id))
    try:
        files.link(marker.path, path)
    except FileExistsError:
        # If somebody copied the directory, the links became copies.
        if not os.path.samefile(marker.path, path) and not filecmp.cmp(marker.path, path, shallow=False):
            raise CompactionRefusedError(f"{path} differs from {marker.path}") from None
    files.sync_directory(marker.directory)
    return path


def _check_whole(path: str, check_stop: Callable[[], None]) -> None:
    """Check an entry log of an earlier process before the index points into it."""
    scan = EntryLogScan(path)
    try:
        while not scan.at_end:
            check_stop()
            scan.step()
    finally:
        scan.close()
    if scan.problem:
        raise CompactionRefusedError(f"{path}: {scan.problem}")


def _some_entries(scan: EntryLogScan) -> FoundEntries:
    parts: list[FoundEntries] = []
    count = 0
    while not scan.at_end and count < _MOVE_ENTRIES:
        part = scan.step()
        parts.append(part)
        count += len(part)
    return joined(parts)


def _next_or_none(windows: Iterator[FoundEntries]) -> FoundEntries | None:
    return next(windows, None)


def _remove_if_there(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        files.remove(path)
