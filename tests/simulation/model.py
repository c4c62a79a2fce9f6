"""A world under one seeded scheduler: bookies that crash, links that lose and reorder, metadata that stalls.

Everything that may happen is an event in a bag; the scheduler draws them in random order. Messages are the
protocol's own bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

import numpy as np

from bk_spark.protocol import wire_v2
from bk_spark.protocol.codes import LAST_ENTRY, Code, FlagV2, OpV2
from bk_spark.protocol.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.wire_v2 import AddRun, ReadRun, parse_requests
from tests.support.wire import frames

Event = Callable[[], None]
#: Takes the answer's frame; None when request or answer got lost.
Reply = Callable[[bytes | None], None]


class World:
    """Draws events until none is left. ``loss`` and ``refusal`` are probabilities per message, ``slowness``
    that of an event to be overtaken by a hundred others, so that whole conversations fit in between."""

    def __init__(self, seed: object) -> None:
        self.random = Random(str(seed))
        self.loss = self.refusal = self.slowness = 0.0
        self.steps = 0
        self._events: list[Event] = []
        self._slow: list[Event] = []

    def later(self, event: Event) -> None:
        (self._slow if self.chance(self.slowness) else self._events).append(event)

    def run(self, most_steps: int) -> bool:
        """Whether everything came to rest within ``most_steps``."""
        for _ in range(most_steps):
            if not self._events and not self._slow:
                return True
            bag = self._slow if self._slow and (not self._events or self.chance(0.01)) else self._events
            pick = self.random.randrange(len(bag))
            bag[pick], bag[-1] = bag[-1], bag[pick]
            self.steps += 1
            bag.pop()()
        return not self._events and not self._slow

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability


@dataclass
class _Disk:
    entries: dict[int, bytes] = field(default_factory=dict)
    fenced: bool = False

    def copy(self) -> _Disk:
        return _Disk(dict(self.entries), self.fenced)


class ModelBookie:
    """One ledger at one bookie. What is in ``memory`` is served; only what is on ``disk`` survives a crash, and
    adds and fences are answered when they are there."""

    def __init__(self, world: World, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.disk = _Disk()
        self.up = True
        self._world = world
        self._memory = _Disk()
        self._waiting: list[Event] = []

    def send(self, frame: bytes, reply: Reply) -> None:
        """A request is on its way here; whatever becomes of it, ``reply`` hears of it."""
        if self._world.chance(self._world.loss):
            self._world.later(lambda: reply(None))
        else:
            self._world.later(lambda: self._receive(frame, reply))

    def crash(self) -> None:
        self.up = False
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            event()

    def restart(self) -> None:
        if not self.up:
            self._memory = self.disk.copy()
            self.up = True

    def replicate(self, entry_id: int, stored: bytes) -> bool:
        """As a replication worker's add, synced at once; whether the bookie could take it."""
        if self.up:
            self._memory.entries[entry_id] = self.disk.entries[entry_id] = stored
        return self.up

    def _receive(self, frame: bytes, reply: Reply) -> None:
        if not self.up:
            self._answer(reply, None)
            return
        (request,) = parse_requests(frames(frame))
        match request:
            case AddRun():
                self._add(request, reply)
            case ReadRun():
                self._read(request, reply)
            case _:
                raise AssertionError(request)

    def _add(self, request: AddRun, reply: Reply) -> None:
        recovery = bool(request.flags & FlagV2.RECOVERY_ADD)
        if self._memory.fenced and not recovery:
            self._answer(reply, _add_answer(request, Code.FENCED))
        elif self._world.chance(self._world.refusal):
            self._answer(reply, _add_answer(request, Code.TOO_MANY_REQUESTS))
        else:
            self._memory.entries[int(request.entry_ids[0])] = bytes(request.records[4:])
            self._when_synced(reply, _add_answer(request, Code.OK))

    def _read(self, request: ReadRun, reply: Reply) -> None:
        ledger_id, asked = int(request.ledger_ids[0]), int(request.entry_ids[0])
        fence = bool(request.flags & FlagV2.FENCING)
        if fence:
            self._memory.fenced = True
        found = max(self._memory.entries, default=None) if asked == LAST_ENTRY else asked
        stored = None if found is None else self._memory.entries.get(found)
        if stored is None:
            answer = wire_v2.add_answers(2, request.ledger_ids, request.entry_ids, Code.NO_ENTRY, OpV2.READ)
        else:
            answer = b"".join(wire_v2.read_answer(2, ledger_id, asked, stored))
        if fence and not self.disk.fenced:
            self._when_synced(reply, answer)
        else:
            self._answer(reply, answer)

    def _when_synced(self, reply: Reply, answer: bytes) -> None:
        """Sync some time later, everything at once; a crash before costs the answer."""
        state: list[bytes | None] = [answer]
        event: Event = lambda: self._answer(reply, state[0])  # noqa: E731
        self._waiting.append(event)

        def sync() -> None:
            if event in self._waiting:
                self.disk = self._memory.copy()
                waiting, self._waiting = self._waiting, []
                for one in waiting:
                    one()

        self._world.later(sync)

    def _answer(self, reply: Reply, answer: bytes | None) -> None:
        lost = not self.up or self._world.chance(self._world.loss)
        self._world.later(lambda: reply(None if lost else answer))


def _add_answer(request: AddRun, code: Code) -> bytes:
    return wire_v2.add_answers(2, np.asarray(request.ledger_ids), np.asarray(request.entry_ids), code)


class ModelStore:
    """The ledger's znode. Changes may stall for long, and their replies may get lost."""

    def __init__(self, world: World, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        self.version = 0
        self._world = world

    def read(self, then: Callable[[LedgerMetadata, int], None]) -> None:
        self._world.later(lambda: then(self.metadata, self.version))

    def write(
        self,
        metadata: LedgerMetadata,
        version: int,
        written: Callable[[int], None],
        conflict: Callable[[LedgerMetadata, int], None],
    ) -> None:
        """Compare-and-set. A lost reply ends in ``conflict``, as clients read again what they cannot know."""

        def apply() -> None:
            applied = version == self.version
            if applied:
                self._apply(metadata)
                new_version = self.version
            if applied and not self._world.chance(self._world.loss):
                self._world.later(lambda: written(new_version))
            else:
                self.read(conflict)

        self._world.later(apply)

    def _apply(self, metadata: LedgerMetadata) -> None:
        if self.metadata.state is LedgerState.CLOSED:
            end = (self.metadata.last_entry_id, self.metadata.length)
            assert metadata.state is LedgerState.CLOSED, "a closed ledger was opened"
            assert (metadata.last_entry_id, metadata.length) == end, "a closed ledger's end changed"
        self.metadata = metadata
        self.version += 1


def copies(metadata: LedgerMetadata, entry_id: int, bookies: Iterable[ModelBookie]) -> list[bytes]:
    """What lies on the disks of the bookies where readers look for ``entry_id``."""
    ensemble = metadata.segment_of(entry_id).ensemble
    by_id = {bookie.bookie_id: bookie for bookie in bookies}
    disks = [by_id[ensemble[index]].disk.entries for index in metadata.quorum.write_set(entry_id)]
    return [disk[entry_id] for disk in disks if entry_id in disk]
