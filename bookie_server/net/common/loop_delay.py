"""Measures how late the event loop is. Every request waits at least this long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_INTERVAL_S: Final = 0.1


class LoopDelay:
    """Calls ``observe`` ten times a second with the number of seconds by which the event loop was late."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start measuring."""
        self._due = self._loop.time() + _INTERVAL_S
        self._timer = self._loop.call_at(self._due, self._look)

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._observe(max(0.0, self._loop.time() - self._due))
        self.start()
