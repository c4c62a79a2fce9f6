"""Collection of ledgers: runs the machines of collection_steps.py over the storage and the metadata store.

Ledger ids are compared range by range, in ascending order. A range is the children of one znode: 10,000 ids, or all
ids with the flat layout. Ranges without a ledger of this bookie are skipped. If the bookie has few ledgers of a range,
their znodes are read. Otherwise the children are listed, which is one request, and only ledgers that the list lacks
are read. Any error of the metadata store ends the pass, and ledgers that are not decided stay. Source:
compatibility.md §5.11.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Final

from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.bookie.runners import run_in_turn
from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.errors import BookKeeperError, MetadataError
from bk_spark.protocol.machine import StepMachine
from bookie_server.gc.brake import CollectionBrake, CollectionBrakeLimits
from bookie_server.gc.collected_storage import CollectedStorage, RunBlocking
from bookie_server.gc.collection_steps import (
    RELEASES,
    CollectionReport,
    ListRange,
    MarkLedgers,
    PrepareLocks,
    ReadLedgers,
    ReadLocked,
    ReadNextId,
    ReleaseLock,
    RemoveLedgers,
    Step,
    Steps,
    SyncDeletions,
    SyncMetadata,
    TakeLock,
    UnmarkLedgers,
    deletion_steps,
    over_replication_steps,
)
from bookie_server.gc.ledger_metadata_reads import LedgerMetadataReads
from bookie_server.gc.throttle import StopSignal
from bookie_server.identity.cluster_identity import ForeignClusterError
from bookie_server.storage.disk import files

_LOG: Final = logging.getLogger(__name__)
#: A bookie that stops waits for it.
_RELEASE_TIMEOUT_MS: Final = 5_000
#: Number of ledgers that a log message names.
_NAMED: Final = 10


class LedgerCollection:
    """Removes deleted and over-replicated ledgers from ``storage``, each kind with a brake of its own.

    A pass reports errors of the metadata store and of single files in its result. It raises
    GarbageCollectorStoppedError and SyncFailedError.
    """

    def __init__(
        self,
        storage: CollectedStorage,
        reads: LedgerMetadataReads,
        limits: CollectionBrakeLimits,
        run_blocking: RunBlocking,
        stop: StopSignal,
    ) -> None:
        self._storage = storage
        self._reads = reads
        self._locks = UnderReplicationStore(reads.store.zk, reads.root)
        #: The znode that ends together with the locks of this session. Without it, a lock that was released after the
        #: session's end would be a worker's.
        self._proof = ""
        self._run_blocking = run_blocking
        self._stop = stop
        self.deleted = CollectionBrake("deleted", limits)
        self.over_replicated = CollectionBrake("over-replicated", limits)

    async def collect_deleted(self) -> CollectionReport:
        """Remove ledgers that the metadata store does not have."""
        brake, ids_per_range = self.deleted, self._reads.ids_per_range
        return await self._pass(brake, lambda report, local: deletion_steps(report, local, ids_per_range, brake))

    async def collect_over_replicated(self) -> CollectionReport:
        """Remove closed ledgers that have this bookie in no segment."""
        brake, bookie_id = self.over_replicated, self._reads.identity.bookie_id
        return await self._pass(brake, lambda report, local: over_replication_steps(report, local, bookie_id, brake))

    async def release_locks(self) -> None:
        """Release locks whose release failed before. Errors leave them for the next call."""
        await self._release(self._locks.release_unwanted)

    async def _pass(
        self, brake: CollectionBrake, steps: Callable[[CollectionReport, Int64s], Steps]
    ) -> CollectionReport:
        report = CollectionReport()
        try:
            local = await self._storage.local_ledgers()
            await run_in_turn(StepMachine(steps(report, local[local >= 0])), self._perform)
        except files.SyncFailedError:
            raise
        except (BookKeeperError, OSError) as error:
            report.problem = str(error)
            report.foreign_cluster = isinstance(error, ForeignClusterError)
            level = logging.ERROR if report.foreign_cluster else logging.WARNING
            _LOG.log(level, "collection of %s ledgers ended early, undecided ledgers stay: %s", brake.kind, error)
        finally:
            if report.deleted:
                count = len(report.deleted)
                _LOG.info("removed %d %s ledgers: %s", count, brake.kind, _some(report.deleted[:_NAMED], count))
        stopped = report.stopped
        if stopped is not None:
            report.problem = (
                f"{len(stopped.ledgers)} of {stopped.held} ledgers are {brake.kind}: {stopped.why}. None is "
                f"removed until an operator gives the word {stopped.word}"
            )
            _LOG.error(
                "%s. If ZooKeeper was restored or created again, see docs/operations.md. Otherwise: "
                'PUT /api/v1/bookie/gc/brake {"word": "%s"}. The ledgers: %s',
                report.problem,
                stopped.word,
                _some(stopped.named, len(stopped.ledgers)),
            )
        return report

    async def _perform(self, step: Step) -> Any:
        """Return the step's result. Raises MetadataError, OSError, GarbageCollectorStoppedError."""
        if not isinstance(step, RELEASES):
            self._stop.check()
        match step:
            case SyncMetadata():
                await self._run_blocking(self._reads.begin)
            case PrepareLocks():
                await self._run_blocking(self._prepare_locks)
            case ListRange(ledger_ids):
                return await self._run_blocking(self._reads.unlisted, ledger_ids)
            case ReadLedgers(ledger_ids):
                return await self._run_blocking(self._reads.contents, ledger_ids)
            case ReadNextId():
                return await self._run_blocking(self._reads.next_id)
            case ReadLocked(ledger_id):
                return await self._run_blocking(self._reads.locked_ledger, ledger_id)
            case TakeLock(ledger_id):
                return await self._run_blocking(functools.partial(self._locks.lock, ledger_id, proof=self._proof))
            case ReleaseLock(ledger_id):
                await self._release(functools.partial(self._locks.release, ledger_id))
            case MarkLedgers(ledger_ids):
                return await self._mark(ledger_ids)
            case UnmarkLedgers(ledger_ids):
                for ledger_id in ledger_ids:
                    self._storage.unmark_ledger(ledger_id)
            case RemoveLedgers(ledger_ids):
                return await self._remove(ledger_ids)
            case SyncDeletions():
                await self._storage.sync_deletions()
        return None

    def _prepare_locks(self) -> None:
        self._locks.prepare()
        if not self._proof or self._locks.zk.get_latest(self._proof) is None:
            self._proof = self._locks.begin_collector(self._reads.identity.bookie_id)

    async def _release(self, release: Callable[[], None]) -> None:
        """A lock that stays keeps replication from its ledger for as long as the session lasts."""

        def work() -> None:
            with self._reads.store.zk.within(_RELEASE_TIMEOUT_MS):
                release()

        try:
            await self._run_blocking(work)
        except MetadataError as error:
            _LOG.warning("cannot release a replication lock, the next pass tries again: %s", error)

    async def _mark(self, ledger_ids: list[int]) -> tuple[list[int], int]:
        marked: list[int] = []
        failed = 0
        for ledger_id in ledger_ids:
            try:
                if self._storage.mark_ledger(ledger_id):
                    marked.append(ledger_id)
            except OSError as error:
                failed += 1
                _LOG.error("ledger %d cannot be examined and stays: %s", ledger_id, error)
        await self._storage.settle()
        return marked, failed

    async def _remove(self, ledger_ids: list[int]) -> tuple[list[int], int]:
        removed: list[int] = []
        failed = 0
        for ledger_id in ledger_ids:
            try:
                await self._storage.remove_ledger(ledger_id)
                removed.append(ledger_id)
            except files.SyncFailedError:
                raise
            except OSError as error:
                failed += 1
                _LOG.error("ledger %d cannot be removed: %s", ledger_id, error)
        return removed, failed


def _some(ledger_ids: list[int], count: int) -> str:
    """List the first of ``count`` ledgers."""
    return ", ".join(map(str, ledger_ids)) + (", …" if count > len(ledger_ids) else "")
