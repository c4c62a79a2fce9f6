"""An event loop for tests whose peers share it and give up soon: a machine that stalls is not a peer that is silent.

A client that waits 300 ms for an answer, and the server that owes it, run in one loop. If the machine does not run the
process for a second, the limit has passed when it goes on, though the server never had a turn. The time of this loop
advances by :data:`TURN_S` at most in a turn. So before a timer of 300 ms is due all peers have had 15 turns, however
long these took; on a machine that is not busy it is due after 300 ms.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

#: Most that the time of a loop advances in a turn, in seconds.
TURN_S: Final = 0.02
#: Longest wait of a turn, in seconds. It is shorter, so that all of an undisturbed wait counts.
_WAIT_S: Final = 0.01


class _Selector(selectors.DefaultSelector):
    """Waits briefly, and says when a turn ends."""

    def __init__(self, ended: Callable[[], None]) -> None:
        super().__init__()
        self._ended = ended

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._ended()
        return super().select(_WAIT_S if timeout is None else min(timeout, _WAIT_S))


class PatientLoop(asyncio.SelectorEventLoop):
    """A loop whose clock does not jump."""

    def __init__(self) -> None:
        self._seen_s = self._now_s = time.monotonic()
        self._latest_s = self._now_s + TURN_S
        super().__init__(_Selector(self._end_turn))

    def time(self) -> float:
        seen_s = time.monotonic()
        self._now_s = min(self._now_s + seen_s - self._seen_s, self._latest_s)
        self._seen_s = seen_s
        return self._now_s

    def _end_turn(self) -> None:
        self._latest_s = self.time() + TURN_S


def run(test: Coroutine[Any, Any, T]) -> T:
    """As :func:`asyncio.run`, in a :class:`PatientLoop`."""
    with asyncio.Runner(loop_factory=PatientLoop) as runner:
        return runner.run(test)
