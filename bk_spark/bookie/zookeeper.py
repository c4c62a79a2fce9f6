"""A bounded, typed view of one ZooKeeper session.

kazoo does the work; this module gives it three properties the rest of the project relies on:

* every call ends within ``operation_timeout_ms`` with an answer or a typed error;
* a change whose connection was lost is :class:`OutcomeUnknownError`, never silently retried;
* a transaction's failure names the operation that failed (kazoo returns errors in a list).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError as KazooNodeExistsError,
    NoNodeError as KazooNoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, WatchedEvent, ZnodeStat

from bk_spark.protocol.errors import (
    MetadataConflictError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
)

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

#: Data watches and children watches get the path they were set on when it changed, and also when the
#: connection broke (which ends a watch: look again). Called in kazoo's thread: be quick.
WatchCallback = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Znode:
    """Content and the parts of the stat that anyone here uses."""

    data: bytes
    version: int
    ctime_ms: int
    mtime_ms: int
    owner_session: int


@dataclass(frozen=True, slots=True)
class CreateOp:
    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class SetOp:
    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class DeleteOp:
    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class CheckOp:
    """Holds the transaction to ``path`` being at ``version``; -1 only asks that it exists."""

    path: str
    version: int


TransactionOp = CreateOp | SetOp | DeleteOp | CheckOp


class TransactionConflictError(MetadataConflictError):
    """A transaction was refused as a whole; ``operation`` is the first that did not hold."""

    def __init__(self, operation: TransactionOp, reason: str) -> None:
        super().__init__(f"ZooKeeper transaction refused: {type(operation).__name__} of {operation.path}: {reason}")
        self.operation = operation
        self.reason = reason


class ZooKeeper:
    """One session with a ZooKeeper ensemble. Thread-safe. Calls block for at most the timeout.

    ``servers`` is a connect string (``host:port,host:port``). ``start`` may be called once; ``close``
    ends the session (ephemeral nodes go) and may be called any number of times.
    """

    def __init__(self, servers: str, *, session_timeout_ms: int = 10_000, operation_timeout_ms: int = 30_000) -> None:
        self.servers = servers
        self._timeout_s = operation_timeout_ms / 1000
        self._client = KazooClient(
            hosts=servers,
            timeout=session_timeout_ms / 1000,
            logger=logging.getLogger(f"{__name__}.kazoo"),
            connection_retry={"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 2.0},
        )
        self._listeners: list[Callable[[str], None]] = []
        self._client.add_listener(self._on_state)
        self._lock = threading.Lock()
        self._closed = False

    def start(self, timeout_ms: int = 10_000) -> None:
        """Connect. Raises :class:`MetadataUnavailableError` where no server answers in time."""
        try:
            self._client.start(timeout=timeout_ms / 1000)
        except (KazooTimeoutError, KazooException, OSError) as error:
            self.close()
            raise MetadataUnavailableError(
                f"no ZooKeeper server answered at {self.servers} within {timeout_ms} ms; "
                "check metadataServiceUri and that the server runs"
            ) from error

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._client.stop()
        self._client.close()

    @property
    def session_id(self) -> int:
        """Id of the present session; 0 while there is none."""
        client_id = self._client.client_id
        return int(client_id[0]) if client_id else 0

    def add_state_listener(self, listener: Callable[[str], None]) -> None:
        """``listener("CONNECTED" | "SUSPENDED" | "LOST")`` in kazoo's thread: be quick, do not call back."""
        self._listeners.append(listener)

    def remove_state_listener(self, listener: Callable[[str], None]) -> None:
        """Safe to repeat."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def get(self, path: str, watch: WatchCallback | None = None) -> Znode | None:
        """Content of ``path``, or None where it does not exist (the watch is then not set)."""
        try:
            data, stat = self._read(self._client.get_async(path, watch=_event(path, watch)))
        except NoNodeError:
            return None
        return _znode(data, stat)

    def exists(self, path: str, watch: WatchCallback | None = None) -> Znode | None:
        """Stat of ``path`` (without its data), or None; the watch is set either way."""
        stat = self._read(self._client.exists_async(path, watch=_event(path, watch)))
        return None if stat is None else _znode(b"", stat)

    def children(self, path: str, watch: WatchCallback | None = None) -> list[str] | None:
        """Names of the children, or None where ``path`` does not exist."""
        try:
            names: list[str] = self._read(self._client.get_children_async(path, watch=_event(path, watch)))
        except NoNodeError:
            return None
        return names

    def sync(self, path: str) -> None:
        """Bring the connected server up to date with every change acknowledged before this call."""
        self._read(self._client.sync_async(path))

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
    ) -> str:
        """Create a znode; the path made (with its sequence number). Raises NodeExistsError, NoNodeError."""
        made: str = self._change(
            self._client.create_async(path, data, ephemeral=ephemeral, sequence=sequence, makepath=make_parents), path
        )
        return made

    def ensure_path(self, path: str) -> None:
        """Create ``path`` and its parents, empty, as far as they are missing. Safe to repeat."""
        self._read(self._client.ensure_path_async(path))

    def set(self, path: str, data: bytes, version: int) -> int:
        """Compare-and-set; the new version. Raises MetadataConflictError, NoNodeError."""
        stat: ZnodeStat = self._change(self._client.set_async(path, data, version=version), path)
        return int(stat.version)

    def delete(self, path: str, version: int = -1) -> None:
        """Raises NoNodeError, MetadataConflictError (version, or the node has children)."""
        self._change(self._client.delete_async(path, version=version), path)

    def transaction(self, operations: Sequence[TransactionOp]) -> None:
        """All or none. Raises :class:`TransactionConflictError` or :class:`OutcomeUnknownError`."""
        transaction = self._client.transaction()
        for op in operations:
            match op:
                case CreateOp():
                    transaction.create(op.path, op.data, ephemeral=op.ephemeral)
                case SetOp():
                    transaction.set_data(op.path, op.data, version=op.version)
                case DeleteOp():
                    transaction.delete(op.path, version=op.version)
                case CheckOp():
                    transaction.check(op.path, op.version)
        results = self._change(transaction.commit_async(), operations[0].path if operations else "/")
        for op, result in zip(operations, results, strict=True):
            if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
                raise TransactionConflictError(op, type(result).__name__) from result

    def _read(self, result: Any) -> Any:
        try:
            return result.get(block=True, timeout=self._timeout_s)
        except KazooNoNodeError as error:
            raise NoNodeError("znode does not exist") from error
        except (ConnectionLoss, SessionExpiredError, ConnectionClosedError, KazooTimeoutError) as error:
            raise MetadataUnavailableError(
                f"ZooKeeper at {self.servers} did not answer ({type(error).__name__}); try again"
            ) from error
        except KazooException as error:
            raise MetadataError(f"ZooKeeper refused: {type(error).__name__}: {error}") from error

    def _change(self, result: Any, path: str) -> Any:
        try:
            return result.get(block=True, timeout=self._timeout_s)
        except KazooNoNodeError as error:
            raise NoNodeError(f"znode {path} (or its parent) does not exist") from error
        except KazooNodeExistsError as error:
            raise NodeExistsError(f"znode {path} exists already") from error
        except BadVersionError as error:
            raise MetadataConflictError(f"znode {path} was changed by another client") from error
        except NotEmptyError as error:
            raise MetadataConflictError(f"znode {path} has children") from error
        except (ConnectionLoss, SessionExpiredError, ConnectionClosedError, KazooTimeoutError) as error:
            raise OutcomeUnknownError(
                f"connection to ZooKeeper at {self.servers} was lost while {path} was being changed "
                f"({type(error).__name__}): the change may or may not have taken effect"
            ) from error
        except KazooException as error:
            raise MetadataError(f"ZooKeeper refused to change {path}: {type(error).__name__}: {error}") from error

    def _on_state(self, state: str) -> None:
        _LOG.info("ZooKeeper session %s: %s", self.servers, state)
        for listener in list(self._listeners):
            listener(str(state))


#: Names of session states given to listeners.
CONNECTED, SUSPENDED, LOST = KazooState.CONNECTED, KazooState.SUSPENDED, KazooState.LOST


def _event(path: str, watch: WatchCallback | None) -> Callable[[WatchedEvent], None] | None:
    if watch is None:
        return None
    # When the connection breaks kazoo drops its watches and says so with an event that has no path.
    return lambda _: watch(path)


def _znode(data: bytes, stat: ZnodeStat) -> Znode:
    return Znode(data, stat.version, stat.ctime, stat.mtime, stat.ephemeralOwner or 0)
