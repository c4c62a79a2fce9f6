"""Metric types (counters, gauges and summaries) and the registry that names them.

Updates are cheap and meant to be made once per batch. One thread writes each counter and summary (two concurrent
writers may lose a count, never add one); any thread may read. ``bookie_metrics`` defines the metrics, ``exposition``
prints them.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

_LOG: Final = logging.getLogger(__name__)

#: Quantiles printed for a summary, as in Apache's bookie (compatibility.md §7.6).
QUANTILES: Final = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)
#: Length of a summary's window; Apache's ``prometheusStatsLatencyRolloverSeconds``.
WINDOW_S: Final = 60.0
#: Number of buckets per power of two. A quantile is off by at most half a bucket: 1/64 of its value.
_BUCKETS_PER_OCTAVE: Final = 32
#: The bucket of values that are not positive.
_ZERO: Final = -(1 << 20)

Labels = tuple[tuple[str, str], ...]


class Counter:
    """A number that only increases."""

    __slots__ = ("value",)
    kind: Final = "counter"

    def __init__(self) -> None:
        self.value = 0

    def add(self, n: int = 1) -> None:
        """Add ``n``, which must not be negative."""
        self.value += n


class Gauge:
    """A number that goes up and down: the last one set, or the result of ``read`` at the last :meth:`sample`.

    If ``read`` fails, the gauge is NaN. With the kind "counter" it is a number that is counted elsewhere.
    """

    __slots__ = ("_read", "kind", "value")

    def __init__(self, read: Callable[[], float] | None = None, kind: Literal["gauge", "counter"] = "gauge") -> None:
        self._read = read
        self.kind = kind
        self.value: float = 0

    def set(self, value: float) -> None:
        """Set the number of a gauge without ``read``."""
        self.value = value

    def sample(self) -> None:
        """Call ``read``. In the event loop, to which such callbacks belong."""
        if self._read is None:
            return
        try:
            self.value = self._read()
        except Exception as error:
            _LOG.warning("cannot read a gauge: %s: %s", type(error).__name__, error)
            self.value = math.nan


@dataclass(frozen=True, slots=True)
class Outcomes:
    """A summary's figures of successes or of failures. Count and sum are since the start."""

    count: int
    total: float
    quantiles: tuple[float, ...]


