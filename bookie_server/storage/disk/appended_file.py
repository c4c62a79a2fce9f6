"""Appending to a file: through the page cache, or directly to the disk from aligned memory.

Direct writes (``O_DIRECT``) begin and end at blocks of the file, in memory that begins at a block. So a
:class:`DirectFile` gathers what is appended in memory of its own, which it uses again and again. That copy takes the
place of the kernel's copy into the page cache. The last block is mostly incomplete: it is filled up with zeros, and
written again with what follows. So the file holds the same bytes at the same places either way, apart from those zeros.

Written bytes are durable after a sync of the file, however they were written.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Bytes
from bookie_server.storage.disk import files
from bookie_server.storage.disk.files import BLOCK_BYTES, Buffer

_LOG: Final = logging.getLogger(__name__)
#: Memory of a DirectFile. Larger writes are hardly faster.
MEMORY_BYTES: Final = 4 * 1024 * 1024
#: The most that may be asked from :meth:`DirectFile.room`.
MAX_ROOM_BYTES: Final = MEMORY_BYTES - BLOCK_BYTES
#: Smaller buffers are copied without letting other threads run: taking turns would cost more than the copy.
_LONG_COPY_BYTES: Final = 64 * 1024


class BufferedFile:
    """Appends to the file ``fd`` from ``position`` on through the page cache."""

    def __init__(self, fd: int, position: int) -> None:
        self._fd = fd
        self._room: memoryview | None = None
        #: Where the next byte goes.
        self.position = position

    def put(self, buffers: Sequence[Buffer]) -> None:
        """Append ``buffers``. After an OSError the file may hold any part of them."""
        room, self._room = self._room, None
        if room is not None:
            buffers = [room, *buffers]
            self.position -= len(room)
        self.position = files.write_at(self._fd, buffers, self.position)

    def room(self, size_bytes: int) -> Bytes:
        """Append ``size_bytes`` bytes, which the caller fills in before the next call."""
        if self._room is not None:
            self.put([])
        memory = np.empty(size_bytes, np.uint8)
        self._room = memory.data
        self.position += size_bytes
        return memory

    def finish(self) -> None:
        """Write everything that was appended. Raises OSError."""
        if self._room is not None:
            self.put([])

    def write_blocks(self) -> None:
        """Write what can be written before more is appended. Raises OSError."""
        self.finish()

    def back_to(self, position: int) -> None:
        """Continue at ``position``, where :meth:`finish` was called last: the caller has cut off what followed."""
        self._room = None
        self.position = position


class AlignedMemory:
    """Memory for direct writes. One file at a time may use it."""

    def __init__(self) -> None:
        memory = mmap.mmap(-1, MEMORY_BYTES)
        memory.madvise(mmap.MADV_HUGEPAGE)  # the kernel takes it to the disk in few pieces
        self.array: Bytes = np.frombuffer(memory, np.uint8)
        self.view = self.array.data


class DirectFile:
    """The same as :class:`BufferedFile`, without the page cache. ``fd`` was opened for direct writes; the file begins
    at ``position`` 0, or at a later block."""

    def __init__(self, fd: int, memory: AlignedMemory, position: int = 0) -> None:
        self._fd = fd
        self._array = memory.array
        self._view = memory.view
        #: Where in the file the memory begins, and how much of the memory is used.
        self._base = position
        self._used = 0
        #: Bytes of the incomplete block at the last :meth:`finish`.
        self._last_block = b""

    @property
    def position(self) -> int:
        """Where the next byte goes."""
        return self._base + self._used

    def put(self, buffers: Sequence[Buffer]) -> None:
        """Append ``buffers``. After an OSError the file may hold any part of them."""
        for buffer in buffers:
            size = len(buffer)
            used = self._used
            if used + size <= MEMORY_BYTES and size < _LONG_COPY_BYTES:
                self._view[used : used + size] = buffer
                self._used = used + size
            else:
                self._put_long(np.frombuffer(buffer, np.uint8))

    def room(self, size_bytes: int) -> Bytes:
        """Append ``size_bytes`` bytes (at most MAX_ROOM_BYTES), which the caller fills in before the next call."""
        if self._used + size_bytes > MEMORY_BYTES:
            self._write(self._used // BLOCK_BYTES * BLOCK_BYTES)
        first = self._used
        self._used = first + size_bytes
        return self._array[first : self._used]

    def finish(self) -> None:
        """Write everything that was appended. Raises OSError."""
        used = self._used
        end = -(-used // BLOCK_BYTES) * BLOCK_BYTES
        self._array[used:end] = 0
        self._write(end)
        self._last_block = bytes(self._view[: self._used])

    def write_blocks(self) -> None:
        """Write the complete blocks. Raises OSError."""
        self._write(self._used // BLOCK_BYTES * BLOCK_BYTES)

    def back_to(self, position: int) -> None:
        """Continue at ``position``, where :meth:`finish` was called last: the caller has cut off what followed."""
        self._used = len(self._last_block)
        self._base = position - self._used
        self._view[: self._used] = self._last_block

    def _put_long(self, data: Bytes) -> None:
        done = 0
        while done < len(data):
            if self._used == MEMORY_BYTES:
                self._write(MEMORY_BYTES)
            size = min(len(data) - done, MEMORY_BYTES - self._used)
            self._array[self._used : self._used + size] = data[done : done + size]
            self._used += size
            done += size

    def _write(self, end: int) -> None:
        """Write the memory up to ``end``, whole blocks. An incomplete last block stays in memory."""
        if end:
            files.write_at(self._fd, [self._view[:end]], self._base)
        whole = self._used // BLOCK_BYTES * BLOCK_BYTES
        rest = self._used - whole
        if whole:
            self._array[:rest] = self._array[whole : self._used]
        self._base += whole
        self._used = rest


AppendedFile = BufferedFile | DirectFile


def choose_direct(directories: Iterable[str], wanted: bool, what: str) -> frozenset[str]:
    """Return those of ``directories`` whose file systems can write directly, none if that is not ``wanted``. Log that
    ``what`` is written so in them."""
    if not wanted:
        return frozenset()
    direct = frozenset(directory for directory in directories if files.takes_direct_writes(directory))
    for directory in directories:
        if directory in direct:
            _LOG.info("%s in %s are written directly to the disk", what, directory)
        else:
            _LOG.info(
                "%s in %s are written through the page cache: its file system takes no direct writes", what, directory
            )
    return direct
