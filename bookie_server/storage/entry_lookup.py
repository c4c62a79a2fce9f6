"""Finding entries: in the active half of the write cache, then in the flushing half, then through the index.

In this order the newest copy of an entry wins. A half has an entry's bytes, or its location in an entry log. Event loop
only.
"""

from __future__ import annotations

import asyncio
import errno

import numpy as np

from bk_spark.protocol.arrays import Int64s, sorted_distinct
from bookie_server.storage.entrylog.entry_limit import EntryLimit
from bookie_server.storage.index.index import IndexFiles
from bookie_server.storage.index.ledger_cache import LedgerCache
from bookie_server.storage.locations import in_memory
from bookie_server.storage.write_cache import WriteCache, locations_of


class EntryLookup:
    """Finds entries in the parts of a storage."""

    def __init__(self, write_cache: WriteCache, cache: LedgerCache, index: IndexFiles, entry_limit: EntryLimit) -> None:
        self._write_cache = write_cache
        self._cache = cache
        self._index = index
        self._entry_limit = entry_limit

    def locate(self, ledger_id: int, entry_ids: Int64s, *, may_wait: bool = False) -> Int64s:
        """Locations of the entries: in an entry log (> 0), in memory (< 0, see locations.py), absent (0). Entry ids
        must not be negative. Raises OSError; ColdPageError only with ``may_wait=False``."""
        halves = [(0, self._write_cache.active)]
        if self._write_cache.flushing is not None:
            halves.append((1, self._write_cache.flushing))
        result: Int64s | None = None
        for number, half in halves:
            positions = half.get(ledger_id, entry_ids)
            if positions is None:
                continue
            found = np.where(positions >= 0, in_memory(number, positions), locations_of(positions))
            result = found if result is None else np.where(result == 0, found, result)
            if (result != 0).all():
                return result
        if result is None:
            return self._cache.get(ledger_id, entry_ids, may_wait=may_wait)
        missing = np.flatnonzero(result == 0)
        result[missing] = self._cache.get(ledger_id, entry_ids[missing], may_wait=may_wait)
        return result

    def read_cached(self, ledger_id: int, entry_id: int) -> memoryview | None:
        """The entry, if it is in the write cache."""
        for half in (self._write_cache.active, self._write_cache.flushing):
            if half is not None:
                position = half.get_one(ledger_id, entry_id)
                if position != -1:
                    return half.fetch_one(position) if position >= 0 else None
        return None

    def location_of(self, ledger_id: int, entry_id: int) -> int:
        """Location in an entry log of an entry that :meth:`read_cached` does not find; 0 if absent. Raises OSError,
        ColdPageError."""
        for half in (self._write_cache.active, self._write_cache.flushing):
            if half is not None:
                position = half.get_one(ledger_id, entry_id)
                if position < -1:
                    return -1 - position
        return self._cache.get_one(ledger_id, entry_id)

    async def entry_ids(self, ledger_id: int) -> Int64s:
        """Ids of all entries of the ledger, ascending. Raises OSError."""
        if self._entry_limit.lacks_some(ledger_id):
            raise OSError(errno.EFBIG, f"the index of ledger {ledger_id} has no room for all of its entries")
        # Memory first: an entry that leaves it while the file is read may be written to a part that was read already.
        parts = [self._write_cache.active.entry_ids(ledger_id)]
        if self._write_cache.flushing is not None:
            parts.append(self._write_cache.flushing.entry_ids(ledger_id))

        def with_file() -> Int64s:
            return sorted_distinct(np.concatenate((*parts, self._index.entry_ids(ledger_id))))

        return await asyncio.to_thread(with_file)
