"""Which entries a bookie has of its ledgers in limbo, and the end of limbo. Event loop only."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Bools, Int64s
from bk_spark.protocol.errors import CorruptFileError
from bookie_server.integrity.limbo_check import LimboEnded, OwnFound, StateFound
from bookie_server.storage.entrylog.entry_log import OFFSET_BITS, OFFSET_MASK
from bookie_server.storage.ledger_storage import LedgerStorage
from bookie_server.storage.records import MIN_RECORD_BYTES
from bookie_server.storage.write_cache import locations_of

_LOG: Final = logging.getLogger(__name__)


class OwnLedgers:
    """The ledgers of one storage."""

    def __init__(self, storage: LedgerStorage) -> None:
        self._storage = storage

    async def in_limbo(self) -> list[int]:
        """Return the ledgers in limbo, ascending. Raises OSError."""
        return await asyncio.to_thread(self._in_limbo)

    async def state(self, ledger_id: int) -> StateFound:
        """Return what is known about the ledger. Raises CorruptFileError, OSError."""
        descriptor = self._storage.descriptors.get(ledger_id)
        if descriptor is None:
            return StateFound(False, False)
        return StateFound(descriptor.limbo, descriptor.fenced)

    async def read(self, ledger_id: int, first: int, last: int) -> OwnFound:
        """Return which of the entries ``first`` … ``last`` can be read. Raises OSError."""
        if first > last:
            return OwnFound(np.empty(0, np.int64))
        # Memory first: what leaves it meanwhile is in an entry log then. The active half last: its copies are newer.
        held: list[tuple[Int64s, Int64s]] = []
        for half in (self._storage.write_cache.flushing, self._storage.write_cache.active):
            if half is not None and len(ids := half.entry_ids(ledger_id, first, last)):
                positions = half.get(ledger_id, ids)
                assert positions is not None
                held.append((ids, positions))

        def with_logs() -> Int64s:
            entry_ids: Int64s = np.arange(first, last + 1, dtype=np.int64)
            positions = np.full(len(entry_ids), -1, np.int64)
            for ids, found in held:
                positions[ids - first] = found
            return entry_ids[(positions >= 0) | self._in_logs(ledger_id, entry_ids, locations_of(positions))]

        return OwnFound(await asyncio.to_thread(with_logs))

    async def end_limbo(self, ledger_id: int) -> LimboEnded:
        """The ledger has everything that it should have. Durable with the next flush. Raises CorruptFileError,
        OSError."""
        descriptor = self._storage.descriptors.get(ledger_id)
        if descriptor is not None and descriptor.limbo:
            descriptor.end_limbo()
        return LimboEnded()

    def _in_limbo(self) -> list[int]:
        found = []
        for ledger_id in self._storage.index.ledger_ids().tolist():
            try:
                header = self._storage.index.read_header(ledger_id)
            except CorruptFileError as error:
                _LOG.error("ledger %d cannot be checked: %s", ledger_id, error)
                continue
            if header is not None and header.limbo:
                found.append(ledger_id)
        return found

    def _in_logs(self, ledger_id: int, entry_ids: Int64s, located: Int64s) -> Bools:
        """Which entries begin within an entry log, at ``located`` or where the index says.

        An index may have outlived a lost ledger directory, and a log may have become shorter. Their bytes are not read:
        that would take as long as reading all of the disks.
        """
        locations = np.where(located != 0, located, self._storage.index.read_slots(ledger_id, entry_ids))
        log_ids, which = np.unique(locations >> OFFSET_BITS, return_inverse=True)
        ends = np.array([self._end(log_id) for log_id in log_ids.tolist()], np.int64)
        there: Bools = (locations != 0) & ((locations & OFFSET_MASK) + MIN_RECORD_BYTES <= ends[which])
        return there

    def _end(self, entry_log_id: int) -> int:
        """The size of an entry log; 0 if it does not exist."""
        try:
            return os.stat(self._storage.reader.path(entry_log_id)).st_size
        except FileNotFoundError:
            return 0
