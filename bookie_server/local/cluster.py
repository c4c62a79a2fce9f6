"""A complete cluster on this machine: real ZooKeeper servers and bookies as processes on loopback ports.

For demos, notebooks and tests. Its directory::

    cluster.json            ports and layout (see state.py)
    cluster.lock            held while the cluster runs
    admin-token             the token of the bookies' admin APIs, if they were made with some
    zookeeper<n>/           zoo.cfg, data/, server.log
    bookie<n>/              bk_server.conf, journal/, ledgers/, bookie.log

Everything survives a restart; ports stay the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from bk_spark.bookie.metadata.cluster_init import DEFAULT_LAYOUT, init_cluster, ledger_manager
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import InvalidArgumentError, StorageError
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.local.bookie import CONF_NAME, LocalBookie
from bookie_server.local.process import STOP_TIMEOUT_MS, GuardedProcessGroup, LocalProcess
from bookie_server.local.state import (
    LOOPBACK,
    BookiePorts,
    DirectoryLock,
    LocalClusterState,
    PortChooser,
    ZooKeeperPorts,
    load_state,
    make_token,
    save_state,
)
from bookie_server.local.zookeeper import LocalZooKeeper, wait_ensemble

_LOG = logging.getLogger(__name__)

DEFAULT_BOOKIES: Final = 3
MAX_BOOKIES: Final = 64
_ENSEMBLE_SIZES: Final = (1, 3)


class LocalCluster:
    """ZooKeeper and bookies in ``directory``; a context manager.

    Parameters
    ----------
    directory : created if missing. An existing cluster there keeps its ports and data.
    bookies : how many bookies, 0 for ZooKeeper alone; None for as many as the directory has, or 3.
        An existing cluster can grow, not shrink.
    zookeepers : 1 or 3; None for as many as the directory has, or 1. Fixed at creation.
    zookeeper_port, bookie_port : the first of consecutive ports; 0 for any free ones. For an existing
        cluster 0, or its own ports.
    root, layout : ledgers root and ledger manager (``flat``, ``hierarchical``, ``longhierarchical``) of a
        new cluster.
    http_port : the first of consecutive ports of the admin APIs of new bookies, 0 for any free ones; None for
        bookies without one. The token for changes is in ``admin-token``.
    bookie_settings : additional configuration keys for new bookies.
    start_timeout_ms : time limit of :meth:`start`.

    Examples
    --------
    >>> with LocalCluster("/tmp/bk") as cluster:  # doctest: +SKIP
    ...     print(cluster.metadata_service_uri)
    """

    #: What holds the child processes together.
    _group_class: type[GuardedProcessGroup] = GuardedProcessGroup

    def __init__(
        self,
        directory: str | Path,
        bookies: int | None = None,
        zookeepers: int | None = None,
        *,
        zookeeper_port: int = 0,
        bookie_port: int = 0,
        root: str = "/ledgers",
        layout: str = DEFAULT_LAYOUT,
        http_port: int | None = None,
        bookie_settings: Mapping[str, str] | None = None,
        start_timeout_ms: int = 60_000,
    ) -> None:
        """Raises :class:`InvalidArgumentError` for impossible values."""
        if bookies is not None and not 0 <= bookies <= MAX_BOOKIES:
            raise InvalidArgumentError(f"bookies must be from 0 to {MAX_BOOKIES}, not {bookies}")
        if zookeepers is not None and zookeepers not in _ENSEMBLE_SIZES:
            raise InvalidArgumentError(f"zookeepers must be 1 or 3, not {zookeepers}")
        if not root.startswith("/") or root.endswith("/"):
            raise InvalidArgumentError(f"ledgers root {root!r} must start with / and not end with it")
        ledger_manager(layout)
        self.directory = Path(directory).absolute()
        if "," in str(self.directory):
            raise InvalidArgumentError(
                f"directory {self.directory} has a comma in its path, which separates names in a bookie's configuration"
            )
        self.bookies: list[LocalBookie] = []
        self.zookeepers: list[LocalZooKeeper] = []
        self._wanted = (bookies, zookeepers, zookeeper_port, bookie_port)
        self._root = root
        self._layout = layout
        self._http_port = http_port
        self._bookie_settings = dict(bookie_settings or {})
        self._start_timeout_ms = start_timeout_ms
        self._lock: DirectoryLock | None = None
        self._group: GuardedProcessGroup | None = None

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def metadata_service_uri(self) -> str:
        """The URI that clients need, in Apache's syntax; known once started."""
        if not self.zookeepers:
            raise InvalidArgumentError("the local cluster was not started: call start() first")
        servers = ",".join(server.id for server in self.zookeepers)
        return str(MetadataServiceUri(servers, self._root, self._layout))

    def start(self, progress: Callable[[str], None] | None = None) -> None:
        """Start every server and wait until all are ready; ``progress`` is called at each step.

        Raises :class:`InvalidArgumentError` (port or directory in use, shape differs from the existing
        cluster), ``MetadataUnavailableError`` or ``BookieUnavailableError`` (a server did not start; the
        text has the end of its log). Nothing runs after an error.
        """
        if self._lock is not None:
            raise InvalidArgumentError(f"the local cluster in {self.directory} is already started")
        tell = progress or _LOG.info
        deadline = time.monotonic() + self._start_timeout_ms / 1000
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = DirectoryLock(self.directory)
        except OSError as error:
            raise StorageError(f"cannot use directory {self.directory}: {error}") from error
        try:
            self._group = self._group_class(self._lock.fd)
            self._make_servers(self._settle_state(), self._group)
            self._start_zookeepers(tell, deadline)
            self._start_bookies(tell, deadline)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop bookies, then ZooKeeper. Each stops cleanly within a time limit, else by SIGKILL. Safe to repeat."""
        try:
            for servers in (self.bookies, self.zookeepers):
                _stop_all(servers)
        finally:
            group, self._group = self._group, None
            lock, self._lock = self._lock, None
            if group is not None:
                group.close()
            if lock is not None:
                lock.release()

    def wait_ready(self, timeout_ms: int = 30_000) -> None:
        """Wait until the running ZooKeeper servers have a leader, and every running bookie is registered.

        Raises ``MetadataUnavailableError`` or ``BookieUnavailableError`` with the end of a log.
        """
        self._wait_ready(
            [server for server in self.zookeepers if server.running],
            [bookie for bookie in self.bookies if bookie.running],
            time.monotonic() + timeout_ms / 1000,
        )

    def heal(self, timeout_ms: int = 30_000) -> None:
        """Resume every suspended server, start every dead one, and wait until all are ready."""
        deadline = time.monotonic() + timeout_ms / 1000
        for server in (*self.zookeepers, *self.bookies):
            if server.running:
                server.resume()
            else:
                server.start()
        self._wait_ready(self.zookeepers, self.bookies, deadline)

    def _settle_state(self) -> LocalClusterState:
        """Combine the state in the directory with the requested one and save the result."""
        bookies, zookeepers, zookeeper_port, bookie_port = self._wanted
        found = load_state(self.directory)
        if found is None:
            found = LocalClusterState(self._root, self._layout, (), ())
            zookeeper_count = zookeepers or 1
        else:
            zookeeper_count = len(found.zookeepers)
            self._require_same(zookeeper_count, zookeepers, "ZooKeeper servers")
            self._require_same(found.zookeepers[0].client_port, zookeeper_port or None, "as its first ZooKeeper port")
        bookie_count = len(found.bookies) or DEFAULT_BOOKIES if bookies is None else bookies
        if bookie_count < len(found.bookies):
            raise InvalidArgumentError(
                f"the cluster in {self.directory} has {len(found.bookies)} bookies, which may all hold data; "
                f"it cannot be started with {bookie_count}"
            )
        if found.bookies and bookie_port:
            self._require_same(found.bookies[0].port, bookie_port, "as its first bookie port")
        chooser = PortChooser({bookie.port for bookie in found.bookies} | _all_ports(found.zookeepers))
        new_zookeepers = [
            ZooKeeperPorts(
                chooser.choose(zookeeper_port + index if zookeeper_port else 0), chooser.choose(), chooser.choose()
            )
            for index in range(len(found.zookeepers), zookeeper_count)
        ]
        new_bookies = [
            BookiePorts(chooser.choose(bookie_port + index if bookie_port else 0))
            for index in range(len(found.bookies), bookie_count)
        ]
        state = LocalClusterState(
            found.root, found.layout, (*found.zookeepers, *new_zookeepers), (*found.bookies, *new_bookies)
        )
        save_state(self.directory, state)
        return state

    def _require_same(self, has: int, wanted: int | None, what: str) -> None:
        if wanted is not None and wanted != has:
            raise InvalidArgumentError(
                f"the cluster in {self.directory} has {has} {what}, not {wanted}: this cannot be changed; "
                "use what it has, or another directory"
            )

    def _make_servers(self, state: LocalClusterState, group: GuardedProcessGroup) -> None:
        self._root, self._layout = state.root, state.layout
        self.zookeepers = [
            LocalZooKeeper(number, self.directory / f"zookeeper{number}", group, state.zookeepers)
            for number in range(1, len(state.zookeepers) + 1)
        ]
        self.bookies = []
        chooser = PortChooser({ports.port for ports in state.bookies} | _all_ports(state.zookeepers))
        for number, ports in enumerate(state.bookies, start=1):
            directory = self.directory / f"bookie{number}"
            settings = dict(self._bookie_settings)
            if self._http_port is not None and not (directory / CONF_NAME).exists():
                port = chooser.choose(self._http_port + number - 1 if self._http_port else 0)
                settings |= {"httpServerEnabled": "true", "httpServerHost": LOOPBACK, "httpServerPort": str(port)}
                settings["httpServerTokenFile"] = str(make_token(self.directory))
            self.bookies.append(
                LocalBookie(
                    number,
                    directory,
                    group,
                    port=ports.port,
                    metadata_service_uri=self.metadata_service_uri,
                    settings=settings,
                )
            )

    def _start_zookeepers(self, tell: Callable[[str], None], deadline: float) -> None:
        tell(f"starting ZooKeeper on {', '.join(server.id for server in self.zookeepers)}")
        for server in self.zookeepers:
            server.start()
        wait_ensemble(self.zookeepers, deadline)
        zk = self._session(deadline)
        try:
            if zk.exists(self._root) is None:
                tell(f"initialising the cluster under {self._root}, layout {self._layout}")
                init_cluster(zk, self._root, self._layout)
        finally:
            zk.close()

    def _start_bookies(self, tell: Callable[[str], None], deadline: float) -> None:
        if self.bookies:
            tell(f"starting bookies on {', '.join(bookie.id for bookie in self.bookies)}")
        for bookie in self.bookies:
            bookie.start()
        self._wait_ready(self.zookeepers, self.bookies, deadline)

    def _wait_ready(
        self, zookeepers: Sequence[LocalZooKeeper], bookies: Sequence[LocalBookie], deadline: float
    ) -> None:
        wait_ensemble(zookeepers, deadline)
        if not bookies:
            return
        zk = self._session(deadline)
        try:
            for bookie in bookies:
                bookie.wait_registered_by(zk, self._root, deadline)
        finally:
            zk.close()

    def _session(self, deadline: float) -> ZooKeeper:
        zk = ZooKeeper(",".join(server.id for server in self.zookeepers))
        zk.start(_remaining_ms(deadline))
        return zk


def _stop_all(servers: Sequence[LocalProcess]) -> None:
    for server in servers:
        server.request_stop()
    deadline = time.monotonic() + STOP_TIMEOUT_MS / 1000
    for server in servers:
        server.wait_ended(deadline)


def _remaining_ms(deadline: float) -> int:
    return max(int((deadline - time.monotonic()) * 1000), 1)


def _all_ports(zookeepers: Sequence[ZooKeeperPorts]) -> set[int]:
    return {port for peer in zookeepers for port in (peer.client_port, peer.quorum_port, peer.election_port)}


__all__ = ["LOOPBACK", "LocalBookie", "LocalCluster", "LocalZooKeeper"]
