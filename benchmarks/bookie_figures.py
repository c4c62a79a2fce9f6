"""Results of the bookie benchmark: one line per figure, targets, and tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TextIO

from benchmarks.bookie_servers import KINDS
from benchmarks.ledger_figures import size_name
from benchmarks.report import figure

NAME: Final = "bookie"
MEMORY_AIM_MIB: Final = 400.0
_ENOUGH_DIGITS: Final = 4


@dataclass(frozen=True, slots=True)
class Metric:
    """The name of a figure. ``how`` distinguishes runs of one name: protocol version, batch reads."""

    name: str
    size: int
    unit: str
    how: str = ""


@dataclass(frozen=True, slots=True)
class Aim:
    """A minimum or maximum for the ratio ours/Apache's, at one size (0: at every size)."""

    name: str
    how: str
    size: int
    bound: float
    least: bool


AIMS: Final = (
    Aim("add.entries", "v2", 1024, 0.8, True),
    Aim("add.entries", "v3", 1024, 0.8, True),
    Aim("add.bytes", "v2", 65536, 1.0, True),
    Aim("add.bytes", "v3", 65536, 1.0, True),
    Aim("disk.written_per_stored", "", 0, 1.0, False),
)


class Results:
    """Values by metric and kind of bookie, one per round, in order."""

    def __init__(self) -> None:
        self._values: dict[Metric, dict[str, list[float]]] = {}

    def add(self, metric: Metric, kind: str, value: float) -> None:
        self._values.setdefault(metric, {}).setdefault(kind, []).append(value)

    def ratios(self, metric: Metric) -> list[float]:
        """Return the ratios ours/Apache's, round by round. Empty if only one kind was run."""
        values = self._values[metric]
        if set(values) != set(KINDS):
            return []
        return [ours / max(theirs, 1e-9) for ours, theirs in zip(values["ours"], values["apache"], strict=True)]

    def tell(self) -> None:
        """Print one line per metric. ``value`` is the median ratio; lists are lowest, median and highest of rounds."""
        for metric, values in self._values.items():
            spread = {kind: _spread(of_kind) for kind, of_kind in values.items()}
            ratios = self.ratios(metric)
            more = {"size": metric.size, "how": metric.how, "of": metric.unit, **spread}
            if ratios:
                figure(NAME, metric.name, statistics.median(ratios), "ratio", ratios=_spread(ratios), **more)
            else:
                only = next(iter(values.values()))
                figure(NAME, metric.name, statistics.median(only), metric.unit, **more)

    def tell_aims(self) -> None:
        for aim in AIMS:
            for metric in self._values:
                wanted = (aim.name, aim.how) == (metric.name, metric.how) and aim.size in (0, metric.size)
                if wanted and (ratios := self.ratios(metric)):
                    value = statistics.median(ratios)
                    met = value >= aim.bound if aim.least else value <= aim.bound
                    figure(
                        NAME, f"aim.{aim.name}", value, "ratio", size=metric.size, how=aim.how, aim=aim.bound, met=met
                    )
        peaks = [max(v["ours"]) for m, v in self._values.items() if m.name == "memory.peak" and "ours" in v]
        if peaks:
            met = max(peaks) <= MEMORY_AIM_MIB
            figure(NAME, "aim.memory.peak", max(peaks), "MiB", aim=MEMORY_AIM_MIB, met=met)

    def write_table(self, out: TextIO) -> None:
        """Write Markdown for docs/design/performance.md: medians, and the ratio with its lowest and highest round."""
        print("| | unit | ours | Apache's | ratio | of the rounds |\n|---|---|---|---|---|---|", file=out)
        for metric, values in sorted(self._values.items(), key=lambda item: (item[0].name, item[0].how, item[0].size)):
            medians = [_text(statistics.median(values[kind])) if kind in values else "" for kind in KINDS]
            ratios = self.ratios(metric)
            ratio = f"{statistics.median(ratios):.2f}" if ratios else ""
            rounds = f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else ""
            name = ", ".join(word for word in (metric.name, metric.how, size_name(metric.size)) if word)
            print(f"| {name} | {metric.unit} | {' | '.join(medians)} | {ratio} | {rounds} |", file=out)


def _spread(values: Sequence[float]) -> list[float]:
    return [round(value, _ENOUGH_DIGITS) for value in (min(values), statistics.median(values), max(values))]


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
