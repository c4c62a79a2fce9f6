"""ZooKeeper as the collector sees it: servers that are behind, sessions that end, a host name that leads elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from random import Random

from bk_spark.protocol.errors import NodeExistsError, NoNodeError
from bk_spark.protocol.metadata.znodes import CreateOp, DeleteOp, TransactionConflictError, TransactionOp, Znode

#: The most by which a new session's server may be behind.
MOST_LAG = 30


class Ensemble:
    """All past and present states. Content is replaced, never changed."""

    def __init__(self, nodes: dict[str, bytes]) -> None:
        self.states: list[dict[str, Znode]] = [{}]
        self.change({path: (data, 0) for path, data in nodes.items()})

    @property
    def zxid(self) -> int:
        return len(self.states) - 1

    @property
    def nodes(self) -> dict[str, Znode]:
        return self.states[-1]

    def change(self, changes: dict[str, tuple[bytes, int] | None]) -> None:
        """Apply one transaction: content and owner's session by path; None deletes the path."""
        state = dict(self.nodes)
        for path, change in changes.items():
            before = state.pop(path, None)
            if change is not None:
                version = 0 if before is None else before.version + 1
                made = len(self.states) if before is None else before.created_zxid
                state[path] = Znode(change[0], version, 0, 0, change[1], made)
        self.states.append(state)

    def end_session(self, session: int) -> None:
        self.change({path: None for path, node in self.nodes.items() if node.owner_session == session})


class ModelZooKeeper:
    """The collector's client, as LedgerMetadataReads and UnderReplicationStore use it. Others act (``meanwhile``)
    before each request, and between the reads of a batch."""

    servers = "model"

    def __init__(self, random: Random, ensemble: Ensemble, meanwhile: Callable[[], None]) -> None:
        self._random = random
        self._meanwhile = meanwhile
        #: The ensemble that the host name leads to.
        self.ensemble = ensemble
        self.session_id = 1
        self._view = ensemble.zxid
        #: The server sees nothing new until the next sync.
        self.stays_behind = random.random() < 0.5
        #: Number of incomplete lists of children.
        self.partial_lists = 0

    def renew(self, ensemble: Ensemble | None = None) -> None:
        """End the session. The next one connects to another server, perhaps of another ensemble, which may be
        behind."""
        self.ensemble.end_session(self.session_id)
        self.ensemble = ensemble or self.ensemble
        self.session_id += 1
        now = self.ensemble.zxid
        self._view = self._random.randint(max(0, now - MOST_LAG), now)
        self.stays_behind = self._random.random() < 0.5

    # --- as bk_spark.bookie.metadata.zookeeper.ZooKeeper ---

    def sync(self, path: str) -> None:
        self._meanwhile()
        self._view = self.ensemble.zxid

    def get(self, path: str) -> Znode | None:
        return self.get_many([path])[path]

    def exists(self, path: str) -> Znode | None:
        return self.get(path)

    def get_latest(self, path: str) -> Znode | None:
        while True:
            session = self.session_id
            self.sync(path)
            found = self.get(path)
            if self.session_id == session:
                return found

    def get_many(self, paths: Sequence[str]) -> dict[str, Znode | None]:
        """If the connection breaks, all reads are repeated, so that one session answers all."""
        self._meanwhile()
        while True:
            session, found = self.session_id, {}
            for path in paths:
                if self._random.random() < 0.05:
                    self._meanwhile()
                found[path] = self._state().get(path)
            if self.session_id == session:
                return found

    def children(self, path: str) -> list[str] | None:
        self._meanwhile()
        names = [each[len(path) + 1 :] for each in self._state() if each.startswith(f"{path}/")]
        listed = sorted({name.partition("/")[0] for name in names})
        if self._random.random() < 0.3:  # scenario B8
            self.partial_lists += 1
            return [name for name in listed if self._random.random() < 0.7]
        return listed or None

    def ensure_path(self, path: str) -> None:
        """Create parent paths as needed."""

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> str:
        self._meanwhile()
        if path in self.ensemble.nodes:
            raise NodeExistsError(path)
        self.ensemble.change({path: (data, self.session_id if ephemeral else 0)})
        self._view = self.ensemble.zxid
        self._meanwhile()
        return path

    def transaction(self, operations: Sequence[TransactionOp]) -> None:
        """One ephemeral znode is created or deleted: the lock."""
        (operation,) = operations
        try:
            if isinstance(operation, CreateOp):
                self.create(operation.path, operation.data, ephemeral=operation.ephemeral)
            else:
                assert isinstance(operation, DeleteOp)
                self.delete(operation.path)
        except (NodeExistsError, NoNodeError) as error:
            raise TransactionConflictError(operation, type(error).__name__) from None

    def delete(self, path: str) -> None:
        self._meanwhile()
        if path not in self.ensemble.nodes:
            raise NoNodeError(path)
        self.ensemble.change({path: None})
        self._view = self.ensemble.zxid

    @contextlib.contextmanager
    def within(self, timeout_ms: int) -> Iterator[None]:
        yield

    def _state(self) -> dict[str, Znode]:
        if not self.stays_behind:
            self._view = self._random.randint(self._view, self.ensemble.zxid)
        return self.ensemble.states[self._view]
