"""Index files in Apache's format: one per ledger. Source: compatibility facts §5.6.

``<index dir>/current/<hex (id >> 8 & 0xff)>/<hex (id & 0xff)>/<hex id>.idx``::

    0     "BKLE"
    4     i32 header version (0 or 1)
    8     i32 key length, master key
          i32 state: bit 0 fenced
          version 1: i32 length of the explicit LAC packet (0: none), packet
          zeros up to 1024
    1024  i64 location of entry 0, of entry 1, … (0: absent), in pages of 1024 entries
"""

from __future__ import annotations

import os
import struct
import threading
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.fd_cache import FdCache
from bookie_server.storage.files import read_at, sync_directory, sync_file_system, write_at

MAGIC: Final = b"BKLE"
VERSION: Final = 1
HEADER_BYTES: Final = 1024
PAGE_SLOTS: Final = 1024
PAGE_BYTES: Final = 8 * PAGE_SLOTS
_FENCED: Final = 1
#: More files than this are synced with the whole file system at once, which is cheaper.
_SYNC_ONE_BY_ONE: Final = 16
_I32: Final = struct.Struct(">i")

#: One page: locations, big-endian as in the file.
Page = npt.NDArray[np.int64]
PAGE_DTYPE: Final = np.dtype(">i8")


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """What the header says about the ledger. ``explicit_lac`` is the LAC packet as the client sent it."""

    master_key: bytes
    fenced: bool
    explicit_lac: bytes | None

    def __repr__(self) -> str:
        return f"IndexHeader(fenced={self.fenced})"

    def encode(self) -> bytes:
        lac = self.explicit_lac or b""
        header = b"".join(
            (
                MAGIC,
                _I32.pack(VERSION),
                _I32.pack(len(self.master_key)),
                self.master_key,
                _I32.pack(_FENCED if self.fenced else 0),
                _I32.pack(len(lac)),
                lac,
            )
        )
        if len(header) > HEADER_BYTES:
            raise CorruptFileError("master key and LAC packet do not fit into an index file's header")
        return header.ljust(HEADER_BYTES, b"\0")

    @classmethod
    def decode(cls, header: bytes, path: str) -> IndexHeader:
        """Raises CorruptFileError naming ``path``."""
        if len(header) < 16 or header[:4] != MAGIC:
            raise CorruptFileError(f"{path} does not begin with {MAGIC.decode()}: not an index file")
        version, key_bytes = struct.unpack_from(">ii", header, 4)
        if version not in (0, VERSION):
            raise CorruptFileError(f"{path} has header version {version}; known are 0 and {VERSION}")
        state_at = 12 + key_bytes
        if key_bytes < 0 or state_at + 8 > len(header):
            raise CorruptFileError(f"{path}: a master key of {key_bytes} bytes cannot be")
        (state,) = _I32.unpack_from(header, state_at)
        lac_bytes = _I32.unpack_from(header, state_at + 4)[0] if version >= 1 else 0
        if lac_bytes and not 16 <= lac_bytes <= len(header) - state_at - 8:
            raise CorruptFileError(f"{path}: an explicit LAC of {lac_bytes} bytes cannot be")
        lac = header[state_at + 8 : state_at + 8 + lac_bytes] if lac_bytes else None
        return cls(header[12:state_at], bool(state & _FENCED), lac)


class IndexFiles:
    """The index files under ``directory`` (a ``current``). Thread-safe, but two writers of one ledger must not
    be at work at once."""

    def __init__(self, directory: str, open_limit: int = 256) -> None:
        self._directory = directory
        self._fds = FdCache(open_limit, self._open)
        self._lock = threading.Lock()
        self._unsynced_directories: set[str] = set()

    def path(self, ledger_id: int) -> str:
        return os.path.join(
            self._directory, f"{ledger_id >> 8 & 0xFF:x}", f"{ledger_id & 0xFF:x}", f"{ledger_id:x}.idx"
        )

    def close(self) -> None:
        self._fds.close()

    def read_header(self, ledger_id: int, *, replaying: bool = False) -> IndexHeader | None:
        """None where the ledger has no index file. Raises CorruptFileError, OSError.

        A file that holds nothing, cut short while it was made, is no file: what it was to hold is still in
        the journal. While the journal is being replayed this goes for a header of zeros before pages, too: a power
        cut may have kept either.
        """
        try:
            with self._fds.borrow(ledger_id) as fd:
                header = read_at(fd, HEADER_BYTES, 0)
                if not header.strip(b"\0") and (replaying or os.fstat(fd).st_size <= HEADER_BYTES):
                    return None
                return IndexHeader.decode(header, self.path(ledger_id))
        except FileNotFoundError:
            return None

    def read_page(self, ledger_id: int, number: int) -> bytes:
        """The bytes of page ``number``; fewer at the end of the file, none without a file. Raises OSError."""
        try:
            with self._fds.borrow(ledger_id) as fd:
                return read_at(fd, PAGE_BYTES, HEADER_BYTES + number * PAGE_BYTES)
        except FileNotFoundError:
            return b""

    def last_entry(self, ledger_id: int) -> int:
        """The highest entry id with a location in the file; -1 where there is none."""
        try:
            with self._fds.borrow(ledger_id) as fd:
                slots = (os.fstat(fd).st_size - HEADER_BYTES) // 8
                while slots > 0:
                    first = (slots - 1) // PAGE_SLOTS * PAGE_SLOTS
                    data = read_at(fd, 8 * (slots - first), HEADER_BYTES + 8 * first)
                    used = np.flatnonzero(np.frombuffer(data, PAGE_DTYPE, len(data) // 8))
                    if len(used):
                        return first + int(used[-1])
                    slots = first
        except FileNotFoundError:
            pass
        return -1

    def write(self, ledger_id: int, header: IndexHeader | None, pages: list[tuple[int, Page]]) -> None:
        """Write what is given, in order; a ledger without a file needs its ``header``. Nothing is synced."""
        if header is not None and not os.path.exists(self.path(ledger_id)):
            self._create(self.path(ledger_id))
        with self._fds.borrow(ledger_id) as fd:
            if header is not None:
                write_at(fd, [header.encode()], 0)
            for number, page in pages:
                write_at(fd, [page.data.cast("B")], HEADER_BYTES + number * PAGE_BYTES)

    def sync(self, ledger_ids: list[int]) -> None:
        """Make all that was written to these ledgers' files durable, and the files' names. Raises OSError."""
        with self._lock:
            directories, self._unsynced_directories = self._unsynced_directories, set()
        if len(ledger_ids) + len(directories) > _SYNC_ONE_BY_ONE and sync_file_system(self._directory):
            return
        for ledger_id in ledger_ids:
            with self._fds.borrow(ledger_id) as fd:
                os.fsync(fd)
        for directory in sorted(directories, reverse=True):  # inner ones first
            sync_directory(directory)

    def _create(self, path: str) -> None:
        """An empty file."""
        inner = os.path.dirname(path)
        outer = os.path.dirname(inner)
        os.makedirs(inner, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        with self._lock:
            self._unsynced_directories |= {inner, outer, self._directory}

    def _open(self, ledger_id: int) -> int:
        return os.open(self.path(ledger_id), os.O_RDWR | os.O_CLOEXEC)
