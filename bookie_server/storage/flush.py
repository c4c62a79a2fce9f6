"""Flushes: entries before a mark in the journals become durable in entry logs and index files.

The order makes it safe (compatibility.md §5.3): take the marks and the full half of the write cache in one step → write
and sync entry logs, sorted by ledger → sync journals whose groups were not → write and sync index files → write the
marks to every ledger directory → remove journals. If a half cannot be written, it stays in memory, where readers find
it, and the next flush retries it with its own marks. Until then no mark advances. Entries above the limit of the index
files are left out of them (entry_limit.py).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bookie_server.storage.disk.directories import LedgerDirectories
from bookie_server.storage.entrylog.entry_limit import EntryLimit
from bookie_server.storage.entrylog.entry_log_writer import SYNC_STEP_BYTES, EntryLogWriter, Steps
from bookie_server.storage.flush_pace import HEADERS_STEP, PACED_STEP_BYTES, FlushPace, headers_pause_s
from bookie_server.storage.index.index import IndexFiles, IndexHeader
from bookie_server.storage.index.ledger_cache import LedgerCache
from bookie_server.storage.journal.log_mark import LogMark, write_marks
from bookie_server.storage.ledger_descriptors import LedgerDescriptors
from bookie_server.storage.threads import in_thread
from bookie_server.storage.write_cache import CacheHalf, SortedEntries, WriteCache, locations_of

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")
#: Number of ledgers whose cached pages are updated in one turn of the event loop.
_LEDGERS_PER_TURN: Final = 500


@dataclass(slots=True, eq=False)
class _Batch:
    """The data that one flush makes durable, and its progress."""

    half: CacheHalf
    headers: dict[int, IndexHeader]
    marks: list[LogMark]
    entries: SortedEntries | None = None
    locations: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    #: Closed logs of large entries; the last of these are in this batch, or in earlier ones.
    left_logs: frozenset[int] = frozenset()
    logs_done: bool = False


@dataclass(slots=True)
class FlushCounters:
    """Totals since the start. Sizes in bytes, times in seconds."""

    flushes: int = 0
    failures: int = 0
    entries: int = 0
    entry_bytes: int = 0
    seconds: float = 0.0
    last_seconds: float = 0.0


class _Steps:
    """The steps of a flush: small ones at ``pace``, until ``hurry`` is set. In the flush thread."""

    def __init__(self, pace: FlushPace, cache: WriteCache, hurry: threading.Event) -> None:
        self._pace = pace
        self._cache = cache
        self._hurry = hurry
        self._begun_s = time.monotonic()
        self._synced_bytes = 0

    @property
    def step_bytes(self) -> int:
        return SYNC_STEP_BYTES if self._hurry.is_set() else PACED_STEP_BYTES

    def synced(self, size_bytes: int) -> None:
        self._synced_bytes += size_bytes
        while not self._hurry.is_set():
            elapsed_s = time.monotonic() - self._begun_s
            pause_s = self._pace.pause_s(self._synced_bytes, elapsed_s, self._cache.filled)
            if not pause_s:
                return
            self._hurry.wait(pause_s)


class Flusher:
    """Runs flushes one at a time; file work runs in ``executor`` (one thread).

    ``sync_journals`` makes durable what they hold, and raises SyncFailedError. Otherwise a power cut could keep an
    entry in the index, and in the journal only an older copy of it, which the replay would put in its place.
    ``durable_marks`` returns the marks after everything in the write cache, one for each journal.
    ``remove_journals(marks)`` is called in the thread once the marks are durable, and so is ``release_logs(ids)`` for
    logs of large entries that were closed (:meth:`note_left_logs`).
    """

    def __init__(
        self,
        *,
        directories: LedgerDirectories,
        write_cache: WriteCache,
        cache: LedgerCache,
        descriptors: LedgerDescriptors,
        index: IndexFiles,
        entry_log_writer: EntryLogWriter,
        entry_limit: EntryLimit,
        last_marks: Sequence[LogMark],
        sync_journals: Callable[[], Awaitable[None]],
        durable_marks: Callable[[], list[LogMark]],
        remove_journals: Callable[[Sequence[LogMark]], None],
        release_logs: Callable[[Collection[int]], None],
        executor: Executor,
    ) -> None:
        self._directories = directories
        self._write_cache = write_cache
        self._cache = cache
        self._descriptors = descriptors
        self._index = index
        self._entry_log_writer = entry_log_writer
        self._entry_limit = entry_limit
        self._sync_journals = sync_journals
        self._durable_marks = durable_marks
        self._remove_journals = remove_journals
        self._release_logs = release_logs
        #: Logs of large entries that were closed and wait for the next batch, and those that wait for the marks.
        self._left_logs: set[int] = set()
        self._indexed_logs: set[int] = set()
        self._executor = executor
        self._batch: _Batch | None = None
        #: Held while entry logs and index files are changed. :meth:`alone` takes it.
        self.lock = asyncio.Lock()
        #: Tasks that wait for the lock. A flush does not pause meanwhile, nor once ``_hurry`` is set.
        self._waiting = 0
        self._hurry = threading.Event()
        self._may_pause = True
        self.last_marks = list(last_marks)
        self.counters = FlushCounters()
        #: Called in the event loop when the active half of the write cache was taken, so that there is room again.
        self.on_room: Callable[[], None] = lambda: None
        #: Called in the event loop after each flush: seconds, bytes of entries, and whether it succeeded.
        self.on_flush: Callable[[float, int, bool], None] = lambda seconds, entry_bytes, ok: None

    def holds(self, ledger_id: int) -> bool:
        """Whether the ledger's header is being written to its file."""
        return self._batch is not None and ledger_id in self._batch.headers

    def note_left_logs(self, entry_log_ids: Iterable[int]) -> None:
        """Logs of large entries were closed; all that they got is in the write cache, or failed."""
        self._left_logs.update(entry_log_ids)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Hold the lock under which entry logs and index files are changed. A running flush hurries."""
        self._waiting += 1
        self.hurry()
        try:
            await self.lock.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self.lock.release()

    def hurry(self) -> None:
        """Let the flush that runs, if any, write without pauses from now on."""
        self._hurry.set()

    def end_pauses(self) -> None:
        """Let no flush pause from now on."""
        self._may_pause = False
        self.hurry()

    async def run(self, span_s: float = 0.0) -> None:
        """Make everything durable that is in the write cache or awaits a sync. Waits for a running flush.

        ``span_s``: how long the writing of entry logs may pause in total, while nobody waits (flush_pace.py).

        Raises OSError (everything will be retried), SyncFailedError, CorruptFileError (the bookie must stop).
        """
        async with self.alone():
            if span_s > 0 and self._may_pause and not self._waiting:
                self._hurry.clear()
            started = time.monotonic()
            for batch in self._batches():
                steps = _Steps(FlushPace(batch.half.data_bytes, span_s), self._write_cache, self._hurry)
                try:
                    await self._in_thread(self._write_logs, batch, steps)
                    await self._sync_journals()
                    await self._in_thread(self._write_index, batch, self._pause_after_headers)
                    await self._update_cache(batch)
                    self._drop(batch)
                    await self._in_thread(self._finish, batch.marks)
                except OSError:
                    self.counters.failures += 1
                    self.on_flush(time.monotonic() - started, batch.half.data_bytes, False)
                    raise
                self._count(batch, started)

    def run_blocking(self) -> None:
        """Same as :meth:`run`, without an event loop: during and after replay. The journals are synced then."""
        for batch in self._batches():
            self._write_logs(batch)
            self._write_index(batch)
            for _ in self._cache_updates(batch):
                pass
            self._drop(batch)
            self._finish(batch.marks)

    def forget(self, ledger_id: int) -> None:
        """Leave a removed ledger out of a flush that is to be retried. Call with :meth:`alone`."""
        batch = self._batch
        if batch is None:
            return
        batch.headers.pop(ledger_id, None)
        if batch.entries is not None:
            batch.entries.ledgers[:] = [part for part in batch.entries.ledgers if part[0] != ledger_id]

    # --- the steps ---------------------------------------------------------------------------------

    def _batches(self) -> Iterator[_Batch]:
        """First the rest of a failed flush, if any; then what is in memory now."""
        if self._batch is not None:
            yield self._batch
        half, headers = self._write_cache.swap(), self._descriptors.take_headers()
        self._batch = _Batch(half, headers, self._durable_marks(), left_logs=frozenset(self._left_logs))
        self._left_logs.clear()
        self.on_room()
        yield self._batch

    def _write_logs(self, batch: _Batch, steps: Steps | None = None) -> None:
        if batch.logs_done:
            return
        if batch.entries is None:
            batch.entries = batch.half.sorted_entries()
        entries = batch.entries
        batch.locations = locations_of(entries.positions)
        ledgers, held = entries.held()
        if len(held):
            batch.locations[held] = self._entry_log_writer.append(
                batch.half, ledgers, entries.positions[held], entries.sizes[held], steps
            )
        batch.logs_done = True

    def _pause_after_headers(self, took_s: float) -> None:
        """Pause, unless somebody waits for the lock or for the write cache. In the flush thread."""
        if self._may_pause and not self._waiting:
            time.sleep(headers_pause_s(took_s, self._write_cache.filled))

    def _write_index(self, batch: _Batch, pause: Callable[[float], None] = lambda took_s: None) -> None:
        self._leave_out(batch)
        try:
            self._write_slots(batch, pause)
        except OSError as error:
            if error.errno != errno.EFBIG or not self._entry_limit.find_again():
                raise
            self._leave_out(batch)
            self._write_slots(batch, pause)
        self._index.sync()

    def _leave_out(self, batch: _Batch) -> None:
        """Leave out entries above the limit of the index files, so that everything else can be written."""
        entries, limit = batch.entries, self._entry_limit.last
        assert entries is not None
        ids = entries.entry_ids
        if not len(ids) or int(ids.max()) <= limit:
            return
        left_out: dict[int, int] = {}
        kept = []
        for ledger_id, first, last in entries.ledgers:
            fitting = first + int(np.searchsorted(ids[first:last], limit, side="right"))
            if fitting < last:
                left_out[ledger_id] = int(ids[fitting])
            if fitting > first:
                kept.append((ledger_id, first, fitting))
        if left_out:
            self._entry_limit.note(left_out)
            entries.ledgers[:] = kept

    def _write_slots(self, batch: _Batch, pause: Callable[[float], None]) -> None:
        entries = batch.entries
        assert entries is not None
        with_entries = set()
        for ledger_id, first, last in entries.ledgers:
            with_entries.add(ledger_id)
            header = batch.headers.get(ledger_id)
            self._index.write(ledger_id, header, entries.entry_ids[first:last], batch.locations[first:last])
        nothing = np.empty(0, np.int64)
        without = [ledger_id for ledger_id in batch.headers if ledger_id not in with_entries]
        for first in range(0, len(without), HEADERS_STEP):
            begun = time.monotonic()
            step = without[first : first + HEADERS_STEP]
            for ledger_id in step:
                self._index.write(ledger_id, batch.headers[ledger_id], nothing, nothing)
            if len(step) == HEADERS_STEP:
                pause(time.monotonic() - begun)

    async def _update_cache(self, batch: _Batch) -> None:
        for _ in self._cache_updates(batch):
            await asyncio.sleep(0)

    def _cache_updates(self, batch: _Batch) -> Iterator[None]:
        """Update cached index pages; yields every ``_LEDGERS_PER_TURN`` ledgers."""
        entries = batch.entries
        assert entries is not None
        for count, (ledger_id, first, last) in enumerate(entries.ledgers, 1):
            self._cache.update(ledger_id, entries.entry_ids[first:last], batch.locations[first:last])
            if count % _LEDGERS_PER_TURN == 0:
                yield

    def _drop(self, batch: _Batch) -> None:
        """Drop the half. The index finds its entries now."""
        assert batch is self._batch
        self._batch = None
        self._write_cache.drop_flushed()
        self._entry_log_writer.finished()
        self._indexed_logs |= batch.left_logs

    def _finish(self, marks: list[LogMark]) -> None:
        marks = [max(mark, last) for mark, last in zip(marks, self.last_marks, strict=True)]
        if marks != self.last_marks:
            write_marks(self._directories.paths, marks)
            self.last_marks = marks
            self._remove_journals(marks)
        # Not before: a replay from older marks would look for their entries where they are now.
        self._release_logs(self._indexed_logs)
        self._indexed_logs = set()

    def _count(self, batch: _Batch, started: float) -> None:
        counters = self.counters
        counters.flushes += 1
        counters.entries += len(batch.locations)
        counters.entry_bytes += batch.half.data_bytes
        counters.last_seconds = time.monotonic() - started
        counters.seconds += counters.last_seconds
        self.on_flush(counters.last_seconds, batch.half.data_bytes, True)

    async def _in_thread(self, function: Callable[..., _T], *arguments: object) -> _T:
        return await in_thread(self._executor, function, *arguments)
