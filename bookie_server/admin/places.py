"""How many connections the admin API holds, and which of them give way to others.

A slow caller costs others nothing. Who has not sent a whole request, or does not read the response, gives way to a
newcomer, the oldest first. A request that arrives at once and is read at once is served meanwhile, however many slow
callers there are.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final

from bookie_server.admin.routes import HttpError

#: More than one turn of the event loop accepts, so that a request that came at once is seen before it gives way.
MAX_ARRIVING: Final = 512
MAX_HANDLED: Final = 32
MAX_ANSWERED: Final = 64


class Places:
    """The connections of one server, by what they wait for. Belongs to the event loop."""

    def __init__(self) -> None:
        #: In the order of their arrival.
        self._arriving: dict[asyncio.Transport, None] = {}
        self._answered: dict[asyncio.Transport, None] = {}
        self._held: set[asyncio.Transport] = set()
        #: Requests that are being handled. Some outlive their connection.
        self.handling: set[asyncio.Task[object]] = set()

    @property
    def held(self) -> list[asyncio.Transport]:
        """All connections."""
        return list(self._held)

    def arrive(self, connection: asyncio.Transport) -> None:
        """A connection was made."""
        _make_room(self._arriving, MAX_ARRIVING)
        self._arriving[connection] = None
        self._held.add(connection)

    def ask(self, connection: asyncio.Transport) -> None:
        """Its request is complete."""
        self._arriving.pop(connection, None)

    def handle(self, task: asyncio.Task[object]) -> None:
        """Its request is being handled."""
        self.handling.add(task)
        task.add_done_callback(self.handling.discard)

    def require_room(self) -> None:
        """Raise HttpError (503) if too many requests are being handled."""
        if len(self.handling) >= MAX_HANDLED:
            raise HttpError(
                HTTPStatus.SERVICE_UNAVAILABLE, f"{MAX_HANDLED} requests are being handled; try again later"
            )

    def answer(self, connection: asyncio.Transport) -> None:
        """Its response is being sent."""
        self._arriving.pop(connection, None)
        if connection in self._held:
            _make_room(self._answered, MAX_ANSWERED)
            self._answered[connection] = None

    def leave(self, connection: asyncio.Transport) -> None:
        """The connection has ended."""
        self._held.discard(connection)
        self._arriving.pop(connection, None)
        self._answered.pop(connection, None)


def _make_room(connections: dict[asyncio.Transport, None], most: int) -> None:
    if len(connections) >= most:
        oldest = next(iter(connections))
        del connections[oldest]
        oldest.abort()
