"""Garbage collection as operators and the disk monitor steer it."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from bookie_server.admin.actions import CollectionStatus, EntryLogState, RefusedError, StoppedCollection
from bookie_server.gc.brake import Brake, StoppedPass
from bookie_server.gc.collector_config import CompactionConfig, GarbageCollectorConfig
from bookie_server.gc.garbage_collector import GarbageCollector
from bookie_server.gc.throttle import GarbageCollectorStoppedError

_LOG: Final = logging.getLogger(__name__)
_MAJOR: Final = "major"
_MINOR: Final = "minor"


class CollectorControl:
    """Steers ``collector``. Belongs to the event loop.

    A compaction is suspended while an operator wants it so, or the disks do; neither takes back what the other said.
    """

    def __init__(self, collector: GarbageCollector, config: GarbageCollectorConfig) -> None:
        self._collector = collector
        self._config = config
        self._by_disks: set[str] = set()
        self._passes: set[asyncio.Task[object]] = set()

    # --- for the disk monitor ----------------------------------------------------------------------

    def suspend_minor_by_disks(self, suspended: bool) -> None:
        self._note_disks(_MINOR, suspended)
        self._collector.suspend_minor(suspended)

    def suspend_major_by_disks(self, suspended: bool) -> None:
        self._note_disks(_MAJOR, suspended)
        self._collector.suspend_major(suspended)

    def force_by_disks(self, wanted: bool) -> None:
        """Disks are almost full: a pass with all compactions now, and all later ones so; or no more."""
        self._collector.force_by_disks(wanted)

    # --- for operators -----------------------------------------------------------------------------

    @property
    def major_suspended(self) -> bool:
        return self._collector.major_suspended or _MAJOR in self._by_disks

    @major_suspended.setter
    def major_suspended(self, suspended: bool) -> None:
        self._collector.major_suspended = suspended

    @property
    def minor_suspended(self) -> bool:
        return self._collector.minor_suspended or _MINOR in self._by_disks

    @minor_suspended.setter
    def minor_suspended(self, suspended: bool) -> None:
        self._collector.minor_suspended = suspended

    async def force(self, *, major: bool | None, minor: bool | None) -> None:
        """See Collection. Refuses a compaction that was asked for by name and will not be done."""
        if major:
            self._check(_MAJOR, self._collector.major_suspended, self._config.major)
        if minor:
            self._check(_MINOR, self._collector.minor_suspended, self._config.minor)
        task = asyncio.get_running_loop().create_task(self._pass(major is not False, minor is not False))
        self._passes.add(task)
        task.add_done_callback(self._passes.discard)
        await asyncio.sleep(0)
        if task.done() and isinstance(stopped := task.result(), GarbageCollectorStoppedError):
            raise RefusedError(str(stopped))

    def status(self) -> CollectionStatus:
        status = self._collector.status()
        return CollectionStatus(
            forced=status.forced or bool(self._passes),
            in_major=status.in_major,
            in_minor=status.in_minor,
            last_major_ms=status.last_major_ms,
            last_minor_ms=status.last_minor_ms,
            major_count=status.major_count,
            minor_count=status.minor_count,
        )

    def problem(self) -> str:
        """See Collection."""
        return self._collector.status().problem

    def stopped(self) -> list[StoppedCollection]:
        """See Collection."""
        return [
            _stopped(brake, brake.stopped, brake.released > 0)
            for brake in self._collector.brakes
            if brake.stopped is not None
        ]

    async def release(self, word: str) -> StoppedCollection:
        """See Collection."""
        brake = next((each for each in self._collector.brakes if each.stopped and each.stopped.word == word), None)
        if brake is None or brake.stopped is None:
            waiting = [f"{each.stopped.word} ({each.kind})" for each in self._collector.brakes if each.stopped]
            raise RefusedError(
                f"no collection waits for the word {word!r}: "
                + (f"what was counted last waits for {' or '.join(waiting)}" if waiting else "none is stopped")
            )
        released = _stopped(brake, brake.stopped, True)
        _LOG.warning("an operator releases %d %s ledgers: word=%s", released.ledgers, brake.kind, word)
        brake.release()
        await self.force(major=False, minor=False)
        return released

    async def entry_logs(self) -> list[EntryLogState]:
        """See Collection."""
        return [
            EntryLogState(
                log.entry_log_id,
                log.directory,
                log.size_bytes,
                log.live_bytes if log.live_bytes >= 0 else None,
                round(log.usage, 4) if log.usage >= 0 else None,
                log.reason,
            )
            for log in await self._collector.entry_logs()
        ]

    def _check(self, name: str, suspended: bool, compaction: CompactionConfig) -> None:
        if suspended:
            raise RefusedError(f"{name} compaction is suspended; resume it first")
        if name in self._by_disks:
            raise RefusedError(f"{name} compaction is suspended, for a disk is too full")
        if not compaction.enabled and not (self._config.force_allow_compaction and compaction.threshold > 0):
            raise RefusedError(
                f"{name} compaction is off: {name}CompactionInterval or {name}CompactionThreshold is 0 "
                "(forceAllowCompaction=true allows it by hand where the threshold is not)"
            )

    def _note_disks(self, name: str, suspended: bool) -> None:
        if suspended:
            self._by_disks.add(name)
        else:
            self._by_disks.discard(name)

    async def _pass(self, major: bool, minor: bool) -> object:
        """The status after the pass, or why there was none."""
        try:
            return await self._collector.run(force_major=major, force_minor=minor)
        except GarbageCollectorStoppedError as stopped:
            return stopped


def _stopped(brake: Brake, stopped: StoppedPass, released: bool) -> StoppedCollection:
    return StoppedCollection(
        brake.kind, len(stopped.ledgers), stopped.held, stopped.counted_ms, stopped.named, stopped.word, released
    )
