"""Every change that storage makes to files and directories, and complete reads and writes.

Storage changes files only through this module, never through ``os`` directly. So the crash harness (tests/crash) can
record all writes and syncs by replacing this module's ``os``.

A failed sync differs from a failed write: afterwards the content of the disk is unknown, and a second sync may succeed
without having written anything. :class:`SyncFailedError` therefore stops the bookie.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeGuard

Buffer = bytes | bytearray | memoryview

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
#: Maximum number of buffers in one writev (IOV_MAX on Linux is 1024).
_MAX_BUFFERS: Final = 1000
#: Direct writes begin and end at multiples of this, in files and in memory. Disks ask for 512 or 4096.
BLOCK_BYTES: Final = 4096
#: File systems in memory (f_type of tmpfs and ramfs). Newer kernels accept direct writes there, and copy nevertheless.
_IN_MEMORY: Final = frozenset([0x01021994, 0x858458F6])
_STATFS_BYTES: Final = 256
_WORD_BYTES: Final = ctypes.sizeof(ctypes.c_long)


class SyncFailedError(OSError):
    """A sync failed. Writes since the last sync may be lost, even if a later sync succeeds."""


def may_pass(error: Exception) -> TypeGuard[OSError]:
    """Whether a later attempt may succeed: an I/O error that leaves no doubt about what is on the disk."""
    return isinstance(error, OSError) and not isinstance(error, SyncFailedError)


class WouldBlockError(Exception):
    """The data is not in the page cache. Read it in a thread that may block."""


def create_file(path: str, *, direct: bool = False) -> int:
    """Create an empty file, open for reading and writing. ``direct``: only whole blocks are written, from memory that
    begins at a block, and they do not go through the page cache. Raises FileExistsError, OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | (os.O_DIRECT if direct else 0)
    return os.open(path, flags, 0o644)


def open_file(path: str) -> int:
    """Open the file at ``path`` for reading and writing. Raises OSError."""
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def takes_direct_writes(directory: str) -> bool:
    """Whether files in ``directory`` can be written directly to a disk (:func:`create_file`). Found out with a file
    that has no name. A full disk refuses its content for lack of room, not for the way in which it is written."""
    if _is_in_memory(directory):
        return False
    try:
        fd = os.open(directory, os.O_RDWR | os.O_TMPFILE | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        os.pwritev(fd, [mmap.mmap(-1, BLOCK_BYTES)], 0)
    except OSError as error:
        return error.errno != errno.EINVAL
    finally:
        os.close(fd)
    return True


def _is_in_memory(path: str) -> bool:
    statfs = getattr(_LIBC, "statfs", None)
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if statfs is None or statfs(os.fsencode(path), found) != 0:
        return False
    return int.from_bytes(found.raw[:_WORD_BYTES], sys.byteorder) & 0xFFFFFFFF in _IN_MEMORY


def exists(path: str) -> bool:
    """Whether ``path`` exists. Raises OSError if that is unknown, where ``os.path.exists`` would return False."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def write_at(fd: int, buffers: Sequence[Buffer], offset: int) -> int:
    """Write all ``buffers`` consecutively from ``offset``. Return the offset after the last byte. Raises OSError."""
    for first in range(0, len(buffers), _MAX_BUFFERS):
        part: list[Buffer] = list(buffers[first : first + _MAX_BUFFERS])
        remaining = sum(len(buffer) for buffer in part)
        while True:
            written = os.pwritev(fd, part, offset)
            offset += written
            remaining -= written
            if not remaining:
                break
            part = _skip(part, written)
    return offset


def _skip(buffers: list[Buffer], size_bytes: int) -> list[Buffer]:
    """The buffers without their first ``size_bytes`` bytes."""
    for i, buffer in enumerate(buffers):
        if size_bytes < len(buffer):
            return [memoryview(buffer)[size_bytes:], *buffers[i + 1 :]]
        size_bytes -= len(buffer)
    return []


def read_at(fd: int, size_bytes: int, offset: int) -> bytes:
    """Read up to ``size_bytes`` bytes from ``offset``; fewer only at the end of the file."""
    data = os.pread(fd, size_bytes, offset)
    if len(data) == size_bytes or not data:
        return data
    parts = [data]
    have = len(data)
    while have < size_bytes:
        data = os.pread(fd, size_bytes - have, offset + have)
        if not data:
            break
        parts.append(data)
        have += len(data)
    return b"".join(parts)


def truncate(fd: int, size_bytes: int) -> None:
    """Truncate the file, or extend it with zeros. Raises OSError."""
    os.ftruncate(fd, size_bytes)


def allocate(fd: int, offset: int, size_bytes: int) -> None:
    """Allocate disk space for ``size_bytes`` from ``offset``. Raises OSError."""
    os.posix_fallocate(fd, offset, size_bytes)


def sync_data(fd: int) -> None:
    """Make the file's content durable. Raises SyncFailedError."""
    _synced(os.fdatasync, fd)


def sync_file(fd: int) -> None:
    """Make the file's content and all its metadata durable. Raises SyncFailedError."""
    _synced(os.fsync, fd)


def sync_directory(path: str) -> None:
    """Make created, renamed and removed names in ``path`` durable. Raises OSError, SyncFailedError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _synced(os.fsync, fd)
    finally:
        os.close(fd)


def sync_file_system(path: str) -> bool:
    """Make everything written to the file system of ``path`` durable. Return False if the platform cannot.

    Raises OSError, SyncFailedError."""
    syncfs = getattr(_LIBC, "syncfs", None)
    if syncfs is None:
        return False
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if syncfs(fd) != 0:
            error = ctypes.get_errno()
            raise SyncFailedError(error, os.strerror(error), path)
    finally:
        os.close(fd)
    return True


def sync_what_was_left(paths: Iterable[str]) -> None:
    """Sync what an earlier process left unsynced below ``paths``. Call this before anything there is read.

    A killed process leaves unsynced writes in the page cache. The bookie would read and use them as if they were on
    disk: an index that points into a compacted log, a fence, a group of the journal. Raises OSError, SyncFailedError.
    """
    for path in {os.stat(path).st_dev: path for path in paths}.values():
        sync_file_system(path)


def replace_file(path: str, content: bytes) -> None:
    """Replace the content of ``path`` durably and atomically: a crash leaves the old or the new content, never a mix.

    Raises OSError with the old content still there, SyncFailedError.
    """
    temporary = path + ".tmp"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_at(fd, [content], 0)
        _synced(os.fsync, fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
    sync_directory(os.path.dirname(path))


def remove(path: str) -> None:
    """Remove the file; durable with the directory's next sync. Raises OSError."""
    os.remove(path)


def rename(path: str, new_path: str) -> None:
    """Rename the file, replacing a file of that name. Raises OSError."""
    os.replace(path, new_path)


def link(path: str, new_path: str) -> None:
    """Create a hard link to the file. Raises FileExistsError, OSError."""
    os.link(path, new_path)


def make_directory(path: str) -> None:
    """Create ``path`` and its missing parents. Raises OSError."""
    os.makedirs(path, exist_ok=True)


def _synced(sync: Callable[[int], None], fd: int) -> None:
    try:
        sync(fd)
    except OSError as error:
        raise SyncFailedError(error.errno, f"sync failed: {error.strerror}") from error
