"""The parts of explored worlds, with each state of each part stored once, and the effects of events on them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import cast

from tests.simulation.bytes_cache import ForceSeen, PollSeen, ReadSeen, request_in
from tests.simulation.events import Answer, Effect, Event, MetaReply, Observation, Request, Way, Withdraw
from tests.simulation.recoverers import RecoveryActor
from tests.simulation.servers import ModelBookie
from tests.simulation.snapshots import clone, fingerprint
from tests.simulation.world import Part
from tests.simulation.writers import Actor


@dataclass(frozen=True, slots=True)
class Step:
    """The result of an event on a part."""

    part: Part
    number: int
    effects: list[Effect]


@dataclass(frozen=True, slots=True)
class Origin:
    """How a part reached its state: through ``event`` from ``parent``; or it is an initial state, or is ``gone``."""

    name: str
    parent: int = -1
    event: Event | None = None
    way: Way = ""
    gone: bool = False


class Gone(Actor):
    """An actor that can do nothing more, whatever it was."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.started = self.ended = True


class Known:
    """The parts and events of an exploration, each stored once, and the steps that were run. Nothing in here is
    ever changed or freed, so ``id`` identifies an object."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.origins: list[Origin] = []
        self.roots: dict[str, int] = {}
        self.events: list[Event] = []
        #: Of parts and events, by ``id``.
        self.numbers: dict[int, int] = {}
        self._parts: dict[Hashable, int] = {}
        self._events: dict[Event, Event] = {}
        self._steps: dict[tuple[int, int, Way], Step] = {}
        self._left: dict[tuple[int, int, int], Request | None] = {}
        self._ignored: dict[tuple[int, int], bool] = {}
        self._gone: dict[str, Part] = {}

    @property
    def steps_done(self) -> int:
        return len(self._steps)

    def check(self, most: int = 1_000) -> None:
        """Check that parts never changed: a copy shares nothing mutable with its original."""
        for number, part in enumerate(self.parts[:most]):
            assert self._parts[fingerprint(part)] == number, f"a copy changed its original, a {type(part).__name__}"

    def root(self, name: str, part: Part) -> Part:
        """A part in its initial state."""
        part = self._intern(clone(part), Origin(name))
        self.roots[name] = self.numbers[id(part)]
        return part

    def gone(self, name: str) -> Part:
        """An actor of this name that can do nothing more."""
        part = self._gone.get(name)
        if part is None:
            part = self._gone[name] = self._intern(Gone(name), Origin(name, gone=True))
        return part

    def event(self, event: Event) -> Event:
        """The stored event that equals this one."""
        found = self._events.get(event)
        if found is None:
            found = self._events[event] = event
            self.numbers[id(event)] = len(self.events)
            self.events.append(event)
        return found

    def step(self, part: Part, event: Event, way: Way) -> Step:
        """The result of the event for ``part``. Effects that are events are interned."""
        step = self._steps.get((id(part), id(event), way))
        if step is None:
            event = self.event(event)
            after = clone(part)
            effects = [
                effect if isinstance(effect, Withdraw | Observation) else self.event(effect)
                for effect in after.handle(event, way)
            ]
            if isinstance(after, Actor) and after.ended:
                found = self.gone(after.name)
            else:
                found = self._intern(after, Origin(event.target, self.numbers[id(part)], event, way))
            step = self._steps[id(part), id(event), way] = Step(found, self.numbers[id(found)], effects)
        return step

    def _intern(self, part: Part, origin: Origin) -> Part:
        number = self._parts.setdefault(fingerprint(part), len(self.parts))
        if number == len(self.parts):
            self.parts.append(part)
            self.origins.append(origin)
            self.numbers[id(part)] = number
        return self.parts[number]

    # --- what makes no difference ---

    def ignored(self, event: Answer | MetaReply, actor: Part) -> bool:
        """Whether the actor ignores it from now on."""
        ignored = self._ignored.get((id(event), id(actor)))
        if ignored is None:
            event = cast(Answer | MetaReply, self.event(event))
            ignored = self._ignored[id(event), id(actor)] = self._is_ignored(event, actor)
        return ignored

    def _is_ignored(self, event: Answer | MetaReply, actor: Part) -> bool:
        assert isinstance(actor, Actor)
        if actor.ended:
            return True
        if not isinstance(actor, RecoveryActor) or not isinstance(event, Answer) or event.tag[0] == "add":
            return False
        # A recovery looks at an answer only while it waits for it, and waits for each answer once.
        step = self.step(actor, self.event(event.unheard()), "")
        return step.part is actor and not step.effects

    def left_of(self, request: Request, actor: Part, bookie: Part) -> Request | None:
        """The request, marked late if its answer is ignored, or None if it changes nothing at the bookie."""
        key = (id(request), id(actor), id(bookie))
        try:
            return self._left[key]
        except KeyError:
            assert isinstance(bookie, ModelBookie)
            left: Request | None = request
            if not request.late and self.ignored(request.answer(None), actor):
                left = cast(Request, self.event(request.unawaited()))
            if left is not None and left.late and _changes_nothing(left, bookie):
                left = None
            self._left[key] = left
            return left


def _changes_nothing(request: Request, bookie: ModelBookie) -> bool:
    """… now or later. Fences on disk stay; so does an entry, whatever LAC it carries."""
    seen = request_in(request.frame)
    if isinstance(seen, ReadSeen):
        return bookie.fenced_on_disk or not seen.fencing
    if isinstance(seen, ForceSeen | PollSeen):
        return False
    if not seen.recovery:
        return bookie.fenced_on_disk
    return bookie.disk.get(seen.entry_id) == seen.stored
