"""Writing the journal: one group of records at a time, sealed, synced, rolled by size. Format: journal.py.

Used by the commit thread only, except :attr:`JournalWriter.start`, which is fixed at creation.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from bookie_server.storage import journal
from bookie_server.storage.files import Buffer, sync_directory, write_at
from bookie_server.storage.journal import LogMark

#: Synced bytes are dropped from the page cache in steps of this size: nobody reads a journal back while it grows.
_DROP_STEP_BYTES: Final = 16 * 1024 * 1024


class JournalWriter:
    """Appends groups to journals in ``directory``, beginning a new file with id ``journal_id``.

    ``max_file_bytes``: a file is left after the write that takes it beyond. ``preallocate_bytes``: space is
    allocated in such steps. Raises OSError; after one the writer must not be used again.
    """

    def __init__(
        self,
        directory: str,
        journal_id: int,
        *,
        max_file_bytes: int,
        preallocate_bytes: int,
        sync_data: bool = True,
    ) -> None:
        self._directory = directory
        self._max_file_bytes = max_file_bytes
        self._preallocate_bytes = preallocate_bytes
        self._sync_data = sync_data
        self._journal_id = journal_id
        self._fd = -1
        self._position = 0
        self._allocated = 0
        self._dropped = 0
        self._open(journal_id)
        self.start = LogMark(journal_id, self._position)

    def write(self, buffers: Sequence[Buffer], size_bytes: int) -> LogMark:
        """Append ``buffers`` (``size_bytes`` in all) as one group and make them durable; where the next group
        begins."""
        if self._position > self._max_file_bytes:
            self.close()
            self._open(self._journal_id + 1)
        padding = journal.group_end(self._position, buffers, size_bytes)
        end = self._position + size_bytes + len(padding)
        self._allocate(end)
        write_at(self._fd, [*buffers, padding], self._position)
        if self._sync_data:
            os.fdatasync(self._fd)
        self._position = end
        if end - self._dropped >= _DROP_STEP_BYTES:
            os.posix_fadvise(self._fd, self._dropped, end - self._dropped, os.POSIX_FADV_DONTNEED)
            self._dropped = end
        return LogMark(self._journal_id, end)

    def close(self) -> None:
        """Sync and close the present file; space allocated and not used is given back."""
        if self._fd < 0:
            return
        try:
            os.ftruncate(self._fd, self._position)
            os.fsync(self._fd)
        finally:
            os.close(self._fd)
            self._fd = -1

    def _open(self, journal_id: int) -> None:
        path = os.path.join(self._directory, journal.file_name(journal_id))
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._journal_id = journal_id
        self._allocated = self._dropped = 0
        self._allocate(journal.HEADER_BYTES)
        self._position = write_at(self._fd, [journal.file_header()], 0)
        os.fsync(self._fd)
        sync_directory(self._directory)

    def _allocate(self, end: int) -> None:
        """Allocate space up to ``end`` at least, in whole steps, so that syncs need not touch metadata."""
        if end <= self._allocated:
            return
        steps = -(-(end - self._allocated) // self._preallocate_bytes)
        size = steps * self._preallocate_bytes
        os.posix_fallocate(self._fd, self._allocated, size)
        self._allocated += size
