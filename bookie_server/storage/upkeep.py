"""The operations of garbage collection on the storage: remove ledgers, move entries, remove entry logs.

Methods are called in the event loop unless stated otherwise. File work runs in the flush thread under the flusher's
lock, so it never overlaps a flush.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from bk_spark.bookie.shielded import shielded
from bk_spark.protocol.arrays import Int64s, sorted_distinct
from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.disk import files
from bookie_server.storage.entrylog import entry_log
from bookie_server.storage.ledger_descriptors import LedgerDescriptor
from bookie_server.storage.records import MAX_ENTRY_ID
from bookie_server.storage.threads import in_thread

if TYPE_CHECKING:
    from bookie_server.storage.ledger_storage import LedgerStorage

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Marked:
    """A ledger that is about to be removed; ``readable``: its header could be read."""

    descriptor: LedgerDescriptor
    readable: bool
    last_entry: int


class StorageUpkeep:
    """What ``storage`` offers to garbage collection (CollectedStorage)."""

    def __init__(self, storage: LedgerStorage) -> None:
        self._storage = storage
        self.directories = storage.directories
        self._marked: dict[int, _Marked] = {}

    # --- ledgers -----------------------------------------------------------------------------------

    async def local_ledgers(self) -> Int64s:
        """All ledgers on this bookie, ascending. Raises OSError if one directory cannot be listed."""
        # While files are listed, a ledger without a file may get one and leave memory. So memory is read before, too.
        before = self._ledgers_in_memory()
        in_files = await asyncio.get_running_loop().run_in_executor(None, self._storage.index.ledger_ids)
        return sorted_distinct(np.concatenate((before, in_files, self._ledgers_in_memory())))

    def mark_ledger(self, ledger_id: int) -> bool:
        """Refuse changes to the ledger until it is removed or unmarked. Return False if it is not here. Raises OSError.

        Its adds and fences get an I/O error; reads are served.
        """
        storage = self._storage
        readable = True
        try:
            descriptor = storage.descriptors.get(ledger_id)
        except CorruptFileError:
            descriptor, readable = storage.descriptors.reserve(ledger_id), False  # the file is removed anyway
        if descriptor is None:
            if storage.index.path(ledger_id) is None:
                return False
            descriptor, readable = storage.descriptors.reserve(ledger_id), False  # an empty file
        descriptor.deleting = True
        self._marked[ledger_id] = _Marked(descriptor, readable, descriptor.last_entry if readable else MAX_ENTRY_ID)
        return True

    def unmark_ledger(self, ledger_id: int) -> None:
        """Let a marked ledger serve again. Does nothing for a removed one."""
        marked = self._marked.pop(ledger_id, None)
        if marked is not None:
            marked.descriptor.deleting = False
            if not marked.readable:
                self._storage.descriptors.drop(ledger_id)

    async def remove_ledger(self, ledger_id: int) -> None:
        """Remove a marked ledger from this bookie. Its entries' bytes are freed with their logs. Raises OSError.

        If the ledger was fenced, or may have been, its writer is refused for days.
        """
        marked = self._marked[ledger_id]
        descriptor = marked.descriptor
        async with self._storage.flusher.alone():
            await self._remove(ledger_id, max(marked.last_entry, descriptor.last_entry))
        del self._marked[ledger_id]
        if descriptor.fenced or not marked.readable:
            self._storage.deleted.note(ledger_id)
        descriptor.wake_watchers()

    async def settle(self) -> None:
        """Wait until everything accepted before is decided."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._storage.barrier(lambda _: None if done.done() else done.set_result(None))
        await done

    async def sync_deletions(self) -> None:
        """Make the deletions so far durable. Raises OSError, SyncFailedError."""
        await self._sync_index()

    def index_path(self, ledger_id: int) -> str | None:
        """Path of the ledger's index file; None if it has none. Any thread."""
        return self._storage.index.path(ledger_id)

    async def _remove(self, ledger_id: int, last_entry_id: int) -> None:
        storage = self._storage
        await self._in_thread(storage.index.remove, ledger_id)
        try:
            await self._in_thread(storage.entry_limit.forget, ledger_id)
        except files.SyncFailedError:
            raise
        except OSError as error:
            _LOG.warning("cannot yet forget which entries of ledger %d are not in its index: %s", ledger_id, error)
        storage.write_cache.drop(ledger_id)
        storage.flusher.forget(ledger_id)
        storage.descriptors.drop(ledger_id)
        storage.cache.drop(ledger_id, last_entry_id)

    def _ledgers_in_memory(self) -> Int64s:
        return np.array([descriptor.ledger_id for descriptor in self._storage.descriptors], np.int64)

    # --- entries -----------------------------------------------------------------------------------

    async def locations_of(self, ledger_id: int, entry_ids: Int64s) -> Int64s:
        """Locations in entry logs according to the index, 0 if absent. Ids ascending. Raises OSError."""
        return await self._in_thread(self._storage.index.read_slots, ledger_id, entry_ids)

    async def replace_locations(self, ledger_id: int, entry_ids: Int64s, old: Int64s, new: Int64s) -> int:
        """Point the index to ``new`` for the entries (ids ascending) that it has at ``old``. Return how many changed.
        Durable after :meth:`sync_index`. Raises OSError."""
        if not len(entry_ids):
            return 0
        async with self._storage.flusher.alone():
            which = await self._in_thread(self.replace_locations_now, ledger_id, entry_ids, old, new)
            if len(which):
                self._storage.cache.update(ledger_id, entry_ids[which], new[which])
        return len(which)

    def replace_locations_now(self, ledger_id: int, entry_ids: Int64s, old: Int64s, new: Int64s) -> Int64s:
        """Same as :meth:`replace_locations`, in the calling thread, before the bookie serves. Return which changed."""
        index = self._storage.index
        which = np.flatnonzero(index.read_slots(ledger_id, entry_ids) == old)
        if len(which):
            index.write(ledger_id, None, entry_ids[which], new[which])
        return which

    async def flush(self) -> None:
        """Make everything in memory durable and advance the marks past it. Raises OSError, SyncFailedError."""
        await self._storage.checkpoint()

    async def sync_index(self) -> None:
        """Make the changes to index files durable. Flushes nothing: on a full disk a flush may be impossible until
        collection has made room. Raises OSError, SyncFailedError."""
        await self._sync_index()

    # --- entry logs --------------------------------------------------------------------------------

    def allocate_entry_log_id(self) -> int:
        """Take an id for a new entry log. Any thread; blocks. Raises CorruptFileError, SyncFailedError."""
        return self._storage.entry_log_ids.allocate()

    def entry_logs_being_written(self) -> set[int]:
        """Logs that are being written, or hold entries that are not yet in the index."""
        writer = self._storage.entry_log_writer
        return writer.unfinished | {writer.entry_log_id} | self._storage.unindexed_logs()

    def entry_log_ids(self) -> list[int]:
        """Ids of all entry logs, ascending. Blocks. Raises OSError."""
        directories = self._storage.directories.paths
        return sorted(
            {entry_log_id for directory in directories for entry_log_id in entry_log.entry_log_ids(directory)}
        )

    def entry_log_path(self, entry_log_id: int) -> str:
        """Path of an entry log. Raises FileNotFoundError."""
        return self._storage.reader.path(entry_log_id)

    async def remove_entry_log(self, entry_log_id: int) -> None:
        """Remove an entry log that no location points to. Raises OSError, SyncFailedError."""
        reader, removal = self._storage.reader, self._storage.removal

        def remove() -> Future[None] | None:
            fd = removal.unlink(reader.path(entry_log_id))
            # One that is being read keeps its content until that has ended.
            is_read = not reader.forget(entry_log_id)
            return removal.free(fd, is_open=is_read)

        freed = await self._in_thread(remove)
        if freed is not None:
            # Whoever is cancelled here takes nothing from the thread: nobody else would close the descriptor.
            await shielded(asyncio.wrap_future(freed))

    async def _sync_index(self) -> None:
        async with self._storage.flusher.alone():
            await self._in_thread(self._storage.index.sync)

    async def _in_thread(self, function: Callable[..., _T], *arguments: object) -> _T:
        self._storage.flusher.hurry()  # it uses the same thread
        return await in_thread(self._storage.executor, function, *arguments)
