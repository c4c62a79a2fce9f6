"""Many random histories of replication (see histories.py), and broken rules that few histories must find."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.simulation.checks import check_histories, check_told_by_seed_alone, error_of_mutant
from tests.simulation.outcomes import InvariantError
from tests.simulation.replication.histories import History
from tests.simulation.replication.mutants import MUTANTS

HISTORIES = 120
#: In portions, so that a test stays within its time on a busy machine.
PORTION = 120
MOST_SEEDS = 1_500


@pytest.mark.parametrize("first", range(0, HISTORIES, PORTION))
def test_r1_r2_r3_r4_r5_r7_c14_c15_histories_of_replication(first: int) -> None:
    # What is rarer, such as a worker that fences, may be missing on a day.
    least = {
        "acknowledged": 2 * PORTION,
        "replaced": PORTION / 4,
        "disks lost": PORTION / 3,
        "came back empty": PORTION / 20,
        "copies removed": PORTION / 40,
        "marked again": PORTION / 80,
        "expired locks": PORTION / 100,
        "sessions lost": PORTION / 400,
        "Unrepairable": PORTION / 40,
        "NothingBad": PORTION / 5,
    }
    counts = check_histories("replication", range(first, first + PORTION), least)
    assert counts["never closed"] < PORTION / 50


def test_a_history_of_replication_is_told_by_its_seed_alone() -> None:
    check_told_by_seed_alone("replication", 11, "is acknowledged up to")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.__name__))
def test_mutants_of_replication_are_caught(mutant: Callable[[ExitStack], None]) -> None:
    with ExitStack() as stack:
        mutant(stack)
        assert isinstance(error_of_mutant("replication", mutant.__name__, History, MOST_SEEDS), InvariantError)
