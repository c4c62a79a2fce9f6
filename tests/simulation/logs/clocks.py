"""Clocks of the processes of the model world: each has its own, and only ZooKeeper's counts.

A process's monotonic clock runs slightly fast or slow, and stops while its machine is suspended. Its time of day may be
days off, and jumps. The real :class:`bk_spark.bookie.metadata.cluster_clock.ClusterClock` keeps what the process knows
of ZooKeeper's time.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from bk_spark.bookie.metadata.cluster_clock import ClusterClock

#: Speeds of a process's monotonic clock.
_RATES: Final = (1.0, 0.9995, 1.0005)
#: Delays from a request to ZooKeeper's change, and from the change to the answer.
_WAYS_MS: Final = (0, 0, 1, 30, 2_000)


class ProcessClock:
    """``now_ms`` is ZooKeeper's time. The process's time of day is ahead of it by ``ahead_ms``."""

    def __init__(self, now_ms: Callable[[], int], random: Random, ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms
        #: Number of jumps of the time of day.
        self.jumps = 0
        self._now_ms = now_ms
        self._random = random
        self._rate = random.choice(_RATES)
        self._started_ms = now_ms()
        self._uncounted_ms = 0
        self.cluster = ClusterClock(self._count_s, lambda: now_ms() + self.ahead_ms)

    def jump(self, ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms
        self.jumps += 1

    def suspended(self, ms: int) -> None:
        """The monotonic clock missed this much time."""
        self._uncounted_ms += ms

    def note(self, session: int) -> None:
        """ZooKeeper has just answered a change."""
        there_ms, back_ms = self._random.choice(_WAYS_MS), self._random.choice(_WAYS_MS)
        sent_s = self._count_s() - (there_ms + back_ms) / 1000 * self._rate
        self.cluster.note(sent_s, self._now_ms() - back_ms, session)

    def measure(self, session: int) -> None:
        """Measure like the machines' driver with each Sync."""
        if not self.cluster.is_fresh(session):
            self.note(session)

    def _count_s(self) -> float:
        return 1_000_000.0 + (self._now_ms() - self._started_ms - self._uncounted_ms) / 1000 * self._rate
