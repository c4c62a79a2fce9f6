"""The cluster's time, as far as a process knows it. No I/O.

ZooKeeper's leader writes its time into each change (a znode's ``mtime``). So one change of our own shows the cluster's
time at some moment between sending the change and its answer. From then on the monotonic clock counts
(``time.monotonic``). This machine's time of day may be wrong or jump. Nothing in the cluster depends on it.

The known time is an interval. Its lower end stays right even if the process or the machine is suspended, because time
only moves forward. :meth:`ClusterClock.now_ms` returns the lower end. So a wait for something to become old takes
slightly longer, and no time is written into the cluster before its clock shows it.

This machine's time of day is only compared with it (:meth:`ClusterClock.difference`). If they disagree, one of them is
wrong, perhaps ZooKeeper's, and nothing is deleted (:meth:`ClusterClock.check`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.errors import ClockDifferenceError, MetadataUnavailableError

#: Above this difference the clocks disagree. Machines with NTP differ by milliseconds.
MAX_DIFFERENCE_MS: Final = 60_000
#: A measurement is valid for this long.
MAX_AGE_S: Final = 300.0
#: The maximum drift between two clocks: twice the rate at which clocks are slewed during corrections.
_DRIFT: Final = 1e-3


def unix_time_ms() -> int:
    """Return this machine's time of day."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class ClockDifference:
    """Bounds of how far this machine's time of day is ahead of the cluster's (negative: behind)."""

    at_least_ms: int
    at_most_ms: int

    @property
    def is_small(self) -> bool:
        """Whether it certainly is at most MAX_DIFFERENCE_MS."""
        return self.at_least_ms >= -MAX_DIFFERENCE_MS and self.at_most_ms <= MAX_DIFFERENCE_MS

    def __str__(self) -> str:
        """Return a text such as ``8 days 3 minutes ahead of ZooKeeper's``."""
        difference_ms = (self.at_least_ms + self.at_most_ms) // 2
        return f"{_told(abs(difference_ms))} {'behind' if difference_ms < 0 else 'ahead of'} ZooKeeper's"


@dataclass(frozen=True, slots=True)
class _Known:
    """A measurement in a session: the bounds of the cluster's time minus this process's count, at ``at_s``."""

    at_s: float
    low_ms: float
    high_ms: float
    session_id: int

    def at(self, now_s: float) -> _Known:
        """Return the measurement at a later time, widened by the drift."""
        drift_ms = (now_s - self.at_s) * 1000 * _DRIFT
        return _Known(now_s, self.low_ms - drift_ms, self.high_ms + drift_ms, self.session_id)


class ClusterClock:
    """The cluster's clock. :meth:`note` feeds it with the times of changes of znodes. Thread-safe.

    ``monotonic_s`` counts seconds of this process, ``wall_ms`` is this machine's time of day.
    """

    def __init__(
        self, monotonic_s: Callable[[], float] = time.monotonic, wall_ms: Callable[[], int] = unix_time_ms
    ) -> None:
        self.monotonic_s = monotonic_s
        self._wall_ms = wall_ms
        self._known: _Known | None = None

    def note(self, sent_s: float, mtime_ms: int, session_id: int) -> None:
        """Record that a change sent at ``sent_s`` got the time ``mtime_ms`` and was answered just now."""
        now_s = self.monotonic_s()
        low_ms, high_ms = mtime_ms - now_s * 1000, mtime_ms + 1 - sent_s * 1000
        known = self._known
        if known is not None:
            before = known.at(now_s)
            # Without overlap, another server leads now, or this machine was suspended. Drop the old measurement.
            if before.low_ms <= high_ms and low_ms <= before.high_ms:
                low_ms, high_ms = max(low_ms, before.low_ms), min(high_ms, before.high_ms)
        self._known = _Known(now_s, low_ms, high_ms, session_id)

    def is_fresh(self, session_id: int) -> bool:
        """Return whether the time was measured recently, in this session. A suspended machine may not count that time,
        but its session ends unless the suspension was short."""
        known = self._known
        return known is not None and known.session_id == session_id and self.monotonic_s() - known.at_s < MAX_AGE_S

    def now_ms(self) -> int:
        """Return the cluster's time (Unix time, in milliseconds) or slightly less, never more."""
        now_s = self.monotonic_s()
        return int(now_s * 1000 + self._measured().at(now_s).low_ms)

    def difference(self) -> ClockDifference:
        """Return how far this machine's time of day is from the cluster's."""
        wall_ms, now_s = self._wall_ms(), self.monotonic_s()
        known = self._measured().at(now_s)
        return ClockDifference(
            int(wall_ms - now_s * 1000 - known.high_ms) - 1, int(wall_ms - now_s * 1000 - known.low_ms) + 1
        )

    def check(self) -> None:
        """Raise ClockDifferenceError if this machine's clock and the cluster's disagree, or may disagree."""
        difference = self.difference()
        if not difference.is_small:
            raise ClockDifferenceError(
                f"this machine's clock is {difference}. Old data is deleted only if both agree within "
                f"{_told(MAX_DIFFERENCE_MS)}, so nothing was deleted. Correct the wrong clock (NTP), here or on "
                "ZooKeeper's servers, or run maintenance on another machine"
            )

    def _measured(self) -> _Known:
        if self._known is None:
            raise MetadataUnavailableError("the cluster's time was not measured yet")
        return self._known


def _told(ms: int) -> str:
    """Format a duration in its two largest units."""
    if ms < 1_000:
        return f"{ms} ms"
    ms = (ms + 500) // 1_000 * 1_000
    parts = []
    for unit, unit_ms in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000)):
        count, ms = divmod(ms, unit_ms)
        if count:
            parts.append(f"{count} {unit}{'s' if count > 1 else ''}")
    return " ".join(parts[:2])
