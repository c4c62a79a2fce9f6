"""The model of ZooKeeper that all simulations and unit tests share: an ordered history of states.

It has versions, times, transactions, ephemeral nodes that end with their session, sequence numbers, and watches that
are called once. A client whose server is behind reads an older state. Clients are in zookeeper_model_session.py and
tests/simulation/logs/zookeeper.py. tests/integration/test_zookeeper_model.py compares the model with a real ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from bk_spark.protocol.metadata.znodes import CreateOp, DeleteOp, SetOp, TransactionOp, Znode

#: ZooKeeper closes the connection of a client that sends more (``jute.maxbuffer``).
MAX_REQUEST_BYTES: Final = 1024 * 1024

#: path -> its znode before and after
Changes = Mapping[str, tuple[Znode | None, Znode | None]]
Watch = Callable[[str], object]


class RefusedError(Exception):
    """A request was refused. ``reason`` is the name of kazoo's error."""

    def __init__(self, operation: TransactionOp, reason: str) -> None:
        super().__init__(f"{type(operation).__name__} of {operation.path}: {reason}")
        self.operation = operation
        self.reason = reason


class ZooKeeperModel:
    """All past and present states, by the number of the transaction that made them (``zxid``)."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self.zxid = 0
        self.now_ms = now_ms
        #: Called after each transaction that changed something.
        self.on_change: Callable[[Changes], None] = lambda changes: None
        self._nodes: dict[str, list[tuple[int, Znode | None]]] = {"/": [(0, Znode(b"", 0, 0, 0, 0, 0))]}
        #: Only of nodes that have had children.
        self._names: dict[str, _Children] = {}
        #: How many children each node has ever had, since it was created: the next sequence number.
        self._made: dict[str, int] = {}
        self._sessions = 0
        self._ephemeral: dict[int, set[str]] = {}
        self._data_watches: dict[str, list[Watch]] = {}
        self._child_watches: dict[str, list[Watch]] = {}

    # --- reads ---

    def read(self, path: str, zxid: int | None = None) -> Znode | None:
        """The znode now, or after the transaction ``zxid``."""
        at = self.zxid if zxid is None else zxid
        znode = _at(self._nodes.get(path), at)
        if znode is None or path not in self._names:
            return znode
        children = self._names[path].count(at)
        return _with_children(znode, children) if children else znode

    def children(self, path: str, zxid: int | None = None) -> tuple[str, ...] | None:
        at = self.zxid if zxid is None else zxid
        if _at(self._nodes.get(path), at) is None:
            return None
        names = self._names.get(path)
        return () if names is None else tuple(sorted(names.at(at)))

    def paths(self) -> list[str]:
        """Of all znodes, sorted."""
        return sorted(path for path, states in self._nodes.items() if states[-1][1] is not None)

    # --- watches ---

    def watch_data(self, path: str, watch: Watch) -> None:
        """Call ``watch`` once, when the znode is created, changed or deleted."""
        self._data_watches.setdefault(path, []).append(watch)

    def watch_children(self, path: str, watch: Watch) -> None:
        """Call ``watch`` once, when a child is created or deleted, or the znode deleted."""
        self._child_watches.setdefault(path, []).append(watch)

    def forget_watch(self, watch: Watch) -> None:
        for watches in (self._data_watches, self._child_watches):
            for path in [path for path, there in watches.items() if watch in there]:
                watches[path].remove(watch)

    # --- sessions ---

    def new_session(self) -> int:
        self._sessions += 1
        self._ephemeral[self._sessions] = set()
        return self._sessions

    def is_alive(self, session: int) -> bool:
        return session in self._ephemeral

    def ephemerals(self, session: int) -> tuple[str, ...]:
        return tuple(sorted(self._ephemeral.get(session, ())))

    def expire(self, session: int) -> None:
        """End the session. Its requests in flight will be refused."""
        paths = self._ephemeral.pop(session)
        if paths:
            self.transact([DeleteOp(path) for path in sorted(paths)])

    # --- changes ---

    def transact(self, operations: Sequence[TransactionOp], session: int = 0) -> None:
        """Apply all operations or none. Raises RefusedError for the first that fails."""
        if session and session not in self._ephemeral:
            raise RefusedError(operations[0], "SessionExpiredError")
        assert sum(len(op.path) + len(getattr(op, "data", b"")) for op in operations) < MAX_REQUEST_BYTES
        draft = _Draft(self._nodes, self._names, self.zxid + 1, self.now_ms())
        for op in operations:
            found = draft.node(op.path)
            if isinstance(op, CreateOp):
                self._create(draft, op, found, session)
                continue
            if found is None:
                raise RefusedError(op, "NoNodeError")
            if op.version not in (-1, found.version):
                raise RefusedError(op, "BadVersionError")
            if isinstance(op, SetOp):
                draft.set(op, found)
            elif isinstance(op, DeleteOp):
                if draft.has_children(op.path):
                    raise RefusedError(op, "NotEmptyError")
                draft.delete(op.path)
        self._apply(draft)

    def next_name(self, path: str) -> str:
        """``path`` with the sequence number that a znode created there now would get."""
        return f"{path}{self._made.get(_parent(path), 0):010d}"

    def _create(self, draft: _Draft, op: CreateOp, found: Znode | None, session: int) -> None:
        parent = draft.node(_parent(op.path))
        if parent is None:
            raise RefusedError(op, "NoNodeError")
        if found is not None:
            raise RefusedError(op, "NodeExistsError")
        if parent.owner_session:
            raise RefusedError(op, "NoChildrenForEphemeralsError")
        assert session or not op.ephemeral, "an ephemeral node needs a session"
        draft.create(op, session)

    def _apply(self, draft: _Draft) -> None:
        changes = {path: (self.read(path), znode) for path, znode in draft.nodes_after.items()}
        self.zxid = zxid = draft.zxid
        for path, (before, znode) in changes.items():
            self._nodes.setdefault(path, []).append((zxid, znode))
            if before is not None and before.owner_session in self._ephemeral:
                self._ephemeral[before.owner_session].discard(path)
            if znode is not None and znode.owner_session:
                self._ephemeral[znode.owner_session].add(path)
        for path, made in draft.made:
            parent, _, name = path.rpartition("/")
            parent = parent or "/"
            if parent not in self._names:
                self._names[parent] = _Children()
            self._names[parent].change(zxid, name, made)
            if made:
                self._made[parent] = self._made.get(parent, 0) + 1
            self._made.pop(path, None)
        if changes:
            self.on_change(changes)
        if self._data_watches or self._child_watches:
            self._call_watches(draft)

    def _call_watches(self, draft: _Draft) -> None:
        for path, kind in draft.events:
            watches = self._data_watches.pop(path, [])
            if kind is DeleteOp:
                watches += self._child_watches.pop(path, [])
            for watch in watches:
                watch(path)
            if kind is not SetOp:
                parent = _parent(path)
                for watch in self._child_watches.pop(parent, ()):
                    watch(parent)


class _Children:
    """The names of a znode's children, now and before: most reads show the present or what was shortly before."""

    def __init__(self) -> None:
        self.now: set[str] = set()
        #: (zxid, name, whether it was created, not deleted), in order.
        self._changes: list[tuple[int, str, bool]] = []

    def change(self, zxid: int, name: str, created: bool) -> None:
        self._changes.append((zxid, name, created))
        if created:
            self.now.add(name)
        else:
            self.now.discard(name)

    def at(self, zxid: int) -> set[str]:
        """The names after the transaction ``zxid``. Do not change them."""
        if not self._changes or self._changes[-1][0] <= zxid:
            return self.now
        there = set(self.now)
        for _, name, created in self._since(zxid):
            if created:
                there.discard(name)
            else:
                there.add(name)
        return there

    def count(self, zxid: int) -> int:
        return len(self.now) + sum(-1 if created else 1 for _, _, created in self._since(zxid))

    def _since(self, zxid: int) -> Iterator[tuple[int, str, bool]]:
        """The changes after ``zxid``, from the last on."""
        for change in reversed(self._changes):
            if change[0] <= zxid:
                return
            yield change


