"""The garbage collector: removes ledgers that the cluster no longer needs here, and frees the space in entry logs.

A pass runs every ``gc_interval_ms`` and on request. It removes deleted ledgers, then over-replicated ledgers if they
are due, finishes compactions that were cut short, removes entry logs without a live ledger, and compacts others if that
is due. It runs in the event loop, with a thread for blocking work. An error ends the part that it concerns, never the
loop. A failed sync goes to ``on_failure``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, TypeVar

from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.shielded import shielded
from bookie_server.config.collection import CompactionSettings
from bookie_server.config.config import BookieConfig
from bookie_server.gc.brake import CollectionBrake, CollectionBrakeLimits
from bookie_server.gc.collected_storage import CollectedStorage
from bookie_server.gc.collection_steps import CollectionReport
from bookie_server.gc.collector_status import (
    EntryLogStatus,
    EntryLogTotals,
    GarbageCollectorCounters,
    GarbageCollectorStatus,
)
from bookie_server.gc.entry_log_collection import EntryLogCollection
from bookie_server.gc.ledger_collection import LedgerCollection
from bookie_server.gc.ledger_metadata_reads import LedgerMetadataReads
from bookie_server.gc.throttle import GarbageCollectorStoppedError, StopSignal, Throttle
from bookie_server.identity.cluster_identity import ClusterIdentity
from bookie_server.storage.disk import files
from bookie_server.storage.threads import in_thread

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")


#: The two compactions.
MINOR: Final = "minor"
MAJOR: Final = "major"
#: The names of those that may suspend compactions.
OPERATOR: Final = "operator"
DISKS: Final = "disks"


class CollectionRefusedError(Exception):
    """An operator's request is refused. The message says why."""


