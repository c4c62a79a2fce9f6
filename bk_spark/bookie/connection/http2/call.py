"""One call of gRPC, as its caller sees it. Single event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.wire.http2.calls import CANCELLED, OK, UNAVAILABLE, Answered, Ended, Event, Message
from bk_spark.protocol.wire.http2.connection import Http2

NO_METADATA: Final[tuple[tuple[str, bytes], ...]] = ()
Metadata = Iterable[tuple[str, bytes]]


class CallError(Exception):
    """A call has failed: one of gRPC's statuses, and why. ``is_about_tls``: TLS is the reason. ``is_unseen``: the peer
    has not looked at the call."""

    def __init__(self, status: str, reason: str, *, is_about_tls: bool = False, is_unseen: bool = False) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status
        self.reason = reason
        self.is_about_tls = is_about_tls
        self.is_unseen = is_unseen


class CallLine(Protocol):
    """The connection of a call."""

    http2: Http2

    @property
    def is_idle(self) -> bool:
        """Whether the transport has taken everything."""

    def feed(self) -> None:
        """Write as much of what is to be sent as the transport takes."""

    def cancel(self, number: int) -> None:
        """The caller has left."""

    def wants_to_write(self, call: Call) -> None:
        """Wake a call when more can be written, after those that wait already."""

    def has_written(self, call: Call) -> None:
        """A call had its turn."""


class Call:
    """One call, which may still wait for its connection. One task reads, another may write."""

    def __init__(self, path: str, metadata: Metadata, timeout_ms: int | None = None) -> None:
        self.path, self.metadata, self.timeout_ms = path, metadata, timeout_ms
        self._loop = asyncio.get_running_loop()
        self._line: CallLine | None = None
        self._number = 0
        self._is_answered = False
        self._messages: deque[Buffer] = deque()
        #: How it has ended. Its status may be OK.
        self._end: CallError | None = None
        self._waiting: list[asyncio.Future[None]] = []

    async def write(self, message: Buffer, *, ends: bool = False) -> None:
        """Send a message, and wait until the transport has taken it. ``ends``: it is the last one. Raises CallError."""
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

    def on_begun(self, line: CallLine, number: int) -> None:
        """Note that the call has a connection now."""
        self._line, self._number = line, number
        self.wake()

    def on_event(self, event: Event) -> None:
        """Handle what the peer has sent."""
        match event:
            case Message():
                self._messages.append(event.data)
            case Answered():
                self._is_answered = True
            case Ended():
                self.fail(CallError(event.status, event.reason, is_unseen=event.is_unseen))
        self.wake()

    def fail(self, error: CallError) -> None:
        """End the call, unless it has ended."""
        if self._end is None:
            self._end = error
        self.wake()

    async def changed(self) -> None:
        """Wait until :meth:`wake`."""
        future = self._loop.create_future()
        self._waiting.append(future)
        await future

    def wake(self) -> None:
        """Let everybody who waits in :meth:`changed` look again."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    @staticmethod
    def _error(end: CallError) -> CallError:
        if end.status == OK:
            return CallError(UNAVAILABLE, "the peer has ended the call")
        return CallError(end.status, end.reason, is_about_tls=end.is_about_tls, is_unseen=end.is_unseen)
