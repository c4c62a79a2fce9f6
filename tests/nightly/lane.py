"""Runs that follow each other, each until its time is used."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.nightly.plan import Run, lines_that_repeat

#: A call that takes longer than this hangs.
_CALL_TIMEOUT_S: Final = 1_800
#: So long a command may take to clean up after an interrupt.
_STOP_TIMEOUT_S: Final = 60
#: More failures of one run add nothing.
_MOST_FAILURES: Final = 3


@dataclass(slots=True)
class Outcome:
    """What became of one run."""

    run: Run
    first_seed: int
    #: Behind the last seed that was tried.
    end_seed: int
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    #: For each failure: what happened, the file with the output, and the lines that repeat it.
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        verdict = f"{len(self.failures)} FAILED" if self.failures else "ok"
        counted = ", ".join(f"{number} {what}" for what, number in sorted(self.counts.items()))
        seeds = f"seeds {self.first_seed} to {self.end_seed - 1}"
        return "\n  ".join([f"{self.run.name}: {verdict}, {seeds}, {self.seconds:.0f} s; {counted}", *self.failures])


def go_through(runs: Sequence[Run], first_seed: int, seconds: float, directory: Path) -> list[Outcome]:
    """Call each of ``runs`` again and again with the next seeds, from ``first_seed`` on, until its share of ``seconds``
    is used, but at least once. What a run leaves goes to the next ones. Outputs of failed calls are kept in
    ``directory``."""
    outcomes: list[Outcome] = []
    shares = sum(run.share for run in runs)
    end = time.monotonic() + seconds
    for run in runs:
        begin = time.monotonic()
        outcome = Outcome(run, first_seed, first_seed)
        until = begin + (end - begin) * run.share / shares
        shares -= run.share
        _call(outcome, directory)
        while time.monotonic() < until and len(outcome.failures) < _MOST_FAILURES:
            _call(outcome, directory)
        outcome.seconds = time.monotonic() - begin
        outcomes.append(outcome)
        print(outcome, flush=True)
    return outcomes


def _call(outcome: Outcome, directory: Path) -> None:
    run, first = outcome.run, outcome.end_seed
    last = first + run.seeds - 1
    outcome.end_seed = last + 1
    path = directory / f"{run.name.replace(' ', '-')}-{first}.log"
    with path.open("w") as log:
        process = subprocess.Popen(
            run.command(first, last),
            env=os.environ | run.environment(first, last),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(_CALL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    output = path.read_text(errors="replace")
    outcome.counts += run.counts(output)
    if code == 0:
        path.unlink()
        return
    what = f"no end within {_CALL_TIMEOUT_S} s" if code is None else f"exit code {code}"
    repeat = lines_that_repeat(output) or [run.repeat(first, last)]
    outcome.failures.append("\n    ".join([f"{what}, output in {path}; repeat with:", *repeat]))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and all that it started."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                continue
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
