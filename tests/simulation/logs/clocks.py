"""Clocks of the processes of the model world: each has its own, and only ZooKeeper's counts.

A process counts its seconds a little too fast or too slow, and not at all while its machine is suspended. Its time of
day may be days off, and jumps. What it knows of ZooKeeper's time is kept by the real
:class:`bk_spark.bookie.metadata.cluster_clock.ClusterClock`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from bk_spark.bookie.metadata.cluster_clock import ClusterClock

#: How fast a process's seconds are.
_RATES: Final = (1.0, 0.9995, 1.0005)
#: From sending a request to ZooKeeper's change, and from there to the answer.
_WAYS_MS: Final = (0, 0, 1, 30, 2_000)


class ProcessClock:
    """``now_ms`` is ZooKeeper's time, ``ahead_ms`` by how much the process's time of day is ahead of it."""

    def __init__(self, now_ms: Callable[[], int], random: Random, ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms
        #: How often the time of day jumped.
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
        """So much of the time that passed was not counted."""
        self._uncounted_ms += ms

    def note(self, session: int) -> None:
        """A change of ZooKeeper was answered just now."""
        there_ms, back_ms = self._random.choice(_WAYS_MS), self._random.choice(_WAYS_MS)
        sent_s = self._count_s() - (there_ms + back_ms) / 1000 * self._rate
        self.cluster.note(sent_s, self._now_ms() - back_ms, session)

    def measure(self, session: int) -> None:
        """As the driver of machines does it with each Sync."""
        if not self.cluster.is_fresh(session):
            self.note(session)

    def _count_s(self) -> float:
        return 1_000_000.0 + (self._now_ms() - self._started_ms - self._uncounted_ms) / 1000 * self._rate
