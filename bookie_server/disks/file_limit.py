"""The maximum length of a file in a directory, given by the file system and ``ulimit -f``.

Index files are addressed by entry id, so this limits the entry ids that a bookie can accept. It is found by trial: a
file without a name is extended and its last bytes are written, which takes a few blocks for a moment. Python ignores
SIGXFSZ, the signal that would end a process at its limit, so exceeding the limit gives the error EFBIG.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence
from typing import Final

from bookie_server.storage.index.index import HEADER_BYTES, PAGE_BYTES, PAGE_SLOTS
from bookie_server.storage.records import MAX_ENTRY_ID

_LOG: Final = logging.getLogger(__name__)
_NAME: Final = "LIMIT.tmp"
_MOST_PAGES: Final = (MAX_ENTRY_ID + 1) // PAGE_SLOTS
_TOO_LONG: Final = (errno.EFBIG, errno.EINVAL, errno.EOVERFLOW)


def last_indexable_entry(directories: Sequence[str]) -> int:
    """The highest entry id that index files in all of ``directories`` (``current`` directories) have room for; -1 if
    one of them has room for none. Blocking.

    A directory where the trial is impossible, for example on a full disk, counts as unlimited. A limit that shows up
    later is handled then (:class:`~bookie_server.storage.entrylog.entry_limit.EntryLimit`).
    """
    last = MAX_ENTRY_ID
    for directory in {os.stat(directory).st_dev: directory for directory in directories}.values():
        try:
            pages = _most_pages(directory)
        except OSError as error:
            _LOG.warning("cannot find the maximum length of an index file in %s: %s", directory, error)
            continue
        if pages * PAGE_SLOTS - 1 < last:
            last = pages * PAGE_SLOTS - 1
            _LOG.warning(
                "index files in %s can have at most %d bytes (file system, or ulimit -f): entries with ids above %d "
                "are refused",
                directory,
                HEADER_BYTES + pages * PAGE_BYTES,
                last,
            )
    return last


def _most_pages(directory: str) -> int:
    path = os.path.join(directory, _NAME)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.remove(path)
        if _fits(fd, _MOST_PAGES):
            return _MOST_PAGES
        good, bad = 0, _MOST_PAGES
        while bad - good > 1:
            middle = (good + bad) // 2
            if _fits(fd, middle):
                good = middle
            else:
                bad = middle
        return good
    finally:
        os.close(fd)


def _fits(fd: int, pages: int) -> bool:
    size_bytes = HEADER_BYTES + pages * PAGE_BYTES
    try:
        os.ftruncate(fd, size_bytes)
        os.pwrite(fd, bytes(8), size_bytes - 8)
    except OSError as error:
        if error.errno in _TOO_LONG:
            return False
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
    return True
