"""The handle of a ledger being written: drives :class:`bk_spark.protocol.writer.LedgerWriter`."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection import BookieConnection
from bk_spark.bookie.ledger_store import StoredMetadata
from bk_spark.bookie.pool import ConnectionPool
from bk_spark.bookie.services import ClusterServices
from bk_spark.bookie.tasks import TaskSet
from bk_spark.protocol.add_frames import EntryPackager
from bk_spark.protocol.codes import NO_ENTRY, Code, DigestType, FlagV2
from bk_spark.protocol.digest import Buffer
from bk_spark.protocol.errors import (
    BookKeeperError,
    InvalidArgumentError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataConflictError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
)
from bk_spark.protocol.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.payloads import Payloads
from bk_spark.protocol.writer import (
    Acknowledge,
    ChooseBookies,
    Failed,
    LedgerWriter,
    SendAdds,
    Throttled,
    WriteMetadata,
)

_LOG = logging.getLogger(__name__)
#: Entries are packaged and sent in pieces of about this size, so that sending, syncing and
#: acknowledging overlap.
_PIECE_BYTES: Final = 256 * 1024
_PIECE_ENTRIES: Final = 2_000
#: How often a writer that goes on without a failed bookie looks for a replacement.
_RETRY_REPLACEMENT_S: Final = 10.0
_CLOSE_ATTEMPTS: Final = 8
#: Pause before a bookie gets again what it refused for being busy; doubled while it refuses everything.
_FIRST_PAUSE_S: Final = 0.02
_LAST_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class RecoveryStart:
    """Where a recovery's writer takes over."""

    last_entry_id: int
    length: int


