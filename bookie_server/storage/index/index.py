"""Index files in Apache's format, one per ledger. Source: compatibility.md §5.6.

``<index dir>/current/<hex (id >> 8 & 0xff)>/<hex (id & 0xff)>/<hex id>.idx``::

    0     "BKLE"
    4     i32 header version (0 or 1)
    8     i32 key length, master key
          i32 state: bit 0 fenced; bit 1 limbo, which Apache's bookie ignores and keeps
          version 1: i32 length of the explicit LAC packet (0: none), packet
          zeros up to 1024
    1024  i64 location of entry 0, of entry 1, … (0: absent), in pages of 1024 entries
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.disk import files
from bookie_server.storage.disk.fd_cache import FdCache
from bookie_server.storage.disk.files import WouldBlockError, read_at

MAGIC: Final = b"BKLE"
VERSION: Final = 1
HEADER_BYTES: Final = 1024
#: What a header has room for: the master key, and the explicit LAC packet.
MAX_KEY_AND_LAC_BYTES: Final = HEADER_BYTES - 20
PAGE_SLOTS: Final = 1024
PAGE_BYTES: Final = 8 * PAGE_SLOTS
_FENCED: Final = 1
_LIMBO: Final = 2
#: With more files than this, the whole file system is synced at once, which is cheaper.
_SYNC_ONE_BY_ONE: Final = 16
#: Slots read at a time when a whole file is scanned.
_CHUNK_SLOTS: Final = 64 * PAGE_SLOTS
_I32: Final = struct.Struct(">i")
#: Ids that fit into an i64.
FILE_NAME: Final = re.compile(r"([0-7]?[0-9a-f]{1,15})\.idx")
_PART: Final = re.compile(r"[0-9a-f]{1,2}")

#: One page: locations, big-endian as in the file.
Page = npt.NDArray[np.int64]
PAGE_DTYPE: Final = np.dtype(">i8")


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The content of the header. ``explicit_lac`` is the LAC packet as the client sent it.

    ``limbo``: the bookie may have lost entries of the ledger, so it must not call one absent.
    """

    master_key: bytes
    fenced: bool
    explicit_lac: bytes | None
    limbo: bool = False

    def __repr__(self) -> str:
        return f"IndexHeader(fenced={self.fenced}, limbo={self.limbo})"

    def encode(self) -> bytes:
        """The first 1024 bytes of an index file. Raises CorruptFileError if the content is too long for them."""
        lac = self.explicit_lac or b""
        if len(self.master_key) + len(lac) > MAX_KEY_AND_LAC_BYTES:
            raise CorruptFileError("master key and LAC packet do not fit into an index file's header")
        header = b"".join(
            (
                MAGIC,
                _I32.pack(VERSION),
                _I32.pack(len(self.master_key)),
                self.master_key,
                _I32.pack(_FENCED * self.fenced | _LIMBO * self.limbo),
                _I32.pack(len(lac)),
                lac,
            )
        )
        return header.ljust(HEADER_BYTES, b"\0")

    @classmethod
    def decode(cls, header: bytes, path: str) -> IndexHeader:
        """Decode a header. Raises CorruptFileError, whose text names ``path``."""
        if len(header) < 16 or header[:4] != MAGIC:
            raise CorruptFileError(f"{path} does not begin with {MAGIC.decode()}: not an index file")
        version, key_bytes = struct.unpack_from(">ii", header, 4)
        if version not in (0, VERSION):
            raise CorruptFileError(f"{path} has header version {version}; known are 0 and {VERSION}")
        state_at = 12 + key_bytes
        if key_bytes < 0 or state_at + 8 > len(header):
            raise CorruptFileError(f"{path}: a master key of {key_bytes} bytes is impossible")
        (state,) = _I32.unpack_from(header, state_at)
        lac_bytes = _I32.unpack_from(header, state_at + 4)[0] if version >= 1 else 0
        if lac_bytes and not 16 <= lac_bytes <= len(header) - state_at - 8:
            raise CorruptFileError(f"{path}: an explicit LAC of {lac_bytes} bytes is impossible")
        lac = header[state_at + 8 : state_at + 8 + lac_bytes] if lac_bytes else None
        return cls(header[12:state_at], bool(state & _FENCED), lac, bool(state & _LIMBO))


