"""``python -m tests.crash``: recorded runs of a bookie, cut everywhere, or one case again.

::

    python -m tests.crash run 1-50                  runs 1 to 50, on all cores
    python -m tests.crash run 7 --short             one, with as few disks at each cut as `make test` tries
    python -m tests.crash again FILE 123:mixture-4711  one case of a recording that `run` has left, with all that
                                                    happened before it; a seed in place of FILE records anew
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.crash import runner
from tests.crash.crashes import SHORT, Case, Effort
from tests.crash.histories import record


def _seeds(text: str) -> list[int]:
    """``1-50``, ``7``, or ``3,8``."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        seeds += range(int(first), int(last) + 1) if dash else [int(first)]
    return seeds


def _run(arguments: argparse.Namespace) -> bool:
    start = time.monotonic()

    def progress(summary: runner.Summary) -> None:
        if sys.stderr.isatty():
            print(f"\r{summary.runs} of {len(arguments.seeds)} ", end="", file=sys.stderr, flush=True)

    effort = SHORT if arguments.short else Effort()
    summary = runner.crash_all(arguments.seeds, effort, arguments.steps, arguments.jobs, progress)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    for failure in summary.failures:
        print(failure, end="\n\n")
    print(f"{summary} ({time.monotonic() - start:.0f} s)")
    return not summary.failures


def _again(arguments: argparse.Namespace) -> bool:
    what: str = arguments.recording
    recording = record(int(what), arguments.steps) if what.isdigit() else runner.load(Path(what))
    failure = runner.again(recording, arguments.case)
    print(failure or f"crash {arguments.case}: holds")
    return failure is None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description="Crashes of a bookie's storage.")
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="recorded runs, cut everywhere")
    run.add_argument("seeds", type=_seeds, help="1-50, or 7, or 3,8")
    run.add_argument("--jobs", type=int, default=None, help="processes; as many as there are cores")
    run.add_argument("--short", action="store_true", help="fewer disks at each cut")
    run.set_defaults(act=_run)
    again = commands.add_parser("again", help="one case again")
    again.add_argument("recording", help="a file that a failing run has left, or a seed")
    again.add_argument("case", type=Case.parse, help="cut:what the disk keeps, as the failure printed it")
    again.set_defaults(act=_again)
    for command in (run, again):
        command.add_argument("--steps", type=int, default=runner.STEPS, help="steps of a run")
    arguments = parser.parse_args()
    return 0 if arguments.act(arguments) else 1


if __name__ == "__main__":
    sys.exit(main())
