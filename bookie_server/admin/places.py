"""How many connections the admin API holds, and which of them give way to others.

A slow caller costs others nothing. A newcomer may take the place of a caller that has not sent a whole request, or does
not read the response: of the oldest one. A caller that sends at once and reads at once is served, however many slow
callers there are.

The kernel hands connections over in the order in which they came, so a caller that came last in a burst waits until all
of the burst are accepted. To close a socket takes about as long as to accept one, so most are closed after the burst.
"""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from itertools import takewhile
from typing import Final

from bookie_server.admin.routes import HttpError
from bookie_server.net.common.entrance.newcomers import Newcomer
from bookie_server.net.common.next_turn import NextTurn

#: More than one turn of the event loop accepts, so that a request that came at once is seen before it gives way.
MAX_ARRIVING: Final = 512
#: So many more may arrive in a burst. They give way after it.
MAX_BURST: Final = 256
MAX_HANDLED: Final = 32
MAX_ANSWERED: Final = 64

#: Connections that give way in one turn of the event loop without newcomers. Each takes 12 µs, and whoever is served
#: meanwhile waits for them.
_CLOSED_AT_ONCE: Final = 4

#: A bare socket until the head of its request is whole, or its handshake begins.
_Connection = Newcomer | asyncio.Transport


class Places:
    """The connections of one server, by what they wait for. Belongs to the event loop."""

    def __init__(self) -> None:
        #: When they came, in this order.
        self._arriving: dict[_Connection, float] = {}
        self._answered: dict[_Connection, float] = {}
        self._held: set[_Connection] = set()
        #: Whether somebody came since the last turn.
        self._has_come = False
        self._shrinking = NextTurn(asyncio.get_running_loop(), self._shrink)
        #: Requests that are being handled. Some outlive their connection.
        self.handling: set[asyncio.Task[object]] = set()

    @property
    def held(self) -> list[_Connection]:
        """All connections."""
        return list(self._held)

    def arrive(self, connection: _Connection) -> None:
        """A connection has come, or has become a transport."""
        self._make_room(self._arriving, MAX_ARRIVING + MAX_BURST)
        self._arriving[connection] = time.monotonic()
        self._held.add(connection)
        if len(self._arriving) > MAX_ARRIVING:
            self._has_come = True
            self._shrinking.ask()

    def expire(self, timeout_s: float) -> None:
        """Close those that are bare sockets for so long. Others have time limits of their own."""
        until = time.monotonic() - timeout_s
        for connection in list(takewhile(lambda each: self._arriving[each] <= until, self._arriving)):
            if isinstance(connection, Newcomer):
                self._end(connection)

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
            self._make_room(self._answered, MAX_ANSWERED)
            self._answered[connection] = time.monotonic()

    def leave(self, connection: _Connection) -> None:
        """The connection has ended, or becomes a transport."""
        self._held.discard(connection)
        self._arriving.pop(connection, None)
        self._answered.pop(connection, None)

    def close(self) -> None:
        """Close all connections."""
        for connection in self.held:
            self._end(connection)

    def _shrink(self) -> None:
        """Let some of those that came too many give way, unless more are coming."""
        closed = 0 if self._has_come else min(_CLOSED_AT_ONCE, len(self._arriving) - MAX_ARRIVING)
        self._has_come = False
        for _ in range(closed):
            self._end(next(iter(self._arriving)))
        if len(self._arriving) > MAX_ARRIVING:
            self._shrinking.ask()

    def _make_room(self, connections: dict[_Connection, float], most: int) -> None:
        if len(connections) >= most:
            self._end(next(iter(connections)))

    def _end(self, connection: _Connection) -> None:
        self.leave(connection)
        connection.abort()
