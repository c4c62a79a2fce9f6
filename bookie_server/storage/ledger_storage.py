"""The storage of a bookie as one thing: journal, entry logs, indexes, checkpoints, and replay at start.

Everything is called in the event loop unless it says otherwise. An append goes: place in the entry log given →
pending group → commit thread writes journal and entry log and syncs the journal → back in the loop the index
is set and the ``done`` callbacks run. So what can be looked up is durable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.errors import CorruptFileError, StorageError
from bookie_server.storage import journal
from bookie_server.storage.checkpoint import Checkpointer, read_last_mark
from bookie_server.storage.entry_log import (
    OFFSET_BITS,
    EntryLogPositions,
    EntryLogWriter,
    LogOperation,
    LogWrite,
    next_log_id,
)
from bookie_server.storage.entry_log_reader import EntryLogReader
from bookie_server.storage.group_commit import Append, DoneCallback, Group, GroupCommit
from bookie_server.storage.handles import Handles, LedgerHandle
from bookie_server.storage.index import IndexFiles
from bookie_server.storage.journal import LogMark
from bookie_server.storage.journal_writer import JournalWriter
from bookie_server.storage.ledger_cache import LedgerCache
from bookie_server.storage.records import LENGTH_BYTES, LedgerPart, Records
from bookie_server.storage.replay import replay_journals

_LOG: Final = logging.getLogger(__name__)
#: Entry logs are synced in the background after so many bytes, so that a checkpoint finds little to sync.
_BACKGROUND_SYNC_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """``journal_directory`` and ``ledger_directory`` are the ``current`` directories. Sizes in bytes."""

    journal_directory: str
    ledger_directory: str
    journal_max_bytes: int = 2048 * 1024 * 1024
    journal_preallocate_bytes: int = 16 * 1024 * 1024
    journal_max_backups: int = 5
    journal_sync_data: bool = True
    log_size_limit_bytes: int = 1024 * 1024 * 1024
    index_cache_bytes: int = 64 * 1024 * 1024
    handle_limit: int = 20_000
    flush_interval_ms: int = 10_000


class LedgerStorage:
    """Opens the directories and replays the journal (blocking); then :meth:`start` in a running event loop.

    ``on_failure`` is called once, in the loop, when a write failed: nothing more will be accepted and the
    process should end. Raises StorageError, OSError.
    """

    def __init__(self, config: StorageConfig, on_failure: Callable[[Exception], None]) -> None:
        self._config = config
        self._on_failure = on_failure
        self._failed = False
        self._files = IndexFiles(config.ledger_directory)
        self.handles = Handles(self._files, config.handle_limit, self._has_changes)
        self.cache = LedgerCache(self._files, config.index_cache_bytes, self.handles.take_header)
        self.reader = EntryLogReader(config.ledger_directory)
        self._positions = EntryLogPositions(next_log_id(config.ledger_directory), config.log_size_limit_bytes)
        self._logs = EntryLogWriter(config.ledger_directory)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self._log_sync: asyncio.Future[None] | None = None
        self._flusher: asyncio.Task[None] | None = None
        self._commit: GroupCommit | None = None
        #: End of what is durable in the entry logs, as a location; earlier logs are complete.
        self.written_to = self._positions.log_id << OFFSET_BITS

        self.handles.replaying = True
        last_id = replay_journals(config.journal_directory, read_last_mark(config.ledger_directory), self)
        self.handles.replaying = False
        self._journal = JournalWriter(
            config.journal_directory,
            (int(time.time() * 1000) if last_id is None else last_id) + 1,
            max_file_bytes=config.journal_max_bytes,
            preallocate_bytes=config.journal_preallocate_bytes,
            sync_data=config.journal_sync_data,
        )
        self._durable_mark = self._journal.start
        self._checkpointer = Checkpointer(
            journal_directory=config.journal_directory,
            ledger_directory=config.ledger_directory,
            journal_max_backups=config.journal_max_backups,
            logs=self._logs,
            files=self._files,
            cache=self.cache,
            handles=self.handles,
            durable_mark=lambda: self._durable_mark,
            executor=self._executor,
        )
        self._checkpointer.run_blocking()

    def _has_changes(self, ledger_id: int) -> bool:
        return self.cache.has_changes(ledger_id)

    # --- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take appends. Call in the running event loop."""
        loop = asyncio.get_running_loop()
        self._commit = GroupCommit(loop, self._write_group, self._group_through)
        self._commit.start()
        self._flusher = loop.create_task(self._flush_regularly())

    async def close(self) -> None:
        """Write what is pending, checkpoint, and close the files. No append may come after."""
        loop = asyncio.get_running_loop()
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.gather(self._flusher, return_exceptions=True)
        if self._commit is not None:
            await loop.run_in_executor(None, self._commit.stop)
            await asyncio.sleep(0)  # callbacks of the last group were queued before stop() returned
        if not self._failed:
            await self._checkpointer.run()
        self._executor.shutdown()
        try:
            self._journal.close()
        except OSError as error:
            _LOG.error("closing the journal: %s", error)
        self._logs.close()
        self._files.close()
        self.reader.close()

    async def checkpoint(self) -> None:
        """Make everything acknowledged so far durable outside the journal, and move the mark."""
        await self._checkpointer.run()

    # --- appending ---------------------------------------------------------------------------------

    @property
    def outstanding_bytes(self) -> int:
        """Bytes accepted and not durable yet."""
        return self._commit.outstanding_bytes if self._commit is not None else 0

    def append(self, records: Records, parts: list[tuple[LedgerHandle, LedgerPart]], done: DoneCallback) -> None:
        """Store ``records``; ``parts`` says which of them belong to which ledger. ``done(ok)`` once it is decided."""

        def fill(group: Group) -> None:
            for handle, part in parts:
                if not handle.key_journaled:
                    self._journal_key(group, handle)
                _note_pending(handle, group, part)
            location = self._place(records, parts, group.log_operations)
            group.add_journal(records.data)
            group.appends.append(Append(records, parts, location))
            group.done.append(done)

        self._committer.add(fill)

    def append_journal(self, handle: LedgerHandle, record: bytes, done: DoneCallback) -> Group:
        """Journal a fence or explicit LAC record of a ledger; ``done(ok)`` once it is decided."""

        def fill(group: Group) -> None:
            self._journal_key(group, handle)
            group.add_journal(record)
            group.done.append(done)

        return self._committer.add(fill)

    def barrier(self, done: DoneCallback) -> None:
        """``done(ok)`` once everything appended before is decided; at once where nothing is outstanding."""
        if not self._committer.barrier(done):
            done(not self._failed)

    def replay(self, records: Records, parts: list[tuple[LedgerHandle, LedgerPart]]) -> None:
        """Store records read from the journal, without journaling them again. Blocking; before :meth:`start`."""
        operations: list[LogOperation] = []
        location = self._place(records, parts, operations)
        self._logs.run(operations)
        self._note_written(operations)
        self._apply(Append(records, parts, location))

    @property
    def _committer(self) -> GroupCommit:
        if self._commit is None:
            raise StorageError("the bookie's storage is not started")
        return self._commit

    def _place(
        self, records: Records, parts: list[tuple[LedgerHandle, LedgerPart]], operations: list[LogOperation]
    ) -> int:
        ledger_bytes = [(part.ledger_id, part.size_bytes) for _, part in parts]
        return self._positions.place(records.data, ledger_bytes, operations)

    def _journal_key(self, group: Group, handle: LedgerHandle) -> None:
        if not handle.key_journaled:
            group.add_journal(journal.master_key_record(handle.ledger_id, handle.master_key))
            handle.key_journaled = True

    # --- commit thread -----------------------------------------------------------------------------

    def _write_group(self, group: Group) -> LogMark:
        self._logs.run(group.log_operations)
        return self._journal.write(group.journal, group.journal_bytes)

    # --- back in the loop --------------------------------------------------------------------------

    def _group_through(self, group: Group, error: Exception | None) -> None:
        if error is None:
            try:
                self._note_written(group.log_operations)
                for append in group.appends:
                    self._apply(append)
                if group.mark is not None:
                    self._durable_mark = group.mark
            except OSError as apply_error:
                error = apply_error
        for append in group.appends:
            for handle, _ in append.parts:
                if handle.group is group:
                    handle.group = None
        for done in group.done:
            done(error is None)
        if error is not None:
            self._fail(error)
        elif self._logs.unsynced_bytes > _BACKGROUND_SYNC_BYTES:
            self._sync_log_in_background()

    def _note_written(self, operations: list[LogOperation]) -> None:
        for operation in operations:
            if isinstance(operation, LogWrite):
                self.written_to = operation.log_id << OFFSET_BITS | operation.end

    def _apply(self, append: Append) -> None:
        records = append.records
        locations = records.offsets[:-1] + (append.location + LENGTH_BYTES)
        for handle, part in append.parts:
            if part.count == 1:
                at = 0 if isinstance(part.which, slice) else part.which[0]
                self.cache.put_one(part.ledger_id, part.first_entry_id, int(locations[at]))
            else:
                self.cache.put(part.ledger_id, records.entry_ids[part.which], locations[part.which])
            handle.last_entry = max(handle.last_entry, part.last_entry_id)
            if part.last_add_confirmed > handle.last_add_confirmed:
                handle.last_add_confirmed = part.last_add_confirmed
                for watcher in handle.lac_watchers or ():
                    watcher()

    def _fail(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            self._on_failure(error)

    def _sync_log_in_background(self) -> None:
        if self._log_sync is not None and not self._log_sync.done():
            return
        self._log_sync = asyncio.get_running_loop().run_in_executor(self._executor, self._logs.sync)
        self._log_sync.add_done_callback(self._log_synced)

    def _log_synced(self, future: asyncio.Future[None]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            self._fail(error if isinstance(error, Exception) else StorageError(str(error)))

    async def _flush_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._config.flush_interval_ms / 1000)
            try:
                await self._checkpointer.run()
            except (OSError, CorruptFileError) as error:
                _LOG.error("checkpoint failed: %s", error)
                self._fail(error)
                return


def _note_pending(handle: LedgerHandle, group: Group, part: LedgerPart) -> None:
    if handle.group is None:
        handle.pending_first, handle.pending_last = part.first_entry_id, part.last_entry_id
    else:
        handle.pending_first = min(handle.pending_first, part.first_entry_id)
        handle.pending_last = max(handle.pending_last, part.last_entry_id)
    handle.group = group
