"""The handle of a ledger being written: runs :class:`bk_spark.protocol.ledger.writer.LedgerWriter`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.base import LedgerConnection
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.bookie.metadata.ledger_store import StoredMetadata
from bk_spark.bookie.runners import AsyncRunner
from bk_spark.bookie.services import ClusterServices
from bk_spark.bookie.writing.forcing import LacSender, force_all
from bk_spark.bookie.writing.waiters import Waiters
from bk_spark.bookie.writing.writer_performer import WriterPerformer
from bk_spark.bookie.writing.writer_settings import limits_of, packager_of
from bk_spark.protocol.codes import NO_ENTRY, DigestType
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.gathering import EntryGatherer, pieces
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import BookKeeperError, InvalidArgumentError
from bk_spark.protocol.ledger.writer import LedgerWriter
from bk_spark.protocol.ledger.writer_actions import WriterAction, WriterEvent
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecoveryStart:
    """Where a recovery's writer takes over."""

    last_entry_id: int
    length: int


class WriteHandle:
    """Appends entries to one ledger, pipelined. One event loop; one user at a time: a call of ``append_many`` while
    another call of it or of ``append`` has not returned raises InvalidArgumentError, and so does ``append`` during
    ``append_many``. Calls of ``append`` may overlap.

    ``append`` and ``append_many`` return when the entries are under way (waiting while too much is);
    ``flush`` returns when everything appended is acknowledged. Any failure ends the handle: later calls
    raise the same error, and ``last_add_confirmed`` tells what is safe.

    With ``deferred_sync`` (over v3) bookies acknowledge before they have synced. What is acknowledged is safe,
    and readable, only after :meth:`force` or :meth:`close`, and a failing bookie ends the handle.

    ``pool`` carries the adds. ``pool_v3`` is for what v2 cannot do: forcing, and the explicit LAC.
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
        pool_v3: ConnectionPool[BookieConnectionV3] | None = None,
        recovery: RecoveryStart | None = None,
        deferred_sync: bool = False,
    ) -> None:
        self.ledger_id = ledger_id
        self._pool_v3 = pool_v3
        self._config = config
        if deferred_sync:
            assert pool_v3 is not None
            pool = pool_v3
        recovers = recovery is not None
        self._packager = packager_of(
            config, ledger_id, digest_type, password, recovers=recovers, deferred_sync=deferred_sync
        )
        self._max_payload_bytes = config.max_payload_bytes(digest_type)
        self._machine = LedgerWriter(
            ledger_id,
            stored.metadata,
            stored.version,
            self._packager,
            last_entry_id=NO_ENTRY if recovery is None else recovery.last_entry_id,
            length=0 if recovery is None else recovery.length,
            publish=not recovers,
            deferred_sync=deferred_sync,
            limits=limits_of(config, recovers=recovers or pool_v3 is None),
        )
        sender = None if pool_v3 is None else LacSender(digest_type, password, pool_v3, config.add_timeout_ms)
        self._performer = WriterPerformer(self._machine, services, pool, config, self._tell, sender)
        self._runner = AsyncRunner[WriterAction, WriterEvent, LedgerMetadata](
            self._machine,
            self._performer.perform,
            what=f"writer of ledger {ledger_id}",
            on_progress=self._on_progress,
        )
        self._waiters = Waiters()
        #: Entries of single calls, not sent yet.
        self._gathered = EntryGatherer()
        #: Calls of :meth:`append` that wait for room, and whether a call of :meth:`append_many` has not returned.
        self._waiting_appends = 0
        self._appending_many = False

    @property
    def metadata(self) -> LedgerMetadata:
        return self._machine.metadata

    @property
    def last_add_confirmed(self) -> int:
        """Id of the last entry that is acknowledged, with deferred sync that was forced; -1 for none."""
        return self._machine.last_add_confirmed

    @property
    def last_add_acknowledged(self) -> int:
        """Id of the last entry up to which an ack quorum holds all, synced or not; -1 for none."""
        return self._machine.last_add_acknowledged

    @property
    def last_add_pushed(self) -> int:
        """Id of the last entry that was appended."""
        return self._machine.last_add_pushed + len(self._gathered)

    @property
    def length(self) -> int:
        """Payload bytes of the confirmed entries."""
        return self._machine.length

    @property
    def error(self) -> BookKeeperError | None:
        """What ended this handle, if anything did."""
        return self._machine.error

    async def start(self) -> None:
        """Connect to the ensemble. A bookie that cannot be reached is replaced at the first add."""
        self._runner.run()
        await self._performer.connections.connected()

    async def append(self, payload: Buffer) -> int:
        """Append one entry; its id. Entries of calls that follow one another go out together, at the latest when
        the event loop gets its turn. Raises as :meth:`append_many`."""
        self._machine.check_open()
        self._check_alone(self._appending_many)
        # What the caller may change later must not change here.
        entry = payload if isinstance(payload, bytes) else bytes(payload)
        self._check_size(len(entry))
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

    async def append_many(self, payloads: Payloads | Sequence[Buffer], last_add_confirmed: int | None = None) -> int:
        """Append entries in order; the id of the last one. Raises InvalidArgumentError for one that no
        bookie would take, before any is sent; LedgerClosedError, LedgerFencedError, PeerError. The buffers must not
        change before it returns. A call that is cancelled may have appended some of them."""
        self._machine.check_open()
        self._check_alone(self._appending_many or self._waiting_appends > 0)
        self._send_gathered()
        offsets = payloads.offsets if isinstance(payloads, Payloads) else Payloads.offsets_of(payloads)
        self.check_sizes(offsets)
        self._appending_many = True
        try:
            for first, end in pieces(offsets):
                piece = payloads.part(first, end) if isinstance(payloads, Payloads) else payloads[first:end]
                size = int(offsets[end] - offsets[first]) + (end - first) * self._packager.overhead_bytes
                await self._admit(end - first, size)
                self._send(piece, last_add_confirmed)
        finally:
            self._appending_many = False
        return self._machine.last_add_pushed

    async def flush(self) -> int:
        """Wait until everything appended is acknowledged; the last add confirmed."""
        self._send_gathered()
        await self._wait_until(lambda: not self._machine.pending_entries)
        return self._machine.last_add_confirmed

    async def wait_confirmed(self, entry_id: int) -> None:
        """Wait until ``entry_id`` is confirmed: acknowledged, with deferred sync also forced. Ends by an error
        where it never will be. Raises InvalidArgumentError for an entry that was not appended."""
        if entry_id > self.last_add_pushed:
            raise InvalidArgumentError(
                f"entry {entry_id} was not appended; the last one is {self.last_add_pushed}",
                ledger_id=self.ledger_id,
            )
        await self.wait_for(entry_id)

    async def wait_for(self, entry_id: int) -> None:
        """As :meth:`wait_confirmed`, of entries that are yet to be appended, too."""
        if entry_id > self._machine.last_add_confirmed:
            self.raise_error()
            await self._waiters.reached(entry_id)

    async def force(self) -> int:
        """Flush, and have every bookie of the ensemble sync what it took; the last add confirmed.

        With deferred sync this is what confirms entries; else it does no harm. Raises PeerError where a bookie
        could not; with deferred sync the handle has ended then.
        """
        self.check_open()
        machine = self._machine
        await self.flush()
        head = machine.last_add_acknowledged
        if machine.deferred_sync:
            machine.force()
            self._runner.run()
            await self._wait_until(lambda: machine.last_add_confirmed >= head)
        elif head != NO_ENTRY:
            assert self._pool_v3 is not None
            await force_all(self._pool_v3, self.ledger_id, machine.ensemble, self._config.add_timeout_ms)
        return machine.last_add_confirmed

    async def close(self) -> LedgerMetadata:
        """Acknowledge (with deferred sync: force) everything, then close the ledger at its last entry; the final
        metadata. Appends are refused from now on.

        Raises LedgerFencedError where another client closed it elsewhere. After MetadataUnavailableError the outcome is
        unknown: retry. Where the call is cancelled, closing goes on. Another call waits for its end.
        """
        machine = self._machine
        self._send_gathered()
        machine.close()
        self._runner.run()
        while machine.outcome is None and machine.close_error is None:
            await self._waiters.woken()
        if machine.close_error is not None:
            raise machine.close_error
        await self._runner.stop()
        return await self._runner.result()

    async def abandon(self) -> None:
        """Let go without closing the ledger: it stays open until somebody recovers it."""
        self._machine.abandon()
        self._runner.run()
        await self._runner.stop()

    # --- appending ---

    def raise_error(self) -> None:
        """Raises what ended the handle."""
        if self._machine.error is not None:
            raise self._machine.error

    async def changed(self) -> None:
        """Until anything happened: entries sent or answered, or the end."""
        await self._waiters.woken()

    def check_open(self) -> None:
        """Raises what ended the handle; LedgerClosedError where it is being closed."""
        self._machine.check_open()

    def _tell(self, event: WriterEvent) -> None:
        self._runner.handle(event)

    def _on_progress(self) -> None:
        machine, waiters = self._machine, self._waiters
        waiters.reach(machine.last_add_confirmed)
        if machine.error is not None:
            waiters.fail(machine.error)
            self._performer.detach()
        # Whatever happened may be what somebody waits for, also the end of a bookie that held up the window.
        waiters.wake()

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Raises what ended the handle before."""
        self.raise_error()
        while not condition():
            self.raise_error()
            await self._waiters.woken()

    def _check_alone(self, taken: bool) -> None:
        if taken:
            raise InvalidArgumentError(
                "append_many, or an append that waits for room, has not returned: entries get their ids as they are "
                "sent. Await it first; several tasks that append to one ledger need a lock around their calls",
                ledger_id=self.ledger_id,
            )

    def check_sizes(self, offsets: npt.NDArray[np.int64]) -> None:
        """Raises InvalidArgumentError where one of the entries between ``offsets`` is too large."""
        limit = self._max_payload_bytes
        sizes = np.diff(offsets)
        if len(sizes) and int(sizes.max()) > limit:
            index = int(np.argmax(sizes > limit))
            raise InvalidArgumentError(
                f"entry of {int(sizes[index])} bytes (number {index} of this batch) is larger than a "
                f"bookie's frame limit allows: at most {limit} bytes of payload; split it, or raise "
                "nettyMaxFrameSizeBytes on bookies and client",
                ledger_id=self.ledger_id,
            )

    def _check_size(self, size: int) -> None:
        if size > self._max_payload_bytes:
            self.check_sizes(np.array([0, size]))

    def _on_turn(self) -> None:
        try:
            self._send_gathered()
        except Exception as error:
            # Their ids were given out: nothing may be appended after a gap.
            _LOG.exception("ledger %d: sending entries", self.ledger_id)
            self._machine.fail(error)
            self._runner.run()

    def _send_gathered(self) -> None:
        if len(self._gathered) and self._machine.error is None:
            self._send(self._gathered.take())

    def _send(self, payloads: Payloads | Sequence[Buffer], last_add_confirmed: int | None = None) -> None:
        """Send entries that were admitted."""
        self._machine.add(payloads, last_add_confirmed)
        self._runner.run()

    async def _admit(self, count: int, size: int) -> None:
        await self._wait_until(lambda: self._has_room(count, size))
        self.check_open()

    def _has_room(self, count: int, size: int) -> bool:
        gathered = self._gathered
        return self._machine.has_room(count, size, len(gathered), gathered.size_bytes)
