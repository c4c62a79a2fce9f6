"""Self-healing as part of a process: sessions with ZooKeeper, each with an election, an auditor and a worker.

A session of its own holds the vote and the locks. When it ends, everything of it ends at once, and another one begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Any, Final

from bk_spark.bookie.cluster_session import ClusterSession
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.metadata.zookeeper import LOST, ZooKeeper
from bk_spark.bookie.metadata.zookeeper_access import ZooKeeperAccess
from bk_spark.bookie.runners import AsyncRunner
from bk_spark.bookie.shielded import shielded
from bk_spark.protocol.errors import BookKeeperError, SessionLostError
from bk_spark.protocol.machine import StepMachine
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.replication.access import ReplicationAccess
from bookie_server.replication.actions import SessionLost
from bookie_server.replication.auditing.auditor import Auditor, AuditorEnd, AuditorSettings
from bookie_server.replication.auditing.auditor_performer import AuditorPerformer, ElectionPerformer
from bookie_server.replication.auditing.election import election_steps
from bookie_server.replication.auditing.scans import ScanSettings
from bookie_server.replication.replication_metrics import ReplicationMetrics
from bookie_server.replication.worker import ReplicationWorker, WorkerSettings
from bookie_server.replication.worker_performer import RepairLedger, WorkerPerformer

_LOG: Final = logging.getLogger(__name__)
#: The pause before a session that failed is followed by another one.
_PAUSE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """Settings of one process.

    Parameters
    ----------
    uri
        The cluster.
    bookie_id
        The name of this process in votes.
    zk_timeout_ms
        The session timeout requested from ZooKeeper.
    lost_bookie_delay_s
        What ``lostBookieRecoveryDelay`` is set to if it was never set.
    reads_per_s
        Requests to ZooKeeper that a scan sends per second, at most.
    checked_at_once
        Ledgers that are checked at their bookies at the same time.
    verified_share
        The share of entries that a check of all ledgers reads besides the first and last of each fragment.
    mark_misplaced
        Whether the check of placement marks what it finds, so that workers move it.
    client
        The configuration of the client that checks and repairs, with the sources of racks.
    auditor, worker
        The machines' settings.
    """

    uri: MetadataServiceUri
    bookie_id: str
    zk_timeout_ms: int = 10_000
    lost_bookie_delay_s: int = 0
    reads_per_s: float = 1000
    checked_at_once: int = 32
    verified_share: float = 0.0
    mark_misplaced: bool = False
    client: ClientConfig = field(default_factory=ClientConfig)
    auditor: AuditorSettings = field(default_factory=AuditorSettings)
    worker: WorkerSettings = field(default_factory=WorkerSettings)


#: Makes what repairs a ledger in a session.
MakeRepair = Callable[[ReplicationAccess], RepairLedger]


class ReplicationDaemon:
    """Runs auditor and worker until it is stopped. Event loop only. ``metrics`` outlive its sessions."""

    def __init__(self, settings: ReplicationSettings, make_repair: MakeRepair, metrics: ReplicationMetrics) -> None:
        self._settings = settings
        self._make_repair = make_repair
        self.metrics = metrics
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: The current session and its machines, for metrics and operators.
        self.access: ReplicationAccess | None = None
        self.auditor: Auditor | None = None
        self.worker: ReplicationWorker | None = None
        metrics.watch(lambda: self.auditor, lambda: self.worker)

    def start(self) -> None:
        """Run in the background until :meth:`stop`."""
        self._task = asyncio.get_running_loop().create_task(self.run())

    async def stop(self) -> None:
        """Stop repairs, give locks and vote back, and end the session. Takes a bounded time."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def run(self) -> None:
        """Run one session after another until :meth:`stop`."""
        while not self._stopping.is_set():
            try:
                await self._session()
            except BookKeeperError as error:
                _LOG.warning("replication: %s; tried again in %.0f s", error, _PAUSE_S)
            except Exception:
                _LOG.exception("replication: unexpected error; tried again in %.0f s", _PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE_S):
                    await self._stopping.wait()

    async def _session(self) -> None:
        access = await self._open()
        session = _Session(self._settings, access, self._make_repair(access), self)
        loop = asyncio.get_running_loop()

        def on_state(state: str) -> None:
            if state == LOST:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(session.lose)

        access.zk.add_state_listener(on_state)
        self.access = access
        try:
            await session.run(self._stopping)
        finally:
            self.access = self.auditor = self.worker = None
            access.zk.remove_state_listener(on_state)
            await access.close()

    async def _open(self) -> ReplicationAccess:
        opening = asyncio.ensure_future(asyncio.to_thread(self._connect))
        try:
            return await shielded(opening)
        except asyncio.CancelledError:
            # A thread cannot be cancelled. Let it finish, which takes a bounded time, and undo its work.
            (access,) = await asyncio.gather(opening, return_exceptions=True)
            if isinstance(access, ReplicationAccess):
                await access.close()
            raise

    def _connect(self) -> ReplicationAccess:
        settings = self._settings
        zk = ZooKeeper(
            settings.uri.servers,
            session_timeout_ms=settings.zk_timeout_ms,
            access=ZooKeeperAccess(settings.client),
        )
        zk.start()
        try:
            session = ClusterSession.connect(settings.uri, settings.client, zk)
            access = ReplicationAccess(session, settings.uri, settings.bookie_id)
            access.switches.init_recovery_delay(settings.lost_bookie_delay_s)
        except BaseException:
            zk.close()
            raise
        return access


