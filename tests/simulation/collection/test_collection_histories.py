"""Many random histories of collection (see histories.py), and broken rules that few histories must find."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.simulation import runner
from tests.simulation.collection.histories import History
from tests.simulation.collection.mutants import MUTANTS
from tests.simulation.collection.world import InvariantError

HISTORIES = 400
#: In portions, so that a test stays within its time on a busy machine.
PORTION = 200
#: If this many histories do not find a mutant, they have lost their power.
MOST_SEEDS = 1_000


@pytest.mark.parametrize("first", range(0, HISTORIES, PORTION))
def test_g1_g2_g3_histories_of_collection(first: int) -> None:
    summary = runner.play_all(range(first, first + PORTION), jobs=2, kind="collection")
    print(summary)
    assert not summary.failures, "\n\n".join(summary.failures)
    assert summary.histories == PORTION
    counts = summary.result.counts
    # Histories in which nothing happens would prove nothing.
    for name, least in (
        ("made again", 20 * PORTION),
        ("removed", PORTION),
        ("refused", PORTION / 10),
        ("replicated", PORTION / 10),
        ("foreign", PORTION / 10),
        ("stopped", PORTION / 10),
        ("words", PORTION / 40),
        ("sessions", PORTION / 10),
        ("partial lists", PORTION / 10),
        ("kills", PORTION / 100),
    ):
        assert counts[name] > least, (name, counts[name])


def test_a_history_of_collection_is_told_by_its_seed_alone() -> None:
    stories = []
    for _ in range(2):
        history = History(11)
        history.play()
        stories.append(history.world.story(10_000))
    assert stories[0] == stories[1]
    assert "a pass for" in stories[0]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.__name__))
def test_mutants_of_collection_are_caught(mutant: Callable[[ExitStack], None]) -> None:
    with ExitStack() as stack:
        mutant(stack)
        for seed in range(MOST_SEEDS):
            try:
                History(seed).play()
            except InvariantError as error:
                print(f"{mutant.__name__}: seed {seed}: {error}")
                return
    raise AssertionError(f"not found among {MOST_SEEDS}")
