"""States that differ only in the names of interchangeable bookies or recoverers.

If each bookie of an ensemble holds every entry (E = Qw), bookies in the same places of the initial segments may swap
names, and so may recoverers. The *image* of a state under such a renaming is computed without looking into any part:
the part's story is replayed with the new names. This also checks that the machines treat the names alike: what a part
sends in the image must be the image of what it sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations, product

from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, Segment, encode
from tests.simulation.bytes_cache import metadata_in
from tests.simulation.events import (
    Acknowledged,
    Answer,
    Choose,
    Command,
    Effect,
    Ended,
    Event,
    Fenced,
    Forgot,
    MetaCall,
    MetadataChanged,
    MetaReply,
    Request,
    Retry,
    Saw,
    Slow,
    Stored,
    Sync,
    Tick,
    Way,
    Withdraw,
)
from tests.simulation.interning import Known


class _Renaming:
    """One change of names."""

    def __init__(self, names: dict[str, str], initial: LedgerMetadata) -> None:
        self.names = names
        self._initial = initial

    def name(self, name: str) -> str:
        return self.names.get(name, name)

    def places(self, number: int) -> list[int]:
        """Where each place of a segment's ensemble moves, so that the initial segment stays the same."""
        segments = self._initial.segments
        members = segments[min(number, len(segments) - 1)].ensemble
        return [members.index(self.name(bookie)) for bookie in members]

    def metadata(self, data: bytes) -> bytes:
        if not data:
            return data
        metadata = metadata_in(data)
        segments: list[Segment] = []
        for number, segment in enumerate(metadata.segments):
            ensemble = dict(zip(self.places(number), map(self.name, segment.ensemble), strict=True))
            segments.append(Segment(segment.first_entry_id, tuple(ensemble[place] for place in sorted(ensemble))))
        return encode(replace(metadata, segments=tuple(segments)))

    def event(self, event: Event) -> Event:
        match event:
            case Request() | Answer():
                return replace(event, actor=self.name(event.actor), bookie=self.name(event.bookie))
            case Retry() | Slow():
                return replace(event, actor=self.name(event.actor), bookie=self.name(event.bookie))
            case MetaCall():
                data = None if event.data is None else self.metadata(event.data)
                return replace(event, actor=self.name(event.actor), data=data)
            case MetaReply():
                return replace(event, actor=self.name(event.actor), data=self.metadata(event.data))
            case Tick():
                return replace(event, actor=self.name(event.actor))
            case Sync():
                return Sync(self.name(event.bookie))
            case Command():
                return replace(event, target=self.name(event.target))
            case Choose():
                places = self.places(len(self._initial.segments))
                return replace(
                    event,
                    actor=self.name(event.actor),
                    failed=tuple(sorted(places[index] for index in event.failed)),
                    exclude=frozenset(map(self.name, event.exclude)),
                    avoid=frozenset(map(self.name, event.avoid)),
                )

    def way(self, way: Way) -> Way:
        if isinstance(way, str):
            return way
        places = self.places(len(self._initial.segments))
        return tuple(sorted((places[index], self.name(bookie)) for index, bookie in way))

    def effect(self, effect: Effect) -> Effect:
        match effect:
            case Withdraw(event):
                return Withdraw(self.event(event))
            case Acknowledged() | Saw() | Ended():
                return replace(effect, actor=self.name(effect.actor))
            case Stored() | Fenced() | Forgot():
                return replace(effect, bookie=self.name(effect.bookie))
            case MetadataChanged():
                return MetadataChanged(self.metadata(effect.before), self.metadata(effect.after))
            case _:
                return self.event(effect)


