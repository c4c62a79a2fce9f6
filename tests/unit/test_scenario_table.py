"""Tables of named scenarios name what is there, and each has a test: docs/design/client.md (the protocol), bookie.md
(the bookie), log.md (logs and Spark)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DOCUMENTS = TESTS.parent / "docs" / "design"
LEDGERS = [f"C{number}" for number in range(1, 17)]
BOOKIE = [f"B{number}" for number in range(1, 10)] + ["G1", "G2", "G3", "H1", "N1"]
LOGS = ["F1", "F2"] + [f"L{number}" for number in range(1, 6)] + [f"S{number}" for number in range(1, 8)] + ["T1", "T2"]


@pytest.mark.parametrize(("document", "ids"), [("client.md", LEDGERS), ("log.md", LOGS), ("bookie.md", BOOKIE)])
def test_every_named_scenario_has_a_test_and_the_table_names_them(document: str, ids: list[str]) -> None:
    found = _found()
    assert [name for name in ids if name not in found] == []
    rows = [f"| {name} | {', '.join(sorted(found[name]))} |" for name in ids]
    there = re.findall(r"^\| [BCFGHLNST]\d+ \|.*$", (DOCUMENTS / document).read_text("utf-8"), re.MULTILINE)
    assert there == rows, f"the table in {document} should be:\n" + "\n".join(rows)


def _found() -> dict[str, set[str]]:
    """Id to scenario texts, and to modules with a test that has the id in its name (``test_c5_c7_…``)."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in TESTS.glob("simulation/scenarios/*.txt"):
        found[path.stem.split("_")[0].upper()].add(f"`{path.relative_to(TESTS)}`")
    for path in TESTS.rglob("test_*.py"):
        if path.parent.name == "simulation":
            continue  # there the texts decide
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for name in re.findall(r"_([bcfghlnst]\d+)(?=_)", node.name):
                    found[name.upper()].add(f"`{path.relative_to(TESTS)}`")
    return found
