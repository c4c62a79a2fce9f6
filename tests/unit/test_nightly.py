"""The harness of the long runs: time is shared, seeds go on, figures are summed, a failure names what repeats it."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.nightly import lane
from tests.nightly.lane import go_through
from tests.nightly.plan import DECODERS_AND_MUTANTS, PYTHONS, Run, with_another_python
from tests.support.processes import wait_until_ended


def run_of(name: str, code: str, *, seeds: int = 10, variable: str = "") -> Run:
    """A run whose command is ``code``, with the first and last seed as arguments."""
    return Run(
        name,
        lambda first, last: [sys.executable, "-c", code, str(first), str(last)],
        seeds,
        1.0,
        re.compile("histories"),
        variable,
        lambda first, last: f"make {name} SEEDS={first}-{last}",
    )


COUNT = """
import sys
from dataclasses import replace
n = int(sys.argv[2]) - int(sys.argv[1]) + 1
print("5 apples")
print(f"{n} histories, {2 * n} lost replies")
"""


def test_each_run_gets_its_share_of_the_time_and_other_seeds_each_call(tmp_path: Path) -> None:
    outcomes = go_through([run_of("first", COUNT), run_of("second", COUNT)], 1_000, 1.0, tmp_path)
    for outcome in outcomes:
        calls, rest = divmod(outcome.end_seed - outcome.first_seed, 10)
        assert (outcome.first_seed, rest, outcome.failures) == (1_000, 0, [])
        assert calls >= 1
        assert outcome.counts == {"histories": 10 * calls, "lost replies": 20 * calls}
    assert list(tmp_path.iterdir()) == []


def test_a_failure_names_the_line_that_repeats_it_and_keeps_the_output(tmp_path: Path) -> None:
    log = "bookie 4: kill -9, started again later\\nthen try again: they still hold the entries"
    code = f"print('seed 17: wrong\\n{log}'); print('again: python -m tests.simulation replay 17'); raise SystemExit(1)"
    (outcome,) = go_through([run_of("logs", code)], 0, 30.0, tmp_path)
    # Three failures are enough; the rest of the time is left.
    assert len(outcome.failures) == 3
    assert outcome.end_seed == 30
    assert [line.strip() for line in outcome.failures[0].splitlines()[1:]] == ["python -m tests.simulation replay 17"]
    assert "seed 17: wrong" in (tmp_path / "logs-0.log").read_text()
    assert "logs: 3 FAILED, seeds 0 to 29" in str(outcome)


def test_a_decoder_s_failure_is_repeated_by_its_example(tmp_path: Path) -> None:
    fuzzing, _ = DECODERS_AND_MUTANTS
    assert fuzzing.command(7, 7)[1:] == ["-m", "tests.fuzz", "7-7", "--factor", "10"]
    told = "E   repeat with: FUZZ_EXAMPLE=AEEA .venv/bin/python -m pytest 'tests/fuzz/test_a.py::test_b'"
    code = f"print('4711 examples (seed 7)'); print({told!r}); raise SystemExit(1)"
    (outcome,) = go_through([replace(fuzzing, command=run_of("", code).command)], 0, 30.0, tmp_path)
    assert outcome.counts["examples"] == 3 * 4711
    assert outcome.failures[0].splitlines()[-1].strip() == told.removeprefix("E   repeat with: ")


def test_mutants_that_are_not_found_are_counted(tmp_path: Path) -> None:
    _, mutants = DECODERS_AND_MUTANTS
    assert mutants.command(27, 27)[1:] == ["-m", "tests.mutation", "--turn", "27", "--jobs", "1"]
    code = "print('SURVIVED 1.0 s  a.py: a rule'); print('12 mutations found, 1 not found'); raise SystemExit(1)"
    (outcome,) = go_through([replace(mutants, command=run_of("", code).command)], 27, 30.0, tmp_path)
    assert outcome.counts == {"mutations found": 3 * 12, "not found": 3}
    assert outcome.failures[0].splitlines()[-1].strip() == "python -m tests.mutation --turn 27"


def test_a_failure_that_prints_no_line_is_repeated_by_its_seeds(tmp_path: Path) -> None:
    code = "import os; assert os.environ['SEEDS_OF_IT'] == '7-7'; raise SystemExit(2)"
    (outcome,) = go_through([run_of("faults", code, seeds=1, variable="SEEDS_OF_IT")], 7, 30.0, tmp_path)
    assert outcome.failures[0].startswith("exit code 2")
    assert outcome.failures[0].splitlines()[-1].strip() == "make faults SEEDS=7-7"


def test_a_call_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "_MOST_FAILURES", 1)
    child = tmp_path / "child"
    code = f"""
import pathlib, subprocess, sys, time
sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path({str(child)!r}).write_text(str(sleeper.pid))
time.sleep(600)
"""
    # On a busy machine a call may be ended before it has started anything: it gets more time then.
    for timeout_s in (2.0, 20.0, 100.0):
        monkeypatch.setattr(lane, "_CALL_TIMEOUT_S", timeout_s)
        (outcome,) = go_through([run_of("hangs", code)], 0, 60.0, tmp_path)
        assert outcome.failures[0].startswith(f"no end within {timeout_s} s")
        if child.exists() and child.read_text():
            break
    # It was killed, which the machine may be about to carry out.
    assert wait_until_ended(int(child.read_text()), 60_000)


def test_every_night_has_the_next_of_the_other_pythons_that_run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "{}.{}".format(*sys.version_info[:2])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert with_another_python(0) == ()
    others = [release for release in PYTHONS if release != own]
    for release, code in zip((own, *others), (0, 0, 127, 0), strict=True):
        program = tmp_path / f"python{release}"
        program.write_text(f"#!/bin/sh\nexit {code}\n")
        program.chmod(0o755)
    runs = [run for night in range(4) for run in with_another_python(night)]
    assert [run.name for run in runs] == [f"Python {others[0]}", f"Python {others[2]}"] * 2
    assert runs[0].command(1, 1)[:4] == ["make", "test", f"VENV=.venv-{others[0]}", f"PYTHON=python{others[0]}"]
    assert runs[0].counts("==== 9 passed, 4 skipped in 2.00s ====")["passed"] == 9
