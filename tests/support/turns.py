"""Long tests that take turns: each day ``make test`` runs a part of them, and in some days all.

A test with the marker ``turns(n)`` runs on one day of ``n``. Tests of one file come one after the other, so that each
day some of them run; with ``turns(n, together=True)`` on the same day, because it is their common start that is long.
That holds where the environment says ``TEST_TURNS=today``. Everywhere else all tests run, in
``make nightly`` too.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Final

from tests.support.daily import number_of_today

VARIABLE: Final = "TEST_TURNS"
TODAY: Final = "today"
ALL: Final = "all"


def only_todays() -> bool:
    """Whether tests take turns. Raises ValueError for a value of the variable that means nothing."""
    given = os.environ.get(VARIABLE, ALL)
    if given not in (TODAY, ALL):
        raise ValueError(f"{VARIABLE} must be {TODAY} or {ALL}, not {given}")
    return given == TODAY


def whose_turn(tests: Sequence[tuple[str, int, bool]], day: int | None = None) -> list[bool]:
    """Return for each test whether it runs on ``day``, today if not given.

    Parameters
    ----------
    tests
        For each its file, on one of how many days it runs, and whether on the same as the others of the file.
    """
    today = number_of_today() if day is None else day
    seen: Counter[str] = Counter()
    turns = []
    for file, days, together in tests:
        # Files begin on different days, so that days are about equally long.
        turns.append((today + zlib.crc32(file.encode()) + (0 if together else seen[file])) % days == 0)
        seen[file] += 1
    return turns
