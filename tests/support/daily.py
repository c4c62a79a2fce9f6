"""Seeds that change every day, so that runs of the same size try other histories tomorrow."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Final

FIRST_DAY: Final = date(2026, 1, 1)
#: No run tries more in a day.
_SEEDS_A_DAY: Final = 1_000_000


def first_seed(day: date) -> int:
    """Of the seeds of ``day``: 326000000 on 2026-11-23."""
    return (day - FIRST_DAY).days * _SEEDS_A_DAY


def first_seed_of_today() -> int:
    """Today is UTC's."""
    return first_seed(datetime.now(UTC).date())


def number_of_today() -> int:
    """Days since the first one."""
    return first_seed_of_today() // _SEEDS_A_DAY