class WriteHandle:
    """Appends entries to one ledger, pipelined. One event loop; one user at a time.

    ``append`` and ``append_many`` return when the entries are under way (waiting while too much is);
    ``flush`` returns when everything appended is acknowledged. Any failure ends the handle: later calls
    raise the same error, and ``last_add_confirmed`` tells what is safe.
    """

    def __init__(
        self,
        ledger_id: int,
        stored: StoredMetadata,
        digest_type: DigestType,
        password: bytes,
        services: ClusterServices,
        pool: ConnectionPool[BookieConnection],
        config: ClientConfig,
        *,
        recovery: RecoveryStart | None = None,
    ) -> None:
        self.ledger_id = ledger_id
        self._services = services
        self._pool = pool
        self._config = config
        self._version = stored.version
        self._max_payload_bytes = config.max_payload_bytes(digest_type)
        flags = FlagV2.NONE if recovery is None else FlagV2.RECOVERY_ADD | FlagV2.HIGH_PRIORITY
        self._packager = EntryPackager(ledger_id, digest_type, password, flags)
        self._machine = LedgerWriter(
            ledger_id,
            stored.metadata,
            self._packager,
            last_entry_id=NO_ENTRY if recovery is None else recovery.last_entry_id,
            length=0 if recovery is None else recovery.length,
            publish=recovery is None,
        )
        self._pending_bytes = 0
        #: (last entry id, frame bytes) of pieces that some bookie has not answered, oldest first.
        self._pieces: deque[tuple[int, int]] = deque()
        self._waiters: list[asyncio.Future[None]] = []
        self._tasks = TaskSet(f"writer of ledger {ledger_id}", self._fail)
        self._connections: dict[str, BookieConnection] = {}
        #: When each bookie that owes adds last took one, or was sent the first.
        self._progress: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._monitor: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def metadata(self) -> LedgerMetadata:
        return self._machine.metadata

    @property
    def last_add_confirmed(self) -> int:
        """Id of the last entry that is acknowledged; -1 for none."""
        return self._machine.last_add_confirmed

    @property
    def last_add_pushed(self) -> int:
        """Id of the last entry that was appended."""
        return self._machine.last_add_pushed

    @property
    def length(self) -> int:
        """Payload bytes of the acknowledged entries."""
        return self._machine.length

    @property
    def error(self) -> BookKeeperError | None:
        """What ended this handle, if anything did."""
        return self._machine.error

    async def start(self) -> None:
        """Connect to the ensemble. A bookie that cannot be reached is replaced at the first add."""
        await asyncio.gather(*(self._attach(bookie) for bookie in self._machine.ensemble))
        self._monitor = asyncio.get_running_loop().create_task(self._watch_timeouts())

    async def append(self, payload: Buffer) -> int:
        """Append one entry; its id."""
        return await self.append_many(Payloads.of([payload]))

    async def append_many(self, payloads: Payloads, last_add_confirmed: int | None = None) -> int:
        """Append entries in order; the id of the last one. Raises InvalidArgumentError for one that no
        bookie would take, before any is sent; LedgerClosedError, LedgerFencedError, PeerError."""
        self._check_open()
        self._check_sizes(payloads)
        first = 0
        while first < len(payloads):
            last = self._piece_end(payloads, first)
            piece = payloads.part(first, last)
            size = piece.size_bytes + len(piece) * self._packager.overhead_bytes
            await self._admit(size)
            last_id = self._machine.add(piece, last_add_confirmed)
            self._pieces.append((last_id, size))
            self._pending_bytes += size
            self._run()
            first = last
        return self._machine.last_add_pushed

    async def flush(self) -> int:
        """Wait until everything appended is acknowledged; the last add confirmed."""
        while self._machine.pending_entries or self._machine.error is not None:
            await self._wait()
        return self._machine.last_add_confirmed

    async def close(self) -> LedgerMetadata:
        """Acknowledge everything, then close the ledger at its last entry; the final metadata.

        Raises LedgerFencedError where another client closed it elsewhere.
        """
        if self._machine.metadata.state is LedgerState.CLOSED:
            return self._machine.metadata
        try:
            await self.flush()
            self._closing = True
            # An ensemble change that is under way comes to its end before the ledger is closed.
            await self._tasks.settle()
            await self._close_metadata()
        finally:
            await self.abandon()
        return self._machine.metadata

    async def abandon(self) -> None:
        """Let go without closing the ledger: it stays open until somebody recovers it."""
        self._closing = True
        self._machine.fail(LedgerClosedError("the handle is closed", ledger_id=self.ledger_id))
        self._run()
        await self._tasks.cancel()
        if self._monitor is not None:
            self._monitor.cancel()
            await asyncio.gather(self._monitor, return_exceptions=True)
        self._detach()

    # --- appending ---

    def _check_open(self) -> None:
        if self._machine.error is not None:
            raise self._machine.error
        if self._closing:
            raise LedgerClosedError("the handle is closed", ledger_id=self.ledger_id)

    def _check_sizes(self, payloads: Payloads) -> None:
        limit = self._max_payload_bytes
        if len(payloads) and int(payloads.sizes.max()) > limit:
            index = int(np.argmax(payloads.sizes > limit))
            raise InvalidArgumentError(
                f"entry of {int(payloads.sizes[index])} bytes (number {index} of this batch) is larger than a "
                f"bookie's frame limit allows: at most {limit} bytes of payload; split it, or raise "
                "nettyMaxFrameSizeBytes on bookies and client",
                ledger_id=self.ledger_id,
            )

    @staticmethod
    def _piece_end(payloads: Payloads, first: int) -> int:
        limit = payloads.offsets[first] + _PIECE_BYTES
        last = int(np.searchsorted(payloads.offsets, limit, side="right")) - 1
        return min(max(last, first + 1), first + _PIECE_ENTRIES, len(payloads))

    async def _admit(self, size: int) -> None:
        while self._machine.error is None and (
            self._machine.throttled
            or (self._pending_bytes and self._pending_bytes + size > self._config.max_pending_bytes)
            or self._machine.most_unanswered > self._config.max_unanswered_entries
        ):
            await self._wait()
        self._check_open()

    async def _wait(self) -> None:
        if self._machine.error is not None:
            raise self._machine.error
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        await future
        if self._machine.error is not None:
            raise self._machine.error

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    # --- driving the machine ---

    def _run(self) -> None:
        while actions := self._machine.take_actions():
            for action in actions:
                match action:
                    case SendAdds():
                        self._send(action)
                    case ChooseBookies():
                        self._tasks.spawn(self._replace(action))
                    case WriteMetadata(metadata):
                        self._tasks.spawn(self._publish(metadata))
                    case Throttled(bookie_id):
                        self._tasks.spawn(self._pause(bookie_id))
                    case Acknowledge():
                        pass
                    case Failed():
                        self._detach()
        while self._pieces and self._pieces[0][0] < self._machine.oldest_retained:
            self._pending_bytes -= self._pieces.popleft()[1]
        # Whatever happened may be what somebody waits for, also the end of a bookie that held up the window.
        self._wake()

    def _send(self, action: SendAdds) -> None:
        connection = self._connections.get(action.bookie_id)
        if connection is None or connection.closed:
            self._machine.on_bookie_failed(action.bookie_id)
            return
        self._progress.setdefault(action.bookie_id, asyncio.get_running_loop().time())
        connection.send(action.frames)

    def _on_answers(self, bookie_id: str, entry_ids: npt.NDArray[np.int64], codes: npt.NDArray[np.int32]) -> None:
        self._machine.on_add_answers(bookie_id, entry_ids, codes)
        if not self._machine.unanswered(bookie_id):
            self._progress.pop(bookie_id, None)
        elif (codes == Code.OK).any():
            self._progress[bookie_id] = asyncio.get_running_loop().time()
            self._pauses.pop(bookie_id, None)
        self._run()

    def _on_loss(self, bookie_id: str) -> None:
        _LOG.warning("ledger %d: connection to bookie %s broke", self.ledger_id, bookie_id)
        self._give_up(bookie_id)
        self._run()

    def _give_up(self, bookie_id: str) -> None:
        connection = self._connections.pop(bookie_id, None)
        if connection is not None:
            connection.unlisten(self.ledger_id)
        self._progress.pop(bookie_id, None)
        self._machine.on_bookie_failed(bookie_id)

    def _detach(self) -> None:
        for connection in self._connections.values():
            connection.unlisten(self.ledger_id)
        self._connections.clear()

    async def _attach(self, bookie_id: str) -> bool:
        try:
            connection = await self._pool.get(bookie_id)
        except BookKeeperError as error:
            _LOG.warning("ledger %d: %s", self.ledger_id, error)
        else:
            if not connection.closed:
                connection.listen(self.ledger_id, self._on_answers, self._on_loss)
                self._connections[bookie_id] = connection
                return True
        self._machine.on_bookie_failed(bookie_id)
        return False

    async def _replace(self, action: ChooseBookies) -> None:
        replacements: dict[int, str] = {}
        exclude = set(action.exclude)
        refused: BookKeeperError | None = None
        for index in action.failed:
            while index not in replacements:
                try:
                    bookie_id = await self._choose(exclude, action)
                except BookKeeperError as error:
                    refused = error
                    break
                exclude.add(bookie_id)
                if await self._attach(bookie_id):
                    replacements[index] = bookie_id
        if replacements:
            _LOG.info("ledger %d: ensemble change, new bookies %s", self.ledger_id, replacements)
            self._machine.on_bookies_chosen(replacements)
        elif refused is not None:
            _LOG.warning("ledger %d: no replacement for a failed bookie: %s", self.ledger_id, refused)
            self._machine.on_no_bookies(refused)
        self._run()

    async def _choose(self, exclude: Collection[str], action: ChooseBookies) -> str:
        try:
            (bookie_id,) = await self._services.choose(1, {*exclude, *action.avoid})
        except NotEnoughBookiesError:
            if not action.needed:
                raise
            (bookie_id,) = await self._services.choose(1, exclude)
        return bookie_id

    async def _pause(self, bookie_id: str) -> None:
        pause_s = self._pauses.get(bookie_id, _FIRST_PAUSE_S)
        self._pauses[bookie_id] = min(2 * pause_s, _LAST_PAUSE_S)
        await asyncio.sleep(pause_s)
        self._machine.retry_refused(bookie_id)
        self._run()

    async def _publish(self, metadata: LedgerMetadata) -> None:
        try:
            stored = await self._services.write(self.ledger_id, metadata, self._version)
        except (MetadataConflictError, OutcomeUnknownError):
            try:
                found = await self._services.read_latest(self.ledger_id)
            except BookKeeperError as error:
                self._machine.fail(error)
            else:
                self._version = found.version
                self._machine.on_metadata_conflict(found.metadata)
        except BookKeeperError as error:
            self._machine.fail(error)
        else:
            self._version = stored.version
            self._machine.on_metadata_written(metadata)
        self._run()

    async def _close_metadata(self) -> None:
        last, length = self.last_add_confirmed, self.length
        metadata, version = self._machine.metadata, self._version
        for _ in range(_CLOSE_ATTEMPTS):
            try:
                stored = await self._services.write(self.ledger_id, metadata.closed(last, length), version)
            except (MetadataConflictError, OutcomeUnknownError) as error:
                found = await self._services.read_latest(self.ledger_id)
                metadata, version = found.metadata, found.version
                if metadata.state is LedgerState.CLOSED:
                    if (metadata.last_entry_id, metadata.length) != (last, length):
                        raise LedgerFencedError(
                            f"another client closed the ledger at entry {metadata.last_entry_id}, this writer's last "
                            f"acknowledged entry is {last}",
                            ledger_id=self.ledger_id,
                        ) from error
                    self._machine.metadata = metadata
                    return
            else:
                self._machine.metadata = stored.metadata
                return
        raise MetadataConflictError("the ledger's metadata keeps changing", ledger_id=self.ledger_id)

    async def _watch_timeouts(self) -> None:
        """Give up bookies that do not answer, and look again for replacements that were not to be had."""
        limit = self._config.add_timeout_ms / 1000
        loop = asyncio.get_running_loop()
        next_retry = loop.time() + _RETRY_REPLACEMENT_S
        while self._machine.error is None:
            await asyncio.sleep(min(1.0, limit / 4))
            now = loop.time()
            for bookie_id in self._machine.ensemble:
                if self._machine.unanswered(bookie_id) and now - self._progress.get(bookie_id, now) > limit:
                    _LOG.warning("ledger %d: bookie %s does not take adds", self.ledger_id, bookie_id)
                    self._give_up(bookie_id)
            if now >= next_retry:
                next_retry = now + _RETRY_REPLACEMENT_S
                self._machine.on_bookies_changed()
            self._run()

    def _fail(self, error: BookKeeperError) -> None:
        self._machine.fail(error)
        self._run()
