"""Reading many entries at once from entry logs. Format and locations: entry_log.py.

One read fetches neighbouring entries. Every entry is checked as Apache's bookie does: a plausible size, the right
ledger id and entry id. An entry that fails the check, or whose log is missing or too short, is an I/O error, never
"absent".
"""

from __future__ import annotations

import errno
import logging
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Bytes, Int64s
from bookie_server.storage.disk.fd_cache import FdCache
from bookie_server.storage.disk.files import WouldBlockError, exists
from bookie_server.storage.entrylog.entry_log import HEADER_BYTES, OFFSET_BITS, OFFSET_MASK, file_name
from bookie_server.storage.records import LENGTH_BYTES, MAX_RECORD_BYTES, MIN_RECORD_BYTES, gather_int32, gather_int64

#: Memory of so many bytes, into which entries are read with their sizes.
Room = Callable[[int], Bytes]

_LOG: Final = logging.getLogger(__name__)
#: Entries that begin less than this apart are fetched by one read: copying some unneeded bytes is cheaper than
#: another system call. Larger entries are neighbours if they lie as far apart as the last one read was large.
MAX_GAP_BYTES: Final = 32 * 1024
_FIRST_GUESS_BYTES: Final = 4 * 1024
#: A larger entry counts as one that must be waited for: its memory may be fresh, which takes half a millisecond a
#: megabyte.
MOST_AT_ONCE_BYTES: Final = 512 * 1024
#: The same for a peer that takes what it asked for: the memory of its last answer is free again, and in a thread the
#: read would cost half as much again.
MOST_AT_ONCE_TAKEN_BYTES: Final = 2 * 1024 * 1024
#: Enough for an entry with 64 KiB of payload.
_MAX_GUESS_BYTES: Final = 65 * 1024
_RECORD_HEAD: Final = struct.Struct(">iqq")


@dataclass(frozen=True, slots=True)
class StoredEntries:
    """Entries read: entry ``i`` is ``data[starts[i] : starts[i] + sizes[i]]``; its 4-byte size precedes it.
    ``sizes[i]`` is -1 for an entry that could not be read."""

    data: Bytes
    starts: Int64s
    sizes: Int64s

    def entry(self, i: int) -> memoryview:
        """Entry ``i``, which must have been read."""
        start = int(self.starts[i])
        return self.data.data[start : start + int(self.sizes[i])]

    @property
    def contiguous(self) -> bool:
        """Whether all were read and lie consecutively in ``data``, with nothing but their sizes between them."""
        ends = self.starts + self.sizes
        return bool((self.sizes >= 0).all() and (self.starts[1:] == ends[:-1] + LENGTH_BYTES).all())

    def fitting(self, limit_bytes: int, *, at_least_one: bool) -> int:
        """How many of the first entries were read and fit into ``limit_bytes`` together with their sizes."""
        bad = np.flatnonzero(self.sizes < 0)
        readable = int(bad[0]) if len(bad) else len(self.sizes)
        fitting = int(np.searchsorted(np.cumsum(self.sizes[:readable] + LENGTH_BYTES), limit_bytes, side="right"))
        return min(readable, max(fitting, 1)) if at_least_one else fitting


