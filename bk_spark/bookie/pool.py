"""Connections to bookies, one per bookie, made on demand. Single event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from bk_spark.bookie.config import ANSWER_RESERVE_BYTES, ClientConfig
from bk_spark.bookie.connection import FramedConnection
from bk_spark.protocol.errors import BookieUnavailableError, BookKeeperError

#: Finds host and port of a bookie id.
Resolver = Callable[[str], Awaitable[tuple[str, int]]]


_C = TypeVar("_C", bound=FramedConnection)


class ConnectionPool(Generic[_C]):
    """Shares one connection of class ``kind`` per bookie among all handles of a client."""

    def __init__(self, kind: Callable[[str, int], _C], resolve: Resolver, config: ClientConfig) -> None:
        self._kind = kind
        self._resolve = resolve
        self._config = config
        self._connections: dict[str, _C] = {}
        self._connecting: dict[str, asyncio.Task[_C]] = {}
        self._closed = False
        #: Bookies that closed the connection at a batch read: they do not know it.
        self.without_batch_read: set[str] = set()

    def existing(self, bookie_id: str) -> _C | None:
        """The live connection, if there is one."""
        connection = self._connections.get(bookie_id)
        return None if connection is None or connection.closed else connection

    async def get(self, bookie_id: str) -> _C:
        """A live connection. Raises BookieUnavailableError, MetadataUnavailableError."""
        if self._closed:
            raise _closed_error(bookie_id)
        connection = self.existing(bookie_id)
        if connection is not None:
            return connection
        task = self._connecting.get(bookie_id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._connect(bookie_id))
            self._connecting[bookie_id] = task
            task.add_done_callback(lambda done: self._connecting.pop(bookie_id, None))
        # Several callers may wait: one that gives up must not end the attempt for the others.
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and caller is not None and not caller.cancelling():
                # Not the caller was cancelled but the attempt, by close().
                raise _closed_error(bookie_id) from None
            raise

    async def close(self) -> None:
        """Close every connection for good; outstanding requests fail."""
        self._closed = True
        for task in list(self._connecting.values()):
            task.cancel()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        # Aborted transports release their sockets in the next turn of the loop.
        await asyncio.sleep(0)

    async def _connect(self, bookie_id: str) -> _C:
        try:
            async with asyncio.timeout(self._config.connect_timeout_ms / 1000):
                host, port = await self._resolve(bookie_id)
                limit = self._config.max_frame_bytes + ANSWER_RESERVE_BYTES
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: self._kind(bookie_id, limit), host, port
                )
        except BookKeeperError:
            raise
        except (OSError, TimeoutError) as error:
            raise BookieUnavailableError(f"cannot connect: {error!r}", bookie_id=bookie_id) from error
        self._connections[bookie_id] = connection
        return connection


def _closed_error(bookie_id: str) -> BookieUnavailableError:
    return BookieUnavailableError("the client is closed", bookie_id=bookie_id)
