"""Finding and fetching entries: in the write cache, then through the index in the entry logs.

If an entry is not found but is being written to the journal, the read waits for it. A durable entry that is being added
again is answered at once: recovery adds every entry that it reads, so waiting would cost each of its reads a sync.
Every entry read from an entry log is checked. A failed check is an I/O error, never "absent". Everything that may wait
for a disk runs in threads.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Int32s, Int64s
from bk_spark.protocol.codes import LAST_ENTRY, Code
from bk_spark.protocol.errors import CorruptFileError
from bookie_server.metrics.bookie_counters import BookieCounters
from bookie_server.storage.disk.files import WouldBlockError
from bookie_server.storage.entrylog.entry_log_reader import (
    MOST_AT_ONCE_BYTES,
    MOST_AT_ONCE_TAKEN_BYTES,
    Room,
    StoredEntries,
)
from bookie_server.storage.index.index import PAGE_SLOTS
from bookie_server.storage.index.ledger_cache import ColdPageError, PageKey
from bookie_server.storage.ledger_descriptors import LedgerDescriptor, PendingGroup
from bookie_server.storage.ledger_storage import LedgerStorage
from bookie_server.storage.locations import half_and_positions
from bookie_server.storage.records import LENGTH_BYTES, MAX_ENTRY_ID

_LOG: Final = logging.getLogger(__name__)
#: Each ledger with the positions of its entries in the arrays of a request.
ByLedger = list[tuple[int, Int64s | slice]]

_READ_THREADS: Final = 2
#: Number of entries looked up at a time; limits the time that one read takes in the event loop.
MAX_LOOKUP: Final = 1024
#: Number of ledgers looked up at a time; each may need a search for its index file.
MAX_LEDGERS: Final = 64
#: Entries of a batch read that are looked up at a time, after the first.
_MOST_BATCH_LOOKUP: Final = 8 * PAGE_SLOTS
#: Attempts to load the pages for one lookup. If they are never in memory together, the event loop blocks for them.
_MAX_ROUNDS: Final = 4


@dataclass(frozen=True, slots=True)
class ReadPart:
    """The outcome of the first ``len(codes)`` reads of a request. ``entries`` holds those with code OK, in order."""

    codes: Int32s
    entries: StoredEntries | None


class EntryReader:
    """Finds and fetches entries over one :class:`LedgerStorage`. Event loop only.

    ``counters`` counts where entries came from, and the entries of batch reads.
    """

    def __init__(self, storage: LedgerStorage, counters: BookieCounters) -> None:
        self._storage = storage
        self._counters = counters
        self._readers = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="read")

    def close(self) -> None:
        """End the reader threads. The owner of the storage closes it."""
        self._readers.shutdown()

    def descriptor(self, ledger_id: int) -> LedgerDescriptor | Code | None:
        """The ledger's descriptor; None if the ledger is unknown, IO_ERROR if its index file cannot be read."""
        try:
            return self._storage.descriptors.get(ledger_id)
        except (CorruptFileError, OSError) as error:
            _LOG.error("ledger %d: %s", ledger_id, error)
            return Code.IO_ERROR

    async def look_up(self, ledger_ids: Iterable[int]) -> None:
        """Search for index files in a thread. Then :meth:`descriptor` needs no search for the ledgers that have none.

        A search waits while a flush creates a file in the same directory, and in the event loop everybody would wait.
        """
        descriptors = self._storage.descriptors
        flushes = descriptors.flushes
        unknown = [ledger_id for ledger_id in ledger_ids if descriptors.peek(ledger_id) is None]
        absent = await asyncio.get_running_loop().run_in_executor(self._readers, self._storage.index.absent, unknown)
        descriptors.note_absent(absent, flushes)

    async def locate_durable(self, by_ledger: ByLedger, entry_ids: Int64s) -> tuple[Int32s, Int64s, Int64s]:
        """Same as :meth:`locate`, after waiting for missing entries that are being written to the journal."""
        while True:
            found = await self.locate(by_ledger, entry_ids)
            missing = found[0] == Code.NO_ENTRY
            group = self._pending_group(by_ledger, entry_ids, missing) if missing.any() else None
            if group is None:
                return found
            await durable(group)

    def _pending_group(
        self, by_ledger: ByLedger, entry_ids: Int64s, missing: npt.NDArray[np.bool_]
    ) -> PendingGroup | None:
        """The group to wait for before the ``missing`` entries may be reported as absent."""
        for ledger_id, which in by_ledger:
            descriptor = self.descriptor(ledger_id)
            if isinstance(descriptor, LedgerDescriptor) and descriptor.group is not None:
                ids = entry_ids[which][missing[which]]
                group = descriptor.pending(int(ids.min()), int(ids.max())) if len(ids) else None
                if group is not None:
                    return group
        return None

    async def locate(self, by_ledger: ByLedger, entry_ids: Int64s) -> tuple[Int32s, Int64s, Int64s]:
        """Codes, entry ids (-1 replaced by the last entry's id) and locations.

        Nothing is awaited after the last lookup, so locations in memory are still valid.
        """
        unreadable: set[int] = set()
        for may_wait in [False] * _MAX_ROUNDS + [True]:
            cold: set[PageKey] = set()
            found = self._look_up(by_ledger, entry_ids, unreadable, cold, may_wait)
            if not cold:
                break
            loads = [self._storage.cache.load(key, self._readers) for key in cold]
            for key, outcome in zip(cold, await asyncio.gather(*loads, return_exceptions=True), strict=True):
                if isinstance(outcome, OSError):
                    _LOG.error("ledger %d: %s", key[0], outcome)
                    unreadable.add(key[0])
                elif outcome is not None:
                    raise outcome
        return found

    def _look_up(
        self, by_ledger: ByLedger, entry_ids: Int64s, unreadable: set[int], cold: set[PageKey], may_wait: bool
    ) -> tuple[Int32s, Int64s, Int64s]:
        """One attempt of :meth:`locate`. Adds pages that must be loaded first to ``cold``; none with ``may_wait``."""
        codes = np.zeros(len(entry_ids), np.int32)
        locations = np.zeros(len(entry_ids), np.int64)
        resolved = entry_ids
        for ledger_id, which in by_ledger:
            descriptor = self.descriptor(ledger_id)
            if not isinstance(descriptor, LedgerDescriptor):
                codes[which] = Code.NO_LEDGER if descriptor is None else descriptor
                continue
            absent = Code.UNKNOWN_LEDGER_STATE if descriptor.limbo else Code.NO_ENTRY
            lacks_some = self._storage.entry_limit.lacks_some(ledger_id)
            if descriptor.last_entry < 0 and not descriptor.deleting and not lacks_some:
                codes[which] = absent  # nothing of it is durable here, so it has no index file to search
                continue
            ids = entry_ids[which]
            if int(ids.min()) < 0 or int(ids.max()) > MAX_ENTRY_ID:
                if not descriptor.limbo:  # in limbo nobody knows which entry is the last one
                    ids = np.where(ids == LAST_ENTRY, descriptor.last_entry, ids)
                if resolved is entry_ids:
                    resolved = entry_ids.copy()
                resolved[which] = ids
            sane = (ids >= 0) & (ids <= MAX_ENTRY_ID)
            try:
                if ledger_id in unreadable:
                    raise OSError(errno.EIO, "a page of its index file cannot be read")
                found = self._storage.lookup.locate(ledger_id, np.where(sane, ids, 0), may_wait=may_wait)
            except ColdPageError as error:
                cold.update(error.keys)
                continue
            except OSError as error:
                _LOG.error("ledger %d: %s", ledger_id, error)
                codes[which] = Code.IO_ERROR
                continue
            found = np.where(sane, found, 0)
            locations[which] = found
            codes[which] = np.where(found == 0, np.int32(absent), np.int32(Code.OK))
            if lacks_some:
                left_out = (found == 0) & sane & (ids >= self._storage.entry_limit.first_lacking(ledger_id))
                codes[which] = np.where(left_out, np.int32(Code.IO_ERROR), codes[which])
        return codes, resolved, locations

    async def fetch(
        self,
        ledger_ids: Int64s,
        entry_ids: Int64s,
        locations: Int64s,
        limit_bytes: int,
        *,
        taken: bool = False,
        room: Room | None = None,
    ) -> StoredEntries:
        """Fetch the first entries, up to the first switch between memory and entry logs. ``taken``: see
        :meth:`Bookie.read`. ``room``: see :meth:`EntryLogReader.read`."""
        cached = locations < 0
        others = np.flatnonzero(cached != cached[0])
        count = int(others[0]) if len(others) else len(locations)
        if cached[0]:
            half, positions = half_and_positions(locations[:count])
            cache = self._storage.write_cache.flushing if half else self._storage.write_cache.active
            if cache is None:
                raise AssertionError("that half of the write cache was dropped")
            fetched = cache.fetch(positions, limit_bytes)
            self._counters.cache_hits += len(fetched.sizes)
            return fetched
        reader = self._storage.reader
        ledger_ids, entry_ids, locations = ledger_ids[:count], entry_ids[:count], locations[:count]
        try:
            at_once_bytes = MOST_AT_ONCE_TAKEN_BYTES if taken else MOST_AT_ONCE_BYTES
            entries = reader.read(ledger_ids, entry_ids, locations, limit_bytes, at_once_bytes=at_once_bytes, room=room)
        except WouldBlockError:
            entries = await asyncio.get_running_loop().run_in_executor(
                self._readers,
                lambda: reader.read(ledger_ids, entry_ids, locations, limit_bytes, at_once_bytes=None, room=room),
            )
        self._counters.cache_misses += len(entries.sizes)
        if (entries.sizes < 0).any():
            return await self._fetch_moved(ledger_ids, entry_ids, locations, entries)
        return entries

    async def read_batch(
        self,
        ledger_id: int,
        first_entry_id: int,
        max_count: int,
        limit_bytes: int,
        *,
        taken: bool,
        room: Room | None,
    ) -> tuple[Code, list[StoredEntries]]:
        """See :meth:`Bookie.read_batch`."""
        by_ledger: ByLedger = [(ledger_id, slice(None))]
        codes, resolved, _ = await self.locate_durable(by_ledger, np.array([first_entry_id], np.int64))
        if codes[0] != Code.OK:
            return Code(int(codes[0])), []
        result: list[StoredEntries] = []
        next_id, left_bytes = int(resolved[0]), max(limit_bytes, 1)
        left_count = max_count if max_count > 0 else MAX_ENTRY_ID
        # Up to the end of an index page. Then as many as will fit, by the size of those that were found.
        most = PAGE_SLOTS - next_id % PAGE_SLOTS
        while min(left_count, left_bytes, most) > 0 and next_id <= MAX_ENTRY_ID:
            asked = min(left_count, most)
            ids = np.arange(next_id, next_id + asked)
            codes, _, locations = await self.locate(by_ledger, ids)
            missing = np.flatnonzero(codes != Code.OK)
            if len(missing) and not (asked := int(missing[0])):
                break
            entries = await self.fetch(
                np.full(asked, ledger_id), ids[:asked], locations[:asked], left_bytes, taken=taken, room=room
            )
            good = entries.fitting(left_bytes, at_least_one=not result)
            if good == 0:
                break
            result.append(StoredEntries(entries.data, entries.starts[:good], entries.sizes[:good]))
            size_bytes = int(entries.sizes[:good].sum())
            self._counters.read(good, size_bytes)
            left_bytes -= size_bytes + good * LENGTH_BYTES
            left_count -= good
            next_id += good
            # Where some lie elsewhere, the others are looked up again: not many of them, then.
            most = _MOST_BATCH_LOOKUP if good == asked else PAGE_SLOTS
            most = min(most, left_bytes * good // (size_bytes + good * LENGTH_BYTES))
            if good < len(entries.sizes):
                break
        return (Code.OK if result else Code.IO_ERROR), result

    async def _fetch_moved(
        self, ledger_ids: Int64s, entry_ids: Int64s, locations: Int64s, entries: StoredEntries
    ) -> StoredEntries:
        """Handle entries that could not be read: compaction or a repeated add may have moved them meanwhile.

        The entries before the first such entry are returned unchanged. If it is the first, it is looked up again.
        """
        first = int(np.flatnonzero(entries.sizes < 0)[0])
        if first:
            return StoredEntries(entries.data, entries.starts[:first], entries.sizes[:first])
        ledger_id, entry_id = ledger_ids[:1], entry_ids[:1]
        codes, _, moved = await self.locate([(int(ledger_id[0]), slice(None))], entry_id)
        one = StoredEntries(entries.data, entries.starts[:1], entries.sizes[:1])
        if codes[0] != Code.OK or moved[0] == locations[0]:
            return one
        return await self.fetch(ledger_id, entry_id, moved, 1)


async def durable(group: PendingGroup) -> None:
    """Wait until the group is decided."""
    done = asyncio.get_running_loop().create_future()
    group.done.append(lambda ok: None if done.done() else done.set_result(ok))
    await done
