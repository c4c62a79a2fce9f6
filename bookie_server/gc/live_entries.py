"""The live entries of an entry log, which survive its compaction, in windows sorted by ledger and entry.

A scan of the entry log finds the candidates. If the entry log is damaged, the index finds them, and each is checked in
the entry log. In both cases an entry is live if the index points to this place.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable, Generator
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bookie_server.gc.collected_storage import CollectedStorage
from bookie_server.gc.entry_log_usage import among
from bookie_server.storage.disk.files import read_at
from bookie_server.storage.entrylog.entry_log import OFFSET_BITS, OFFSET_MASK
from bookie_server.storage.entrylog.entry_log_scan import EntryLogScan, FoundEntries, joined
from bookie_server.storage.index.index_pointers import pointers_into
from bookie_server.storage.records import LENGTH_BYTES, MAX_RECORD_BYTES, MIN_RECORD_BYTES, group_by_ledger

#: Entries sorted at a time. Bounds the memory: 32 bytes each, and as much for sorting.
WINDOW_ENTRIES: Final = 1024 * 1024
#: Number of ledgers handled in one turn of the event loop.
_LEDGERS_AT_ONCE: Final = 32
_HEAD: Final = struct.Struct(">iqq")


class UnsoundLogError(Exception):
    """The entry log is damaged, so a scan may miss live entries."""


class UnreadableEntryError(Exception):
    """The entry is not at the place to which the index points."""


def scanned_windows(path: str, ledgers: Int64s, check_stop: Callable[[], None]) -> Generator[FoundEntries, None, None]:
    """All entries of ``ledgers`` in the entry log, by a scan. Blocking; ``check_stop`` is called between steps and may
    raise.

    Raises UnsoundLogError, after the last window, and OSError.
    """
    scan = EntryLogScan(path)
    parts: list[FoundEntries] = []
    count = 0
    try:
        while not scan.at_end:
            check_stop()
            found = scan.step()
            kept = found.select(np.flatnonzero(among(found.ledger_ids, ledgers)))
            parts.append(kept)
            count += len(kept)
            if count >= WINDOW_ENTRIES:
                yield _sorted(joined(parts))
                parts, count = [], 0
        if scan.problem:
            raise UnsoundLogError(scan.problem)
    finally:
        scan.close()
    if count:
        yield _sorted(joined(parts))


def indexed_windows(
    entry_log_id: int,
    path: str,
    ledgers: Int64s,
    index_path: Callable[[int], str | None],
    check_stop: Callable[[], None],
) -> Generator[FoundEntries, None, None]:
    """All entries of ``ledgers`` (ascending) in the entry log, by the index files. Each one is checked. Blocking.

    Raises UnreadableEntryError, OSError.
    """
    parts: list[FoundEntries] = []
    count = 0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for ledger_id in ledgers.tolist():
            for entry_ids, locations in pointers_into(entry_log_id, index_path(ledger_id)):
                check_stop()
                parts.append(_checked(fd, path, ledger_id, entry_ids, locations & OFFSET_MASK))
                count += len(entry_ids)
                if count >= WINDOW_ENTRIES:
                    yield joined(parts)
                    parts, count = [], 0
    finally:
        os.close(fd)
    if count:
        yield joined(parts)


async def live_only(storage: CollectedStorage, entry_log_id: int, window: FoundEntries) -> FoundEntries:
    """The entries of ``window`` (sorted) to which the index points. Raises OSError."""
    live = np.zeros(len(window), np.bool_)
    here = entry_log_id << OFFSET_BITS | window.offsets
    for done, (ledger_id, which) in enumerate(group_by_ledger(window.ledger_ids)):
        if done % _LEDGERS_AT_ONCE == 0:
            await asyncio.sleep(0)
        entry_ids, places = np.unique(window.entry_ids[which], return_inverse=True)
        locations = await storage.locations_of(ledger_id, entry_ids)
        live[which] = locations[places] == here[which]
    return window.select(np.flatnonzero(live))


async def move_pointers(storage: CollectedStorage, old_id: int, new_id: int, entries: FoundEntries) -> int:
    """Point the index to ``entries`` in entry log ``new_id`` where it points into ``old_id``. Return how many changed.

    A pointer into any other entry log is newer and stays. Raises OSError.
    """
    moved = 0
    entries = _sorted(entries)
    for done, (ledger_id, which) in enumerate(group_by_ledger(entries.ledger_ids)):
        if done % _LEDGERS_AT_ONCE == 0:
            await asyncio.sleep(0)
        entry_ids = entries.entry_ids[which]
        old = await storage.locations_of(ledger_id, entry_ids)
        there = np.flatnonzero((old >> OFFSET_BITS == old_id) & (old != 0))
        if len(there):
            new = new_id << OFFSET_BITS | entries.offsets[which][there]
            moved += await storage.replace_locations(ledger_id, entry_ids[there], old[there], new)
    return moved


def _sorted(entries: FoundEntries) -> FoundEntries:
    return entries.select(np.lexsort((entries.offsets, entries.entry_ids, entries.ledger_ids)))


def _checked(fd: int, path: str, ledger_id: int, entry_ids: Int64s, offsets: Int64s) -> FoundEntries:
    sizes = np.empty(len(entry_ids), np.int64)
    end = os.fstat(fd).st_size
    for i, (entry_id, offset) in enumerate(zip(entry_ids.tolist(), offsets.tolist(), strict=True)):
        head = read_at(fd, _HEAD.size, max(0, offset - LENGTH_BYTES))
        size, found_ledger, found_entry = _HEAD.unpack(head) if len(head) == _HEAD.size else (-1, -1, -1)
        sizes[i] = size
        whole = MIN_RECORD_BYTES <= size <= MAX_RECORD_BYTES and offset + size <= end
        if (found_ledger, found_entry) != (ledger_id, entry_id) or not whole:
            raise UnreadableEntryError(f"entry {entry_id} of ledger {ledger_id} is not at offset {offset} of {path}")
    return FoundEntries(np.full(len(entry_ids), ledger_id, np.int64), entry_ids, offsets, sizes)
