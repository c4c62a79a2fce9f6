"""A writer's connections to the bookies of its ensemble, and to those that may join it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from bk_spark.bookie.connection.base import AddListener, LedgerConnection, LossListener
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.bookie.services import ClusterServices
from bk_spark.protocol.errors import BookKeeperError, PeerError

_LOG = logging.getLogger(__name__)
#: An entry that does not exist. Any answer shows that the bookie is alive. A recovery on the same connection never asks
#: for this entry, because v2 answers to reads of the same entry look alike.
_PROBE: Final = range(2**31 - 2, 2**31 - 1)


class EnsembleConnections:
    """Connects and listens. Reports to the quarantine which bookies failed and which answered."""

    def __init__(
        self,
        ledger_id: int,
        pool: ConnectionPool[LedgerConnection],
        services: ClusterServices,
        timeout_ms: int,
        on_answers: AddListener,
        on_loss: LossListener,
    ) -> None:
        self._ledger_id = ledger_id
        self._pool = pool
        self._services = services
        self._timeout_s = timeout_ms / 1000
        self._on_answers = on_answers
        self._on_loss = on_loss
        self._connections: dict[str, LedgerConnection] = {}
        #: Frames that wait for a connection being made, by bookie.
        self._waiting: dict[str, list[memoryview]] = {}
        self._settled = asyncio.Event()

    def get(self, bookie_id: str) -> LedgerConnection | None:
        """Return the connection that carries this writer's adds."""
        return self._connections.get(bookie_id)

    async def connected(self) -> None:
        """Wait until no connection is being made."""
        while self._waiting:
            await self._settled.wait()

    def expect(self, bookie_id: str) -> None:
        """Announce a :meth:`connect`. Adds sent from now on wait for it."""
        self._waiting.setdefault(bookie_id, [])
        self._settled.clear()

    async def connect(self, bookie_id: str, *, probe: bool = False) -> bool:
        """Connect within the timeout, and send the adds that wait. With ``probe`` the bookie must also answer a read.
        Return whether this worked."""
        self.expect(bookie_id)
        try:
            connection = await self._attempt(bookie_id, probe=probe)
            if connection is None or connection.closed:
                return False
            connection.listen(self._ledger_id, self._on_answers, self._on_loss)
            self._connections[bookie_id] = connection
            self._services.bookie_answered(bookie_id)
            connection.send(self._waiting[bookie_id])
            return True
        finally:
            del self._waiting[bookie_id]
            if not self._waiting:
                self._settled.set()

    async def _attempt(self, bookie_id: str, *, probe: bool) -> LedgerConnection | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._pool.get(bookie_id)
                if probe:
                    await connection.read(self._ledger_id, _PROBE)
                return connection
        except (PeerError, TimeoutError) as error:
            _LOG.warning("ledger %d: bookie %s cannot be used: %r", self._ledger_id, bookie_id, error)
            self._services.bookie_failed(bookie_id)
        except BookKeeperError as error:
            _LOG.warning("ledger %d: bookie %s cannot be looked up: %s", self._ledger_id, bookie_id, error)
        return None

    def send(self, bookie_id: str, frames: Sequence[memoryview]) -> bool:
        """Send adds, or let them wait for the connection. Return False if there is none."""
        connection = self._connections.get(bookie_id)
        if connection is not None and not connection.closed:
            connection.send(frames)
            return True
        waiting = self._waiting.get(bookie_id)
        if waiting is None:
            return False
        waiting += frames
        return True

    def leave(self, bookie_id: str) -> None:
        """Forget the connection of a failed bookie."""
        connection = self._connections.pop(bookie_id, None)
        if connection is not None:
            connection.unlisten(self._ledger_id)
            self._services.bookie_failed(bookie_id)

    def detach(self) -> None:
        """Stop listening to all bookies."""
        for connection in self._connections.values():
            connection.unlisten(self._ledger_id)
        self._connections.clear()
