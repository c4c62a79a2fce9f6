"""Bounds the time that requests of all connections take in one turn of the event loop.

Received requests are handled at once while there is time in this turn. Otherwise they wait in line. If there is a line,
requests of a connection that was served more than a little lately wait, too, unless the first one in line was served
more. Each turn takes some out of the line, and the connection that was served least lately goes first. So one small
request overtakes any number of connections with many requests. A long receive is handled in slices. Time is the
thread's processor time: no connection is charged for other processes.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from typing import Final, Protocol

from bookie_server.net.common.fair_slots import Share
from bookie_server.net.common.next_turn import NextTurn

#: Time in one turn for requests in line, and the same again for newly received ones. What the latter leave goes to
#: those in line: while there is a line, most received requests join it. A slice is always completed.
_TURN_US: Final = 300
#: Time for newly received requests of connections that were served less than those in line or, without a line, little.
_MOST_US: Final = 1_500
#: A connection with less than this was served little lately: up to 3 % of the processor.
_LITTLE_US: Final = 2_000
#: The least cost of a slice in line. Some slices only let a connection be read again.
_SLICE_US: Final = 100
#: What may be received at once when there is no time left in this turn.
_LITTLE_BYTES: Final = 4096
#: Below this no end of the turn is scheduled, because most turns have few receives. Each end costs a turn of its own.
_COUNTED_US: Final = 250
#: A second of waiting counts as this much time not served.
_WAITING_US_PER_S: Final = 30_000
#: Time served counts half after this time. With a long memory, connections that begin, which were not served at all,
#: would go before all that have sent small requests for seconds.
HALF_LIFE_S: Final = 0.05


class Asker(Protocol):
    """A connection, as seen from here."""

    #: The time it was served lately, in µs.
    time_share: Share

    def handle_backlog(self) -> None:
        """Handle one slice of the received requests, or receive again."""


class Turns:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun = 0.0
        self._received_us = 0
        self._line: list[tuple[float, int, Asker]] = []
        self._in_line: set[Asker] = set()
        self._number = 0
        self._next = NextTurn(self._loop, self._turn)

    @property
    def waiting(self) -> int:
        """Number of connections in line."""
        return len(self._line)

    def may_go(self, asker: Asker) -> bool:
        """Whether the requests that ``asker`` has just received may be handled at once. Otherwise call :meth:`wait`."""
        is_time = self._received_us < _TURN_US
        if is_time and not self._line:
            return True
        if self._received_us >= _MOST_US:
            return False
        little = asker.time_share.served(self._loop.time()) < _LITTLE_US
        if not self._line:
            return little
        return (little and is_time) or self._order(asker) < self._line[0][0]

    def receiving(self, space: memoryview) -> memoryview:
        """The event loop is about to receive for a connection. Return the part of ``space`` to receive into.

        The event loop receives for all connections that have sent something, whatever time that takes.
        """
        self._begun = time.thread_time()
        return space if self._received_us < _TURN_US else space[:_LITTLE_BYTES]

    def received(self, asker: Asker) -> None:
        """The event loop has received for ``asker`` and handled the requests."""
        self._received_us += self._served(asker, self._begun)
        if self._received_us >= _COUNTED_US:
            self._next.ask()

    def wait(self, asker: Asker) -> None:
        """Call ``handle_backlog`` of ``asker`` once, when its turn comes."""
        if asker not in self._in_line:
            self._in_line.add(asker)
            self._number += 1
            heapq.heappush(self._line, (self._order(asker), self._number, asker))
        self._next.ask()

    def _order(self, asker: Asker) -> float:
        now = self._loop.time()
        return asker.time_share.served(now) + now * _WAITING_US_PER_S

    def _served(self, asker: Asker, begun: float) -> int:
        took_us = int((time.thread_time() - begun) * 1e6)
        asker.time_share.serve(took_us, self._loop.time())
        return took_us

    def _turn(self) -> None:
        most_us = _TURN_US + max(0, _TURN_US - self._received_us)
        self._received_us = spent_us = 0
        while self._line and spent_us < most_us:
            _, _, asker = heapq.heappop(self._line)
            self._in_line.discard(asker)
            begun, last_us = time.thread_time(), asker.time_share.last_cost or 0
            asker.handle_backlog()
            # The next slice of a large frame is received in a later turn, so it counts as much as the last one took.
            spent_us += max(_SLICE_US, self._served(asker, begun), last_us)
        if self._line:
            self._next.ask()
