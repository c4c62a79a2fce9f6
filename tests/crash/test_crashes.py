"""Random runs of a bookie that crash everywhere (crashes.py): a few here, many with ``make crash``. Rules broken on
purpose must be found."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash import mutants, runner
from tests.crash.crashes import SHORT, Case, Effort, Step
from tests.support.daily import first_seed_of_today

#: Four in a row have bookies with several directories, and with a flush after each add (histories.py).
RUNS = 4
RUNS_AT_ONCE = 2
STEPS = 15
#: Where a mutant is not found among so many runs, they have become blunt.
MOST_SEEDS = 20
LOOKING = Effort(share=0.3, torn=0, mixtures=1, nested=0, losses=0)


@pytest.mark.parametrize("first", range(0, RUNS, RUNS_AT_ONCE))
def test_crashes(first: int, tmp_path: Path) -> None:
    """Other runs every day. A failure names the recording that repeats it."""
    today = first_seed_of_today()
    seeds = range(today + first, today + first + RUNS_AT_ONCE)
    summary = runner.Summary()
    for seed in seeds:
        summary.add(runner.crash(seed, effort=SHORT, steps=STEPS, keep_in=tmp_path))
    again = f"again: python -m tests.crash run {seeds[0]}-{seeds[-1]} --short --steps {STEPS}"
    print(f"{summary}\n{again}")
    assert not summary.failures, "\n\n".join(summary.failures)
    # Runs in which nothing happens would prove nothing.
    assert summary.answered > 15, again
    assert summary.counts.cuts > 300, again
    assert summary.counts.starts > 100, again
    assert summary.counts.nested > 0, again
    assert summary.counts.losses > 0, again
    # The first of them answers before it syncs (histories.py).
    assert first or summary.counts.unsynced > 0, again


@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_mutants_are_caught(name: str) -> None:
    mutant = mutants.MUTANTS[name]
    with ExitStack() as stack:
        mutant.breaks(stack)
        for seed in range(mutant.seed, mutant.seed + MOST_SEEDS):
            effort = replace(LOOKING, losses=mutant.losses)
            failures = runner.crash(seed, effort=effort, steps=12, only=mutant.steps).failures
            if failures:
                assert f"again: python -m tests.crash again {seed} " in failures[0]
                return
    pytest.fail(f"not found in {MOST_SEEDS} runs: {name}")


@pytest.mark.parametrize("name", ["marks before entry logs are synced", "marks of ledgers are not synced"])
def test_a_case_is_told_by_its_recording_and_place(name: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        mutant = mutants.MUTANTS[name]
        mutant.breaks(stack)
        effort = replace(LOOKING, losses=mutant.losses)
        failures = (
            runner.crash(seed, effort=effort, steps=12, only=mutant.steps, keep_in=tmp_path).failures
            for seed in range(1, 1 + MOST_SEEDS)
        )
        failure = next(filter(None, failures))[0]
        *_, crash, again = failure.splitlines()
        path, _, case = again.removeprefix("again: python -m tests.crash again ").partition(" ")
        assert crash.startswith(f"crash {case}: ")
        recording = runner.load(Path(path))
        told = runner.again(recording, Case.parse(case))
    assert told is not None
    assert told.endswith(crash)
    assert "ADD 0 asked: " in told
    sound = Case((Step(Case.parse(case).steps[0].cut, "all"),))
    assert runner.again(recording, sound) is None


def test_the_command_line() -> None:
    command = [sys.executable, "-m", "tests.crash", "run", "2", "--short", "--steps", "3", "--jobs", "1"]
    ran = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith("1 runs with ")