class EntryLogReader:
    """Reads the logs in ``directories``. Thread-safe."""

    def __init__(self, directories: Sequence[str], open_limit: int = 256) -> None:
        self._directories = tuple(directories)
        self._fds = FdCache(open_limit, self._open)
        self._guess_bytes = _FIRST_GUESS_BYTES
        #: Size of the last entry read, with its size field.
        self._last_record_bytes = 0

    def close(self) -> None:
        """Close all open logs. No read may follow."""
        self._fds.close()

    def path(self, entry_log_id: int) -> str:
        """Path of log ``entry_log_id``. Raises FileNotFoundError, or OSError if the path cannot be determined."""
        name = file_name(entry_log_id)
        for directory in self._directories:
            path = os.path.join(directory, name)
            if exists(path):
                return path
        raise FileNotFoundError(errno.ENOENT, f"no entry log {name} in {', '.join(self._directories)}")

    def has(self, entry_log_id: int) -> bool:
        """Whether there is such a log. Raises OSError if that is unknown."""
        try:
            self.path(entry_log_id)
        except FileNotFoundError:
            return False
        return True

    def forget(self, entry_log_id: int) -> bool:
        """Close a log that was removed. Return False if it is being read: then it is closed after that."""
        return self._fds.discard(entry_log_id)

    def read(
        self,
        ledger_ids: Int64s,
        entry_ids: Int64s,
        locations: Int64s,
        limit_bytes: int,
        *,
        at_once_bytes: int | None,
        room: Room | None = None,
    ) -> StoredEntries:
        """Read the entries at the first of ``locations`` (none of them 0): at least one, and as many as fit into about
        ``limit_bytes`` of fetched bytes. With ``at_once_bytes`` it does not wait for a disk, and raises WouldBlockError
        for what is not in the page cache, or for an entry that is larger. ``room`` is asked for the memory of each
        piece that is read. If one call suffices, its memory is the result's data."""
        room = room or _fresh
        starts: list[Int64s] = []
        ends: list[int] = []
        parts: list[Bytes] = []
        base = count = 0
        gaps = np.diff(locations)
        most = max(MAX_GAP_BYTES, self._last_record_bytes)
        breaks = np.flatnonzero((gaps < LENGTH_BYTES + MIN_RECORD_BYTES) | (gaps > most)) + 1
        for first, last in zip([0, *breaks.tolist()], [*breaks.tolist(), len(locations)], strict=True):
            if base >= limit_bytes and count:
                break
            run = locations[first:last]
            if last - first > 1:
                run = run[: _fitting(run, limit_bytes - base)]
            region = self._read_region(run, at_once_bytes, room)
            if region is None and len(run) > 1:  # perhaps only the last of them cannot be read
                run = run[:1]
                region = self._read_region(run, at_once_bytes, room)
            if region is None:
                starts.append(np.full(len(run), -1, np.int64))
            else:
                starts.append(run + (base + LENGTH_BYTES - int(run[0])))
                base += len(region)
                parts.append(region)
            ends.append(base)
            count += len(run)
            if len(run) < last - first:
                break
        data = parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0, np.uint8)
        limits = np.repeat(np.array(ends), [len(run) for run in starts])
        where = starts[0] if len(starts) == 1 else np.concatenate(starts)
        ledger_ids, entry_ids, locations = ledger_ids[:count], entry_ids[:count], locations[:count]
        sizes = _measure(data, where, limits)
        _check_ids(data, where, sizes, ledger_ids, entry_ids)
        bad = np.flatnonzero(sizes < 0)
        if len(bad):
            i = int(bad[0])
            _LOG.error(
                "%d of %d entries cannot be read; first: ledger %d entry %d at offset %d of %s",
                len(bad),
                len(locations),
                int(ledger_ids[i]),
                int(entry_ids[i]),
                int(locations[i]) & OFFSET_MASK,
                file_name(int(locations[i]) >> OFFSET_BITS),
            )
        else:
            last_bytes = int(sizes[-1])
            self._guess_bytes = min(max(last_bytes, MIN_RECORD_BYTES), _MAX_GUESS_BYTES)
            self._last_record_bytes = last_bytes + LENGTH_BYTES
        return StoredEntries(data, where, sizes)

    def read_one(self, ledger_id: int, entry_id: int, location: int) -> memoryview | None:
        """Read one entry that is in the page cache and no larger than recently read ones. Return None for any other
        entry and for an invalid one; :meth:`read` then gives the result."""
        entry_log_id, offset = location >> OFFSET_BITS, (location & OFFSET_MASK) - LENGTH_BYTES
        if offset < HEADER_BYTES:
            return None
        buffer = bytearray(LENGTH_BYTES + self._guess_bytes)
        try:
            with self._fds.borrow(entry_log_id) as fd:
                count = os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
        except OSError:
            return None
        if count < _RECORD_HEAD.size:
            return None
        size, found_ledger, found_entry = _RECORD_HEAD.unpack_from(buffer)
        if (found_ledger, found_entry) != (ledger_id, entry_id) or not MIN_RECORD_BYTES <= size <= count - LENGTH_BYTES:
            return None
        return memoryview(buffer)[LENGTH_BYTES : LENGTH_BYTES + size]

    def _read_region(self, run: Int64s, at_once_bytes: int | None, room: Room) -> Bytes | None:
        """The bytes from the size of the first of these neighbours to the end of the last; None if they cannot be
        read."""
        entry_log_id, first = int(run[0]) >> OFFSET_BITS, (int(run[0]) & OFFSET_MASK) - LENGTH_BYTES
        last = (int(run[-1]) & OFFSET_MASK) - LENGTH_BYTES
        may_wait = at_once_bytes is None
        if first < HEADER_BYTES:
            return None
        likely_bytes, are_alike = _last_of(run)
        if at_once_bytes is not None and likely_bytes > LENGTH_BYTES + at_once_bytes:
            raise WouldBlockError
        last_bytes = likely_bytes if are_alike else max(LENGTH_BYTES + self._guess_bytes, likely_bytes)
        try:
            with self._fds.borrow(entry_log_id) as fd:
                log_end = os.fstat(fd).st_size
                end = min(last + last_bytes, log_end)
                if last + LENGTH_BYTES + MIN_RECORD_BYTES > end:
                    return None
                region = _fetch(fd, first, end, may_wait, room)
                at = last - first
                size = int.from_bytes(region.data[at : at + LENGTH_BYTES], "big", signed=True)
                needed = last + LENGTH_BYTES + size
                if MIN_RECORD_BYTES <= size <= MAX_RECORD_BYTES and end < needed <= log_end:
                    if at_once_bytes is not None and size > at_once_bytes:
                        raise WouldBlockError
                    region = _fetch(fd, first, needed, may_wait, room, beginning=region)
                return region
        except OSError as error:
            _LOG.error("cannot read entry log %s: %s", file_name(entry_log_id), error.strerror or error)
            return None

    def _open(self, entry_log_id: int) -> int:
        return os.open(self.path(entry_log_id), os.O_RDONLY | os.O_CLOEXEC)


