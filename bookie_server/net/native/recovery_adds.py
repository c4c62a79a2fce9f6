"""Adds of recoveries wait for each other before they are stored.

Whoever recovers or copies a ledger sends adds one by one, and more are under way: Apache's client, for example, reads
the next entry meanwhile. Stored one by one, each would cost a group of the journal with its sync, and the event loop
several times the processor time. So they wait until none has come for a millisecond, for four at most. While they come
without a pause, only the second limit is looked at, because each look wakes the event loop.

No other request waits for them. Whoever has no answer yet to an add cannot know whether the bookie has it.
"""

from __future__ import annotations

import asyncio
from typing import Final, Generic, Protocol, TypeVar

_Adds = TypeVar("_Adds")

#: How long they wait for the next one, and for all others.
NEXT_WAIT_S: Final = 0.001
MOST_WAIT_S: Final = 0.004
#: This many bytes of all connections do not wait for more.
_MOST_BYTES: Final = 512 * 1024


class Holder(Protocol):
    """A handler of requests that holds adds."""

    def store_held(self) -> None:
        """Let the bookie store what is held."""


class RecoveryAdds:
    """Those of all connections: they are stored together. Belongs to the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._holders: dict[Holder, None] = {}
        #: Bytes of the adds that wait.
        self.size_bytes = 0
        self._since_s = self._last_s = 0.0
        #: Whether they came without a pause lately.
        self._is_stream = False
        self._look: asyncio.TimerHandle | None = None

    def wait(self, holder: Holder, size_bytes: int) -> None:
        """Call ``store_held`` of ``holder`` soon. It has received adds of ``size_bytes``, and holds them."""
        now_s = self._last_s = self._loop.time()
        if not self._holders:
            self._since_s = now_s
        self._holders[holder] = None
        self.size_bytes += size_bytes
        if self.size_bytes >= _MOST_BYTES:
            self.store()
        elif self._look is None:
            waits_s = now_s + MOST_WAIT_S if self._is_stream else _due_s(now_s, now_s)
            self._look = self._loop.call_at(waits_s, self._look_at)

    def store(self) -> None:
        """Let all holders store now."""
        holders, self._holders = self._holders, {}
        self.size_bytes = 0
        for holder in holders:
            holder.store_held()

    def _look_at(self) -> None:
        self._look = None
        if not self._holders:
            return
        now_s = self._loop.time()
        waits_s = _due_s(self._since_s, self._last_s)
        if waits_s > now_s:
            self._look = self._loop.call_at(waits_s, self._look_at)
            return
        self._is_stream = now_s - self._last_s < NEXT_WAIT_S
        self.store()


class HeldAdds(Generic[_Adds]):
    """The adds that one handler holds. The handler owns this, so it is not kept here: both are freed at once."""

    __slots__ = ("_recovery_adds", "_since_s", "adds")

    def __init__(self, recovery_adds: RecoveryAdds) -> None:
        #: In the order in which they came.
        self.adds: list[_Adds] = []
        self._recovery_adds = recovery_adds
        self._since_s = 0.0

    def hold(self, holder: Holder, adds: _Adds, size_bytes: int) -> None:
        """Let ``adds`` of ``size_bytes`` wait for more. Then ``store_held`` of ``holder`` takes them."""
        if not self.adds:
            self._since_s = asyncio.get_running_loop().time()
        self.adds.append(adds)
        self._recovery_adds.wait(holder, size_bytes)

    def take(self) -> tuple[list[_Adds], float]:
        """Return what is held, to store it, and when the first of it came."""
        adds, self.adds = self.adds, []
        return adds, self._since_s


def _due_s(since_s: float, last_s: float) -> float:
    return min(since_s + MOST_WAIT_S, last_s + NEXT_WAIT_S)
