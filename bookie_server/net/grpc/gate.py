"""What stands before all methods: bounds on calls, and on the time in which their first message must come.

gRPC calls the handler of a method with one request only when that has come. Until then nobody would see the call. So
each such method is served as one with a stream of requests, which looks the same to callers.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
from grpc import StatusCode
from grpc.aio import EOF

from bookie_server.net.common.access.pauses import RefusalsByPeer
from bookie_server.net.common.sparing_log import SparingLog
from bookie_server.net.grpc.access.sessions import Sessions
from bookie_server.net.grpc.counters import Counters
from bookie_server.net.grpc.places import Place, Places

#: Refused calls that wait until they are told so.
_MOST_WAITING: Final = 256
_NO_PLACE: Final = "too many calls are under way"


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Belongs to the event loop.

    Parameters
    ----------
    max_calls
        Calls under way. When a further one begins, the quietest goes.
    first_message_s, message_s
        The time in which the first message of a call, and each further one, must be complete.
    sessions
        Who has logged in.
    """

    def __init__(self, max_calls: int, first_message_s: float, message_s: float, sessions: Sessions) -> None:
        self.places = Places(max_calls)
        self.sessions = sessions
        self.refusals = RefusalsByPeer()
        #: Of refused calls that wait until they are told so, the oldest first.
        self.waiting: dict[asyncio.Future[None], None] = {}
        self._first_message_s, self._message_s = first_message_s, message_s
        self._handlers: dict[str, Any] = {}
        self.log = SparingLog()
        self.counters = Counters()

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """Return the handler of a call. None: there is no such method."""
        found = self._handlers.get(details.method)
        if found is None:
            handler = await continuation(details)
            if handler is None:
                return None
            found = self._handlers[details.method] = self._bounded(handler)
        return found

    def _bounded(self, handler: Any) -> Any:
        async def handle(_: object, context: Any) -> Any:
            loop = asyncio.get_running_loop()
            self.counters.calls += 1
            place = self.places.enter(loop.time())
            if place is None:
                self.counters.ended(StatusCode.RESOURCE_EXHAUSTED)
                await context.abort(StatusCode.RESOURCE_EXHAUSTED, _NO_PLACE)
                return None
            try:
                answer = await _serve(
                    handler, BoundedContext(context, self, place, self._first_message_s, self._message_s)
                )
                self.counters.sent_bytes += _size(answer)
                return answer
            finally:
                self.places.leave(place)

        # One answer goes out together with the end of the call.
        streams = handler.response_streaming
        make = grpc.stream_stream_rpc_method_handler if streams else grpc.stream_unary_rpc_method_handler
        return make(handle, handler.request_deserializer, handler.response_serializer)


class BoundedContext:
    """The context of a call. Its ``read`` does not wait for ever for a message, and may be ended."""

    def __init__(self, context: Any, gate: Gate, place: Place, first_message_s: float, message_s: float) -> None:
        self._context = context
        self._gate = gate
        #: The time for the next message. None: no limit.
        self._patience_s: float | None = first_message_s
        #: The same, for those after the first.
        self.message_s: float | None = message_s
        self.place = place
        #: How much later the next message is taken.
        self._pause_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    @property
    def sessions(self) -> Sessions:
        """Who has logged in."""
        return self._gate.sessions

    async def write(self, message: Any) -> None:
        """Send a message."""
        self._gate.counters.sent_bytes += _size(message)
        await self._context.write(message)

    async def abort(self, status: StatusCode, reason: str) -> None:
        """End the call with a status that is not OK."""
        self._gate.counters.ended(status)
        await self._context.abort(status, reason)

    def refused(self) -> None:
        """Take the next message of the call later, because its caller asks for what it may not."""
        now_s = asyncio.get_running_loop().time()
        self._pause_s = self._gate.refusals.next_s(self._context.peer(), now_s)

    async def wait_refused(self) -> None:
        """Wait as long before the call ends. It gives up its place, and its wait is over early if too many wait."""
        self.refused()
        self.leave_place()
        waiting = self._gate.waiting
        if len(waiting) >= _MOST_WAITING:
            oldest = next(iter(waiting))
            del waiting[oldest]
            oldest.cancel()
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting[told] = None
        try:
            await asyncio.wait([told], timeout=self._pause_s)
        finally:
            waiting.pop(told, None)

    def leave_place(self) -> None:
        """The call no longer counts, because something else bounds it."""
        self._gate.places.leave(self.place)

    def end_wait(self) -> None:
        """End the call if it waits for a message."""
        if self.place.end is not None:
            self.place.end()

    async def read(self) -> Any:
        """Return the next message, or EOF. Ends the call if none comes in time, or others need the place."""
        loop, place, patience_s = asyncio.get_running_loop(), self.place, self._patience_s
        pause_s, self._pause_s = self._pause_s, 0.0
        evicted = False

        def end() -> None:
            nonlocal evicted
            evicted = True
            limit.reschedule(loop.time())

        try:
            async with asyncio.timeout(None if patience_s is None else pause_s + patience_s) as limit:
                place.end = end
                try:
                    if pause_s:
                        await asyncio.sleep(pause_s)
                    message = await self._context.read()
                finally:
                    place.end = None
        except TimeoutError:
            status, reason = StatusCode.DEADLINE_EXCEEDED, f"no whole message within {patience_s or 0:g} s"
            if evicted:
                status, reason = StatusCode.RESOURCE_EXHAUSTED, f"{_NO_PLACE}, and this one was quiet for longest"
            self._gate.log.tell("a call of gRPC from %s ended: %s", self._context.peer(), reason)
            await self.abort(status, reason)
            raise
        self._patience_s = self.message_s
        self._gate.counters.received_bytes += _size(message)
        self._gate.places.on_message(place, loop.time())
        return message


def _size(message: Any) -> int:
    return len(message) if isinstance(message, bytes) else 0


async def _serve(handler: Any, context: BoundedContext) -> Any:
    """Return the answer of a method with one answer."""
    if handler.request_streaming:
        call = handler.stream_stream(_messages(context), context)
    else:
        request = await context.read()
        if request is EOF:
            await context.abort(StatusCode.INVALID_ARGUMENT, "the call has no message")
        call = (handler.unary_stream or handler.unary_unary)(request, context)
    if not inspect.isasyncgen(call):
        return await call
    async for message in call:
        await context.write(message)
    return None


async def _messages(context: BoundedContext) -> AsyncIterator[Any]:
    while (message := await context.read()) is not EOF:
        yield message
