"""Peers that were granted TLS, and have not sent the first message of their handshake yet: bare sockets still.

A handshake needs a transport, a task, buffers of OpenSSL and a step in a thread. Peers that ask for TLS and stall would
get all of these for nothing, a thousand of them at the same moment, while requests of others wait. So they stay
newcomers, which cost an entry in a table, until the first record of the handshake is there as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice, takewhile
from typing import Final

from bk_spark.protocol.wire.start_tls import hello_bytes
from bookie_server.net.common.entrance.front_tls import Greeting
from bookie_server.net.common.entrance.newcomers import Newcomer, Newcomers, Wait

#: Late peers that are closed in one turn of the event loop. Thousands may have come together.
_CLOSED_AT_ONCE: Final = 16


class Hellos:
    """Belongs to the event loop.

    Parameters
    ----------
    newcomers
        Where they came from.
    timeout_s
        The time for the first message.
    came
        Called when it is there. The socket belongs to the callee.
    left
        Called when a peer has hung up, or is late. Then its socket is closed.
    """

    def __init__(
        self,
        newcomers: Newcomers,
        timeout_s: float,
        came: Callable[[Newcomer, Greeting], None],
        left: Callable[[Newcomer], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._newcomers = newcomers
        self._timeout_s = timeout_s
        self._came, self._left = came, left
        self._wait = Wait(self._spoke, self._hung_up, hello_bytes)
        self._greetings: dict[Newcomer, Greeting] = {}
        #: Until when each waits. All have the same time, so the first is the next one to be late.
        self._due_s: dict[Newcomer, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due_s)

    def wait_for(self, newcomer: Newcomer, greeting: Greeting) -> None:
        """Wait for the first message of a peer that was granted TLS."""
        self._newcomers.wait_for_more(newcomer, self._wait)
        self._greetings[newcomer] = greeting
        self._due_s[newcomer] = self._loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._look)

    def forget(self, newcomer: Newcomer) -> None:
        """It is closed for another one. Ignored if it does not wait here."""
        if self._due_s.pop(newcomer, None) is not None:
            del self._greetings[newcomer]

    def close(self) -> None:
        """Forget all."""
        self._greetings.clear()
        self._due_s.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _take(self, newcomer: Newcomer) -> Greeting:
        del self._due_s[newcomer]
        return self._greetings.pop(newcomer)

    def _spoke(self, newcomer: Newcomer) -> None:
        self._came(newcomer, self._take(newcomer))

    def _hung_up(self, newcomer: Newcomer) -> None:
        self._take(newcomer).failed(ConnectionResetError("the peer closed the connection during the handshake"))
        self._left(newcomer)

    def _look(self) -> None:
        """Close those that are late, some in each turn."""
        self._timer = None
        for newcomer in late(self._due_s, self._loop.time(), _CLOSED_AT_ONCE):
            self._take(newcomer).failed(TimeoutError())
            self._left(newcomer)
            newcomer.abort()
        next_s = next(iter(self._due_s.values()), None)
        if next_s is not None:
            self._timer = self._loop.call_at(next_s, self._look)


def late(due_s: dict[Newcomer, float], now_s: float, most: int) -> list[Newcomer]:
    """Return at most ``most`` of those whose time is over. ``due_s`` is in the order of the times."""
    return list(islice(takewhile(lambda newcomer: due_s[newcomer] <= now_s, due_s), most))
