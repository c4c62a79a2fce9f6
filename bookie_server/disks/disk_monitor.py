"""The disk monitor: which directories are full or have failed, and what follows. Source: compatibility.md §5.10.

Every ``diskCheckInterval`` all directories are looked at.

* A ledger or index directory used more than ``diskUsageThreshold`` is full and takes no new files. It is good again at
  or below the threshold; where all were full, only when all together are used less than ``diskUsageLwmThreshold``.
* What was accepted must go somewhere: where all are full, those with more room than
  ``minUsableSizeForEntryLogCreation`` take new files nevertheless.
* The bookie is read-only while one is full (``readOnlyModeOnAnyDiskFullEnabled``), or while all are.
* A full directory suspends compaction, one above ``diskUsageWarnThreshold`` major compaction; with
  ``isForceGCAllowWhenNoSpace`` both start collections instead.
* A directory that is gone, does not answer or is mounted read-only has failed. It counts as full, with its reason.
* A journal directory needs room for what may be written between two looks, else the bookie is read-only.
* A directory where a write failed is good again when it has room and a file can be written there; a journal, when
  it can be written itself. Where flushes failed (source "storage") and a directory takes files, a flush is tried at
  once; that it succeeded, the storage says itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bookie_server.config.config import BookieConfig
from bookie_server.disks.disk_probe import DiskUsage, Prober
from bookie_server.state import DISK, JOURNAL, STORAGE, BookieState
from bookie_server.storage.directories import LedgerDirectories

_LOG: Final = logging.getLogger(__name__)
#: A disk that does not answer for so long has failed.
_PROBE_TIMEOUT_MS: Final = 5_000
#: A journal directory without room is good again with so many times the room.
_JOURNAL_HYSTERESIS: Final = 2


@dataclass(frozen=True, slots=True)
class CollectorHooks:
    """What the monitor asks of the collector, when the answer changes."""

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
        """Of all file systems together, each counted once."""
        disks = {usage.device: usage for path in self.paths if isinstance(usage := found[path], DiskUsage)}
        usable = sum(usage.usable_bytes for usage in disks.values())
        total = sum(usage.total_bytes for usage in disks.values())
        return DiskUsage(usable, total).used if disks else 1.0


class DiskMonitor:
    """Looks at the disks and tells ``directories`` and ``state``. Belongs to the event loop.

    ``flush()`` writes what is in memory; what it raises is known to the storage. ``probe_journals(done)`` finds out
    whether journals that failed can be written again, calls ``done(ok)`` and is True; it is False where none failed.
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
        prober: Prober | None = None,
    ) -> None:
        self._config = config
        self._directories = directories
        self._journal_paths = tuple(journal_paths)
        self._state = state
        self._hooks = CollectorHooks()
        self._flush = flush
        self._flushing: asyncio.Task[None] | None = None
        self._probe_journals = probe_journals
        self._prober = prober or Prober(_PROBE_TIMEOUT_MS)
        self._groups = [_Group(directories.paths)]
        if directories.index_paths != directories.paths:
            self._groups.append(_Group(directories.index_paths))
        self._journal_room = config.journal_preallocate_bytes + config.journal_max_memory_bytes
        self._journals_without_room: set[str] = set()
        #: Directories where something failed, until a file was written there.
        self._suspects: set[str] = set()
        self._told: dict[str, bool] = {}
        self._task: asyncio.Task[None] | None = None
        #: What was found last, by directory (``current``): its usage, or why there is none.
        self.found: dict[str, DiskUsage | OSError] = {}

    async def start(self) -> None:
        """Look once, so that the mode is known before the bookie registers; then regularly."""
        await self.check()
        self._task = asyncio.get_running_loop().create_task(self._check_regularly())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._flushing is not None:
            await self._flushing

    def set_hooks(self, hooks: CollectorHooks) -> None:
        """The collector, made after the first look; it is told at once."""
        self._hooks = hooks
        self._told.clear()
        if self.found:
            self._tell_collector()

    def used(self, path: str) -> float:
        """Share of the disk under ``path`` that is used, from 0 to 1; 1 where it cannot be said, 0 before the first
        look."""
        usage = self.found.get(path)
        if usage is None:
            return 0.0
        return usage.used if isinstance(usage, DiskUsage) else 1.0

    def space(self) -> tuple[int, int] | None:
        """Free and total bytes on the disks of the ledger directories, each disk counted once, as last seen; None where
        none could be looked at."""
        usages = (self.found.get(path) for path in self._directories.paths)
        disks = {usage.device: usage for usage in usages if isinstance(usage, DiskUsage)}
        if not disks:
            return None
        return sum(d.usable_bytes for d in disks.values()), sum(d.total_bytes for d in disks.values())

    async def check(self) -> None:
        """Look at all directories and draw the conclusions."""
        # What fails while the disks are looked at is for the next look.
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
                _LOG.exception("the look at the disks failed")

    def _try_flush(self) -> None:
        async def flush() -> None:
            with contextlib.suppress(Exception):  # the storage has said it
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
        """Where something failed only a written file shows that the directory is good again."""
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
        """Not while all directories of a kind are full and none has enough left."""
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
