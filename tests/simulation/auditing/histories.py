"""Random histories of self-healing, each determined by its seed. In the end everything heals and must finish."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

from bk_spark.bookie.replication import ledger_marks
from bk_spark.protocol.metadata import ledger_metadata, under_replication
from bookie_server.replication.auditing import auditor_store, scans
from tests.simulation.auditing.cluster import decoded
from tests.simulation.auditing.world import DELAY_MS, World
from tests.simulation.bytes_cache import parse_text
from tests.simulation.outcomes import Counts, InvariantError

#: Moves in the end after which everything must be repaired.
MOST_MOVES = 60_000
#: Model time for that: the delay, an audit, and the longest pause of a ledger that could not be repaired.
MOST_HEALING_MS = DELAY_MS + 2 * 300_000
#: How long bookies are too few in some histories.
SHORTAGE_MS = 1_000_000


#: What happens shortly after one another.
EVENTS = (
    ("lose",),
    ("lose",),
    ("lose", "lose"),
    ("return",),
    ("lose", "return", "lose"),
    ("expire",),
    ("lose", "depose"),
    ("lose", "lose", "depose", "expire"),
    ("lose", "disable", "enable"),
    ("disable", "lose", "expire", "enable"),
    ("disable",),
    ("trigger",),
    ("make", "lose"),
    ("make", "lose", "delete", "lose"),
)


class History:
    """One history. Replay a failing one with ``python -m tests.simulation replay <seed> --auditing``."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.world = World(self.random)

    def play(self) -> Counts:
        """Raises InvariantError, or any error of the shipped code."""
        with (
            patch.object(scans, "PAGE_LEDGERS", 8),
            patch.object(scans, "_PAGES_PER_PROGRESS", 2),
            patch.object(ledger_marks, "MARKS_PER_PAGE", 8),
            patch.object(under_replication, "parse_text", parse_text),
            patch.object(ledger_metadata, "decode", decoded),
            patch.object(auditor_store, "unix_time_ms", lambda: self.world.now_ms),
        ):
            self._rage()
            if self.random.random() < 0.2:
                self._shortage()
            self._heal()
        return self.world.counts

    def _rage(self) -> None:
        world, random = self.world, self.random
        for _ in range(random.choice([1, 1, 3, 8])):
            for event in random.choice(EVENTS):
                getattr(self, f"_{event}")()
                for _ in range(random.choice([0, 0, 5, 20, 50])):
                    world.step()
            for _ in range(random.choice([0, 50, 400])):
                world.step()

    def _lose(self) -> None:
        self.world.lose_bookie()

    def _return(self) -> None:
        self.world.return_bookie()

    def _expire(self) -> None:
        self.world.expire_session(self.random.choice(self.world.daemons))

    def _depose(self) -> None:
        auditors = [daemon for daemon in self.world.daemons if daemon.auditor is not None]
        if auditors:
            self.world.expire_session(auditors[0])

    def _disable(self) -> None:
        self.world.switch(True)

    def _enable(self) -> None:
        self.world.switch(False)

    def _trigger(self) -> None:
        self.world.trigger()

    def _make(self) -> None:
        for _ in range(3):
            self.world.make_ledger()

    def _delete(self) -> None:
        self.world.delete_ledger()

    def _shortage(self) -> None:
        """Too few bookies for a repair. Attempts must not become more and more."""
        world = self.world
        world.switch(False)
        while len(world.registered) > 2:
            world.lose_bookie()
        world.repairs.clear()
        begun_ms, world.weather = world.now_ms, 0.0
        for _ in range(MOST_MOVES):
            if world.now_ms - begun_ms > SHORTAGE_MS:
                break
            world.step()
        else:
            raise InvariantError(f"time stands still: {world.now_ms - begun_ms} ms in {MOST_MOVES} moves")
        world.counts["shortages"] = 1
        world.check_retries(SHORTAGE_MS, len(world.daemons))

    def _heal(self) -> None:
        world, random = self.world, self.random
        world.weather = 0.0
        world.switch(False)
        wanted = random.choice([4, 5, 6])
        while len(world.registered) < wanted:
            world.return_bookie()
        begun_ms = world.now_ms
        for _ in range(MOST_MOVES):
            if world.now_ms - begun_ms > MOST_HEALING_MS:
                break
            world.step()
        else:
            raise InvariantError(f"time stands still: {world.now_ms - begun_ms} ms in {MOST_MOVES} moves")
        world.check_end()
