"""Calls of gRPC with messages both ways, as a connection has them. Single event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from bk_spark.bookie.connection.http2.call import Call
from bk_spark.bookie.connection.http2.channel import Channel
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire.batches import SERVICE

#: A call that nothing is owed on ends when it was not used for this long. The bookie ends it later.
_IDLE_S: Final = 30.0


class StreamOwner(Protocol):
    """The connection.

    ``channel`` makes calls; ``metadata`` is what each call shows.
    """

    channel: Channel
    metadata: tuple[tuple[str, bytes], ...]

    def begin(self, *work: Coroutine[Any, Any, None]) -> None:
        """Do the work of a stream. The connection ends if it fails."""

    def heard(self) -> None:
        """Note that something came from the bookie."""

    def sending(self) -> AbstractContextManager[None]:
        """A message is on its way."""


class MessageStream:
    """A call with messages both ways: sends what ``next_messages`` yields, and hands answers to ``on_answer``.

    It ends when it was idle for some time and ``is_owed`` says that no answer is. With the next message it begins
    again.
    """

    def __init__(
        self,
        connection: StreamOwner,
        method: str,
        next_messages: Callable[[], Iterator[bytes]],
        on_answer: Callable[[Buffer], None],
        is_owed: Callable[[], bool],
    ) -> None:
        self._connection = connection
        self._method = method
        self._next_messages, self._on_answer, self._is_owed = next_messages, on_answer, is_owed
        self._call: Call | None = None
        self._wanted = asyncio.Event()

    def wake(self) -> None:
        """There is something to send."""
        if self._call is None:
            self._call = self._connection.channel.begin(f"/{SERVICE}/{self._method}", self._connection.metadata)
            self._connection.begin(self._send(self._call), self._receive(self._call))
        self._wanted.set()

    async def _send(self, call: Call) -> None:
        while True:
            try:
                async with asyncio.timeout(_IDLE_S):
                    await self._wanted.wait()
            except TimeoutError:
                if self._is_owed():
                    continue
                self._call = None
                await call.done_writing()
                return
            self._wanted.clear()
            for message in self._next_messages():
                with self._connection.sending():
                    await call.write(message)

    async def _receive(self, call: Call) -> None:
        while True:
            data = await call.read()
            if data is None and self._call is not call:
                return  # it was idle
            if data is None:
                raise WireFormatError(f"the bookie ended the call of {self._method}")
            self._connection.heard()
            self._on_answer(data)
