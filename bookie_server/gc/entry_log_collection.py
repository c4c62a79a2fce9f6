"""Decides which entry logs to remove, which to compact, and why the others stay.

The order of a pass makes it safe: it lists the entry log files, then those being written, then the local ledgers. An
entry log that is listed and not being written was complete, and in the index, before the ledgers were listed. So it has
no live entry of any other ledger, even if that ledger is created again later.

The ledgers map of an entry log, or a scan, says what it holds (entry_log_usage.py). For a damaged entry log, the index
files of all ledgers are searched for pointers into it (index_pointers.py). One search is enough, because pointers into
a complete entry log only become fewer.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bookie_server.config.collection import CompactionSettings
from bookie_server.config.config import BookieConfig
from bookie_server.gc.collected_storage import CollectedStorage, RunBlocking
from bookie_server.gc.collector_status import EntryLogStatus, EntryLogTotals, GarbageCollectorCounters
from bookie_server.gc.compaction import CompactionRefusedError, EntryLogCompactor
from bookie_server.gc.entry_log_usage import EntryLogUsage, EntryLogUsageCache
from bookie_server.gc.throttle import StopSignal, Throttle
from bookie_server.storage.disk import files
from bookie_server.storage.entrylog.entry_log import HEADER_BYTES, file_name
from bookie_server.storage.index.index_pointers import ledgers_pointing

_LOG: Final = logging.getLogger(__name__)
_USAGES_IN_MEMORY_BYTES: Final = 64 * 1024 * 1024
_BEING_WRITTEN: Final = "being written"
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


class EntryLogCollection:
    """Removes and compacts entry logs of ``storage``. Event loop only."""

    def __init__(
        self,
        config: BookieConfig,
        storage: CollectedStorage,
        run_blocking: RunBlocking,
        stop: StopSignal,
        counters: GarbageCollectorCounters,
    ) -> None:
        self._config = config
        self._storage = storage
        self._run = run_blocking
        self._stop = stop
        self._counters = counters
        rate = config.compaction_bytes_per_s if config.compaction_throttle_by_bytes else config.compaction_entries_per_s
        self._compactor = EntryLogCompactor(
            storage,
            run_blocking,
            Throttle(rate),
            stop,
            throttle_by_bytes=config.compaction_throttle_by_bytes,
            throttle_step=rate,
        )
        self._usages = EntryLogUsageCache(_USAGES_IN_MEMORY_BYTES)
        #: For damaged entry logs, the ledgers with pointers into them.
        self._pointing: dict[int, Int64s] = {}
        self._held: dict[int, str] = {}
        self._local: Int64s = np.empty(0, np.int64)
        self._states: dict[int, EntryLogStatus] = {}

    async def states(self) -> list[EntryLogStatus]:
        """Status of every entry log, ascending, as the last pass saw it. Raises OSError."""
        states = []
        for entry_log_id in sorted(await self._run(self._storage.entry_log_ids)):
            state = self._states.get(entry_log_id) or self._unread(entry_log_id, "not examined yet")
            if entry_log_id in self._storage.entry_logs_being_written():
                state = self._unread(entry_log_id, _BEING_WRITTEN)
            if state is not None:
                states.append(state)
        return states

    def totals(self) -> EntryLogTotals:
        """Totals of all entry logs after the last pass; zeros before the first one."""
        states = self._states.values()
        return EntryLogTotals(
            logs=len(states),
            size_bytes=sum(state.size_bytes for state in states),
            live_bytes=sum(state.live_bytes if state.live_bytes >= 0 else state.size_bytes for state in states),
            ledgers=len(self._local),
        )

    async def finish_leftovers(self) -> None:
        """Finish compactions that were cut short; see :meth:`EntryLogCompactor.finish_leftovers`."""
        self._held = await self._compactor.finish_leftovers()

    async def remove_dead(self) -> None:
        """Remove entry logs without an entry of a local ledger. Raises OSError, SyncFailedError."""
        entry_log_ids = await self._run(self._storage.entry_log_ids)
        written = self._storage.entry_logs_being_written()
        self._local = await self._storage.local_ledgers()
        self._states = {}
        self._usages.keep_only(set(entry_log_ids))
        self._pointing = {
            entry_log_id: self._pointing[entry_log_id]
            for entry_log_id in entry_log_ids
            if entry_log_id in self._pointing
        }
        usages: list[EntryLogUsage] = []
        for entry_log_id in entry_log_ids:
            self._stop.check()
            if entry_log_id in written:
                self._explain_unread(entry_log_id, _BEING_WRITTEN)
            elif entry_log_id in self._held:
                self._explain_unread(entry_log_id, self._held[entry_log_id])
            elif (usage := await self._usage(entry_log_id)) is not None:
                usages.append(usage)
        await self._ask_index({usage.entry_log_id for usage in usages if usage.problem} - self._pointing.keys())
        for usage in usages:
            ledgers = self._live_ledgers(usage)
            if ledgers is None:
                self._explain(usage, f"damaged ({usage.problem}), and not every index file can be read")
            elif len(ledgers):
                self._explain(usage, "")
            else:
                await self._remove(usage)

    async def compact(self, compaction: CompactionSettings, is_suspended: Callable[[], bool]) -> None:
        """Compact the remaining entry logs whose usage is below the threshold, emptiest first.

        Raises SyncFailedError, GarbageCollectorStoppedError.
        """
        ends_at_s = time.monotonic() + compaction.max_time_ms / 1000
        self.explain_waiting()
        candidates = sorted(
            (row for row in self._states.values() if 0 <= row.usage < compaction.threshold),
            key=lambda row: row.usage,
        )
        for row in candidates:
            self._stop.check()
            if is_suspended() or (compaction.max_time_ms > 0 and time.monotonic() >= ends_at_s):
                return
            try:
                if not await self._compact(row.entry_log_id):
                    return
            except OSError as error:
                if isinstance(error, files.SyncFailedError):
                    raise
                self._explain_again(row.entry_log_id, f"compaction failed: {error}")
                _LOG.error("cannot compact %s: %s", file_name(row.entry_log_id), error)
                if error.errno in _NO_ROOM:
                    return

    def explain_waiting(self) -> None:
        """Set the reason why each entry log is kept."""
        for row in list(self._states.values()):
            if not row.reason or row.reason.startswith(("live ", "waits ")):
                self._states[row.entry_log_id] = replace(row, reason=self._why_not_compacted(row))

    async def _compact(self, entry_log_id: int) -> bool:
        """Compact one entry log. Return False if the pass should try no more."""
        usage = await self._usage(entry_log_id)
        ledgers = None if usage is None else self._live_ledgers(usage)
        if usage is None or ledgers is None:
            return True
        full = self._config.force_gc_when_no_space
        try:
            result = await self._compactor.compact(usage, ledgers, full_disks=full)
        except CompactionRefusedError as error:
            self._explain_again(entry_log_id, str(error))
            _LOG.warning("%s is not compacted: %s", usage.path, error)
            return True
        finally:
            # After a failure, the next pass begins with what this attempt left.
            self._usages.forget(entry_log_id)
        self._states.pop(entry_log_id, None)
        self._counters.entry_logs_compacted += 1
        self._counters.entries_moved += result.entries
        self._counters.reclaimed_by_compaction_bytes += result.old_bytes - result.new_bytes
        return True

    async def _remove(self, usage: EntryLogUsage) -> None:
        try:
            await self._storage.remove_entry_log(usage.entry_log_id)
        except files.SyncFailedError:
            raise
        except OSError as error:
            self._counters.failed_deletions += 1
            self._explain(usage, f"cannot be removed: {error}")
            _LOG.error("cannot remove %s: %s", usage.path, error)
            return
        self._usages.forget(usage.entry_log_id)
        self._counters.entry_logs_removed += 1
        self._counters.reclaimed_by_deletion_bytes += usage.file_bytes
        _LOG.info("removed %s: it had no entry of a ledger of this bookie", usage.path)

    async def _usage(self, entry_log_id: int) -> EntryLogUsage | None:
        try:
            path = self._storage.entry_log_path(entry_log_id)
            return await self._run(self._usages.get, entry_log_id, path, self._stop.check)
        except OSError as error:
            self._explain_unread(entry_log_id, f"cannot be read: {error}")
            return None

    async def _ask_index(self, entry_log_ids: set[int]) -> None:
        """Find the ledgers that point into these entry logs, unless an index file cannot be read."""
        if not entry_log_ids:
            return
        index_path, check = self._storage.index_path, self._stop.check
        try:
            self._pointing |= await self._run(ledgers_pointing, entry_log_ids, self._local, index_path, check)
        except OSError as error:
            _LOG.error("damaged entry logs stay because an index file cannot be read: %s", error)

    def _live_ledgers(self, usage: EntryLogUsage) -> Int64s | None:
        """Local ledgers that may have entries in the entry log; None if that is unknown."""
        if not usage.problem:
            return usage.live_ledgers(self._local)
        pointing = self._pointing.get(usage.entry_log_id)
        return None if pointing is None else np.intersect1d(pointing, self._local)

    # --- reasons -----------------------------------------------------------------------------------

    def _explain(self, usage: EntryLogUsage, reason: str) -> None:
        """Note why an entry log is kept. For "", :meth:`explain_waiting` sets the reason."""
        live = usage.live_bytes(self._local)
        total = usage.total_bytes
        if usage.problem:
            total = max(total, usage.file_bytes - HEADER_BYTES)
        if self._config.gc_use_target_log_size:
            total = max(total, self._config.entry_log_size_limit_bytes)
        share = live / total if total > 0 else 0.0
        # An entry log with unknown usage is not compacted.
        known = self._live_ledgers(usage) is not None
        directory = os.path.dirname(usage.path)
        self._states[usage.entry_log_id] = EntryLogStatus(
            usage.entry_log_id, directory, usage.file_bytes, live, share if known else -1.0, reason
        )

    def _explain_again(self, entry_log_id: int, reason: str) -> None:
        self._states[entry_log_id] = replace(self._states[entry_log_id], reason=reason)

    def _explain_unread(self, entry_log_id: int, reason: str) -> None:
        state = self._unread(entry_log_id, reason)
        if state is not None:
            self._states[entry_log_id] = state

    def _unread(self, entry_log_id: int, reason: str) -> EntryLogStatus | None:
        """The status of an entry log that was not read; None if it was removed meanwhile."""
        try:
            path = self._storage.entry_log_path(entry_log_id)
            size = os.stat(path).st_size
        except FileNotFoundError:
            return None
        except OSError:
            path, size = "", -1
        return EntryLogStatus(entry_log_id, os.path.dirname(path), size, -1, -1.0, reason)

    def _why_not_compacted(self, row: EntryLogStatus) -> str:
        minor, major = self._config.minor_compaction, self._config.major_compaction
        enabled = [
            (compaction.threshold, name)
            for compaction, name in ((minor, "minor"), (major, "major"))
            if compaction.threshold > 0 and (compaction.interval_ms > 0 or self._config.force_allow_compaction)
        ]
        for threshold, name in sorted(enabled):
            if row.usage < threshold:
                return f"waits for {name} compaction: live {row.usage:.0%}"
        if not enabled:
            return f"live {row.usage:.0%}, and compaction is off"
        return f"live {row.usage:.0%} is not below {max(enabled)[0]:.0%}"
