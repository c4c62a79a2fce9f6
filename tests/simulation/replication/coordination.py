"""All that is in ZooKeeper in the model world of replication, and what every change of it must respect.

The rules of marks, locks and switches are those of the shipped stores, which run on the model of ZooKeeper
(zookeeper.py). Here is only what nobody may do to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bk_spark.protocol.errors import BookKeeperError, MetadataConflictError, SessionLostError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.metadata.under_replication import Mark
from bk_spark.protocol.metadata.znodes import CreateOp, SetOp, Znode
from bk_spark.protocol.replication.fragments import Fragment, fragments_of
from tests.simulation.bytes_cache import metadata_in
from tests.simulation.events import Changed, Command, Effect, Event, MetaCall, MetadataChanged, Way
from tests.simulation.outcomes import Counts, InvariantError
from tests.simulation.replication.zookeeper import (
    AVAILABLE,
    LEDGER_PATH,
    LOCK,
    MANAGER,
    MARK,
    READ_ONLY,
    ROOT,
    Client,
    Session,
    ZkCall,
)
from tests.simulation.servers import ModelBookie, ModelStore
from tests.support.ledgers import LEDGER
from tests.support.zookeeper_model import Changes, RefusedError, ZooKeeperModel
from tests.support.zookeeper_model_session import ModelSession

#: Clients whose calls are under way at once: each acts between two requests of the one before.
_DEPTH = 3


@dataclass(slots=True)
class Holder:
    """Who has the lock."""

    actor: str
    #: Bookies that were not registered, or told the holder that they lack an entry, since the lock was taken.
    was_bad: set[str]


class Coordination(ModelStore):
    """All of ZooKeeper. Commands: ``refresh <bookie>`` (its registration follows its process), ``expire <actor>``,
    ``mark <bookies…>`` (by us), ``name <bookies…>`` (by Apache: a mark that names them stays as it is), ``disable``,
    ``enable``."""

    def __init__(self, data: bytes, world: Any) -> None:
        super().__init__(data)
        self._world = world
        self.zk = ZooKeeperModel()
        self.counts = Counts()
        self._clients: dict[str, Client] = {}
        #: Whose calls are under way, the last one now.
        self._acting: list[str] = []
        self._effects: list[Effect] = []
        self._holder: Holder | None = None
        #: The session of each registered bookie.
        self._bookie_sessions: dict[str, int] = {}
        #: Entries that a bookie had lost when it registered.
        self._lacking: dict[str, frozenset[int]] = {}
        #: Where each bookie registers.
        self._below: dict[str, str] = {}
        self._prepare(data)
        self.zk.on_change = self._on_change

    def _prepare(self, data: bytes) -> None:
        session = ModelSession(self.zk)
        for path, content in ((f"{ROOT}/LAYOUT", MANAGER.layout), (LEDGER_PATH, data), (READ_ONLY, b"")):
            session.create(path, content, make_parents=True)
        self.operator = Client("operator", session)
        self.operator.marks.prepare()
        for bookie in self._world.bookies:
            self._register(bookie)

    @property
    def registered(self) -> frozenset[str]:
        return frozenset(self._bookie_sessions)

    @property
    def read_only(self) -> frozenset[str]:
        return frozenset(self.zk.children(READ_ONLY) or ())

    @property
    def marked(self) -> bool:
        return self.zk.read(MARK) is not None

    @property
    def holder(self) -> str | None:
        """Who has the lock."""
        return None if self._holder is None else self._holder.actor

    def client(self, name: str) -> Client:
        """The stores of a process."""
        if name not in self._clients:
            session = Session(self.zk, self._world.random, lambda: self._world.weather.loss, self._meanwhile)
            self._clients[name] = Client(name, session)
            session.is_disturbed = True
        return self._clients[name]

    def make_read_only(self, bookie: str) -> None:
        """Before anything else happens."""
        self._unregister(bookie)
        self._register(self._world.bookie(bookie), READ_ONLY)

    def locked_by(self, actor: str) -> bool:
        return self.client(actor).session.owns(LOCK)

    def note_absent(self, actor: str, bookie: str) -> None:
        """A bookie told ``actor`` that it lacks an entry. A late add may bring it afterwards."""
        if self._holder is not None and self.locked_by(actor):
            self._holder.was_bad.add(bookie)

    # --- events ---

    def handle(self, event: Event, way: Way) -> list[Effect]:
        other: Any = event
        if isinstance(other, ZkCall):
            reply: Any = other.reply(self._result(other))
            self._effects.append(reply)
        elif isinstance(event, Command):
            self._command(event)
        elif isinstance(event, MetaCall) and event.data is not None:
            self._set(event, event.data)
        else:
            self._effects += super().handle(event, way)
        return self._taken()

    def _taken(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def _result(self, call: ZkCall) -> object:
        self._acting.append(call.actor)
        try:
            return call.work()
        except BookKeeperError as error:
            for kind, what in ((SessionLostError, "sessions lost"), (MetadataConflictError, "conflicts")):
                self.counts[what] += isinstance(error, kind)
            return error
        finally:
            self._acting.pop()

    def _set(self, event: MetaCall, data: bytes) -> None:
        """A writer or a recovery changes the ledger."""
        self._acting.append("")
        try:
            self.zk.transact([SetOp(LEDGER_PATH, data, event.version)])
            reply = event.reply("ok", self.data, self.version)
        except RefusedError:
            reply = event.reply("conflict")
        self._acting.pop()
        if not event.late:
            self._effects.append(reply)

    def _meanwhile(self) -> None:
        """Others act between two requests of a call."""
        if len(self._acting) < _DEPTH:
            self._world.interrupt(self._acting[-1], self._taken())

    def may_expire(self, actor: str) -> bool:
        return not self.client(actor).session.bounded

    def _command(self, command: Command) -> None:
        names = frozenset(map(str, command.arguments))
        self._acting.append("operator")
        match command.verb:
            case "refresh":
                (name,) = names
                self._unregister(name)
                if self._world.bookie(name).up:
                    self._register(self._world.bookie(name))
            case "expire":
                (name,) = names
                self.counts["expired locks"] += self.locked_by(name)
                self._acting[-1] = ""
                self.client(name).session.expire()
            case "mark":
                self.operator.marks.mark(LEDGER, names)
            case "name":
                mark = self.operator.marks.read_mark(LEDGER)
                if mark is None or not names <= set(mark.missing):
                    self.operator.marks.mark(LEDGER, names)
            case "disable":
                self.operator.switches.disable()
            case "enable":
                self.operator.switches.enable()
        self._acting.pop()

    def _register(self, bookie: ModelBookie, below: str = "") -> None:
        name = bookie.name
        self._bookie_sessions[name] = session = self.zk.new_session()
        path = f"{below or self._below.get(name, AVAILABLE)}/{name}"
        self._below[name] = path.rpartition("/")[0]
        self.zk.transact([CreateOp(path, ephemeral=True)], session)
        self._lacking[name] = frozenset(bookie.lost - bookie.disk.keys())

    def _unregister(self, name: str) -> None:
        session = self._bookie_sessions.pop(name, None)
        if session is not None:
            self.zk.expire(session)
            if self._holder is not None:
                self._holder.was_bad.add(name)

    # --- what must hold ---

    def _on_change(self, changes: Changes) -> None:
        actor = self._acting[-1] if self._acting else ""
        if LEDGER_PATH in changes:
            before, after = changes[LEDGER_PATH]
            assert before is not None
            assert after is not None
            if actor:
                self._check_replacement(actor, metadata_in(before.data), metadata_in(after.data))
                self.counts["replaced"] += 1
            self.data, self.version = after.data, after.version
            self._effects += [MetadataChanged(before.data, after.data), *map(Changed, sorted(self.watchers))]
            self.watchers = frozenset()
        if MARK in changes and changes[MARK][1] is None:
            self._check_finish(actor, changes)
        if LOCK in changes:
            self._on_lock(actor, *changes[LOCK])

    def _on_lock(self, actor: str, before: Znode | None, after: Znode | None) -> None:
        if after is not None:
            bookies = {bookie.name for bookie in self._world.bookies}
            self._holder = Holder(actor, set(bookies - self.registered))
            return
        assert before is not None
        if actor and before.owner_session != self.client(actor).session.session_id:
            raise InvariantError(f"{actor} gives back the lock of {self.holder}")
        self._holder = None

    def _check_finish(self, actor: str, changes: Changes) -> None:
        """A mark goes under the lock, as it was read under it, and only if what it names was looked at."""
        mark, lock = changes[MARK][0], changes.get(LOCK, (self.zk.read(LOCK),))[0]
        client = self.client(actor)
        assert mark is not None
        if lock is None or lock.owner_session != client.session.session_id:
            raise InvariantError(f"{actor} finishes the ledger without its lock")
        if mark.version != client.seen.mark_version:
            raise InvariantError(f"{actor} deletes a mark that was changed after it was read")
        if self.version == client.seen.ledger_version and not is_open(self.data):
            self._check_returned(actor, mark, client.seen.registrations or {})

    def _check_returned(self, actor: str, mark: Znode, seen: Mapping[str, int]) -> None:
        """A bookie that the mark names, and whose last registration was seen, has got back what it had lost before."""
        for name in Mark.decode(mark.data, mark.version, MARK).missing:
            found = self.zk.read(f"{self._below[name]}/{name}")
            if found is None or found.created_zxid != seen.get(name):
                continue
            bookie = self._world.bookie(name)
            for fragment in fragments_of(metadata_in(self.data), -1):
                for position, member in enumerate(fragment.ensemble):
                    stored = {each for each in fragment.entry_ids if fragment.quorum.stores(position, each)}
                    lacking = {each for each in stored & self._lacking[name] if not bookie.copies(each)}
                    if member == name and lacking:
                        raise InvariantError(
                            f"{actor} deletes the mark. {name} registered before the last look, and lacks {lacking}"
                        )

    def _check_replacement(self, actor: str, before: LedgerMetadata, after: LedgerMetadata) -> None:
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
        bookies = {bookie.name: bookie for bookie in self._world.bookies}
        stored = [each for each in fragment.entry_ids if fragment.quorum.stores(position, each)]
        lacking = [each for each in stored if not bookies[new].copies(each) and each not in bookies[new].lost]
        if lacking:
            raise InvariantError(f"{actor} names {new}, which never had {lacking}")
        old = bookies[fragment.ensemble[position]]
        assert self._holder is not None
        if old.name not in self._holder.was_bad and all(old.copies(each) for each in stored):
            raise InvariantError(f"{actor} replaces {old.name}, which is registered and holds {stored}")


def is_open(data: bytes) -> bool:
    return metadata_in(data).state is not LedgerState.CLOSED
