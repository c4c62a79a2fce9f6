"""The collection of deleted ledgers: drives its steps over the storage and the metadata store.

Ledger ids are compared range by range, where a range is what one znode has as children (10,000 ids; with the flat
layout all of them), in ascending order. Only ranges with ledgers of this bookie are looked at. Of a range with few of
them each ledger's znode is read; of others the children are listed, which is one request, and only ledgers that the
list lacks are read. Any error of the metadata store ends the pass; ledgers that it has not decided stay. Source:
compatibility.md §5.11.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from bk_spark.protocol.errors import BookKeeperError
from bookie_server.gc.brake import Brake
from bookie_server.gc.collected_storage import CollectedStorage, RunBlocking
from bookie_server.gc.collection_steps import (
    LedgerPass,
    ListRange,
    Mark,
    ReadLedgers,
    ReleaseLock,
    Remove,
    Step,
    Steps,
    SyncDeletions,
    SyncStore,
    Unmark,
    deletion_steps,
)
from bookie_server.gc.ledger_metadata_reads import LedgerMetadataReads
from bookie_server.gc.throttle import StopSignal
from bookie_server.identity.cluster_identity import ForeignClusterError
from bookie_server.storage import files

_LOG: Final = logging.getLogger(__name__)
#: Victims named in the log.
_NAMED: Final = 10


class CollectionDriver:
    """Does the steps of one kind of collection. A pass never raises what only concerns the metadata store or a file."""

    def __init__(
        self,
        storage: CollectedStorage,
        reads: LedgerMetadataReads,
        brake: Brake,
        run_blocking: RunBlocking,
        stop: StopSignal,
    ) -> None:
        self.storage = storage
        self.reads = reads
        self.brake = brake
        self.run_blocking = run_blocking
        self._stop = stop

    async def play(self, steps: Steps, report: LedgerPass) -> LedgerPass:
        """One pass. Raises GarbageCollectorStoppedError, SyncFailedError."""
        try:
            await drive(steps, self._checked)
        except files.SyncFailedError:
            raise
        except (BookKeeperError, OSError) as error:
            note_error(report, error)
            level = logging.ERROR if report.foreign_cluster else logging.WARNING
            _LOG.log(level, "collection of %s ledgers ends early; those not decided stay: %s", self.brake.kind, error)
        stopped = report.stopped
        if stopped is not None:
            report.problem = (
                f"{len(stopped.ledgers)} of {stopped.held} ledgers are {self.brake.kind}: too many at once. None is "
                f"removed until an operator gives the word {stopped.word}"
            )
            _LOG.error(
                "%s. If ZooKeeper was restored or made anew, do not: restore its ledgers first. Else: "
                'PUT /api/v1/bookie/gc/brake {"word": "%s"}. They are: %s',
                report.problem,
                stopped.word,
                some(stopped.named, len(stopped.ledgers)),
            )
        return report

    async def _checked(self, step: Step) -> Any:
        # What is held is given back, whatever else is to end.
        if not isinstance(step, Unmark | ReleaseLock | SyncDeletions):
            self._stop.check()
        return await self.do(step)

    async def do(self, step: Step) -> Any:
        """What the step found. Raises MetadataError, OSError, GarbageCollectorStoppedError."""
        match step:
            case SyncStore():
                await self.run_blocking(self.reads.begin)
            case ReadLedgers(ledger_ids):
                return await self.run_blocking(self.reads.contents, ledger_ids)
            case Mark(ledger_ids):
                return await self._mark(ledger_ids)
            case Unmark(ledger_ids):
                for ledger_id in ledger_ids:
                    self.storage.unmark_ledger(ledger_id)
            case Remove(ledger_ids):
                return await self._remove(ledger_ids)
            case SyncDeletions():
                await self.storage.sync_deletions()
            case _:
                raise AssertionError(step)
        return None

    async def _mark(self, ledger_ids: list[int]) -> tuple[list[int], int]:
        marked: list[int] = []
        failed = 0
        for ledger_id in ledger_ids:
            try:
                if self.storage.mark_ledger(ledger_id):
                    marked.append(ledger_id)
            except OSError as error:
                failed += 1
                _LOG.error("ledger %d cannot be looked at, it stays: %s", ledger_id, error)
        await self.storage.settle()
        return marked, failed

    async def _remove(self, ledger_ids: list[int]) -> tuple[list[int], int]:
        deleted: list[int] = []
        failed = 0
        for ledger_id in ledger_ids:
            try:
                await self.storage.remove_ledger(ledger_id)
                deleted.append(ledger_id)
            except files.SyncFailedError:
                raise
            except OSError as error:
                failed += 1
                _LOG.error("ledger %d cannot be deleted: %s", ledger_id, error)
        return deleted, failed


class LedgerCollection(CollectionDriver):
    """Deletes ledgers of the storage that the metadata store does not know (any more)."""

    async def run(self) -> LedgerPass:
        """One pass. Raises GarbageCollectorStoppedError, SyncFailedError."""
        report = LedgerPass()
        try:
            local = await self.storage.local_ledgers()
        except OSError as error:
            report.problem = str(error)
            _LOG.warning("ledgers here cannot be listed, none is collected: %s", error)
            return report
        steps = deletion_steps(report, local[local >= 0], self.reads.ids_per_range, self.brake)
        try:
            return await self.play(steps, report)
        finally:
            if report.deleted:
                _LOG.info(
                    "deleted %d ledgers: %s", len(report.deleted), some(report.deleted[:_NAMED], len(report.deleted))
                )

    async def do(self, step: Step) -> Any:
        if isinstance(step, ListRange):
            return await self.run_blocking(self.reads.unlisted, step.ledger_ids)
        return await super().do(step)


async def drive(steps: Steps, do: Callable[[Step], Awaitable[Any]]) -> None:
    """Do all steps. What fails is told to ``steps``, which may take further steps before it ends."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration:
            return
        try:
            answer, error = await do(step), None
        except BaseException as failure:
            answer, error = None, failure


def note_error(report: LedgerPass, error: Exception) -> None:
    """The pass ends with ``error``."""
    report.problem = str(error)
    report.foreign_cluster = isinstance(error, ForeignClusterError)


def some(ledger_ids: list[int], count: int) -> str:
    """The first ledgers of ``count``, in words."""
    return ", ".join(map(str, ledger_ids)) + (", …" if count > len(ledger_ids) else "")
