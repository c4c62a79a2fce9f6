"""Readme, docs, notebooks and examples use nothing of ours but the front door."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import bk_spark
from tests.support.environments import REPOSITORY

pytestmark = pytest.mark.unit

#: What programs may import from our packages. The last is for sessions that do not find the data source by its name.
PUBLIC = {
    "bk_spark": {*bk_spark.__all__},
    "bookie_server.local": {"LocalCluster"},
    "pyspark_bookkeeper": {"DefaultSource"},
}
OURS = {"bk_spark", "bookie_server", "pyspark_bookkeeper", "tests", "benchmarks"}


def programs() -> Iterator[tuple[Path, str]]:
    """Every program that users are shown, and where it is."""
    for path in (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))):
        for block in re.findall(r"^ *```python\n(.*?)^ *```", path.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            yield path, block
    for path in sorted((REPOSITORY / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "code":
                yield path, source
            for block in re.findall(r"```python\n(.*?)```", source, re.DOTALL):
                yield path, block
    for folder in ("examples", "notebooks"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            yield path, path.read_text("utf-8")


def wrong_imports(program: str) -> list[str]:
    """Imports of ours that are not public."""
    found = []
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            found += [one.name for one in node.names if one.name.partition(".")[0] in OURS and one.name != "bk_spark"]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in OURS:
            allowed = PUBLIC.get(node.module or "", set())
            found += [f"{node.module}.{one.name}" for one in node.names if one.name not in allowed]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "bk_spark":
            found += [] if node.attr in PUBLIC["bk_spark"] else [f"bk_spark.{node.attr}"]
    return found


def test_programs_for_users_import_the_front_door_alone() -> None:
    every = list(programs())
    assert {path.suffix for path, _ in every} == {".md", ".ipynb", ".py"}
    wrong = [f"{path.relative_to(REPOSITORY)}: {name}" for path, text in every for name in wrong_imports(text)]
    assert not wrong


@pytest.mark.parametrize(
    "line",
    [
        "from bk_spark.bookie.blocking import BlockingClient",
        "import bk_spark.log",
        "from bk_spark import protocol",
        "import bk_spark\nbk_spark.log.Log",
        "def f():\n    from bookie_server.bookie import Bookie",
    ],
)
def test_what_is_deeper_is_found(line: str) -> None:
    assert wrong_imports(line)


def test_prose_names_no_deeper_module() -> None:
    """Pages may name the command that prints them, and packages of gRPC. The pages of docs/design are about modules."""
    wrong = []
    for path in (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            for name in re.findall(r"`(?!python -m )[^`]*?\b((?:bk_spark|bookie_server)\.(?!v\d)[\w.]+)", line):
                package, _, rest = name.partition(".")
                if name not in PUBLIC and rest.partition(".")[0] not in PUBLIC.get(package, ()):
                    wrong.append(f"{path.relative_to(REPOSITORY)}:{number}: {name}")
    assert not wrong
