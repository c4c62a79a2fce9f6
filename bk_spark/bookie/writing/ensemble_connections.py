"""A writer's connections to the bookies of its ensemble, and to those that may join it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Final

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.base import AddListener, LedgerConnection, LossListener
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.bookie.services import ClusterServices
from bk_spark.protocol.errors import BookKeeperError, NotEnoughBookiesError, PeerError
from bk_spark.protocol.ledger.writer_actions import ChooseBookies, SendAdds
from bk_spark.protocol.quorum import Quorum

_LOG = logging.getLogger(__name__)
#: An entry that nobody has: whatever a bookie says to it, it lives. Not one that a recovery on the same connection
#: could ask for too, as v2 answers to reads of one entry cannot be told apart.
_PROBE: Final = range(2**31 - 2, 2**31 - 1)


class EnsembleConnections:
    """Connects, listens, and notices bookies that do not take their adds. Tells the quarantine of both."""

    def __init__(
        self,
        ledger_id: int,
        pool: ConnectionPool[LedgerConnection],
        services: ClusterServices,
        config: ClientConfig,
        on_answers: AddListener,
        on_loss: LossListener,
    ) -> None:
        self._ledger_id = ledger_id
        self._pool = pool
        self._services = services
        self._timeout_s = config.add_timeout_ms / 1000
        self._on_answers = on_answers
        self._on_loss = on_loss
        self._connections: dict[str, LedgerConnection] = {}
        #: When each bookie that owes adds last took one, or was sent the first.
        self._progress: dict[str, float] = {}

    def get(self, bookie_id: str) -> LedgerConnection | None:
        """The connection over which this writer's adds go."""
        return self._connections.get(bookie_id)

    async def attach(self, bookie_id: str, *, probe: bool = False) -> bool:
        """Connect within the add timeout; whether that worked. With ``probe`` the bookie must answer, too: one
        that hangs still accepts connections."""
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._pool.get(bookie_id)
                if probe:
                    await connection.read(self._ledger_id, _PROBE)
        except (PeerError, TimeoutError) as error:
            _LOG.warning("ledger %d: bookie %s cannot be used: %r", self._ledger_id, bookie_id, error)
            self._services.bookie_failed(bookie_id)
            return False
        except BookKeeperError as error:
            _LOG.warning("ledger %d: bookie %s cannot be looked up: %s", self._ledger_id, bookie_id, error)
            return False
        if connection.closed:
            return False
        connection.listen(self._ledger_id, self._on_answers, self._on_loss)
        self._connections[bookie_id] = connection
        self._services.bookie_answered(bookie_id)
        return True

    async def find_replacements(
        self, action: ChooseBookies, quorum: Quorum, ensemble: Sequence[str]
    ) -> dict[int, str] | BookKeeperError:
        """Connected bookies for as many of the failed positions as can be had; or why there are none.

        A candidate that cannot be connected to within the add timeout, or does not answer, is passed over.
        """
        found: dict[int, str] = {}
        exclude = set(action.exclude)
        refused: BookKeeperError = NotEnoughBookiesError("no bookie failed", ledger_id=self._ledger_id)
        for index in action.failed:
            while index not in found:
                members = [found.get(at, bookie) for at, bookie in enumerate(ensemble)]
                try:
                    bookie_id = await self._choose(action, quorum, members, index, exclude)
                except BookKeeperError as error:
                    refused = error
                    break
                exclude.add(bookie_id)
                if await self.attach(bookie_id, probe=True):
                    found[index] = bookie_id
        return found or refused

    async def _choose(
        self, action: ChooseBookies, quorum: Quorum, members: Sequence[str], index: int, exclude: Collection[str]
    ) -> str:
        try:
            return await self._services.choose_replacement(quorum, members, index, {*exclude, *action.avoid})
        except NotEnoughBookiesError:
            if not action.needed:
                raise
            return await self._services.choose_replacement(quorum, members, index, exclude)

    def send(self, action: SendAdds) -> bool:
        """Send adds; whether there is a connection."""
        connection = self._connections.get(action.bookie_id)
        if connection is None or connection.closed:
            return False
        self._progress.setdefault(action.bookie_id, asyncio.get_running_loop().time())
        connection.send(action.frames)
        return True

    def took(self, bookie_id: str, *, owes: bool) -> None:
        """The bookie took an add, and perhaps owes more."""
        if owes:
            self._progress[bookie_id] = asyncio.get_running_loop().time()
        else:
            self._progress.pop(bookie_id, None)

    def stuck(self) -> list[str]:
        """Bookies that owe adds and took none for the add timeout."""
        now = asyncio.get_running_loop().time()
        return [bookie_id for bookie_id, since in self._progress.items() if now - since > self._timeout_s]

    def give_up(self, bookie_id: str) -> None:
        """The bookie failed: forget its connection."""
        connection = self._connections.pop(bookie_id, None)
        if connection is not None:
            connection.unlisten(self._ledger_id)
        self._progress.pop(bookie_id, None)
        self._services.bookie_failed(bookie_id)

    def detach(self) -> None:
        """Listen to nobody any more."""
        for connection in self._connections.values():
            connection.unlisten(self._ledger_id)
        self._connections.clear()
        self._progress.clear()
