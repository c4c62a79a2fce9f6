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
    benchmark: str, name: str, alone: Sequence[float], elsewhere: Sequence[float], beside: Sequence[float], tree: str
) -> None:
    """Print how much longer requests took beside an attack than without it, and than with the attack on another bookie.

    Milliseconds, one of each for a round; medians are compared.
    """
    medians = [statistics.median(rounds) for rounds in (alone, elsewhere, beside)]
    figure(
        benchmark,
        name,
        medians[2] / medians[0],
        "ratio",
        tree=tree,
        to_elsewhere=round(medians[2] / medians[1], 2),
        alone_ms=round(medians[0], 2),
        elsewhere_ms=round(medians[1], 2),
        beside_ms=round(medians[2], 2),
        ratios=[round(b / a, 2) for a, b in zip(alone, beside, strict=True)],
        ratios_to_elsewhere=[round(b / e, 2) for e, b in zip(elsewhere, beside, strict=True)],
    )
