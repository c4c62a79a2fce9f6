"""``python -m tests.nightly``: all long runs with the seeds of the day, and a report.

::

    python -m tests.nightly                     about two hours
    python -m tests.nightly --minutes 10        the same runs with less of each
    python -m tests.nightly --day 2026-11-23    the seeds of that day
"""

from __future__ import annotations

import argparse
import datetime
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.nightly.lane import go_through
from tests.nightly.plan import DECODERS_AND_MUTANTS, MODELS, SERVERS, with_another_python
from tests.support.daily import FIRST_DAY, first_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nightly", description="The long runs of a night.")
    parser.add_argument("--minutes", type=float, default=115, help="time for all (115)")
    parser.add_argument("--day", type=datetime.date.fromisoformat, default=None, help="whose seeds: today in UTC")
    parser.add_argument("--directory", type=Path, default=Path("build/nightly"), help="of the report and outputs")
    arguments = parser.parse_args()
    day = arguments.day or datetime.datetime.now(datetime.UTC).date()
    seed = first_seed(day)
    if seed < 0:
        parser.error(f"argument --day: must be {FIRST_DAY} or later")
    directory: Path = arguments.directory
    directory.mkdir(parents=True, exist_ok=True)
    print(f"seeds of {day}: from {seed} on", flush=True)
    # Models, and decoders with mutants, use a core each, as far as servers leave it.
    lanes_of_runs = (MODELS, DECODERS_AND_MUTANTS, (*SERVERS, *with_another_python((day - FIRST_DAY).days)))
    with ThreadPoolExecutor(len(lanes_of_runs)) as lanes:
        seconds = arguments.minutes * 60
        begun = [lanes.submit(go_through, runs, seed, seconds, directory) for runs in lanes_of_runs]
        outcomes = [outcome for lane in begun for outcome in lane.result()]
    report = directory / f"report-{day}.txt"
    report.write_text("".join(f"{outcome}\n" for outcome in outcomes))
    failed = [outcome.run.name for outcome in outcomes if outcome.failures]
    print(f"report: {report}; {'failed: ' + ', '.join(failed) if failed else 'all held'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
