"""``make PYTHON=…`` runs that Python, or says why not: never another one without a word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.environments import REPOSITORY, environment_variables


def make(directory: Path, python: str, goal: str = "lint") -> subprocess.CompletedProcess[str]:
    """What make would do with an environment in ``directory``."""
    command = ["make", "--dry-run", goal, f"VENV={directory}", f"PYTHON={python}"]
    variables = environment_variables()
    return subprocess.run(command, cwd=REPOSITORY, env=variables, capture_output=True, text=True, timeout=60)


def environment(directory: Path, version: str) -> Path:
    program = directory / "bin" / "python"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho Python {version}\n")
    program.chmod(0o755)
    return directory


def test_an_environment_of_another_python_is_not_used(tmp_path: Path) -> None:
    there = environment(tmp_path, "3.10.99")
    done = make(there, sys.executable)
    assert done.returncode == 2
    assert f"{there} has Python 3.10.99, not that of PYTHON={sys.executable}" in done.stderr
    assert make(there, sys.executable, "clean").returncode == 0


def test_an_environment_of_this_python_is_used(tmp_path: Path) -> None:
    there = environment(tmp_path, "{}.{}.{}".format(*sys.version_info[:3]))
    done = make(there, sys.executable)
    assert f"{there}/bin/ruff check ." in done.stdout, done.stderr


def test_a_python_that_does_not_run_is_not_replaced_by_one_that_is_found(tmp_path: Path) -> None:
    variables = environment_variables(PYTHON=str(tmp_path / "python3.99"))
    script = str(REPOSITORY / "scripts" / "make_venv.sh")
    done = subprocess.run([script, str(tmp_path / "venv")], env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"looked for {tmp_path}/python3.99" in done.stderr
    assert not (tmp_path / "venv").exists()
