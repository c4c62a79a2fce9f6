"""The connections of a server, and which one is closed for a newcomer when their number is at its limit.

Connections that have not sent anything go first, then those without a whole frame, then the one idle longest. A
connection that waits for work of the bookie is not idle. A long poll is not work.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final, Generic, Protocol, TypeVar

from bookie_server.net.common.newcomers import Newcomer

#: Connections looked at for a newcomer; those that are busy count as active then, so the next look goes on behind them.
_LOOKED_AT: Final = 64


class Peer(Protocol):
    """A connection, as seen from here."""

    @property
    def busy(self) -> bool:
        """Whether the bookie is at work for it."""

    def abort(self) -> None: ...


P = TypeVar("P", bound=Peer)


class Connections(Generic[P]):
    """Up to ``limit`` of them; who is idle for ``idle_s`` may be given up. Times are the event loop's, in seconds."""

    def __init__(self, limit: int, idle_s: float) -> None:
        self.limit = limit
        self._idle_s = idle_s
        #: Who has not sent anything, in the order in which they came.
        self._newcomers: dict[Newcomer, None] = {}
        #: Who has sent something and no whole frame, in the order in which they did.
        self._silent: dict[P, None] = {}
        #: When each of the others was last active, in this order.
        self._active: dict[P, float] = {}

    def __len__(self) -> int:
        return len(self._newcomers) + len(self._silent) + len(self._active)

    def __contains__(self, connection: P) -> bool:
        return connection in self._silent or connection in self._active

    def __iter__(self) -> Iterator[P]:
        """All but newcomers; safe against changes meanwhile."""
        return iter(list(chain(self._silent, self._active)))

    @property
    def full(self) -> bool:
        return len(self) >= self.limit

    @property
    def newcomers(self) -> list[Newcomer]:
        return list(self._newcomers)

    def add_newcomer(self, newcomer: Newcomer) -> None:
        self._newcomers[newcomer] = None

    def add(self, connection: P) -> None:
        self._silent[connection] = None

    def active(self, connection: P, now: float) -> None:
        """It has sent a whole frame, or more of a large one. Nothing changes for one that was removed."""
        if self._active.pop(connection, None) is None:
            if connection not in self._silent:
                return
            del self._silent[connection]
        self._active[connection] = now

    def remove(self, connection: P | Newcomer) -> None:
        if isinstance(connection, Newcomer):
            self._newcomers.pop(connection, None)
            return
        self._silent.pop(connection, None)
        self._active.pop(connection, None)

    def idlest(self, now: float) -> P | Newcomer | None:
        """The connection to close for a newcomer. None if no connection is idle."""
        if self._newcomers:
            return next(iter(self._newcomers))
        if self._silent:
            return next(iter(self._silent))
        for _ in range(min(_LOOKED_AT, len(self._active))):
            connection, since = next(iter(self._active.items()))
            if now - since < self._idle_s:
                return None
            if not connection.busy:
                return connection
            self.active(connection, now)
        return None
