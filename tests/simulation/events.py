"""The events of the model world, and their effects.

An *event* waits until a driver picks it; its label names it in traces and in scenario texts. An *effect* is
returned by the part that handled the event: a further event, or something to observe. Messages carry the
protocol's own bytes.

============================= ==============================================================
label                         event
============================= ==============================================================
``add 0 w→b2``                a request reaches a bookie (also ``fence``, ``read 0``, …)
``late add 0 w→b2``           the same, but nobody waits for the answer any more
``answer add 0 b2→w``         its answer reaches the sender
``sync b2``                   what the bookie wrote becomes durable; it answers waiting requests
``cas w→zk``, ``meta w→zk``   a compare-and-set or a read of the metadata is done
``answer cas zk→w``           its result reaches the client
``choose w b4``               replacements for failed bookies are chosen (``choose w none``)
``retry w b2``                a request that a busy bookie refused is sent again
``slow b2→rd1``               a reader finds that a read, or a poll, takes long
``nap t1``                    a pause of a client ends
``expire b2→t1``              a poll has reached its time limit at a bookie
``changed zk→t1``             a watcher of the metadata hears that they changed
``progress w``                a timer of a writer fires (also ``search again w``)
``append w 2``, ``crash b1``  a command (each part documents its own)
============================= ==============================================================

Some events may also happen in other ways: ``lose`` (a message does not arrive, or arrives too late), ``refuse`` (the
bookie has too many requests), ``double`` (a request arrives twice), ``slow choose w`` (the choice takes long).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.simulation.bytes_cache import code_in

STORE = "zk"
#: The bookies that replace others, by ensemble index; empty if there is no replacement.
Replacements = tuple[tuple[int, str], ...]
#: How an event happens, if not in the usual way.
Way = str | Replacements
LOSE, REFUSE, DOUBLE, SLOW = "lose", "refuse", "double", "slow"


# --- events -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """``frame`` is in flight to a bookie. ``tag`` is for the sender; ``late``: the sender has stopped waiting."""

    actor: str
    bookie: str
    what: str
    tag: tuple[str | int, ...]
    frame: bytes
    late: bool = False

    @property
    def target(self) -> str:
        return self.bookie

    @property
    def label(self) -> str:
        return f"{'late ' if self.late else ''}{self.what} {self.actor}→{self.bookie}"

    def answer(self, frame: bytes | None) -> Answer:
        return Answer(self.actor, self.bookie, self.what, self.tag, frame)

    def unawaited(self) -> Request:
        return replace(self, late=True)


@dataclass(frozen=True, slots=True)
class Answer:
    """``frame`` is None if the connection broke or nothing came in time."""

    actor: str
    bookie: str
    what: str
    tag: tuple[str | int, ...]
    frame: bytes | None

    def unheard(self) -> Answer:
        return replace(self, frame=None)

    @property
    def target(self) -> str:
        return self.actor

    @property
    def label(self) -> str:
        return f"answer {self.what} {self.bookie}→{self.actor}"

    @property
    def said(self) -> str:
        return "broken" if self.frame is None else code_in(self.frame).name


@dataclass(frozen=True, slots=True)
class MetaCall:
    """The metadata is read or, with ``data``, compared and set. ``tag`` is for the sender."""

    actor: str
    tag: tuple[str | int, ...]
    data: bytes | None = None
    version: int = -1
    late: bool = False

    @property
    def target(self) -> str:
        return STORE

    @property
    def label(self) -> str:
        return f"{'late ' if self.late else ''}{'meta' if self.data is None else 'cas'} {self.actor}→{STORE}"

    def reply(self, outcome: str, data: bytes = b"", version: int = -1) -> MetaReply:
        return MetaReply(self.actor, self.tag, self.data is not None, outcome, data, version)


@dataclass(frozen=True, slots=True)
class MetaReply:
    """``outcome`` is "ok", "conflict", or "unknown" if the connection broke."""

    actor: str
    tag: tuple[str | int, ...]
    was_write: bool
    outcome: str
    data: bytes
    version: int

    @property
    def target(self) -> str:
        return self.actor

    @property
    def label(self) -> str:
        return f"answer {'cas' if self.was_write else 'meta'} {STORE}→{self.actor}"

    @property
    def said(self) -> str:
        return self.outcome


@dataclass(frozen=True, slots=True)
class Sync:
    bookie: str

    @property
    def target(self) -> str:
        return self.bookie

    @property
    def label(self) -> str:
        return f"sync {self.bookie}"


@dataclass(frozen=True, slots=True)
class Choose:
    """Choose replacements for the ensemble indexes in ``failed``, none from ``exclude``."""

    actor: str
    tag: tuple[str | int, ...]
    failed: tuple[int, ...]
    exclude: frozenset[str]
    avoid: frozenset[str]

    @property
    def target(self) -> str:
        return self.actor

    @property
    def label(self) -> str:
        return f"choose {self.actor}"


@dataclass(frozen=True, slots=True)
class Retry:
    actor: str
    tag: tuple[str | int, ...]
    bookie: str

    @property
    def target(self) -> str:
        return self.actor

    @property
    def label(self) -> str:
        return f"retry {self.actor} {self.bookie}"


@dataclass(frozen=True, slots=True)
class Slow:
    """A read takes long. It may still be answered."""

    actor: str
    tag: tuple[str | int, ...]
    bookie: str

    @property
    def target(self) -> str:
        return self.actor

    @property
    def label(self) -> str:
        return f"slow {self.bookie}→{self.actor}"


@dataclass(frozen=True, slots=True)
class Tick:
    """The writer's timer ``name`` fires, after any delay."""

    actor: str
    tag: tuple[str | int, ...]
    name: str

    @property
    def target(self) -> str:
        return self.actor

    @property
    def label(self) -> str:
        return f"{self.name} {self.actor}"


