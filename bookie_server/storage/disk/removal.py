"""Removal of large files without a wait for others.

Freeing the blocks of a large file is one change of the file system, and the syncs of other files wait for it: 28 ms
for 256 MB on ext4, 68 ms for 1 GB (``benchmarks/large_removals.py``). So the name goes first. Then a thread frees the
blocks in steps, from the end. After a crash the file system does the rest.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from bookie_server.storage.disk import files

#: Syncs wait some 2 ms for a step of this size, 5 ms for one of 16 MiB.
_STEP_BYTES: Final = 4 << 20
#: For the syncs that waited.
_PAUSE_S: Final = 0.002
#: Files that wait for the thread. Further ones are freed in one step.
_MOST_WAITING: Final = 16


class Removal:
    """Removes large files. Its thread begins with the first of them. Thread-safe."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="free-blocks")
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._waiting = 0

    def unlink(self, path: str) -> int | None:
        """Remove the file's name durably. Return its descriptor, for :meth:`free`, or None if there is none left to
        open it with. Raises OSError, SyncFailedError."""
        try:
            fd = files.open_file(path)
        except OSError:
            fd = None
        try:
            files.remove(path)
            # Otherwise a power cut could bring back the name of a file that has lost its end.
            files.sync_directory(os.path.dirname(path))
        except BaseException:
            if fd is not None:
                os.close(fd)
            raise
        return fd

    def free(self, fd: int | None, *, is_open: bool = False) -> Future[None] | None:
        """Free the blocks of an unlinked file. Return the end of that, or None if the thread has nothing to do: others
        have the file open (``is_open``), it has another name, or too many wait."""
        if fd is None:
            return None
        with self._lock:
            waits = not is_open and os.fstat(fd).st_nlink == 0 and self._waiting < _MOST_WAITING
            self._waiting += waits
        if waits:
            return self._thread.submit(self._free, fd)
        os.close(fd)
        return None

    def close(self) -> None:
        """End the thread. What it has not freed is freed at once."""
        self._stopped.set()
        self._thread.shutdown()

    def _free(self, fd: int) -> None:
        try:
            with contextlib.suppress(OSError):
                size_bytes = os.fstat(fd).st_size
                while size_bytes > _STEP_BYTES and not self._stopped.is_set():
                    size_bytes -= _STEP_BYTES
                    files.truncate(fd, size_bytes)
                    time.sleep(_PAUSE_S)
        finally:
            os.close(fd)
            with self._lock:
                self._waiting -= 1
