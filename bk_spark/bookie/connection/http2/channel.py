"""Calls of gRPC of one bookie: a channel makes a connection when a call needs one. Single event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from bk_spark.bookie.connection.http2.call import NO_METADATA, Call, CallError, Metadata
from bk_spark.bookie.connection.http2.line import Line
from bk_spark.protocol.errors import TlsError
from bk_spark.protocol.wire.http2.calls import INTERNAL, UNAVAILABLE
from bk_spark.protocol.wire.http2.connection import Http2

#: The time for a connection. Callers have shorter ones.
_CONNECT_S: Final = 20.0
#: Waits before a call that the peer has not looked at is made again.
_WAITS_S: Final = (0.01, 0.1, 0.5)

#: Connects a protocol to the bookie. Raises OSError, TlsError.
ConnectTo = Callable[[asyncio.BufferedProtocol], Awaitable[None]]


class Channel:
    """Calls of one bookie.

    Parameters
    ----------
    connect
        Connects a protocol to the bookie. Raises OSError, TlsError.
    authority
        Host and port.
    is_secure
        Whether connections are inside TLS.
    max_message_bytes
        The largest answer that is accepted.
    """

    def __init__(self, connect: ConnectTo, authority: str, *, is_secure: bool, max_message_bytes: int) -> None:
        self._connect_to = connect
        self._authority, self._is_secure, self._max_message_bytes = authority, is_secure, max_message_bytes
        self._line: Line | None = None
        #: Connections whose calls may go on.
        self._lines: set[Line] = set()
        #: Calls without a connection, in order.
        self._waiting: dict[Call, None] = {}
        self._connecting: asyncio.Task[None] | None = None
        self._closed = False

    def begin(self, path: str, metadata: Metadata = NO_METADATA, timeout_ms: int | None = None) -> Call:
        """Begin a call with messages both ways. Its connection may come later. The peer may give the call up
        ``timeout_ms`` after its beginning."""
        call = Call(path, metadata, timeout_ms)
        self._waiting[call] = None
        self._begin_calls()
        return call

    async def ask(
        self, path: str, message: bytes, metadata: Metadata = NO_METADATA, timeout_ms: int | None = None
    ) -> bytes:
        """Make a call with one message each way. The peer may give it up after ``timeout_ms``. Raises CallError.

        A peer that takes no further calls at the moment does not look at it. Then it is made again.
        """
        for wait_s in _WAITS_S:
            try:
                return await self._ask_once(path, message, metadata, timeout_ms)
            except CallError as error:
                if not error.is_unseen:
                    raise
            await asyncio.sleep(wait_s)
        return await self._ask_once(path, message, metadata, timeout_ms)

    async def _ask_once(self, path: str, message: bytes, metadata: Metadata, timeout_ms: int | None) -> bytes:
        call = self.begin(path, metadata, timeout_ms)
        try:
            await call.write(message, ends=True)
            answer = await call.read()
            if answer is None or await call.read() is not None:
                raise CallError(INTERNAL, "the answer is not one message")
            return bytes(answer)
        finally:
            self._waiting.pop(call, None)
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
        while self._waiting and line is not None and line.http2.can_begin and line.takes_calls:
            call = next(iter(self._waiting))
            del self._waiting[call]
            if not call.has_ended:
                line.begin(call)
        if line is not None and not line.takes_calls:
            # The peer has left, or the numbers of calls have run out.
            self._line = None
        if self._waiting and self._line is None and self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        http2 = Http2(self._authority, is_secure=self._is_secure, max_message_bytes=self._max_message_bytes)
        line = Line(http2, self._begin_calls)
        self._lines.add(line)
        line.lost.add_done_callback(lambda _: self._lines.discard(line))
        problem: CallError | None = None
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._connect_to(line)
            if line.takes_calls:
                self._line = line
            else:
                # No further attempt: a peer that closes each connection would be called for ever.
                problem = line.why_lost
        except TlsError as error:
            problem = CallError(UNAVAILABLE, error.message, is_about_tls=True)
        except (OSError, ValueError) as error:
            # A host that is not a valid name raises ValueError.
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
        waiting, self._waiting = self._waiting, {}
        for call in waiting:
            call.fail(error)
