"""Random histories of one ledger, each determined by its seed.

A history has a writer, up to three recoverers, up to two readers, a tail, a replication worker, and bookies. It draws
what they do, what fails and how often, and then, step by step, which pending event happens next. At the end, or
halfway, everything heals (*liveness*): all pending work must finish, the ledger must be closed, and all of it must be
readable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.ledger.recovery import LedgerRecovery
from bk_spark.protocol.ledger.writer import LedgerWriter
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.quorum import Quorum
from tests.simulation.events import (
    DOUBLE,
    LOSE,
    REFUSE,
    SLOW,
    STORE,
    Answer,
    Choose,
    Command,
    Event,
    Expire,
    MetaCall,
    MetaReply,
    Nap,
    Request,
    Slow,
    Tick,
    Way,
)
from tests.simulation.outcomes import Counts, InvariantError
from tests.simulation.readers import ReaderActor, ReplicationActor
from tests.simulation.recoverers import RecoveryActor
from tests.simulation.servers import ModelBookie
from tests.simulation.tails import TailActor
from tests.simulation.world import LINKS, World
from tests.simulation.writers import Actor, WriterActor
from tests.support.ledgers import ledger

QUORUMS = [
    *[Quorum(3, 3, 2)] * 5,
    *[Quorum(3, 2, 2)] * 2,
    *[Quorum(2, 2, 2)] * 3,
    *[Quorum(4, 3, 2)] * 2,
    Quorum(3, 3, 3),
    Quorum(3, 3, 1),
    Quorum(2, 2, 1),
    Quorum(1, 1, 1),
    Quorum(4, 4, 3),
    Quorum(5, 3, 2),
    Quorum(5, 5, 3),
    Quorum(5, 2, 1),
]
MOST_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class Cast:
    """The actors; mutants replace one of them. ``deferred_sync`` and ``claimed``: drawn if None."""

    writer: type[LedgerWriter] = LedgerWriter
    deferred_sync: bool | None = None
    claimed: bool | None = None
    recovery: type[LedgerRecovery] = LedgerRecovery
    tail: type[TailActor] = TailActor

    def recoverer(self, name: str, metadata: LedgerMetadata, *, read_ahead_entries: int = 3) -> RecoveryActor:
        assert metadata.digest_type is not None
        return RecoveryActor(name, metadata.digest_type, self.recovery, read_ahead_entries=read_ahead_entries)


@dataclass(frozen=True, slots=True)
class Weather:
    """Probabilities: that a message is lost, that a request is refused or doubled, and that an event is overtaken
    by a hundred others, so that whole conversations fit in between. ``lateness`` is the same for fences and adds only:
    it separates what a recovery fences from what it reads."""

    loss: float = 0.0
    refusal: float = 0.0
    doubling: float = 0.0
    slowness: float = 0.0
    lateness: float = 0.0


class RandomWorld(World):
    """A world whose events are drawn."""

    def __init__(self, random: Random, weather: Weather, metadata: LedgerMetadata, bookies: int) -> None:
        self.random = random
        self.weather = weather
        self.slow: list[Event] = []
        self.naps: list[Event] = []
        self.steps = self.faults = 0
        self.healed = False
        super().__init__(metadata, bookies)

    def run(self, most_steps: int) -> bool:
        """Whether everything came to rest within ``most_steps``."""
        chance, end = self.random.random, self.steps + most_steps
        while self.steps < end:
            pending, slow = self.pending, self.slow
            bag = slow if slow and (not pending or chance() < 0.01) else pending
            if not bag:
                return True
            if self.naps and chance() < 0.05:
                bag = self.naps
            self.steps += 1
            index = int(chance() * len(bag))
            event = bag[index]
            way = self._draw(event)
            if way != LOSE and self.links.cut and self.links.block(event):
                if chance() < 0.02:
                    self.command("mend", LINKS)
                continue
            bag[index] = bag[-1]
            bag.pop()
            if isinstance(event, Command):
                self._decide(event)
            else:
                self.happen(event, way)
        return not self.pending and not self.slow

    def post(self, event: Event) -> None:
        if isinstance(event, Nap):
            self.naps.append(event)
            return
        if isinstance(event, Slow | Expire | Tick) and self.random.random() < 0.8:
            return
        slowness = self.weather.slowness
        if self.weather.lateness and isinstance(event, Request) and event.tag[0] in ("fence", "add"):
            slowness = self.weather.lateness
        (self.slow if slowness and self.random.random() < slowness else self.pending).append(event)

    def forget(self, actor: str) -> None:
        super().forget(actor)
        self.slow = list(self.unawaited(actor, self.slow))
        self.naps = list(self.unawaited(actor, self.naps))

    def withdraw(self, event: Event) -> None:
        super().withdraw(event)
        for bag in (self.slow, self.naps):
            if event in bag:
                bag.remove(event)

    def wake(self) -> None:
        """End all naps."""
        naps, self.naps = self.naps, []
        self.pending += naps

    def heal(self) -> None:
        """End all faults. Permanent damage stays (lost disks, failed clients)."""
        self.healed = True
        self.weather = Weather()
        self.pending, self.slow = self.pending + self.slow, []
        self.pending = [event for event in self.pending if not isinstance(event, Command)]
        self.command("mend", LINKS)
        for bookie in self.bookies:
            if not bookie.up:
                self.command("restart", bookie.name)

    # --- drawing ---

    def _draw(self, event: Event) -> Way:
        if isinstance(event, Choose):
            return self._draw_replacements(event)
        weather, chance = self.weather, self.random.random
        way = ""
        if isinstance(event, Request):
            if event.late:
                way = LOSE if self.healed and chance() < 0.5 else ""
            elif weather.loss and chance() < weather.loss:
                way = LOSE
            elif weather.refusal and chance() < weather.refusal:
                way = REFUSE
            elif weather.doubling and chance() < weather.doubling:
                way = DOUBLE
        elif weather.loss and isinstance(event, Answer | MetaReply | MetaCall) and chance() < weather.loss:
            way = LOSE
        self.faults += way != ""
        return way

    def _draw_replacements(self, event: Choose) -> Way:
        names = [bookie.name for bookie in self.bookies if bookie.name not in event.exclude]
        if self.healed:
            names = [name for name in names if self.bookie(name).up]
        elif self.random.random() < 0.3:
            return SLOW if self.random.random() < 0.7 else ()
        good = [name for name in names if name not in event.avoid]
        self.random.shuffle(good)
        chosen = good + [name for name in names if name in event.avoid]
        return tuple(zip(event.failed, chosen, strict=False))

    def _decide(self, command: Command) -> None:
        """Some commands depend on the state at the time when they run."""
        match command.verb:
            case "flip":
                entries = sorted(self.bookie(command.target).disk)
                if entries:
                    self.command("flip", command.target, self.random.choice(entries))
            case "force" if isinstance(self.parts[command.target], ModelBookie):
                self.force(command.target)
            case "collect":
                self.collect(command.target)
            case _:
                self.happen(command)


class History:
    """One history. Replay a failing one with ``python -m tests.simulation replay <seed>``."""

    def __init__(self, seed: int, *, cast: Cast | None = None, quorum: Quorum | None = None) -> None:
        self.seed = seed
        self.cast = cast or Cast()
        self.random = random = Random(seed)
        drawn = random.choice(QUORUMS)
        self.quorum = quorum or drawn
        self.weather = Weather(
            loss=random.choice([0.0, 0.02, 0.1]),
            refusal=random.choice([0.0, 0.0, 0.2]),
            doubling=random.choice([0.0, 0.0, 0.05]),
            slowness=random.choice([0.0, 0.05, 0.2]),
        )
        self.spares = random.randint(2, 3)
        digest_type = random.choice([DigestType.DUMMY] * 7 + [DigestType.CRC32C])
        self.first_metadata = metadata = self._draw_metadata(digest_type)
        self.world = RandomWorld(random, self.weather, metadata, self.quorum.ensemble_size + self.spares)
        deferred_sync = random.random() < 0.12
        self.deferred_sync = deferred_sync if self.cast.deferred_sync is None else self.cast.deferred_sync
        claimed = random.random() < 0.5
        self.writer = WriterActor(
            "w",
            metadata,
            self.cast.writer,
            deferred_sync=self.deferred_sync,
            claimed=claimed if self.cast.claimed is None else self.cast.claimed,
        )
        self.world.add(self.writer)
        self.actors: list[Actor] = [self.writer]

    def play(self) -> Counts:
        """Raises :class:`InvariantError` or any error of a machine."""
        self._plan()
        patience = self.random.randint(5, 150) if self.random.random() < 0.3 else MOST_STEPS
        rests = self.world.run(patience)
        if not rests and patience == MOST_STEPS:
            raise InvariantError("the history does not come to rest")
        self._live()
        return self._result()

    def play_a_race(self) -> Counts:
        """A writer and two recoverers over slow links. Most broken rules show here."""
        self.world.weather = Weather(loss=0.05, slowness=0.3)
        for _ in range(3):
            self._post("append", "w", self.random.randint(1, 3))
        for _ in range(2):
            self._join("r", self._recoverer)
        if not self.world.run(MOST_STEPS):
            raise InvariantError("the history does not come to rest")
        self._live()
        return self._result()

    def play_a_late_fence(self) -> Counts:
        """A writer and a recoverer. Fences and adds arrive late, and the recoverer's reads in between (issue 2614)."""
        self.world.weather = Weather(lateness=0.5)
        for _ in range(3):
            self._post("append", "w", 1)
        self._join("r", self._recoverer)
        if not self.world.run(MOST_STEPS):
            raise InvariantError("the history does not come to rest")
        self._live()
        return self._result()

    def play_a_chase(self) -> Counts:
        """A writer whose bookies fail and overstate their LAC, with two tails. Most broken rules of tails show here."""
        self.world.weather = Weather(loss=0.05, slowness=0.2)
        bookies = [bookie.name for bookie in self.world.bookies]
        for _ in range(5):
            self._post("append", "w", 1)
        for _ in range(2):
            self._join("t", self.cast.tail)
        for bookie in self.random.sample(bookies, 2):
            self._post_a_boast(bookie)
        for bookie in self.random.choices(bookies, k=2):
            self._post("crash", bookie)
            self._post("restart", bookie)
        if not self.world.run(MOST_STEPS):
            raise InvariantError("the history does not come to rest")
        self._live()
        return self._result()

    def play_a_change(self) -> Counts:
        """A writer that loses messages and closes twice, and a recoverer: many ensemble changes."""
        self.world.weather = Weather(loss=0.15, slowness=0.2)
        for _ in range(3):
            self._post("append", "w", self.random.randint(1, 3))
        for _ in range(2):
            self._post("close", "w")
        self._join("r", self._recoverer)
        if not self.world.run(MOST_STEPS):
            raise InvariantError("the history does not come to rest")
        self._live()
        return self._result()

    # --- what happens ---

    def _recoverer(self, name: str) -> RecoveryActor:
        return self.cast.recoverer(name, self.world.metadata)

    def _reader_with_an_old_handle(self, name: str) -> ReaderActor:
        return ReaderActor(name, self.first_metadata)

    def _draw_metadata(self, digest_type: DigestType) -> LedgerMetadata:
        """Sometimes the ledger starts with finished segments."""
        names = [f"b{number}" for number in range(1, self.quorum.ensemble_size + self.spares + 1)]
        segments: list[tuple[int, str]] = []
        first = 0
        for _ in range(self.random.choice([1, 1, 1, 2, 3])):
            segments.append((first, " ".join(self.random.sample(names, self.quorum.ensemble_size))))
            first += self.random.randint(1, 2)
        return ledger(self.quorum, *segments, digest_type=digest_type)

    def _post(self, verb: str, target: str, *arguments: int | str) -> None:
        self.world.post(Command(verb, target, arguments))

    def _join(self, prefix: str, kind: Callable[[str], Actor], *arguments: int | str) -> Actor:
        number = sum(actor.name.startswith(prefix) for actor in self.actors) + 1
        actor = kind(f"{prefix}{number}")
        self.actors.append(actor)
        self.world.add(actor)
        self._post("start", actor.name, *arguments)
        return actor

    def _plan(self) -> None:
        random = self.random
        bookies = [bookie.name for bookie in self.world.bookies]
        for _ in range(random.choice([0, 1, 1, 2, 2, 3])):
            self._post("append", "w", random.choice([1, 1, 2, 3]))
        for _ in range(random.choice([0, 1, 2]) if self.deferred_sync else 0):
            self._post("force", "w")
        for _ in range(random.choice([0, 0, 1, 1, 2, 3])):
            recoverer = self._join("r", self._recoverer)
            if random.random() < 0.15:
                self._post("kill", recoverer.name)
        for _ in range(random.choice([0, 0, 1, 2])):
            kind = random.choice([ReaderActor, self._reader_with_an_old_handle])
            self._join("q", kind, random.randint(1, 3))
        for _ in range(random.choice([0, 0, 1])):
            self._join("t", self.cast.tail, *random.choice([(), (), (), (0,)]))
        for _ in range(random.choice([0, 0, 0, 0, 1])):
            index = random.randrange(self.quorum.ensemble_size)
            self._join("c", ReplicationActor, random.choice([0, 0, 1]), index, random.choice(bookies))
        for _ in range(random.choice([0, 0, 0, 0, 0, 1, 1, 2])):
            self._post("close", "w")
        if random.random() < 0.1:
            self._post("kill", "w")
        for _ in range(random.choice([0, 0, 1, 2, 3])):
            bookie = random.choice(bookies)
            self._post("crash", bookie)
            self._post("restart", bookie)
        for _ in range(random.choice([0, 0, 0, 1])):
            link = self._draw_link(bookies)
            self._post("cut", LINKS, *link)
        for bookie in random.sample(bookies, random.choice([0, 0, self.quorum.ack_quorum_size - 1])):
            kind = random.choice(["wipe", "wipe", "flip"])
            self._post(kind, bookie)
            if kind == "wipe" and random.random() < 0.5:
                self._post("force", bookie)
        if random.random() < 0.1:
            self._post_a_boast(random.choice(bookies))
        if random.random() < 0.1:
            self._post("collect", random.choice(bookies))
        if random.random() < 0.3:
            self._post("renew", "w")

    def _post_a_boast(self, bookie: str) -> None:
        """Without a digest nobody could tell a lie from the truth."""
        verb = "boast" if self.world.metadata.digest_type is DigestType.DUMMY else "lie"
        self._post(verb, bookie, self.random.randint(1, 3))

    def _draw_link(self, bookies: list[str]) -> tuple[str, str]:
        actor = self.random.choice(self.actors).name
        server = self.random.choice([*bookies, STORE])
        return (actor, server) if self.random.random() < 0.5 else (server, actor)

    # --- liveness ---

    def _live(self) -> None:
        world = self.world
        world.heal()
        if not self.writer.ended:
            world.command("renew", "w")
        self._come_to_rest()
        for actor in self.actors:
            if not isinstance(actor, WriterActor | TailActor) and not actor.ended and actor.started:
                raise InvariantError(f"{actor.name} does not end although nothing fails any more")
        self._tails_must_have_caught_up()
        machine = self.writer.pipeline.machine
        if not self.writer.ended and machine.pending_entries:
            raise InvariantError("the writer's entries are not acknowledged although nothing fails any more")
        if not self.writer.ended and (self.writer.wants_close or self.random.random() < 0.5):
            world.command("close", "w")
            self._come_to_rest()
            if not self.writer.ended:
                raise InvariantError("the writer's close does not end although nothing fails any more")
        self._must_be_done(self._join("r", self._recoverer))
        if world.metadata.state is not LedgerState.CLOSED:
            raise InvariantError("recovered, and not closed")
        for kind in (ReaderActor, self._reader_with_an_old_handle):
            reader = self._join("q", kind)
            self._must_be_done(reader)
            if reader.next != world.metadata.last_entry_id + 1:
                raise InvariantError(f"{reader.name} reads up to {reader.next - 1} of {world.metadata.last_entry_id}")
        self._tails_must_be_done()

    def _tails_must_have_caught_up(self) -> None:
        """Waiting tails have heard from every honest bookie of the last ensemble."""
        world = self.world
        # The end of a nap may lead to another round of polls, and those to another nap.
        self._wake(times=3)
        metadata = world.metadata
        if metadata.state is not LedgerState.OPEN:
            return
        ensemble = [world.bookie(name) for name in metadata.last_segment.ensemble]
        told = min((bookie.last_add_confirmed for bookie in ensemble if not bookie.lies), default=-1)
        for actor in self.actors:
            if isinstance(actor, TailActor) and actor.tail is not None and not actor.ended:
                heard = actor.tail.machine.last_add_confirmed
                if heard < told or world.watch.followed.get(actor.name, 0) <= heard:
                    raise InvariantError(f"{actor.name} follows up to {heard}, and every bookie can tell {told}")

    def _tails_must_be_done(self) -> None:
        self._wake(times=10)
        for actor in self.actors:
            if isinstance(actor, TailActor) and actor.started and actor.outcome not in ("done", "waited", "killed"):
                end = actor.outcome or "nothing"
                raise InvariantError(f"{actor.name} ends with {end}, the ledger is closed and nothing fails any more")

    def _wake(self, times: int) -> None:
        for _ in range(times):
            if not self.world.naps:
                return
            self.world.wake()
            self._come_to_rest()

    def _come_to_rest(self) -> None:
        if not self.world.run(MOST_STEPS):
            raise InvariantError("healed, and does not come to rest")

    def _must_be_done(self, actor: Actor) -> None:
        self._come_to_rest()
        if actor.outcome != "done":
            raise InvariantError(f"{actor.name} ends with {actor.outcome or 'nothing'} although nothing fails any more")

    def _result(self) -> Counts:
        world = self.world
        return Counts(
            {
                "steps": world.steps,
                "acknowledged": world.watch.acknowledged + 1,
                "read": world.watch.seen + 1,
                "followed": sum(world.watch.followed.values()),
                "ensemble changes": len(world.metadata.segments) - 1,
                "recoveries": sum(isinstance(each, RecoveryActor) and each.outcome == "done" for each in self.actors),
                "faults": world.faults,
            }
        )


class ChaseHistory(History):
    """One chase (``--chases``)."""

    def play(self) -> Counts:
        return self.play_a_chase()


class LateFenceHistory(History):
    """One history with late fences (``--late-fences``)."""

    def play(self) -> Counts:
        return self.play_a_late_fence()