class _Session:
    """What runs in one session with ZooKeeper."""

    def __init__(
        self,
        settings: ReplicationSettings,
        access: ReplicationAccess,
        repair: RepairLedger,
        daemon: ReplicationDaemon,
    ) -> None:
        self._settings = settings
        self._access = access
        self._daemon = daemon
        self._lost = asyncio.Event()
        self._metrics = metrics = daemon.metrics
        self._worker = ReplicationWorker(settings.worker, SystemRandom(), metrics.worker)
        self._performer = WorkerPerformer(access, repair, self._tell, metrics)
        self._runner: AsyncRunner[Any, Any, Any] = AsyncRunner(self._worker, self._performer, what="replication worker")
        daemon.worker = self._worker

    def _tell(self, event: Any) -> None:
        self._runner.handle(event)

    def lose(self) -> None:
        """The session has ended. Nothing is begun any more."""
        self._runner.handle(SessionLost())
        if self._daemon.auditor is not None:
            self._daemon.auditor.handle(SessionLost())
        self._lost.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until the session is lost, or all has stopped in an orderly way. Raises what ended it otherwise."""
        auditing = asyncio.ensure_future(self._audit())
        working = asyncio.ensure_future(self._runner.result())
        stop = asyncio.ensure_future(stopping.wait())
        lost = asyncio.ensure_future(self._lost.wait())
        self._runner.run()
        try:
            await asyncio.wait((auditing, working, stop, lost), return_when=asyncio.FIRST_COMPLETED)
            if stop.done() and not self._lost.is_set():
                await _cancel(auditing)
                self._worker.drain()
                self._runner.run()
                await asyncio.wait((working, lost), return_when=asyncio.FIRST_COMPLETED)
            for task in (auditing, working):
                if task.done() and not task.cancelled():
                    task.result()
            if self._lost.is_set():
                raise SessionLostError("the session with ZooKeeper has ended")
        finally:
            for task in (auditing, working, stop, lost):
                await _cancel(task)
            await self._performer.stop()
            await self._runner.stop()

    async def _audit(self) -> None:
        """Vote, audit as long as the vote is there, and vote again."""
        while True:
            self._metrics.election_began()
            election: AsyncRunner[Any, Any, str] = AsyncRunner(
                StepMachine(election_steps()), ElectionPerformer(self._access), what="election of the auditor"
            )
            vote = await election.complete()
            _LOG.info("%s is the auditor: %s", self._access.bookie_id, vote)
            end = await self._audit_with(vote)
            _LOG.info("%s is no longer the auditor: %s", self._access.bookie_id, end.value)
            if end is not AuditorEnd.VOTE_GONE:
                return

    async def _audit_with(self, vote: str) -> AuditorEnd:
        settings, access = self._settings, self._access
        scans = ScanSettings(
            access.ledgers.manager,
            settings.uri.root,
            vote,
            reads_per_s=settings.reads_per_s,
            checked_at_once=settings.checked_at_once,
            mark_misplaced=settings.mark_misplaced,
        )
        auditor = Auditor(settings.auditor, scans, self._metrics.auditor)

        def tell(event: Any) -> None:
            runner.handle(event)

        performer = AuditorPerformer(access, tell, settings.verified_share, self._metrics)
        runner: AsyncRunner[Any, Any, AuditorEnd] = AsyncRunner(auditor, performer, what="auditor")
        self._daemon.auditor = auditor
        try:
            return await runner.complete()
        finally:
            self._daemon.auditor = None


async def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
