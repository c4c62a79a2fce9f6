"""A bounded cache of open files by id, safe to use from several threads."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator


class FdCache:
    """Keeps up to ``limit`` descriptors open and closes the least recently used, but never one in use. If the system
    has no descriptor left, an unused one is closed for the new one.

    ``open_file`` opens the file of an id (and may raise OSError).
    """

    def __init__(self, limit: int, open_file: Callable[[int], int]) -> None:
        self._limit = limit
        self._open_file = open_file
        self._lock = threading.Lock()
        self._fds: dict[int, int] = {}
        #: Number of users by descriptor. Not by id: after a discard the id may get another descriptor.
        self._users: dict[int, int] = {}
        self._discarded: set[int] = set()

    @contextlib.contextmanager
    def borrow(self, key: int) -> Iterator[int]:
        """The descriptor of ``key``, which stays open within the ``with`` block."""
        with self._lock:
            fd = self._fds.pop(key, -1)
            if fd < 0:
                fd = self._open(key)
            self._fds[key] = fd  # now the most recently used
            self._users[fd] = self._users.get(fd, 0) + 1
            if len(self._fds) > self._limit:
                self._close_one()
        try:
            yield fd
        finally:
            with self._lock:
                users = self._users[fd] - 1
                if users:
                    self._users[fd] = users
                else:
                    del self._users[fd]
                    if fd in self._discarded:
                        self._discarded.remove(fd)
                        os.close(fd)

    def discard(self, key: int) -> bool:
        """Close the descriptor of ``key``, once its last user is done: its file was removed. Return whether it has no
        user."""
        with self._lock:
            fd = self._fds.pop(key, -1)
            if fd in self._users:
                self._discarded.add(fd)
                return False
            if fd >= 0:
                os.close(fd)
            return True

    def close(self) -> None:
        """Close all descriptors that are not in use."""
        with self._lock:
            for key in [key for key, fd in self._fds.items() if fd not in self._users]:
                os.close(self._fds.pop(key))

    def _open(self, key: int) -> int:
        try:
            return self._open_file(key)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._close_one():
                raise
            return self._open_file(key)

    def _close_one(self) -> bool:
        for key, fd in self._fds.items():
            if fd not in self._users:
                os.close(self._fds.pop(key))
                return True
        return False
