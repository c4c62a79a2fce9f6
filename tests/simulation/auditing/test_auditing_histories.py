"""Many random histories of self-healing (see histories.py), broken rules that few histories must find, and R4."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from random import Random

import pytest

from bookie_server.replication.actions import MarkLedgers, Step
from tests.simulation.auditing.daemon import Daemon
from tests.simulation.auditing.histories import History
from tests.simulation.auditing.mutants import MUTANTS
from tests.simulation.auditing.world import World
from tests.simulation.checks import check_histories, check_told_by_seed_alone, error_of_mutant

HISTORIES = 24
#: In portions, so that a test stays within its time on a busy machine.
PORTION = 24
MOST_SEEDS = 200


@pytest.mark.parametrize("first", range(0, HISTORIES, PORTION))
def test_r4_histories_of_self_healing(first: int) -> None:
    # What is rarer, such as a shortage of bookies, may be missing on a day.
    least = {
        "elections": PORTION / 2,
        "expiries": PORTION / 20,
        "audits": PORTION,
        "checks of ledgers": PORTION,
        "lost bookies": PORTION,
        "returned bookies": PORTION / 2,
        "marks": 10 * PORTION,
        "repairs": 10 * PORTION,
        "finished": 10 * PORTION,
        "switches": PORTION / 20,
    }
    check_histories("auditing", range(first, first + PORTION), least)


def test_a_history_of_self_healing_is_told_by_its_seed_alone() -> None:
    check_told_by_seed_alone("auditing", 11, "is elected")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.__name__))
def test_mutants_of_self_healing_are_caught(mutant: Callable[[ExitStack], None]) -> None:
    with ExitStack() as stack:
        mutant(stack)
        error_of_mutant("auditing", mutant.__name__, History, MOST_SEEDS)


def test_r4_an_auditor_that_does_not_know_of_its_session_end_marks_nothing_beside_its_successor() -> None:
    """The old one has an audit under way, and goes on with every step of it while the new one audits."""
    world = World(Random(1))
    world.weather = 0.0
    world.set_delay(0)
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


@pytest.mark.parametrize("seed", range(5))
def test_an_audit_that_was_asked_for_while_there_was_no_auditor_is_not_lost(seed: int) -> None:
    world = World(Random(seed))
    world.weather = 0.0
    world.set_delay(10**9)
    play(world, lambda: auditor_of(world) is not None and world.counts.get("audits", 0) > 0)
    old = auditor_of(world)
    assert old is not None
    world.expire_session(old)
    world.lose_bookie()
    world.trigger()
    # The next auditor reads the delay for the first time. It does not wait for the bookie.
    play(world, lambda: world.counts.get("marks", 0) > 0)
    assert world.now_ms < world.delay_ms


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
