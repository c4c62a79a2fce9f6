"""Scenario texts: the model world's third driver. A text says what happens; its effects are recorded in it.

A text (``scenarios/c1_….txt``) has comments (``#``), statements, and, indented below each statement, its recorded
effects. After a change of behaviour, record again (``REWRITE_SCENARIOS=1 pytest …``) and have the difference
reviewed. Lines that begin with ``expect`` are the verdict: recording again does not change them.

The world (first):

============================== ============================================================================
``quorum 3/3/2``               ensemble, write quorum, ack quorum
``bookies 4``                  b1 to b4
``segments 0: b1 b2, 2: b2 b3`` of the ledger; all but the last one are written and acknowledged
``writer w``                   an actor; also ``recoverer``, ``reader``, ``replicator``; several names may follow
``unclaimed w``                a writer that has not told bookies the ledger's password before
============================== ============================================================================

What happens:

============================== ============================================================================
``append w 1``, ``crash b2``   a command (see the parts of the world, and World.force, World.collect)
``add 0 w→b2``, ``sync b2``    a pending event, by its label (events.py); also other ways: ``lose …``
``serve add 0 w→b2``           a request, what its bookie must sync for it, and the answer
``run``                        all pending events and their effects, in order; no read counts as slow
``run r1``, ``run r1 b1 zk``   only messages of r1; only those between r1 and these servers
============================== ============================================================================

Recorded effects: messages sent (``w→b1 b2 b3: add 0``), answers of servers (``b1→r1: fence NO_ENTRY``; ``broken`` if
the server is down), acknowledgements, metadata, entries read, ends of clients.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.quorum import Quorum
from tests.simulation.bytes_cache import metadata_in
from tests.simulation.events import (
    STORE,
    Acknowledged,
    Answer,
    Choose,
    Command,
    Effect,
    Ended,
    Event,
    Expire,
    MetaCall,
    MetadataChanged,
    MetaReply,
    Nap,
    Request,
    Retry,
    Saw,
    Slow,
    Sync,
    Tick,
    Way,
)
from tests.simulation.histories import Cast
from tests.simulation.outcomes import InvariantError
from tests.simulation.readers import ReaderActor, ReplicationActor
from tests.simulation.world import LINKS, World, metadata_told, told
from tests.simulation.writers import Actor, WriterActor
from tests.support.ledgers import ledger

COMMANDS = (
    *("append", "close", "renew", "start", "kill"),
    *("crash", "restart", "wipe", "forget", "flip", "usurp", "cut", "mend"),
)
MOST_STEPS = 20_000
_INDENT = "    "


class ScenarioError(AssertionError):
    """A verdict does not hold, or a text is not understood."""


@dataclass(frozen=True, slots=True)
class Note:
    """One recorded event. Adjacent ones that differ only in ``source`` or ``target`` share a line."""

    source: str = ""
    target: str = ""
    what: str = ""


@dataclass(slots=True)
class Statement:
    number: int
    text: str
    recorded: list[str] = field(default_factory=list)


class ToldWorld(World):
    """A world that takes notes."""

    def __init__(self, metadata: LedgerMetadata, bookies: int) -> None:
        self.notes: list[Note] = []
        super().__init__(metadata, bookies)

    def post(self, event: Event) -> None:
        match event:
            case Request(late=False):
                self.notes.append(Note(event.actor, event.bookie, event.what))
            case Answer():
                self.notes.append(Note(event.bookie, event.actor, f"{event.what} {event.said}"))
            case MetaCall(late=False):
                self.notes.append(Note(event.actor, STORE, "meta" if event.data is None else "cas"))
            case MetaReply():
                self.notes.append(Note(STORE, event.actor, f"{'cas' if event.was_write else 'meta'} {event.said}"))
            case Choose():
                places = " ".join(map(str, event.failed))
                self.notes.append(Note(what=f"{event.actor} looks for others in place {places}"))
            case Retry():
                self.notes.append(Note(what=f"{event.actor} will send to {event.bookie} again"))
        super().post(event)

    def _take(self, effect: Effect) -> None:
        if isinstance(effect, Acknowledged | MetadataChanged | Saw | Ended):
            self.notes.append(Note(what=told(effect)))
        super()._take(effect)

    # --- running ---

    def serve(self, label: str) -> None:
        """Deliver a request, sync what the bookie must sync for it, and deliver the answer."""
        self.step(label)
        what, _, link = label.rpartition(" ")
        client, _, server = link.partition("→")
        if server != STORE and self.bookie(server).waiting:
            self.step(f"sync {server}")
        self.step(f"answer {what} {server}→{client}")

    def run(self, actor: str = "", servers: Iterable[str] = ()) -> None:
        """Let pending events and their consequences happen in order: all, or only those of ``actor``."""
        for _ in range(MOST_STEPS):
            event = next((event for event in self.pending if self._may_run(event, actor, frozenset(servers))), None)
            if event is None:
                return
            self.pending.remove(event)
            self.happen(event, self._usual(event))
        raise ScenarioError("it does not come to rest")

    def _may_run(self, event: Event, actor: str, servers: frozenset[str]) -> bool:
        match event:
            case Slow() | Tick() | Nap() | Expire() | Command():
                return False
            case Sync(bookie):
                waiting = self.bookie(bookie).waiting
                return not actor or any(asked.actor == actor and not asked.late for asked, _ in waiting)
            case Request(bookie=server) | Answer(bookie=server):
                pass
            case _:
                server = STORE if isinstance(event, MetaCall | MetaReply) else ""
        if self.links.block(event):
            return False
        ours = not actor or (event.actor == actor and not getattr(event, "late", False))
        return ours and (not servers or server in servers)

    def _usual(self, event: Event) -> Way:
        """Choose only running bookies; those that failed before come last."""
        if not isinstance(event, Choose):
            return ""
        names = sorted(bookie.name for bookie in self.bookies if bookie.up and bookie.name not in event.exclude)
        names.sort(key=lambda name: name in event.avoid)
        return tuple(zip(event.failed, names, strict=False))


class Scenario:
    """One text. ``cast`` replaces clients with mutants."""

    def __init__(self, path: Path, cast: Cast | None = None) -> None:
        self.path = path
        self.cast = cast or Cast()
        self.text = path.read_text("utf-8")
        self.statements = _statements(self.text)
        self._world: ToldWorld | None = None
        self._described: dict[str, str] = {}
        self._people: list[tuple[str, str]] = []
        #: All notes, for verdicts.
        self._said: list[Note] = []

    @property
    def world(self) -> ToldWorld:
        """The world, created when the first event happens."""
        if self._world is None:
            self._world = self._make()
        return self._world

    def play(self) -> str:
        """The text with newly recorded results. Raises InvariantError, ScenarioError."""
        for statement in self.statements:
            try:
                statement.recorded = self._play(statement)
            except (InvariantError, ScenarioError, LookupError) as error:
                story = "" if self._world is None else f"\n{self._world.story()}"
                kind = InvariantError if isinstance(error, InvariantError) else ScenarioError
                raise kind(
                    f"{self.path.name}, line {statement.number}, {statement.text!r}: {error.args[0]}{story}"
                ) from error
        return self._rewritten()

    def _play(self, statement: Statement) -> list[str]:
        verb, *arguments = statement.text.split()
        if verb in _DESCRIPTIONS:
            if self._world is not None:
                raise ScenarioError("the world is described first")
            if verb in _KINDS:
                self._people += [(name, verb) for name in arguments]
            else:
                self._described[verb] = " ".join(arguments)
            return []
        world = self.world
        if verb == "expect":
            self._expect(" ".join(arguments))
            return []
        match verb:
            case "serve":
                world.serve(" ".join(arguments))
            case "run":
                world.run(arguments[0] if arguments else "", arguments[1:])
            case "force":
                world.force(arguments[0])
            case "collect":
                world.collect(arguments[0])
            case _ if verb in COMMANDS:
                target, *values = arguments or [LINKS]
                world.command(verb, target, *(int(value) if value.isdigit() else value for value in values))
            case _:
                world.step(statement.text)
        notes, world.notes = world.notes, []
        self._said += notes
        return _lines(notes)

    def _make(self) -> ToldWorld:
        sizes = [int(size) for size in self._described["quorum"].split("/")]
        segments = [
            (int(first), bookies)
            for first, bookies in (part.split(":") for part in self._described.get("segments", "").split(",") if part)
        ]
        metadata = ledger(Quorum(*sizes), *segments)
        world = ToldWorld(metadata, int(self._described["bookies"]))
        for name, kind in self._people:
            world.add(_KINDS[kind](name, metadata, self.cast))
        return world

    # --- verdicts ---

    def _expect(self, text: str) -> None:
        fact, wanted = (text[4:], False) if text.startswith("not ") else (text, True)
        for pattern, check in _FACTS:
            found = re.fullmatch(pattern, fact)
            if found is not None:
                if check(self, *found.groups()) is not wanted:
                    raise ScenarioError("this does not hold")
                return
        raise ScenarioError("no such verdict")

    def ended(self, name: str) -> Actor:
        part = self.world.parts[name]
        assert isinstance(part, Actor)
        return part

    def end_of(self, name: str) -> str:
        """Where a client found the ledger closed."""
        for item in self.world.trace:
            if isinstance(item, Ended) and item.actor == name:
                return str(item.last_entry_id)
        raise ScenarioError(f"{name} has not ended")

    def closed_at(self, end: str) -> bool:
        metadata = self.world.metadata
        return metadata.state is LedgerState.CLOSED and metadata.last_entry_id == int(end)

    def times_closed(self) -> int:
        changes = [item for item in self.world.trace if isinstance(item, MetadataChanged)]
        states = [[metadata_in(data).state for data in (change.before, change.after)] for change in changes]
        return sum(before is not after and after is LedgerState.CLOSED for before, after in states)

    def entries_read(self, name: str) -> str:
        ids = [str(item.entry_id) for item in self.world.trace if isinstance(item, Saw) and item.actor == name]
        return " ".join(ids) or "nothing"

    def was_sent(self, source: str, target: str, what: str) -> bool:
        """``what`` may be the beginning of the message."""
        return any(
            (note.source, note.target) == (source, target) and f"{note.what} ".startswith(f"{what} ")
            for note in self._said
        )

    # --- the text ---

    def _rewritten(self) -> str:
        recorded = {statement.number: statement.recorded for statement in self.statements}
        lines: list[str] = []
        for number, line in enumerate(self.text.splitlines(), 1):
            if not line.startswith(_INDENT):
                lines.append(line)
            lines += [_INDENT + outcome for outcome in recorded.get(number, [])]
        return "\n".join(lines) + "\n"


def _statements(text: str) -> list[Statement]:
    lines = enumerate(text.splitlines(), 1)
    return [Statement(number, line) for number, line in lines if line.strip() and not line.startswith((_INDENT, "#"))]


def _lines(notes: list[Note]) -> list[str]:
    """The notes in words. Adjacent notes share a line if they differ only in the server, or only in the message."""
    orders = [(_over_servers, _over_messages), (_over_messages, _over_servers)]
    shortest = min((list(second(first(notes))) for first, second in orders), key=len)
    return [f"{note.source}→{note.target}: {note.what}" if note.source else note.what for note in shortest]


def _over_messages(notes: Iterable[Note]) -> Iterator[Note]:
    for (source, target), group in groupby(notes, lambda note: (note.source, note.target)):
        if source:
            yield Note(source, target, ", ".join(note.what for note in group))
        else:
            yield from group


def _over_servers(notes: Iterable[Note]) -> Iterator[Note]:
    last: Note | None = None
    for note in notes:
        if last is not None and note.source and note.what == last.what and note.source == last.source:
            last = Note(last.source, f"{last.target} {note.target}", note.what)
        elif last is not None and note.source and note.what == last.what and note.target == last.target:
            last = Note(f"{last.source} {note.source}", last.target, note.what)
        else:
            if last is not None:
                yield last
            last = note
    if last is not None:
        yield last


_KINDS: dict[str, Callable[[str, LedgerMetadata, Cast], Actor]] = {
    "writer": lambda name, metadata, cast: WriterActor(name, metadata, cast.writer),
    "unclaimed": lambda name, metadata, cast: WriterActor(name, metadata, cast.writer, claimed=False),
    "recoverer": lambda name, metadata, cast: cast.recoverer(name, metadata),
    "reader": lambda name, metadata, cast: ReaderActor(name),
    "replicator": lambda name, metadata, cast: ReplicationActor(name),
}
_DESCRIPTIONS = frozenset(["quorum", "bookies", "segments", *_KINDS])

#: The possible expectations; each also with ``not`` before it.
_FACTS: list[tuple[str, Callable[..., bool]]] = [
    (r"acknowledged (\d+)", lambda s, entry: s.world.watch.acknowledged >= int(entry)),
    (r"closed (-?\d+)", lambda s, end: s.closed_at(end)),
    (r"closed", lambda s: s.world.metadata.state is LedgerState.CLOSED),
    (r"closed once", lambda s: s.times_closed() == 1),
    (r"metadata (.+)", lambda s, text: metadata_told(s.world.metadata) == text),
    (r"end of (\w+) == (-?\d+)", lambda s, name, end: s.end_of(name) == end),
    (r"end of (\w+) == end of (\w+)", lambda s, one, other: s.end_of(one) == s.end_of(other)),
    (r"(\w+) ended (\w+)", lambda s, name, outcome: s.ended(name).outcome == outcome),
    (r"(\w+) ended", lambda s, name: s.ended(name).ended),
    (r"(\w+) read (nothing|[\d ]+)", lambda s, name, entries: s.entries_read(name) == entries),
    (r"(\w+)→(\w+): (.+)", lambda s, source, target, what: s.was_sent(source, target, what)),
    (r"(b\d+) up", lambda s, name: s.world.bookie(name).up),
    (r"(b\d+) fenced", lambda s, name: s.world.bookie(name).fenced),
    (r"(b\d+) holds (\d+)", lambda s, name, entry: int(entry) in s.world.bookie(name).disk),
    (r"pending (.+)", lambda s, label: any(event.label == label for event in s.world.pending)),
]
