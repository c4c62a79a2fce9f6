"""The bookie benchmarks run, and tell every figure. How fast anything is, is not for a test to say."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bookie import READS
from benchmarks.bookie_figures import AIMS
from benchmarks.bookie_servers import KINDS

SIZE = 1024
_ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.timeout(600), pytest.mark.turns(3)]

Figures = dict[str, list[dict[str, Any]]]


def _run(name: str, *arguments: str) -> Figures:
    command = [sys.executable, "-m", "benchmarks", name, "--quick", *arguments]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=480)
    assert done.returncode == 0, done.stderr
    figures = defaultdict(list)
    for line in done.stdout.splitlines():
        figure = json.loads(line)
        assert figure["benchmark"] == name
        assert math.isfinite(figure["value"])
        figures[figure["figure"]].append(figure)
    return figures


def test_ratios_to_apaches_bookie(tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    figures = _run("bookie", "--sizes", str(SIZE), "--directory", str(tmp_path), "--markdown", str(table))
    hows = {"add": {"v2", "v3"}, "read_hot": {read.label for read in READS}, "read_cold": {r.label for r in READS}}
    for name, expected in hows.items():
        for figure in ("entries", "bytes", "client_cores"):
            assert {found["how"] for found in figures[f"{name}.{figure}"]} == expected
    alone = ("write_cpu", "read_hot_cpu", "disk.written_per_stored", "read_cold.disk_per_read", "memory.peak")
    for name in (*alone, "add_paced.latency_p50", "add_paced.latency_p99", "add.entries"):
        for found in figures[name]:
            assert (found["size"], found["unit"]) == (SIZE, "ratio")
            ours, apaches = (found[kind] for kind in KINDS)
            assert min(ours[0], apaches[0]) >= 0
            assert found["value"] == pytest.approx(ours[1] / max(apaches[1], 1e-9), rel=0.01)
    # Each byte is in a journal and in an entry log, or nothing was counted.
    assert min(figures["disk.written_per_stored"][0]["ours"]) >= 2
    aims = {found["figure"]: found for name in figures if name.startswith("aim.") for found in figures[name]}
    assert set(aims) == {f"aim.{aim.name}" for aim in AIMS if aim.size in (0, SIZE)} | {"aim.memory.peak"}
    assert "| add.entries, v2, 1 KiB | entries/s |" in table.read_text("utf-8")


def test_soak(tmp_path: Path) -> None:
    figures = _run("bookie_soak", "--directory", str(tmp_path))
    assert figures["checked.entries"][0]["value"] > 0
    assert figures["deleted.ledgers"][0]["value"] > 0
    assert figures["logs.removed"][0]["value"] > 0
    for name in ("memory", "files", "threads", "disk"):
        assert len(figures[f"{name}.growth"][0]["thirds"]) == 3


def test_restart(tmp_path: Path) -> None:
    figures = _run("bookie_restart", "--directory", str(tmp_path))
    for name in ("start.after_kill", "start.after_stop"):
        (found,) = figures[name]
        assert found["value"] > 0
        assert found["peak_memory_mib"] >= found["memory_mib"] > 0
    assert [found["value"] > 0 for found in figures["check.entries"]] == [True, True]


def test_compaction(tmp_path: Path) -> None:
    figures = _run("compaction", "--directory", str(tmp_path))
    assert figures["rewritten"][0]["logs"] > 1
    for name in ("p50", "p99"):
        calm, meanwhile = (figures[f"{when}.{name}"][0]["value"] for when in ("calm", "meanwhile"))
        assert figures[f"growth.{name}"][0]["value"] == pytest.approx(meanwhile / calm, rel=0.01)
