"""The common part of connections of both wire protocols. Single event loop. Nothing here blocks."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.bookie.tls.reasons import reason_of
from bk_spark.protocol.codes import DEFAULT_MAX_FRAME_BYTES
from bk_spark.protocol.errors import BookieTimeoutError, BookieUnavailableError, TlsError, WireFormatError
from bk_spark.protocol.wire.answers_v2 import AddAnswers, ReadAnswer
from bk_spark.protocol.wire.framing import Frames, ReceiveBuffer

_LOG = logging.getLogger(__name__)
#: Size of a piece for the transport. It copies bytes that the socket does not take, so pieces stay small.
_SEND_BYTES: Final = 256 * 1024

_CLOSED_EARLY: Final = (
    "the bookie closed it after the handshake, perhaps because it requires a certificate or does not accept this one "
    "(tlsClientAuthentication); its log says why"
)

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


class FramedConnection(asyncio.BufferedProtocol, ABC):
    """Frames in and out of one socket: zero-copy receive, bounded copying on send.

    Queued bytes are not copied. They are memory of the writers, each of which limits its entries under way.
    """

    def __init__(self, bookie_id: str, limits: ConnectionLimits | None = None) -> None:
        self.bookie_id = bookie_id
        self.closed = False
        self._limits = limits or ConnectionLimits()
        self._receive = ReceiveBuffer(self._limits.max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._queue: deque[memoryview] = deque()
        self._paused = False
        self._stalled: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        #: Why TLS has ended.
        self._tls_problem: str | None = None
        #: Requests that are not answered yet, without adds.
        self.outstanding = 0
        #: (request count, granted) of requests that wait for answers to others, in order.
        self._admissions: deque[tuple[int, asyncio.Future[None]]] = deque()

    def send(self, buffers: Iterable[memoryview | bytes]) -> None:
        """Queue ``buffers``, which must not change afterwards. Ignored on a closed connection."""
        if self.closed:
            return
        self._queue.extend(memoryview(buffer) for buffer in buffers)
        self._feed()

    def close(self) -> None:
        """Close at once. Outstanding requests fail."""
        if self._transport is not None:
            self._transport.abort()
        self._lost()

    # --- requests ---

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
        if self._tls_problem is not None:
            return TlsError(f"the TLS connection broke: {self._tls_problem}", bookie_id=self.bookie_id)
        return BookieUnavailableError("connection to the bookie broke", bookie_id=self.bookie_id)

    # --- asyncio's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=0)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._refuses_certificate(exc) and not self.closed:
            self._tls_problem = reason_of(exc) if isinstance(exc, ssl.SSLError) else _CLOSED_EARLY
            _LOG.warning("the TLS connection to bookie %s broke: %s", self.bookie_id, self._tls_problem)
        self._lost()

    def _refuses_certificate(self, exc: Exception | None) -> bool:
        """Whether the bookie may have refused the client's certificate: with TLS 1.3 that comes after the handshake."""
        is_tls = self._transport is not None and self._transport.get_extra_info("ssl_object") is not None
        return is_tls and (isinstance(exc, ssl.SSLError) or not self._heard_at)

    def pause_writing(self) -> None:
        self._paused = True
        loop = asyncio.get_running_loop()
        self._stalled = loop.call_later(self._limits.silence_ms / 1000, self._on_stalled)

    def resume_writing(self) -> None:
        self._paused = False
        self._stop_stall_timer()
        self._feed()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receive.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        try:
            frames = self._receive.received(nbytes)
            if frames is not None:
                self._on_frames(frames)
        except WireFormatError as error:
            _LOG.warning("closing connection to bookie %s: %s", self.bookie_id, error)
            self.close()

    @abstractmethod
    def _on_frames(self, frames: Frames) -> None:
        """Handle received frames. A WireFormatError closes the connection."""

    @abstractmethod
    def _on_lost(self) -> None:
        """Handle the loss of the connection: fail outstanding requests."""

    def _lost(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._queue.clear()
        self._stop_stall_timer()
        admissions, self._admissions = self._admissions, deque()
        for _, granted in admissions:
            if not granted.done():
                granted.set_exception(self._broken())
        self._on_lost()

    def _on_stalled(self) -> None:
        loop = asyncio.get_running_loop()
        heard_until = self._heard_at + self._limits.silence_ms / 1000
        if heard_until > loop.time():
            self._stalled = loop.call_at(heard_until, self._on_stalled)
            return
        _LOG.warning("bookie %s neither receives nor sends anything: closing the connection", self.bookie_id)
        self.close()

    def _stop_stall_timer(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _feed(self) -> None:
        transport, queue = self._transport, self._queue
        while queue and not self._paused and transport is not None:
            piece = queue.popleft()
            if len(piece) > _SEND_BYTES:
                queue.appendleft(piece[_SEND_BYTES:])
                piece = piece[:_SEND_BYTES]
            elif queue and len(piece) + len(queue[0]) <= _SEND_BYTES:
                size, small = len(piece), [piece]
                while queue and size + len(queue[0]) <= _SEND_BYTES:
                    size += len(queue[0])
                    small.append(queue.popleft())
                piece = memoryview(b"".join(small))
            transport.write(piece)


class LedgerConnection(FramedConnection):
    """The interface of a connection for handles, over either protocol: adds by listener, reads by await."""

    def __init__(self, bookie_id: str, limits: ConnectionLimits | None = None) -> None:
        super().__init__(bookie_id, limits)
        self._add_listeners: dict[int, AddListener] = {}
        self._loss_listeners: dict[int, LossListener] = {}

    def listen(self, ledger_id: int, on_answers: AddListener, on_loss: LossListener) -> None:
        """Route answers to adds of ``ledger_id`` to the listener. One writer per ledger and connection."""
        self._add_listeners[ledger_id] = on_answers
        self._loss_listeners[ledger_id] = on_loss

    def unlisten(self, ledger_id: int) -> None:
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
        if bool((answers.ledger_ids == first).all()):
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
