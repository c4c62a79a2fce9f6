"""Marks of files, to see that one has changed."""

from __future__ import annotations

import os


def file_mark(path: str) -> tuple[int, int, int] | None:
    """Return what changes when a file is written or replaced, also behind a link. None: there is none to see."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
