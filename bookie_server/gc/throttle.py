"""Rate limits and the stop signal of garbage collection. Waits end at once when it is to stop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

_LONGEST_WAIT_S = 60.0


class GarbageCollectorStoppedError(Exception):
    """Garbage collection is to stop. Whatever is under way must be left in a state that the next start can finish."""


class StopSignal:
    """Set once, in the event loop; seen in every thread."""

    def __init__(self) -> None:
        self._in_threads = threading.Event()
        self._in_loop = asyncio.Event()

    def set(self) -> None:
        self._in_threads.set()
        self._in_loop.set()

    @property
    def is_set(self) -> bool:
        return self._in_threads.is_set()

    def check(self) -> None:
        """Raises GarbageCollectorStoppedError where it is set."""
        if self._in_threads.is_set():
            raise GarbageCollectorStoppedError

    async def sleep(self, duration_s: float) -> None:
        """In the event loop. Raises GarbageCollectorStoppedError, also without a wait."""
        if duration_s > 0 and not self.is_set:
            try:
                async with asyncio.timeout(duration_s):
                    await self._in_loop.wait()
            except TimeoutError:
                pass
        self.check()

    def sleep_blocking(self, duration_s: float) -> None:
        """In another thread. Raises GarbageCollectorStoppedError, also without a wait."""
        if duration_s > 0:
            self._in_threads.wait(duration_s)
        self.check()


class Throttle:
    """At most ``rate_per_s`` units per second on average; 0 or less: no limit. Unused units are not saved up."""

    def __init__(self, rate_per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate_per_s = rate_per_s
        self._clock = clock
        self._free_at_s = clock()

    def take(self, units: int) -> float:
        """Seconds to wait before ``units`` may be used; at most a minute at once."""
        if self._rate_per_s <= 0:
            return 0.0
        now = self._clock()
        start = max(now, self._free_at_s)
        self._free_at_s = min(start + units / self._rate_per_s, now + _LONGEST_WAIT_S)
        return start - now
