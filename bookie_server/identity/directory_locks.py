"""Locks that give a bookie's directories to one process at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Sequence

from bk_spark.protocol.errors import StorageError
from bookie_server.storage.disk import files


class DirectoryLocks:
    """Locks the directories against a second process. The locks end with this process."""

    def __init__(self, directories: Sequence[str]) -> None:
        self._directories = list(dict.fromkeys(os.path.realpath(directory) for directory in directories))
        self._fds: list[int] = []
        self._made: list[str] = []

    def acquire(self) -> None:
        """Durably create missing directories and lock all.

        Raises StorageError naming the directory that is in use or cannot be created; SyncFailedError."""
        for directory in self._directories:
            try:
                self._make(directory)
                fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except files.SyncFailedError:
                raise
            except OSError as error:
                raise StorageError(f"cannot use directory {directory}: {error.strerror}") from error
            self._fds.append(fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StorageError(
                    f"directory {directory} is in use by another bookie process, or by bkctl, which reads it"
                ) from error

    def release(self, *, remove_made: bool = False) -> None:
        """Release the locks. With ``remove_made``, also remove directories created here, if they are empty."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        if remove_made:
            for directory in reversed(self._made):
                with contextlib.suppress(OSError):
                    os.rmdir(directory)

    def _make(self, directory: str) -> None:
        missing = []
        at = directory
        while not os.path.isdir(at):
            if os.path.lexists(at):
                raise NotADirectoryError(errno.ENOTDIR, f"{at} is not a directory")
            missing.append(at)
            at = os.path.dirname(at)
        for at in reversed(missing):
            os.mkdir(at)
            self._made.append(at)
            files.sync_directory(os.path.dirname(at))
