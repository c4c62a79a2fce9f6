"""Timing of benchmarks and printing of their figures."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of the counted runs."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def timed(work: Callable[[], object], runs: int = 3, warmups: int = 1) -> Timing:
    """Run ``work`` ``warmups`` times uncounted, then ``runs`` times."""
    for _ in range(warmups):
        work()
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return Timing(tuple(seconds))


def p99(values: Sequence[float]) -> float:
    """Return the value that 99 of 100 ``values`` do not exceed, not a number if there are none."""
    return sorted(values)[int(0.99 * len(values))] if values else math.nan


def figure(benchmark: str, name: str, value: float, unit: str, **more: object) -> None:
    """Print one figure as a JSON line."""
    print(
        json.dumps({"benchmark": benchmark, "figure": name, "value": round(value, 4), "unit": unit, **more}), flush=True
    )


def rates(benchmark: str, name: str, timing: Timing, rows: int, size_bytes: int) -> None:
    """Print rows and megabytes (10^6 bytes of values) per second of the median run, with the spread."""
    spread = {"fastest_s": round(min(timing.seconds), 3), "slowest_s": round(max(timing.seconds), 3)}
    figure(benchmark, f"{name}.rows", rows / timing.median, "rows/s", **spread)
    figure(benchmark, f"{name}.bytes", size_bytes / 1e6 / timing.median, "MB/s", **spread)


def attack_figure(
    benchmark: str,
    name: str,
    alone: Sequence[Sequence[float]],
    elsewhere: Sequence[Sequence[float]],
    beside: Sequence[Sequence[float]],
    tree: str,
) -> None:
    """Print how much longer requests took beside an attack than without it, and than with the attack on another bookie.

    Each argument has the latencies in milliseconds of each round. The p99 of all rounds' requests together are
    compared: a round has so few of the rarer requests that its own p99 is the longest of them. ``ratios`` and
    ``ratios_to_elsewhere`` compare the p99 of single rounds.
    """
    together = [p99([ms for latencies_ms in window for ms in latencies_ms]) for window in (alone, elsewhere, beside)]
    by_round = [[p99(latencies_ms) for latencies_ms in window] for window in (alone, elsewhere, beside)]
    figure(
        benchmark,
        name,
        together[2] / together[0],
        "ratio",
        tree=tree,
        to_elsewhere=round(together[2] / together[1], 2),
        alone_ms=round(together[0], 2),
        elsewhere_ms=round(together[1], 2),
        beside_ms=round(together[2], 2),
        requests=sum(map(len, beside)),
        ratios=[round(b / a, 2) for a, b in zip(by_round[0], by_round[2], strict=True)],
        ratios_to_elsewhere=[round(b / e, 2) for e, b in zip(by_round[1], by_round[2], strict=True)],
    )
