"""Where the records go that a replay of the journals finds: into the write cache, as those of appends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bookie_server.storage.entry_lookup import EntryLookup
from bookie_server.storage.entrylog.entry_log import OFFSET_BITS, file_name
from bookie_server.storage.entrylog.entry_log_reader import EntryLogReader
from bookie_server.storage.entrylog.entry_log_writer import EntryLogIds
from bookie_server.storage.flush import Flusher
from bookie_server.storage.flush_loop import FlushLoop
from bookie_server.storage.journal.journal_writer import Append
from bookie_server.storage.journal.located_record import LocatedRecord
from bookie_server.storage.ledger_descriptors import LedgerDescriptor, LedgerDescriptors
from bookie_server.storage.records import LedgerPart, Records
from bookie_server.storage.write_cache import WriteCache

_LOG: Final = logging.getLogger(__name__)


class ReplayedRecords:
    """Takes the records of a replay. Blocking; before appends begin.

    Parameters
    ----------
    descriptors
        The descriptors of the ledgers.
    write_cache
        Where entries go. When it is full, it is flushed.
    apply
        Puts entries into it.
    lookup, reader, entry_log_ids
        Those of the storage.
    flusher, flush_loop
        Told of entry logs that have entries already, and called when the write cache is full.
    """

    def __init__(
        self,
        descriptors: LedgerDescriptors,
        write_cache: WriteCache,
        apply: Callable[[Append], None],
        lookup: EntryLookup,
        reader: EntryLogReader,
        entry_log_ids: EntryLogIds,
        flusher: Flusher,
        flush_loop: FlushLoop,
    ) -> None:
        self.descriptors = descriptors
        self._write_cache = write_cache
        self._apply = apply
        self._lookup = lookup
        self._reader = reader
        self._entry_log_ids = entry_log_ids
        self._flusher = flusher
        self._flush_loop = flush_loop
        #: Entry logs with large entries, until the marks have passed them.
        self.logs: set[int] = set()

    def replay(self, records: Records, parts: list[tuple[LedgerDescriptor, LedgerPart]]) -> None:
        """Store records from a journal without journaling them again."""
        self._apply(Append(records, parts))
        self._make_room()

    def replay_located(self, entries: LocatedRecord, parts: list[tuple[LedgerDescriptor, Int64s]]) -> None:
        """Note where large entries are, each part the positions of one ledger's.

        If a log is missing, its directory was lost, or the marks are older than they were. What the index knows then
        stays. All else is an I/O error for readers, never absent; in limbo it is unknown anyway, and copied from
        elsewhere if it was acknowledged. Raises OSError.
        """
        logs = np.unique(entries.locations >> OFFSET_BITS).tolist()
        self._entry_log_ids.skip_to(max(logs))
        missing = [entry_log_id for entry_log_id in logs if not self._reader.has(entry_log_id)]
        if missing:
            _LOG.error("the journal names entry logs that are not there: %s", ", ".join(map(file_name, missing)))
        self.logs.update(logs)
        self._flusher.note_left_logs(logs)
        half = self._write_cache.active
        for descriptor, which in parts:
            ids, locations = entries.entry_ids[which], entries.locations[which]
            if missing:
                known = self._lookup.locate(descriptor.ledger_id, ids, may_wait=True) != 0
                wanted = ~(np.isin(locations >> OFFSET_BITS, missing) & (known | descriptor.limbo))
                ids, locations = ids[wanted], locations[wanted]
            if len(ids):
                half.put_located(descriptor.ledger_id, ids, locations)
                descriptor.last_entry = max(descriptor.last_entry, int(ids.max()))
            lac = int(entries.last_adds_confirmed[which].max())
            descriptor.last_add_confirmed = max(descriptor.last_add_confirmed, lac)
        self._make_room()

    def _make_room(self) -> None:
        if self._write_cache.is_full and self._flush_loop.trouble is None:
            self._flush_loop.flush_blocking()
