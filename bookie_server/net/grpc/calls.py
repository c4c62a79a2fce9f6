"""What the handlers of all methods share: the bookie, the limits, and how messages are taken and sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar, cast

from google.protobuf.message import DecodeError, Message
from grpc import StatusCode

from bk_spark.protocol.codes import Code
from bk_spark.protocol.proto import bookie_pb2 as pb
from bookie_server.net.common.lost_connection import ignore_change
from bookie_server.net.native.request_context import RequestContext
from bookie_server.net.native.shared import Shared

_LOG: Final = logging.getLogger(__name__)
#: The context of a call, as grpc.aio gives it.
Context = Any
#: Calls under way of one connection. Further ones wait at the caller.
MAX_CALLS_PER_CONNECTION: Final = 200
#: A call with one request that is not answered in this time ends with the status DEADLINE_EXCEEDED.
UNARY_TIMEOUT_S: Final = 60.0

_M = TypeVar("_M", bound=Message)


class Service(Protocol):
    """A service beside that of the bookie. ``name``: its name for callers."""

    name: str

    def methods(self) -> dict[str, Any]:
        """Return the handlers, by name."""

    async def close(self) -> None:
        """End what is left when no call is under way any more."""


@dataclass(slots=True)
class Stuck:
    """What is kept for callers that do not take their answers. Their calls were ended because of that.

    gRPC keeps the last message of such a call until its caller takes it or leaves.
    """

    size_bytes: int = 0


class Call:
    """One call: its requests wait, and count, as those of one native connection do. Belongs to the event loop.

    Made by the task of the call. ``adds_changed`` is called when the number of its waiting adds has changed.
    """

    def __init__(
        self, shared: Shared, stuck: Stuck, context: Context, adds_changed: Callable[[], None] = lambda: None
    ) -> None:
        self.shared = shared
        self.context = context
        self._stuck = stuck
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        #: Looks after the send that waits. Calls have one at a time.
        self._watching: asyncio.TimerHandle
        self.requests = RequestContext(
            shared, adds_changed=adds_changed, reads_changed=ignore_change, refused=context.refused, failed=self._fail
        )

    def end(self) -> None:
        """The call is over. Adds that were accepted go on without it."""
        self.requests.end()

    async def parse(self, kind: type[_M], data: bytes) -> _M:
        """Return the message. If it is malformed, end the call with the status INVALID_ARGUMENT."""
        try:
            return kind.FromString(data)
        except DecodeError:
            await self.refuse(f"this is not a {kind.DESCRIPTOR.full_name}")
            raise

    async def refuse(self, problem: str) -> None:
        """End the call: its caller does not speak the protocol."""
        await self.context.abort(StatusCode.INVALID_ARGUMENT, problem)

    async def check_room(self) -> None:
        """Refuse the call, with the status RESOURCE_EXHAUSTED, if too much is kept for stalled callers."""
        if self._stuck.size_bytes > self.shared.config.max_unsent_bytes:
            await self.context.abort(
                StatusCode.RESOURCE_EXHAUSTED, "other callers do not take their answers, and there is no more memory"
            )

    async def send(self, message: bytes) -> None:
        """Send a message of a stream. Waits while the caller does not take it.

        If it takes nothing for some time, and others wait for memory, the call ends with the status RESOURCE_EXHAUSTED.
        """
        load, size_bytes = self.shared.load, len(message)
        load.change_unsent(size_bytes)
        try:
            async with asyncio.timeout(None) as limit:
                self._watch(limit)
                try:
                    await self.context.write(message)
                finally:
                    self._watching.cancel()
            return
        except TimeoutError:
            self.shared.stalled_peers += 1
        finally:
            load.change_unsent(-size_bytes)
        self._stuck.size_bytes += size_bytes
        try:
            await self.context.abort(
                StatusCode.RESOURCE_EXHAUSTED, "the caller does not take its answers, and others wait for the memory"
            )
        finally:
            self._stuck.size_bytes -= size_bytes

    def _watch(self, limit: asyncio.Timeout) -> None:
        """Look later whether a send still waits, and others wait for memory. Then it ends."""
        after_s = self.shared.config.stalled_peer_timeout_ms / 1000
        self._watching = self._loop.call_later(after_s, self._on_waiting, limit)

    def _on_waiting(self, limit: asyncio.Timeout) -> None:
        if self.shared.load.pressing:
            limit.reschedule(self._loop.time())
        else:
            self._watch(limit)

    def _fail(self) -> None:
        """End the call because of the unexpected exception that is being handled."""
        _LOG.exception("a call ended: unexpected error in a request")
        if self._task is not None:
            self._task.cancel()


def number(code: Code) -> pb.Code:
    """Return the number of a code in messages."""
    return cast("pb.Code", code.v3)
