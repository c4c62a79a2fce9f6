"""The connections of a server, and which one is closed for a newcomer when their number has reached its limit.

Connections that have not sent anything go first, then those whose first bytes nobody has read, then those without a
complete frame, then the one idle longest. A connection that waits for the bookie is not idle, unless it waits in a long
poll.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, takewhile
from typing import Final, Generic, Protocol, TypeVar

from bookie_server.net.common.entrance.newcomers import Newcomer

#: Connections examined for one newcomer. Busy ones then count as active, so the next search continues after them.
_LOOKED_AT: Final = 64


class Peer(Protocol):
    """A connection, as seen from here."""

    @property
    def busy(self) -> bool:
        """Whether it waits for the bookie."""

    def abort(self) -> None:
        """Close at once. What waits to be sent is lost."""


P = TypeVar("P", bound=Peer)


class Connections(Generic[P]):
    """Up to ``limit`` connections. Those idle for ``idle_s`` may be closed. Times are the event loop's, in seconds."""

    def __init__(self, limit: int, idle_s: float) -> None:
        self.limit = limit
        self._idle_s = idle_s
        #: Connections that have not sent anything, or whose first bytes nobody has read yet, oldest first.
        self._newcomers: dict[Newcomer, None] = {}
        #: Those of them that are known to be ready. Each is found once: a burst may have thousands.
        self._ready: dict[Newcomer, None] = {}
        #: Connections that have sent something but no complete frame, in the order of their first bytes.
        self._silent: dict[P, None] = {}
        #: When each of the others was last active, in that order.
        self._active: dict[P, float] = {}

    def __len__(self) -> int:
        return len(self._newcomers) + len(self._ready) + len(self._silent) + len(self._active)

    def __contains__(self, connection: P) -> bool:
        return connection in self._silent or connection in self._active

    def __iter__(self) -> Iterator[P]:
        """All but newcomers. Connections may come and go during the iteration."""
        return iter(list(chain(self._silent, self._active)))

    @property
    def full(self) -> bool:
        """Whether another connection may come only in place of one of these."""
        return len(self) >= self.limit

    @property
    def newcomers(self) -> list[Newcomer]:
        """The connections that nobody has read from yet."""
        return [*self._newcomers, *self._ready]

    def add_newcomer(self, newcomer: Newcomer) -> None:
        """Add a connection that was accepted and from which nobody has read."""
        self._newcomers[newcomer] = None

    def add(self, connection: P) -> None:
        """Add a connection that has sent something, but no complete frame."""
        self._silent[connection] = None

    def active(self, connection: P, now: float) -> None:
        """The connection has sent a complete frame, or more of a large one. Ignored if it was removed."""
        if self._active.pop(connection, None) is None:
            if connection not in self._silent:
                return
            del self._silent[connection]
        self._active[connection] = now

    def remove(self, connection: P | Newcomer) -> None:
        """Forget a connection. Ignored if it is not among these."""
        if isinstance(connection, Newcomer):
            self._newcomers.pop(connection, None)
            self._ready.pop(connection, None)
            return
        self._silent.pop(connection, None)
        self._active.pop(connection, None)

    def idlest(self, now: float) -> P | Newcomer | None:
        """The connection to close for a newcomer. None if no connection is idle."""
        for newcomer in list(takewhile(lambda each: each.ready, self._newcomers)):
            del self._newcomers[newcomer]
            self._ready[newcomer] = None
        unused: chain[P | Newcomer] = chain(self._newcomers, self._ready, self._silent)
        first = next(unused, None)
        if first is not None:
            return first
        for _ in range(min(_LOOKED_AT, len(self._active))):
            connection, since = next(iter(self._active.items()))
            if now - since < self._idle_s:
                return None
            if not connection.busy:
                return connection
            self.active(connection, now)
        return None
