"""A session with the model of ZooKeeper that has the calls of :class:`bk_spark.bookie.metadata.zookeeper.ZooKeeper`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from bk_spark.bookie.metadata.zookeeper import WatchCallback
from bk_spark.protocol.errors import (
    MetadataConflictError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
)
from bk_spark.protocol.metadata.znodes import (
    CreateOp,
    DeleteOp,
    SetOp,
    TransactionConflictError,
    TransactionOp,
    Znode,
)
from tests.support.zookeeper_model import RefusedError, ZooKeeperModel

_T = TypeVar("_T")


class ModelSession:
    """One client. It sees the newest state; subclasses override :meth:`_look` to be behind.

    After its session has ended, the next call begins another one.
    """

    servers = "model"

    def __init__(self, zk: ZooKeeperModel) -> None:
        self.zk = zk
        self.session_id = zk.new_session()
        self._watches: dict[int, Callable[[str], None]] = {}
        self._watches_set = 0

    def expire(self) -> None:
        """End the session. A new one begins at once, without the watches, which are called."""
        self.zk.expire(self.session_id)
        self._begin_again()

    # --- for subclasses ---

    def _before(self) -> None:
        """Called before each request."""

    def _look(self) -> int:
        """The state that the next read shows."""
        return self.zk.zxid

    def _begin_again(self) -> None:
        self.session_id = self.zk.new_session()
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            self.zk.forget_watch(watch)
            watch("")

    def _transact(self, operations: Sequence[TransactionOp]) -> None:
        """Apply a change. Raises what the model raises, and OutcomeUnknownError."""
        self._before()
        if not self.zk.is_alive(self.session_id):
            self._begin_again()
            raise OutcomeUnknownError("the session has ended")
        self.zk.transact(operations, self.session_id)

    # --- reads ---

    def get(self, path: str, watch: WatchCallback | None = None) -> Znode | None:
        return self.get_many([path], watch)[path]

    def get_many(self, paths: Sequence[str], watch: WatchCallback | None = None) -> dict[str, Znode | None]:
        return self._read(lambda: {path: self._get(path, watch) for path in paths})

    def _get(self, path: str, watch: WatchCallback | None) -> Znode | None:
        found = self.zk.read(path, self._look())
        if found is not None and watch is not None:
            self.zk.watch_data(path, self._watch(path, watch))
        return found

    def exists(self, path: str, watch: WatchCallback | None = None) -> Znode | None:
        return self._read(lambda: self._exists(path, watch))

    def _exists(self, path: str, watch: WatchCallback | None) -> Znode | None:
        found = self.zk.read(path, self._look())
        if watch is not None:
            self.zk.watch_data(path, self._watch(path, watch))
        return None if found is None else _without_data(found)

    def children(self, path: str, watch: WatchCallback | None = None) -> list[str] | None:
        return self._read(lambda: self._children(path, watch))

    def _children(self, path: str, watch: WatchCallback | None) -> list[str] | None:
        names = self.zk.children(path, self._look())
        if names is not None and watch is not None:
            self.zk.watch_children(path, self._watch(path, watch))
        return None if names is None else list(names)

    def sync(self, path: str) -> None:
        self._read(lambda: None)

    def get_latest(self, path: str, watch: WatchCallback | None = None) -> Znode | None:
        while True:
            session = self.session_id
            self.sync(path)
            found = self.get(path, watch)
            if self.session_id == session:
                return found

    def _read(self, read: Callable[[], _T]) -> _T:
        """One session answers a read. If it ends meanwhile, the read is sent again."""
        while True:
            self._before()
            session = self.session_id
            if not self.zk.is_alive(session):
                self._begin_again()
                continue
            found = read()
            if self.session_id == session:
                return found

    def _watch(self, path: str, watch: WatchCallback) -> Callable[[str], None]:
        self._watches_set += 1
        number = self._watches_set

        def call(_: str) -> None:
            self._watches.pop(number, None)
            watch(path)

        self._watches[number] = call
        return call

    # --- changes ---

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
    ) -> str:
        try:
            return self._create(path, data, ephemeral, sequence)
        except NoNodeError:
            if not make_parents:
                raise
        self.ensure_path(path.rpartition("/")[0])
        return self._create(path, data, ephemeral, sequence)

    def _create(self, path: str, data: bytes, ephemeral: bool, sequence: bool) -> str:
        named = self.zk.next_name(path) if sequence else path
        self._change(CreateOp(named, data, ephemeral))
        return named

    def ensure_path(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if parent and self.exists(path) is None:
            self.ensure_path(parent)
        with contextlib.suppress(NodeExistsError):
            self._change(CreateOp(path))

    def set(self, path: str, data: bytes, version: int) -> int:
        self._change(SetOp(path, data, version))
        found = self.zk.read(path)
        assert found is not None
        return found.version

    def delete(self, path: str, version: int = -1) -> None:
        self._change(DeleteOp(path, version))

    def transaction(self, operations: Sequence[TransactionOp]) -> None:
        try:
            self._transact(operations)
        except RefusedError as error:
            raise TransactionConflictError(error.operation, error.reason) from None

    def _change(self, operation: TransactionOp) -> None:
        try:
            self._transact([operation])
        except RefusedError as error:
            raise _ERRORS.get(error.reason, MetadataError)(str(error)) from None

    @contextlib.contextmanager
    def within(self, timeout_ms: float) -> Iterator[None]:
        yield


_ERRORS = {
    "NoNodeError": NoNodeError,
    "NodeExistsError": NodeExistsError,
    "BadVersionError": MetadataConflictError,
    "NotEmptyError": MetadataConflictError,
}


def _without_data(found: Znode) -> Znode:
    return Znode(
        b"",
        found.version,
        found.ctime_ms,
        found.mtime_ms,
        found.owner_session,
        found.created_zxid,
        found.children,
    )
