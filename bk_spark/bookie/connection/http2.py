"""Calls of gRPC over sockets of asyncio: a channel makes a connection when a call needs one. Single event loop.

What is sent and received is decided in ``protocol/wire/http2.py``.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from bk_spark.bookie.connection.base import CLOSED_EARLY
from bk_spark.bookie.connection.send_queue import SendQueue
from bk_spark.bookie.tls.reasons import reason_of
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.errors import TlsError, WireFormatError
from bk_spark.protocol.wire.http2.calls import CANCELLED, INTERNAL, OK, UNAVAILABLE, Answered, Ended, Event, Message
from bk_spark.protocol.wire.http2.connection import Http2

_LOG: Final = logging.getLogger(__name__)
#: The time for a connection. Callers have shorter ones.
_CONNECT_S: Final = 20.0
#: Waits before a call that the peer has not looked at is made again.
_WAITS_S: Final = (0.01, 0.1, 0.5)
_NO_METADATA: Final[tuple[tuple[str, bytes], ...]] = ()

Metadata = Iterable[tuple[str, bytes]]
#: Connects a protocol to the bookie. Raises OSError, TlsError.
ConnectTo = Callable[[asyncio.BufferedProtocol], Awaitable[None]]


class CallError(Exception):
    """A call has failed: one of gRPC's statuses, and why. With ``is_about_tls`` TLS is the reason. With ``is_unseen``
    the peer has not looked at the call."""

    def __init__(self, status: str, reason: str, *, is_about_tls: bool = False, is_unseen: bool = False) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status
        self.reason = reason
        self.is_about_tls = is_about_tls
        self.is_unseen = is_unseen


class Call:
    """One call, which may still wait for its connection. One task reads, another may write."""

    def __init__(self, path: str, metadata: Metadata) -> None:
        self.path, self.metadata = path, metadata
        self._loop = asyncio.get_running_loop()
        self._line: _Line | None = None
        self._number = 0
        self._is_answered = False
        self._messages: deque[Buffer] = deque()
        #: How it has ended. Its status may be OK.
        self._end: CallError | None = None
        self._waiting: list[asyncio.Future[None]] = []

    async def write(self, message: Buffer, *, ends: bool = False) -> None:
        """Send a message, with ``ends`` the last one. Waits until the transport has taken it. Raises CallError."""
        try:
            await self._write(memoryview(message), ends=ends)
        finally:
            if self._line is not None:
                self._line.has_written(self)

    async def _write(self, data: memoryview, *, ends: bool) -> None:
        begins = True
        while begins or data:
            line = self._line
            if self._end is not None:
                raise self._error(self._end)
            taken = None
            if line is not None and line.is_idle:
                taken = line.http2.send(self._number, data, begins=begins, size_bytes=len(data), ends=ends)
            if line is None or taken is None:
                if line is not None:
                    line.wants_to_write(self)
                await self.changed()
                continue
            begins, data = False, data[taken:]
            line.has_written(self)
            line.feed()
        while self._end is None and self._line is not None and not self._line.is_idle:
            self._line.wants_to_write(self)
            await self.changed()

    async def done_writing(self) -> None:
        """Say that no further message comes."""
        if self._end is None and self._line is not None:
            self._line.http2.end(self._number)
            self._line.feed()

    async def answered(self) -> None:
        """Wait until the peer has begun to answer, or has ended the call. Raises CallError if that is a failure."""
        while not self._is_answered and self._end is None:
            await self.changed()
        if self._end is not None and self._end.status != OK:
            raise self._error(self._end)

    async def read(self) -> Buffer | None:
        """Return the next message. None: the call has ended well. Raises CallError."""
        while not self._messages:
            if self._end is not None:
                if self._end.status == OK:
                    return None
                raise self._error(self._end)
            await self.changed()
        message = self._messages.popleft()
        if self._line is not None:
            self._line.http2.taken(self._number, len(message))
            self._line.feed()
        return message

    def cancel(self) -> None:
        """End the call, unless it has ended."""
        if self._end is None:
            self.fail(CallError(CANCELLED, "the caller has left"))
            if self._line is not None:
                self._line.cancel(self._number)

    # --- for its channel ---

    @property
    def has_ended(self) -> bool:
        """Whether it is over."""
        return self._end is not None

    def on_begun(self, line: _Line, number: int) -> None:
        """It has a connection now."""
        self._line, self._number = line, number
        self.wake()

    def on_event(self, event: Event) -> None:
        """Something has come for it."""
        match event:
            case Message():
                self._messages.append(event.data)
            case Answered():
                self._is_answered = True
            case Ended():
                self.fail(CallError(event.status, event.reason, is_unseen=event.is_unseen))
        self.wake()

    def fail(self, error: CallError) -> None:
        """It has ended."""
        if self._end is None:
            self._end = error
        self.wake()

    async def changed(self) -> None:
        """Wait until :meth:`wake`."""
        future = self._loop.create_future()
        self._waiting.append(future)
        await future

    def wake(self) -> None:
        """Something has changed."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    @staticmethod
    def _error(end: CallError) -> CallError:
        if end.status == OK:
            return CallError(UNAVAILABLE, "the peer has ended the call")
        return CallError(end.status, end.reason, is_about_tls=end.is_about_tls, is_unseen=end.is_unseen)


