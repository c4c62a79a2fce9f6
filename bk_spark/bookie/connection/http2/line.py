"""One connection of calls of gRPC: a protocol of asyncio. Single event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from bk_spark.bookie.connection.client_tls import HTTP2_NAME
from bk_spark.bookie.connection.http2.call import Call, CallError
from bk_spark.bookie.connection.transports import SendQueue, prepare, tls_problem
from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire.http2.calls import RESOURCE_EXHAUSTED, UNAVAILABLE, Ended
from bk_spark.protocol.wire.http2.connection import Http2
from bk_spark.protocol.wire.http2.headers import TooManyHeadersError

_LOG: Final = logging.getLogger(__name__)


class Line(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, http2: Http2, on_room: Callable[[], None]) -> None:
        self.http2 = http2
        self._on_room = on_room
        self._calls: dict[int, Call] = {}
        #: Those that wait until the transport, or the peer, takes more, in the order in which they take turns.
        self._writers: dict[Call, None] = {}
        self._queue = SendQueue()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._has_heard = False
        #: Done when the transport is closed.
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: Why, then.
        self.why_lost = CallError(UNAVAILABLE, "the connection was closed")

    @property
    def is_idle(self) -> bool:
        """Whether the transport has taken everything."""
        return not self._paused and not self._queue

    @property
    def takes_calls(self) -> bool:
        """Whether it is open for calls, perhaps after others have ended."""
        return not self.lost.done() and not self.http2.is_leaving

    def begin(self, call: Call) -> None:
        """Begin a call. The peer must have room for it. The call fails if the peer does not take its headers."""
        try:
            number = self.http2.begin(call.path, call.metadata, call.timeout_ms)
        except TooManyHeadersError as error:
            call.fail(CallError(RESOURCE_EXHAUSTED, str(error)))
            return
        self._calls[number] = call
        call.on_begun(self, number)
        self.feed()

    def cancel(self, number: int) -> None:
        """The caller has left."""
        if self._calls.pop(number, None) is not None:
            self.http2.cancel(number)
            self.feed()
            self._on_room()
            self._close_if_done()

    def wants_to_write(self, call: Call) -> None:
        """Wake a call when more can be written, after those that wait already."""
        self._writers[call] = None

    def has_written(self, call: Call) -> None:
        """A call had its turn."""
        self._writers.pop(call, None)

    def feed(self) -> None:
        """Write what is to be sent, as far as the transport takes it."""
        self._queue.extend(self.http2.output())
        if self.lost.done():
            self._queue.clear()
        while self._queue and not self._paused and self._transport is not None:
            self._transport.write(self._queue.next_piece())
        if self.is_idle:
            self.http2.sent()

    def abort(self, why: CallError | None = None) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
        self._end(why or self.why_lost)

    # --- asyncio's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Prepare the socket. Called by the event loop, as the methods below."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        prepare(transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != HTTP2_NAME:
            # RFC 9113, section 3.2. Such a peer may wait for ever.
            reason = "what answers inside TLS does not agree to speak HTTP/2 (ALPN): is this the port of gRPC?"
            self.abort(CallError(UNAVAILABLE, reason, is_about_tls=True))
            return
        self.feed()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let calls fail. If the bookie may have refused the certificate, that is about TLS."""
        problem = tls_problem(self._transport, exc, has_heard=self._has_heard)
        if problem is not None:
            reason = f"the TLS connection broke: {problem}"
        elif exc is not None:
            reason = f"the connection broke: {exc}"
        else:
            reason = "the peer closed the connection"
        self._end(CallError(UNAVAILABLE, reason, is_about_tls=problem is not None))

    def pause_writing(self) -> None:
        """Keep further bytes in the queue."""
        self._paused = True

    def resume_writing(self) -> None:
        """Send what is queued, then what calls want to write."""
        self._paused = False
        self.feed()
        self._wake_writers()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes belong. The size that asyncio suggests does not matter."""
        return self.http2.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Hand to calls what has come for them. Bytes that break the protocol close the connection."""
        self._has_heard = True
        try:
            events = self.http2.received(nbytes)
        except WireFormatError as error:
            _LOG.warning("closing a connection over gRPC: %s", error)
            self.abort(CallError(UNAVAILABLE, error.message))
            return
        ended = False
        for event in events:
            if isinstance(event, Ended):
                ended = True
                call = self._calls.pop(event.call, None)
            else:
                call = self._calls.get(event.call)
            if call is not None:
                call.on_event(event)
        self.feed()
        # The peer may take more now.
        self._wake_writers()
        if ended or self.http2.is_leaving:
            self._on_room()
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self.http2.is_leaving and not self._calls:
            self.abort()

    def _wake_writers(self) -> None:
        if self.is_idle:
            # They stay until they had their turn: those behind may not find room.
            for call in self._writers:
                call.wake()

    def _end(self, error: CallError) -> None:
        self._queue.clear()
        self._writers.clear()
        if not self.lost.done():
            self.why_lost = error
            self.lost.set_result(None)
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.fail(error)
        self._on_room()
