"""The handle of a ledger being written: runs :class:`bk_spark.protocol.ledger.writer.LedgerWriter`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.interface import ControlConnection, LedgerConnection
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.bookie.metadata.ledger_store import StoredMetadata
from bk_spark.bookie.runners import AsyncRunner
from bk_spark.bookie.services import ClusterServices
from bk_spark.bookie.writing.forcing import LacSender, force_all
from bk_spark.bookie.writing.waiters import Waiters
from bk_spark.bookie.writing.writer_performer import WriterPerformer
from bk_spark.bookie.writing.writer_settings import limits_of, packager_of
from bk_spark.protocol.codes import NO_ENTRY, DigestType
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.payloads import EntryGatherer, PayloadLimit, Payloads, pieces
from bk_spark.protocol.errors import BookKeeperError, InvalidArgumentError
from bk_spark.protocol.ledger.writer import LedgerWriter, WriterState
from bk_spark.protocol.ledger.writer_actions import WriterAction, WriterEvent
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata

_LOG = logging.getLogger(__name__)


class WriteHandle:
    """Appends entries to one ledger, with the ids 0, 1, 2 and so on. For one event loop.

    ``append`` and ``append_many`` return when the entries are on their way, and wait while too many are unacknowledged.
    ``flush`` waits until they are acknowledged. Any failure ends the handle, and every later call raises the same
    error. Entries up to ``last_add_confirmed`` are safe.

    Calls of ``append`` may overlap. During a call of ``append_many``, any other call of either raises
    InvalidArgumentError.

    With ``deferred_sync`` (over v3) bookies acknowledge entries before they sync them. Entries are safe, and readable,
    only after :meth:`force` or :meth:`close`, and a failing bookie ends the handle.

    ``pool`` carries the adds. ``pool_v3`` carries requests that v2 lacks: forcing, and the explicit LAC.
    """

    def __init__(
        self,
        ledger_id: int,
        stored: StoredMetadata,
        digest_type: DigestType,
        password: bytes,
        services: ClusterServices,
        pool: ConnectionPool[LedgerConnection],
        config: ClientConfig,
        *,
        pool_v3: ConnectionPool[ControlConnection] | None = None,
        deferred_sync: bool = False,
    ) -> None:
        self.ledger_id = ledger_id
        self._pool_v3 = pool_v3
        self._config = config
        if deferred_sync:
            assert pool_v3 is not None
            pool = pool_v3
        self._packager = packager_of(config, ledger_id, digest_type, password, deferred_sync=deferred_sync)
        self.payload_limit = PayloadLimit(ledger_id, config.max_payload_bytes(digest_type))
        metadata, version, limits = stored.metadata, stored.version, limits_of(config)
        self.machine = LedgerWriter(
            ledger_id, metadata, version, self._packager, deferred_sync=deferred_sync, limits=limits
        )
        lac_sender = None if pool_v3 is None else LacSender(digest_type, password, pool_v3, config.add_timeout_ms)
        self._performer = WriterPerformer(self.machine, services, pool, config, self._tell, lac_sender)
        self._runner = AsyncRunner[WriterAction, WriterEvent, LedgerMetadata](
            self.machine, self._performer.perform, what=f"writer of ledger {ledger_id}", on_progress=self._on_progress
        )
        self.waiters = Waiters()
        #: Called on the event loop when the handle has ended with an error.
        self.on_failure: Callable[[], None] | None = None
        #: Entries of single calls, not yet sent.
        self._gathered = EntryGatherer()
        #: The number of :meth:`append` calls that wait for room, and whether an :meth:`append_many` is under way.
        self._waiting_appends = 0
        self._appending_many = False

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer has stored them."""
        return self.machine.metadata

    @property
    def last_add_confirmed(self) -> int:
        """The id of the last confirmed entry, -1 if none. With deferred sync only forced entries are confirmed."""
        return self.machine.last_add_confirmed

    @property
    def last_add_acknowledged(self) -> int:
        """The id of the last entry up to which an ack quorum holds all entries, synced or not. -1 if there is none."""
        return self.machine.last_add_acknowledged

    @property
    def last_add_pushed(self) -> int:
        """The id of the last appended entry, -1 if there is none."""
        return self.machine.last_add_pushed + len(self._gathered)

    @property
    def length(self) -> int:
        """The payload bytes of all confirmed entries."""
        return self.machine.length

    @property
    def error(self) -> BookKeeperError | None:
        """The error that ended this writer, or None."""
        return self.machine.error

    @property
    def failure(self) -> BookKeeperError | None:
        """The same, but None while the ledger is being closed, and after it was closed."""
        return self.machine.error if self.machine.state is WriterState.FAILED else None

    async def start(self) -> None:
        """Connect to the ensemble. A bookie that cannot be reached is replaced at the first add."""
        self._runner.run()
        await self._performer.connections.connected()

    async def claim(self) -> tuple[str, ...]:
        """Make the bookies of the ensemble know the ledger's password before its first entry.

        From then on they refuse others who use the ledger's id. Those that do not answer are not waited for, if the
        others suffice for a recovery. They are replaced if they refuse entries. If a bookie is replaced later, it is by
        one that takes the password.

        Returns
        -------
        tuple of str
            The bookies that did not answer. New ledgers get other bookies, as far as there are some.

        Raises
        ------
        UnauthorizedError
            If a bookie knows the ledger with another password, or removed a fenced ledger with its id, because somebody
            used that before.
        BookieUnavailableError
            If too few bookies answer. New ledgers get other bookies, as far as there are some.
        """
        return await self._performer.claim()

    async def append(self, payload: Buffer) -> int:
        """Append one entry.

        Parameters
        ----------
        payload
            The bytes of the entry.

        Returns
        -------
        int
            The entry's id.

        Raises
        ------
        InvalidArgumentError
            If the entry is larger than a bookie accepts.
        LedgerFencedError
            If another client has recovered the ledger.
        LedgerClosedError
            If this writer was closed or abandoned.
        PeerError
            If too many bookies failed. The writer has ended.
        """
        self.machine.check_open()
        self._check_alone(self._appending_many)
        # Copy the payload if the caller can change it later.
        entry = payload if isinstance(payload, bytes) else bytes(payload)
        self.payload_limit.check(len(entry))
        size = len(entry) + self._packager.overhead_bytes
        gathered = self._gathered
        if not self._has_room(1, size):
            self._send_gathered()
            self._waiting_appends += 1
            try:
                await self._admit(1, size)
            finally:
                self._waiting_appends -= 1
        if not len(gathered):
            asyncio.get_running_loop().call_soon(self._on_turn)
        gathered.add(entry, size)
        if gathered.is_full:
            self._send_gathered()
        return self.last_add_pushed

    async def append_many(self, payloads: Payloads | Sequence[Buffer]) -> int:
        """Append entries in order. This is the fastest way. A cancelled call may have appended some of them.

        Parameters
        ----------
        payloads
            The bytes of each entry. They must not change before the call returns.

        Returns
        -------
        int
            The id of the last entry.

        Raises
        ------
        InvalidArgumentError
            If an entry is larger than a bookie accepts. No entry was appended.
        LedgerFencedError, LedgerClosedError, PeerError
            As for :meth:`append`.
        """
        self.machine.check_open()
        self._check_alone(self._appending_many or self._waiting_appends > 0)
        self._send_gathered()
        offsets = payloads.offsets if isinstance(payloads, Payloads) else Payloads.offsets_of(payloads)
        self.payload_limit.check_all(offsets)
        self._appending_many = True
        try:
            for first, end in pieces(offsets):
                piece = payloads.part(first, end) if isinstance(payloads, Payloads) else payloads[first:end]
                size = int(offsets[end] - offsets[first]) + (end - first) * self._packager.overhead_bytes
                await self._admit(end - first, size)
                self._send(piece)
        finally:
            self._appending_many = False
        return self.machine.last_add_pushed

    async def flush(self) -> int:
        """Wait until all appended entries are acknowledged.

        Returns
        -------
        int
            The last add confirmed.

        Raises
        ------
        LedgerFencedError
            If another client has recovered the ledger.
        EntryGapError
            If entries wait for lower ids that are not appended in time. Only if the caller chooses the ids.
        PeerError
            If too many bookies failed. The writer has ended.
        """
        self._send_gathered()
        await self._wait_until(lambda: not self.machine.pending_entries)
        return self.machine.last_add_confirmed

    async def wait_confirmed(self, entry_id: int) -> None:
        """Wait until an entry is confirmed.

        Parameters
        ----------
        entry_id
            The entry. It must have been appended.

        Raises
        ------
        InvalidArgumentError
            If the entry was not appended.
        LedgerFencedError, PeerError
            As for :meth:`flush`.
        """
        if entry_id > self.last_add_pushed:
            raise InvalidArgumentError(
                f"entry {entry_id} was not appended; the last one is {self.last_add_pushed}",
                ledger_id=self.ledger_id,
            )
        await self.wait_for(entry_id)

    async def wait_for(self, entry_id: int) -> None:
        """Do the same as :meth:`wait_confirmed`, also for entries not yet appended."""
        if entry_id > self.machine.last_add_confirmed:
            self.raise_error()
            await self.waiters.reached(entry_id)

    async def force(self) -> int:
        """Flush, and make every bookie of the ensemble sync its entries. With deferred sync, this confirms them.

        Returns
        -------
        int
            The last add confirmed.

        Raises
        ------
        LedgerFencedError
            If another client has recovered the ledger.
        PeerError
            If a bookie could not sync. With deferred sync the writer has ended.
        """
        self.machine.check_open()
        machine = self.machine
        await self.flush()
        head = machine.last_add_acknowledged
        if machine.deferred_sync:
            machine.force()
            self._runner.run()
            await self._wait_until(lambda: machine.last_add_confirmed >= head)
        elif head != NO_ENTRY:
            assert self._pool_v3 is not None
            await force_all(self._pool_v3, self.ledger_id, machine.ensemble.members, self._config.add_timeout_ms)
        return machine.last_add_confirmed

    async def close(self) -> LedgerMetadata:
        """Flush (with deferred sync: force), and close the ledger at its last entry.

        Safe to repeat, also after a cancelled call.

        Returns
        -------
        LedgerMetadata
            The final metadata.

        Raises
        ------
        LedgerFencedError
            If another client has closed the ledger at another entry.
        EntryGapError
            If entries wait for lower ids. The writer stays open: append what is missing, or abandon it and recover the
            ledger.
        MetadataUnavailableError
            If ZooKeeper does not answer. The outcome is unknown. Retry.
        """
        machine = self.machine
        self._send_gathered()
        machine.close()
        self._runner.run()
        while machine.outcome is None and machine.close_error is None:
            await self.waiters.woken()
        if machine.close_error is not None:
            raise machine.close_error.with_traceback(None)
        await self._runner.stop()
        return await self._runner.result()

    async def abandon(self) -> None:
        """Stop writing without closing the ledger. It stays open until a client recovers it."""
        self.machine.abandon()
        self._runner.run()
        await self._runner.stop()

    def raise_error(self) -> None:
        """Raise the error that ended the handle, if any."""
        if self.machine.error is not None:
            raise self.machine.error.with_traceback(None)

    def _tell(self, event: WriterEvent) -> None:
        self._runner.handle(event)

    def _on_progress(self) -> None:
        machine, waiters = self.machine, self.waiters
        waiters.reach(machine.last_add_confirmed)
        if machine.error is not None:
            waiters.fail(machine.error)
            self._performer.detach()
            if self.failure is not None and self.on_failure is not None:
                self.on_failure()
        # Any event may be the one that a caller waits for, even the failure of a bookie that blocked the window.
        waiters.wake()

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for ``condition``. Raises the error that ended the handle before that."""
        self.raise_error()
        while not condition():
            self.raise_error()
            await self.waiters.woken()

    def _check_alone(self, taken: bool) -> None:
        if taken:
            raise InvalidArgumentError(
                "append_many, or an append that waits for room, is still running. Await it before the next call; if "
                "several tasks append to one ledger, use a lock",
                ledger_id=self.ledger_id,
            )

    def _on_turn(self) -> None:
        try:
            self._send_gathered()
        except Exception as error:
            # Their ids were already returned. No entry may follow a gap.
            _LOG.exception("ledger %d: sending entries", self.ledger_id)
            self.machine.fail(error)
            self._runner.run()

    def _send_gathered(self) -> None:
        if len(self._gathered) and self.machine.error is None:
            self._send(self._gathered.take())

    def _send(self, payloads: Payloads | Sequence[Buffer]) -> None:
        """Send entries that were admitted."""
        self.machine.add(payloads)
        self._runner.run()

    async def _admit(self, count: int, size: int) -> None:
        await self._wait_until(lambda: self._has_room(count, size))
        self.machine.check_open()

    def _has_room(self, count: int, size: int) -> bool:
        gathered = self._gathered
        return self.machine.adds.has_room(count, size, len(gathered), gathered.size_bytes)
