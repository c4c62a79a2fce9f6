"""ZooKeeper as the collector sees it: servers that are behind, sessions that end, a host name that leads elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from bk_spark.bookie.metadata.zookeeper import WatchCallback
from bk_spark.protocol.metadata.znodes import CreateOp, DeleteOp, SetOp, TransactionOp, Znode
from tests.support.zookeeper_model import ZooKeeperModel
from tests.support.zookeeper_model_session import ModelSession

#: The most by which a new session's server may be behind.
MOST_LAG = 30


class Ensemble(ZooKeeperModel):
    """The servers that a host name may lead to."""

    def __init__(self, nodes: Mapping[str, bytes]) -> None:
        super().__init__()
        #: How many ids the counter of ledger ids has given.
        self.given = 0
        for path, data in nodes.items():
            self.put(path, data)

    def put(self, path: str, data: bytes, session: int = 0) -> None:
        """Write a znode, with the directories that it needs. With a session, it is new and ephemeral."""
        if self.read(path) is not None:
            self.transact([SetOp(path, data, -1)])
            return
        names = path.split("/")[1:-1]
        above = ["/" + "/".join(names[: depth + 1]) for depth in range(len(names))]
        missing = [CreateOp(each) for each in above if self.read(each) is None]
        self.transact([*missing, CreateOp(path, data, ephemeral=bool(session))], session)

    def clear(self) -> None:
        """Delete everything."""
        self.transact([DeleteOp(path) for path in reversed(self.paths()) if path != "/"])


class CollectorSession(ModelSession):
    """The collector's client. Others act (``meanwhile``) before each request, and between the reads of a batch."""

    def __init__(self, random: Random, ensemble: Ensemble, meanwhile: Callable[[], None]) -> None:
        super().__init__(ensemble)
        self._random = random
        self._meanwhile = meanwhile
        self._view = ensemble.zxid
        #: The server sees nothing new until the next sync.
        self.stays_behind = random.random() < 0.5
        #: Number of incomplete lists of children.
        self.partial_lists = 0

    def renew(self, ensemble: Ensemble | None = None) -> None:
        """End the session. The next one connects to another server, perhaps of another ensemble, which may be
        behind."""
        self.zk.expire(self.session_id)
        self.zk = ensemble or self.zk
        self._begin_again()

    def ephemerals_in(self, ensemble: Ensemble) -> tuple[str, ...]:
        """The znodes in ``ensemble`` that end with this session."""
        return ensemble.ephemerals(self.session_id) if self.zk is ensemble else ()

    def sync(self, path: str) -> None:
        super().sync(path)
        self._view = self.zk.zxid

    def _begin_again(self) -> None:
        super()._begin_again()
        self._view = self._random.randint(max(0, self.zk.zxid - MOST_LAG), self.zk.zxid)
        self.stays_behind = self._random.random() < 0.5

    def _before(self) -> None:
        self._meanwhile()

    def _look(self) -> int:
        if self._random.random() < 0.05:
            self._meanwhile()
        if not self.stays_behind:
            self._view = self._random.randint(self._view, self.zk.zxid)
        return self._view

    def _get(self, path: str, watch: WatchCallback | None) -> Znode | None:
        if not path.endswith("/idgen"):
            return super()._get(path, watch)
        # The counter is read after a sync, so it is not behind.
        assert isinstance(self.zk, Ensemble)
        return Znode(b"", 0, 0, 0, 0, 1, child_changes=2 * self.zk.given)

    def _children(self, path: str, watch: WatchCallback | None) -> list[str] | None:
        listed = super()._children(path, watch)
        if listed is not None and self._random.random() < 0.3:  # scenario B8
            self.partial_lists += 1
            return [name for name in listed if self._random.random() < 0.7]
        return listed

    def _transact(self, operations: Sequence[TransactionOp]) -> None:
        super()._transact(operations)
        self._view = self.zk.zxid
        self._meanwhile()
