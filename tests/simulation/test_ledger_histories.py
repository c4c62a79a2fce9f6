"""Random histories of one ledger: a writer, recoverers, crashes, losses, stalls. Invariants of the protocol.

A failing seed is a one-line reproduction: ``History(seed, …).play()``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.digest import digest_function
from bk_spark.protocol.entry import verify_entry
from bk_spark.protocol.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bk_spark.protocol.payloads import Payloads
from bk_spark.protocol.quorum import Quorum
from tests.simulation.clients import Cluster, SimulatedRecovery, SimulatedWriter
from tests.simulation.model import ModelBookie, ModelStore, World, copies
from tests.support.ledgers import LEDGER, PASSWORD, ledger, payload_of

QUORUMS = [Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(2, 2, 2), Quorum(4, 3, 2), Quorum(3, 3, 3), Quorum(3, 3, 1)]
SEEDS = 60
MOST_STEPS = 20_000
_DIGEST = digest_function(DigestType.CRC32C, PASSWORD)


class History:
    """One history. ``recovery`` options and ``publish`` break a rule on purpose (see the mutants below)."""

    def __init__(self, seed: int, quorum: Quorum, *, publish: bool = True, **recovery: Any) -> None:
        self.world = world = World(f"{seed} {quorum}")
        world.loss = world.random.choice([0.0, 0.02, 0.1])
        world.refusal = world.random.choice([0.0, 0.0, 0.2])
        world.slowness = world.random.choice([0.0, 0.05, 0.2])
        self.bookies = {f"b{number}": ModelBookie(world, f"b{number}") for number in range(1, 7)}
        self.store = ModelStore(world, ledger(quorum))
        self.cluster = Cluster(world, self.bookies, self.store)
        self.acknowledged = -1
        self.recovery_options = recovery
        self.recoveries: list[SimulatedRecovery] = []
        self.writer = SimulatedWriter(
            self.cluster, self.store.metadata, 0, publish=publish, acknowledged=self._on_acknowledged
        )

    def play_a_race(self) -> None:
        """A writer and two recoverers over slow links: where the broken rules of the mutants show most often."""
        self.world.loss, self.world.refusal, self.world.slowness = 0.05, 0.0, 0.3
        for event in (self._add, self._add, self._add, self._recover, self._recover):
            self.world.later(event)
        self._end()

    def play(self) -> None:
        world, random = self.world, self.world.random
        for _ in range(random.randint(0, 5)):
            world.later(self._add)
        for _ in range(random.randint(0, 3)):
            world.later(self._crash)
        for _ in range(random.randint(0, 2)):
            world.later(self._recover)
        for _ in range(random.randint(0, 2)):
            world.later(self._replicate)
        if world.chance(0.3):
            world.later(self._kill_a_recovery)
        if world.chance(0.3):
            world.later(self.writer.close)
        self._end()

    def _end(self) -> None:
        assert self.world.run(MOST_STEPS), "the history does not come to rest"
        self._heal()
        self._check()

    def _add(self) -> None:
        machine = self.writer.machine
        first = machine.last_add_pushed + 1
        count = self.world.random.randint(1, 3)
        self.writer.add(Payloads.of([payload_of(entry) for entry in range(first, first + count)]))

    def _crash(self) -> None:
        bookie = self.bookies[self.world.random.choice(sorted(self.bookies))]
        bookie.crash()
        self.world.later(bookie.restart)

    def _recover(self) -> None:
        recovery = SimulatedRecovery(self.cluster, **self.recovery_options)
        self.recoveries.append(recovery)
        recovery.start()

    def _replicate(self) -> None:
        """A replication worker moves a part of a finished segment to another bookie (C14)."""
        random = self.world.random

        def move(found: LedgerMetadata, version: int) -> None:
            finished = len(found.segments) - (found.state is not LedgerState.CLOSED)
            if not finished:
                return
            number, index = random.randrange(finished), random.randrange(found.quorum.ensemble_size)
            segment = found.segments[number]
            target = random.choice(sorted(self.bookies.keys() - set(segment.ensemble)))
            following = found.segments[number + 1 :]
            end = following[0].first_entry_id if following else found.last_entry_id + 1
            for entry in range(segment.first_entry_id, end):
                if found.quorum.stores(index, entry):
                    sources = copies(found, entry, self.bookies.values())
                    assert sources, f"entry {entry} of a finished segment is nowhere"
                    if not self.bookies[target].replicate(entry, sources[0]):
                        return
            ensemble = (*segment.ensemble[:index], target, *segment.ensemble[index + 1 :])
            moved = Segment(segment.first_entry_id, ensemble)
            changed = replace(found, segments=(*found.segments[:number], moved, *following))
            self.store.write(changed, version, lambda _: None, lambda *_: None)

        self.store.read(move)

    def _kill_a_recovery(self) -> None:
        if self.recoveries:
            self.world.random.choice(self.recoveries).kill()

    def _heal(self) -> None:
        """The faults end; somebody recovers the ledger."""
        self.world.loss = self.world.refusal = 0.0
        for bookie in self.bookies.values():
            bookie.restart()
        last = SimulatedRecovery(self.cluster, **self.recovery_options)
        last.start()
        assert self.world.run(MOST_STEPS)
        assert last.closed is not None, f"no recovery although nothing fails any more: {last.error}"
        self.recoveries.append(last)

    def _on_acknowledged(self, lac: int) -> None:
        """Checked at the very moment: the entries survive any later recovery."""
        metadata = self.store.metadata
        assert lac > self.acknowledged, "acknowledged out of order"
        for entry in range(self.acknowledged + 1, lac + 1):
            found = copies(metadata, entry, self.bookies.values())
            if metadata.state is LedgerState.CLOSED:
                assert entry <= metadata.last_entry_id, f"entry {entry} acknowledged beyond the end"
                assert found
            else:
                assert len(found) >= metadata.quorum.ack_quorum_size, f"entry {entry} lies on {len(found)} disks"
        self.acknowledged = lac

    def _check(self) -> None:
        closed = self.store.metadata
        assert closed.state is LedgerState.CLOSED
        assert closed.last_entry_id >= self.acknowledged, "an acknowledged entry was cut off"
        for recovery in self.recoveries:
            if recovery.closed is not None:
                assert recovery.closed.last_entry_id == closed.last_entry_id
                assert recovery.closed.length == closed.length
        length = 0
        for entry in range(closed.last_entry_id + 1):
            found = copies(closed, entry, self.bookies.values())
            assert found, f"entry {entry} is nowhere to be read"
            for stored in found:
                assert verify_entry(stored, LEDGER, entry, DigestType.CRC32C, _DIGEST).payload == payload_of(entry)
            length += len(payload_of(entry))
        assert closed.length == length
        for bookie in self.bookies.values():
            for entry, stored in bookie.disk.entries.items():
                lac = verify_entry(stored, LEDGER, entry, DigestType.CRC32C, _DIGEST).last_add_confirmed
                assert lac <= closed.last_entry_id, f"{bookie.bookie_id} tells readers of entry {lac}, which was cut"


@pytest.mark.parametrize("quorum", QUORUMS, ids=str)
def test_histories(quorum: Quorum) -> None:
    acknowledged = steps = 0
    for seed in range(SEEDS):
        history = History(seed, quorum)
        try:
            history.play()
        except AssertionError as error:
            error.add_note(f"History({seed}, {quorum}).play()")
            raise
        acknowledged += history.acknowledged + 1
        steps += history.world.steps
    # Histories in which nothing happens would prove nothing.
    assert acknowledged > SEEDS
    assert steps > 50 * SEEDS


def caught(**broken: Any) -> bool:
    for seed in range(2_000):
        try:
            History(seed, Quorum(2, 2, 2), **broken).play_a_race()
        except AssertionError:
            return True
    return False


def test_the_mutant_that_acknowledges_before_it_publishes_is_caught() -> None:
    assert caught(publish=False)


def test_the_mutant_whose_recovery_reads_do_not_fence_is_caught() -> None:
    assert caught(fence_reads=False)


def test_the_mutant_whose_write_backs_carry_the_newest_lac_is_caught() -> None:
    assert caught(newest_lac=True)
