"""ZooKeeper in the model world of replication: the ledger's znode, its mark and lock, sessions, and the registered
bookies. What every change must respect is checked here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.replication.fragments import Fragment, fragments_of
from tests.simulation.bytes_cache import metadata_in
from tests.simulation.events import STORE, Changed, Command, Effect, Event, MetadataChanged, Way
from tests.simulation.outcomes import Counts, InvariantError
from tests.simulation.servers import ModelBookie, ModelStore

#: The result of a call whose reply was lost.
UNKNOWN = "unknown"
SESSION_LOST = "session lost"


@dataclass(frozen=True, slots=True)
class ZkCall:
    """A call of a client in its session of that moment. A client that lost its session has a new one at once."""

    actor: str
    tag: tuple[str | int, ...]
    op: str
    arguments: tuple[Any, ...] = ()

    @property
    def target(self) -> str:
        return STORE

    @property
    def label(self) -> str:
        return f"{self.op} {self.actor}→{STORE}"

    def reply(self, result: object) -> ZkReply:
        return ZkReply(self.actor, self.tag, self.op, result)


@dataclass(frozen=True, slots=True)
class ZkReply:
    actor: str
    tag: tuple[str | int, ...]
    op: str
    result: object

    @property
    def target(self) -> str:
        return self.actor

    @property
    def label(self) -> str:
        said = self.result if isinstance(self.result, str | bool) else ""
        return f"answer {self.op} {STORE}→{self.actor} {said}"


@dataclass(slots=True)
class Mark:
    missing: frozenset[str]
    version: int = 0


@dataclass(slots=True)
class Lock:
    actor: str
    session: int
    #: Bookies that were not registered, or told the holder that they lack an entry, since the lock was taken.
    was_bad: set[str] = field(default_factory=set)
    #: The version of the mark that its holder read.
    mark_version: int | None = None


class Coordination(ModelStore):
    """All of ZooKeeper. Commands: ``refresh <bookie>`` (its registration follows its process), ``expire <actor>``,
    ``mark <bookies…>``, ``disable``, ``enable``."""

    def __init__(self, data: bytes, bookies: Callable[[], Iterable[ModelBookie]]) -> None:
        super().__init__(data)
        self._bookies = bookies
        self.mark: Mark | None = None
        self.lock: Lock | None = None
        self.disabled = False
        self.registered: set[str] = set()
        #: How often a bookie has registered again.
        self.registrations = Counter[str]()
        self.read_only: set[str] = set()
        self._sessions: dict[str, int] = {}
        self._marks = 0
        self.counts = Counts()

    def handle(self, event: Event, way: Way) -> list[Effect]:
        other: Any = event
        if isinstance(other, ZkCall):
            result, effects = self._call(other)
            return [*effects, other.reply(result)]  # type: ignore[list-item]
        if isinstance(event, Command):
            self._command(event)
            return []
        return super().handle(event, way)

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def session(self, actor: str) -> int:
        return self._sessions.setdefault(actor, 1)

    def locked_by(self, actor: str) -> bool:
        return self.lock is not None and (self.lock.actor, self.lock.session) == (actor, self.session(actor))

    def note_absent(self, actor: str, bookie: str) -> None:
        """A bookie told ``actor`` that it lacks an entry. A late add may bring it afterwards."""
        if self.lock is not None and self.locked_by(actor):
            self.lock.was_bad.add(bookie)

    # --- calls ---

    def _call(self, call: ZkCall) -> tuple[object, list[Effect]]:
        actor, arguments = call.actor, call.arguments
        match call.op:
            case "begin":
                return self.session(actor), []
            case "bookies":
                return self._bookies_found(*arguments), []
            case "read":
                return (self.data, self.version), []
            case "disabled":
                return self.disabled, []
            case "marked":
                return self.mark is not None, []
            case "read mark":
                return self._read_mark(actor), []
            case "mark":
                self._mark(arguments[0])
                return "ok", []
            case "lock":
                return self._take(actor, arguments[0]), []
            case "locked":
                return (self.data, self.locked_by(actor), self.mark is not None), []
            case "release":
                if self.locked_by(actor):
                    self.lock = None
                return "ok", []
            case "finish":
                return self._finish(actor, *arguments), []
            case "replace":
                return self._replace(actor, *arguments)
        raise AssertionError(call)

    def _bookies_found(self, members: frozenset[str] = frozenset()) -> tuple[object, ...]:
        here = frozenset(self.registered)
        registrations = tuple((each, self.registrations[each]) for each in sorted(members & here))
        return here - self.read_only, here & self.read_only, registrations

    def _proven(self, actor: str, proof: int | None) -> bool:
        return proof is None or proof == self.session(actor)

    def _read_mark(self, actor: str) -> tuple[frozenset[str], int] | None:
        if self.mark is None:
            return None
        if self.lock is not None and self.locked_by(actor):
            self.lock.mark_version = self.mark.version
        return self.mark.missing, self.mark.version

    def _take(self, actor: str, proof: int | None) -> str:
        if not self._proven(actor, proof):
            return SESSION_LOST
        if self.lock is not None:
            return "taken"
        lost = {bookie.name for bookie in self._bookies()} - self.registered
        self.lock = Lock(actor, self.session(actor), lost)
        return "ok"

    def _finish(self, actor: str, version: int | None, proof: int | None) -> str:
        if not self._proven(actor, proof):
            self.count("sessions lost")
            return SESSION_LOST
        if not self.locked_by(actor):
            raise InvariantError(f"{actor} finishes the ledger without its lock")
        lock, self.lock = self.lock, None
        if self.mark is None or version not in (None, self.mark.version):
            self.count("marked again")
            return "marked again"
        if lock is None or lock.mark_version != self.mark.version:
            raise InvariantError(f"{actor} deletes a mark that was changed after it was read")
        self.mark = None
        return "ok"

    def _replace(self, actor: str, data: bytes, version: int, proof: int | None) -> tuple[str, list[Effect]]:
        if not self._proven(actor, proof):
            self.count("sessions lost")
            return SESSION_LOST, []
        if version != self.version:
            self.count("conflicts")
            return "conflict", []
        self.check_replacement(actor, metadata_in(self.data), metadata_in(data))
        self.count("replaced")
        effects: list[Effect] = [MetadataChanged(self.data, data), *map(Changed, sorted(self.watchers))]
        self.watchers = frozenset()
        self.data = data
        self.version += 1
        return "ok", effects

    # --- what must hold ---

    def check_replacement(self, actor: str, before: LedgerMetadata, after: LedgerMetadata) -> None:
        """A repair replaces members of closed segments, under the lock, with bookies that hold everything."""
        if not self.locked_by(actor):
            raise InvariantError(f"{actor} replaces members without the ledger's lock")
        kept = [(each.state, each.quorum, each.last_entry_id, each.length, each.password) for each in (before, after)]
        firsts = [[segment.first_entry_id for segment in each.segments] for each in (before, after)]
        if kept[0] != kept[1] or firsts[0] != firsts[1]:
            raise InvariantError(f"{actor} changes more than members")
        for fragment, segment in zip(fragments_of(before, -1), after.segments, strict=True):
            changed = [
                (position, new)
                for position, (old, new) in enumerate(zip(fragment.ensemble, segment.ensemble, strict=True))
                if old != new
            ]
            if not changed:
                continue
            if len(set(segment.ensemble)) < len(segment.ensemble):
                raise InvariantError(f"{actor} names a bookie twice: {segment.ensemble}")
            if not fragment.closed:
                raise InvariantError(f"{actor} replaces members of the open fragment at {fragment.first_entry_id}")
            for position, new in changed:
                self._check_member(actor, fragment, position, new)

    def _check_member(self, actor: str, fragment: Fragment, position: int, new: str) -> None:
        bookies = {bookie.name: bookie for bookie in self._bookies()}
        stored = [each for each in fragment.entry_ids if fragment.quorum.stores(position, each)]
        lacking = [each for each in stored if not bookies[new].copies(each) and each not in bookies[new].lost]
        if lacking:
            raise InvariantError(f"{actor} names {new}, which never had {lacking}")
        old = bookies[fragment.ensemble[position]]
        assert self.lock is not None
        if old.name not in self.lock.was_bad and all(old.copies(each) for each in stored):
            raise InvariantError(f"{actor} replaces {old.name}, which is registered and holds {stored}")

    # --- commands ---

    def _command(self, command: Command) -> None:
        names = frozenset(map(str, command.arguments))
        match command.verb:
            case "refresh":
                (name,) = names
                if next(bookie.up for bookie in self._bookies() if bookie.name == name):
                    self.registered.add(name)
                    self.registrations[name] += 1
                else:
                    self.registered.discard(name)
                    if self.lock is not None:
                        self.lock.was_bad.add(name)
            case "expire":
                (name,) = names
                if self.locked_by(name):
                    self.lock = None
                    self.count("expired locks")
                self._sessions[name] = self.session(name) + 1
            case "mark":
                self._mark(names)
            case "disable" | "enable":
                self.disabled = command.verb == "disable"

    def _mark(self, missing: frozenset[str]) -> None:
        """The version changes in any case, as in the store."""
        self._marks += 1
        before = frozenset() if self.mark is None else self.mark.missing
        self.mark = Mark(before | missing, self._marks)


def is_open(data: bytes) -> bool:
    return metadata_in(data).state is not LedgerState.CLOSED