class _Side:
    """The successes, or the failures, of one summary."""

    __slots__ = ("buckets", "count", "previous", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.buckets: dict[int, int] = {}
        self.previous: dict[int, int] = {}


class Summary:
    """The distribution of a value: count and sum since the start, quantiles of the last one to two windows.

    Latencies are in milliseconds. Successes and failures are counted separately.
    """

    __slots__ = ("_clock", "_failed", "_lock", "_succeeded", "_window_ends", "_window_s")
    kind: Final = "summary"

    def __init__(self, window_s: float = WINDOW_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._window_s = window_s
        self._window_ends = clock() + window_s
        self._succeeded = _Side()
        self._failed = _Side()
        self._lock = threading.Lock()

    def observe(self, value: float, count: int = 1, ok: bool = True) -> None:
        """Record ``value``, seen ``count`` times."""
        if self._clock() >= self._window_ends:
            self._rotate()
        side = self._succeeded if ok else self._failed
        side.count += count
        side.total += value * count
        if value > 0:
            mantissa, exponent = math.frexp(value)
            # The mantissa lies in [0.5, 1).
            bucket = exponent * _BUCKETS_PER_OCTAVE + int(mantissa * (2 * _BUCKETS_PER_OCTAVE))
        else:
            bucket = _ZERO
        buckets = side.buckets
        buckets[bucket] = buckets.get(bucket, 0) + count

    def outcomes(self, ok: bool) -> Outcomes:
        """Figures of the successes or of the failures. A quantile is NaN if nothing was recorded in the window."""
        if self._clock() >= self._window_ends:
            self._rotate()
        side = self._succeeded if ok else self._failed
        merged = side.previous.copy()
        for bucket, count in side.buckets.copy().items():  # a copy, because a writer may be adding buckets
            merged[bucket] = merged.get(bucket, 0) + count
        return Outcomes(side.count, side.total, _quantiles(merged))

    def _rotate(self) -> None:
        with self._lock:
            now = self._clock()
            if now < self._window_ends:
                return
            silent = now >= self._window_ends + self._window_s
            self._window_ends = now + self._window_s
            for side in (self._succeeded, self._failed):
                side.previous = {} if silent else side.buckets
                side.buckets = {}


class SummaryTotals:
    """A summary whose totals are counted elsewhere: ``read(ok)`` returns count and sum. It has no quantiles."""

    __slots__ = ("_read",)
    kind: Final = "summary"

    def __init__(self, read: Callable[[bool], tuple[int, float]]) -> None:
        self._read = read

    def outcomes(self, ok: bool) -> Outcomes:
        """Count and sum as ``read`` gives them. All quantiles are NaN."""
        return Outcomes(*self._read(ok), _quantiles({}))


Metric = Counter | Gauge | Summary | SummaryTotals


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """Metrics with one name, one for each set of labels."""

    name: str
    members: tuple[tuple[Labels, Metric], ...]


class MetricsRegistry:
    """Metrics by name and labels. One object may have several names. Any thread."""

    def __init__(self) -> None:
        self._families: dict[str, dict[Labels, Metric]] = {}
        self._lock = threading.Lock()

    def counter(self, *names: str, labels: Mapping[str, str] | None = None) -> Counter:
        """Add a counter under all ``names``. Raises ValueError if one is taken."""
        counter = Counter()
        self._add(names, labels, counter)
        return counter

    def gauge(
        self, name: str, read: Callable[[], float] | None = None, labels: Mapping[str, str] | None = None
    ) -> Gauge:
        """Add a gauge. ``read`` is called in the event loop, at each scrape."""
        gauge = Gauge(read)
        self._add((name,), labels, gauge)
        return gauge

    def watched_counter(self, name: str, read: Callable[[], float], labels: Mapping[str, str] | None = None) -> None:
        """Add a counter whose number is counted elsewhere; ``read`` is called in the event loop."""
        self._add((name,), labels, Gauge(read, "counter"))

    def totals(
        self, name: str, read: Callable[[bool], tuple[int, float]], labels: Mapping[str, str] | None = None
    ) -> None:
        """Add totals. ``read(ok)`` returns count and sum; it is called in any thread."""
        self._add((name,), labels, SummaryTotals(read))

    def summary(self, *names: str, labels: Mapping[str, str] | None = None) -> Summary:
        """Add a summary under all ``names``. Its quantiles are of the last one to two minutes."""
        summary = Summary()
        self._add(names, labels, summary)
        return summary

    def families(self) -> list[MetricFamily]:
        """All families, in the order in which their names were added."""
        with self._lock:
            return [MetricFamily(name, tuple(members.items())) for name, members in self._families.items()]

    def sample_gauges(self) -> None:
        """Update the gauges. Call in the event loop."""
        for family in self.families():
            for _, metric in family.members:
                if isinstance(metric, Gauge):
                    metric.sample()

    def _add(self, names: tuple[str, ...], labels: Mapping[str, str] | None, metric: Metric) -> None:
        key = tuple(sorted((labels or {}).items()))
        with self._lock:
            for name in names:
                members = self._families.setdefault(name, {})
                if key in members or any(other.kind != metric.kind for other in members.values()):
                    raise ValueError(f"metric {name} {dict(key)} already exists")
                members[key] = metric


def _quantiles(buckets: dict[int, int]) -> tuple[float, ...]:
    if not buckets:
        return (math.nan,) * len(QUANTILES)
    ordered = sorted(buckets.items())
    total = sum(count for _, count in ordered)
    found = []
    at, seen = 0, ordered[0][1]
    for quantile in QUANTILES:
        while seen < quantile * total and at + 1 < len(ordered):
            at += 1
            seen += ordered[at][1]
        found.append(_middle(ordered[at][0]))
    return tuple(found)


def _middle(bucket: int) -> float:
    if bucket == _ZERO:
        return 0.0
    # observe() adds 32..63 to 32 times the exponent.
    exponent, step = divmod(bucket - _BUCKETS_PER_OCTAVE, _BUCKETS_PER_OCTAVE)
    return math.ldexp((step + _BUCKETS_PER_OCTAVE + 0.5) / (2 * _BUCKETS_PER_OCTAVE), exponent)
