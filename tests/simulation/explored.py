"""A state of the model world under exploration: what may come next, and what need not be tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bk_spark.protocol.ledger.writer import WriterState
from bk_spark.protocol.ledger.writer_ensemble import ChangeState
from tests.simulation.events import (
    LOSE,
    Answer,
    Choose,
    Command,
    Effect,
    Event,
    MetaCall,
    MetaReply,
    Request,
    Sync,
    Tick,
    Way,
)
from tests.simulation.interning import Known
from tests.simulation.invariants import Watch
from tests.simulation.recoverers import RecoveryActor
from tests.simulation.servers import ModelBookie
from tests.simulation.world import World
from tests.simulation.writers import Actor, WriterActor


@dataclass(frozen=True, slots=True)
class Budget:
    """How many more failures are allowed."""

    losses: int = 0
    crashes: int = 0
    kills: int = 0


class ExploredWorld(World):
    """One state. It shares its parts with other states; they never change."""

    known: Known
    budget: Budget
    #: False: try every order and drop nothing. Used in small worlds to check that the reductions lose nothing.
    reduced: bool

    @classmethod
    def of(cls, world: World, budget: Budget, known: Known, reduced: bool) -> ExploredWorld:
        """The state of ``world``."""
        explored = object.__new__(cls)
        explored.known = known
        explored.budget = budget
        explored.reduced = reduced
        explored.pending = [known.event(event) for event in world.pending]
        explored.trace = []
        explored.watch = Watch(explored)
        explored.watch.acknowledged = world.watch.acknowledged
        explored.parts = {name: known.root(name, part) for name, part in world.parts.items()}
        if reduced:
            if not budget.crashes:
                explored.sync_at_once()
            explored.settle()
        return explored

    def fork(self) -> ExploredWorld:
        other = object.__new__(ExploredWorld)
        other.known = self.known
        other.budget = self.budget
        other.reduced = self.reduced
        other.pending = self.pending.copy()
        other.trace = []
        other.watch = Watch(other)
        other.watch.acknowledged, other.watch.seen = self.watch.acknowledged, self.watch.seen
        other.parts = self.parts.copy()
        return other

    def hand(self, event: Event, way: Way) -> list[Effect]:
        name = event.target
        step = self.known.step(self.parts[name], self.known.event(event), way)
        self.parts[name] = step.part
        return step.effects

    def sync_at_once(self) -> None:
        for bookie in self.bookies:
            self.command("sync at once", bookie.name)

    # --- what comes next ---

    def before(self, event: Event, way: Way) -> ExploredWorld:
        """A copy in which ``event`` is no longer pending and its cost has been deducted."""
        copy = self.fork()
        if isinstance(event, Command) and event.verb == "crash":
            copy.budget = replace(self.budget, crashes=self.budget.crashes - 1)
            copy.post(Command("restart", event.target))
        elif isinstance(event, Command) and event.verb == "kill":
            copy.budget = replace(self.budget, kills=self.budget.kills - 1)
        else:
            copy.pending.remove(event)
        if way == LOSE:
            copy.budget = replace(self.budget, losses=self.budget.losses - 1)
        return copy

    def perform(self, event: Event, way: Way) -> None:
        """Let ``event`` happen. Raises InvariantError."""
        self.happen(event, way)
        if self.reduced:
            if isinstance(event, Command) and event.verb == "crash" and not self.budget.crashes:
                self.sync_at_once()
            self.settle()

    def moves(self) -> list[tuple[Event, Way]]:
        """The events that may happen next, without those that need not be tried."""
        first: list[Event] = []
        if self.reduced:
            if self._over():
                return []
            first = self._for_one_actor() or self._for_one_bookie()
        moves: list[tuple[Event, Way]] = []
        for event in dict.fromkeys(first or self.pending):
            if isinstance(event, Choose):
                moves += [(event, way) for way in self.ways(event)]
            else:
                moves.append((event, ""))
                if self.budget.losses and _can_be_lost(event):
                    moves.append((event, LOSE))
        if not first:
            moves += [(command, "") for command in self._misfortunes()]
        return moves

    def _over(self) -> bool:
        """Nobody is left who could receive anything or close the ledger."""
        return all(part.ended for part in self.parts.values() if isinstance(part, Actor)) and not any(
            isinstance(event, MetaCall) for event in self.pending
        )

    def _misfortunes(self) -> Iterator[Command]:
        for part in self.parts.values():
            if self.budget.crashes and isinstance(part, ModelBookie) and part.up:
                yield Command("crash", part.name)
            if self.budget.kills and isinstance(part, RecoveryActor) and part.started and not part.ended:
                yield Command("kill", part.name)

    def _for_one_actor(self) -> list[Event]:
        """All messages of some actor, if all of them are on their way to it: nothing else can then affect that
        actor."""
        if self.budget.kills:
            return []
        coming: dict[str, list[Event] | None] = {}
        for bookie in self.bookies:
            coming.update((request.actor, None) for request, _ in bookie.waiting if not request.late)
        for event in self.pending:
            if isinstance(event, Request | MetaCall):
                if not event.late:
                    coming[event.actor] = None
            elif isinstance(event, Command):
                coming[event.target] = None
            elif not isinstance(event, Sync):
                events = coming.setdefault(event.target, [])
                if events is not None:
                    events.append(event)
        return min((events for events in coming.values() if events), key=len, default=[])

    def _for_one_bookie(self) -> list[Event]:
        """A recoverer's request, if its bookie can get nothing else before the recoverer hears from it."""
        if self.budget.crashes or self.budget.kills:
            return []
        at: dict[str, list[Request]] = {}
        for event in self.pending:
            if isinstance(event, Request):
                at.setdefault(event.bookie, []).append(event)
        for bookie, requests in at.items():
            actor = requests[0].actor
            if len(requests) == 1 and not requests[0].late and isinstance(self.parts[actor], RecoveryActor):
                others = (part for part in self.parts.values() if isinstance(part, Actor) and part.name != actor)
                if not any(self._may_send(other, bookie) for other in others):
                    return list(requests)
        return []

    def _may_send(self, actor: Actor, bookie: str) -> bool:
        if actor.ended:
            return False
        if not isinstance(actor, WriterActor) or any(isinstance(event, Command) for event in self.pending):
            return True
        machine = actor.pipeline.machine
        settled = machine.state is WriterState.OPEN and machine.ensemble.state is ChangeState.NONE
        if not settled or machine.ensemble.failed:
            return True
        # After one more failure a bookie outside the ensemble may join it; after two, one that had left.
        return self.budget.losses > 1 or (self.budget.losses == 1 and bookie not in machine.ensemble.members)

    # --- what makes no difference ---

    def settle(self) -> None:
        """Drop everything that can no longer make a difference."""
        known, parts = self.known, self.parts
        for part in list(parts.values()):
            if isinstance(part, WriterActor) and part.idle and not self._told(part.name):
                parts[part.name] = known.gone(part.name)
                self.forget(part.name)
        kept: list[Event] = []
        for event in self.pending:
            kind = type(event)
            if kind is Request:
                assert isinstance(event, Request)
                left = known.left_of(event, parts[event.actor], parts[event.bookie])
                if left is not None and not (left.late and left in kept):
                    kept.append(left)
            elif kind is Answer or kind is MetaReply:
                assert isinstance(event, Answer | MetaReply)
                if not known.ignored(event, parts[event.actor]):
                    kept.append(event)
            # Versions only grow: a late compare-and-set with an old version never succeeds.
            elif not (isinstance(event, MetaCall) and event.late and event.version != self.store.version):
                kept.append(event)
        self.pending = kept

    def _told(self, name: str) -> bool:
        return any(isinstance(event, Command) and event.target == name for event in self.pending)

    def post(self, event: Event) -> None:
        # Time stands still: lost messages already lead to everything that timers lead to.
        if not isinstance(event, Tick):
            self.pending.append(self.known.event(event))

    def forget(self, actor: str) -> None:
        self.pending = [self.known.event(event) for event in self.unawaited(actor, self.pending)]


def _can_be_lost(event: Event) -> bool:
    match event:
        case Request() | MetaCall():
            return not event.late
        case Answer():
            return event.frame is not None
        case MetaReply():
            return event.outcome != "unknown"
    return False
