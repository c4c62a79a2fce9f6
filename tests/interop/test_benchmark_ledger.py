"""The ledger benchmark runs, and tells every figure. How fast anything is, is not for a test to say."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ledger import APPEND_MANY, OPERATIONS
from benchmarks.ledger_figures import CLIENTS

SIZE = 1024
BOOKIES = ("ours", "apache")
_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[dict[str, Any]]], str]:
    """Figures by name, and the tables, of a quick run."""
    directory = tmp_path_factory.mktemp("benchmark")
    tables = directory / "tables.md"
    command = [sys.executable, "-m", "benchmarks", "ledger", "--quick", "--sizes", str(SIZE)]
    command += ["--directory", str(directory), "--markdown", str(tables)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=480)
    assert done.returncode == 0, done.stderr
    figures = defaultdict(list)
    for line in done.stdout.splitlines():
        figure = json.loads(line)
        assert figure["benchmark"] == "ledger"
        assert math.isfinite(figure["value"])
        figures[figure["figure"]].append(figure)
    return figures, tables.read_text("utf-8")


pytestmark = [pytest.mark.timeout(600), pytest.mark.turns(3, together=True)]


def _who(figures: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(figure["client"], figure["bookies"]) for figure in figures}


@pytest.mark.parametrize("operation", [*OPERATIONS, APPEND_MANY], ids=lambda operation: operation.name)
def test_every_client_on_both_kinds_of_bookies(
    told: tuple[dict[str, list[dict[str, Any]]], str], operation: Any
) -> None:
    figures, _ = told
    everyone = {(client, bookies) for client in operation.clients for bookies in BOOKIES}
    for name in ("entries", "bytes", "client_cpu"):
        found = figures[f"{operation.name}.{name}"]
        assert _who(found) == everyone
        for figure in found:
            # Java tells its CPU time in steps of 10 ms, of which a quick run may use less than one.
            coarse = name == "client_cpu" and figure["client"].startswith("java")
            assert figure["value"] >= 0 if coarse else figure["value"] > 0
    size = operation.sizes[0] if operation is APPEND_MANY else SIZE
    for entries, bytes_ in zip(figures[f"{operation.name}.entries"], figures[f"{operation.name}.bytes"], strict=True):
        # The spread is rounded, the value less.
        assert entries["slowest"] - 0.1 <= entries["value"] <= entries["fastest"] + 0.1
        assert bytes_["value"] == pytest.approx(entries["value"] * size / 1e6, rel=0.01, abs=1e-3)
        assert entries["in_flight"] == operation.window(size)[0]
    with_latency = operation.how in ("", "single")
    for quantile in ("p50", "p99", "p99.9"):
        assert _who(figures[f"{operation.name}.latency_{quantile}"]) == (everyone if with_latency else set())


def test_ratios(told: tuple[dict[str, list[dict[str, Any]]], str]) -> None:
    figures, _ = told
    adds = {(figure["client"], figure["bookies"]): figure["value"] for figure in figures["add.entries"]}
    to_client = figures["add.entries.ratio_to_client"]
    assert {(f["client"], f["peer"], f["bookies"]) for f in to_client} == {
        (client, peer, bookies)
        for client, peer in (("ours", "java-v2"), ("ours", "java-v3"), ("ours-v3", "java-v3"))
        for bookies in BOOKIES
    }
    for figure in to_client:
        expected = adds[figure["client"], figure["bookies"]] / adds[figure["peer"], figure["bookies"]]
        assert figure["value"] == pytest.approx(expected, rel=0.01, abs=1e-3)
    to_bookies = figures["add.entries.ratio_to_bookies"]
    assert {figure["client"] for figure in to_bookies} == set(CLIENTS)
    for figure in to_bookies:
        expected = adds[figure["client"], "ours"] / adds[figure["client"], "apache"]
        assert figure["value"] == pytest.approx(expected, rel=0.01, abs=1e-3)
    # What only our client has is compared with what comes nearest to it.
    assert figures["add_by_call.entries.ratio_to_client"]
    assert figures["read_range.entries.ratio_to_client"]


def test_aims_and_conditions(told: tuple[dict[str, list[dict[str, Any]]], str]) -> None:
    figures, tables = told
    for name in ("add", "read_pipelined", "read_batch"):
        (aim,) = figures[f"aim.{name}.ratio_to_client"]
        assert (aim["aim"], aim["size"], aim["met"]) == (0.8, SIZE, aim["value"] >= 0.8)
    for aim in figures["aim.append_many.per_client_cpu_second"]:
        assert (aim["aim"], aim["met"]) == (100_000, aim["value"] >= 100_000)
    assert figures["conditions.others"][0]["size"] == SIZE
    assert figures["conditions.duration"]
    assert "| add, 1 KiB |" in tables


def test_unknown_operations_are_refused() -> None:
    command = [sys.executable, "-m", "benchmarks", "ledger", "--only", "adds"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "'adds' is none of add_single, add," in done.stderr
