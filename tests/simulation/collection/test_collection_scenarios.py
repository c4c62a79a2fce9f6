"""Interleavings of collection and replication that few random histories reach."""

from __future__ import annotations

from random import Random

import pytest

from bookie_server.gc.brake import CollectionBrakeLimits
from tests.simulation.collection.world import LEDGERS, LOCKS, World

LEDGER = LEDGERS[0]
OVER_REPLICATED = 1


class Scripted(World):
    """Nobody acts but once: the session ends at the given opportunity after the ledger was removed."""

    def __init__(self, ends_at: int) -> None:
        self.left = ends_at
        super().__init__(Random(1), CollectionBrakeLimits(share=1.0, least=100))

    def meanwhile(self) -> None:
        if self.busy and LEDGER in self.storage.removed:
            self.left -= 1
            if self.left == 0:
                self.end_session()


@pytest.mark.parametrize("ends_at", range(1, 9))
def test_r3_a_worker_takes_the_lock_of_a_collector_whose_session_ends(ends_at: int) -> None:
    world = Scripted(ends_at)
    world.make(LEDGER)
    world.move_away(LEDGER)
    world.collect(OVER_REPLICATED)
    assert world.storage.removed == [LEDGER]
    assert (world.own.read(f"{LOCKS}{LEDGER:010d}") is not None) == bool(world.copies)
    world.collect(OVER_REPLICATED)
    while world.copies:
        world.finish_copy()
    world.check()


def test_a_collector_whose_session_ended_collects_in_its_next_one() -> None:
    world = Scripted(0)
    for ledger_id in LEDGERS[:2]:
        world.make(ledger_id)
        world.move_away(ledger_id)
        world.collect(OVER_REPLICATED)
        assert world.storage.removed == [ledger_id]
        world.end_session()
