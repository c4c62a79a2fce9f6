"""The handle of a ledger being written: drives :class:`bk_spark.protocol.ledger.writer.LedgerWriter`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.base import LedgerConnection
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.bookie.metadata.ledger_store import StoredMetadata
from bk_spark.bookie.services import ClusterServices
from bk_spark.bookie.writing.closing import close_ledger
from bk_spark.bookie.writing.forcing import LacPublisher, force_all
from bk_spark.bookie.writing.writer_driver import WriterDriver
from bk_spark.protocol.codes import NO_ENTRY, DigestType, FlagV2
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import (
    BookKeeperError,
    InvalidArgumentError,
    LedgerClosedError,
)
from bk_spark.protocol.ledger.writer import UNLIMITED, LedgerWriter, WriterState
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.wire.add_frames import EntryPackager, Packager
from bk_spark.protocol.wire.add_frames_v3 import EntryPackagerV3

_LOG = logging.getLogger(__name__)
#: Entries are packaged and sent in pieces of about this size, so that sending, syncing and
#: acknowledging overlap.
_PIECE_BYTES: Final = 1024 * 1024
_PIECE_ENTRIES: Final = 2_000
CLOSED_TEXT: Final = "close() or abandon() was called on this handle: it takes no more entries"


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
        self._services = services
        self._pool_v3 = pool_v3
        self._config = config
        flags = FlagV2.NONE if recovery is None else FlagV2.RECOVERY_ADD | FlagV2.HIGH_PRIORITY
        self._packager: Packager
        if deferred_sync:
            assert pool_v3 is not None
            pool = pool_v3
            self._packager = EntryPackagerV3(ledger_id, digest_type, password, flags, deferred_sync=True)
        elif config.use_v2_wire_protocol:
            self._packager = EntryPackager(ledger_id, digest_type, password, flags)
        else:
            self._packager = EntryPackagerV3(ledger_id, digest_type, password, flags)
        self._max_payload_bytes = config.max_payload_bytes(digest_type)
        self._machine = LedgerWriter(
            ledger_id,
            stored.metadata,
            self._packager,
            last_entry_id=NO_ENTRY if recovery is None else recovery.last_entry_id,
            length=0 if recovery is None else recovery.length,
            publish=recovery is None,
            deferred_sync=deferred_sync,
            max_ensemble_changes=config.max_ensemble_changes if recovery is None else UNLIMITED,
        )
        self._driver = WriterDriver(self._machine, stored.version, services, pool, config)
        self._lac = None
        if config.explicit_lac_interval_ms and pool_v3 is not None and recovery is None:
            self._lac = LacPublisher(self._machine, digest_type, password, pool_v3, config)
        #: Entries of single calls, not sent yet, and the bytes of their frames.
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        #: Calls of :meth:`append` that wait for room, and whether a call of :meth:`append_many` has not returned.
        self._waiting_appends = 0
        self._appending_many = False
        self._closing = False
        self._close_lock = asyncio.Lock()
        #: (last entry, length) when everything was drained.
        self._end: tuple[int, int] | None = None

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
        await self._driver.start()
        if self._lac is not None:
            self._driver.background.spawn(self._lac.run())

    async def append(self, payload: Buffer) -> int:
        """Append one entry; its id. Entries of calls that follow one another go out together, at the latest when
        the event loop gets its turn. Raises as :meth:`append_many`."""
        self.check_open()
        self._check_alone(self._appending_many)
        # What the caller may change later must not change here.
        entry = payload if isinstance(payload, bytes) else bytes(payload)
        self._check_size(len(entry))
        size = len(entry) + self._packager.overhead_bytes
        if not self._has_room(1, size):
            self._send_gathered()
            self._waiting_appends += 1
            try:
                await self._admit(1, size)
            finally:
                self._waiting_appends -= 1
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._on_turn)
        self._gathered.append(entry)
        self._gathered_bytes += size
        if self._gathered_bytes >= _PIECE_BYTES or len(self._gathered) >= _PIECE_ENTRIES:
            self._send_gathered()
        return self.last_add_pushed

    async def append_many(self, payloads: Payloads | Sequence[Buffer], last_add_confirmed: int | None = None) -> int:
        """Append entries in order; the id of the last one. Raises InvalidArgumentError for one that no
        bookie would take, before any is sent; LedgerClosedError, LedgerFencedError, PeerError. The buffers must not
        change before it returns. A call that is cancelled may have appended some of them."""
        self.check_open()
        self._check_alone(self._appending_many or self._waiting_appends > 0)
        self._send_gathered()
        offsets = payloads.offsets if isinstance(payloads, Payloads) else Payloads.offsets_of(payloads)
        self.check_sizes(offsets)
        first = 0
        self._appending_many = True
        try:
            while first < len(payloads):
                last = _piece_end(offsets, first)
                piece = payloads.part(first, last) if isinstance(payloads, Payloads) else payloads[first:last]
                size = int(offsets[last] - offsets[first]) + (last - first) * self._packager.overhead_bytes
                await self._admit(last - first, size)
                self._send(piece, size, last_add_confirmed)
                first = last
        finally:
            self._appending_many = False
        return self._machine.last_add_pushed

    async def flush(self) -> int:
        """Wait until everything appended is acknowledged; the last add confirmed."""
        self._send_gathered()
        await self._driver.wait_until(lambda: not self._machine.pending_entries)
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
            self._driver.raise_error()
            await self._driver.waiters.reached(entry_id)

    async def force(self) -> int:
        """Flush, and have every bookie of the ensemble sync what it took; the last add confirmed.

        With deferred sync this is what confirms entries; else it does no harm. Raises PeerError where a bookie
        could not; with deferred sync the handle has ended then.
        """
        self.check_open()
        return await self._force()

    async def close(self) -> LedgerMetadata:
        """Acknowledge (with deferred sync: force) everything, then close the ledger at its last entry; the final
        metadata. Appends are refused from now on.

        Raises LedgerFencedError where another client closed it elsewhere. The outcome is unknown after
        MetadataUnavailableError, and where the call was cancelled: call again, it goes on where it was.
        """
        self._closing = True
        async with self._close_lock:
            if self._machine.metadata.state is not LedgerState.CLOSED:
                if self._end is None:
                    self._end = await self._drain()
                await self._release()
                stored = StoredMetadata(self._machine.metadata, self._driver.version)
                self._machine.metadata = await close_ledger(self._services, self.ledger_id, stored, *self._end)
            return self._machine.metadata

    async def abandon(self) -> None:
        """Let go without closing the ledger: it stays open until somebody recovers it."""
        self._closing = True
        await self._release()

    async def _release(self) -> None:
        """End all that runs for the handle."""
        self._machine.fail(LedgerClosedError(CLOSED_TEXT, ledger_id=self.ledger_id))
        await self._driver.stop()

    # --- appending ---

    def raise_error(self) -> None:
        """Raises what ended the handle."""
        self._driver.raise_error()

    async def changed(self) -> None:
        """Until anything happened: entries sent or answered, or the end."""
        await self._driver.waiters.woken()

    def check_open(self) -> None:
        """Raises what ended the handle; LedgerClosedError where it is being closed."""
        self.raise_error()
        if self._closing:
            raise LedgerClosedError(CLOSED_TEXT, ledger_id=self.ledger_id)

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
            self._machine.fail(error if isinstance(error, BookKeeperError) else BookKeeperError(repr(error)))
            self._driver.run()

    def _send_gathered(self) -> None:
        gathered, size = self._gathered, self._gathered_bytes
        if gathered and self._machine.error is None:
            self._gathered, self._gathered_bytes = [], 0
            self._send(gathered, size)

    def _send(self, payloads: Payloads | Sequence[Buffer], size: int, last_add_confirmed: int | None = None) -> None:
        """Send entries whose frames have ``size`` bytes together, and which were admitted."""
        if self._lac is not None:
            self._lac.told.on_told(self._machine.last_add_confirmed)
        self._driver.appended(self._machine.add(payloads, last_add_confirmed), size)

    async def _admit(self, count: int, size: int) -> None:
        await self._driver.wait_until(lambda: self._has_room(count, size))
        self.check_open()

    def _has_room(self, count: int, size: int) -> bool:
        config = self._config
        pending = self._driver.pending_bytes + self._gathered_bytes
        unanswered = self._machine.most_unanswered + len(self._gathered)
        return not (
            self._machine.throttled
            or (pending and pending + size > config.max_pending_bytes)
            or (unanswered and unanswered + count > config.max_unanswered_entries)
        )

    async def _force(self) -> int:
        machine = self._machine
        await self.flush()
        head = machine.last_add_acknowledged
        if machine.deferred_sync:
            machine.force()
            self._driver.run()
            await self._driver.wait_until(lambda: machine.last_add_confirmed >= head)
        elif head != NO_ENTRY:
            assert self._pool_v3 is not None
            await force_all(self._pool_v3, self.ledger_id, machine.ensemble, self._config.add_timeout_ms)
        return machine.last_add_confirmed

    async def _drain(self) -> tuple[int, int]:
        """Wait until everything is acknowledged; last entry and length. May be cancelled and called again."""
        machine = self._machine
        try:
            await (self._force() if machine.deferred_sync else self.flush())
            machine.seal()
            # An ensemble change that may already be published comes to its end before the ledger is closed.
            await self._driver.wait_until(lambda: machine.state is not WriterState.CHANGING)
            return machine.last_add_confirmed, machine.length
        except Exception:
            await self._release()
            raise


def _piece_end(offsets: npt.NDArray[np.int64], first: int) -> int:
    last = int(np.searchsorted(offsets, offsets[first] + _PIECE_BYTES, side="right")) - 1
    return min(max(last, first + 1), first + _PIECE_ENTRIES, len(offsets) - 1)
