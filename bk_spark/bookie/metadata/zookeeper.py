"""A bounded, typed view of one ZooKeeper session.

kazoo does the work. This module adds three guarantees:

* Every call ends within ``operation_timeout_ms`` with an answer or a typed error. :meth:`ZooKeeper.within` limits
  several calls together.
* Without a connection a call waits for one. A request that could not be sent raises MetadataUnavailableError, and is
  never sent later. If the connection is lost, a read is sent again, and a change raises :class:`OutcomeUnknownError`.
* A failed transaction names the operation that failed (kazoo returns errors in a list).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import (
    KazooException,
    NoAuthError,
    NoNodeError as KazooNoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, WatchedEvent, ZnodeStat

from bk_spark.bookie.metadata.cluster_clock import ClusterClock
from bk_spark.bookie.metadata.session_rest import SessionRest
from bk_spark.bookie.metadata.zookeeper_access import EncryptingHandler, PollingHandler, ZooKeeperAccess
from bk_spark.bookie.metadata.zookeeper_errors import CONNECTION_LOST, refused_request
from bk_spark.bookie.metadata.zookeeper_refusal import refusal
from bk_spark.protocol.errors import MetadataUnavailableError, NoNodeError, OutcomeUnknownError
from bk_spark.protocol.metadata.znodes import (
    CheckOp,
    CreateOp,
    DeleteOp,
    SetOp,
    TransactionConflictError,
    TransactionOp,
    Znode,
)

_LOG = logging.getLogger(__name__)
#: How long to wait for a server to confirm the end of a session before cutting the connection.
_CLOSE_GRACE_S: Final = 5.0
#: The pause before a read is sent again.
_RETRY_PAUSE_S: Final = 0.02
#: The number of reads that one call keeps under way.
_PIPELINED: Final = 256

#: Called with the path of a data or children watch when the path changed, or when the connection broke. A broken
#: connection ends the watch, so read again. Called in kazoo's thread: be quick.
WatchCallback = Callable[[str], None]


class ZooKeeper:
    """One session with a ZooKeeper ensemble. Thread-safe. Calls block for at most the timeout.

    ``servers`` is a connect string (``host:port,host:port``). Call ``start`` once. ``close`` ends the session and its
    ephemeral nodes. It is safe to repeat. With ``rest_after_ms`` the session and its ephemeral nodes also end after
    this long without a call. Another session begins with the next call (see session_rest). ``access``: who the session
    is, and whether its connection is encrypted.
    """

    def __init__(
        self,
        servers: str,
        *,
        session_timeout_ms: int = 10_000,
        operation_timeout_ms: int = 30_000,
        rest_after_ms: int = 0,
        access: ZooKeeperAccess | None = None,
    ) -> None:
        self.servers = servers
        #: The servers' time, as far as known. See :meth:`measure_time`.
        self.clock = ClusterClock()
        self._timeout_s = operation_timeout_ms / 1000
        self._session_timeout_s = session_timeout_ms / 1000
        self._client = KazooClient(
            hosts=servers,
            timeout=self._session_timeout_s,
            logger=logging.getLogger(f"{__name__}.kazoo"),
            connection_retry={"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 2.0},
            **({"handler": PollingHandler()} if access is None else access.kazoo_options()),
        )
        self._listeners: list[Callable[[str], None]] = []
        self._client.add_listener(self._on_state)
        #: Guards ``_closed``. Notified when the state changes.
        self._changed = threading.Condition()
        self._closed = False
        self._deadlines = threading.local()
        self.rest: SessionRest | None = None
        if rest_after_ms:
            self.rest = SessionRest(rest_after_ms / 1000, self._client.start_async, self._end_session)

    def start(self, timeout_ms: int = 10_000) -> None:
        """Connect. Raises :class:`MetadataUnavailableError` if no server answers in time."""
        with self._awake(time.monotonic() + timeout_ms / 1000):
            live = self._client.start_async()
            if live.wait(timeout_ms / 1000):
                return
            refused = refusal(self.servers)
            # If other sessions rest too, there is room soon.
            if refused is not None and self.rest is not None and live.wait(self._timeout_s):
                return
        self.close()
        raise MetadataUnavailableError(
            refused
            or f"no ZooKeeper server answered at {self.servers} within {timeout_ms} ms{self._why_unencrypted()}; "
            "check metadataServiceUri and that the server runs"
        )

    def _why_unencrypted(self) -> str:
        handler = self._client.handler
        problem = handler.problem if isinstance(handler, EncryptingHandler) else ""
        return problem and f" (TLS handshake: {problem})"

    def close(self) -> None:
        """End the session. If the server does not answer, cut the connection. The session and its ephemeral nodes then
        end after the session timeout."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        if self.rest is not None:
            self.rest.close()
        end = functools.partial(self._end_session, for_good=True)
        closing = threading.Thread(target=end, name="zookeeper-close", daemon=True)
        closing.start()
        # Without a connection, no server can confirm the end.
        closing.join(_CLOSE_GRACE_S if self.connected else _RETRY_PAUSE_S)
        if closing.is_alive():
            _LOG.info("ZooKeeper at %s did not confirm the end of the session in time", self.servers)
            self._cut()
            # A connection attempt under way ends within the session timeout.
            closing.join(self._session_timeout_s + _CLOSE_GRACE_S)

    def _end_session(self, *, for_good: bool = False) -> None:
        try:
            self._client.stop()
            if for_good:
                self._client.close()
        except Exception:
            _LOG.info("ZooKeeper at %s did not confirm the end of the session", self.servers, exc_info=True)
            self._cut()

    def _cut(self) -> None:
        connection = self._client._connection._socket
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def within(self, timeout_ms: float) -> Iterator[None]:
        """Limit all calls of this thread inside the block to ``timeout_ms`` together."""
        before = getattr(self._deadlines, "at", math.inf)
        self._deadlines.at = min(before, time.monotonic() + timeout_ms / 1000)
        try:
            yield
        finally:
            self._deadlines.at = before

    @property
    def session_id(self) -> int:
        """Id of the current session, 0 if there is none."""
        client_id = self._client.client_id
        return int(client_id[0]) if client_id else 0

    @property
    def connected(self) -> bool:
        """Whether there is a connection now, as far as known."""
        return bool(self._client.connected)

    def add_state_listener(self, listener: Callable[[str], None]) -> None:
        """Call ``listener("CONNECTED" | "SUSPENDED" | "LOST")`` in kazoo's thread: be quick, do not call back."""
        self._listeners.append(listener)

    def remove_state_listener(self, listener: Callable[[str], None]) -> None:
        """Remove a listener. Safe to repeat."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def get(self, path: str, watch: WatchCallback | None = None) -> Znode | None:
        """Return the content of ``path``. If it does not exist, return None and set no watch."""
        try:
            data, stat = self._read(lambda: self._client.get_async(path, watch=_event(path, watch)))
        except NoNodeError:
            return None
        return _znode(data, stat)

    def get_many(
        self, paths: Sequence[str], watch: WatchCallback | None = None, *, sync: bool = False
    ) -> dict[str, Znode | None]:
        """Do :meth:`get` for each path, pipelined. The server answers in this order, one after another.

        With ``sync``, :meth:`sync` goes ahead of them. If the session is another one afterwards, its server may be
        behind.
        """
        found: dict[str, Znode | None] = {}
        for start in range(0, len(paths), _PIPELINED):
            part = paths[start : start + _PIPELINED]
            ask = functools.partial(_Answers, self._client, part, watch, sync=sync and start == 0)
            found.update(zip(part, self._read(ask), strict=True))
        return found

    def exists(self, path: str, watch: WatchCallback | None = None) -> Znode | None:
        """Return the stat of ``path`` (without its data), or None. The watch is set in both cases."""
        stat = self._read(lambda: self._client.exists_async(path, watch=_event(path, watch)))
        return None if stat is None else _znode(b"", stat)

    def children(self, path: str, watch: WatchCallback | None = None) -> list[str] | None:
        """Return the names of the children, or None if ``path`` does not exist."""
        try:
            names: list[str] = self._read(lambda: self._client.get_children_async(path, watch=_event(path, watch)))
        except NoNodeError:
            return None
        return names

    def sync(self, path: str) -> None:
        """Bring the connected server up to date with every change acknowledged before this call."""
        self._read(lambda: self._client.sync_async(path))

    def get_latest(self, path: str, watch: WatchCallback | None = None) -> Znode | None:
        """Do :meth:`sync` and :meth:`get` in one session. The server of a new session may be behind the synced one."""
        while True:
            session = self.session_id
            # The server answers a session's requests in their order, so the read need not wait for the first answer.
            found: Znode | None
            (found,) = self._read(functools.partial(_Answers, self._client, [path], watch, sync=True))
            if session and self.session_id == session:
                return found

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
    ) -> str:
        """Create a znode. Return its path (with the sequence number). Raises NodeExistsError, NoNodeError."""
        made: str = self._change(
            lambda: self._client.create_async(
                path, data, ephemeral=ephemeral, sequence=sequence, makepath=make_parents
            ),
            path,
        )
        return made

    def ensure_path(self, path: str) -> None:
        """Create ``path`` and its parents, empty, if they are missing. Safe to repeat."""
        self._read(lambda: self._client.ensure_path_async(path))

    def set(self, path: str, data: bytes, version: int) -> int:
        """Compare-and-set. Return the new version. Raises MetadataConflictError, NoNodeError."""
        stat: ZnodeStat = self._change(lambda: self._client.set_async(path, data, version=version), path)
        return int(stat.version)

    def delete(self, path: str, version: int = -1) -> None:
        """Delete a znode. Raises NoNodeError, MetadataConflictError (wrong version, or the node has children)."""
        self._change(lambda: self._client.delete_async(path, version=version), path)

    def transaction(self, operations: Sequence[TransactionOp]) -> None:
        """Apply all operations or none. Raises :class:`TransactionConflictError` or :class:`OutcomeUnknownError`."""
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
        sent_s = self.clock.monotonic_s()
        results = self._change(transaction.commit_async, operations[0].path if operations else "/")
        for op, result in zip(operations, results, strict=True):
            if isinstance(result, NoAuthError):
                raise refused_request(result, op.path) from result
            if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
                raise TransactionConflictError(op, type(result).__name__) from result
        stat = next((result for result in results if isinstance(result, ZnodeStat)), None)
        if stat is not None:
            self.clock.note(sent_s, stat.mtime, self.session_id)

    def measure_time(self, path: str) -> None:
        """Measure the servers' time for :attr:`clock` by writing ``path``, an empty znode that is created if missing.
        Raises MetadataUnavailableError."""
        while True:
            sent_s = self.clock.monotonic_s()
            try:
                stat: ZnodeStat = self._change(lambda: self._client.set_async(path, b""), path)
            except NoNodeError:
                self.ensure_path(path)
            else:
                self.clock.note(sent_s, stat.mtime, self.session_id)
                return

    def _deadline(self) -> float:
        return min(getattr(self._deadlines, "at", math.inf), time.monotonic() + self._timeout_s)

    def _awake(self, deadline: float) -> AbstractContextManager[None]:
        return contextlib.nullcontext() if self.rest is None else self.rest.awake(deadline)

    def _ask(self, call: Callable[[], Any], deadline: float) -> Any:
        """Send a request when there is a connection, and wait for its answer. Raises kazoo's errors, and
        MetadataUnavailableError if nothing was sent."""
        with self._awake(deadline):
            wait_s = deadline - time.monotonic()
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self.connected, max(0.0, wait_s))
                if self._closed:
                    raise MetadataUnavailableError("the session with ZooKeeper is closed")
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not self.connected:
                # The search for a refusal takes seconds. It is useless while there is a connection, or if the caller
                # had no time to wait: it repeats a call whose error reported the refusal already.
                refused = refusal(self.servers) if wait_s > 0 and not self.connected else None
                # kazoo would keep the request, and send it when there is a connection again.
                raise MetadataUnavailableError(
                    refused or f"ZooKeeper at {self.servers} could not be reached in time. Retry."
                )
            return call().get(block=True, timeout=left_s)

    def _read(self, call: Callable[[], Any]) -> Any:
        """Send a read. While there is time, send it again after a broken connection."""
        deadline = self._deadline()
        while True:
            try:
                return self._ask(call, deadline)
            except CONNECTION_LOST:
                with self._changed:
                    self._changed.wait(_RETRY_PAUSE_S)
            except KazooTimeoutError as error:
                raise MetadataUnavailableError(f"ZooKeeper at {self.servers} did not answer in time") from error
            except KazooException as error:
                raise refused_request(error) from error

    def _change(self, call: Callable[[], Any], path: str) -> Any:
        try:
            return self._ask(call, self._deadline())
        except (*CONNECTION_LOST, KazooTimeoutError) as error:
            raise OutcomeUnknownError(
                f"connection to ZooKeeper at {self.servers} was lost while {path} was being changed "
                f"({type(error).__name__}): the change may or may not have taken effect"
            ) from error
        except KazooException as error:
            raise refused_request(error, path) from error

    def _on_state(self, state: str) -> None:
        _LOG.info("ZooKeeper session %s: %s", self.servers, state)
        with self._changed:
            self._changed.notify_all()
        for listener in list(self._listeners):
            listener(str(state))


class _Answers:
    """Several reads under way, awaited as one. With ``sync`` they show every change acknowledged before this call."""

    def __init__(
        self, client: KazooClient, paths: Sequence[str], watch: WatchCallback | None, *, sync: bool = False
    ) -> None:
        self._synced = client.sync_async(paths[0]) if sync else None
        self._asked = [client.get_async(path, watch=_event(path, watch)) for path in paths]

    def get(self, block: bool, timeout: float) -> list[Znode | None]:
        """Wait for all answers. Raises the error of the first read that failed."""
        deadline = time.monotonic() + timeout
        found: list[Znode | None] = []
        for one in self._asked:
            try:
                data, stat = one.get(block=block, timeout=max(0.0, deadline - time.monotonic()))
                found.append(_znode(data, stat))
            except KazooNoNodeError:
                found.append(None)
        if self._synced is not None:
            self._synced.get(block=block, timeout=max(0.0, deadline - time.monotonic()))
        return found


#: Names of session states, as passed to listeners.
CONNECTED, SUSPENDED, LOST = KazooState.CONNECTED, KazooState.SUSPENDED, KazooState.LOST


def _event(path: str, watch: WatchCallback | None) -> Callable[[WatchedEvent], None] | None:
    # When the connection breaks, kazoo drops its watches and sends an event without a path.
    return None if watch is None else lambda _: watch(path)


def _znode(data: bytes, stat: ZnodeStat) -> Znode:
    owner = stat.ephemeralOwner or 0
    return Znode(data, stat.version, stat.ctime, stat.mtime, owner, stat.czxid, stat.numChildren, stat.cversion)
