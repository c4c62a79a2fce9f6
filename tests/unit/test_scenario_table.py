"""The table of named scenarios, docs/design/scenarios.md, names every test that has a scenario's id in its name.

A test is ``test_c5_c7_…`` for scenarios C5 and C7; a text of the simulator is ``c5_….txt``.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "design" / "scenarios.md"
COUNTS = {"B": 9, "C": 17, "F": 2, "G": 4, "H": 1, "L": 5, "N": 2, "R": 12, "S": 7, "T": 2}
IDS = {f"{letter}{number}" for letter, count in COUNTS.items() for number in range(1, count + 1)}
#: Id, origin, what happens, what must hold, tests.
ROW = re.compile(r"^\| ([A-Z]\d+) \|([^|]+)\|([^|]+)\|([^|]+)\|([^|]*)\|$", re.MULTILINE)
NO_TEST = "not built yet"


def test_every_named_scenario_is_in_the_table_once_and_has_a_test() -> None:
    rows = ROW.findall(PAGE.read_text("utf-8"))
    found = _found()
    assert sorted(row[0] for row in rows) == sorted(IDS)
    assert [name for name in IDS - set(found) if not name.startswith("R")] == []
    tests = {row[0]: row[4].strip() for row in rows}
    wanted = {name: ", ".join(sorted(found[name])) if name in found else NO_TEST for name in tests}
    wrong = [f"{name}: {wanted[name]}" for name in tests if tests[name] != wanted[name]]
    assert wrong == [], "tests of these scenarios in scenarios.md should be:\n" + "\n".join(wrong)


def _found() -> dict[str, set[str]]:
    """Id to texts of the simulator, and to modules with a test that has the id in its name."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in TESTS.glob("simulation/scenarios/*.txt"):
        found[path.stem.split("_")[0].upper()].add(f"`{path.relative_to(TESTS)}`")
    for path in TESTS.rglob("test_*.py"):
        if path.parent.name == "simulation":
            continue  # there the texts decide
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for name in re.findall(r"_([a-z]\d+)(?=_)", node.name):
                    if name.upper() in IDS:
                        found[name.upper()].add(f"`{path.relative_to(TESTS)}`")
    return found