class Symmetry:
    """The renamings under which a world stays the same. ``names`` are its parts, in order."""

    def __init__(self, known: Known, initial: LedgerMetadata, names: Sequence[str]) -> None:
        self._known = known
        self._names = list(names)
        #: Positions in the names of parts that are alike.
        self._alike = [[self._names.index(name) for name in members] for members in self._classes(initial)]
        orders = list(product(*(permutations(members) for members in self._alike)))
        self._renamings = [_Renaming(self._change(order), initial) for order in orders]
        self._back = [[self._names.index(name) for name in self._origins(one)] for one in self._renamings]
        self._by_order = {order: index for index, order in enumerate(orders)}
        self._parts: list[dict[int, int]] = [{} for _ in orders]
        self._events: list[dict[int, int]] = [{} for _ in orders]
        #: Each bookie's class, and its place in it.
        self._places = {
            self._names[at]: (number, place)
            for number, members in enumerate(self._alike)
            for place, at in enumerate(members)
            if self._names[at][0] == "b"
        }
        #: A bookie, or an event at a bookie, moved to the first bookie of its class.
        self._first: dict[int, int] = {}
        self._at: dict[int, tuple[int, int, int] | None] = {}
        self._chosen: dict[tuple[tuple[int, ...], ...], list[int]] = {}

    def key(self, parts: Sequence[int], pending: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The same for all states that are images of one another. ``parts`` are in the order of the names."""
        least: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        for index in self._candidates(parts, pending):
            known_parts, known_events = self._parts[index], self._events[index]
            try:
                image = tuple([known_parts[parts[at]] for at in self._back[index]])
                images = [known_events[number] for number in pending]
            except KeyError:
                image = tuple([self._part(index, parts[at]) for at in self._back[index]])
                images = [self._event(index, number) for number in pending]
            images.sort()
            key = (image, tuple(images))
            if least is None or key < least:
                least = key
        assert least is not None
        return least

    def _candidates(self, parts: Sequence[int], pending: Sequence[int]) -> list[int]:
        """The renamings that sort interchangeable bookies by what they hold and by their messages in flight."""
        looks: list[list[list[int]]] = [[[parts[at]] for at in members] for members in self._alike]
        for number, members in enumerate(self._alike):
            for place, at in enumerate(members):
                looks[number][place][0] = self._first_bookie(number, at, parts[at])
        for event in pending:
            try:
                where = self._at[event]
            except KeyError:
                where = self._at[event] = self._first_event(event)
            if where is not None:
                looks[where[0]][where[1]].append(where[2])
        pattern: list[tuple[int, ...]] = []
        for ones in looks:
            tuples = [(look[0], *sorted(look[1:])) for look in ones]
            ranks = {look: rank for rank, look in enumerate(sorted(set(tuples)))}
            pattern.append(tuple([ranks[look] for look in tuples]))
        key = tuple(pattern)
        chosen = self._chosen.get(key)
        if chosen is None:
            chosen = self._chosen[key] = list(self._sorting(key))
        return chosen

    def _sorting(self, pattern: tuple[tuple[int, ...], ...]) -> Iterator[int]:
        """The renamings after which ranks do not decrease."""
        for order, index in self._by_order.items():
            for members, images, ranks in zip(self._alike, order, pattern, strict=True):
                after = [ranks[images.index(at)] for at in members]
                if after != sorted(after):
                    break
            else:
                yield index

    def _first_bookie(self, number: int, at: int, part: int) -> int:
        if self._names[at][0] != "b":
            return 0
        first = self._first.get(part)
        if first is None:
            first = self._first[part] = self._part(self._swap(number, at), part)
        return first

    def _first_event(self, event: int) -> tuple[int, int, int] | None:
        bookie = getattr(self._known.events[event], "bookie", "")
        if bookie not in self._places:
            return None
        number, place = self._places[bookie]
        image = self._known.events[self._event(self._swap(number, self._alike[number][place]), event)]
        actor = getattr(image, "actor", "")
        if actor[:1] == "r":
            # The recoverer's name must not decide.
            image = replace(image, actor="r1")  # type: ignore[arg-type]
        return number, place, self._known.numbers[id(self._known.event(image))]

    def _swap(self, number: int, at: int) -> int:
        """The renaming that swaps a bookie with the first of its class."""
        first = self._alike[number][0]
        swapped = {at: first, first: at}
        order = [list(members) for members in self._alike]
        order[number] = [swapped.get(place, place) for place in order[number]]
        return self._by_order[tuple(map(tuple, order))]

    def _classes(self, initial: LedgerMetadata) -> list[list[str]]:
        classes: dict[tuple[bool, ...], list[str]] = {}
        for bookie in (name for name in self._names if name[0] == "b"):
            classes.setdefault(tuple(bookie in segment.ensemble for segment in initial.segments), []).append(bookie)
        alike = [] if initial.quorum.striped else list(classes.values())
        recoverers = [name for name in self._names if name[0] == "r"]
        return [*alike, recoverers] if recoverers else alike

    def _change(self, order: tuple[tuple[int, ...], ...]) -> dict[str, str]:
        return {
            self._names[at]: self._names[image]
            for members, images in zip(self._alike, order, strict=True)
            for at, image in zip(members, images, strict=True)
        }

    def _origins(self, renaming: _Renaming) -> list[str]:
        back = {image: name for name, image in renaming.names.items()}
        return [back.get(name, name) for name in self._names]

    def _part(self, index: int, number: int) -> int:
        image = self._parts[index].get(number)
        if image is None:
            image = self._parts[index][number] = self._image_of_part(index, number)
        return image

    def _image_of_part(self, index: int, number: int) -> int:
        known, renaming = self._known, self._renamings[index]
        origin = known.origins[number]
        if origin.gone:
            return known.numbers[id(known.gone(renaming.name(origin.name)))]
        if origin.event is None:
            return known.roots[renaming.name(origin.name)]
        parent = known.parts[self._part(index, origin.parent)]
        image = known.step(parent, known.event(renaming.event(origin.event)), renaming.way(origin.way))
        told = known.step(known.parts[origin.parent], origin.event, origin.way)
        assert Counter(map(renaming.effect, told.effects)) == Counter(image.effects), "the parts are not alike"
        return image.number

    def _event(self, index: int, number: int) -> int:
        image = self._events[index].get(number)
        if image is None:
            known = self._known
            event = known.event(self._renamings[index].event(known.events[number]))
            image = known.numbers[id(event)]
            self._events[index][number] = image
        return image