class _Draft:
    """What a transaction has changed so far."""

    def __init__(
        self,
        nodes: Mapping[str, list[tuple[int, Znode | None]]],
        names: Mapping[str, _Children],
        zxid: int,
        now_ms: int,
    ) -> None:
        self._nodes, self._names = nodes, names
        self.zxid, self._now_ms = zxid, now_ms
        self.nodes_after: dict[str, Znode | None] = {}
        #: By how many children a node has more, or fewer, than before.
        self._more: dict[str, int] = {}
        #: (path, whether it was created, not deleted), in order.
        self.made: list[tuple[str, bool]] = []
        #: (path, kind of operation), in order.
        self.events: list[tuple[str, type[TransactionOp]]] = []

    def node(self, path: str) -> Znode | None:
        if path in self.nodes_after:
            return self.nodes_after[path]
        states = self._nodes.get(path)
        return states[-1][1] if states else None

    def has_children(self, path: str) -> bool:
        before = self._names.get(path)
        return (0 if before is None else len(before.now)) + self._more.get(path, 0) > 0

    def create(self, op: CreateOp, session: int) -> None:
        owner = session if op.ephemeral else 0
        self.nodes_after[op.path] = Znode(op.data, 0, self._now_ms, self._now_ms, owner, self.zxid)
        self._note(op.path, created=True)

    def set(self, op: SetOp, found: Znode) -> None:
        self.nodes_after[op.path] = Znode(
            op.data, found.version + 1, found.ctime_ms, self._now_ms, found.owner_session, found.created_zxid
        )
        self.events.append((op.path, SetOp))

    def delete(self, path: str) -> None:
        self.nodes_after[path] = None
        self._note(path, created=False)

    def _note(self, path: str, *, created: bool) -> None:
        parent = _parent(path)
        self._more[parent] = self._more.get(parent, 0) + (1 if created else -1)
        self.made.append((path, created))
        self.events.append((path, CreateOp if created else DeleteOp))


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _at(states, zxid):
    for number, value in reversed(states or ()):
        if number <= zxid:
            return value
    return None


def _with_children(znode: Znode, children: int) -> Znode:
    return Znode(
        znode.data,
        znode.version,
        znode.ctime_ms,
        znode.mtime_ms,
        znode.owner_session,
        znode.created_zxid,
        children,
    )
