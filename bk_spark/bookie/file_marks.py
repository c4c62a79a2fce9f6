"""Marks of files, to see that one has changed."""

from __future__ import annotations

import os

FileMark = tuple[int, int, int, int]


def file_mark(path: str) -> FileMark | None:
    """Return what changes when a file is written or replaced, also behind a link, or its owner or mode is changed.
    None if there is no file, or it cannot be seen."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size
