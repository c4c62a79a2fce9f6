"""Rate limits and the stop signal of garbage collection. The signal ends all waits at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

_LONGEST_WAIT_S = 60.0


class GarbageCollectorStoppedError(Exception):
    """Garbage collection must stop. The next start must be able to finish or remove work under way."""


class StopSignal:
    """Set once, in the event loop. Visible in every thread."""

    def __init__(self) -> None:
        self._in_threads = threading.Event()
        self._in_loop = asyncio.Event()

    def set(self) -> None:
        """Stop the collector: all waits end. In the event loop."""
        self._in_threads.set()
        self._in_loop.set()

    @property
    def is_set(self) -> bool:
        """Whether the collector is to stop."""
        return self._in_threads.is_set()

    def check(self) -> None:
        """Raise GarbageCollectorStoppedError if the signal is set."""
        if self._in_threads.is_set():
            raise GarbageCollectorStoppedError

    async def sleep(self, duration_s: float) -> None:
        """Sleep in the event loop, then :meth:`check`, even if there is nothing to wait for."""
        if duration_s > 0 and not self.is_set:
            try:
                async with asyncio.timeout(duration_s):
                    await self._in_loop.wait()
            except TimeoutError:
                pass
        self.check()

    def sleep_blocking(self, duration_s: float) -> None:
        """Sleep in another thread, then :meth:`check`, even if there is nothing to wait for."""
        if duration_s > 0:
            self._in_threads.wait(duration_s)
        self.check()


class Throttle:
    """Allows ``rate_per_s`` units per second on average; 0 or less means no limit. Unused units are not saved."""

    def __init__(self, rate_per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate_per_s = rate_per_s
        self._clock = clock
        self._free_at_s = clock()

    def take(self, units: int) -> float:
        """Return how many seconds to wait before ``units`` may be used, at most a minute."""
        if self._rate_per_s <= 0:
            return 0.0
        now = self._clock()
        start = max(now, self._free_at_s)
        self._free_at_s = min(start + units / self._rate_per_s, now + _LONGEST_WAIT_S)
        return start - now
