"""``python -m tests.mutation``: break rules of the product in copies of its source, and see that tests fail.

::

    python -m tests.mutation                   all of them, on all cores
    python -m tests.mutation flush.py mark     those whose file or rule contains one of these
    python -m tests.mutation --turn 326000007  one of twenty parts of the list, another for each number
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from typing import Final

from tests.mutation import runner
from tests.mutation.lists import MUTATIONS
from tests.mutation.runner import Outcome, Verdict

#: Of these, a night takes as many as it has time for.
_TURNS: Final = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Rules that are broken on purpose.")
    parser.add_argument("parts", nargs="*", help="only mutations whose file or rule contains one of these")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes; as many as there are cores")
    parser.add_argument("--turn", type=int, help=f"only one of {_TURNS} parts of the list")
    arguments = parser.parse_args()
    parts: list[str] = arguments.parts or [""]
    mutations = [each for each in MUTATIONS if any(part in f"{each.file} {each.rule}" for part in parts)]
    if arguments.turn is not None:
        mutations = mutations[arguments.turn % _TURNS :: _TURNS]
    started, lock = time.monotonic(), threading.Lock()

    def tell(outcome: Outcome) -> None:
        mutation = outcome.mutation
        with lock:
            print(f"{outcome.verdict.value:<14} {outcome.seconds:5.1f} s  {mutation.file}: {mutation.rule}")
            if outcome.detail:
                print(textwrap.indent(outcome.detail, "    "))
            sys.stdout.flush()

    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        copy, trees = Path(directory, "copy"), Path(directory, "trees")
        runner.make_copy(copy)
        runner.check_imports(copy)
        failure = runner.failing_unmutated(mutations, copy, arguments.jobs)
        if failure:
            print(f"the tests must pass on the source as it is:\n{failure}")
            return 1
        print(f"all tests pass on the source as it is ({time.monotonic() - started:.0f} s)", flush=True)
        outcomes = runner.run_all(mutations, copy, trees, arguments.jobs, tell)
    found = sum(each.verdict is Verdict.FOUND for each in outcomes)
    print(f"after {time.monotonic() - started:.0f} s:")
    print(f"{found} mutations found, {len(outcomes) - found} not found")
    return 0 if found == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
