"""What a started client holds: a session with ZooKeeper, cluster services, and connections to bookies."""

from __future__ import annotations

import asyncio

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.base import LedgerConnection
from bk_spark.bookie.connection.client_tls import ClientTls
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.bookie.connection.v2 import BookieConnection
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.metadata.zookeeper_access import ZooKeeperAccess
from bk_spark.bookie.services import ClusterServices
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri


class ClusterSession:
    """Made by :meth:`connect`. Connections to bookies are opened when they are needed. Single event loop.

    ``pool`` has connections for adds and reads, over the configured protocol. ``pool_v3`` has connections for the
    requests that only v3 has.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        services: ClusterServices,
        config: ClientConfig,
        tls: ClientTls | None,
        *,
        shared: bool,
    ) -> None:
        self.zookeeper = zookeeper
        self.services = services
        self.config = config
        self._tls = tls
        self.pool_v3 = ConnectionPool(BookieConnectionV3, services.address, config, tls)
        self.pool = self.new_pool() if config.use_v2_wire_protocol else self.pool_v3
        self._shared = shared

    @classmethod
    def connect(cls, uri: MetadataServiceUri, config: ClientConfig, shared: ZooKeeper | None) -> ClusterSession:
        """Connect to ZooKeeper, or use the session ``shared``, which is never closed here. Blocks.

        Raises MetadataUnavailableError if ZooKeeper does not answer within ``connect_timeout_ms``, InvalidArgumentError
        for wrong certificates, keys or credentials.
        """
        tls = ClientTls(config) if config.tls_enabled else None
        zookeeper = shared
        if zookeeper is None:
            zookeeper = ZooKeeper(
                uri.servers,
                session_timeout_ms=config.zk_session_timeout_ms,
                operation_timeout_ms=config.metadata_timeout_ms,
                rest_after_ms=config.zk_session_rest_ms,
                access=ZooKeeperAccess(config),
            )
            zookeeper.start(config.connect_timeout_ms)
        try:
            services = ClusterServices(zookeeper, uri, config)
        except BaseException:
            if shared is None:
                zookeeper.close()
            raise
        return cls(zookeeper, services, config, tls, shared=shared is not None)

    def new_pool(self) -> ConnectionPool[LedgerConnection]:
        """Return a pool of separate connections over the configured protocol."""
        kind = BookieConnection if self.config.use_v2_wire_protocol else BookieConnectionV3
        return ConnectionPool(kind, self.services.address, self.config, self._tls)

    async def close(self) -> None:
        """Close all connections, and the session with ZooKeeper if it is not shared. Safe to repeat."""
        for pool in (self.pool, self.pool_v3):
            await pool.close()
        await asyncio.to_thread(self.services.close, None if self._shared else self.zookeeper)
