"""The small worlds that are explored. A world of the first kind takes seconds; the bigger ones minutes to hours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.quorum import Quorum
from tests.simulation.events import Command
from tests.simulation.explored import Budget
from tests.simulation.histories import Cast
from tests.simulation.world import World
from tests.simulation.writers import WriterActor
from tests.support.ledgers import ledger


@dataclass(frozen=True, slots=True)
class SmallWorld:
    """A writer that adds ``entries`` one by one, and recoverers that start at any time."""

    quorum: Quorum
    bookies: int
    recoverers: int
    budget: Budget = field(default_factory=Budget)
    #: In the form of :func:`tests.support.ledgers.ledger`.
    segments: Sequence[tuple[int, str]] = ()
    entries: int = 1
    closes: bool = False
    #: If true, the writer also forces, at any time.
    deferred_sync: bool = False
    #: If false, somebody else may use the ledger's id at the last bookie, at any time.
    claimed: bool = True

    def world(self, cast: Cast | None = None) -> World:
        """The world in its initial state."""
        cast = cast or Cast()
        metadata = ledger(self.quorum, *self.segments, digest_type=DigestType.DUMMY)
        world = World(metadata, self.bookies)
        world.add(WriterActor("w", metadata, cast.writer, deferred_sync=self.deferred_sync, claimed=self.claimed))
        for _ in range(self.entries):
            world.post(Command("append", "w", (1,)))
        if self.deferred_sync:
            world.post(Command("force", "w"))
        if not self.claimed:
            world.post(Command("usurp", f"b{self.bookies}"))
        if self.closes:
            world.post(Command("close", "w"))
        for number in range(1, self.recoverers + 1):
            world.add(cast.recoverer(f"r{number}", metadata, read_ahead_entries=1))
            world.post(Command("start", f"r{number}"))
        return world


_332, _222, _221, _331 = Quorum(3, 3, 2), Quorum(2, 2, 2), Quorum(2, 2, 1), Quorum(3, 3, 1)
_TWO_SEGMENTS = ((0, "b1 b2"), (1, "b3 b4"))

#: Explored in every test run.
SMALL_WORLDS = {
    "2/2/2 and a spare, a recoverer, a lost message": SmallWorld(_222, 3, 1, Budget(losses=1)),
    "2/2/2, a recoverer, a crash": SmallWorld(_222, 2, 1, Budget(crashes=1)),
    "2/2/2, two recoverers": SmallWorld(_222, 2, 2),
    "2/2/1, two recoverers": SmallWorld(_221, 2, 2),
    "2/2/2, two recoverers, one is killed": SmallWorld(_222, 2, 2, Budget(kills=1), entries=0),
    "2/2/2, a recoverer, the writer closes": SmallWorld(_222, 2, 1, Budget(losses=1), closes=True),
    "1/1/1 with deferred sync, a recoverer, a crash": SmallWorld(
        Quorum(1, 1, 1), 2, 1, Budget(crashes=1), deferred_sync=True
    ),
    "2/2/2 after a finished segment, two lost messages": SmallWorld(
        _222, 5, 1, Budget(losses=2), _TWO_SEGMENTS, entries=0
    ),
}
#: For long runs.
BIGGER_WORLDS = {
    "3/3/2, a recoverer, a lost message": SmallWorld(_332, 3, 1, Budget(losses=1)),
    "3/3/2 and a spare, a recoverer, a lost message": SmallWorld(_332, 4, 1, Budget(losses=1)),
    "3/3/2, a recoverer, a crash": SmallWorld(_332, 3, 1, Budget(crashes=1)),
    "3/3/2, a recoverer, two lost messages": SmallWorld(_332, 3, 1, Budget(losses=2)),
    "3/3/2, two recoverers": SmallWorld(_332, 3, 2),
    "3/3/1, a recoverer, a lost message": SmallWorld(_331, 3, 1, Budget(losses=1)),
    "2/2/2, two recoverers, a lost message": SmallWorld(_222, 2, 2, Budget(losses=1)),
    "2/2/2, two recoverers, one is killed, an entry": SmallWorld(_222, 2, 2, Budget(kills=1)),
    "2/2/2 and a spare, a recoverer, a crash": SmallWorld(_222, 3, 1, Budget(crashes=1)),
    "2/2/2 with deferred sync, a recoverer, a crash": SmallWorld(_222, 2, 1, Budget(crashes=1), deferred_sync=True),
    "2/2/2, a recoverer, a lost message and a crash": SmallWorld(_222, 2, 1, Budget(losses=1, crashes=1)),
    "2/2/2, two entries, a recoverer, a lost message": SmallWorld(_222, 2, 1, Budget(losses=1), entries=2),
}
