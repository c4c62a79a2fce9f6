"""Draws figures of ``spark_peers``: ``python -m benchmarks.performance_picture FIGURES.jsonl RATES.svg CPU.svg``.

One picture has the rows a second of each way to write and to read, the other the processor time for a GB. The figures
of ``docs/pictures/performance-*.svg`` are beside them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Final

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.spark_peers import NAME

_COLOURS: Final = {"raw": "tab:cyan", "arrow": "tab:blue", "kafka": "tab:orange", "ceiling": "0.75"}
_LABELS: Final = {
    "raw": "log, raw",
    "arrow": "log, arrow",
    "kafka": "Kafka, synced",
    "ceiling": "ceiling of Python sources",
}
_FRAMES: Final = {"100B": "values of 100 B", "1KiB": "values of 1 KiB", "flights": "flights, 19 columns"}
_DIRECTIONS: Final = ("write", "read")
Figures = dict[str, float]


def load(path: Path) -> Figures:
    """The values of ``spark_peers`` by name. Lines of other benchmarks are left out."""
    lines = (json.loads(line) for line in path.read_text().splitlines() if line.startswith("{"))
    return {line["figure"]: line["value"] for line in lines if line["benchmark"] == NAME}


def draw_rates(axes: Axes, figures: Figures, frame: str, direction: str) -> None:
    ways = [way for way in _COLOURS if f"{frame}.{direction}.{way}" in figures]
    rates = [figures[f"{frame}.{direction}.{way}"] for way in ways]
    bars = axes.barh([_LABELS[way] for way in ways], rates, color=[_COLOURS[way] for way in ways])
    axes.bar_label(bars, [f" {rate:,.0f}" for rate in rates], fontsize=8)
    axes.set(title=f"{direction}: {_FRAMES[frame]}", xlim=(0, 1.25 * max(rates)), xticks=[])


def draw_cpu(axes: Axes, figures: Figures, frame: str, direction: str) -> None:
    ways = [way for way in _COLOURS if f"{frame}.{direction}.{way}.cpu_servers" in figures]
    names = [_LABELS[way] for way in ways]
    servers, spark = ([figures[f"{frame}.{direction}.{way}.cpu_{who}"] for way in ways] for who in ("servers", "spark"))
    axes.barh(names, servers, color=[_COLOURS[way] for way in ways])
    bars = axes.barh(names, spark, left=servers, color="white", edgecolor=[_COLOURS[way] for way in ways], hatch="///")
    sums = [one + other for one, other in zip(servers, spark, strict=True)]
    labels = [f" {one:.1f} + {other:.1f}" for one, other in zip(servers, spark, strict=True)]
    axes.bar_label(bars, labels, fontsize=8)
    axes.set(title=f"{direction}: {_FRAMES[frame]}", xlim=(0, 1.35 * max(sums)), xticks=[])


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.performance_picture", description=__doc__)
    parser.add_argument("figures", type=Path, help="output of python -m benchmarks spark_peers")
    parser.add_argument("rates", type=Path)
    parser.add_argument("cpu", type=Path)
    options = parser.parse_args()
    figures = load(options.figures)
    frames = [frame for frame in _FRAMES if f"{frame}.write.arrow" in figures]
    mpl.rcParams["svg.hashsalt"] = "performance"
    titles = ("rows a second", "processor seconds for a GB: servers (filled) + Spark (hatched)")
    for draw, path, title in zip((draw_rates, draw_cpu), (options.rates, options.cpu), titles, strict=True):
        picture, axes = plt.subplots(
            len(frames), 2, figsize=(11, 1.7 * len(frames)), layout="constrained", squeeze=False
        )
        for row, frame in zip(axes, frames, strict=True):
            for cell, direction in zip(row, _DIRECTIONS, strict=True):
                draw(cell, figures, frame, direction)
                cell.invert_yaxis()
                cell.spines[["top", "right", "bottom"]].set_visible(False)
        picture.suptitle(title)
        picture.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
