"""Bookies that failed lately and are chosen last. No I/O except a given clock. Thread-safe.

A failure (a connection refused or broken, requests not answered) puts a bookie into quarantine at once, for a short
time. The time doubles with further failures, so that a dead bookie is not tried again and again. A bookie that fails
``error_threshold`` times within ``interval_ms`` is in quarantine for the full time, as in Apache's client.

An answer frees the bookie. But if it fails again within ``interval_ms`` after that, answers no longer free it: only
time, or a new registration. This covers bookies that accept connections and then hang.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

#: Failures within this time count as one.
_SAME_FAILURE_S: Final = 0.1


@dataclass(slots=True)
class _Record:
    #: Times of the failures within the interval, oldest first. At most as many as the threshold.
    failures: deque[float]
    #: Length of the next quarantine.
    next_s: float
    until: float = 0.0
    last_failure: float = 0.0
    #: When an answer freed it.
    freed: float | None = None
    only_time_frees: bool = False
    #: Its registration at the last failure.
    registration: int = 0


class Quarantine:
    """One client's record of failing bookies. Times are in milliseconds. ``clock`` returns seconds."""

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
        """Record a failure of a bookie registered as ``registration`` (any number, 0 if not registered). A failure
        during quarantine counts, but does not extend it."""
        now = self._clock()
        with self._lock:
            self._forget_old(now)
            record = self._records.get(bookie_id)
            if record is None:
                record = self._records[bookie_id] = _Record(deque(maxlen=self._error_threshold), self._first_s)
            if record.freed is not None and now - record.freed <= self._interval_s:
                record.only_time_frees = True
            # Many handles may share one connection, and lose it at once.
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
        """Record a connection to the bookie, or an answer from it."""
        now = self._clock()
        with self._lock:
            record = self._records.get(bookie_id)
            if record is not None and not record.only_time_frees:
                record.until = 0.0
                record.freed = now

    def registered(self, bookie_id: str, registration: int) -> bool:
        """Record that the bookie is registered as ``registration``. Return whether this freed it.

        A registration that differs from the one at the last failure is from a new process, or from one that lost its
        session. Earlier failures then no longer count.
        """
        with self._lock:
            record = self._records.get(bookie_id)
            if record is None or record.registration == registration:
                return False
            del self._records[bookie_id]
            return True

    def members(self) -> frozenset[str]:
        """Return the bookies in quarantine now."""
        now = self._clock()
        with self._lock:
            return frozenset(bookie_id for bookie_id, record in self._records.items() if now < record.until)

    def _forget_old(self, now: float) -> None:
        # A bookie without failures for an interval after its quarantine starts afresh.
        for bookie_id, record in list(self._records.items()):
            if now > max(record.until, record.last_failure) + self._interval_s:
                del self._records[bookie_id]
