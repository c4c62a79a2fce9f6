"""Performs the actions of a :class:`bk_spark.protocol.ledger.writer.LedgerWriter` at bookies and ZooKeeper."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import numpy.typing as npt

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.base import LedgerConnection
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.bookie.metadata.metadata_calls import call_metadata
from bk_spark.bookie.runners import AsyncRunner
from bk_spark.bookie.services import ClusterServices
from bk_spark.bookie.writing.ensemble_connections import EnsembleConnections
from bk_spark.bookie.writing.forcing import LacSender, force_over
from bk_spark.protocol.ledger.metadata_calls import CompareAndSet, ReadMetadata
from bk_spark.protocol.ledger.replacement import (
    BookiePicked,
    BookieTried,
    PickBookie,
    SearchAction,
    SearchEvent,
    TryBookie,
    replacement_search,
)
from bk_spark.protocol.ledger.writer import LedgerWriter
from bk_spark.protocol.ledger.writer_actions import (
    AddsAnswered,
    BookieFailed,
    BookieForced,
    BookiesChanged,
    BookiesChosen,
    ChooseBookies,
    ConnectBookie,
    ForceBookie,
    LacAnswered,
    LeaveBookie,
    NoBookies,
    SendAdds,
    WriteLac,
    WriterAction,
    WriterEvent,
)

_LOG = logging.getLogger(__name__)
_Performed = Coroutine[Any, Any, WriterEvent | None] | WriterEvent | None


class WriterPerformer:
    """Performs one writer's actions. Events that do not answer a single action go to ``tell``.

    Parameters
    ----------
    pool
        Its connections carry the adds.
    tell
        Receives an event. Called on the event loop.
    lac_sender
        Required if the writer publishes its last add confirmed by itself.
    """

    def __init__(
        self,
        machine: LedgerWriter,
        services: ClusterServices,
        pool: ConnectionPool[LedgerConnection],
        config: ClientConfig,
        tell: Callable[[WriterEvent], None],
        lac_sender: LacSender | None = None,
    ) -> None:
        self._machine = machine
        self._ledger_id = machine.ledger_id
        self._services = services
        self._config = config
        self._tell = tell
        self._lac_sender = lac_sender
        self.connections = EnsembleConnections(
            machine.ledger_id, pool, services, config.add_timeout_ms, self._on_answers, self._on_loss
        )
        self._unsubscribe = services.subscribe(lambda: tell(BookiesChanged()))

    def perform(self, action: WriterAction) -> _Performed:
        match action:
            case SendAdds(bookie_id, frames):
                return None if self.connections.send(bookie_id, frames) else BookieFailed(bookie_id)
            case ConnectBookie(bookie_id):
                self.connections.expect(bookie_id)
                return self._connect(bookie_id)
            case LeaveBookie(bookie_id):
                self.connections.leave(bookie_id)
            case ChooseBookies():
                return self._choose(action)
            case CompareAndSet() | ReadMetadata():
                return call_metadata(self._services, self._ledger_id, action)
            case ForceBookie():
                return self._force(action)
            case WriteLac():
                return self._write_lac(action)
        return None

    def detach(self) -> None:
        """Stop listening to all bookies."""
        self.connections.detach()
        self._unsubscribe()
        self._unsubscribe = lambda: None

    # --- what connections report ---

    def _on_answers(self, bookie_id: str, entry_ids: npt.NDArray[np.int64], codes: npt.NDArray[np.int32]) -> None:
        self._tell(AddsAnswered(bookie_id, entry_ids, codes))

    def _on_loss(self, bookie_id: str) -> None:
        _LOG.warning("ledger %d: connection to bookie %s broke", self._ledger_id, bookie_id)
        self._tell(BookieFailed(bookie_id))

    # --- actions that take time ---

    async def _connect(self, bookie_id: str) -> WriterEvent | None:
        return None if await self.connections.connect(bookie_id) else BookieFailed(bookie_id)

    async def _choose(self, action: ChooseBookies) -> WriterEvent:
        search = AsyncRunner[SearchAction, SearchEvent, BookiesChosen | NoBookies](
            replacement_search(action, tuple(self._machine.ensemble.members)),
            self._perform_search,
            what=f"search for bookies of ledger {self._ledger_id}",
        )
        search.run()
        try:
            answer = await search.result()
        finally:
            await search.stop()
        match answer:
            case BookiesChosen(replacements):
                _LOG.info("ledger %d: ensemble change, new bookies %s", self._ledger_id, replacements)
            case NoBookies(error):
                _LOG.warning("ledger %d: no replacement for a failed bookie: %s", self._ledger_id, error)
        return answer

    async def _perform_search(self, action: SearchAction) -> SearchEvent:
        match action:
            case PickBookie(members, index, exclude):
                quorum = self._machine.metadata.quorum
                return BookiePicked(await self._services.choose_replacement(quorum, members, index, exclude))
            case TryBookie(bookie_id):
                return BookieTried(await self.connections.connect(bookie_id, probe=True))

    async def _force(self, action: ForceBookie) -> WriterEvent | None:
        connection = self.connections.get(action.bookie_id)
        if connection is None:
            return None  # the failure of the bookie was already reported to the machine
        assert isinstance(connection, BookieConnectionV3)
        await force_over(connection, self._ledger_id, self._config.add_timeout_ms)
        return BookieForced(action.bookie_id, action.last_entry_id)

    async def _write_lac(self, action: WriteLac) -> WriterEvent:
        assert self._lac_sender is not None
        taken = await self._lac_sender.send(self._ledger_id, action.bookie_id, action.last_add_confirmed)
        return LacAnswered(action.last_add_confirmed, taken)