_NOTHING: Final = np.empty(0, np.uint8)


def _fresh(size_bytes: int) -> Bytes:
    return np.empty(size_bytes, np.uint8)


def _fitting(locations: Int64s, limit_bytes: int) -> int:
    """How many of the first of several neighbours end within ``limit_bytes``, and at least one. Of the last one only
    the beginning is known: it is probably as large as the one before it."""
    end = int(locations[0]) + limit_bytes
    fitting = int(np.searchsorted(locations[1:], end, side="right"))
    if fitting == len(locations) - 1 and 2 * int(locations[-1]) - int(locations[-2]) <= end:
        return fitting + 1
    return max(1, fitting)


def _last_of(neighbours: Int64s) -> tuple[int, bool]:
    """How large the last one probably is: as large as the one before it. And whether all seem to be of one size, so
    that nothing needs to be fetched behind it."""
    if len(neighbours) < 2:
        return 0, False
    likely_bytes = int(neighbours[-1] - neighbours[-2])
    return likely_bytes, likely_bytes == neighbours[1] - neighbours[0]


def _fetch(fd: int, start: int, end: int, may_wait: bool, room: Room, beginning: Bytes = _NOTHING) -> Bytes:
    """The bytes of [start, end), of which ``beginning`` is there already. Raises OSError if the file ends before
    ``end``, WouldBlockError."""
    buffer = room(end - start)
    view = buffer.data
    have = len(beginning)
    buffer[:have] = beginning
    while have < len(buffer):
        try:
            count = os.preadv(fd, [view[have:]], start + have, 0 if may_wait else os.RWF_NOWAIT)
        except OSError as error:
            if not may_wait and error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                raise WouldBlockError from error
            raise
        if count == 0:
            if not may_wait:
                raise WouldBlockError
            raise OSError(errno.EIO, f"file ends at {start + have}, before {end}")
        have += count
    return buffer


def _measure(data: Bytes, starts: Int64s, limits: Int64s) -> Int64s:
    """The sizes before ``starts``; -1 if there is nothing, or the size is implausible or exceeds its limit."""
    there = np.flatnonzero(starts >= 0)
    sizes = np.full(len(starts), -1, np.int64)
    if not len(there):
        return sizes
    found = gather_int32(data, starts[there] - LENGTH_BYTES)
    wrong = (found < MIN_RECORD_BYTES) | (found > MAX_RECORD_BYTES) | (starts[there] + found > limits[there])
    sizes[there] = np.where(wrong, -1, found)
    return sizes


def _check_ids(data: Bytes, starts: Int64s, sizes: Int64s, ledger_ids: Int64s, entry_ids: Int64s) -> None:
    readable = np.flatnonzero(sizes >= 0)
    if not len(readable):
        return
    whole = len(readable) == len(sizes)
    ids = gather_int64(data, starts if whole else starts[readable], 2)
    wrong = (ids[:, 0] != (ledger_ids if whole else ledger_ids[readable])) | (
        ids[:, 1] != (entry_ids if whole else entry_ids[readable])
    )
    if wrong.any():
        sizes[readable[wrong]] = -1
