"""What a client may read from a bookie: entries, last add confirmed, which entries there are.

Entries are looked up in the write cache, then in the index, and read from memory or entry logs. What is not found and
on its way to the journal is waited for. An entry that is durable and being added again is answered as it is: a recovery
adds every entry again that it reads, and each of its reads would cost a sync. Every entry read from a log is checked;
one that fails is an I/O error, never "absent". All methods are called in the event loop; what may wait for a disk is
done in threads.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Int32s, Int64s
from bk_spark.protocol.codes import LAST_ENTRY, Code
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.entry import ENTRY_HEADER_BYTES, LAC_PACKET_HEADER
from bk_spark.protocol.errors import CorruptFileError
from bookie_server.metrics.bookie_counters import BookieCounters
from bookie_server.storage.entrylog.entry_log_reader import StoredEntries
from bookie_server.storage.files import WouldBlockError
from bookie_server.storage.index.index import PAGE_SLOTS
from bookie_server.storage.index.ledger_cache import ColdPageError, PageKey
from bookie_server.storage.journal.group_commit import Group
from bookie_server.storage.ledger_descriptors import LedgerDescriptor
from bookie_server.storage.ledger_storage import LedgerStorage
from bookie_server.storage.locations import half_and_positions
from bookie_server.storage.records import LENGTH_BYTES, MAX_ENTRY_ID, group_by_ledger

_LOG: Final = logging.getLogger(__name__)
#: Ledgers, and where in some arrays what concerns each is.
ByLedger = list[tuple[int, Int64s | slice]]

_READ_THREADS: Final = 2
#: Entries looked up at a time; bounds what one read costs the event loop.
_MAX_LOOKUP: Final = 1024
#: The same of ledgers, each of which may need an index file to be looked for.
MAX_LEDGERS: Final = 64
#: So often the pages for one lookup are loaded; if they are never there together, the event loop waits for them.
_MAX_ROUNDS: Final = 4


@dataclass(frozen=True, slots=True)
class ReadPart:
    """The outcome of the first ``len(codes)`` reads of a request. ``entries`` holds those with code OK, in order."""

    codes: Int32s
    entries: StoredEntries | None


class BookieReads:
    """Reads over one :class:`LedgerStorage`."""

    def __init__(self, storage: LedgerStorage) -> None:
        self._storage = storage
        self.counters = BookieCounters()
        self._readers = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="read")

    def close(self) -> None:
        """End the reader threads. The storage is closed by whoever opened it."""
        self._readers.shutdown()

    def descriptor(self, ledger_id: int) -> LedgerDescriptor | Code | None:
        """What is known of a ledger: None if nothing, IO_ERROR if its index file cannot be read."""
        try:
            return self._storage.descriptors.get(ledger_id)
        except (CorruptFileError, OSError) as error:
            _LOG.error("ledger %d: %s", ledger_id, error)
            return Code.IO_ERROR

    def read_now(self, ledger_id: int, entry_id: int) -> tuple[Code, Buffer] | None:
        """One entry (-1: the last), or why not, where that can be said at once; None means: ask :meth:`read`."""
        descriptor = self.descriptor(ledger_id)
        if not isinstance(descriptor, LedgerDescriptor):
            return (Code.NO_LEDGER if descriptor is None else descriptor), b""
        if entry_id == LAST_ENTRY:
            entry_id = descriptor.last_entry
        if not 0 <= entry_id <= MAX_ENTRY_ID:
            return Code.NO_ENTRY, b""
        stored = self._storage.read_cached(ledger_id, entry_id)
        if stored is not None:
            self.counters.cache_hits += 1
            self.counters.read(1, len(stored))
            return Code.OK, stored
        try:
            location = self._storage.cache.get_one(ledger_id, entry_id)
        except (OSError, ColdPageError):
            return None
        if location == 0:
            if descriptor.pending(entry_id, entry_id) is not None:
                return None
            return (Code.IO_ERROR if self._storage.entry_limit.lacks(ledger_id, entry_id) else Code.NO_ENTRY), b""
        stored = self._storage.reader.read_one(ledger_id, entry_id, location)
        if stored is None:
            return None
        self.counters.cache_misses += 1
        self.counters.read(1, len(stored))
        return Code.OK, stored

    async def read(self, ledger_ids: Int64s, entry_ids: Int64s, limit_bytes: int) -> ReadPart:
        """Read the first of the entries asked for: at least one, and as many as come to about ``limit_bytes``.

        Entry id -1 means the ledger's last entry. Entries not durable yet are waited for.
        """
        ledger_ids, entry_ids = ledger_ids[:_MAX_LOOKUP], entry_ids[:_MAX_LOOKUP]
        by_ledger = group_by_ledger(ledger_ids)
        if len(by_ledger) > MAX_LEDGERS:
            _, firsts = np.unique(ledger_ids, return_index=True)
            count = int(np.sort(firsts)[MAX_LEDGERS])
            ledger_ids, entry_ids = ledger_ids[:count], entry_ids[:count]
            by_ledger = group_by_ledger(ledger_ids)
        codes, resolved, locations = await self._locate_durable(by_ledger, entry_ids)
        present = np.flatnonzero(codes == Code.OK)
        if not len(present):
            return ReadPart(codes, None)
        if len(present) == len(codes):
            entries = await self._fetch(ledger_ids, resolved, locations, limit_bytes)
        else:
            entries = await self._fetch(ledger_ids[present], resolved[present], locations[present], limit_bytes)
        if len(entries.sizes) < len(present):
            codes = codes[: int(present[len(entries.sizes)])]  # what comes before that one is answered now
            present = present[: len(entries.sizes)]
        unreadable = entries.sizes < 0
        if unreadable.any():
            codes[present[unreadable]] = Code.IO_ERROR
            entries = StoredEntries(entries.data, entries.starts[~unreadable], entries.sizes[~unreadable])
        self.counters.read(len(entries.sizes), int(entries.sizes.sum()))
        return ReadPart(codes, entries)

    async def read_batch(
        self, ledger_id: int, first_entry_id: int, max_count: int, limit_bytes: int
    ) -> tuple[Code, list[StoredEntries]]:
        """Consecutive entries from ``first_entry_id`` (-1: the last one) on: up to ``max_count`` (0: any number),
        and no more than ``limit_bytes`` with their sizes, but at least one. An error only if the first fails."""
        first = np.array([first_entry_id], np.int64)
        by_ledger: ByLedger = [(ledger_id, slice(None))]
        codes, resolved, _ = await self._locate_durable(by_ledger, first)
        if codes[0] != Code.OK:
            return Code(int(codes[0])), []
        result: list[StoredEntries] = []
        next_id, left_bytes = int(resolved[0]), max(limit_bytes, 1)
        left_count = max_count if max_count > 0 else MAX_ENTRY_ID
        while left_count > 0 and left_bytes > 0 and next_id <= MAX_ENTRY_ID:
            # To the end of a page: what else is cold is read when it is its turn.
            asked = min(left_count, PAGE_SLOTS - next_id % PAGE_SLOTS)
            ids = np.arange(next_id, next_id + asked)
            codes, _, locations = await self._locate(by_ledger, ids)
            missing = np.flatnonzero(codes != Code.OK)
            asked = int(missing[0]) if len(missing) else asked
            if not asked:
                break
            entries = await self._fetch(np.full(asked, ledger_id), ids[:asked], locations[:asked], left_bytes)
            good = _within(entries.sizes, left_bytes, at_least_one=not result)
            if good == 0:
                break
            result.append(StoredEntries(entries.data, entries.starts[:good], entries.sizes[:good]))
            size_bytes = int(entries.sizes[:good].sum())
            self.counters.read(good, size_bytes)
            left_bytes -= size_bytes + good * LENGTH_BYTES
            left_count -= good
            next_id += good
            if good < len(entries.sizes):
                break
        return (Code.OK if result else Code.IO_ERROR), result

    async def list_entries(self, ledger_id: int) -> tuple[Code, Int64s]:
        """Ids of the ledger's entries here, ascending, those not durable yet included once they are."""
        descriptor = self.descriptor(ledger_id)
        if not isinstance(descriptor, LedgerDescriptor):
            return (Code.NO_LEDGER if descriptor is None else descriptor), np.empty(0, np.int64)
        if descriptor.group is not None:
            await _through(descriptor.group)
        try:
            return Code.OK, await self._storage.entry_ids(ledger_id)
        except OSError as error:
            _LOG.error("ledger %d: %s", ledger_id, error)
            return Code.IO_ERROR, np.empty(0, np.int64)

    async def known_lac(self, descriptor: LedgerDescriptor) -> int:
        """The highest last add confirmed that this bookie knows of; -1 if none."""
        if not descriptor.lac_loaded:
            if descriptor.explicit_lac is not None:
                _, lac = LAC_PACKET_HEADER.unpack_from(descriptor.explicit_lac)
                descriptor.last_add_confirmed = max(descriptor.last_add_confirmed, lac)
            if descriptor.last_entry >= 0:
                part = await self.read(np.array([descriptor.ledger_id]), np.array([LAST_ENTRY]), 1)
                if part.entries is not None and len(part.entries.sizes):
                    stored = part.entries.entry(0)
                    if len(stored) >= ENTRY_HEADER_BYTES:
                        (lac,) = struct.unpack_from(">q", stored, 16)
                        descriptor.last_add_confirmed = max(descriptor.last_add_confirmed, lac)
            descriptor.lac_loaded = True
        return descriptor.last_add_confirmed

    async def wait_for_lac(self, descriptor: LedgerDescriptor, above: int, timeout_ms: int) -> bool:
        """Wait until a LAC greater than ``above`` is known, or the ledger is fenced (if it was not) or removed; False
        after the timeout."""
        was_fenced = descriptor.fenced
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def look() -> None:
            ended = (descriptor.fenced and not was_fenced) or descriptor.deleting
            if (descriptor.last_add_confirmed > above or ended) and not changed.done():
                changed.set_result(None)

        descriptor.watch_lac(above, look)
        try:
            await asyncio.wait_for(changed, timeout_ms / 1000)
        except TimeoutError:
            return False
        finally:
            if descriptor.lac_watchers:
                descriptor.lac_watchers.pop(look, None)
        return True

    async def _locate_durable(self, by_ledger: ByLedger, entry_ids: Int64s) -> tuple[Int32s, Int64s, Int64s]:
        """As :meth:`_locate`, once none of those that are not found is on its way to the journal."""
        while True:
            found = await self._locate(by_ledger, entry_ids)
            group = self._pending_group(by_ledger, entry_ids, missing=found[0] == Code.NO_ENTRY)
            if group is None:
                return found
            await _through(group)

    def _pending_group(self, by_ledger: ByLedger, entry_ids: Int64s, missing: npt.NDArray[np.bool_]) -> Group | None:
        """The group to wait for before these entries, of which some are ``missing``, may be said to be absent."""
        if not missing.any():
            return None
        for ledger_id, which in by_ledger:
            descriptor = self.descriptor(ledger_id)
            if isinstance(descriptor, LedgerDescriptor) and descriptor.group is not None:
                ids = entry_ids[which][missing[which]]
                group = descriptor.pending(int(ids.min()), int(ids.max())) if len(ids) else None
                if group is not None:
                    return group
        return None

    async def _locate(self, by_ledger: ByLedger, entry_ids: Int64s) -> tuple[Int32s, Int64s, Int64s]:
        """(codes, entry ids with -1 replaced by the last entry's, locations). Nothing is awaited after the last
        look, so what is said to be in memory is."""
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
        """The same, but for pages that are to be loaded: these are put into ``cold``; none with ``may_wait``."""
        codes = np.zeros(len(entry_ids), np.int32)
        locations = np.zeros(len(entry_ids), np.int64)
        resolved = entry_ids
        for ledger_id, which in by_ledger:
            descriptor = self.descriptor(ledger_id)
            if not isinstance(descriptor, LedgerDescriptor):
                codes[which] = Code.NO_LEDGER if descriptor is None else descriptor
                continue
            lacks_some = self._storage.entry_limit.lacks_some(ledger_id)
            if descriptor.last_entry < 0 and not descriptor.deleting and not lacks_some:
                codes[which] = Code.NO_ENTRY  # nothing durable is here: no need to look for an index file
                continue
            ids = entry_ids[which]
            if int(ids.min()) < 0 or int(ids.max()) > MAX_ENTRY_ID:
                ids = np.where(ids == LAST_ENTRY, descriptor.last_entry, ids)
                if resolved is entry_ids:
                    resolved = entry_ids.copy()
                resolved[which] = ids
            sane = (ids >= 0) & (ids <= MAX_ENTRY_ID)
            try:
                if ledger_id in unreadable:
                    raise OSError(errno.EIO, "a page of its index file cannot be read")
                found = self._storage.locate(ledger_id, np.where(sane, ids, 0), may_wait=may_wait)
            except ColdPageError as error:
                cold.update(error.keys)
                continue
            except OSError as error:
                _LOG.error("ledger %d: %s", ledger_id, error)
                codes[which] = Code.IO_ERROR
                continue
            found = np.where(sane, found, 0)
            locations[which] = found
            codes[which] = np.where(found == 0, np.int32(Code.NO_ENTRY), np.int32(Code.OK))
            if lacks_some:
                left_out = (found == 0) & sane & (ids >= self._storage.entry_limit.first_lacking(ledger_id))
                codes[which] = np.where(left_out, np.int32(Code.IO_ERROR), codes[which])
        return codes, resolved, locations

    async def _fetch(self, ledger_ids: Int64s, entry_ids: Int64s, locations: Int64s, limit_bytes: int) -> StoredEntries:
        """The first of the entries, as far as they are all in memory, or all in entry logs."""
        cached = locations < 0
        others = np.flatnonzero(cached != cached[0])
        count = int(others[0]) if len(others) else len(locations)
        if cached[0]:
            half, positions = half_and_positions(locations[:count])
            cache = self._storage.write_cache.flushing if half else self._storage.write_cache.active
            if cache is None:
                raise AssertionError("the half of the write cache is gone")
            fetched = cache.fetch(positions, limit_bytes)
            self.counters.cache_hits += len(fetched.sizes)
            return fetched
        reader = self._storage.reader
        ledger_ids, entry_ids, locations = ledger_ids[:count], entry_ids[:count], locations[:count]
        try:
            entries = reader.read(ledger_ids, entry_ids, locations, limit_bytes, may_wait=False)
        except WouldBlockError:
            entries = await asyncio.get_running_loop().run_in_executor(
                self._readers, lambda: reader.read(ledger_ids, entry_ids, locations, limit_bytes, may_wait=True)
            )
        self.counters.cache_misses += len(entries.sizes)
        if (entries.sizes < 0).any():
            return await self._fetch_moved(ledger_ids, entry_ids, locations, entries)
        return entries

    async def _fetch_moved(
        self, ledger_ids: Int64s, entry_ids: Int64s, locations: Int64s, entries: StoredEntries
    ) -> StoredEntries:
        """Some could not be read. One that compaction, or a repeated add, has given another place meanwhile is looked
        for there: up to it they are given as they are."""
        first = int(np.flatnonzero(entries.sizes < 0)[0])
        if first:
            return StoredEntries(entries.data, entries.starts[:first], entries.sizes[:first])
        ledger_id, entry_id = ledger_ids[:1], entry_ids[:1]
        codes, _, moved = await self._locate([(int(ledger_id[0]), slice(None))], entry_id)
        one = StoredEntries(entries.data, entries.starts[:1], entries.sizes[:1])
        if codes[0] != Code.OK or moved[0] == locations[0]:
            return one
        return await self._fetch(ledger_id, entry_id, moved, 1)


def _within(sizes: Int64s, limit_bytes: int, *, at_least_one: bool) -> int:
    """How many of the first entries are readable and fit into ``limit_bytes`` together with their lengths."""
    bad = np.flatnonzero(sizes < 0)
    readable = int(bad[0]) if len(bad) else len(sizes)
    fitting = int(np.searchsorted(np.cumsum(sizes[:readable] + LENGTH_BYTES), limit_bytes, side="right"))
    return min(readable, max(fitting, 1)) if at_least_one else fitting


async def _through(group: Group) -> None:
    done = asyncio.get_running_loop().create_future()
    group.done.append(lambda ok: None if done.done() else done.set_result(ok))
    await done
