"""Decides which connection may do the next piece of work that takes the event loop's time or memory.

Work waits in line. One turn of the event loop does a bounded amount of it, so that other requests are handled in
between. The connection that was served least lately goes first, so a small request does not wait behind large ones.
Time spent waiting counts as being served less, so no connection waits forever.

Work may also need room for what it makes. Who waits for room waits in the same line: when there is room again, a turn
begins no more work than any other turn does, however many have waited.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from bookie_server.net.common.next_turn import NextTurn

#: Work of one turn of the event loop, in bytes. A larger piece is done alone.
_TURN_COST: Final = 512 * 1024
#: The cost of a piece, in addition to its bytes.
PIECE_COST: Final = 16 * 1024
#: The assumed cost of a connection's first piece: a whole turn.
_UNKNOWN_COST: Final = _TURN_COST
#: A round of reads counts half after this time.
HALF_LIFE_S: Final = 2.0
#: With more who gave up, the lines are cleared of them.
_MOST_GONE: Final = 1024
#: A second of waiting counts as this much work not done.
_WAITING_COST_PER_S: Final = 16 * 1024 * 1024


class Share:
    """How much work was done for one connection lately. It counts half after ``half_life_s``."""

    __slots__ = ("_at", "_half_life_s", "_served", "last_cost")

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._served = self._at = 0.0
        #: Cost of the last piece. None before the first.
        self.last_cost: int | None = None

    def served(self, now: float) -> float:
        """The cost of the pieces served, each weighed by its age at ``now`` (seconds)."""
        return self._served * math.exp2((self._at - now) / self._half_life_s)

    @property
    def expected_cost(self) -> int:
        """The assumed cost of the next piece."""
        return _UNKNOWN_COST if self.last_cost is None else self.last_cost

    def serve(self, cost: int, now: float) -> None:
        """Note a piece of work. ``cost`` is its bytes, and a constant for each piece."""
        self._served, self._at = self.served(now) + cost, now
        self.last_cost = cost


class Slot:
    """One piece of work in progress. Set ``bytes`` to its size. Leave it None if nothing was done."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes: int | None = None


class Room:
    """Whether there is room for what some work makes. Belongs to the event loop."""

    def __init__(self) -> None:
        self._is_free = True
        self._freed: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        """Whether there is room."""
        return self._is_free

    def clear(self) -> None:
        """There is no room."""
        self._is_free = False

    def set(self) -> None:
        """There is room."""
        if not self._is_free:
            self._is_free = True
            for freed in self._freed:
                freed()

    def on_freed(self, freed: Callable[[], None]) -> None:
        """Call ``freed`` whenever there is room again."""
        self._freed.append(freed)


class FairSlots:
    """Up to ``count`` pieces are in progress at a time. Belongs to the event loop."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._free = count
        self._spent = 0
        self._next = NextTurn(self._loop, self._turn)
        #: Who waits, by the room that they need. The lists are heaps.
        self._lines: dict[Room | None, list[tuple[float, int, Share, asyncio.Future[None]]]] = {}
        self._number = 0
        #: Who gave up, and is still in a line.
        self._gone = 0

    @asynccontextmanager
    async def slot(self, share: Share, room: Room | None = None) -> AsyncIterator[Slot]:
        """Hold this for one piece of work. It begins when there is ``room``; look again, for others begin with it."""
        expected = share.expected_cost
        await self._acquire(share, room)
        slot = Slot()
        try:
            yield slot
        finally:
            self._free += 1
            if slot.bytes is not None:
                cost = slot.bytes + PIECE_COST
                share.serve(cost, self._loop.time())
                self._spent += max(0, cost - expected)
            self._next.ask()

    async def _acquire(self, share: Share, room: Room | None) -> None:
        if self._free and self._spent < _TURN_COST and self._next_line() is None and (room is None or room.is_set()):
            self._begin(share)
            self._next.ask()
            return
        now = self._loop.time()
        granted: asyncio.Future[None] = self._loop.create_future()
        self._number += 1
        if room not in self._lines:
            self._lines[room] = []
            if room is not None:
                room.on_freed(self._next.ask)
        order = share.served(now) + now * _WAITING_COST_PER_S
        heapq.heappush(self._lines[room], (order, self._number, share, granted))
        self._next.ask()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._free += 1
                self._next.ask()
            else:
                self._gone += 1
                if self._gone > _MOST_GONE:
                    self._drop_gone()
            raise

    def _turn(self) -> None:
        """Start the next pieces: as many as will probably fit into a turn, but at least one."""
        self._spent = 0
        while self._free and self._spent < _TURN_COST:
            line = self._next_line()
            if line is None:
                return
            _, _, share, granted = heapq.heappop(line)
            if granted.done():
                self._gone -= 1
                continue
            self._begin(share)
            granted.set_result(None)

    def _drop_gone(self) -> None:
        """Whoever waits for room may wait for long, and others come and give up meanwhile."""
        self._gone = 0
        for line in self._lines.values():
            line[:] = [one for one in line if not one[3].done()]
            heapq.heapify(line)

    def _next_line(self) -> list[tuple[float, int, Share, asyncio.Future[None]]] | None:
        """The line whose first goes next. None if nobody waits who has room."""
        with_room = (line for room, line in self._lines.items() if line and (room is None or room.is_set()))
        return min(with_room, default=None)

    def _begin(self, share: Share) -> None:
        self._free -= 1
        self._spent += share.expected_cost