@dataclass(frozen=True, slots=True)
class Nap:
    """A client pauses. What it waits for may never come, so a nap in progress does not count as unrest."""

    actor: str
    tag: tuple[str | int, ...]

    @property
    def target(self) -> str:
        return self.actor

    @property
    def label(self) -> str:
        return f"nap {self.actor}"


@dataclass(frozen=True, slots=True)
class Expire:
    """A poll has reached its time limit."""

    poll: Request

    @property
    def target(self) -> str:
        return self.poll.bookie

    @property
    def label(self) -> str:
        return f"expire {self.poll.bookie}→{self.poll.actor}"


@dataclass(frozen=True, slots=True)
class Changed:
    """The metadata that ``actor`` watches have changed. A watch fires once."""

    actor: str

    @property
    def target(self) -> str:
        return self.actor

    @property
    def label(self) -> str:
        return f"changed {STORE}→{self.actor}"


@dataclass(frozen=True, slots=True)
class Command:
    """The driver gives the part ``target`` a command."""

    verb: str
    target: str
    arguments: tuple[int | str, ...] = ()

    @property
    def label(self) -> str:
        return " ".join([self.verb, self.target, *map(str, self.arguments)])


Event = Request | Answer | MetaCall | MetaReply | Sync | Choose | Retry | Slow | Tick | Nap | Expire | Changed | Command


def label_of(event: Event, way: Way) -> str:
    """The name of an event that happens in this way."""
    if isinstance(event, Choose) and way != SLOW:
        chosen = " ".join(bookie for _, bookie in way) if isinstance(way, tuple) and way else "none"
        return f"{event.label} {chosen}"
    return f"{way} {event.label}" if way else event.label


# --- effects ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Withdraw:
    """A pending event can no longer happen."""

    event: Event


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The writer's user was told that all entries up to ``last_add_confirmed`` are safe."""

    actor: str
    last_add_confirmed: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A bookie took an entry into memory."""

    bookie: str
    entry_id: int
    stored: bytes


@dataclass(frozen=True, slots=True)
class Fenced:
    """A bookie accepts no more adds from a writer."""

    bookie: str


@dataclass(frozen=True, slots=True)
class Forgot:
    """A bookie's disk holds less than before."""

    bookie: str


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    before: bytes
    after: bytes


@dataclass(frozen=True, slots=True)
class Saw:
    """A reader's user received an entry."""

    actor: str
    entry_id: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Followed(Saw):
    """A tail's user received an entry: each entry once, in order."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The actor has finished. ``outcome`` is "done" or the name of an error. ``last_entry_id`` is the end of the
    ledger as the actor sees it, if it considers the ledger closed."""

    actor: str
    outcome: str
    last_entry_id: int | None = None


Observation = Acknowledged | Stored | Fenced | Forgot | MetadataChanged | Saw | Ended
Effect = Event | Withdraw | Observation
