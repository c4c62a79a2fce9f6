"""Checking a directory safely: a check that hangs must not hang the bookie."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_PROBE_FILE: Final = "PROBE.tmp"
_PROBE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """The file system of a directory, in bytes. ``device`` identifies the file system."""

    usable_bytes: int
    total_bytes: int
    device: int = 0

    @property
    def used(self) -> float:
        """The unusable share, from 0 to 1 (compatibility.md §5.10)."""
        return 1 - self.usable_bytes / self.total_bytes if self.total_bytes else 0.0


def check_disk(path: str, write: bool) -> DiskUsage:
    """The disk usage of directory ``path``. With ``write`` a file is written there; without room for one, nothing
    counts as usable. Blocking.

    Raises OSError if the directory is missing, cannot be used, or is mounted read-only.
    """
    device = os.stat(path).st_dev
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    found = os.statvfs(path)
    if found.f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    # Inodes and quotas can run out while bytes are left.
    has_room = (found.f_files == 0 or found.f_favail > 0) and (not write or _can_write(path))
    return DiskUsage(found.f_bavail * found.f_frsize if has_room else 0, found.f_blocks * found.f_frsize, device)


def _can_write(path: str) -> bool:
    """Whether there is room for a small file. Raises OSError for any other failure."""
    probe = os.path.join(path, _PROBE_FILE)
    try:
        fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, bytes(_PROBE_BYTES))
            os.fsync(fd)
        finally:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.remove(probe)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return False
        raise
    return True


class DiskProber:
    """Checks directories, each in its own thread, with at most one check per directory at a time."""

    def __init__(self, timeout_ms: int, look: Callable[[str, bool], DiskUsage] = check_disk) -> None:
        self._timeout_s = timeout_ms / 1000
        self._look = look
        self._under_way: set[str] = set()

    async def probe(self, path: str, *, write: bool) -> DiskUsage | OSError:
        """Return what :func:`check_disk` returns or raises; TimeoutError if the directory does not answer."""
        no_answer = TimeoutError(errno.ETIMEDOUT, "the disk does not answer", path)
        if path in self._under_way:
            return no_answer
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[DiskUsage | OSError] = loop.create_future()

        def deliver(found: DiskUsage | OSError) -> None:
            self._under_way.discard(path)
            if not answer.done():
                answer.set_result(found)

        def work() -> None:
            try:
                found: DiskUsage | OSError = self._look(path, write)
            except OSError as error:
                found = error
            # The loop may be closed before the disk answers.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(deliver, found)

        # Not an executor: at exit the interpreter would wait for its threads.
        self._under_way.add(path)
        threading.Thread(target=work, name="disk-probe", daemon=True).start()
        try:
            return await asyncio.wait_for(answer, self._timeout_s)
        except TimeoutError:
            return no_answer
