"""Peers that have begun, and must send more before it is known what they want: bare sockets still.

* A peer that was granted TLS must send the first record of its handshake, whole. A handshake needs a transport, a task,
  buffers of OpenSSL and a step in a thread. Peers that ask for TLS and stall would get all of these for nothing, a
  thousand of them at the same moment, while requests of others wait.
* A peer that began a login may be about to ask for TLS (front_tls.py).

Each costs an entry in a table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice, takewhile

from bookie_server.net.common.entrance.front_tls import Greeting
from bookie_server.net.common.entrance.newcomers import Newcomer, Newcomers, Wait

_Done = Callable[[Newcomer, Greeting], None]


class Awaited:
    """Belongs to the event loop.

    Parameters
    ----------
    newcomers
        Where they came from.
    timeout_s
        The time for what is awaited.
    wanted_bytes
        What is awaited; see :class:`Wait`.
    looked_at_bytes
        How many bytes of it are looked at.
    came
        Called when it is there. The socket belongs to the callee.
    left
        Called when a peer has hung up. Then its socket is closed.
    late
        Called when a peer's time is over. The socket belongs to the callee.
    late_at_once
        How many are late in one turn of the event loop. Thousands may have come together.
    """

    def __init__(
        self,
        newcomers: Newcomers,
        timeout_s: float,
        wanted_bytes: Callable[[bytes], int],
        looked_at_bytes: int,
        *,
        came: _Done,
        left: _Done,
        late: _Done,
        late_at_once: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._newcomers = newcomers
        self._timeout_s = timeout_s
        self._late, self._late_at_once = late, late_at_once
        self._wait = Wait(
            lambda newcomer: came(newcomer, self._take(newcomer)),
            lambda newcomer: left(newcomer, self._take(newcomer)),
            wanted_bytes,
            looked_at_bytes,
        )
        self._greetings: dict[Newcomer, Greeting] = {}
        #: Until when each waits. All have the same time, so the first is the next one to be late.
        self._due_s: dict[Newcomer, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due_s)

    def wait_for(self, newcomer: Newcomer, greeting: Greeting) -> None:
        """Wait for more of a newcomer that spoke. It began with ``greeting``."""
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

    def _look(self) -> None:
        """Find those that are late, some in each turn."""
        self._timer = None
        for newcomer in late(self._due_s, self._loop.time(), self._late_at_once):
            newcomer.leave_early()
            self._late(newcomer, self._take(newcomer))
        next_s = next(iter(self._due_s.values()), None)
        if next_s is not None:
            self._timer = self._loop.call_at(next_s, self._look)


def late(due_s: dict[Newcomer, float], now_s: float, most: int) -> list[Newcomer]:
    """Return at most ``most`` of those whose time is over. ``due_s`` is in the order of the times."""
    return list(islice(takewhile(lambda newcomer: due_s[newcomer] <= now_s, due_s), most))
