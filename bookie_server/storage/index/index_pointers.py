"""Finding which entries the index files locate in given entry logs. Bypasses the cached pages. Format: index.py.

For a complete, checkpointed log the result never lacks an entry: its last pointer was already in a file, and pointers
to it are only removed. Used when a log itself cannot tell what it holds.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bookie_server.storage.disk.files import read_at
from bookie_server.storage.entrylog.entry_log import OFFSET_BITS
from bookie_server.storage.index.index import HEADER_BYTES, PAGE_DTYPE

_CHUNK_BYTES: Final = 512 * 1024


def ledgers_pointing(
    entry_log_ids: set[int], ledger_ids: Int64s, index_path: Callable[[int], str | None], check_stop: Callable[[], None]
) -> dict[int, Int64s]:
    """For each of ``entry_log_ids``, those of ``ledger_ids`` whose index has an entry in it. Blocking; opens every
    ledger's file. Raises OSError if one cannot be read, and whatever ``check_stop`` raises."""
    wanted = np.array(sorted(entry_log_ids), np.int64)
    found: dict[int, list[int]] = {entry_log_id: [] for entry_log_id in entry_log_ids}
    for ledger_id in ledger_ids.tolist():
        check_stop()
        logs = [np.unique(slots >> OFFSET_BITS) for _, slots in _pages(index_path(ledger_id))]
        if logs:
            for entry_log_id in np.intersect1d(np.concatenate(logs), wanted).tolist():
                found[entry_log_id].append(ledger_id)
    return {entry_log_id: np.array(ledgers, np.int64) for entry_log_id, ledgers in found.items()}


def highest_log_id(index_path: str | None, limit: int) -> int:
    """The highest id of an entry log, up to ``limit``, that a ledger's file names; -1 if there is none. Raises
    OSError."""
    highest = -1
    for _, slots in _pages(index_path):
        log_ids = slots[slots != 0] >> OFFSET_BITS
        highest = max(highest, int(log_ids[log_ids <= limit].max(initial=-1)))
    return highest


def pointers_into(entry_log_id: int, index_path: str | None) -> Iterator[tuple[Int64s, Int64s]]:
    """(entry ids, locations) of a ledger's entries in the log, in parts, ascending. Raises OSError."""
    for first, slots in _pages(index_path):
        which = np.flatnonzero(slots >> OFFSET_BITS == entry_log_id)
        # Log 0 begins with its header, so a location is never 0.
        which = which[slots[which] != 0]
        if len(which):
            yield which + first, slots[which]


def _pages(path: str | None) -> Iterator[tuple[int, Int64s]]:
    """(first entry id, locations) of the parts of the file that are not holes."""
    if path is None:
        return
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # the ledger was deleted in the meantime
    try:
        position = HEADER_BYTES
        while True:
            position = _next_data(fd, position)
            data = read_at(fd, _CHUNK_BYTES, position) if position >= 0 else b""
            count = len(data) // 8
            if not count:
                return
            slots = np.frombuffer(data, PAGE_DTYPE, count).astype(np.int64)
            if slots.any():
                yield (position - HEADER_BYTES) // 8, slots
            position += 8 * count
    finally:
        os.close(fd)


def _next_data(fd: int, position: int) -> int:
    """Offset of the next slot outside a hole; -1 at the end."""
    try:
        found = os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return -1
        raise
    return max(position, found // 8 * 8)
