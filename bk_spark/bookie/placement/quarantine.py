"""Bookies that failed lately, to be chosen last. Pure but for the clock, which is given; thread-safe.

A failure (a connection refused or broken, requests not answered) puts a bookie into quarantine at once, for a short
time that doubles while failures go on, so that a dead bookie is not tried again and again. A bookie that fails
``error_threshold`` times within ``interval_ms`` is there for the full time, as in Apache's client.

An answer sets it free. But a bookie that fails again within ``interval_ms`` of being freed by an answer, such as one
that takes connections and then hangs, is not freed by answers any more: only by time, or by registering anew.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

#: Failures so close to each other are one.
_SAME_FAILURE_S: Final = 0.1


@dataclass(slots=True)
class _Record:
    #: Times of the failures within the interval, oldest first; at most the threshold's number.
    failures: deque[float]
    #: Length of the next quarantine.
    next_s: float
    until: float = 0.0
    last_failure: float = 0.0
    #: When an answer set it free.
    freed: float | None = None
    only_time_frees: bool = False
    #: The registration under which it failed last.
    registration: int = 0


class Quarantine:
    """What one client knows of failing bookies. Times in milliseconds; ``clock`` gives seconds."""

    def __init__(
        self,
        *,
        first_ms: int = 10_000,
        longest_ms: int = 1_800_000,
        error_threshold: int = 100,
        interval_ms: int = 60_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._longest_s = longest_ms / 1000
        self._first_s = min(first_ms / 1000, self._longest_s)
        self._error_threshold = error_threshold
        self._interval_s = interval_ms / 1000
        self._clock = clock
        self._records: dict[str, _Record] = {}
        self._lock = threading.Lock()

    def failed(self, bookie_id: str, registration: int = 0) -> None:
        """The bookie did not do its part, being registered as ``registration`` (any number; 0 for not at all).
        A failure while it is in quarantine counts, but does not prolong it."""
        now = self._clock()
        with self._lock:
            self._forget_old(now)
            record = self._records.get(bookie_id)
            if record is None:
                record = self._records[bookie_id] = _Record(deque(maxlen=self._error_threshold), self._first_s)
            if record.freed is not None and now - record.freed <= self._interval_s:
                record.only_time_frees = True
            # Many handles that share a connection lose it at once.
            if now - record.last_failure >= _SAME_FAILURE_S or not record.failures:
                record.failures.append(now)
            record.last_failure = now
            record.registration = registration
            often = len(record.failures) == self._error_threshold and now - record.failures[0] <= self._interval_s
            if often:
                record.until = now + self._longest_s
                record.only_time_frees = True
            elif now >= record.until:
                record.until = now + record.next_s
                record.next_s = min(2 * record.next_s, self._longest_s)

    def answered(self, bookie_id: str) -> None:
        """The bookie was connected to, or answered."""
        now = self._clock()
        with self._lock:
            record = self._records.get(bookie_id)
            if record is not None and not record.only_time_frees:
                record.until = 0.0
                record.freed = now

    def registered(self, bookie_id: str, registration: int) -> bool:
        """The bookie is registered as ``registration``. Another one than when it failed is that of a new process, or
        of one back after a lost session: what was known does not count. True where this freed it."""
        with self._lock:
            record = self._records.get(bookie_id)
            if record is None or record.registration == registration:
                return False
            del self._records[bookie_id]
            return True

    def members(self) -> frozenset[str]:
        """The bookies in quarantine now."""
        now = self._clock()
        with self._lock:
            return frozenset(bookie_id for bookie_id, record in self._records.items() if now < record.until)

    def _forget_old(self, now: float) -> None:
        # A bookie without failures for an interval after its quarantine starts afresh.
        for bookie_id, record in list(self._records.items()):
            if now > max(record.until, record.last_failure) + self._interval_s:
                del self._records[bookie_id]
