"""A real file system of a few megabytes, for tests that fill it."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.machine import cannot_run

_CHUNK_BYTES = 64 * 1024


class SmallDisk:
    """A mounted tmpfs at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self, leave_bytes: int = 0) -> None:
        """Fill all space except ``leave_bytes``."""
        with open(self._filler, "ab", buffering=0) as file:
            while self.free_bytes > leave_bytes:
                try:
                    file.write(bytes(min(_CHUNK_BYTES, self.free_bytes - leave_bytes)))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    return

    def free(self) -> None:
        """Release what :meth:`fill` took."""
        self._filler.unlink(missing_ok=True)

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize


@contextlib.contextmanager
def small_disk(path: Path, size_mib: int) -> Iterator[SmallDisk]:
    """Mount one. If this process may not, the test cannot run."""
    path.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(path)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        cannot_run(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
