"""Runs the check of ledgers in limbo beside the bookie that serves, over a client that also connects to this bookie."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Coroutine
from typing import Any, Final

from bk_spark.bookie.cluster_session import ClusterSession
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.reading.read_access import ReadAccess
from bk_spark.bookie.replication.repair_performer import LedgerRepairs, RepairPerformer, copy_limits_of, throttle_to
from bk_spark.bookie.runners import AsyncRunner
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.replication.copying.copy_rate import CopyRate
from bk_spark.protocol.replication.repair_settings import RepairSettings
from bookie_server.config.config import BookieConfig
from bookie_server.identity.cluster_identity import ClusterIdentity
from bookie_server.integrity.data_check import CheckLedger, DataCheck, DataCheckProgress, LedgerChecked
from bookie_server.integrity.limbo_check import (
    EndLimbo,
    LimboAction,
    LimboCheck,
    LimboEvent,
    LimboResult,
    NotWhole,
    ReadOwn,
    ReadState,
)
from bookie_server.integrity.own_cluster_reads import read_in_own_cluster
from bookie_server.integrity.own_ledgers import OwnLedgers
from bookie_server.storage.ledger_storage import LedgerStorage

_LOG: Final = logging.getLogger(__name__)
#: The pause before a check that failed begins again, and between two reports of progress.
_PAUSE_S: Final = 5.0
_REPORT_INTERVAL_S: Final = 60.0
#: Ledgers that are checked at the same time.
_LEDGERS_AT_ONCE: Final = 4


class DataCheckRunner:
    """Checks the ledgers in limbo, if there are any, against the cluster of ``identity`` alone. Event loop only."""

    def __init__(
        self,
        config: BookieConfig,
        zookeeper: ZooKeeper,
        ledgers: LedgerStore,
        identity: ClusterIdentity,
        storage: LedgerStorage,
    ) -> None:
        self._config = config
        self._zookeeper = zookeeper
        self._ledgers = ledgers
        self._identity = identity
        self._storage = storage
        self._own = OwnLedgers(storage)
        self._task: asyncio.Task[None] | None = None
        #: None until the ledgers in limbo are known.
        self.progress: DataCheckProgress | None = None

    def start(self) -> None:
        """Begin in the background. Errors are logged, and the check begins anew."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop. The next start goes on with the ledgers that are still in limbo."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self._check_all()
                return
            except (BookKeeperError, OSError) as error:
                _LOG.warning("check of the data: %s; tried again in %.0f s", error, _PAUSE_S)
            except Exception:
                _LOG.exception("check of the data: unexpected error; tried again in %.0f s", _PAUSE_S)
            await asyncio.sleep(_PAUSE_S)

    async def _check_all(self) -> None:
        ledger_ids = await self._own.in_limbo()
        if ledger_ids:
            _LOG.info("check of the data begins: %d ledgers are in limbo", len(ledger_ids))
        check = DataCheck(ledger_ids, _LEDGERS_AT_ONCE)
        self.progress = check.progress
        if not ledger_ids:
            return
        # A call that cannot be cancelled: it ends within the client's timeouts.
        session = await asyncio.to_thread(
            ClusterSession.connect, self._config.metadata_service_uri, self._config.client_config(), self._zookeeper
        )
        reporting = asyncio.ensure_future(self._report(check.progress))
        try:
            await self._run_check(check, session)
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
            await session.close()
        await self._storage.checkpoint()
        _LOG.info("check of the data ended, no ledger is in limbo: %s", _summary(check.progress))

    async def _run_check(self, check: DataCheck, session: ClusterSession) -> None:
        config = self._config
        rate = CopyRate(config.replication_entries_per_s, config.replication_bytes_per_s)
        reads = ReadAccess.of(session.services, session.pool, session.pool_v3, session.config)
        limits = rate.batches(copy_limits_of(reads, batch_entries=config.copy_batch_entries))
        settings = RepairSettings(copy=limits)
        repairs = LedgerRepairs(
            session,
            reads,
            self._ledgers,
            None,
            settings,
            throttle=throttle_to(rate),
            read_ledger=functools.partial(read_in_own_cluster, self._ledgers, self._identity),
        )

        async def check_one(action: CheckLedger) -> LedgerChecked:
            return LedgerChecked(action.ledger_id, await self._check_ledger(action.ledger_id, repairs))

        runner: AsyncRunner[CheckLedger, Any, DataCheckProgress] = AsyncRunner(check, check_one, what="data check")
        await runner.complete()

    async def _check_ledger(self, ledger_id: int, repairs: LedgerRepairs) -> LimboResult:
        """Check one ledger. What ends the check is the reason why it is not whole."""
        performer = RepairPerformer(ledger_id, repairs)

        def perform(action: LimboAction) -> Coroutine[Any, Any, Any] | Any:
            match action:
                case ReadState():
                    return self._own.state(ledger_id)
                case ReadOwn(first, last):
                    return self._own.read(ledger_id, first, last)
                case EndLimbo():
                    return self._own.end_limbo(ledger_id)
            return performer(action)

        machine = LimboCheck(ledger_id, self._config.bookie_id, repairs.settings.copy)
        runner: AsyncRunner[LimboAction, LimboEvent, LimboResult] = AsyncRunner(
            machine, perform, what=f"check of ledger {ledger_id}"
        )
        try:
            result = await runner.complete()
        except (BookKeeperError, OSError) as error:
            result = NotWhole(str(error))
        finally:
            await performer.close()
        if isinstance(result, NotWhole):
            _LOG.warning("ledger %d stays in limbo: %s", ledger_id, result.reason)
        return result

    async def _report(self, progress: DataCheckProgress) -> None:
        while True:
            await asyncio.sleep(_REPORT_INTERVAL_S)
            _LOG.info("check of the data: %s", _summary(progress))


def _summary(progress: DataCheckProgress) -> str:
    return (
        f"{progress.ledgers - progress.left} of {progress.ledgers} ledgers checked, {progress.recovered} recovered, "
        f"{progress.entries} entries with {progress.size_bytes} bytes copied, {len(progress.problems)} cannot be made "
        "whole yet"
    )
