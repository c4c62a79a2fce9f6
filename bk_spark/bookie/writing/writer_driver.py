"""Carries out what a :class:`bk_spark.protocol.ledger.writer.LedgerWriter` asks for, and tells it what happens."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.base import LedgerConnection
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.bookie.services import ClusterServices
from bk_spark.bookie.tasks import TaskSet
from bk_spark.bookie.writing.ensemble_connections import EnsembleConnections
from bk_spark.bookie.writing.forcing import force_over
from bk_spark.bookie.writing.waiters import Waiters
from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import (
    AddQuorumTimeoutError,
    BookKeeperError,
    MetadataConflictError,
    OutcomeUnknownError,
)
from bk_spark.protocol.ledger.writer import LedgerWriter
from bk_spark.protocol.ledger.writer_actions import (
    Acknowledge,
    ChooseBookies,
    Failed,
    ForceBookie,
    SendAdds,
    Throttled,
    WriteMetadata,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata

_LOG = logging.getLogger(__name__)
#: How often a writer that goes on without a failed bookie looks for a replacement though no bookie came or
#: went: one that hung may have come to itself.
_RETRY_REPLACEMENT_S: Final = 30.0
#: Looking for a replacement holds up acknowledgements for no longer than this.
_SLOW_SEARCH_S: Final = 1.0
#: Pause before a bookie gets again what it refused for being busy; doubled while it refuses everything.
_FIRST_PAUSE_S: Final = 0.02
_LAST_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Piece:
    """Entries that were appended together, of which some bookie has not answered all."""

    last_entry_id: int
    size_bytes: int
    appended_at: float


class WriterDriver:
    """Connections, timers and metadata of one writer. Whoever waits for it uses :meth:`wait_until` or ``waiters``."""

    def __init__(
        self,
        machine: LedgerWriter,
        version: int,
        services: ClusterServices,
        pool: ConnectionPool[LedgerConnection],
        config: ClientConfig,
    ) -> None:
        #: Of the metadata that the machine has.
        self.version = version
        self.waiters = Waiters()
        #: Bytes of frames that some bookie of the ensemble has not answered.
        self.pending_bytes = 0
        #: What runs until the writer ends.
        self.background = TaskSet(f"background of ledger {machine.ledger_id}", self._fail)
        self._machine = machine
        self._ledger_id = machine.ledger_id
        self._services = services
        self._config = config
        self._ensemble = EnsembleConnections(machine.ledger_id, pool, services, config, self._on_answers, self._on_loss)
        self._pieces: deque[_Piece] = deque()
        self._tasks = TaskSet(f"writer of ledger {machine.ledger_id}", self._fail)
        self._pauses: dict[str, float] = {}
        self._unsubscribe: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Connect to the ensemble. A bookie that cannot be reached is replaced at the first add."""
        bookies = self._machine.ensemble
        attached = await asyncio.gather(*map(self._ensemble.attach, bookies))
        for bookie_id, connected in zip(bookies, attached, strict=True):
            if not connected:
                self._machine.on_bookie_failed(bookie_id)
        self.background.spawn(self._watch_timeouts())
        self._unsubscribe = self._services.subscribe(self._on_bookies_changed)

    async def stop(self) -> None:
        """End all that runs for the writer, which has failed."""
        self.run()
        await self._tasks.cancel()
        await self.background.cancel()
        self._detach()

    def appended(self, last_entry_id: int, size_bytes: int) -> None:
        """Entries up to ``last_entry_id`` were added to the machine, in frames of ``size_bytes`` together."""
        self._pieces.append(_Piece(last_entry_id, size_bytes, asyncio.get_running_loop().time()))
        self.pending_bytes += size_bytes
        self.run()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Raises what ended the writer before."""
        self.raise_error()
        while not condition():
            self.raise_error()
            await self.waiters.woken()

    def raise_error(self) -> None:
        if self._machine.error is not None:
            raise self._machine.error

    def run(self) -> None:
        """Carry out what the machine asks for."""
        while actions := self._machine.take_actions():
            for action in actions:
                match action:
                    case SendAdds():
                        if not self._ensemble.send(action):
                            self._machine.on_bookie_failed(action.bookie_id)
                    case ChooseBookies():
                        self._tasks.spawn(self._replace(action))
                    case WriteMetadata(metadata):
                        self._tasks.spawn(self._publish(metadata))
                    case Throttled(bookie_id):
                        self._tasks.spawn(self._pause(bookie_id))
                    case ForceBookie(bookie_id, last_entry_id):
                        self._tasks.spawn(self._force_bookie(bookie_id, last_entry_id))
                    case Acknowledge(last_add_confirmed):
                        self.waiters.reach(last_add_confirmed)
                    case Failed(error):
                        self.waiters.fail(error)
                        self._detach()
        while self._pieces and self._pieces[0].last_entry_id < self._machine.oldest_retained:
            self.pending_bytes -= self._pieces.popleft().size_bytes
        # Whatever happened may be what somebody waits for, also the end of a bookie that held up the window.
        self.waiters.wake()

    def _on_answers(self, bookie_id: str, entry_ids: npt.NDArray[np.int64], codes: npt.NDArray[np.int32]) -> None:
        self._machine.on_add_answers(bookie_id, entry_ids, codes)
        if self._machine.has_failed(bookie_id):
            self._ensemble.give_up(bookie_id)
        elif not self._machine.unanswered(bookie_id):
            self._ensemble.took(bookie_id, owes=False)
        elif (codes == Code.OK).any():
            self._ensemble.took(bookie_id, owes=True)
            self._pauses.pop(bookie_id, None)
        self.run()

    def _on_loss(self, bookie_id: str) -> None:
        _LOG.warning("ledger %d: connection to bookie %s broke", self._ledger_id, bookie_id)
        self._give_up(bookie_id)
        self.run()

    def _on_bookies_changed(self) -> None:
        self._machine.on_bookies_changed()
        self.run()

    def _on_search_slow(self) -> None:
        self._machine.on_search_slow()
        self.run()

    def _give_up(self, bookie_id: str) -> None:
        self._ensemble.give_up(bookie_id)
        self._machine.on_bookie_failed(bookie_id)

    def _detach(self) -> None:
        self._ensemble.detach()
        self._unsubscribe()
        self._unsubscribe = lambda: None

    async def _replace(self, action: ChooseBookies) -> None:
        machine = self._machine
        slow = asyncio.get_running_loop().call_later(_SLOW_SEARCH_S, self._on_search_slow)
        try:
            found = await self._ensemble.find_replacements(action, machine.metadata.quorum, machine.ensemble)
        finally:
            slow.cancel()
        if isinstance(found, BookKeeperError):
            _LOG.warning("ledger %d: no replacement for a failed bookie: %s", self._ledger_id, found)
            machine.on_no_bookies(found)
        else:
            _LOG.info("ledger %d: ensemble change, new bookies %s", self._ledger_id, found)
            machine.on_bookies_chosen(found)
        self.run()

    async def _pause(self, bookie_id: str) -> None:
        pause_s = self._pauses.get(bookie_id, _FIRST_PAUSE_S)
        self._pauses[bookie_id] = min(2 * pause_s, _LAST_PAUSE_S)
        await asyncio.sleep(pause_s)
        self._machine.retry_refused(bookie_id)
        self.run()

    async def _publish(self, metadata: LedgerMetadata) -> None:
        try:
            stored = await self._services.write(self._ledger_id, metadata, self.version)
        except (MetadataConflictError, OutcomeUnknownError):
            try:
                found = await self._services.read_latest(self._ledger_id)
            except BookKeeperError as error:
                self._machine.fail(error)
            else:
                self.version = found.version
                self._machine.on_metadata_conflict(found.metadata)
        except BookKeeperError as error:
            self._machine.fail(error)
        else:
            self.version = stored.version
            self._machine.on_metadata_written(metadata)
        self.run()

    async def _force_bookie(self, bookie_id: str, last_entry_id: int) -> None:
        connection = self._ensemble.get(bookie_id)
        if connection is not None:
            assert isinstance(connection, BookieConnectionV3)
            try:
                await force_over(connection, self._ledger_id, self._config.add_timeout_ms)
            except BookKeeperError as error:
                # Asking again could give a false yes: what a failed sync lost, the next does not miss.
                self._machine.fail(error)
            else:
                self._machine.on_forced(bookie_id, last_entry_id)
        self.run()

    async def _watch_timeouts(self) -> None:
        """Give up bookies that do not answer, and look again for replacements that were not to be had."""
        loop = asyncio.get_running_loop()
        next_retry = loop.time() + _RETRY_REPLACEMENT_S
        while self._machine.error is None:
            await asyncio.sleep(min(1.0, self._config.add_timeout_ms / 4000))
            for bookie_id in self._ensemble.stuck():
                _LOG.warning("ledger %d: bookie %s does not take adds", self._ledger_id, bookie_id)
                self._give_up(bookie_id)
            self._check_quorum_timeout(loop.time())
            if loop.time() >= next_retry:
                next_retry = loop.time() + _RETRY_REPLACEMENT_S
                self._machine.on_bookies_changed()
            self.run()

    def _check_quorum_timeout(self, now: float) -> None:
        limit_ms, acknowledged = self._config.add_quorum_timeout_ms, self._machine.last_add_acknowledged
        oldest = next((piece for piece in self._pieces if piece.last_entry_id > acknowledged), None)
        if limit_ms is not None and oldest is not None and (now - oldest.appended_at) * 1000 > limit_ms:
            self._machine.fail(
                AddQuorumTimeoutError(
                    f"no ack quorum within {limit_ms} ms (addEntryQuorumTimeoutSec)",
                    ledger_id=self._ledger_id,
                    entry_id=acknowledged + 1,
                )
            )

    def _fail(self, error: BookKeeperError) -> None:
        self._machine.fail(error)
        self.run()
