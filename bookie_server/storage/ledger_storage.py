"""The complete storage of a bookie: journals, write cache, entry logs, indexes, flushes, and replay at start.

Everything is called in the event loop unless stated otherwise. The path of an append: pending group of the ledger's
journal → the journal's thread writes and syncs it → back in the loop, its entries go into the write cache and the
``done`` callbacks run. So only durable entries can be looked up. Flushes (flush.py) write the write cache to disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from bk_spark.protocol.errors import StorageError
from bookie_server.config.config import BookieConfig
from bookie_server.disks.open_files import share_open_files
from bookie_server.storage.deleted_ledgers import DeletedLedgers
from bookie_server.storage.disk import files
from bookie_server.storage.disk.appended_file import choose_direct
from bookie_server.storage.disk.directories import LedgerDirectories
from bookie_server.storage.disk.removal import Removal
from bookie_server.storage.entry_lookup import EntryLookup
from bookie_server.storage.entrylog.arrival_log import ArrivalLog
from bookie_server.storage.entrylog.entry_limit import EntryLimit
from bookie_server.storage.entrylog.entry_log_reader import EntryLogReader
from bookie_server.storage.entrylog.entry_log_writer import EntryLogIds, EntryLogWriter
from bookie_server.storage.flush import Flusher
from bookie_server.storage.flush_loop import FlushLoop
from bookie_server.storage.index.index import IndexFiles
from bookie_server.storage.index.ledger_cache import LedgerCache
from bookie_server.storage.journal.group_timing import JournalGroupStats
from bookie_server.storage.journal.journal_writer import Append, DoneCallback, JournalGroup
from bookie_server.storage.journal.journals import Journals
from bookie_server.storage.journal.log_mark import LogMark, read_marks
from bookie_server.storage.journal.replay import replay_journals
from bookie_server.storage.ledger_descriptors import LedgerDescriptor, LedgerDescriptors
from bookie_server.storage.records import LENGTH_BYTES, MAX_ENTRY_ID, LedgerPart, Records
from bookie_server.storage.replayed_records import ReplayedRecords
from bookie_server.storage.write_cache import WriteCache

_LOG: Final = logging.getLogger(__name__)
#: New ledgers without index files. More would make each flush long, and each takes memory.
_MOST_UNWRITTEN: Final = 2048


class LedgerStorage:
    """The storage of a bookie. Opens the directories and replays the journals (blocking).

    Then call :meth:`start` in a running event loop. Raises StorageError, OSError.

    Parameters
    ----------
    config
        The bookie's configuration.
    directories
        Directories of entry logs and index files (``current`` ones).
    journal_directories
        Directories of journals (``current`` ones), one journal each.
    on_failure
        Called once, in the loop, when data may be lost. Nothing more is accepted, and the process should end.
    on_trouble
        Called with a source ("journal", "storage") and the reason when writing fails; with None when it works again.
    on_group
        Called for each written group, with the number of its journal and its figures.
    find_last_entry
        Returns the highest entry id that all index files have room for. Blocking.
    """

    def __init__(
        self,
        config: BookieConfig,
        directories: LedgerDirectories,
        journal_directories: Sequence[str],
        *,
        on_failure: Callable[[Exception], None],
        on_trouble: Callable[[str, str | None], None],
        on_group: Callable[[int, JournalGroupStats], None] | None = None,
        find_last_entry: Callable[[], int] = lambda: MAX_ENTRY_ID,
    ) -> None:
        open_files = share_open_files()
        self.directories = directories
        self._on_failure = on_failure
        self._failed = False
        self.deleted = DeletedLedgers()
        self.index = IndexFiles(directories.index_paths, directories.writable_index, open_files.index_files)
        self.descriptors = LedgerDescriptors(self.index, config.descriptor_limit, self._has_changes)
        self.cache = LedgerCache(self.index, config.index_cache_bytes)
        self.write_cache = WriteCache(config.write_cache_bytes)
        self.reader = EntryLogReader(directories.paths, open_files.entry_logs)
        self.entry_log_ids = EntryLogIds(directories)
        log_settings = (
            directories,
            self.entry_log_ids,
            config.entry_log_size_limit_bytes,
            choose_direct(directories.paths, config.entry_log_direct_io, "entry logs"),
        )
        self.entry_log_writer = EntryLogWriter(*log_settings)
        # Without syncs, a power cut may lose an entry in a log and keep the journal's record of it.
        self._large_bytes = config.large_entry_bytes if config.journal_sync_data else 0
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self.removal = Removal()
        self._started = False
        #: Called when a group of a journal is decided, and everybody who waited for it was told.
        self.on_answered: Callable[[], None] = lambda: None

        files.sync_what_was_left((*journal_directories, *directories.paths, *directories.index_paths))
        self.entry_limit = EntryLimit(find_last_entry, directories.paths)
        self.lookup = EntryLookup(self.write_cache, self.cache, self.index, self.entry_limit)
        marks = read_marks(directories.paths, len(journal_directories))
        self._journals: Journals | None = None
        self.flusher = Flusher(
            directories=directories,
            write_cache=self.write_cache,
            cache=self.cache,
            descriptors=self.descriptors,
            index=self.index,
            entry_log_writer=self.entry_log_writer,
            entry_limit=self.entry_limit,
            last_marks=marks,
            sync_journals=self._sync_journals,
            durable_marks=lambda: marks if self._journals is None else self._journals.durable_marks(),
            remove_journals=self._remove_journals,
            release_logs=self._release_logs,
            executor=self.executor,
        )
        self._flush_loop = FlushLoop(
            self.flusher, config.flush_interval_ms, self.fail, lambda reason: on_trouble("storage", reason)
        )
        self._replayed = ReplayedRecords(
            self.descriptors,
            self.write_cache,
            self._apply,
            self.lookup,
            self.reader,
            self.entry_log_ids,
            self.flusher,
            self._flush_loop,
        )
        self.descriptors.replaying = True
        ends = replay_journals(journal_directories, marks, self._replayed)
        self.descriptors.replaying = False
        self._journals = Journals(
            config,
            journal_directories,
            ends,
            new_arrival_log=lambda: ArrivalLog(*log_settings),
            on_failure=self.fail,
            on_write_error=lambda error: on_trouble("journal", f"a journal cannot be written: {error}"),
            on_group=on_group,
        )
        self._flush_loop.flush_blocking()

    # --- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start accepting appends. Call in the running event loop."""
        self._started = True
        self.journals.start(asyncio.get_running_loop(), self._group_through)
        self._flush_loop.start()

    async def close(self) -> None:
        """Write what is pending, flush, and close the files. No append may follow.

        Raises OSError if the last flush failed: the journals keep the rest for the next start.
        """
        loop = asyncio.get_running_loop()
        indexed = False
        try:
            await self._flush_loop.stop()
            if self._started:
                await loop.run_in_executor(None, self.journals.stop)
                await asyncio.sleep(0)  # callbacks of the last groups were queued before stop() returned
            if not self._failed:
                await self.flusher.run()
                await loop.run_in_executor(self.executor, self.entry_log_writer.end)
                await loop.run_in_executor(self.executor, self.journals.end_arrival_logs)
                indexed = True
        finally:
            self.executor.shutdown()
            self.removal.close()
            self.journals.close(indexed=indexed)
            self.entry_log_writer.close()
            self.index.close()
            self.reader.close()

    @property
    def journals(self) -> Journals:
        """The journals. Raises StorageError during the replay."""
        if self._journals is None:
            raise StorageError("the journals are still being replayed")
        return self._journals

    @property
    def failed(self) -> bool:
        """Whether ``on_failure`` was called."""
        return self._failed

    @property
    def last_marks(self) -> list[LogMark]:
        """The position before which each journal is no longer needed."""
        return list(self.flusher.last_marks)

    async def checkpoint(self) -> None:
        """Make everything acknowledged so far durable outside the journals, and advance the marks.

        Raises OSError if it cannot be written now; it stays in memory and in the journals. Any other error stops the
        bookie.
        """
        await self._flush_loop.flush()

    # --- appending ---------------------------------------------------------------------------------

    @property
    def outstanding_bytes(self) -> int:
        """Bytes accepted but not durable yet, plus the bytes by which the write cache exceeds its limit."""
        return self.journals.outstanding_bytes + self.write_cache.excess_bytes

    @property
    def is_stuck(self) -> bool:
        """Whether memory is full and cannot be written to disk: no more entries can be accepted."""
        return self._flush_loop.trouble is not None and self.write_cache.is_full

    @property
    def new_ledgers_wait(self) -> bool:
        """Whether so many new ledgers lack index files that a flush was requested. False while flushes fail: then
        nothing should wait for one."""
        if self.descriptors.unwritten < _MOST_UNWRITTEN or self._flush_loop.trouble is not None:
            return False
        self._flush_loop.request(hurry=True)
        return True

    def append(
        self,
        records: Records,
        parts: list[tuple[LedgerDescriptor, LedgerPart]],
        done: DoneCallback,
    ) -> None:
        """Store ``records``; ``parts`` maps them to ledgers. ``done(ok)`` is called once the append is decided."""
        if len(self.journals) > 1:
            parts_of: dict[int, list[tuple[LedgerDescriptor, LedgerPart]]] = {}
            for descriptor, part in parts:
                parts_of.setdefault(self.journals.number_of(part.ledger_id), []).append((descriptor, part))
            if len(parts_of) > 1:
                self._append_to_several(records, list(parts_of.values()), done)
                return
        self._append_to_one(records, parts, done)

    def _append_to_one(
        self,
        records: Records,
        parts: list[tuple[LedgerDescriptor, LedgerPart]],
        done: DoneCallback,
    ) -> None:
        large = 0 < self._large_bytes <= records.shortest_bytes

        def fill(group: JournalGroup) -> None:
            for descriptor, part in parts:
                group.add_key(descriptor)
                _note_pending(descriptor, group, part)
            group.add_append(Append(records, parts), large=large)
            group.done.append(done)

        self.journals.of(parts[0][0].ledger_id).add(fill)

    def _append_to_several(
        self,
        records: Records,
        parts_of: list[list[tuple[LedgerDescriptor, LedgerPart]]],
        done: DoneCallback,
    ) -> None:
        left, good = len(parts_of), True

        def one_done(ok: bool) -> None:
            nonlocal left, good
            left -= 1
            good = good and ok
            if not left:
                done(good)

        for parts in parts_of:
            wanted = np.zeros(len(records), np.bool_)
            descriptors = {}
            for descriptor, part in parts:
                wanted[part.which] = True
                descriptors[descriptor.ledger_id] = descriptor
            some = records.select(wanted)
            self._append_to_one(some, [(descriptors[part.ledger_id], part) for part in some.by_ledger()], one_done)

    def append_journal(
        self,
        descriptor: LedgerDescriptor,
        record: bytes,
        done: DoneCallback,
        undo: Callable[[], None] | None = None,
        *,
        urgent: bool = True,
    ) -> JournalGroup:
        """Journal a fence or explicit LAC record of a ledger. ``done(ok)`` is called once it is decided; if it failed,
        ``undo()`` is called first. If it is not ``urgent``, it waits for others (group_timing.py)."""

        def fill(group: JournalGroup) -> None:
            group.add_key(descriptor)
            group.add_journal(record)
            group.done.append(done)
            if undo is not None:
                group.undo.append(undo)

        return self.journals.of(descriptor.ledger_id).add(fill, urgent=urgent)

    def barrier(self, done: DoneCallback, ledger_id: int | None = None) -> None:
        """Call ``done(ok)`` once everything appended before (to the ledger's journal, if one is given) is decided; at
        once if nothing is outstanding."""
        if not self.journals.barrier(done, ledger_id):
            done(not self._failed)

    def _remove_journals(self, marks: Sequence[LogMark]) -> None:
        if self._journals is not None:
            self._journals.remove_below(marks, self.removal)

    async def _sync_journals(self) -> None:
        """Make durable what the journals hold of applied groups. Raises SyncFailedError."""
        outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        asked = self.journals.sync_written(lambda ok: None if outcome.done() else outcome.set_result(ok))
        if asked and not await outcome:
            raise files.SyncFailedError("a journal could not be synced before its entries went into the index")

    def unindexed_logs(self) -> set[int]:
        """Entry logs with large entries that the marks have not passed: a crash now would look for them there."""
        written = set() if self._journals is None else self._journals.unindexed_logs()
        return written | self._replayed.logs

    def _release_logs(self, entry_log_ids: Collection[int]) -> None:
        self._replayed.logs.difference_update(entry_log_ids)
        if self._journals is not None:
            self._journals.release_logs(entry_log_ids)

    # --- callbacks of groups -----------------------------------------------------------------------

    def _group_through(self, group: JournalGroup, error: Exception | None) -> None:
        self.flusher.note_left_logs(group.left_logs)
        for append in group.appends:
            if error is None:
                self._apply(append)
            for descriptor, _ in append.parts:
                if descriptor.group is group:
                    descriptor.group = None
        for done in group.done:
            try:
                done(error is None)
            except Exception:
                _LOG.exception("cannot send an answer")
        self.on_answered()
        if self.write_cache.is_full:
            self._flush_loop.request()

    def _apply(self, append: Append) -> None:
        records, half = append.records, self.write_cache.active
        first = 0
        if append.locations is None:
            first = half.store(records.data) + LENGTH_BYTES
            positions = records.offsets[:-1] + first if len(records) > 1 else None
        else:
            positions = -1 - append.locations
        for descriptor, part in append.parts:
            if positions is None:
                half.put_one(part.ledger_id, part.first_entry_id, first)
            elif part.count == 1:
                at = 0 if isinstance(part.which, slice) else part.which[0]
                half.put_one(part.ledger_id, part.first_entry_id, int(positions[at]))
            else:
                half.put(part.ledger_id, records.entry_ids[part.which], positions[part.which])
            descriptor.last_entry = max(descriptor.last_entry, part.last_entry_id)
            if part.last_add_confirmed > descriptor.last_add_confirmed:
                descriptor.last_add_confirmed = part.last_add_confirmed
                descriptor.tell_watchers()

    def _has_changes(self, ledger_id: int) -> bool:
        return ledger_id in self.write_cache or self.flusher.holds(ledger_id)

    def fail(self, error: Exception) -> None:
        """Stop all flushing: written data may be lost."""
        if not self._failed:
            self._failed = True
            self._flush_loop.end()
            self._on_failure(error)


def _note_pending(descriptor: LedgerDescriptor, group: JournalGroup, part: LedgerPart) -> None:
    if descriptor.group is None:
        descriptor.pending_first, descriptor.pending_last = part.first_entry_id, part.last_entry_id
    else:
        descriptor.pending_first = min(descriptor.pending_first, part.first_entry_id)
        descriptor.pending_last = max(descriptor.pending_last, part.last_entry_id)
    descriptor.group = group
