"""Small file operations that every storage module needs: whole writes, atomic replacement, directory syncs."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Final

Buffer = bytes | bytearray | memoryview

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
#: Most buffers one writev takes (IOV_MAX on Linux is 1024).
_MAX_BUFFERS: Final = 1000


def write_at(fd: int, buffers: Sequence[Buffer], offset: int) -> int:
    """Write all ``buffers`` one after another from ``offset`` on; the offset after the last byte. Raises OSError."""
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
    """Up to ``size_bytes`` bytes from ``offset``; fewer only at the end of the file."""
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


def sync_directory(path: str) -> None:
    """Make created, renamed and removed names in ``path`` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file_system(path: str) -> bool:
    """Make everything written to the file system of ``path`` durable; False where the platform cannot.

    Raises OSError."""
    syncfs = getattr(_LIBC, "syncfs", None)
    if syncfs is None:
        return False
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if syncfs(fd) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), path)
    finally:
        os.close(fd)
    return True


def replace_file(path: str, content: bytes) -> None:
    """Put ``content`` at ``path``, durably and at once: a crash leaves the old or the new, never a mixture."""
    temporary = path + ".tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_at(fd, [content], 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
    sync_directory(os.path.dirname(path))
