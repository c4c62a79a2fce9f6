"""Connections to bookies, one per bookie, opened on demand. Single event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from bk_spark.bookie.config import ANSWER_RESERVE_BYTES, ClientConfig
from bk_spark.bookie.connection.base import FramedConnection
from bk_spark.bookie.connection.client_tls import ClientTls
from bk_spark.bookie.connection.interface import Connection, ConnectionLimits
from bk_spark.bookie.connection.logins import FramedDialogue, Logins
from bk_spark.bookie.shielded import shielded
from bk_spark.protocol.errors import BookieUnavailableError, BookKeeperError, LoginError, TlsError

_LOG: Final = logging.getLogger(__name__)

#: Finds host and port of a bookie id.
Resolver = Callable[[str], Awaitable[tuple[str, int]]]


_C_co = TypeVar("_C_co", bound=Connection, covariant=True)
#: Makes a live connection to a bookie. Raises OSError, TlsError, BookieUnavailableError.
Connect = Callable[[str, ConnectionLimits], Awaitable[_C_co]]
_F = TypeVar("_F", bound=FramedConnection)


def connects_by(
    kind: Callable[[str, ConnectionLimits], _F],
    resolve: Resolver,
    tls: ClientTls | None = None,
    logins: Logins | None = None,
) -> Connect[_F]:
    """Return what makes connections of ``kind`` to where ``resolve`` says, with ``tls`` and ``logins`` if given."""

    async def connect(bookie_id: str, limits: ConnectionLimits) -> _F:
        host, port = await resolve(bookie_id)
        connection = kind(bookie_id, limits)
        if tls is None:
            await asyncio.get_running_loop().create_connection(lambda: connection, host, port)
        else:
            await tls.connect(host, port, connection)
        if logins is not None:
            await logins.log_in(FramedDialogue(connection), host)
        return connection

    return connect


class ConnectionPool(Generic[_C_co]):
    """Shares one connection per bookie among all handles of a client. ``connect`` makes them."""

    def __init__(self, connect: Connect[_C_co], config: ClientConfig) -> None:
        self._connect_to = connect
        self._config = config
        shortest_timeout_ms = min(config.add_timeout_ms, config.read_timeout_ms)
        self._limits = ConnectionLimits(
            config.max_frame_bytes + ANSWER_RESERVE_BYTES,
            config.max_outstanding_requests,
            config.read_timeout_ms,
            # Shorter than any timeout, so that a timed-out request finds the peer silent long enough.
            shortest_timeout_ms * 4 // 5,
        )
        self._connections: dict[str, _C_co] = {}
        self._connecting: dict[str, asyncio.Task[_C_co]] = {}
        self._closed = False

    def __len__(self) -> int:
        """The number of connections. One that broke counts until it is replaced."""
        return len(self._connections)

    def existing(self, bookie_id: str) -> _C_co | None:
        """Return the live connection, if there is one."""
        connection = self._connections.get(bookie_id)
        return None if connection is None or connection.closed else connection

    async def get(self, bookie_id: str) -> _C_co:
        """Return a live connection. Raises BookieUnavailableError, MetadataUnavailableError."""
        if self._closed:
            raise _closed_error(bookie_id)
        connection = self.existing(bookie_id)
        if connection is not None:
            return connection
        task = self._connecting.get(bookie_id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._connect(bookie_id))
            self._connecting[bookie_id] = task
            task.add_done_callback(lambda done: self._attempt_ended(bookie_id, done))
        # Several callers may wait. One that gives up must not end the attempt for the others.
        try:
            return await shielded(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and caller is not None and not caller.cancelling():
                # close() cancelled the attempt. The caller itself was not cancelled.
                raise _closed_error(bookie_id) from None
            raise

    async def close(self) -> None:
        """Close every connection for good. Outstanding requests fail."""
        self._closed = True
        connecting = list(self._connecting.values())
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        connections = list(self._connections.values())
        for connection in connections:
            connection.close()
        self._connections.clear()
        await asyncio.gather(*(connection.wait_closed() for connection in connections))

    def _attempt_ended(self, bookie_id: str, attempt: asyncio.Task[_C_co]) -> None:
        self._connecting.pop(bookie_id, None)
        if not attempt.cancelled():
            # Retrieve the error, because every caller may have given up.
            attempt.exception()

    async def _connect(self, bookie_id: str) -> _C_co:
        try:
            async with asyncio.timeout(self._config.connect_timeout_ms / 1000):
                connection = await self._connect_to(bookie_id, self._limits)
        except (TlsError, LoginError) as error:
            _LOG.warning("%s", error)
            raise
        except BookKeeperError:
            raise
        except (OSError, TimeoutError, ValueError) as error:
            # ValueError: the host is not a valid name. It has an empty label, for example.
            raise BookieUnavailableError(f"cannot connect: {error!r}", bookie_id=bookie_id) from error
        self._connections[bookie_id] = connection
        return connection


def _closed_error(bookie_id: str) -> BookieUnavailableError:
    return BookieUnavailableError("the client is closed", bookie_id=bookie_id)
