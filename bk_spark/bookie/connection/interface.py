"""What the handles of a client need of a connection to a bookie, whatever carries it. Single event loop."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.codes import DEFAULT_MAX_FRAME_BYTES, Code
from bk_spark.protocol.errors import BookieTimeoutError, BookieUnavailableError
from bk_spark.protocol.wire.answers_v2 import AddAnswers, BatchReadAnswer, ReadAnswer
from bk_spark.protocol.wire.entry_availability import EntryAvailability
from bk_spark.protocol.wire.v3.wire_v3 import BookieInfo, LongPollAnswer

_LOG = logging.getLogger(__name__)

#: Receives (bookie id, entry ids, codes) of the answers to one ledger's adds.
AddListener = Callable[[str, npt.NDArray[np.int64], npt.NDArray[np.int32]], None]
#: Receives the bookie id when the connection is lost.
LossListener = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one connection. A read of many entries counts as that many requests."""

    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    #: While this many requests (not counting adds) are unanswered, others wait.
    max_outstanding_requests: int = 2_000
    #: The longest such wait.
    request_wait_ms: int = 5_000
    #: A peer counts as dead if it neither takes nor sends anything for this long, while there is something to send or
    #: after a request was given up. A new connection may still reach it.
    silence_ms: int = 5_000


