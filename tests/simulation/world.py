"""The model world: servers, clients and the messages between them.

Nothing happens by itself: a driver picks one of the pending events, and the way in which it happens. There are three
drivers: random histories (histories.py), the exhaustive explorer (explorer.py), and scenario texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import permutations
from typing import Any, Final, cast

from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, encode
from tests.simulation.bytes_cache import metadata_in, stored_entry
from tests.simulation.events import (
    DOUBLE,
    LOSE,
    REFUSE,
    SLOW,
    STORE,
    Acknowledged,
    Answer,
    Choose,
    Command,
    Effect,
    Ended,
    Event,
    Fenced,
    Followed,
    Forgot,
    MetaCall,
    MetadataChanged,
    MetaReply,
    Request,
    Saw,
    Stored,
    Way,
    Withdraw,
    label_of,
)
from tests.simulation.invariants import Watch
from tests.simulation.readers import ReplicationActor
from tests.simulation.servers import Links, ModelBookie, ModelStore
from tests.simulation.writers import Actor

LINKS = "links"
_OBSERVE: Final[dict[type, Callable[[Watch, Any], None]]] = {
    Stored: Watch.on_stored,
    Fenced: Watch.on_fenced,
    Forgot: Watch.on_forgot,
    Acknowledged: Watch.on_acknowledged,
    MetadataChanged: Watch.on_metadata,
    Saw: Watch.on_saw,
    Followed: Watch.on_followed,
    Ended: Watch.on_ended,
}
Part = ModelBookie | ModelStore | Links | Actor


class World:
    """``pending`` holds what may happen next; ``trace`` what happened and was observed."""

    def __init__(self, metadata: LedgerMetadata, bookies: int) -> None:
        self.pending: list[Event] = []
        self.trace: list[tuple[Event, Way] | Acknowledged | MetadataChanged | Saw | Ended] = []
        self.parts: dict[str, Part] = {STORE: ModelStore(encode(metadata)), LINKS: Links()}
        for number in range(1, bookies + 1):
            name = f"b{number}"
            self.parts[name] = ModelBookie(name)
        self.watch = Watch(self)
        self._fill_finished_segments(metadata)

    def _fill_finished_segments(self, metadata: LedgerMetadata) -> None:
        """Everything before the last segment counts as already written and acknowledged."""
        end = metadata.last_segment.first_entry_id
        for entry_id in range(end):
            ensemble = metadata.segment_of(entry_id).ensemble
            assert metadata.digest_type is not None
            stored = stored_entry(entry_id, entry_id - 1, metadata.digest_type)
            for index in metadata.quorum.write_set(entry_id):
                self.bookie(ensemble[index]).hold(entry_id, stored)
        self.watch.acknowledged = end - 1

    # --- looking ---

    @property
    def store(self) -> ModelStore:
        part = self.parts[STORE]
        assert isinstance(part, ModelStore)
        return part

    @property
    def metadata(self) -> LedgerMetadata:
        return metadata_in(self.store.data)

    @property
    def bookies(self) -> list[ModelBookie]:
        return [part for part in self.parts.values() if isinstance(part, ModelBookie)]

    def actor(self, name: str) -> Actor:
        part = self.parts[name]
        assert isinstance(part, Actor)
        return part

    def bookie(self, name: str) -> ModelBookie:
        part = self.parts[name]
        assert isinstance(part, ModelBookie)
        return part

    def ways(self, event: Event) -> Iterator[Way]:
        """The ways in which ``event`` may happen; the first is the usual one."""
        match event:
            case Request(late=True):
                yield from ("", LOSE)
            case Request():
                yield from ("", LOSE, REFUSE, DOUBLE)
            case Answer() | MetaCall() | MetaReply():
                yield from ("", LOSE)
            case Choose():
                names = sorted(bookie.name for bookie in self.bookies if bookie.name not in event.exclude)
                for count in range(min(len(names), len(event.failed)), -1, -1):
                    for chosen in permutations(names, count):
                        yield tuple(zip(event.failed, chosen, strict=False))
                yield SLOW
            case _:
                yield ""

    @property
    def links(self) -> Links:
        part = self.parts[LINKS]
        assert isinstance(part, Links)
        return part

    # --- acting ---

    def add(self, actor: Actor) -> None:
        """Add a client process. It does nothing until it gets a command."""
        self.parts[actor.name] = actor

    def command(self, verb: str, target: str, *arguments: int | str) -> None:
        """Give a command now."""
        self.happen(Command(verb, target, arguments))

    def force(self, bookie: str) -> None:
        """Start a bookie although its disk was wiped. It knows that it may have lost entries of a ledger that is
        not closed (limbo)."""
        metadata = self.metadata
        held = metadata.state is not LedgerState.CLOSED and bookie in metadata.last_segment.ensemble
        if not self.bookie(bookie).up:
            self.command("force", bookie, int(held))

    def collect(self, bookie: str) -> None:
        """A bookie deletes what it need not keep: of a closed ledger that nobody replicates."""
        metadata = self.metadata
        if metadata.state is not LedgerState.CLOSED or any(
            part.started and not part.ended for part in self.parts.values() if isinstance(part, ReplicationActor)
        ):
            return
        garbage = [
            entry_id
            for entry_id in sorted(self.bookie(bookie).disk)
            if bookie not in metadata.segment_of(entry_id).ensemble
        ]
        if garbage:
            self.command("drop", bookie, *garbage)

    def step(self, label: str) -> None:
        """Let the pending event with this label happen."""
        for event in self.pending:
            if label.endswith(event.label) or isinstance(event, Choose):
                for way in self.ways(event):
                    if label_of(event, way) == label and (way == LOSE or not self.links.block(event)):
                        self.pending.remove(event)
                        self.happen(event, way)
                        return
        raise LookupError(f"{label!r} is not pending; these are: {', '.join(e.label for e in self.pending)}")

    def happen(self, event: Event, way: Way = "") -> None:
        """Let ``event`` happen, which is not (or no longer) pending."""
        self.trace.append((event, way))
        if way == LOSE:
            if isinstance(event, Request | MetaCall) and event.late:
                return
            event = self._lose(event)
        elif way == SLOW:
            self.post(event)
        elif way == DOUBLE:
            assert isinstance(event, Request)
            self.post(event.unawaited())
        for effect in self.hand(event, way):
            self._take(effect)

    def _lose(self, event: Event) -> Event:
        """Tell the waiting client. A request may still arrive when nobody waits for it."""
        match event:
            case Request():
                self.post(event.unawaited())
                return event.answer(None)
            case Answer():
                return event.unheard()
            case MetaCall():
                return event.reply("unknown")
            case MetaReply():
                return MetaReply(event.actor, event.tag, event.was_write, "unknown", b"", -1)
        raise AssertionError(f"{event.label} cannot be lost")

    def hand(self, event: Event, way: Way) -> Iterable[Effect]:
        """The part that ``event`` addresses handles it."""
        return self.parts[event.target].handle(event, way)

    def post(self, event: Event) -> None:
        """Make ``event`` pending."""
        self.pending.append(event)

    def withdraw(self, event: Event) -> None:
        if event in self.pending:
            self.pending.remove(event)

    def _take(self, effect: Effect) -> None:
        observe = _OBSERVE.get(type(effect))
        if observe is None:
            if isinstance(effect, Withdraw):
                self.withdraw(effect.event)
            else:
                self.post(cast(Event, effect))
            return
        if isinstance(effect, Acknowledged | MetadataChanged | Saw | Ended):
            self.trace.append(effect)
        observe(self.watch, effect)
        if isinstance(effect, Ended):
            self.forget(effect.actor)

    def forget(self, actor: str) -> None:
        """Nobody waits any more for messages of ``actor``; requests still arrive."""
        self.pending = list(self.unawaited(actor, self.pending))

    @staticmethod
    def unawaited(actor: str, pending: Iterable[Event]) -> Iterator[Event]:
        for event in pending:
            if not isinstance(event, Request | MetaCall):
                if event.target != actor:
                    yield event
            elif event.actor != actor or event.late:
                yield event
            elif isinstance(event, Request):
                yield event.unawaited()
            elif event.data is not None:
                yield MetaCall(event.actor, event.tag, event.data, event.version, late=True)

    # --- telling ---

    def story(self, last: int = 60) -> str:
        """The last events, and the current state."""
        lines = [f"… {len(self.trace) - last} earlier"] if len(self.trace) > last else []
        for item in self.trace[-last:]:
            if isinstance(item, tuple):
                event, way = item
                said = f" : {event.said}" if isinstance(event, Answer | MetaReply) and not way else ""
                lines.append(f"  {label_of(event, way)}{said}")
            else:
                lines.append(f"      {told(item)}")
        lines.append("who holds what:")
        for bookie in self.bookies:
            lines.append(f"  {bookie.name}: {bookie.holdings()}")
        lines.append(f"  {STORE}: {metadata_told(self.metadata)}")
        lines.append("pending: " + (", ".join(event.label for event in self.pending) or "nothing"))
        return "\n".join(lines)


def told(item: Acknowledged | MetadataChanged | Saw | Ended) -> str:
    match item:
        case Acknowledged(actor, lac):
            return f"{actor} is acknowledged up to {lac}"
        case MetadataChanged(_, after):
            return f"metadata: {metadata_told(metadata_in(after))}"
        case Saw(actor, entry_id):
            return f"{actor} reads entry {entry_id}"
        case Ended(actor, outcome, last_entry_id):
            return f"{actor} ends: {outcome}" + ("" if last_entry_id is None else f", closed at {last_entry_id}")


def metadata_told(metadata: LedgerMetadata) -> str:
    segments = ", ".join(f"{segment.first_entry_id}: {' '.join(segment.ensemble)}" for segment in metadata.segments)
    end = f" at {metadata.last_entry_id}" if metadata.state is LedgerState.CLOSED else ""
    return f"{metadata.state.name}{end}, {segments}"
