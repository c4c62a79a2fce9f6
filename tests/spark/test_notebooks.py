"""The notebooks run from a clean kernel, and print what is in their files."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from tests.support.ready_worker import make_python
from tests.support.servers import spark_environment

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NAMES = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))
#: Paths, addresses, ids: they differ from run to run and from machine to machine.
TELLTALES = re.compile(r"/(tmp|home|root|Users)/|127\.0\.0\.1|localhost|[0-9a-f]{8}-[0-9a-f]{4}-|20\d\d-\d\d-\d\d")


def _code(path: Path) -> list[NotebookNode]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def _printed(cell: NotebookNode) -> list[tuple[str, str]]:
    """Text outputs, by kind; pictures are only counted."""
    found = []
    for output in cell.outputs:
        if output.output_type == "stream":
            found.append((output.name, output.text))
        else:
            found.append((output.output_type, output.data["text/plain"]))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_it_has_its_outputs(name: str) -> None:
    cells = _code(NOTEBOOKS / name)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [one for cell in cells for one in _printed(cell)]
    assert {kind for kind, _ in outputs} <= {"stdout", "display_data"}, "an error, a warning, or a value by itself"
    assert outputs[-1] == ("stdout", "all of it holds\n")
    for _, text in outputs:
        assert not TELLTALES.search(text), text


def test_there_are_four() -> None:
    assert len(NAMES) == 4


@pytest.mark.turns(4)
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name: str, tmp_path: Path) -> None:
    copy = tmp_path / "notebooks"
    copy.mkdir()
    for path in (NOTEBOOKS / name, *NOTEBOOKS.glob("*.py"), *NOTEBOOKS.glob("*.json")):
        shutil.copy(path, copy)
    command = [sys.executable, copy / "run.py", copy / name]
    environment = spark_environment()
    if name != NAMES[0]:
        # Of the others, one starts three drivers. The first runs as a reader has it.
        environment["NOTEBOOK_PYTHON"] = make_python(tmp_path)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1_700)
    assert done.returncode == 0, done.stderr
    found, expected = _code(copy / name), _code(NOTEBOOKS / name)
    assert [cell.source for cell in found] == [cell.source for cell in expected]
    for one, other in zip(found, expected, strict=True):
        assert _printed(one) == _printed(other), f"{one.source}\nmake notebooks, if this is right"
