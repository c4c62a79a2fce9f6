"""The disk monitor: detects full and failed directories and reacts to them. Source: compatibility.md §5.10.

It checks all directories every ``diskCheckInterval``.

* A ledger or index directory used more than ``diskUsageThreshold`` is full and takes no new files. It recovers at or
  below the threshold. If all were full, it recovers only when their total usage is below ``diskUsageLwmThreshold``.
* Accepted entries must be stored somewhere: if all directories are full, those with more room than
  ``minUsableSizeForEntryLogCreation`` still take new files.
* The bookie is read-only while one directory is full (``readOnlyModeOnAnyDiskFullEnabled``), or while all are.
* A full directory suspends compaction. One above ``diskUsageWarnThreshold`` suspends major compaction. With
  ``isForceGCAllowWhenNoSpace`` both start collections instead.
* A directory that is missing, does not answer or is mounted read-only has failed. It counts as full, with its reason.
* A journal directory needs room for what may be written between two checks. Otherwise the bookie is read-only.
* A directory where a write failed recovers when it has room and a file can be written there. A journal recovers when
  the journal itself can be written. If flushes failed (source "storage") and a directory takes files, a flush is tried
  at once; the storage itself reports its success.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bookie_server.config.config import BookieConfig
from bookie_server.disks.disk_probe import DiskProber, DiskUsage
from bookie_server.state import DISK, JOURNAL, STORAGE, BookieState
from bookie_server.storage.disk.directories import LedgerDirectories

_LOG: Final = logging.getLogger(__name__)
#: A disk that does not answer within this time has failed.
_PROBE_TIMEOUT_MS: Final = 5_000
#: A journal directory without room recovers when it has this multiple of the required room.
_JOURNAL_HYSTERESIS: Final = 2


@dataclass(frozen=True, slots=True)
class CollectorHooks:
    """Requests to the collector. Each is called when its value changes."""

    suspend_minor: Callable[[bool], None] = lambda _: None
    suspend_major: Callable[[bool], None] = lambda _: None
    force: Callable[[bool], None] = lambda _: None


@dataclass(slots=True)
class _Group:
    """Directories of one kind, ledgers or indexes, and which of them are full."""

    paths: tuple[str, ...]
    full: set[str] = field(default_factory=set)

    def update(self, config: BookieConfig, found: dict[str, DiskUsage | OSError]) -> None:
        above = {path for path in self.paths if _is_above(found[path], config.disk_usage_threshold)}
        if len(self.full) < len(self.paths) or self._total_used(found) < config.disk_usage_low_water_mark:
            self.full = above
        else:
            self.full |= above

    def _total_used(self, found: dict[str, DiskUsage | OSError]) -> float:
        """Usage of all file systems together, each counted once."""
        disks = {usage.device: usage for path in self.paths if isinstance(usage := found[path], DiskUsage)}
        usable = sum(usage.usable_bytes for usage in disks.values())
        total = sum(usage.total_bytes for usage in disks.values())
        return DiskUsage(usable, total).used if disks else 1.0


class DiskMonitor:
    """Checks the disks and reports to ``directories`` and ``state``. Belongs to the event loop.

    ``flush()`` writes what is in memory; the storage reports its errors itself. ``probe_journals(done)`` tests whether
    failed journals can be written again. It returns True and calls ``done(ok)``, or returns False if none failed.
    """

    def __init__(
        self,
        config: BookieConfig,
        directories: LedgerDirectories,
        journal_paths: Sequence[str],
        state: BookieState,
        *,
        flush: Callable[[], Coroutine[None, None, None]],
        probe_journals: Callable[[Callable[[bool], None]], bool],
        prober: DiskProber | None = None,
    ) -> None:
        self._config = config
        self._directories = directories
        self._journal_paths = tuple(journal_paths)
        self._state = state
        self._hooks = CollectorHooks()
        self._flush = flush
        self._flushing: asyncio.Task[None] | None = None
        self._probe_journals = probe_journals
        self._prober = prober or DiskProber(_PROBE_TIMEOUT_MS)
        self._groups = [_Group(directories.paths)]
        if directories.index_paths != directories.paths:
            self._groups.append(_Group(directories.index_paths))
        self._journal_room = config.journal_preallocate_bytes + config.journal_max_memory_bytes
        self._journals_without_room: set[str] = set()
        #: Directories with a failure, until a file was written there.
        self._suspects: set[str] = set()
        self._told: dict[str, bool] = {}
        self._task: asyncio.Task[None] | None = None
        #: Last result by directory (``current``): its usage, or the error.
        self.found: dict[str, DiskUsage | OSError] = {}

    async def start(self) -> None:
        """Check once, so that the mode is known before the bookie registers; then check regularly."""
        await self.check()
        self._task = asyncio.get_running_loop().create_task(self._check_regularly())

    async def stop(self) -> None:
        """Stop checking, and wait for a flush that a check began."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._flushing is not None:
            await self._flushing

    def set_hooks(self, hooks: CollectorHooks) -> None:
        """Set the collector's hooks, which are created after the first check. They are called at once."""
        self._hooks = hooks
        self._told.clear()
        if self.found:
            self._tell_collector()

    def used(self, path: str) -> float:
        """Used share of the disk under ``path``, from 0 to 1; 1 if it is unknown, 0 before the first check."""
        usage = self.found.get(path)
        if usage is None:
            return 0.0
        return usage.used if isinstance(usage, DiskUsage) else 1.0

    def space(self) -> tuple[int, int] | None:
        """Free and total bytes on the disks of the ledger directories at the last check, each disk counted once. None
        if none could be checked."""
        usages = (self.found.get(path) for path in self._directories.paths)
        disks = {usage.device: usage for usage in usages if isinstance(usage, DiskUsage)}
        if not disks:
            return None
        return sum(d.usable_bytes for d in disks.values()), sum(d.total_bytes for d in disks.values())

    async def check(self) -> None:
        """Check all directories and act on the results."""
        # Failures during this check are left for the next one.
        failed, reasons = self._directories.failures(), set(self._state.reasons)
        ledger_paths = dict.fromkeys(path for group in self._groups for path in group.paths)
        paths = list(dict.fromkeys((*ledger_paths, *self._journal_paths)))
        self._update_suspects(failed)
        answers = await asyncio.gather(*(self._prober.probe(path, write=path in self._suspects) for path in paths))
        journals_work = JOURNAL not in reasons or await self._journals_work()
        self.found = dict(zip(paths, answers, strict=True))
        self._suspects = {
            path
            for path, usage in self.found.items()
            if isinstance(usage, OSError) or (path in self._suspects and usage.usable_bytes == 0)
        }
        for group in self._groups:
            group.update(self._config, self.found)
        self._tell_directories(ledger_paths, failed)
        self._state.set_room_for_high_priority(self._has_room_for_high_priority())
        self._update_disk_reason()
        self._update_journal_reason(clear=JOURNAL in reasons and journals_work)
        if STORAGE in reasons and self._directories.for_flushes():
            self._try_flush()
        self._tell_collector()

    async def _check_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._config.disk_check_interval_ms / 1000)
            try:
                await self.check()
            except Exception:
                _LOG.exception("checking the disks failed")

    def _try_flush(self) -> None:
        async def flush() -> None:
            with contextlib.suppress(Exception):  # the storage has reported it
                await self._flush()

        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.get_running_loop().create_task(flush())

    def _full_paths(self) -> set[str]:
        return set[str]().union(*(group.full for group in self._groups))

    async def _journals_work(self) -> bool:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool] = loop.create_future()
        if not self._probe_journals(lambda ok: None if answer.done() else answer.set_result(ok)):
            return True
        try:
            return await asyncio.wait_for(answer, _PROBE_TIMEOUT_MS / 1000)
        except TimeoutError:
            return False

    def _update_suspects(self, failed: Iterable[str]) -> None:
        """Update the directories with failures: only a written file shows that one has recovered."""
        self._suspects.update(set(failed) - self._full_paths())
        if JOURNAL in self._state.reasons:
            self._suspects.update(self._journal_paths)

    def _tell_directories(self, paths: Iterable[str], failed_before: Collection[str]) -> None:
        failed_now, full = self._directories.failures(), self._full_paths()
        for path in paths:
            if path in full and not self._takes_what_was_accepted(path):
                if path not in failed_now:
                    _LOG.warning("directory takes no new files: path=%s reason=%s", path, self._reason(path))
                self._directories.set_writable(path, False, self._reason(path))
            elif path in failed_before:
                _LOG.info("directory takes new files again: path=%s used=%.4f", path, self.used(path))
                self._directories.set_writable(path, True, "")

    def _takes_what_was_accepted(self, path: str) -> bool:
        usage = self.found[path]
        return (
            isinstance(usage, DiskUsage)
            and usage.usable_bytes > self._config.min_usable_entry_log_bytes
            and all(len(group.full) == len(group.paths) for group in self._groups if path in group.paths)
        )

    def _reason(self, path: str) -> str:
        usage = self.found[path]
        return _failure(usage) if isinstance(usage, OSError) else f"full: {usage.used:.1%} used"

    def _update_disk_reason(self) -> None:
        for group in self._groups:
            everything = len(group.full) == len(group.paths)
            if everything or (group.full and self._config.read_only_on_any_disk_full):
                told = "; ".join(f"{path}: {self._reason(path)}" for path in group.paths if path in group.full)
                self._state.set_read_only(DISK, told)
                return
        self._state.clear(DISK)

    def _update_journal_reason(self, *, clear: bool) -> None:
        failures = {}
        for path in self._journal_paths:
            usage = self.found[path]
            if isinstance(usage, OSError):
                failures[path] = _failure(usage)
                continue
            need = self._journal_room
            if path in self._journals_without_room:
                need *= _JOURNAL_HYSTERESIS
            if usage.usable_bytes < need:
                failures[path] = f"{usage.usable_bytes} bytes left, {need} are needed"
        self._journals_without_room = set(failures)
        if failures:
            told = "; ".join(f"{path}: {reason}" for path, reason in failures.items())
            self._state.set_read_only(JOURNAL, f"journal directory {told}")
        elif clear:
            self._state.clear(JOURNAL)

    def _has_room_for_high_priority(self) -> bool:
        """False while all directories of a kind are full and none has enough room left."""
        least = self._config.min_usable_high_priority_bytes
        for group in self._groups:
            usages = [usage for path in group.paths if isinstance(usage := self.found[path], DiskUsage)]
            if len(group.full) == len(group.paths) and all(usage.usable_bytes <= least for usage in usages):
                return False
        return True

    def _tell_collector(self) -> None:
        warn = self._config.disk_usage_warn_threshold
        full = bool(self._full_paths())
        almost = full or any(
            _is_above(self.found[path], warn) for path in self._directories.paths if path in self.found
        )
        force = self._config.force_gc_when_no_space
        for name, hook, value in (
            ("minor", self._hooks.suspend_minor, full and not force),
            ("major", self._hooks.suspend_major, almost and not force),
            ("force", self._hooks.force, almost and force),
        ):
            if self._told.get(name, False) != value:
                self._told[name] = value
                hook(value)


def _is_above(found: DiskUsage | OSError, threshold: float) -> bool:
    return isinstance(found, OSError) or found.used > threshold


def _failure(error: OSError) -> str:
    return f"failed: {error.strerror or error}"
