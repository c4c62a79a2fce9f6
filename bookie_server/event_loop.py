"""The bookie's event loop, which gives way to the journals' threads while it is busy.

A turn of a busy loop ends with a poll that does not wait. The poll releases the GIL, wakes a thread that waits for it,
and takes the GIL again after some microseconds. The thread needs longer to wake up. It finds the GIL taken, and waits
anew. Only a thread that waits for a whole switch interval without being woken makes the loop hand the GIL over. So
beside a loop of many short turns a thread starves. With turns of 0.1 ms, a thread that wanted the GIL for microseconds,
after a write, waited for 200 to 500 ms.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from typing import Final

#: How long the loop keeps the GIL for itself, approximately, while a journal's thread may need it.
_MOST_KEPT_S: Final = 0.001
#: A thread that is not done after so long may wait for the GIL, to take a group, or after a write or a sync. To give
#: way earlier would make groups smaller, and more.
_EXPECTED_S: Final = 0.002
#: A pause in which a thread that waits for the GIL wakes up and takes it. The kernel makes 0.1 to 0.15 ms of it.
_WAY_S: Final = 0.00005


class GivingWaySelector(selectors.DefaultSelector):
    """A selector that releases the GIL for long enough.

    Parameters
    ----------
    busy_since_s
        Returns since when a thread has had something to do for the loop, by the monotonic clock. It may be a time to
        come. None: there is nothing.
    """

    def __init__(self, busy_since_s: Callable[[], float | None]) -> None:
        super().__init__()
        self._busy_since_s = busy_since_s
        self._kept_since_s = time.monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See :meth:`selectors.BaseSelector.select`."""
        before_s = time.monotonic()
        if timeout is not None and timeout <= 0 and before_s - self._kept_since_s > _MOST_KEPT_S:
            since_s = self._busy_since_s()
            if since_s is not None and before_s - since_s > _EXPECTED_S:
                time.sleep(_WAY_S)
        events = super().select(timeout)
        after_s = time.monotonic()
        if after_s - before_s > _WAY_S:
            self._kept_since_s = after_s
        return events


def new_event_loop(busy_since_s: Callable[[], float | None]) -> asyncio.AbstractEventLoop:
    """Return a new event loop with such a selector."""
    return asyncio.SelectorEventLoop(GivingWaySelector(busy_since_s))