class IndexFiles:
    """The index files in ``directories`` (``current`` directories). Thread-safe, but only one writer at a time.

    A ledger's file stays where it was created; a new one is created in one of ``directories_for_new()``.
    """

    def __init__(
        self, directories: Sequence[str], directories_for_new: Callable[[], list[str]], open_limit: int = 256
    ) -> None:
        self._directories = tuple(directories)
        self._directories_for_new = directories_for_new
        self._fds = FdCache(open_limit, self._open)
        self._lock = threading.Lock()
        self._unsynced_directories: set[str] = set()
        self._unsynced_ledgers: set[int] = set()

    def path(self, ledger_id: int) -> str | None:
        """Path of the ledger's file; None if there is none. Raises OSError if that cannot be determined."""
        name = relative_path(ledger_id)
        for directory in self._directories:
            path = os.path.join(directory, name)
            if files.exists(path):
                return path
        return None

    def absent(self, ledger_ids: Iterable[int]) -> list[int]:
        """The ledgers that have no file, without those for which that cannot be determined."""
        found = []
        for ledger_id in ledger_ids:
            with contextlib.suppress(OSError):
                if self.path(ledger_id) is None:
                    found.append(ledger_id)
        return found

    def close(self) -> None:
        """Close all open files. What was written is durable only after :meth:`sync`."""
        self._fds.close()

    # --- reading -----------------------------------------------------------------------------------

    def read_header(self, ledger_id: int, *, replaying: bool = False) -> IndexHeader | None:
        """Read the header; None if the ledger has no index file. Raises CorruptFileError, OSError.

        An empty file, left by an interrupted creation, counts as no file: its content is still in the journal. While
        the journal is being replayed, the same applies to a header of zeros before pages: a power failure may have kept
        either.
        """
        try:
            with self._fds.borrow(ledger_id) as fd:
                header = read_at(fd, HEADER_BYTES, 0)
                if not header.strip(b"\0") and (replaying or os.fstat(fd).st_size <= HEADER_BYTES):
                    return None
                return IndexHeader.decode(header, f"index file {relative_path(ledger_id)}")
        except FileNotFoundError:
            return None

    def read_page(self, ledger_id: int, number: int, *, may_wait: bool) -> bytes:
        """The bytes of page ``number``; fewer at the end of the file, none if there is no file.

        Raises OSError; WouldBlockError only with ``may_wait=False``.
        """
        try:
            with self._fds.borrow(ledger_id) as fd:
                return _read_page(fd, HEADER_BYTES + number * PAGE_BYTES, may_wait)
        except FileNotFoundError:
            return b""

    def last_entry(self, ledger_id: int) -> int:
        """The highest entry id with a location in the file; -1 if there is none. Raises OSError."""
        try:
            with self._fds.borrow(ledger_id) as fd:
                slots = (os.fstat(fd).st_size - HEADER_BYTES) // 8
                if slots <= 0:
                    return -1
                first = (slots - 1) // _CHUNK_SLOTS * _CHUNK_SLOTS
                data = read_at(fd, 8 * (slots - first), HEADER_BYTES + 8 * first)
                used = np.flatnonzero(np.frombuffer(data, PAGE_DTYPE, len(data) // 8))
                if len(used):
                    return first + int(used[-1])
                # A flush extended the file but did not write its entries: the rest may be one long hole.
                last = -1
                for ids, _ in used_slots(fd):
                    last = int(ids[-1])
                return last
        except FileNotFoundError:
            return -1

    def entry_ids(self, ledger_id: int) -> npt.NDArray[np.int64]:
        """Ids of all entries with a location in the file, ascending. Raises OSError."""
        try:
            with self._fds.borrow(ledger_id) as fd:
                parts = [ids for ids, _ in used_slots(fd)]
        except FileNotFoundError:
            parts = []
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def ledger_ids(self) -> npt.NDArray[np.int64]:
        """All ledgers that have a file, ascending. Raises OSError: a directory that cannot be listed is not empty."""
        found = [
            int(match[1], 16)
            for directory in self._directories
            for outer in _subdirectories(directory)
            for inner in _subdirectories(outer)
            for name in os.listdir(inner)
            if (match := FILE_NAME.fullmatch(name))
        ]
        return np.unique(np.array(found, np.int64))

    def read_slots(self, ledger_id: int, entry_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Locations of entries (ids ascending), 0 for an absent one. Raises OSError."""
        locations = np.zeros(len(entry_ids), np.int64)
        try:
            with self._fds.borrow(ledger_id) as fd:
                for first, last in _neighbours(entry_ids, PAGE_SLOTS):
                    base = int(entry_ids[first])
                    data = read_at(fd, 8 * (int(entry_ids[last - 1]) - base + 1), HEADER_BYTES + 8 * base)
                    slots = np.frombuffer(data[: len(data) // 8 * 8], PAGE_DTYPE)
                    wanted = entry_ids[first:last] - base
                    there = wanted < len(slots)
                    locations[first:last][there] = slots[wanted[there]]
        except FileNotFoundError:
            pass
        return locations

    # --- writing -----------------------------------------------------------------------------------

    def write(
        self,
        ledger_id: int,
        header: IndexHeader | None,
        entry_ids: npt.NDArray[np.int64],
        locations: npt.NDArray[np.int64],
    ) -> None:
        """Write the given header and locations (ids ascending) without a sync. A ledger without a file needs a header.

        Raises FileNotFoundError if there is neither file nor ``header``, OSError.
        """
        slots = locations.astype(PAGE_DTYPE)
        with self._lock:
            self._unsynced_ledgers.add(ledger_id)
        if header is not None and self.path(ledger_id) is None:
            self._create(ledger_id, header, entry_ids, slots)
            return
        with self._fds.borrow(ledger_id) as fd:
            _write_content(fd, header, entry_ids, slots)

    def sync(self) -> None:
        """Make everything written, and the names of new files, durable. Raises SyncFailedError, OSError."""
        with self._lock:
            ledgers, self._unsynced_ledgers = sorted(self._unsynced_ledgers), set()
            directories, self._unsynced_directories = self._unsynced_directories, set()
        try:
            self._sync(ledgers, directories)
        except files.SyncFailedError:
            raise
        except OSError:
            with self._lock:
                self._unsynced_ledgers.update(ledgers)
                self._unsynced_directories |= directories
            raise

    def _sync(self, ledgers: list[int], directories: set[str]) -> None:
        if len(ledgers) + len(directories) > _SYNC_ONE_BY_ONE and all(map(files.sync_file_system, self._directories)):
            return
        for ledger_id in ledgers:
            try:
                with self._fds.borrow(ledger_id) as fd:
                    files.sync_file(fd)
            except FileNotFoundError:
                continue  # removed meanwhile
        for directory in sorted(directories, reverse=True):  # inner ones first
            files.sync_directory(directory)

    def remove(self, ledger_id: int) -> None:
        """Remove the ledger's file; durable with the next :meth:`sync`. Raises OSError."""
        path = self.path(ledger_id)
        if path is not None:
            files.remove(path)
            with self._lock:
                self._unsynced_ledgers.discard(ledger_id)
                self._unsynced_directories.add(os.path.dirname(path))
        self._fds.discard(ledger_id)  # last: a reader may open the file until it is removed

    def _create(self, ledger_id: int, header: IndexHeader, entry_ids: npt.NDArray[np.int64], slots: Page) -> None:
        """Create a file with this content in the first directory that can be written."""
        candidates = self._directories_for_new()
        first = ledger_id % len(candidates)
        failure: OSError | None = None
        for directory in candidates[first:] + candidates[:first]:
            path = os.path.join(directory, relative_path(ledger_id))
            try:
                fd = self._create_file(directory, path)
            except OSError as error:
                failure = error
                continue
            try:
                _write_content(fd, header, entry_ids, slots)
                return
            except OSError as error:
                failure = error
                files.remove(path)  # if it stays, no other directory may get one: only one of them would be found
            finally:
                os.close(fd)
        assert failure is not None
        raise failure

    def _create_file(self, directory: str, path: str) -> int:
        inner = os.path.dirname(path)
        try:
            fd = files.create_file(path)
        except FileNotFoundError:
            files.make_directory(inner)
            fd = files.create_file(path)
        with self._lock:
            # Every directory, even an existing one: the process that created it may have ended before its sync.
            self._unsynced_directories |= {inner, os.path.dirname(inner), directory}
        return fd

    def _open(self, ledger_id: int) -> int:
        path = self.path(ledger_id)
        if path is None:
            raise FileNotFoundError(errno.ENOENT, f"no index file of ledger {ledger_id}")
        return files.open_file(path)


def _write_content(fd: int, header: IndexHeader | None, entry_ids: npt.NDArray[np.int64], slots: Page) -> None:
    if header is not None:
        files.write_at(fd, [header.encode()], 0)
    if not len(entry_ids):
        return
    pages = (int(entry_ids[-1]) + PAGE_SLOTS) // PAGE_SLOTS
    if os.fstat(fd).st_size < HEADER_BYTES + pages * PAGE_BYTES:
        files.truncate(fd, HEADER_BYTES + pages * PAGE_BYTES)  # whole pages, as Apache's bookie reads them
    for first, last in _neighbours(entry_ids, 1):
        files.write_at(fd, [slots[first:last].data.cast("B")], HEADER_BYTES + 8 * int(entry_ids[first]))


def relative_path(ledger_id: int) -> str:
    """Path of a ledger's file below a ``current`` directory."""
    return f"{ledger_id >> 8 & 0xFF:x}/{ledger_id & 0xFF:x}/{ledger_id:x}.idx"


def used_slots(fd: int) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Ids of the entries with a location, ascending, and these locations, in parts. Holes are skipped."""
    position = HEADER_BYTES
    while (data_at := _next_data(fd, position)) >= 0:
        first = max(data_at - HEADER_BYTES, 0) // 8
        data = read_at(fd, 8 * _CHUNK_SLOTS, HEADER_BYTES + 8 * first)
        slots = np.frombuffer(data, PAGE_DTYPE, len(data) // 8)
        used = np.flatnonzero(slots)
        if len(used):
            yield used + first, slots[used].astype(np.int64)
        position = HEADER_BYTES + 8 * first + max(len(data), 8)


def _next_data(fd: int, position: int) -> int:
    """Offset of the next data in the file at or after ``position``; -1 if there is none."""
    try:
        return os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return -1
        raise


def _subdirectories(directory: str) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.path for entry in entries if _PART.fullmatch(entry.name) and entry.is_dir()]


def _neighbours(entry_ids: npt.NDArray[np.int64], gap: int) -> Iterator[tuple[int, int]]:
    """Runs [first, last) of ids that are at most ``gap`` apart."""
    breaks = (np.flatnonzero(np.diff(entry_ids) > gap) + 1).tolist()
    yield from zip([0, *breaks], [*breaks, len(entry_ids)], strict=True)


def _read_page(fd: int, offset: int, may_wait: bool) -> bytes:
    if may_wait:
        return read_at(fd, PAGE_BYTES, offset)
    buffer = bytearray(PAGE_BYTES)
    try:
        count = os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
            raise WouldBlockError from error
        raise
    if count < PAGE_BYTES and offset + count < os.fstat(fd).st_size:
        raise WouldBlockError
    return bytes(memoryview(buffer)[:count])
