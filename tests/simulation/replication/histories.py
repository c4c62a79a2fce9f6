"""Random histories of replication, each determined by its seed.

A history has a ledger with a writer and recoveries, two or three workers, auditors, and collection at the bookies. It
draws what fails: bookies die, return, return empty, or become read-only; sessions expire; workers are killed;
replication is switched off and on. In the end everything heals. Then every entry must be on its whole write quorum, no
mark or lock may be left, and no bookie may have copies that nobody needs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from unittest.mock import patch

from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.metadata import under_replication
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.quorum import Quorum
from tests.simulation.bytes_cache import parse_text
from tests.simulation.events import STORE, Command
from tests.simulation.histories import MOST_STEPS, Weather
from tests.simulation.outcomes import Counts, InvariantError
from tests.simulation.recoverers import RecoveryActor
from tests.simulation.replication.actors import AuditorActor, CollectionActor, WorkerActor
from tests.simulation.replication.world import ReplicationWorld
from tests.simulation.writers import Actor, WriterActor
from tests.support.ledgers import ledger

QUORUMS = [
    *[Quorum(3, 3, 2)] * 5,
    *[Quorum(2, 2, 1)] * 2,
    *[Quorum(3, 2, 2)] * 3,
    *[Quorum(4, 3, 2)] * 2,
    Quorum(3, 3, 1),
    Quorum(3, 3, 3),
    Quorum(5, 3, 2),
]
#: Rounds of marking, repair and collection after everything has healed.
_ROUNDS = 12


class History:
    """One history. Replay a failing one with ``python -m tests.simulation replay <seed> --replication``."""

    worker_class: type[WorkerActor] = WorkerActor

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self.quorum = random.choice(QUORUMS)
        self.spares = random.randint(2, 3)
        weather = Weather(
            loss=random.choice([0.0, 0.0, 0.02, 0.05]),
            refusal=random.choice([0.0, 0.0, 0.1]),
            doubling=random.choice([0.0, 0.0, 0.05]),
            slowness=random.choice([0.0, 0.05, 0.2]),
        )
        digest_type = random.choice([DigestType.DUMMY] * 3 + [DigestType.CRC32C])
        metadata = self._draw_metadata(digest_type)
        self.world = ReplicationWorld(random, weather, metadata, self.quorum.ensemble_size + self.spares)
        self.names = [bookie.name for bookie in self.world.bookies]
        if random.random() < 0.3:
            self.world.coordination.make_read_only(random.choice(self.names))
        self.world.losses_left = self.spares - len(self.world.coordination.read_only)
        self.writer = WriterActor("w", metadata)
        self.world.add(self.writer)
        self.actors: list[Actor] = [self.writer]
        self.workers: list[WorkerActor] = []

    def play(self) -> Counts:
        """Raises :class:`InvariantError` or any error of a machine."""
        logger = logging.getLogger("bookie_server.gc")
        level = logger.level
        logger.setLevel(logging.CRITICAL)  # the story tells it
        try:
            with patch.object(under_replication, "parse_text", parse_text):
                self._play()
        finally:
            logger.setLevel(level)
        return self._result()

    def _play(self) -> None:
        self._plan()
        self.world.run(self.random.choice([50, 200, 500, 1_000, 2_000]))
        self._heal()

    # --- what happens ---

    def _draw_metadata(self, digest_type: DigestType) -> LedgerMetadata:
        names = [f"b{number}" for number in range(1, self.quorum.ensemble_size + self.spares + 1)]
        segments: list[tuple[int, str]] = []
        first = 0
        for _ in range(self.random.choice([1, 1, 2, 3])):
            segments.append((first, " ".join(self.random.sample(names, self.quorum.ensemble_size))))
            first += self.random.randint(1, 6)
        return ledger(self.quorum, *segments, digest_type=digest_type)

    def _post(self, verb: str, target: str, *arguments: int | str) -> None:
        self.world.post(Command(verb, target, arguments))

    def _join(self, name: str, kind: Callable[[str], Actor]) -> Actor:
        number = sum(actor.name.startswith(name) for actor in self.actors) + 1
        actor = kind(f"{name}{number}")
        self.actors.append(actor)
        self.world.add(actor)
        self._post("start", actor.name)
        return actor

    def worker(self) -> WorkerActor:
        worker = self.worker_class("k0", self.world, self.random)
        worker.name = f"k{len(self.workers) + 1}"
        self.workers.append(worker)
        self.actors.append(worker)
        self.world.add(worker)
        self._post("start", worker.name)
        return worker

    def _collector(self, bookie: str) -> Actor:
        return self._join(f"gc {bookie} ", lambda name: CollectionActor(name, bookie, self.world))

    def _recoverer(self, name: str) -> RecoveryActor:
        digest_type = self.world.metadata.digest_type
        assert digest_type is not None
        return RecoveryActor(name, digest_type)

    def _plan(self) -> None:
        random, names = self.random, self.names
        for _ in range(random.choice([0, 1, 2, 3, 4])):
            self._post("append", "w", random.choice([1, 1, 2, 3]))
        for _ in range(random.choice([0, 0, 1])):
            self._post("close", "w")
        for _ in range(random.choice([0, 0, 0, 1, 2])):
            self._join("r", self._recoverer)
        for _ in range(random.choice([1, 2, 2, 3])):
            self.worker()
        for _ in range(random.choice([1, 2, 3, 4])):
            self._join("a", lambda name: AuditorActor(name, self.world))
        for _ in range(random.choice([0, 1, 2, 3])):
            self._collector(random.choice(names))
        for _ in range(random.choice([0, 1, 2])):
            bookie = random.choice(names)
            self._post("crash", bookie)
            self._post("restart", bookie)
        for bookie in random.sample(names, random.choice([0, 1, 1, 2])):
            self._post("wipe", bookie)
            if random.random() < 0.4:
                self._post("force", bookie)
        for _ in range(random.choice([0, 0, 1, 3, 5])):
            sessions = [*(worker.name for worker in self.workers), *self._collectors()]
            self.world.post_later(Command("expire", STORE, (random.choice(sessions),)))
        if random.random() < 0.2:
            self._post("kill", random.choice(self.workers).name)
            self._post("expire", STORE, self.workers[0].name)
        if random.random() < 0.2:
            self._post("disable", STORE)
            self._post("enable", STORE)
        for _ in range(random.choice([0, 0, 1])):
            self._post("mark", STORE, *random.sample(names, 2))
        if random.random() < 0.2:
            self.world.exchanged = random.choice(self.world.metadata.last_segment.ensemble)
            self._post("mark", STORE, self.world.exchanged)
        self._post("renew", "w")

    def _collectors(self) -> list[str]:
        return [actor.name for actor in self.actors if isinstance(actor, CollectionActor)]

    # --- the end ---

    def _heal(self) -> None:
        world = self.world
        world.heal()
        world.command("enable", STORE)
        for bookie in world.bookies:
            world.command("refresh", STORE, bookie.name)
        for actor in self.actors:
            if isinstance(actor, CollectionActor) and not actor.started:
                actor.end("never started")
        for worker in self.workers:
            if not worker.started and not worker.ended:
                world.command("start", worker.name)
        if not self.writer.ended:
            world.command("renew", "w")
        if all(worker.ended for worker in self.workers):
            self.worker()
        self._rest()
        for worker in self.workers:
            if worker.ended:
                # Its last calls have been done, too.
                world.command("expire", STORE, worker.name)
        if not self._close():
            world.count("never closed")
            return
        for _ in range(_ROUNDS):
            if self._is_whole():
                return
            # As an auditor that checks every entry of every ledger.
            world.command("mark", STORE, *self.names)
            self._work()
            for name in self.names:
                if world.bookie(name).up:
                    self._collector(name)
                    self._rest()
        self._must_be_whole()

    def _close(self) -> bool:
        """Close the ledger. Afterwards no bookie is in doubt. False: nobody can tell its end any more, because its
        writer chose a bookie that died for good at the same time."""
        world = self.world
        if world.metadata.state is not LedgerState.CLOSED:
            recoverer = self._join("r", self._recoverer)
            self._rest()
            if world.metadata.state is not LedgerState.CLOSED:
                last = world.metadata.last_segment.ensemble
                doubtful = [each for each in last if world.bookie(each).limbo or world.bookie(each).cookie_refuses]
                if len(doubtful) < self.quorum.ack_quorum_size:
                    end = recoverer.outcome
                    raise InvariantError(f"{recoverer.name} ends with {end} although nothing fails any more")
                return False
        for bookie in world.bookies:
            bookie.limbo = False
        return True

    def _work(self) -> None:
        """Let workers work until nothing is marked."""
        for _ in range(10):
            self.world.wake()
            self._rest()
            if not self.world.coordination.marked:
                return

    def _rest(self) -> None:
        if not self.world.run(MOST_STEPS):
            raise InvariantError("healed, and does not come to rest")

    def _is_whole(self) -> bool:
        try:
            self._must_be_whole()
        except InvariantError:
            return False
        return True

    def _must_be_whole(self) -> None:
        world, metadata = self.world, self.world.metadata
        if world.coordination.marked:
            raise InvariantError("the ledger is still marked")
        if world.coordination.holder is not None:
            raise InvariantError(f"{world.coordination.holder} still holds the lock")
        for entry_id in range(metadata.last_entry_id + 1):
            ensemble = metadata.segment_of(entry_id).ensemble
            for index in metadata.quorum.write_set(entry_id):
                bookie = world.bookie(ensemble[index])
                if not bookie.up or not bookie.copies(entry_id):
                    raise InvariantError(f"entry {entry_id} is not on {bookie.name}")
        named = {bookie for segment in metadata.segments for bookie in segment.ensemble}
        for bookie in world.bookies:
            if bookie.up and bookie.name not in named and bookie.disk:
                raise InvariantError(f"{bookie.name} has copies that nobody needs")

    def _result(self) -> Counts:
        world = self.world
        counts = Counts({"steps": world.steps, "faults": world.faults, "acknowledged": world.watch.acknowledged + 1})
        for counted in (world.counts, world.coordination.counts, *(worker.results for worker in self.workers)):
            counts.update(counted)
        return counts
