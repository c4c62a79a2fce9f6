"""What a started client holds: a session with ZooKeeper, cluster services, and connections to bookies."""

from __future__ import annotations

import asyncio
from typing import Final

from bk_spark.bookie.config import GRPC, ClientConfig
from bk_spark.bookie.connection.allocator import keep_freed_memory
from bk_spark.bookie.connection.client_tls import ClientTls
from bk_spark.bookie.connection.interface import ControlConnection, LedgerConnection
from bk_spark.bookie.connection.logins import Logins
from bk_spark.bookie.connection.pool import ConnectionPool, connects_by
from bk_spark.bookie.connection.v2 import BookieConnection
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.metadata.zookeeper_access import ZooKeeperAccess
from bk_spark.bookie.services import ClusterServices
from bk_spark.bookie.shielded import shielded
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri

#: Pools that are kept for those who want one of their own next, and the connections of a pool that is kept.
_MOST_SPARE_POOLS: Final = 8
_MOST_SPARE_CONNECTIONS: Final = 32


class ClusterSession:
    """Made by :meth:`connect`. Connections to bookies are opened when they are needed. Single event loop.

    ``pool`` has connections for adds and reads, over the configured protocol. ``pool_v3`` has connections for the
    requests that v2 lacks. Over gRPC both are one.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        services: ClusterServices,
        config: ClientConfig,
        tls: ClientTls | None,
        logins: Logins | None,
        *,
        shared: bool,
    ) -> None:
        self.zookeeper = zookeeper
        self.services = services
        self.config = config
        self._tls, self._logins = tls, logins
        self.pool_v3: ConnectionPool[ControlConnection]
        self.pool: ConnectionPool[LedgerConnection]
        if config.transport == GRPC:
            self.pool_v3 = self._new_grpc_pool()
        else:
            self.pool_v3 = ConnectionPool(connects_by(BookieConnectionV3, services.address, tls, logins), config)
        both = config.transport == GRPC or not config.use_v2_wire_protocol
        self.pool = self.pool_v3 if both else self.new_pool()
        self._shared = shared
        self._spare: list[ConnectionPool[LedgerConnection]] = []
        self._closed = False

    @classmethod
    async def connect_in_thread(
        cls, uri: MetadataServiceUri, config: ClientConfig, shared: ZooKeeper | None
    ) -> ClusterSession:
        """:meth:`connect` for a caller on an event loop."""
        connecting = asyncio.ensure_future(asyncio.to_thread(cls.connect, uri, config, shared))
        try:
            return await shielded(connecting)
        except asyncio.CancelledError:
            # A thread cannot be cancelled. Let it finish, which takes a bounded time, and undo its work.
            (session,) = await asyncio.gather(connecting, return_exceptions=True)
            if isinstance(session, ClusterSession):
                await session.close()
            raise

    @classmethod
    def connect(cls, uri: MetadataServiceUri, config: ClientConfig, shared: ZooKeeper | None) -> ClusterSession:
        """Connect to ZooKeeper, or use the session ``shared``, which is never closed here. Blocks.

        Raises MetadataUnavailableError if ZooKeeper does not answer within ``connect_timeout_ms``, InvalidArgumentError
        for wrong certificates, keys or credentials.
        """
        tls = ClientTls(config) if config.tls_enabled else None
        logins = Logins.of(config)
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
        return cls(zookeeper, services, config, tls, logins, shared=shared is not None)

    def new_pool(self) -> ConnectionPool[LedgerConnection]:
        """Return a pool of separate connections over the configured protocol."""
        if self.config.transport == GRPC:
            return self._new_grpc_pool()
        if self.config.use_v2_wire_protocol:
            return ConnectionPool(
                connects_by(BookieConnection, self.services.address, self._tls, self._logins), self.config
            )
        return ConnectionPool(
            connects_by(BookieConnectionV3, self.services.address, self._tls, self._logins), self.config
        )

    def take_pool(self) -> ConnectionPool[LedgerConnection]:
        """Return a pool that nobody else uses: one that was given back, or a new one. A connection costs a handshake
        and a login."""
        return self._spare.pop() if self._spare else self.new_pool()

    async def give_back(self, pool: ConnectionPool[LedgerConnection]) -> None:
        """Take back a pool from :meth:`take_pool` for others. No answer may come over it any more."""
        if self._closed or len(self._spare) >= _MOST_SPARE_POOLS or len(pool) > _MOST_SPARE_CONNECTIONS:
            await pool.close()
        else:
            self._spare.append(pool)

    def _new_grpc_pool(self) -> ConnectionPool[ControlConnection]:
        """Raises InvalidArgumentError if the packages of gRPC are missing."""
        try:
            from bk_spark.bookie.connection.grpc_connects import grpc_connects  # its packages are an extra
        except ImportError as error:
            raise InvalidArgumentError(
                f"transport=grpc needs more packages: pip install 'bk-spark[grpc]' ({error})"
            ) from error
        keep_freed_memory()
        return ConnectionPool(grpc_connects(self.services.grpc_address, self._tls, self._logins), self.config)

    async def close(self) -> None:
        """Close all connections, and the session with ZooKeeper if it is not shared. Safe to repeat."""
        self._closed = True
        spare, self._spare = self._spare, []
        for pool in (self.pool, self.pool_v3, *spare):
            await pool.close()
        await asyncio.to_thread(self.services.close, None if self._shared else self.zookeeper)
