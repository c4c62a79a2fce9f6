"""The common part of connections of both of Apache's wire protocols. Single event loop. Nothing here blocks."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Final

from bk_spark.bookie.connection.interface import Connection, ConnectionLimits
from bk_spark.bookie.connection.transports import SendQueue, prepare, tls_problem
from bk_spark.protocol.errors import BookieUnavailableError, TlsError, WireFormatError
from bk_spark.protocol.wire.framing import Frames, ReceiveBuffer

_LOG = logging.getLogger(__name__)
#: Frames of a login that a bookie may send before they are looked at.
_MAX_LOGIN_FRAMES: Final = 4


class FramedConnection(asyncio.BufferedProtocol, Connection):
    """Frames in and out of one socket: zero-copy receive, bounded copying on send.

    Queued bytes are not copied. They belong to the writers, each of which limits its entries under way.
    """

    #: Whether it speaks v2, and not v3.
    is_v2 = False

    def __init__(self, bookie_id: str, limits: ConnectionLimits | None = None) -> None:
        super().__init__(bookie_id, limits)
        self._receive = ReceiveBuffer(self._limits.max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._queue = SendQueue()
        self._paused = False
        #: Whether what is queued will be sent at the end of this turn of the event loop.
        self._feeds_soon = False
        self._stalled: asyncio.TimerHandle | None = None
        #: Why TLS has ended.
        self._tls_problem: str | None = None
        #: The frames of a login, while there is one, and who waits for the next.
        self._login_frames: deque[bytes] | None = None
        self._login_waits: asyncio.Future[None] | None = None

    def send(self, buffers: Iterable[memoryview | bytes], *, soon: bool = False) -> None:
        """Queue ``buffers``, which must not change afterwards. A closed connection drops them."""
        if self.closed:
            return
        self._queue.extend(buffers)
        if not soon:
            self._feed()
        elif not self._feeds_soon:
            self._feeds_soon = True
            asyncio.get_running_loop().call_soon(self._feed_gathered)

    def close(self) -> None:
        """Drop what is queued and reset the connection. Requests under way fail."""
        if self._transport is not None:
            self._transport.abort()
        self._lost()

    # --- a login, before requests ---

    def begin_login(self) -> None:
        """Keep the frames that come for :meth:`login_frame`, until :meth:`end_login`."""
        self._login_frames = deque()

    async def login_frame(self) -> bytes:
        """Return the body of the next frame of a login. Raises BookieUnavailableError."""
        assert self._login_frames is not None
        if not self._login_frames:
            self._check()
            self._login_waits = asyncio.get_running_loop().create_future()
            await self._login_waits
        return self._login_frames.popleft()

    def end_login(self) -> None:
        """Let requests begin. Raises WireFormatError if the bookie sent more than its answers."""
        frames, self._login_frames = self._login_frames, None
        if frames:
            raise WireFormatError("the bookie sent more than the answers to the login")

    def _on_login_frames(self, waiting: deque[bytes], frames: Frames) -> None:
        waiting.extend(map(bytes, frames))
        if len(waiting) > _MAX_LOGIN_FRAMES:
            raise WireFormatError("too many frames during the login")
        if self._login_waits is not None and not self._login_waits.done():
            self._login_waits.set_result(None)

    def _broken(self) -> BookieUnavailableError:
        if self._tls_problem is not None:
            return TlsError(f"the TLS connection broke: {self._tls_problem}", bookie_id=self.bookie_id)
        return super()._broken()

    # --- asyncio's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Prepare the socket. Called by the event loop, as the methods below."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        prepare(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let requests under way fail. If the bookie may have refused the certificate, they fail with TlsError."""
        problem = tls_problem(self._transport, exc, has_heard=bool(self._heard_at))
        if problem is not None and not self.closed:
            self._tls_problem = problem
            _LOG.warning("the TLS connection to bookie %s broke: %s", self.bookie_id, self._tls_problem)
        self._lost()

    def pause_writing(self) -> None:
        """Keep further buffers in the queue. If the bookie stays silent for ``silence_ms`` meanwhile, it counts as
        dead."""
        self._paused = True
        loop = asyncio.get_running_loop()
        self._stalled = loop.call_later(self._limits.silence_ms / 1000, self._on_stalled)

    def resume_writing(self) -> None:
        """Send what is queued."""
        self._paused = False
        self._stop_stall_timer()
        self._feed()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes belong. The size that asyncio suggests does not matter."""
        return self._receive.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the frames that are complete now. Bytes that break the protocol close the connection."""
        self._heard_at = asyncio.get_running_loop().time()
        try:
            frames = self._receive.received(nbytes)
            if frames is not None:
                if self._login_frames is None:
                    self._on_frames(frames)
                else:
                    self._on_login_frames(self._login_frames, frames)
        except WireFormatError as error:
            _LOG.warning("closing connection to bookie %s: %s", self.bookie_id, error)
            self.close()

    @abstractmethod
    def _on_frames(self, frames: Frames) -> None:
        """Handle received frames. A WireFormatError closes the connection."""

    def _release(self) -> None:
        self._queue.clear()
        self._stop_stall_timer()
        if self._login_waits is not None and not self._login_waits.done():
            self._login_waits.set_exception(self._broken())

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

    def _feed_gathered(self) -> None:
        self._feeds_soon = False
        self._feed()

    def _feed(self) -> None:
        while self._queue and not self._paused and self._transport is not None:
            self._transport.write(self._queue.next_piece())
