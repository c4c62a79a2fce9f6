"""Draws what ``crash_duplicates --timeline`` has kept: ``python -m benchmarks.crash_picture DATA.json PICTURE.svg``.

A bar is a batch of rows: which rows, and when they were written. Blue tones are runs of the query, crosses are kills. A
red bar is a batch that readers of the topic see twice. The data of ``docs/pictures/crashes.svg`` is beside it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

_TITLES = {"bookkeeper": "log in BookKeeper", "kafka": "Kafka topic, Spark's sink"}


def draw(axes: Axes, timeline: dict[str, Any], title: str) -> None:
    killed, rows = timeline["killed"], timeline["rows_per_batch"]
    twice = 0
    for batch, copy, count, at_s in timeline["batches"]:
        run = sum(at_s > kill_s for kill_s in killed)
        colour = "tab:red" if copy else ("tab:blue", "tab:cyan")[run % 2]
        twice += count if copy else 0
        axes.vlines(at_s, batch * rows, batch * rows + count, color=colour, linewidth=5 if copy else 3, zorder=2 + copy)
    for kill_s in killed:
        reached = max((batch + 1) * rows for batch, _, _, at_s in timeline["batches"] if at_s <= kill_s)
        axes.plot(kill_s, reached, "x", color="black", markersize=9, markeredgewidth=2, zorder=5)
    axes.set(xlabel="seconds", title=f"{title}: {twice:,} duplicate rows")
    axes.grid(color="0.92")


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.crash_picture", description=__doc__)
    parser.add_argument("timeline", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    timelines = json.loads(options.timeline.read_text())
    # The same data gives the same file.
    mpl.rcParams.update({"svg.hashsalt": "bk_spark", "svg.fonttype": "none", "font.family": "sans-serif"})
    figure, panels = plt.subplots(1, 2, figsize=(9.6, 3.8), sharey=True, layout="constrained")
    for axes, (kind, timeline) in zip(panels, timelines.items(), strict=True):
        draw(axes, timeline, _TITLES[kind])
    panels[0].set_ylabel("row number")
    for colour, name in (("tab:blue", "written, by run"), ("tab:red", "written again, and read twice")):
        panels[0].plot([], [], color=colour, linewidth=4, label=name)
    panels[0].plot([], [], "x", color="black", markeredgewidth=2, linestyle="none", label="driver killed (-9)")
    panels[0].legend(fontsize="small", loc="upper left")
    figure.savefig(options.picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