class GarbageCollector:
    """Garbage collection of one bookie. Event loop only.

    Parameters
    ----------
    storage
        The storage to clean up.
    config
        The bookie's configuration: intervals, thresholds and rates.
    store
        The cluster's metadata.
    identity
        This bookie, and the only cluster whose metadata is believed.
    on_failure
        Called with an error that must end the bookie.
    """

    def __init__(
        self,
        storage: CollectedStorage,
        config: BookieConfig,
        store: LedgerStore,
        identity: ClusterIdentity,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._storage = storage
        self._config = config
        self._on_failure = on_failure
        self._stop = StopSignal()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="gc")
        self.counters = GarbageCollectorCounters()
        reads = LedgerMetadataReads(store, identity, Throttle(config.gc_metadata_operations_per_s), self._stop)
        limits = CollectionBrakeLimits(config.gc_brake_share, config.gc_brake_ledgers, config.gc_brake_ids_not_given)
        self._ledgers = LedgerCollection(storage, reads, limits, self._run_blocking, self._stop)
        self.brakes = (self._ledgers.deleted, self._ledgers.over_replicated)
        self._logs = EntryLogCollection(config, storage, self._run_blocking, self._stop, self.counters)
        self._status = GarbageCollectorStatus()
        #: What went wrong in the pass under way.
        self._problem = ""
        self._foreign = False
        self._task: asyncio.Task[None] | None = None
        self._asked = asyncio.Event()
        self._request: _Request | None = None
        #: Who suspended each compaction. Each of them can withdraw only its own suspension.
        self._suspended: dict[str, set[str]] = {MINOR: set(), MAJOR: set()}
        self._forced_by_disks = False
        now = time.monotonic()
        self._over_replicated_at_s = self._minor_at_s = self._major_at_s = now

    async def complete_compactions(self) -> None:
        """Finish compactions that the last process left. Call before or after :meth:`start`. The bookie may serve
        meanwhile, because the index points to the old places until then."""
        await self._guarded(self._logs.finish_leftovers)

    def start(self) -> None:
        """Start. The first pass runs after ``gc_interval_ms``."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """Stop at the next step of the work under way. The next start cleans up what it leaves."""
        self._stop.set()
        self._asked.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, self._executor.shutdown)

    async def run(self, *, force_minor: bool = False, force_major: bool = False) -> GarbageCollectorStatus:
        """Run a pass now, or after the one under way. A forced compaction runs even if it is not due. Raises
        GarbageCollectorStoppedError."""
        return await shielded(self._request_pass(force_minor, force_major))

    def force(self, *, major: bool | None, minor: bool | None) -> None:
        """Request a pass for an operator, with major or minor compaction. None: only if it is not suspended.

        Raises CollectionRefusedError if the pass, or a compaction that was asked for by name, is impossible.
        """
        for wanted, name, compaction in (
            (major, MAJOR, self._config.major_compaction),
            (minor, MINOR, self._config.minor_compaction),
        ):
            if wanted:
                self._check_possible(name, compaction)
        try:
            self._request_pass(minor is not False, major is not False)
        except GarbageCollectorStoppedError as stopped:
            raise CollectionRefusedError(str(stopped)) from None

    def release(self, word: str) -> CollectionBrake:
        """Release the ledgers that wait for ``word``, for an operator, and start a pass soon.

        Raises CollectionRefusedError if no ledgers wait for it.
        """
        waiting = {brake.stopped.word: brake for brake in self.brakes if brake.stopped is not None}
        if word not in waiting:
            named = " or ".join(f"{each} ({brake.kind})" for each, brake in waiting.items())
            raise CollectionRefusedError(
                f"no collection waits for the word {word!r}: "
                + (f"the word is {named}" if named else "no collection is stopped")
            )
        brake = waiting[word]
        brake.release()
        _LOG.warning("an operator released %d %s ledgers: word=%s", brake.released, brake.kind, word)
        self.force(major=False, minor=False)
        return brake

    def suspend(self, compaction: str, by: str, suspended: bool) -> None:
        """Suspend MINOR or MAJOR compaction for OPERATOR or DISKS, or resume it.

        A compaction under way stops after its current entry log.
        """
        if suspended:
            self._suspended[compaction].add(by)
        else:
            self._suspended[compaction].discard(by)

    def is_suspended(self, compaction: str) -> bool:
        """Whether anybody has suspended MINOR or MAJOR compaction."""
        return bool(self._suspended[compaction])

    def force_by_disks(self, forced: bool) -> None:
        """For the disk monitor: start a pass now, and compact in every pass until this is called with False."""
        self._forced_by_disks = forced
        if forced and self._task is not None and not self._stop.is_set:
            self._request_pass(True, True)

    def status(self) -> GarbageCollectorStatus:
        """The current status."""
        return replace(self._status, forced=self._status.forced or self._request is not None)

    def entry_log_totals(self) -> EntryLogTotals:
        """Totals of all entry logs, as the last pass saw them; zeros before the first pass."""
        return self._logs.totals()

    async def entry_logs(self) -> list[EntryLogStatus]:
        """Every entry log, ascending, and why it is kept, as the last pass saw it. Raises OSError."""
        return await self._logs.states()

    # --- the loop ----------------------------------------------------------------------------------

    async def _work(self) -> None:
        while not self._stop.is_set:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.gc_interval_ms / 1000):
                    await self._asked.wait()
            request, self._request = self._request, None
            self._asked.clear()
            if not self._stop.is_set:
                await self._pass(request)
            if request is not None:
                request.answer(self.status(), self._stop.is_set)
        if self._request is not None:
            self._request.answer(self.status(), True)

    async def _pass(self, request: _Request | None) -> None:
        started_s = time.monotonic()
        forced = request is not None or self._forced_by_disks
        minor = self._forced_by_disks or (request is not None and request.minor)
        major = self._forced_by_disks or (request is not None and request.major)
        self._status.running, self._status.forced = True, forced
        self._problem, self._foreign = "", False
        ok = True
        deleted_before = self._deleted
        for step in (self._collect_ledgers, self._collect_over_replicated):
            ok = await self._guarded(step) and ok
        if self._deleted != deleted_before:
            ok = await self._guarded(self._pass_what_was_deleted) and ok
        # If the entry logs could not be examined, it is unknown which of them may be compacted.
        ok = await self._guarded(self._collect_logs) and await self._guarded(lambda: self._compact(minor, major)) and ok
        self._status.running = self._status.forced = False
        self._status.problem, self._status.foreign_cluster = self._problem, self._foreign
        self._status.last_run_ms = _now_ms()
        self.counters.passes.note(time.monotonic() - started_s, ok and not self._status.problem)

    @property
    def _deleted(self) -> int:
        return self.counters.ledgers_deleted + self.counters.over_replicated_deleted

    async def _pass_what_was_deleted(self) -> None:
        """Advance the journals' marks past the records of removed ledgers. A replay would restore these ledgers, and
        with them an old key if an id is used again. If the disk is full, a later flush does it."""
        try:
            await self._storage.flush()
        except files.SyncFailedError:
            raise
        except OSError as error:
            _LOG.warning("a restart before the next flush may restore removed ledgers: %s", error)

    async def _guarded(self, step: Callable[[], Awaitable[None]]) -> bool:
        """Run ``step``. Return whether it succeeded."""
        try:
            self._stop.check()
            await step()
        except GarbageCollectorStoppedError:
            return False
        except files.SyncFailedError as error:
            _LOG.critical("collection: %s", error)
            self._stop.set()
            self._on_failure(error)
            return False
        except Exception as error:
            self._problem = str(error) or type(error).__name__
            _LOG.exception("a part of the collection failed, next attempt in %d ms", self._config.gc_interval_ms)
            return False
        return True

    async def _collect_ledgers(self) -> None:
        await self._ledgers.release_locks()
        started_s = time.monotonic()
        result = await self._ledgers.collect_deleted()
        self.counters.ledgers_deleted += len(result.deleted)
        self.counters.ledgers.note(time.monotonic() - started_s, not result.problem)
        self._note(result)

    async def _collect_over_replicated(self) -> None:
        wait_s = self._config.gc_over_replicated_interval_ms / 1000
        if wait_s <= 0:
            return
        waited_s = time.monotonic() - self._over_replicated_at_s
        if waited_s < wait_s and not self._ledgers.over_replicated.released:
            return
        result = await self._ledgers.collect_over_replicated()
        self._over_replicated_at_s = time.monotonic()
        self._status.last_over_replicated_ms = _now_ms()
        self.counters.over_replicated_deleted += len(result.deleted)
        self._note(result)

    def _note(self, result: CollectionReport) -> None:
        self.counters.failed_deletions += result.failed
        self._problem = self._problem or result.problem
        self._foreign = self._foreign or result.foreign_cluster

    async def _collect_logs(self) -> None:
        await _timed(self.counters.logs.note, self._look_at_logs())

    async def _look_at_logs(self) -> None:
        await self._logs.finish_leftovers()
        await self._logs.remove_dead()

    async def _compact(self, force_minor: bool, force_major: bool) -> None:
        """Run major compaction if it is due, otherwise minor compaction if that is."""
        config, status, now = self._config, self._status, time.monotonic()
        if self._is_due(config.major_compaction, MAJOR, now - self._major_at_s, force_major):
            status.in_major = True
            try:
                await self._compact_below(config.major_compaction, MAJOR)
            finally:
                status.in_major = False
                self._major_at_s = self._minor_at_s = time.monotonic()
            status.major_count += 1
            status.last_major_ms = status.last_minor_ms = _now_ms()
        elif self._is_due(config.minor_compaction, MINOR, now - self._minor_at_s, force_minor):
            status.in_minor = True
            try:
                await self._compact_below(config.minor_compaction, MINOR)
            finally:
                status.in_minor = False
                self._minor_at_s = time.monotonic()
            status.minor_count += 1
            status.last_minor_ms = _now_ms()
        else:
            self._logs.explain_waiting()

    async def _compact_below(self, compaction: CompactionSettings, name: str) -> None:
        work = self._logs.compact(compaction, lambda: self.is_suspended(name))
        await _timed(self.counters.compactions.note, work)

    def _is_due(self, compaction: CompactionSettings, name: str, waited_s: float, forced: bool) -> bool:
        if self.is_suspended(name):
            return False
        if forced and self._config.force_allow_compaction and compaction.threshold > 0:
            return True
        return compaction.enabled and (forced or waited_s * 1000 >= compaction.interval_ms)

    def _check_possible(self, name: str, compaction: CompactionSettings) -> None:
        if OPERATOR in self._suspended[name]:
            raise CollectionRefusedError(f"{name} compaction is suspended; resume it first")
        if DISKS in self._suspended[name]:
            raise CollectionRefusedError(f"{name} compaction is suspended because a disk is too full")
        if not compaction.enabled and not (self._config.force_allow_compaction and compaction.threshold > 0):
            raise CollectionRefusedError(
                f"{name} compaction is off: {name}CompactionInterval or {name}CompactionThreshold is 0. With a "
                "threshold above 0, forceAllowCompaction=true allows it on request"
            )

    def _request_pass(self, minor: bool, major: bool) -> asyncio.Future[GarbageCollectorStatus]:
        """Request a pass. Requests that wait for the same pass are joined."""
        if self._task is None or self._stop.is_set:
            raise GarbageCollectorStoppedError("the garbage collector is not running")
        if self._request is None:
            self._request = _Request(asyncio.get_running_loop().create_future())
        self._request.minor |= minor
        self._request.major |= major
        self._asked.set()
        return self._request.done

    async def _run_blocking(self, function: Callable[..., _T], /, *arguments: object) -> _T:
        return await in_thread(self._executor, function, *arguments)


class _Request:
    """A requested pass."""

    def __init__(self, done: asyncio.Future[GarbageCollectorStatus]) -> None:
        self.done = done
        self.minor = False
        self.major = False

    def answer(self, status: GarbageCollectorStatus, stopped: bool) -> None:
        if self.done.done():
            return
        if stopped:
            self.done.set_exception(GarbageCollectorStoppedError("the garbage collector stopped"))
            self.done.exception()  # the requester may not await it
        else:
            self.done.set_result(status)


async def _timed(note: Callable[[float, bool], None], work: Awaitable[None]) -> None:
    started_s = time.monotonic()
    ok = False
    try:
        await work
        ok = True
    finally:
        note(time.monotonic() - started_s, ok)


def _now_ms() -> int:
    return int(time.time() * 1000)
