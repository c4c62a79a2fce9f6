"""A model of ZooKeeper: an ordered history of states, read by sessions that lag.

It models what matters to logs: versions, transactions, ephemeral nodes that disappear with their session, servers that
are behind until synced, lost replies, and requests that take effect only after their sender was told that the
connection broke.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from bk_spark.log.core.steps import (
    Conflict,
    Done,
    Event,
    Found,
    InSession,
    ListChildren,
    Listed,
    OutcomeUnknown,
    Read,
    Sync,
    Unavailable,
)
from bk_spark.protocol.metadata.znodes import CheckOp, CreateOp, DeleteOp, SetOp, TransactionOp, Znode

#: The most by which a new session's server may be behind.
MOST_LAG = 40
#: The fates of a transaction whose sender gets no reply: it was never sent (and the sender knows), was lost, is still
#: in flight, or took effect.
FATES = ("unsent", "lost", "late", "applied")
_MAX_TRANSACTION_BYTES = 1024 * 1024

#: path -> its znode before and after
Changes = Mapping[str, tuple[Znode | None, Znode | None]]


@dataclass(frozen=True, slots=True)
class Origin:
    """The sender of a transaction: the kind of process, and when its session last synced."""

    kind: str = ""
    synced_ms: int = 0


class RefusedError(Exception):
    """A transaction failed."""


class ModelZooKeeper:
    """All past and present states, by the number of the transaction that made them (``zxid``)."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self.zxid = 0
        self.on_change: Callable[[Changes], None] = lambda changes: None
        self.now_ms = now_ms
        self._nodes: dict[str, list[tuple[int, Znode | None]]] = {"/": [(0, Znode(b"", 0, 0, 0, 0, 0))]}
        self._names: dict[str, list[tuple[int, frozenset[str]]]] = {}
        #: Transactions in flight whose sender was told that the connection broke, with their sessions.
        self.late: list[tuple[int, tuple[TransactionOp, ...], Origin]] = []
        #: The origin of the transaction being applied.
        self.origin = Origin()
        #: New sessions connect to the server that is furthest behind, and stay behind until they sync.
        self.lags_most = False
        self._sessions = 0
        self._ephemeral: dict[int, set[str]] = {}

    def read(self, path: str, zxid: int | None = None) -> Znode | None:
        znode = _at(self._nodes.get(path), self.zxid if zxid is None else zxid)
        if znode is not None and path.endswith("/lock"):
            return replace(znode, children=len(self.children(path, zxid) or ()))
        return znode

    def children(self, path: str, zxid: int | None = None) -> tuple[str, ...] | None:
        if _at(self._nodes.get(path), self.zxid if zxid is None else zxid) is None:
            return None
        return tuple(sorted(_at(self._names.get(path), self.zxid if zxid is None else zxid) or ()))

    def new_session(self) -> int:
        self._sessions += 1
        self._ephemeral[self._sessions] = set()
        return self._sessions

    def ephemerals(self, session: int) -> tuple[str, ...]:
        return tuple(sorted(self._ephemeral.get(session, ())))

    def is_alive(self, session: int) -> bool:
        return session in self._ephemeral

    def expire(self, session: int) -> None:
        """End the session. Its requests in flight will be refused."""
        paths = self._ephemeral.pop(session)
        if paths:
            self.transact([DeleteOp(path) for path in sorted(paths)])

    def transact(self, operations: Sequence[TransactionOp], session: int = 0) -> None:
        """Apply all operations or none. Raises RefusedError."""
        if session and session not in self._ephemeral:
            raise RefusedError("the session is over")
        assert sum(len(op.path) + len(getattr(op, "data", b"")) for op in operations) < _MAX_TRANSACTION_BYTES
        after: dict[str, Znode | None] = {}
        names: dict[str, frozenset[str]] = {}
        for op in operations:
            found = after[op.path] if op.path in after else self.read(op.path)
            if not isinstance(op, CreateOp) and (found is None or op.version not in (-1, found.version)):
                raise RefusedError(f"{type(op).__name__} {op.path}: {'gone' if found is None else 'changed'}")
            match op:
                case CreateOp():
                    after[op.path] = self._create(op, found, after, session)
                    _note_child(self._names, names, op.path, present=True)
                case SetOp():
                    assert found is not None
                    after[op.path] = Znode(
                        op.data,
                        found.version + 1,
                        found.ctime_ms,
                        self.now_ms(),
                        found.owner_session,
                        found.created_zxid,
                    )
                case DeleteOp():
                    if names.get(op.path, _newest(self._names, op.path)):
                        raise RefusedError(f"delete {op.path}: it has children")
                    after[op.path] = None
                    _note_child(self._names, names, op.path, present=False)
                case CheckOp():
                    pass
        self._apply(after, names)

    def deliver_late(self, random: Random) -> None:
        """A request in flight when its sender's connection broke reaches the leader."""
        session, operations, self.origin = self.late.pop(random.randrange(len(self.late)))
        with contextlib.suppress(RefusedError):
            self.transact(operations, session)

    def _create(self, op: CreateOp, found: Znode | None, after: Mapping[str, Znode | None], session: int) -> Znode:
        if found is not None:
            raise RefusedError(f"create {op.path}: it is there")
        parent_path = op.path.rpartition("/")[0] or "/"
        parent = after[parent_path] if parent_path in after else self.read(parent_path)
        if parent is None or parent.owner_session:
            raise RefusedError(f"create {op.path}: nothing can be made there")
        assert session or not op.ephemeral, "an ephemeral node needs a session"
        now_ms = self.now_ms()
        return Znode(op.data, 0, now_ms, now_ms, session if op.ephemeral else 0, self.zxid + 1)

    def _apply(self, after: Mapping[str, Znode | None], names: Mapping[str, frozenset[str]]) -> None:
        changes = {path: (self.read(path), znode) for path, znode in after.items()}
        self.zxid += 1
        for path, (before, znode) in changes.items():
            self._nodes.setdefault(path, []).append((self.zxid, znode))
            for node, change in ((before, set.discard), (znode, set.add)):
                if node is not None and node.owner_session in self._ephemeral:
                    change(self._ephemeral[node.owner_session], path)
        for path, there in names.items():
            self._names.setdefault(path, []).append((self.zxid, there))
        if changes:
            self.on_change(changes)