class _Line(asyncio.BufferedProtocol):
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

    @property
    def is_idle(self) -> bool:
        """Whether the transport has taken everything."""
        return not self._paused and not self._queue

    @property
    def takes_calls(self) -> bool:
        """Whether it is open for calls, perhaps after others have ended."""
        return not self.lost.done() and not self.http2.is_leaving

    def begin(self, call: Call) -> None:
        """Begin a call. The peer must have room for it."""
        number = self.http2.begin(call.path, call.metadata)
        self._calls[number] = call
        call.on_begun(self, number)
        self.feed()

    def cancel(self, number: int) -> None:
        """The caller has left."""
        if self._calls.pop(number, None) is not None:
            self.http2.cancel(number)
            self.feed()
            self._on_room()

    def wants_to_write(self, call: Call) -> None:
        """Wake a call when more can be written, after those that wait already."""
        self._writers[call] = None

    def has_written(self, call: Call) -> None:
        """A call had its turn."""
        self._writers.pop(call, None)

    def feed(self) -> None:
        """Write what is to be sent, as far as the transport takes it."""
        self._queue.extend(self.http2.output())
        while self._queue and not self._paused and self._transport is not None:
            self._transport.write(self._queue.next_piece())
        if self.is_idle:
            self.http2.sent()

    def abort(self, reason: str = "the connection was closed") -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
        self._end(CallError(UNAVAILABLE, reason))

    # --- asyncio's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=0)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.feed()

    def connection_lost(self, exc: Exception | None) -> None:
        is_tls = self._transport is not None and self._transport.get_extra_info("ssl_object") is not None
        reason = f"the connection broke: {exc}" if exc is not None else "the peer closed the connection"
        # With TLS 1.3 a client learns after the handshake that its certificate is refused.
        is_about_tls = is_tls and (isinstance(exc, ssl.SSLError) or not self._has_heard)
        if is_about_tls:
            reason = f"the TLS connection broke: {reason_of(exc) if isinstance(exc, ssl.SSLError) else CLOSED_EARLY}"
        self._end(CallError(UNAVAILABLE, reason, is_about_tls=is_about_tls))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.feed()
        self._wake_writers()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.http2.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._has_heard = True
        try:
            events = self.http2.received(nbytes)
        except WireFormatError as error:
            _LOG.warning("closing a connection over gRPC: %s", error)
            self.abort(error.message)
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
            self.lost.set_result(None)
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.fail(error)
        self._on_room()


class Channel:
    """Calls of one bookie. ``connect`` connects a protocol to it.

    Parameters
    ----------
    connect
        Raises OSError, TlsError.
    authority
        Host and port.
    is_secure
        Whether connections are inside TLS.
    max_message_bytes
        Of an answer.
    """

    def __init__(self, connect: ConnectTo, authority: str, *, is_secure: bool, max_message_bytes: int) -> None:
        self._connect_to = connect
        self._authority, self._is_secure, self._max_message_bytes = authority, is_secure, max_message_bytes
        self._line: _Line | None = None
        #: Connections whose calls may go on.
        self._lines: set[_Line] = set()
        self._waiting: deque[Call] = deque()
        self._connecting: asyncio.Task[None] | None = None
        self._closed = False

    def begin(self, path: str, metadata: Metadata = _NO_METADATA) -> Call:
        """Begin a call with messages both ways. Its connection may come later."""
        call = Call(path, metadata)
        self._waiting.append(call)
        self._begin_calls()
        return call

    async def ask(self, path: str, message: bytes, metadata: Metadata = _NO_METADATA) -> bytes:
        """Make a call with one message each way. Raises CallError.

        A peer that takes no further calls at the moment does not look at it. Then it is made again.
        """
        for wait_s in _WAITS_S:
            try:
                return await self._ask_once(path, message, metadata)
            except CallError as error:
                if not error.is_unseen:
                    raise
            await asyncio.sleep(wait_s)
        return await self._ask_once(path, message, metadata)

    async def _ask_once(self, path: str, message: bytes, metadata: Metadata) -> bytes:
        call = self.begin(path, metadata)
        try:
            await call.write(message, ends=True)
            answer = await call.read()
            if answer is None or await call.read() is not None:
                raise CallError(INTERNAL, "the answer is not one message")
            return bytes(answer)
        finally:
            call.cancel()

    def close(self) -> None:
        """Close at once. Calls fail."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        for line in [*self._lines]:
            line.abort()
        self._fail(CallError(UNAVAILABLE, "the connection was closed"))

    async def wait_closed(self) -> None:
        """Wait until a closed channel has released what it had."""
        if self._connecting is not None:
            await asyncio.gather(self._connecting, return_exceptions=True)
        # Aborted transports release their sockets in the next iteration of the loop.
        await asyncio.sleep(0)

    def _begin_calls(self) -> None:
        """Begin calls that wait, as far as the peer has room for them."""
        if self._closed:
            self._fail(CallError(UNAVAILABLE, "the connection is closed"))
            return
        line = self._line
        if line is not None and not line.takes_calls:
            line = self._line = None
        while self._waiting and line is not None and line.http2.can_begin:
            call = self._waiting.popleft()
            if not call.has_ended:
                line.begin(call)
        if self._waiting and line is None and self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        http2 = Http2(self._authority, is_secure=self._is_secure, max_message_bytes=self._max_message_bytes)
        line = _Line(http2, self._begin_calls)
        self._lines.add(line)
        line.lost.add_done_callback(lambda _: self._lines.discard(line))
        problem: CallError | None = None
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._connect_to(line)
            self._line = line
        except TlsError as error:
            problem = CallError(UNAVAILABLE, error.message, is_about_tls=True)
        except (OSError, ValueError) as error:
            # ValueError: a host that is no name.
            problem = CallError(UNAVAILABLE, f"cannot connect: {error!r}")
        finally:
            if self._line is not line:
                line.abort()
            self._connecting = None
        if problem is not None:
            self._fail(problem)
        else:
            self._begin_calls()

    def _fail(self, error: CallError) -> None:
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            call.fail(error)
