"""Many random histories of collection (see histories.py), and broken rules that few histories must find."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.simulation.checks import check_histories, check_told_by_seed_alone, error_of_mutant
from tests.simulation.collection.histories import History
from tests.simulation.collection.mutants import MUTANTS
from tests.simulation.outcomes import InvariantError

HISTORIES = 160
#: In portions, so that a test stays within its time on a busy machine.
PORTION = 160
MOST_SEEDS = 1_000


@pytest.mark.parametrize("first", range(0, HISTORIES, PORTION))
def test_g1_g2_g3_g4_histories_of_collection(first: int) -> None:
    least = {
        "made again": 20 * PORTION,
        "removed": PORTION,
        "refused": PORTION / 20,
        "replicated": PORTION / 10,
        "foreign": PORTION / 10,
        "stopped": PORTION / 40,
        "words": 0,
        "sessions": PORTION / 10,
        "partial lists": PORTION / 10,
        "kills": 0,
        "set back": PORTION / 80,
    }
    check_histories("collection", range(first, first + PORTION), least)


def test_a_history_of_collection_is_told_by_its_seed_alone() -> None:
    check_told_by_seed_alone("collection", 11, "a pass for")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.__name__))
def test_mutants_of_collection_are_caught(mutant: Callable[[ExitStack], None]) -> None:
    with ExitStack() as stack:
        mutant(stack)
        assert isinstance(error_of_mutant("collection", mutant.__name__, History, MOST_SEEDS), InvariantError)