def _at(versions, zxid):
    for number, value in reversed(versions or ()):
        if number <= zxid:
            return value
    return None


def _newest(history: Mapping[str, list[tuple[int, frozenset[str]]]], path: str) -> frozenset[str]:
    return history[path][-1][1] if path in history else frozenset()


def _note_child(
    history: Mapping[str, list[tuple[int, frozenset[str]]]],
    names: dict[str, frozenset[str]],
    path: str,
    *,
    present: bool,
) -> None:
    parent, _, name = path.rpartition("/")
    parent = parent or "/"
    there = names.get(parent, _newest(history, parent))
    names[parent] = there | {name} if present else there - {name}


@dataclass(frozen=True, slots=True)
class Look:
    """Like Read, for code that itself checks whether its session is still the one that synced."""

    paths: tuple[str, ...]


@dataclass(slots=True)
class Weather:
    """Probabilities, per action, that the connection to ZooKeeper breaks, and that bookies fail it."""

    metadata: float = 0.0
    ledgers: float = 0.0


class Session:
    """One process's connection. What it sees may be behind, but never goes back, unless its session ended."""

    def __init__(self, zk: ModelZooKeeper, random: Random, weather: Weather | None = None) -> None:
        self.zk = zk
        self.weather = weather or Weather()
        self._random = random
        self._view = 0
        #: The state at the last sync; later reads show that or a newer one.
        self.synced_zxid = 0
        self.synced_ms = 0
        #: Of the transactions to come.
        self.origin = Origin()
        self.session = zk.new_session()
        self.lost_replies = 0
        #: The fate of the next transaction (one of FATES), if it is not drawn.
        self.next_fate = ""

    def read(self, action: Sync | Read | ListChildren) -> InSession:
        self._renew()
        return InSession(action, self._read(action), self.session, self.session)

    def look(self, action: Look) -> Event:
        self._renew()
        return self._read(action)

    def _read(self, action: Sync | Read | Look | ListChildren) -> Event:
        if self._random.random() < self.weather.metadata:
            return Unavailable("model")
        match action:
            case Sync():
                self._view = self.synced_zxid = self.zk.zxid
                self.synced_ms = self.zk.now_ms()
                return Done()
            case Look(paths) | Read(paths):
                return Found({path: self.zk.read(path, self._look()) for path in paths})
            case ListChildren(path):
                return Listed(self.zk.children(path, self._look()))

    def transact(self, operations: tuple[TransactionOp, ...]) -> Event:
        self._renew()
        self.zk.origin = self.origin
        if self.next_fate or self._random.random() < self.weather.metadata:
            fate, self.next_fate = self.next_fate or self._random.choice(FATES), ""
            return self._lose(operations, fate)
        try:
            self.zk.transact(operations, self.session)
        except RefusedError as error:
            return Conflict(str(error))
        self._view = self.zk.zxid
        return Done()

    def release_locks(self) -> Done:
        for path in self.zk.ephemerals(self.session):
            if "/lock/" in path:
                self.zk.transact([DeleteOp(path)])
        return Done()

    def _look(self) -> int:
        if not self.zk.lags_most:
            self._view = self._random.randint(self._view, self.zk.zxid)
        return self._view

    def _lose(self, operations: tuple[TransactionOp, ...], fate: str) -> Event:
        if fate == "unsent":
            return Unavailable("model")
        if fate == "late":
            self.zk.late.append((self.session, operations, self.origin))
        elif fate == "applied":
            with contextlib.suppress(RefusedError):
                self.zk.transact(operations, self.session)
                self.lost_replies += 1
        return OutcomeUnknown("model")

    def _renew(self) -> None:
        """If the old session has ended, start a new one with another server, which may be behind what was seen."""
        if not self.zk.is_alive(self.session):
            self.session = self.zk.new_session()
            behind = max(0, self.zk.zxid - MOST_LAG)
            self._view = behind if self.zk.lags_most else self._random.randint(behind, self.zk.zxid)
