"""Self-healing from a configuration: inside the bookie, or as ``bookie-server autorecovery`` alone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import Final

from bk_spark.bookie.connection.client_tls import ClientTls
from bk_spark.bookie.connection.logins import Logins
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.metadata.zookeeper_access import ZooKeeperAccess
from bk_spark.bookie.replication.repair_performer import LedgerRepairs, copy_limits_of, throttle_to
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.replication.copying.copy_pace import CopyPace
from bk_spark.protocol.replication.copying.copy_rate import CopyRate
from bk_spark.protocol.replication.repair_settings import RepairSettings
from bookie_server.admin.access import AdminAccess
from bookie_server.admin.replication_endpoints import replication_routes
from bookie_server.admin.servers import CannotListenError, http_servers, start_http
from bookie_server.config.config import BookieConfig
from bookie_server.metrics.metrics import MetricsRegistry
from bookie_server.replication.access import ReplicationAccess
from bookie_server.replication.auditing.auditor import AuditorSettings
from bookie_server.replication.daemon import ReplicationDaemon, ReplicationSettings
from bookie_server.replication.replication_metrics import ReplicationMetrics
from bookie_server.replication.worker import WorkerSettings
from bookie_server.startup import configure_process

_LOG: Final = logging.getLogger(__name__)
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_DEFAULT_REQUESTS_PER_S: Final = 1000


def make_daemon(config: BookieConfig, metrics: ReplicationMetrics) -> ReplicationDaemon:
    """Return the daemon for a bookie's configuration. Call it in an event loop."""
    settings = ReplicationSettings(
        uri=config.metadata_service_uri,
        bookie_id=config.bookie_id,
        zk_timeout_ms=config.zk_timeout_ms,
        lost_bookie_delay_s=config.lost_bookie_delay_s,
        reads_per_s=config.scan_requests_per_s or _DEFAULT_REQUESTS_PER_S,
        checked_at_once=config.ledgers_checked_at_once,
        verified_share=config.verified_percentage / 100,
        mark_misplaced=config.moves_misplaced_copies,
        client=config.client_config(),
        auditor=AuditorSettings(
            # A bookie that was killed and started again registers when its old session has expired.
            first_wait_ms=2 * config.zk_timeout_ms,
            bookies_interval_ms=config.bookie_check_interval_ms,
            ledgers_interval_ms=config.ledger_check_interval_ms,
            placement_interval_ms=config.placement_check_interval_ms if config.has_racks else 0,
            replicas_interval_ms=config.replicas_check_interval_ms,
        ),
        worker=WorkerSettings(
            at_once=config.ledgers_repaired_at_once,
            backoff_ms=config.rereplicate_backoff_ms,
            longest_pause_ms=config.failed_ledger_longest_pause_ms,
        ),
    )
    rate = CopyRate(config.replication_entries_per_s, config.replication_bytes_per_s)
    pace = CopyPace(config.unyielding_bytes_per_s)
    metrics.watch_pace(pace)

    def make_repair(access: ReplicationAccess) -> LedgerRepairs:
        repair = RepairSettings(
            config.open_ledger_grace_ms,
            settings.verified_share,
            rate.batches(copy_limits_of(access.reads, batch_entries=config.copy_batch_entries)),
        )
        return LedgerRepairs(
            access.session,
            access.reads,
            access.ledgers,
            access.proof,
            repair,
            throttle=throttle_to(rate),
            pace=pace,
            read=metrics.read,
            written=metrics.written,
        )

    return ReplicationDaemon(settings, make_repair, metrics)


def run_from_conf(path: str) -> int:
    """Run auditor and worker with the configuration file at ``path`` until SIGTERM or SIGINT. Return the exit code.

    0 after a signal, 1 for a wrong configuration, 2 if a port of the admin API cannot be bound. Logs to stderr.
    """
    try:
        config = configure_process(path)
        ZooKeeperAccess(config)  # reports wrong files now
        admin = AdminAccess(config)
        if config.tls_enabled:
            ClientTls(config.client_config())
        Logins.of(config.client_config())
    except InvalidArgumentError as error:
        _LOG.critical("auto recovery not started: %s", error)
        return 1
    try:
        asyncio.run(_run(config, admin))
    except CannotListenError as error:
        _LOG.critical("auto recovery not started: %s", error)
        return 2
    return 0


async def _run(config: BookieConfig, admin: AdminAccess) -> None:
    stop = asyncio.Event()
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    registry = MetricsRegistry()
    daemon = make_daemon(config, ReplicationMetrics(registry))

    def zookeeper() -> ZooKeeper | None:
        return None if daemon.access is None else daemon.access.zk

    async with contextlib.AsyncExitStack() as ends:
        routes = replication_routes(zookeeper, config.metadata_service_uri.root)
        for http in http_servers(config, routes, registry, admin):
            ends.push_async_callback(http.close)
            await start_http(http)
        daemon.start()
        ends.push_async_callback(daemon.stop)
        _LOG.info("auto recovery of %s begins", config.metadata_service_uri)
        await stop.wait()
        _LOG.info("auto recovery stops")
