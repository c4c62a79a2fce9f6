"""Registration: the znode with the bookie's address and whether it accepts adds. compatibility.md §3.4.

``<R>/available/<bookie id>``            ephemeral: the bookie is up and accepts adds
``<R>/available/readonly/<bookie id>``   ephemeral: the bookie is up and read-only

The bookie registers only in its own cluster: in another one its ledger ids belong to other ledgers.

A mode change creates the new znode before it removes the old one, so that clients always find the bookie.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from bk_spark.bookie.metadata.zookeeper import CONNECTED, ZooKeeper
from bk_spark.protocol.errors import BookKeeperError, MetadataError, NoNodeError, OutcomeUnknownError
from bk_spark.protocol.metadata.registration import BookieServiceInfo, Endpoint
from bk_spark.protocol.metadata.znodes import CheckOp, CreateOp, TransactionConflictError
from bookie_server.identity.cluster_identity import ClusterIdentity

_LOG: Final = logging.getLogger(__name__)
_RETRY_S: Final = 1.0
#: Timeout of one attempt; then it is repeated.
_ATTEMPT_MS: Final = 3_000
#: How long shutdown waits for ZooKeeper.
_STOP_MS: Final = 2_000


@dataclass(frozen=True, slots=True)
class BookieMode:
    """The visible mode: whether the bookie is read-only, and whether an operator requested that."""

    read_only: bool = False
    manual: bool = False


class RegistrationManager:
    """Keeps the bookie registered in its mode, across lost sessions, from :meth:`start` to :meth:`stop`.

    ``before_move`` is called with each new mode, in the thread that moves the znode, before the move.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        identity: ClusterIdentity,
        info: BookieServiceInfo,
        *,
        wait_ms: int,
        before_move: Callable[[BookieMode], None],
    ) -> None:
        self._zookeeper = zookeeper
        self._identity = identity
        self._readonly_root = f"{identity.root}/available/readonly"
        self._writable_path = f"{identity.root}/available/{identity.bookie_id}"
        self._readonly_path = f"{self._readonly_root}/{identity.bookie_id}"
        self._info = info
        self._wait_s = wait_ms / 1000
        self._before_move = before_move
        self._mode = BookieMode()
        #: The last mode passed to ``before_move``, and the mode of the znode.
        self._told: BookieMode | None = None
        self._moved_to: BookieMode | None = None
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="registration", daemon=True)
        #: The znode's state, as far as known: 1 up, 0 read-only, -1 not registered.
        self.status = -1

    def add_endpoint(self, endpoint: Endpoint) -> None:
        """Publish one more endpoint. Call this before :meth:`start`."""
        self._info = replace(self._info, endpoints=(*self._info.endpoints, endpoint))

    def start(self) -> None:
        """Register in the mode of :meth:`set_mode`. Waits until the znode of an earlier session of this bookie is gone.
        Blocking.

        Raises MetadataError if it stays or ZooKeeper cannot be reached.
        """
        deadline = time.monotonic() + self._wait_s
        while not self._stopping.is_set():
            try:
                with self._zookeeper.within(_ATTEMPT_MS):
                    self._check_cluster()
                    self._zookeeper.ensure_path(self._readonly_root)
                self._register(deadline)
                break
            except MetadataError:  # also if the session ended meanwhile, and its znode with it
                if time.monotonic() >= deadline:
                    raise
                self._stopping.wait(_RETRY_S)
        self._zookeeper.add_state_listener(self._on_state)
        # Look once more: session events before the listener was added were missed.
        self._wake.set()
        self._thread.start()

    def set_mode(self, mode: BookieMode) -> None:
        """Move the znode as soon as ZooKeeper can be reached. Returns at once; the last mode counts. Before
        :meth:`start` it sets the initial mode, which is writable by default."""
        if mode != self._mode:
            self._mode = mode
            self._wake.set()

    def stop(self) -> None:
        """Remove the znode. Blocks for a few seconds at most; never raises."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_ATTEMPT_MS / 1000 + 0.5)
        if self._zookeeper.connected:
            with contextlib.suppress(BookKeeperError), self._zookeeper.within(_STOP_MS):
                self._remove_own(self._writable_path)
                self._remove_own(self._readonly_path)

    def _register(self, deadline: float) -> None:
        """Set both znodes to the mode. Raises MetadataError if a znode of another session stays."""
        mode = self._mode
        if mode != self._told:
            # Compare with the last mode passed on, not the znode's: a mode that never reached ZooKeeper must be undone.
            self._before_move(mode)
            self._told = mode
        wanted, other = self._writable_path, self._readonly_path
        if mode.read_only:
            wanted, other = other, wanted
        for path in (wanted, other):
            self._wait_for_others(path, deadline)
        if self._stopping.is_set():
            return
        with self._zookeeper.within(_ATTEMPT_MS):
            held = self._check_cluster()
            with contextlib.suppress(TransactionConflictError, OutcomeUnknownError):
                self._zookeeper.transaction([*held, CreateOp(wanted, self._info.encode(), ephemeral=True)])
            node = self._zookeeper.exists(wanted)
        if node is None or node.owner_session != self._zookeeper.session_id:
            raise MetadataError(
                f"{wanted} was taken by another bookie with this id, or the session or the cluster has just changed"
            )
        self._remove_own(other)
        if mode != self._moved_to or self.status == -1:
            _LOG.info("registered: path=%s", wanted)
        self._moved_to = mode
        self.status = 0 if mode.read_only else 1

    def _check_cluster(self) -> list[CheckOp]:
        """Checks that tie a transaction to the bookie's cluster. Raises ForeignClusterError."""
        found = self._zookeeper.get_many(self._identity.paths)
        self._identity.check(found)
        return [CheckOp(path, node.version) for path, node in found.items() if node is not None]

    def _wait_for_others(self, path: str, deadline: float) -> None:
        """Wait until no other session holds ``path``. The session of a previous run ends by its timeout."""
        told = False
        while not self._stopping.is_set():
            changed = threading.Event()

            def wake(_path: str, changed: threading.Event = changed) -> None:
                changed.set()

            with self._zookeeper.within(_ATTEMPT_MS):
                node = self._zookeeper.exists(path, watch=wake)
            if node is None or node.owner_session == self._zookeeper.session_id:
                return
            if not told:
                told = True
                _LOG.info("%s is held by session 0x%x; waiting for it to end", path, node.owner_session)
            while not changed.wait(min(_RETRY_S, max(0.0, deadline - time.monotonic()))):
                if self._stopping.is_set():
                    return
                if time.monotonic() >= deadline:
                    raise MetadataError(
                        f"{path} is held by another session (0x{node.owner_session:x}) and was not released within "
                        f"{self._wait_s:g} s: another bookie with this id is running, or choose another bookieId"
                    )

    def _remove_own(self, path: str) -> None:
        with self._zookeeper.within(_ATTEMPT_MS), contextlib.suppress(NoNodeError):
            node = self._zookeeper.exists(path)
            if node is not None and node.owner_session == self._zookeeper.session_id:
                self._zookeeper.delete(path)

    def _on_state(self, state: str) -> None:
        if state == CONNECTED:
            self._wake.set()
        else:
            self.status = -1

    def _keep(self) -> None:
        """Register again after each mode change and each reconnection, since the session may be new."""

        pause_s: float | None = None
        told = ""
        while True:
            self._wake.wait(pause_s)
            self._wake.clear()
            if self._stopping.is_set():
                return
            pause_s = None
            try:
                self._register(time.monotonic() + _ATTEMPT_MS / 1000)
                told = ""
            except BookKeeperError as error:
                if str(error) != told:
                    told = str(error)
                    _LOG.warning("cannot register yet, trying again: %s", error)
                pause_s = _RETRY_S
            except Exception:
                _LOG.exception("registration failed, trying again")
                pause_s = _RETRY_S
