"""Performs the actions of a :class:`bk_spark.protocol.ledger.writer.LedgerWriter` at bookies and ZooKeeper.

:class:`EnsembleConnections` has the writer's connections to the bookies of its ensemble, and to those that may join it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.interface import AddListener, ControlConnection, LedgerConnection, LossListener
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.bookie.metadata.metadata_calls import call_metadata
from bk_spark.bookie.runners import AsyncRunner
from bk_spark.bookie.services import ClusterServices
from bk_spark.bookie.writing.forcing import LacSender, force_over
from bk_spark.protocol.errors import BookKeeperError, LoginError, NotEnoughBookiesError, PeerError, TlsError
from bk_spark.protocol.ledger.claiming import ChooseLast
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
#: An entry that does not exist. Any answer shows that the bookie is alive. A recovery on the same connection never asks
#: for this entry, because v2 answers to reads of the same entry look alike.
_PROBE: Final = range(2**31 - 2, 2**31 - 1)
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
    gathers
        Whether adds of one turn of the event loop go with one system call: those of a recovery, which come one by one.
    """

    def __init__(
        self,
        machine: LedgerWriter,
        services: ClusterServices,
        pool: ConnectionPool[LedgerConnection],
        config: ClientConfig,
        tell: Callable[[WriterEvent], None],
        lac_sender: LacSender | None = None,
        *,
        gathers: bool = False,
    ) -> None:
        self._machine = machine
        self._ledger_id = machine.ledger_id
        self._services = services
        self._config = config
        self._tell = tell
        self._lac_sender = lac_sender
        #: Whether a bookie joins only if it takes the ledger's password.
        self._claims = False
        self._gathers = gathers
        self.connections = EnsembleConnections(
            machine.ledger_id, pool, services, config.add_timeout_ms, self._on_answers, self._on_loss
        )
        self._unsubscribe = services.subscribe(lambda: tell(BookiesChanged()))

    def perform(self, action: WriterAction) -> _Performed:
        """Begin an action. Returns None, an event, or the coroutine whose result is one."""
        match action:
            case SendAdds(bookie_id, frames):
                sent = self.connections.send(bookie_id, frames, soon=self._gathers)
                return None if sent else BookieFailed(bookie_id)
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
            case ChooseLast(bookie_id):
                self._services.bookie_failed(bookie_id)
        return None

    async def claim(self) -> tuple[str, ...]:
        """Tell the bookies of the ensemble the ledger's password, and from now on those that may join it: see
        :class:`bk_spark.protocol.ledger.claiming.LedgerClaim`, also for result and errors."""
        assert self._lac_sender is not None
        self._claims = True
        quorum, members = self._machine.metadata.quorum, tuple(self._machine.ensemble.members)
        # New ledgers get other bookies than those that do not answer.
        silent = await self._lac_sender.claim(self._ledger_id, quorum, members, self._services.bookie_failed)
        self._machine.ensemble.first_answers.password_is_known = True
        return silent

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
        answer = await search.complete()
        match answer:
            case BookiesChosen(replacements):
                self._services.counts.bookies_replaced += len(replacements)
                _LOG.info("ledger %d: ensemble change, new bookies %s", self._ledger_id, replacements)
            case NoBookies(error):
                _LOG.warning("ledger %d: no replacement for a failed bookie: %s", self._ledger_id, error)
        return answer

    async def _perform_search(self, action: SearchAction) -> SearchEvent:
        match action:
            case PickBookie(members, index, exclude):
                quorum = self._machine.metadata.quorum
                try:
                    return BookiePicked(await self._services.choose_replacement(quorum, members, index, exclude))
                except NotEnoughBookiesError as error:
                    problem = self.connections.refusal
                    if problem is None:
                        raise
                    # More bookies would not help.
                    raise NotEnoughBookiesError(f"{error.message}; {problem}") from error
            case TryBookie(bookie_id):
                if self._claims and not await self._takes_password(bookie_id):
                    return BookieTried(False)
                return BookieTried(await self.connections.connect(bookie_id, probe=True))

    async def _takes_password(self, bookie_id: str) -> bool:
        assert self._lac_sender is not None
        return await self._lac_sender.takes(self._ledger_id, bookie_id)

    async def _force(self, action: ForceBookie) -> WriterEvent | None:
        connection = self.connections.get(action.bookie_id)
        if connection is None:
            return None  # the failure of the bookie was already reported to the machine
        assert isinstance(connection, ControlConnection)
        await force_over(connection, self._ledger_id, self._config.add_timeout_ms)
        return BookieForced(action.bookie_id, action.last_entry_id)

    async def _write_lac(self, action: WriteLac) -> WriterEvent:
        assert self._lac_sender is not None
        taken = await self._lac_sender.send(self._ledger_id, action.bookie_id, action.last_add_confirmed)
        return LacAnswered(action.last_add_confirmed, taken)


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
        #: Exists while somebody waits until no connection is being made.
        self._settled: asyncio.Event | None = None
        #: What the last bookie said with which TLS or a login failed.
        self.refusal: str | None = None

    def get(self, bookie_id: str) -> LedgerConnection | None:
        """Return the connection that carries this writer's adds."""
        return self._connections.get(bookie_id)

    async def connected(self) -> None:
        """Wait until no connection is being made."""
        while self._waiting:
            self._settled = self._settled or asyncio.Event()
            await self._settled.wait()

    def expect(self, bookie_id: str) -> None:
        """Announce a :meth:`connect`. Adds sent from now on wait for it."""
        self._waiting.setdefault(bookie_id, [])

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
            if not self._waiting and self._settled is not None:
                self._settled.set()
                self._settled = None

    async def _attempt(self, bookie_id: str, *, probe: bool) -> LedgerConnection | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._pool.get(bookie_id)
                if probe:
                    await connection.read(self._ledger_id, _PROBE)
                return connection
        except (PeerError, TimeoutError) as error:
            if isinstance(error, TlsError | LoginError):
                self.refusal = str(error)
            _LOG.warning("ledger %d: bookie %s cannot be used: %r", self._ledger_id, bookie_id, error)
            self._services.bookie_failed(bookie_id)
        except BookKeeperError as error:
            _LOG.warning("ledger %d: bookie %s cannot be looked up: %s", self._ledger_id, bookie_id, error)
        return None

    def send(self, bookie_id: str, frames: Sequence[memoryview], *, soon: bool = False) -> bool:
        """Send adds, or let them wait for the connection. Return False if there is none."""
        connection = self._connections.get(bookie_id)
        if connection is not None and not connection.closed:
            connection.send(frames, soon=soon)
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
