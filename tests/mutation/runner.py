"""Runs the named tests of mutations in copies of the source.

There is one copy for all, and for each mutation a tree of hard links to it, in which one file is replaced. Processes
that a test starts import from that tree, too: PYTHONPATH names it, and so it precedes the editable install.
:func:`check_imports` proves that before anything is run.
"""

from __future__ import annotations

import enum
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutation.mutation import Mutation

ROOT: Final = Path(__file__).parents[2]
#: What the tests of the lists need. ``tests/unit/test_mutations.py`` checks that none is outside.
_COPIED: Final = ("bk_spark", "bookie_server", "tests", "benchmarks", "pyproject.toml", "pyspark_bookkeeper.py")
_PACKAGES: Final = ("bk_spark", "bookie_server", "tests")
#: After this a test counts as one that never ends, and so as failed.
_TEST_TIMEOUT_S: Final = 120
#: pytest itself must have ended by then.
_PROCESS_TIMEOUT_S: Final = 300
_SHOWN_LINES: Final = 15


class Verdict(enum.Enum):
    """What became of a mutation."""

    FOUND = "found"
    SURVIVED = "SURVIVED"
    DOES_NOT_APPLY = "DOES NOT APPLY"
    #: The tests could not be run, so they say nothing about the rule.
    DOES_NOT_RUN = "DOES NOT RUN"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict, the time it took, and what there is to say if the mutation was not found."""

    mutation: Mutation
    verdict: Verdict
    seconds: float
    detail: str = ""


def make_copy(target: Path) -> None:
    """Copy the source and the tests to ``target``."""
    for name in _COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "target"))
        else:
            shutil.copy2(ROOT / name, target / name)


def environment(tree: Path) -> dict[str, str]:
    """The environment in which Python, and every Python that it starts, imports from ``tree``."""
    return {**os.environ, "PYTHONPATH": str(tree)}


def check_imports(tree: Path) -> None:
    """Raise RuntimeError if a process in another directory imports a package from elsewhere than ``tree``."""
    program = f"import {', '.join(_PACKAGES)}\nfor each in {', '.join(_PACKAGES)}: print(*each.__path__)"
    found = subprocess.run(
        [sys.executable, "-c", program], cwd="/", env=environment(tree), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    wanted = [str(tree / name) for name in _PACKAGES]
    if found != wanted:
        raise RuntimeError(f"processes import {', '.join(found)}, not {', '.join(wanted)}")


def failing_unmutated(mutations: Iterable[Mutation], copy: Path, jobs: int) -> str:
    """Run all named tests on the unmutated copy. Return "" if they pass, else the end of pytest's output."""
    tests = list(dict.fromkeys(test for mutation in mutations for test in mutation.tests))
    processes = ("-n", str(jobs), "--dist", "worksteal") if jobs > 1 else ()
    code, output = _pytest(copy, (*processes, *tests), timeout_s=None)
    return "" if code == 0 else output


def run_all(
    mutations: Sequence[Mutation], copy: Path, trees: Path, jobs: int, tell: Callable[[Outcome], None]
) -> list[Outcome]:
    """Run the tests of all mutations, ``jobs`` at a time. ``tell`` is called with each outcome, in any order."""

    def run(number: int) -> Outcome:
        outcome = _run(mutations[number], copy, trees / str(number))
        tell(outcome)
        return outcome

    with ThreadPoolExecutor(jobs) as workers:
        return list(workers.map(run, range(len(mutations))))


def _run(mutation: Mutation, copy: Path, tree: Path) -> Outcome:
    started = time.monotonic()

    def outcome(verdict: Verdict, detail: str = "") -> Outcome:
        return Outcome(mutation, verdict, time.monotonic() - started, detail)

    try:
        mutated = mutation.applied_to(copy)
    except ValueError as error:
        return outcome(Verdict.DOES_NOT_APPLY, str(error))
    shutil.copytree(copy, tree, copy_function=os.link)
    try:
        path = tree / mutation.file
        # A new file: the old one is that of all trees. Python would also believe its compiled code for as long as size
        # and time of the source are the same.
        path.unlink()
        path.write_text(mutated, "utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()
        for test in mutation.tests:
            code, output = _pytest(tree, (test,), timeout_s=_PROCESS_TIMEOUT_S)
            if code == 0:
                return outcome(Verdict.SURVIVED, f"{test} passes")
            if code != 1 or not re.search(r"\b\d+ failed\b", output):
                return outcome(Verdict.DOES_NOT_RUN, f"{test}:\n{output}")
        return outcome(Verdict.FOUND)
    finally:
        shutil.rmtree(tree)


def _pytest(tree: Path, arguments: Sequence[str], *, timeout_s: float | None) -> tuple[int | None, str]:
    """Run pytest in ``tree``. Return its exit code, None after ``timeout_s``, and the end of its output."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
    # In a group of its own, so that nothing that a test has started outlives it.
    process = subprocess.Popen(
        [*command, f"--timeout={_TEST_TIMEOUT_S}", *arguments],
        cwd=tree,
        env=environment(tree),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        code = None
    return code, "\n".join(output.splitlines()[-_SHOWN_LINES:])
