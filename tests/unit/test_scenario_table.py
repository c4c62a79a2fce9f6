"""The table of the protocol's known bugs in docs/design/client.md names what is there, and each has a test."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parents[1]
DOCUMENT = TESTS.parent / "docs" / "design" / "client.md"
IDS = [f"C{number}" for number in range(1, 17)]


def test_every_known_bug_has_a_test_and_the_table_names_them() -> None:
    found = _found()
    assert [name for name in IDS if name not in found] == []
    rows = [f"| {name} | {', '.join(sorted(found[name]))} |" for name in IDS]
    there = re.findall(r"^\| C\d+ \|.*$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert there == rows, f"the table in {DOCUMENT.name} should be:\n" + "\n".join(rows)


def _found() -> dict[str, set[str]]:
    """Id to scenario texts, and to modules with a test that has the id in its name (``test_c5_c7_…``)."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in TESTS.glob("simulation/scenarios/*.txt"):
        found[path.stem.split("_")[0].upper()].add(f"`{path.relative_to(TESTS)}`")
    for path in TESTS.glob("*/test_*.py"):
        if path.parent.name == "simulation":
            continue  # there the texts decide
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for number in re.findall(r"_c(\d+)(?=_)", node.name):
                    found[f"C{number}"].add(f"`{path.relative_to(TESTS)}`")
    return found
