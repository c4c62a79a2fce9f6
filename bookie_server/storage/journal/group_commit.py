"""Group commit: the next group fills while the current one is written and synced.

The event loop fills the pending group. The journal's thread takes the whole group (group_timing.py says when), writes
and syncs it, and reports back to the loop. A group succeeds or fails as a whole.

**Without ``sync_data``** a group is acknowledged once it is written. The file is synced before a new file begins and
before a flush writes the index, at a barrier, at shutdown, and ``page_cache_flush_interval_ms`` after the first
unsynced write. :attr:`GroupCommit.durable_mark` advances only with these syncs.

**When a write fails** (no room, I/O error), the writer has cut the file back, so the journal is unchanged. But the
pending group may depend on the failed one: its entries may need a master key record in it, for example. So the thread
writes nothing until the loop has handled the failure. The loop fails the failed group and the pending one together. It
reverts their effects (``JournalGroup.keys``, ``JournalGroup.undo``), newest first, before it answers anybody. Groups
filled later are written after a short pause.

**When a sync fails**, or a file cannot be cut back, the content of the disk is unknown. ``on_failure`` is called once,
and every later group fails with the same error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Final

from bookie_server.config.config import BookieConfig
from bookie_server.storage.disk.files import SyncFailedError, may_pass
from bookie_server.storage.entrylog.arrival_log import ArrivalLog
from bookie_server.storage.journal.group_timing import FlushReason, JournalGroupStats, JournalGroupTiming
from bookie_server.storage.journal.journal_writer import DoneCallback, JournalGroup, JournalWriter
from bookie_server.storage.journal.log_mark import LogMark

_LOG: Final = logging.getLogger(__name__)
#: Pause after a failed write before the next attempt.
_RETRY_PAUSE_MS: Final = 50

#: Called in the event loop when a group is decided; the error is None if it is durable. Applies the group and calls
#: every callback in ``group.done``.
FinishedCallback = Callable[[JournalGroup, Exception | None], None]


class GroupCommit:
    """The thread of one journal and its queued groups. ``end`` is where the replayed files end.

    Call :meth:`open`, then :meth:`start`. All methods are called in the event loop, except :meth:`join` and
    :meth:`close`, which block.
    """

    def __init__(
        self,
        writer: JournalWriter,
        arrival_log: ArrivalLog,
        config: BookieConfig,
        end: LogMark,
        *,
        name: str,
        on_failure: Callable[[Exception], None],
        on_write_error: Callable[[OSError], None],
        on_group: Callable[[JournalGroupStats], None] | None = None,
    ) -> None:
        self._writer = writer
        self._arrival_log = arrival_log
        self._config = config
        self._applied = self._synced = end
        self._on_failure = on_failure
        self._on_write_error = on_write_error
        self._on_group = on_group
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._timing = JournalGroupTiming(config)
        self.outstanding_bytes = 0
        #: Why the last write failed; None if it succeeded.
        self.write_error: OSError | None = None
        #: Set when the loop could not apply a group or the thread could not sync. Every later group fails.
        self._loop_failure: Exception | None = None

        # Shared with the thread, under the lock. The bell wakes the thread, and is rung without the lock: otherwise the
        # thread would wake up only to wait for it.
        self._lock = threading.Lock()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._pending = JournalGroup()
        self._filled = False
        self._in_flight: JournalGroup | None = None
        self._held: OSError | None = None  # a write failed, and the loop has not handled it yet
        self._waiting = False
        self._stopping = False
        self._syncs: list[DoneCallback] = []

        # Used by the thread only.
        self._ended = False
        self._fatal: Exception | None = None
        self._failing = False
        self._resume_at = 0.0
        self._unsynced_since = 0.0

        #: Since when the thread has had something to do, by the monotonic clock: since it was woken, or took a group. A
        #: time to come if it waits for that. None: it has nothing to do.
        self.busy_since_s: float | None = None

    # --- in the event loop -------------------------------------------------------------------------

    def open(self) -> None:
        """Start a new file. If that fails, the first group tries again; until then the journal is needed from the end
        of the old files. Raises SyncFailedError."""
        try:
            self._applied = self._synced = self._writer.open()
        except SyncFailedError:
            raise
        except OSError as error:
            _LOG.error("cannot start a journal in %s: %s", self._writer.directory, error)
            self.write_error = error

    def start(self, loop: asyncio.AbstractEventLoop, finished: FinishedCallback) -> None:
        """Start accepting groups."""
        self._loop = loop
        self._finished = finished
        if self.write_error is not None:
            loop.call_soon(self._on_write_error, self.write_error)
        self._thread.start()

    def add(self, fill: Callable[[JournalGroup], None], *, urgent: bool = True) -> JournalGroup:
        """Let ``fill`` add to the pending group. Return that group. Only fences are not ``urgent``, if
        there are many."""
        with self._lock:
            group = self._pending
            before = group.journal_bytes
            fill(group)
            self.outstanding_bytes += group.journal_bytes - before
            wakes = self._note_filled(urgent=urgent)
        if wakes:
            self._bell.put(None)
        return group

    def barrier(self, done: DoneCallback) -> bool:
        """Call ``done`` when everything added so far is decided and synced. Return False if nothing is outstanding."""
        with self._lock:
            group = self._pending if self._filled else self._in_flight
            if self._config.journal_sync_data:
                if group is None:
                    return False
                group.done.append(done)
                return True
            if group is None and not self._writer.unsynced:
                return False
            self._pending.done.append(done)
            self._pending.must_sync = True
            self._note_filled()
        self._bell.put(None)
        return True

    def sync_written(self, done: DoneCallback) -> bool:
        """Call ``done(ok)`` when all groups decided so far are synced. Return False if they are already. Unlike a
        barrier, this neither waits for other groups nor fails because they cannot be written."""
        with self._lock:
            if self._config.journal_sync_data or not self._writer.unsynced:
                return False
            self._syncs.append(done)
        self._bell.put(None)
        return True

    def probe(self, done: DoneCallback) -> bool:
        """Test whether the journal can be written again. Return False, without a call, if the last write succeeded."""
        if self.write_error is None:
            return False
        with self._lock:
            self._pending.done.append(done)
            self._pending.probes = True
            self._note_filled()
        self._bell.put(None)
        return True

    @property
    def durable_mark(self) -> LogMark:
        """The position after the last group that is synced and whose ``finished`` callback has run."""
        return min(self._applied, self._synced)

    @property
    def queued_entries(self) -> int:
        """Records in the pending group."""
        return self._pending.entries

    def _note_filled(self, *, urgent: bool = True) -> bool:
        """Note that the pending group has something to write. Return whether the thread must be woken."""
        group = self._pending
        # The thread may wait for less than is urgent now.
        changed = not self._filled or (urgent and not group.urgent)
        group.urgent = group.urgent or urgent
        group.last = time.monotonic()
        if not self._filled:
            self._filled = True
            group.since = group.last
        if self._waiting and (changed or self._timing.is_large(group.journal_bytes, group.entries)):
            self._waiting = False
            self.busy_since_s = group.last
            return True
        return False

    def _through(
        self, group: JournalGroup, error: Exception | None, synced: LogMark, stats: JournalGroupStats | None
    ) -> None:
        error = error or self._loop_failure
        failed = [group]
        with self._lock:
            if self._in_flight is group:
                self._in_flight = None
            if error is not None:
                if self._filled:
                    failed.append(self._pending)
                    self._pending = JournalGroup()
                    self._filled = False
                self._held = None
        if error is not None:
            self._bell.put(None)
        if error is None:
            self._note_synced(synced)
            self.write_error = None
            self._finish(group, None)
        else:
            self._fail(failed, error)
        if stats is not None and self._on_group is not None:
            self._on_group(stats)

    def _fail(self, groups: list[JournalGroup], error: Exception) -> None:
        for group in reversed(groups):
            for descriptor in group.keys:
                descriptor.key_journaled = False
            for undo in reversed(group.undo):
                undo()
        if self._loop_failure is None and may_pass(error):
            self.write_error = error
            self._on_write_error(error)
        else:
            self._loop_failure = error
            self._on_failure(error)
        for group in groups:
            self._finish(group, error)

    def _finish(self, group: JournalGroup, error: Exception | None) -> None:
        self.outstanding_bytes -= group.journal_bytes
        try:
            self._finished(group, error)
        except Exception as failure:
            # The mark must never pass a group that was not applied.
            _LOG.exception("cannot apply a group of the journal in %s", self._writer.directory)
            self._loop_failure = failure
            self._on_failure(failure)
            return
        if error is None and group.mark is not None:
            self._applied = group.mark

    def _note_synced(self, synced: LogMark) -> None:
        self._synced = max(self._synced, synced)

    def _sync_failed(self, error: Exception) -> None:
        self._loop_failure = error
        self._on_failure(error)

    # --- stopping ----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let the thread write and sync what is pending, then end. Remaining callbacks still run in the loop."""
        with self._lock:
            self._stopping = True
        self._bell.put(None)

    def join(self) -> None:
        """Wait for the thread to end. Blocks."""
        if self._thread.is_alive():
            self._thread.join()

    def end_arrival_log(self) -> None:
        """Complete the log of large entries. Call only after the thread has ended. Raises SyncFailedError. Blocks."""
        self._arrival_log.end()

    def close(self, *, indexed: bool) -> None:
        """Close the files. Call only after the thread has ended. ``indexed``: the mark is where the journal ends.
        Blocks."""
        self._arrival_log.close()
        self._writer.close(intact=self._fatal is None, indexed=indexed)

    # --- in the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended:
            taken = self._take()
            if taken is None:
                self._sync_alone()
            else:
                self._commit(*taken)
                self.busy_since_s = None

    def _take(self) -> tuple[JournalGroup, FlushReason] | None:
        """Wait for the next group that may be written. Return None when a sync is due, and at the end."""
        while True:
            with self._lock:
                self._waiting = False
                now = time.monotonic()
                if self._stopping and not self._filled:
                    self._ended = True
                    return None
                if self._syncs:
                    return None
                waits: list[float] = []
                if self._filled and (self._held is None or self._stopping):
                    reason, wait = self._go(now)
                    if wait <= 0:
                        group, self._pending = self._pending, JournalGroup()
                        self._filled = False
                        self._in_flight = group
                        self.busy_since_s = now
                        return group, reason
                    waits.append(wait)
                if self._writer.unsynced and self._fatal is None:
                    waits.append(self._sync_due_at() - now)
                    if waits[-1] <= 0:
                        return None
                self._waiting, wait_s = True, min(waits, default=None)
                self.busy_since_s = None if wait_s is None else now + wait_s
            with contextlib.suppress(queue.Empty):
                self._bell.get(timeout=wait_s)

    def _go(self, now: float) -> tuple[FlushReason, float]:
        """Return why the pending group is written, and in how many seconds."""
        if self._stopping or self._fatal is not None:
            return "queue_empty", 0.0
        group = self._pending
        reason, due = self._timing.due(group.journal_bytes, group.entries, group.since, group.last, urgent=group.urgent)
        return reason, max(due, self._resume_at) - now

    def _commit(self, group: JournalGroup, reason: FlushReason) -> None:
        error: Exception | None = self._fatal or self._held
        if error is not None:
            self._report(self._through, group, error, self._writer.synced, None)
            return
        start = time.monotonic()
        if not self._writer.unsynced:
            self._unsynced_since = start
        written, size_bytes = 0.0, group.journal_bytes
        try:
            if group.probes:
                self._writer.reserve()
            if group.journal or group.probes:
                size_bytes = self._writer.write_group(group, self._arrival_log)
            written = time.monotonic()
            if self._config.journal_sync_data or group.must_sync or group.probes or written >= self._sync_due_at():
                self._writer.sync()
            if self._failing:
                self._failing = False
                _LOG.info("writing to the journal in %s works again", self._writer.directory)
        except Exception as failure:
            error = failure
            self._note_failure(failure)
        end = time.monotonic()
        written = written or end
        stats = JournalGroupStats(
            entries=group.entries,
            size_bytes=size_bytes,
            queue_seconds=start - group.since,
            write_seconds=written - start,
            sync_seconds=end - written,
            reason=reason,
            ok=error is None,
        )
        self._report(self._through, group, error, self._writer.synced, stats)

    def _note_failure(self, error: Exception) -> None:
        if may_pass(error):
            if not self._failing:
                _LOG.error("cannot write to the journal in %s: %s", self._writer.directory, error)
            self._failing = True
            self._resume_at = time.monotonic() + _RETRY_PAUSE_MS / 1000
            with self._lock:
                self._held = error
        else:
            _LOG.error("the journal in %s has failed", self._writer.directory, exc_info=error)
            self._fatal = error

    def _sync_due_at(self) -> float:
        return self._unsynced_since + self._config.journal_page_cache_flush_interval_ms / 1000

    def _sync_alone(self) -> None:
        with self._lock:
            asked, self._syncs = self._syncs, []
        if self._fatal is None and self._writer.unsynced:
            try:
                self._writer.sync()
            except Exception as error:
                self._note_failure(error)
                self._report(self._sync_failed, error)
            else:
                self._report(self._note_synced, self._writer.synced)
        for done in asked:
            self._report(done, self._fatal is None)

    def _report(self, callback: Callable[..., None], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(callback, *arguments)
