"""Random histories of collection, each determined by its seed: one pass after another, while everything else continues.

In some, the metadata service is created again, is a different one for a while, or loses ledgers. An operator may or may
not release the brake.
"""

from __future__ import annotations

import logging
from random import Random

from bookie_server.gc.brake import CollectionBrakeLimits
from tests.simulation.collection.world import LEDGERS, World
from tests.simulation.outcomes import Counts


class History:
    """One history. Replay a failing one with ``python -m tests.simulation replay <seed> --collection``."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self.limits = CollectionBrakeLimits(random.choice([0.3, 0.5, 0.5]), random.choice([2, 4]))
        self.world = World(random, self.limits)

    def play(self) -> Counts:
        """Raises InvariantError, or any error of the shipped code."""
        logger = logging.getLogger("bookie_server.gc")
        level = logger.level
        logger.setLevel(logging.CRITICAL)  # the story tells it
        try:
            return self._play()
        finally:
            logger.setLevel(level)

    def _play(self) -> Counts:
        world, random = self.world, self.random
        for ledger_id in LEDGERS:
            world.make(ledger_id)
        fate = random.choice(["", "", "anew", "elsewhere", "lost", "set back"])
        passes = random.randint(2, 5)
        when = random.randrange(passes)
        for number in range(passes):
            for _ in range(random.randint(0, 20)):
                world.act()
            if number == when:
                self._befall(fate)
            elif fate == "elsewhere" and random.random() < 0.3:
                world.lead_back()
            world.collect(random.choice([0, 0, 1]))
            for brake in world.brakes:
                if brake.stopped is not None and random.random() < 0.3:
                    world.tell(f"an operator gives the word for {len(brake.stopped.ledgers)} ledgers", "words")
                    brake.release()
                    self._after_a_word(world.brakes.index(brake))
            world.check()
        while world.copies:
            world.finish_copy()
        world.check()
        world.counts["partial lists"] = world.zk.partial_lists
        return world.counts

    def _after_a_word(self, kind: int) -> None:
        """More ledgers are lost before the pass that the release is for, or after it, or none."""
        world, chance = self.world, self.random.random()
        if chance < 0.3:
            world.lose_ledgers(0.9)
        elif chance < 0.6:
            world.collect(kind)
            for ledger_id in LEDGERS:
                world.make(ledger_id)
            world.lose_ledgers(0.9)

    def _befall(self, fate: str) -> None:
        match fate:
            case "anew":
                self.world.make_anew()
            case "elsewhere":
                self.world.lead_elsewhere()
            case "set back":
                self.world.set_back()
            case "lost":
                self.world.lose_ledgers(self.random.choice([0.2, 0.6, 0.9]))
