"""Many random histories of self-healing (see histories.py), broken rules that few histories must find, and R4."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from random import Random

import pytest

from bookie_server.replication.actions import MarkLedgers, Step
from tests.simulation import runner
from tests.simulation.auditing.histories import History
from tests.simulation.auditing.mutants import MUTANTS
from tests.simulation.auditing.world import Daemon, World

HISTORIES = 200
#: In portions, so that a test stays within its time on a busy machine.
PORTION = 100
#: If this many histories do not find a mutant, they have lost their power.
MOST_SEEDS = 200


@pytest.mark.parametrize("first", range(0, HISTORIES, PORTION))
def test_r4_histories_of_self_healing(first: int) -> None:
    summary = runner.play_all(range(first, first + PORTION), jobs=2, kind="auditing")
    print(summary)
    assert not summary.failures, "\n\n".join(summary.failures)
    assert summary.histories == PORTION
    counts = summary.result.counts
    # Histories in which nothing happens would prove nothing.
    for name, least in (
        ("elections", PORTION),
        ("expiries", PORTION / 2),
        ("audits", PORTION),
        ("lost bookies", PORTION),
        ("returned bookies", PORTION / 2),
        ("marks", 10 * PORTION),
        ("repairs", 10 * PORTION),
        ("finished", 10 * PORTION),
        ("switches", PORTION / 4),
        ("triggers", PORTION / 20),
        ("shortages", PORTION / 20),
    ):
        assert counts[name] > least, (name, counts[name])


def test_a_history_of_self_healing_is_told_by_its_seed_alone() -> None:
    stories = []
    for _ in range(2):
        history = History(11)
        history.play()
        stories.append(history.world.story(10_000))
    assert stories[0] == stories[1]
    assert "is elected" in stories[0]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.__name__))
def test_mutants_of_self_healing_are_caught(mutant: Callable[[ExitStack], None]) -> None:
    with ExitStack() as stack:
        mutant(stack)
        for seed in range(MOST_SEEDS):
            try:
                History(seed).play()
            except Exception as error:
                print(f"{mutant.__name__}: seed {seed}: {error}")
                return
    raise AssertionError(f"not found among {MOST_SEEDS}")


def test_r4_an_auditor_that_does_not_know_of_its_session_end_marks_nothing_beside_its_successor() -> None:
    """The old one has an audit under way, and goes on with every step of it while the new one audits."""
    world = World(Random(1))
    world.weather, world.delay_ms = 0.0, 0
    play(world, lambda: auditor_of(world) is not None and world.counts.get("audits", 0) > 0)
    old = auditor_of(world)
    assert old is not None
    world.lose_bookie()
    play(world, lambda: any(is_mark(action) for _, action in old.actions))
    world.expire_session(old)
    old.hears_ms = 10**9
    play(world, lambda: len([each for each in world.daemons if each.auditor is not None and each.alive]) == 1)
    marks = world.counts.get("marks", 0)
    # The successor marks; what the old one sends is refused, and it stands down.
    play(world, lambda: old.auditor is None)
    play(world, lambda: world.counts.get("marks", 0) > marks)
    play(world, lambda: world.counts.get("finished", 0) >= 10)


def auditor_of(world: World) -> Daemon | None:
    return next((each for each in world.daemons if each.auditor is not None), None)


def is_mark(action: object) -> bool:
    return isinstance(action, Step) and isinstance(action.action, MarkLedgers)


def play(world: World, until: Callable[[], bool]) -> None:
    for _ in range(20_000):
        if until():
            return
        world.step()
    raise AssertionError(world.story())
