"""A running bookie: all its parts, started in order and stopped in reverse order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.tls.contexts import TlsContexts
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.metadata.registration import Endpoint, native_service_info
from bookie_server.admin.access import AdminAccess
from bookie_server.admin.actions import AdminActions, RefusedError
from bookie_server.admin.cluster_page import ClusterPage
from bookie_server.admin.endpoints import admin_routes
from bookie_server.admin.replication_endpoints import replication_routes
from bookie_server.admin.servers import http_servers, start_http
from bookie_server.bookie import Bookie
from bookie_server.bookie_status import read_status, write_status
from bookie_server.config.administration import is_loopback
from bookie_server.config.config import BookieConfig
from bookie_server.disks.disk_monitor import CollectorHooks, DiskMonitor
from bookie_server.disks.file_limit import last_indexable_entry
from bookie_server.disks.open_files import share_connections
from bookie_server.event_loop import new_event_loop
from bookie_server.gc.garbage_collector import DISKS, MAJOR, MINOR, GarbageCollector
from bookie_server.identity.cluster_identity import ClusterIdentity
from bookie_server.identity.cookies import current_directories
from bookie_server.identity.dirty import clear_dirty, is_dirty, mark_dirty
from bookie_server.identity.registration import BookieMode, RegistrationManager
from bookie_server.metrics import metrics_wiring
from bookie_server.metrics.bookie_metrics import BookieMetrics
from bookie_server.net.common.access.front_access import FrontAccess
from bookie_server.net.common.entrance.front_tls import FrontTls
from bookie_server.net.common.limits import NetConfig
from bookie_server.net.native.server import NativeServer
from bookie_server.state import FORCED, MANUAL, BookieState
from bookie_server.storage.disk.directories import LedgerDirectories
from bookie_server.storage.ledger_storage import LedgerStorage
from bookie_server.storage.upkeep import StorageUpkeep

if TYPE_CHECKING:
    from bookie_server.admin.server import AdminServer
    from bookie_server.integrity.data_check import DataCheckProgress
    from bookie_server.integrity.data_check_runner import DataCheckRunner

_LOG: Final = logging.getLogger(__name__)
#: Reading from connections resumes when pending adds have fallen to the limit divided by this.
_LOW_SHARE: Final = 3
_EXIT_OK: Final = 0
_EXIT_BOOKIE_ERROR: Final = 5


class BookieService:
    """Opens the storage, which replays the journals (blocking); then call :meth:`run`.

    The caller holds the directories' locks and has checked their cookies, which gave ``identity``. ``tls``: the
    certificates, if clients may use TLS. ``access``: who may use the bookie, if not everybody. ``admin``: who may use
    the admin API. Raises BookKeeperError, OSError.
    """

    def __init__(
        self,
        config: BookieConfig,
        zookeeper: ZooKeeper,
        identity: ClusterIdentity,
        listener: socket.socket,
        tls: TlsContexts | None,
        access: FrontAccess | None,
        admin: AdminAccess,
    ) -> None:
        self._config = config
        self._tls, self._access, self._admin = tls, access, admin
        self._zookeeper = zookeeper
        self._identity = identity
        self._listener = listener
        self._store = LedgerStore(zookeeper, config.metadata_service_uri)
        self._ended = asyncio.Event()
        self._code = _EXIT_OK
        self._serves = False
        #: Serialises operators' requests: the last mode written counts.
        self._mode_asked = asyncio.Lock()
        self._data_check: DataCheckRunner | None = None
        self._metrics = BookieMetrics()
        self._directories = LedgerDirectories(
            current_directories(config.ledger_directories),
            current_directories(config.index_directories),
        )
        self._journal_directories = tuple(current_directories(config.journal_directories))
        self._state = BookieState()
        self._state.unclean_start = is_dirty(self._directories.paths)
        if self._state.unclean_start:
            _LOG.warning("the last shutdown was not clean: replaying the journals")
        self._set_first_mode()
        self._registration = self._make_registration()
        self._storage = self._make_storage()
        # The storage has synced what the last run left, so that run's mark may go.
        mark_dirty(
            self._directories.paths, synced=config.journal_sync_data, losses_handled=config.data_integrity_checking
        )

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop for :meth:`run`."""
        return new_event_loop(lambda: self._storage.journals.busy_since_s)

    async def run(self, signals: Sequence[signal.Signals]) -> int:
        """Serve until one of ``signals`` arrives or the bookie fails. Return the exit code.

        Raises MetadataError if the bookie cannot be registered, CannotListenError, OSError.
        """
        loop = asyncio.get_running_loop()
        for number in signals:
            loop.add_signal_handler(number, self._stop_on, number)
        self._state.subscribe(self._mode_changed)
        self._mode_changed()
        async with contextlib.AsyncExitStack() as ends:
            ends.push_async_callback(self._end_storage)
            self._storage.start()
            await self._start(ends)
            await self._ended.wait()
            _LOG.info("bookie %s stops", self._config.bookie_id)
        return self._code

    # --- the parts, in the order of their start ----------------------------------------------------

    async def _start(self, ends: contextlib.AsyncExitStack) -> None:
        """Start all serving parts; each pushes its stop to ``ends``. Returns early if shutdown is requested first."""
        bookie = Bookie(self._storage, self._state)
        ends.callback(bookie.close)
        monitor = self._make_monitor()
        ends.push_async_callback(monitor.stop)
        await monitor.start()
        collector = self._make_collector()
        ends.push_async_callback(collector.stop)
        if not await self._before_the_end(collector.complete_compactions()):
            return
        collector.start()
        monitor.set_hooks(
            CollectorHooks(
                functools.partial(collector.suspend, MINOR, DISKS),
                functools.partial(collector.suspend, MAJOR, DISKS),
                collector.force_by_disks,
            )
        )
        metrics_wiring.watch_storage(self._metrics, self._storage, self._config.journal_max_memory_bytes)
        metrics_wiring.watch_bookie(self._metrics, bookie)
        metrics_wiring.watch_collector(self._metrics, collector)
        metrics_wiring.watch_data_check(self._metrics, self._data_check_progress)
        metrics_wiring.add_gauges(self._metrics, self._directories, monitor, self._registration)
        page = ClusterPage(self._config, self._zookeeper)
        actions = self._make_actions(monitor, collector)
        for http in self._make_http_servers(actions, page):
            ends.push_async_callback(http.close)
            await start_http(http)
        server = self._make_server(bookie, monitor)
        metrics_wiring.watch_server(self._metrics, server)
        ends.push_async_callback(server.close)
        await server.start(self._listener)
        if self._config.grpc_enabled:
            await self._start_grpc(server, actions, page, ends)
        # Stopped first: no client should start anything here.
        ends.push_async_callback(self._in_thread, self._registration.stop)
        if await self._before_the_end(self._register()):
            self._serves = True
            if self._config.auto_recovery_enabled:
                # The client of bookies takes memory.
                from bookie_server.replication.process import make_daemon
                from bookie_server.replication.replication_metrics import IN_BOOKIE, ReplicationMetrics

                daemon = make_daemon(self._config, ReplicationMetrics(self._metrics.registry, IN_BOOKIE))
                ends.push_async_callback(daemon.stop)
                daemon.start()
            if self._config.data_integrity_checking:
                from bookie_server.integrity.data_check_runner import DataCheckRunner

                self._data_check = DataCheckRunner(
                    self._config, self._zookeeper, self._store, self._identity, self._storage
                )
                ends.push_async_callback(self._data_check.stop)
                self._data_check.start()
            _LOG.info("bookie %s serves on %s:%d", self._config.bookie_id, self._config.listen_host, self._config.port)

    def _make_registration(self) -> RegistrationManager:
        info = native_service_info(self._config.advertised_host, self._config.port)
        config = self._config
        nobody_reaches_it = is_loopback(config.http_host) and not is_loopback(config.advertised_host)
        if config.http_enabled and config.http_port and not nobody_reaches_it:
            scheme = "https" if config.http_tls_enabled else "http"
            http = Endpoint("httpserver", config.advertised_host, config.http_port, scheme)
            info = replace(info, endpoints=(*info.endpoints, http))
        return RegistrationManager(
            self._zookeeper,
            self._identity,
            info,
            # The server may expire a session up to a tick after its timeout, and may have granted a longer one.
            wait_ms=2 * self._config.zk_timeout_ms,
            before_move=self._keep_mode,
        )

    def _make_storage(self) -> LedgerStorage:
        return LedgerStorage(
            self._config,
            self._directories,
            self._journal_directories,
            on_failure=self._storage_failed,
            on_trouble=self._storage_troubled,
            on_group=metrics_wiring.journal_observer(self._metrics, len(self._journal_directories)),
            find_last_entry=functools.partial(last_indexable_entry, self._directories.index_paths),
        )

    def _make_monitor(self) -> DiskMonitor:
        return DiskMonitor(
            self._config,
            self._directories,
            self._journal_directories,
            self._state,
            flush=self._storage.checkpoint,
            probe_journals=self._storage.journals.probe,
        )

    def _make_collector(self) -> GarbageCollector:
        return GarbageCollector(
            StorageUpkeep(self._storage),
            self._config,
            self._store,
            self._identity,
            self._storage.fail,
        )

    def _make_server(self, bookie: Bookie, monitor: DiskMonitor) -> NativeServer:
        return NativeServer(
            bookie,
            disk_space=monitor.space,
            config=_net_config(self._config),
            times=self._metrics.requests,
            on_loop_delay=self._metrics.observe_loop_delay,
            tls=None if self._tls is None else FrontTls(self._tls, required=self._config.tls_required),
            access=self._access,
        )

    async def _start_grpc(
        self, native: NativeServer, actions: AdminActions, page: ClusterPage, ends: contextlib.AsyncExitStack
    ) -> None:
        """Raises CannotListenError."""
        from bookie_server.grpc_start import start_grpc

        server, endpoint = await start_grpc(
            self._config,
            native.shared,
            self._tls,
            tokens=self._admin,
            actions=actions,
            page=page,
            zookeeper=self._zookeeper,
        )
        ends.push_async_callback(server.close)
        metrics_wiring.watch_grpc(self._metrics, server.gate)
        self._registration.add_endpoint(endpoint)

    def _make_actions(self, monitor: DiskMonitor, collector: GarbageCollector) -> AdminActions:
        return AdminActions(
            bookie_id=self._config.bookie_id,
            state=self._state,
            directories=self._directories,
            journal_directories=self._journal_directories,
            collection=collector,
            running=lambda: self._serves,
            disk_space=monitor.space,
            set_read_only=self._set_manually_read_only,
            last_marks=lambda: self._storage.last_marks,
            data_check=self._data_check_progress,
            local_ledgers=StorageUpkeep(self._storage).local_ledgers,
        )

    def _make_http_servers(self, actions: AdminActions, page: ClusterPage) -> list[AdminServer]:
        config = self._config
        replication = replication_routes(lambda: self._zookeeper, config.metadata_service_uri.root)
        routes = {**page.routes(), **admin_routes(actions), **replication}
        return http_servers(config, routes, self._metrics.registry, self._admin)

    def _data_check_progress(self) -> DataCheckProgress | None:
        return None if self._data_check is None else self._data_check.progress

    async def _register(self) -> None:
        await self._in_thread(self._registration.start)

    async def _end_storage(self) -> None:
        """Write what is in memory. If that fails, the journals still have it, and the shutdown is not clean."""
        try:
            await self._storage.close()
        except (OSError, BookKeeperError) as error:
            _LOG.error("cannot write everything, so the next start replays the journals: %s", error)
            self._code = _EXIT_BOOKIE_ERROR
            return
        if not self._storage.failed:
            await self._in_thread(clear_dirty, self._directories.paths)

    # --- the mode ----------------------------------------------------------------------------------

    def _mode(self) -> BookieMode:
        return BookieMode(self._state.read_only, self._state.manually_read_only)

    def _set_first_mode(self) -> None:
        if self._config.force_read_only:
            self._state.set_read_only(FORCED, "forceReadOnlyBookie=true")
        kept = read_status(self._directories.paths) if self._config.persist_status else None
        if kept is not None and kept.manual:
            self._state.set_read_only(MANUAL, "an operator asked for it before the restart")

    def _mode_changed(self) -> None:
        if self._state.read_only and not self._config.read_only_mode_enabled:
            reasons = "; ".join(f"{source}: {reason}" for source, reason in self._state.reasons.items())
            _LOG.critical("readOnlyModeEnabled=false, so the bookie stops: %s", reasons)
            self._end(_EXIT_BOOKIE_ERROR)
        self._registration.set_mode(self._mode())

    async def _set_manually_read_only(self, read_only: bool) -> None:
        """Set the manual mode. Raises RefusedError, and OSError if it was set but could not be saved."""
        if read_only and not self._config.read_only_mode_enabled:
            raise RefusedError("readOnlyModeEnabled=false: the bookie would stop")
        async with self._mode_asked:
            others = self._state.reasons.keys() - {MANUAL}
            try:
                await self._in_thread(self._write_status, BookieMode(read_only or bool(others), read_only))
            finally:
                if read_only:
                    self._state.set_read_only(MANUAL, "an operator asked for it")
                else:
                    self._state.clear(MANUAL)

    def _keep_mode(self, mode: BookieMode) -> None:
        # On full disks it cannot be saved; clients must learn of the mode anyway.
        with contextlib.suppress(OSError):
            self._write_status(mode)

    def _write_status(self, mode: BookieMode) -> None:
        if self._config.persist_status:
            write_status(self._directories.paths, mode)

    # --- the end -----------------------------------------------------------------------------------

    def _stop_on(self, number: signal.Signals) -> None:
        _LOG.info("%s: the bookie is asked to stop", number.name)
        self._end(_EXIT_OK)

    def _end(self, code: int) -> None:
        if not self._ended.is_set():
            self._code = code
            self._state.shutting_down = True
            self._ended.set()

    def _storage_failed(self, error: Exception) -> None:
        _LOG.critical("storage failed, the bookie stops: %s", error)
        self._end(_EXIT_BOOKIE_ERROR)

    def _storage_troubled(self, source: str, reason: str | None) -> None:
        if reason is None:
            self._state.clear(source)
        else:
            self._state.set_read_only(source, reason)

    async def _before_the_end(self, work: Coroutine[None, None, None]) -> bool:
        """Run ``work``; cancel it if shutdown is requested first. Raises what ``work`` raises."""
        task = asyncio.ensure_future(work)
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait((task, ended), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
                return True
            return False
        finally:
            for one in (task, ended):
                one.cancel()
            await asyncio.gather(task, ended, return_exceptions=True)

    async def _in_thread(self, function: Callable[..., None], *arguments: object) -> None:
        await asyncio.get_running_loop().run_in_executor(None, functools.partial(function, *arguments))


def _net_config(config: BookieConfig) -> NetConfig:
    connections, of_grpc = share_connections() if config.grpc_enabled else (0, 0)
    return NetConfig(
        max_connections=connections,
        max_grpc_connections=of_grpc,
        max_frame_bytes=config.max_frame_bytes,
        max_batch_read_bytes=config.max_batch_read_bytes,
        max_adds_in_progress=config.max_adds_in_progress,
        max_reads_in_progress=config.max_reads_in_progress,
        max_pending_adds=config.max_pending_adds,
        max_pending_reads=config.max_pending_reads,
        adds_high_bytes=config.journal_max_memory_bytes,
        adds_low_bytes=config.journal_max_memory_bytes // _LOW_SHARE,
    )
