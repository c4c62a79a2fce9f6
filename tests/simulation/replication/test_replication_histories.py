"""Many random histories of replication (see histories.py), and broken rules that few histories must find."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.simulation import runner
from tests.simulation.invariants import InvariantError
from tests.simulation.replication.histories import History
from tests.simulation.replication.mutants import MUTANTS

HISTORIES = 1_200
#: In portions, so that a test stays within its time on a busy machine.
PORTION = 400
#: If this many histories do not find a mutant, they have lost their power.
MOST_SEEDS = 1_500


@pytest.mark.parametrize("first", range(0, HISTORIES, PORTION))
def test_r1_r2_r3_r4_r5_r7_c14_c15_histories_of_replication(first: int) -> None:
    summary = runner.play_all(range(first, first + PORTION), jobs=2, kind="replication")
    print(summary)
    assert not summary.failures, "\n\n".join(summary.failures)
    assert summary.histories == PORTION
    counts = summary.result.counts
    # Histories in which nothing happens would prove nothing.
    for name, least in (
        ("acknowledged", 3 * PORTION),
        ("replaced", PORTION / 4),
        ("disks lost", PORTION / 3),
        ("came back empty", PORTION / 20),
        ("fenced by a worker", PORTION / 50),
        ("copies removed", PORTION / 20),
        ("marked again", PORTION / 30),
        ("expired locks", PORTION / 100),
        ("sessions lost", PORTION / 400),
        ("Unrepairable", PORTION / 20),
        ("NothingBad", PORTION / 5),
    ):
        assert counts.get(name, 0) > least, (name, counts.get(name, 0))
    assert counts.get("never closed", 0) < PORTION / 50


def test_a_history_of_replication_is_told_by_its_seed_alone() -> None:
    stories = []
    for _ in range(2):
        history = History(11)
        history.play()
        stories.append(history.world.story(10_000))
    assert stories[0] == stories[1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.__name__))
def test_mutants_of_replication_are_caught(mutant: Callable[[ExitStack], None]) -> None:
    with ExitStack() as stack:
        mutant(stack)
        for seed in range(MOST_SEEDS):
            try:
                History(seed).play()
            except InvariantError as error:
                print(f"{mutant.__name__}: seed {seed}: {error}")
                return
    raise AssertionError(f"not found among {MOST_SEEDS}")