class Connection(ABC):
    """One connection, and the requests that wait for answers."""

    def __init__(self, bookie_id: str, limits: ConnectionLimits | None = None) -> None:
        self.bookie_id = bookie_id
        self.closed = False
        self._limits = limits or ConnectionLimits()
        self._heard_at = 0.0
        #: Requests that are not answered yet, without adds.
        self.outstanding = 0
        #: (request count, granted) of requests that wait for answers to others, in order.
        self._admissions: deque[tuple[int, asyncio.Future[None]]] = deque()

    @abstractmethod
    def send(self, buffers: Iterable[memoryview | bytes], *, soon: bool = False) -> None:
        """Queue ``buffers``, which must not change afterwards. Ignored on a closed connection.

        ``soon``: more requests probably follow in this turn of the event loop, and may go with one system call.
        """

    @abstractmethod
    def close(self) -> None:
        """Close at once. Outstanding requests fail."""

    async def wait_closed(self) -> None:
        """Wait until a closed connection has released what it had."""
        # Aborted transports release their sockets in the next iteration of the loop.
        await asyncio.sleep(0)

    @abstractmethod
    def _on_lost(self) -> None:
        """Handle the loss of the connection: fail outstanding requests."""

    async def _enter(self, count: int) -> None:
        """Begin ``count`` requests. Wait while too many are outstanding. :meth:`_leave` must follow.

        Raises BookieUnavailableError, BookieTimeoutError.
        """
        self._check()
        if self.outstanding < self._limits.max_outstanding_requests and not self._admissions:
            self.outstanding += count
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._admissions.append((count, granted))
        try:
            async with asyncio.timeout(self._limits.request_wait_ms / 1000):
                await granted
        except BaseException as error:
            if granted in (future for _, future in self._admissions):
                self._admissions.remove((count, granted))
            elif not self.closed:
                # The grant came at the same time as the end of the wait.
                self._leave(count)
            if isinstance(error, TimeoutError):
                raise BookieTimeoutError(
                    f"no room for another request: {self.outstanding} on this connection are still unanswered",
                    bookie_id=self.bookie_id,
                ) from None
            raise

    def _leave(self, count: int) -> None:
        """End ``count`` requests, which were answered or given up."""
        self.outstanding -= count
        while self._admissions and self.outstanding < self._limits.max_outstanding_requests:
            count, granted = self._admissions.popleft()
            if not granted.done():
                self.outstanding += count
                granted.set_result(None)

    def _given_up(self, asked_at: float) -> None:
        """Report that a request sent at ``asked_at`` was given up. Close the connection if nothing came since."""
        silence = asyncio.get_running_loop().time() - max(asked_at, self._heard_at)
        if not self.closed and silence * 1000 >= self._limits.silence_ms:
            _LOG.warning("bookie %s has been silent for %.1f s: closing the connection", self.bookie_id, silence)
            self.close()

    def _check(self) -> None:
        if self.closed:
            raise self._broken()

    def _broken(self) -> BookieUnavailableError:
        return BookieUnavailableError("connection to the bookie broke", bookie_id=self.bookie_id)

    def _lost(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._release()
        admissions, self._admissions = self._admissions, deque()
        for _, granted in admissions:
            if not granted.done():
                granted.set_exception(self._broken())
        self._on_lost()

    @abstractmethod
    def _release(self) -> None:
        """The connection is lost: drop what waits to be sent."""


class LedgerConnection(Connection):
    """Adds by listener, reads by await. Adds are sent as frames of v2, or of v3 where the connection speaks v3."""

    def __init__(self, bookie_id: str, limits: ConnectionLimits | None = None) -> None:
        super().__init__(bookie_id, limits)
        self._add_listeners: dict[int, AddListener] = {}
        self._loss_listeners: dict[int, LossListener] = {}

    def listen(self, ledger_id: int, on_answers: AddListener, on_loss: LossListener) -> None:
        """Route answers to adds of ``ledger_id`` to the listener. One writer per ledger and connection."""
        self._add_listeners[ledger_id] = on_answers
        self._loss_listeners[ledger_id] = on_loss

    def unlisten(self, ledger_id: int) -> None:
        """Drop the answers to adds of ``ledger_id`` from now on. Ignored if nobody listens."""
        self._add_listeners.pop(ledger_id, None)
        self._loss_listeners.pop(ledger_id, None)

    @abstractmethod
    async def read(
        self, ledger_id: int, entry_ids: range, *, flags: int = 0, key: bytes | None = None
    ) -> dict[int, ReadAnswer]:
        """Return one answer per entry id. ``flags`` are v2's (FENCING, HIGH_PRIORITY). FENCING needs the master key.

        Raises BookieUnavailableError if the connection breaks, BookieTimeoutError if too many requests are outstanding
        for too long. The caller limits the wait for answers.
        """

    def _on_adds(self, answers: AddAnswers) -> None:
        first = int(answers.ledger_ids[0])
        if len(answers.ledger_ids) == 1 or bool((answers.ledger_ids == first).all()):
            parts = [(first, slice(None))]
        else:
            parts = [(int(ledger_id), answers.ledger_ids == ledger_id) for ledger_id in np.unique(answers.ledger_ids)]
        for ledger_id, rows in parts:
            listener = self._add_listeners.get(ledger_id)
            if listener is not None:
                listener(self.bookie_id, answers.entry_ids[rows], answers.codes[rows])

    def _on_lost(self) -> None:
        for listener in list(self._loss_listeners.values()):
            try:
                listener(self.bookie_id)
            except Exception:
                # The other listeners must still be called.
                _LOG.exception("a listener failed after the loss of the connection to bookie %s", self.bookie_id)


class BatchReads(ABC):
    """A connection that reads many entries with one request."""

    #: True once the bookie answered a batch read.
    knows_batch_read: bool

    @abstractmethod
    async def batch_read(self, ledger_id: int, first: int, count: int, max_size_bytes: int) -> BatchReadAnswer:
        """Read up to ``count`` entries from ``first`` on. Raises BookieUnavailableError, also for a bookie without
        batch reads, which closes the connection. Raises BookieTimeoutError as :meth:`LedgerConnection.read` does."""


class ControlConnection(LedgerConnection):
    """The requests that v2 lacks, beside adds and reads. All raise as :meth:`LedgerConnection.read`."""

    @abstractmethod
    async def read_lac(self, ledger_id: int) -> tuple[Code, bytes | None, bytes | None]:
        """Return the code, the packet of the bookie's explicit LAC, and its last entry of a ledger, or None."""

    @abstractmethod
    async def write_lac(self, ledger_id: int, packet: bytes, master_key: bytes) -> Code:
        """Store an explicit LAC, a packet from entry.pack_lac."""

    @abstractmethod
    async def force(self, ledger_id: int) -> Code:
        """Make the bookie sync all entries of the ledger that it took before."""

    @abstractmethod
    async def long_poll(self, ledger_id: int, previous_lac: int, timeout_ms: int) -> LongPollAnswer:
        """Let the bookie wait up to ``timeout_ms`` for a LAC above ``previous_lac``. Return the entry after
        ``previous_lac``."""

    @abstractmethod
    async def bookie_info(self) -> BookieInfo:
        """Return the sizes of the bookie's disks. Raises also the errors of error_of."""

    @abstractmethod
    async def list_entries(self, ledger_id: int) -> EntryAvailability:
        """Return the entries of a ledger that the bookie holds. Raises also the errors of error_of.

        Apache's bookies answer only with interleaved and sorted storage, not at all with Db storage.
        """
