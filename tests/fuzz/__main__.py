"""``python -m tests.fuzz``: more examples of hostile bytes than ``make test`` tries.

::

    python -m tests.fuzz 1-5              with the seeds 1 to 5, on one core
    python -m tests.fuzz 7 --factor 100   a hundred times as many examples as `make test`, of one seed
    python -m tests.fuzz today            the seed of the day

Beside the limits of each test, the process may have only so much address space. So a length that is believed is
noticed in C, too, where no allocation is counted.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.daily import first_seed_of_today

#: Python with all libraries maps about 2 GiB, most of it never touched.
_ADDRESS_SPACE_BYTES: Final = 8 * 1024**3


def _seeds(text: str) -> list[int]:
    """``1-50``, ``7``, ``3,8``, or ``today``."""
    if text == "today":
        return [first_seed_of_today()]
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        seeds += range(int(first), int(last) + 1) if dash else [int(first)]
    return seeds


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, _ADDRESS_SPACE_BYTES))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Hostile bytes for every decoder.")
    parser.add_argument("seeds", type=_seeds, help="1-50, or 7, or 3,8, or today")
    parser.add_argument("--factor", type=int, default=20, help="times as many examples as in `make test` (20)")
    parser.add_argument("tests", nargs="*", default=[str(Path(__file__).parent)], help="only these tests")
    arguments = parser.parse_intermixed_args()
    failed = False
    for seed in arguments.seeds:
        # A test may take as long as its examples do. What hangs is noticed by the test itself.
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=1500", *arguments.tests]
        environment = os.environ | {"FUZZ_SEED": str(seed), "FUZZ_FACTOR": str(arguments.factor)}
        failed |= subprocess.run(command, env=environment, preexec_fn=_limit).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
