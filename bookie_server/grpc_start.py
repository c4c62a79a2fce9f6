"""Starts the gRPC front end of a bookie, with the services that its configuration asks for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from bk_spark.bookie.connection.allocator import keep_freed_memory
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.tls.contexts import TlsContexts
from bk_spark.protocol.metadata.registration import GRPC_ENDPOINT, GRPC_PROTOCOL, Endpoint
from bookie_server.admin.access import AdminAccess
from bookie_server.admin.actions import AdminActions
from bookie_server.admin.cluster_page import ClusterPage
from bookie_server.admin.operations import BookieOperations
from bookie_server.admin.replication_operations import ReplicationOperations
from bookie_server.admin.servers import CannotListenError
from bookie_server.config.config import BookieConfig
from bookie_server.net.native.shared import Shared

if TYPE_CHECKING:
    from bookie_server.net.grpc.calls import Service, Stuck
    from bookie_server.net.grpc.server import GrpcServer

_LOG: Final = logging.getLogger(__name__)
#: How soon readers see the last rows of a writer over gRPC that pauses.
_LOGS_LAC_INTERVAL_MS: Final = 500


async def start_grpc(
    config: BookieConfig,
    shared: Shared,
    tls: TlsContexts | None,
    *,
    tokens: AdminAccess,
    actions: AdminActions,
    page: ClusterPage,
    zookeeper: ZooKeeper,
) -> tuple[GrpcServer, Endpoint]:
    """Listen and serve. Return the server, and the endpoint to register. Raises CannotListenError.

    Parameters
    ----------
    config
        The bookie's configuration.
    shared
        The bookie, and what bounds both front ends together.
    tls
        The certificates. None: calls are in clear.
    tokens, actions, page, zookeeper
        What the administration works with.
    """
    try:
        from bookie_server.net.grpc.server import GrpcServer  # its packages are an extra
    except ImportError as error:
        raise CannotListenError(
            f"grpcServerEnabled=true needs more packages: pip install 'bk-spark[grpc]' ({error})"
        ) from error
    services: list[Callable[[Stuck], Service]] = []
    if config.grpc_logs_enabled:
        services.append(_logs(config, shared))
    if config.grpc_admin_enabled:
        services.append(_administration(config, shared, tokens, actions, page, zookeeper))
    server = GrpcServer(shared, tls, services)
    try:
        port = await server.start(config.listen_host, config.grpc_port)
    except OSError as error:
        await server.close()
        raise CannotListenError(f"grpcServerPort: {error}") from error
    keep_freed_memory()
    _LOG.info("gRPC is served on %s:%d", config.listen_host, port)
    return server, Endpoint(GRPC_ENDPOINT, config.advertised_host, port, GRPC_PROTOCOL)


def _logs(config: BookieConfig, shared: Shared) -> Callable[[Stuck], Service]:
    """Return what makes the service of logs. The client of logs takes memory."""
    from bk_spark.bookie.blocking import BlockingClient
    from bookie_server.net.grpc.logs import LogService

    settings = replace(config.client_config(), explicit_lac_interval_ms=_LOGS_LAC_INTERVAL_MS)
    uri = str(config.metadata_service_uri)
    return lambda stuck: LogService(shared, stuck, lambda: BlockingClient(uri, settings), config.grpc_log_root)


def _administration(
    config: BookieConfig,
    shared: Shared,
    tokens: AdminAccess,
    actions: AdminActions,
    page: ClusterPage,
    zookeeper: ZooKeeper,
) -> Callable[[Stuck], Service]:
    """Return what makes the service of administration."""
    from bookie_server.net.grpc.admin import Administration, AdminService

    replication = ReplicationOperations(lambda: zookeeper, config.metadata_service_uri.root)
    administration = Administration(config, tokens, BookieOperations(actions), replication, page.overview)
    return lambda stuck: AdminService(shared, stuck, administration)
