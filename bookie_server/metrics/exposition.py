"""Metrics as text: Prometheus' format 0.0.4, laid out as Apache's bookie prints it (compatibility.md §7.6).

In a summary a comma and a space precede the labels that are not its own; everywhere else a comma alone. Where Apache's
text would violate the format (label values with quotes), this module follows the format.
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterable, Iterator
from typing import Final

from bookie_server.metrics.metrics import QUANTILES, Labels, MetricFamily, Summary, SummaryTotals

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def exposition(families: Iterable[MetricFamily]) -> str:
    """Format ``families`` as text. Gauges show their last sample."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# TYPE {family.name} {family.members[0][1].kind}")
        for labels, metric in family.members:
            if isinstance(metric, Summary | SummaryTotals):
                lines.extend(_summary(family.name, labels, metric))
            else:
                braces = f"{{{_labels(labels)}}}" if labels else ""
                lines.append(f"{family.name}{braces} {_number(metric.value)}")
    lines.append("")
    return "\n".join(lines)


def process_exposition() -> str:
    """Resource usage of this process, under the names used by all Prometheus clients. Linux only; reads /proc."""
    samples = list(_process_samples())
    return "".join(f"# TYPE {name} {kind}\n{name} {_number(value)}\n" for name, kind, value in samples)


def _summary(name: str, labels: Labels, summary: Summary | SummaryTotals) -> Iterator[str]:
    rest = f", {_labels(labels)}" if labels else ""
    for ok in (False, True):
        outcomes = summary.outcomes(ok)
        success = f'success="{"true" if ok else "false"}"'
        for quantile, value in zip(QUANTILES, outcomes.quantiles, strict=True):
            yield f'{name}{{{success},quantile="{quantile}"{rest}}} {_number(value)}'
        yield f"{name}_count{{{success}{rest}}} {outcomes.count}"
        yield f"{name}_sum{{{success}{rest}}} {_number(outcomes.total)}"


def _labels(labels: Labels) -> str:
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels)


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _process_samples() -> Iterator[tuple[str, str, float]]:
    ticks = os.sysconf("SC_CLK_TCK")
    times = os.times()
    yield "process_cpu_seconds_total", "counter", times.user + times.system
    try:
        with open("/proc/self/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        with open("/proc/stat", encoding="ascii") as file:
            boot_s = next(int(line.split()[1]) for line in file if line.startswith("btime "))
        open_fds = len(os.listdir("/proc/self/fd"))
    except (OSError, StopIteration):
        return
    yield "process_start_time_seconds", "gauge", boot_s + int(fields[19]) / ticks
    yield "process_virtual_memory_bytes", "gauge", int(fields[20])
    yield "process_resident_memory_bytes", "gauge", int(fields[21]) * resource.getpagesize()
    yield "process_open_fds", "gauge", open_fds
    yield "process_max_fds", "gauge", resource.getrlimit(resource.RLIMIT_NOFILE)[0]
