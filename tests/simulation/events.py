"""What may happen in the model world, and what happening leads to.

An *event* waits until a driver picks it; its label names it in traces and in scenario texts. An *effect* is
what the part it went to gives back: further events, or something to be observed. Messages carry the
protocol's own bytes.

============================= ==============================================================
label                         event
============================= ==============================================================
``add 0 w→b2``                a request reaches a bookie (also ``fence``, ``read 0``, …)
``late add 0 w→b2``           the same, when nobody waits for the answer any more
``answer add 0 b2→w``         its answer reaches whoever asked
``sync b2``                   what the bookie wrote becomes durable; it answers what waited for that
``cas w→zk``, ``meta w→zk``   a compare-and-set, or a reading of the metadata, is done
``answer cas zk→w``           its result is known
``choose w b4``               replacements for failed bookies are chosen (``choose w none``)
``retry w b2``                what a busy bookie refused is sent again
``slow b2→rd1``               a reader finds that a read, or a poll, takes long
``nap t1``                    a pause of a client ends
``expire b2→t1``              a bookie has held a poll for as long as it was asked to
``changed zk→t1``             who watches the metadata hears that they changed
``progress w``                a timer of a writer fires (also ``search again w``)
``append w 2``, ``crash b1``  somebody decides something (see the parts for their commands)
============================= ==============================================================

Some events may happen in other ways too: ``lose`` (a message does not arrive, or too late), ``refuse`` (the
bookie has too many requests), ``double`` (a request arrives twice), ``slow choose w`` (the choice takes long).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.simulation.bytes_cache import code_in

STORE = "zk"
#: Which bookies take the places of which ensemble indexes; nobody if empty.
Replacements = tuple[tuple[int, str], ...]
#: How an event happens, if not as it should.
Way = str | Replacements
LOSE, REFUSE, DOUBLE, SLOW = "lose", "refuse", "double", "slow"


# --- events -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """``frame`` on its way to a bookie. ``tag`` is for whoever asked; ``late``: it waits no more."""

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
    """``frame`` is None where the connection broke or nothing came in time."""

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
    """The metadata is read, or, where there is ``data``, compared and set. ``tag`` is for whoever asked."""

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
    """``outcome`` is "ok", "conflict", or "unknown" where the connection broke."""

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
    """Replacements are to be found for the ensemble indexes in ``failed``, none of ``exclude``."""

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
    """A read takes long; it may still be answered."""

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
    """The writer's timer ``name`` fires. It may take as long as it likes."""

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
    """A client pauses. What it waits for may take for ever, so a nap that is under way does not count as unrest."""

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
    """A poll was held for long enough."""

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
    """Somebody outside decides something about the part ``target``."""

    verb: str
    target: str
    arguments: tuple[int | str, ...] = ()

    @property
    def label(self) -> str:
        return " ".join([self.verb, self.target, *map(str, self.arguments)])


Event = Request | Answer | MetaCall | MetaReply | Sync | Choose | Retry | Slow | Tick | Nap | Expire | Changed | Command


def label_of(event: Event, way: Way) -> str:
    """What an event that happens in some way is called."""
    if isinstance(event, Choose) and way != SLOW:
        chosen = " ".join(bookie for _, bookie in way) if isinstance(way, tuple) and way else "none"
        return f"{event.label} {chosen}"
    return f"{way} {event.label}" if way else event.label


# --- effects ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Withdraw:
    """An event that was pending cannot happen any more."""

    event: Event


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The writer's user was told that everything up to ``last_add_confirmed`` is safe."""

    actor: str
    last_add_confirmed: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A bookie took an entry, into memory."""

    bookie: str
    entry_id: int
    stored: bytes


@dataclass(frozen=True, slots=True)
class Fenced:
    """A bookie takes no more adds of a writer."""

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
    """A reader's user was given an entry."""

    actor: str
    entry_id: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Followed(Saw):
    """The same by a tail: each entry once, in order."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The actor wants nothing more; ``outcome`` is "done" or the name of an error. ``last_entry_id`` is where it
    takes the ledger to end, if it takes it to be closed."""

    actor: str
    outcome: str
    last_entry_id: int | None = None


Observation = Acknowledged | Stored | Fenced | Forgot | MetadataChanged | Saw | Ended
Effect = Event | Withdraw | Observation
