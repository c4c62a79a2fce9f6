"""The model world of replication: that of one ledger (tests/simulation), with workers, auditors and collection.

``RandomWorld`` gives writers, recoveries, bookies and links. ZooKeeper is :class:`Coordination`.
"""

from __future__ import annotations

from random import Random

from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, encode
from tests.simulation.bytes_cache import AddSeen, ReadSeen, request_in
from tests.simulation.events import (
    STORE,
    Choose,
    Command,
    Effect,
    Ended,
    Event,
    MetadataChanged,
    Request,
    Way,
)
from tests.simulation.histories import RandomWorld, Weather
from tests.simulation.outcomes import Counts, InvariantError
from tests.simulation.recoverers import RecoveryActor
from tests.simulation.replication.actors import WorkerActor
from tests.simulation.replication.coordination import Coordination
from tests.simulation.replication.zookeeper import ZkCall, ZkReply
from tests.simulation.writers import Actor


class ReplicationWorld(RandomWorld):
    """A world in which bookies are lost and their copies made again."""

    def __init__(self, random: Random, weather: Weather, metadata: LedgerMetadata, bookies: int) -> None:
        super().__init__(random, weather, metadata, bookies)
        self.coordination = Coordination(encode(metadata), self)
        self.parts[STORE] = self.coordination
        #: Bookies that are collecting the ledger, and refuse adds and fences of it.
        self.marked: set[str] = set()
        #: Recoveries that workers wait for.
        self._recoveries: dict[str, ZkReply] = {}
        #: Bookies whose disk may still be lost.
        self.losses_left = 0
        #: A bookie that was away, and gets another disk while a worker finds that it holds everything.
        self.exchanged = ""
        self.counts = Counts()

    def count(self, what: str, times: int = 1) -> None:
        self.counts[what] += times

    def post_later(self, event: Event) -> None:
        """Make ``event`` pending, after a hundred others or so."""
        self.slow.append(event)

    # --- what actors ask for ---

    def recover_for(self, worker: Actor, tag: tuple[str | int, ...]) -> None:
        """A worker runs a recovery."""
        digest_type = self.metadata.digest_type
        assert digest_type is not None
        recovery = RecoveryActor(f"{worker.name}'s recovery {len(self._recoveries) + 1}", digest_type)
        self._recoveries[recovery.name] = ZkReply(worker.name, tag, "recovered", "")
        self.add(recovery)
        self.command("start", recovery.name)
        self.count("fenced by a worker")

    def settle(self, bookie: str) -> None:
        """Adds that the bookie accepted are on its disk before it removes anything."""
        self.command("sync at once", bookie)
        self.bookie(bookie).syncs_at_once = False

    def remove_copies(self, bookie: str) -> None:
        """The bookie removes its copies of the ledger. Nobody may need them."""
        metadata = self.metadata
        if any(bookie in segment.ensemble for segment in metadata.segments):
            raise InvariantError(f"{bookie} removes its copies, and the metadata name it")
        self.count("copies removed")
        self.command("delete", bookie)

    # --- events ---

    def hand(self, event: Event, way: Way) -> list[Effect]:  # type: ignore[override]
        if isinstance(event, Request) and event.bookie in self.marked and self.bookie(event.bookie).up:
            seen = request_in(event.frame)
            if isinstance(seen, AddSeen) or (isinstance(seen, ReadSeen) and seen.fencing):
                return [] if event.late else [event.answer(None)]
        effects = list(super().hand(event, way))
        if isinstance(event, Command) and event.verb in ("crash", "restart", "wipe", "force"):
            self.marked.discard(event.target)
            self.post(Command("refresh", STORE, (event.target,)))
        return effects

    def _take(self, effect: Effect) -> None:
        super()._take(effect)
        if isinstance(effect, Ended) and effect.actor in self._recoveries:
            waiting = self._recoveries.pop(effect.actor)
            self._recoveries[f"{effect.actor} ended"] = waiting
            self.post(ZkReply(waiting.actor, waiting.tag, waiting.what, self.actor(effect.actor).outcome))  # type: ignore[arg-type]
        if isinstance(effect, MetadataChanged):
            self.count("changes of metadata")

    def interrupt(self, actor: str, effects: list[Effect]) -> None:
        """The world goes on between two requests of a call by ``actor`` to ZooKeeper. ``effects`` are those that the
        call has had."""
        for effect in effects:
            self._take(effect)
        chance = self.random.random()
        if chance < 0.02 and not self.healed:
            # Others have the time to take what the session held.
            self._decide(Command("expire", STORE, (actor,)))
            self.wake()
            self.run(50)
        elif chance < 0.1:
            self.run(self.random.choice([1, 5, 50]))

    def before_look(self) -> None:
        """A worker is about to look which bookies are registered."""
        if self.exchanged and self.random.random() < 0.5:
            bookie, self.exchanged = self.exchanged, ""
            self._decide(Command("exchange", bookie))

    def _draw(self, event: Event) -> Way:
        # What is lost of a store's call is lost within it.
        return "" if isinstance(event, ZkCall | ZkReply) else super()._draw(event)

    def _draw_replacements(self, event: Choose) -> Way:
        """Read-only bookies are chosen only where the machine itself must exclude them."""
        if event.tag[0] != "target":
            # A writer tries a bookie before it chooses it.
            dead = {bookie.name for bookie in self.bookies if bookie.cookie_refuses and not bookie.up}
            exclude = event.exclude | self.coordination.read_only | dead
            return super()._draw_replacements(Choose(event.actor, event.tag, event.failed, exclude, event.avoid))
        worker = self.actor(event.actor)
        assert isinstance(worker, WorkerActor)
        # Placement knows the writable bookies. Here a repair must exclude those of which it heard that they are not.
        unheard = self.coordination.read_only - worker.known_read_only
        names = sorted(self.coordination.registered - event.exclude - unheard)
        if not names or (not self.healed and self.random.random() < 0.05):
            return ()
        return ((event.failed[0], self.random.choice(names)),)

    def _decide(self, command: Command) -> None:
        match command.verb:
            case "wipe":
                if self.may_lose(command.target):
                    self.losses_left -= 1
                    self.count("disks lost")
                    self.happen(command)
            case "force" if self.bookie(command.target).cookie_refuses:
                self.force(command.target)
                self.losses_left += 1
                self.bookie(command.target).cookie_refuses = False
                self.count("came back empty")
                # Every ledger that names it is checked entry by entry (scenario R6).
                self.post(Command(self.random.choice(["mark", "name"]), STORE, (command.target,)))
            case "force":
                pass
            case "exchange":
                for verb in ("wipe", "force"):
                    self._decide(Command(verb, command.target))
            case "expire" if not self.coordination.may_expire(str(command.arguments[0])):
                self.post(command)
            case _:
                super()._decide(command)

    def may_lose(self, name: str) -> bool:
        """Whether the disk of this bookie may be lost: fewer than Qa copies of each entry may be."""
        if self.losses_left <= 0 or not self.bookie(name).up:
            return False
        metadata, quorum = self.metadata, self.metadata.quorum
        closed = metadata.state is LedgerState.CLOSED
        known_end = metadata.last_entry_id if closed else self.watch.acknowledged
        end = known_end if closed else max(known_end, metadata.last_segment.first_entry_id) + 9
        for entry_id in range(end + 1):
            ensemble = metadata.segment_of(entry_id).ensemble
            holders = [ensemble[index] for index in quorum.write_set(entry_id)]
            if name in holders:
                gone = [each for each in holders if each == name or entry_id in self.bookie(each).lost]
                copies = [each for each in holders if each != name and self.bookie(each).copies(entry_id)]
                if len(gone) >= quorum.ack_quorum_size or (entry_id <= known_end and not copies):
                    return False
        # A ledger that is not closed needs the bookies of its last fragment to find its end.
        last = metadata.last_segment.ensemble
        wiped = [each for each in last if self.bookie(each).cookie_refuses or self.bookie(each).limbo]
        return closed or name not in last or len(wiped) + 1 < quorum.ack_quorum_size
