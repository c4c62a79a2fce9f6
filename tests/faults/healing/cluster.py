"""Five bookies and two daemons of ``bookie-server autorecovery`` as processes, and one ZooKeeper.

Each process has a link to ZooKeeper of its own, a proxy. So one process can lose its session while it works on.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.local import LOOPBACK, LocalBookie
from bookie_server.local.process import STOP_TIMEOUT_MS, GuardedProcessGroup, LocalProcess
from bookie_server.local.state import DirectoryLock, PortChooser
from bookie_server.local.zookeeper import LocalZooKeeper
from tests.support.nursery import QuickCluster, QuickGroup
from tests.support.servers import BOOKIE_SETTINGS, start_timeout_ms
from tests.support.tcp_proxy import GOOD, SWALLOWING, Connects, TcpProxy

BOOKIES: Final = 5
_HEALERS: Final = 2
#: Bookies with auditor and worker inside.
_HEALING_BOOKIES: Final = (1, 2)
SESSION_TIMEOUT_MS: Final = 2_000
#: Copies take seconds, and so does the search for lost bookies, so that faults hit them.
_HEALING: Final = {
    "zkTimeout": str(SESSION_TIMEOUT_MS),
    "rwRereplicateBackoffMs": "300",
    "openLedgerRereplicationGracePeriod": "1000",
    "lockReleaseOfFailedLedgerGracePeriod": "8000",
    "replicationRateByBytes": "40000",
    "rereplicationEntryBatchSize": "25",
    "zkReplicationTaskRateLimit": "120",
    # Nothing but a check of every entry finds what a bookie missed while it was alive.
    "auditorPeriodicCheckInterval": "3",
    "auditorLedgerVerificationPercentage": "100",
    "allowLoopback": "true",
}
_BOOKIE: Final = {
    **BOOKIE_SETTINGS,
    **_HEALING,
    # Copies in excess are deleted while others are made.
    "gcWaitTime": "2000",
    "gcOverreplicatedLedgerWaitTime": "4000",
}


class Healer(LocalProcess):
    """``bookie-server autorecovery``: auditor and worker alone."""

    def __init__(self, name: str, directory: Path, group: GuardedProcessGroup, settings: Mapping[str, str]) -> None:
        super().__init__(name, directory, group, "autorecovery.log")
        self._settings = {"bookieId": name, **_HEALING, **settings}

    def _prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._conf_path.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()), "utf-8")

    def _command(self) -> Sequence[str]:
        return (sys.executable, "-m", "bookie_server", "autorecovery", "--conf", str(self._conf_path))

    @property
    def _conf_path(self) -> Path:
        return self.directory / "autorecovery.conf"


class HealingCluster:
    """A context manager. Servers are started and stopped in threads of their callers, one at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._zookeepers = QuickCluster(
            directory / "zookeeper", bookies=0, zookeepers=1, start_timeout_ms=start_timeout_ms()
        )
        self._open = ExitStack()
        #: By name: bookie ids, and names of daemons.
        self._links: dict[str, TcpProxy] = {}
        self._http_ports: dict[str, int] = {}
        # Outgoing connections take none of these ports while a bookie is down.
        self._ports = PortChooser(set())
        self.bookies: list[LocalBookie] = []
        self.healers: list[Healer] = []
        #: Bookies that are not to come back.
        self.lost: set[str] = set()
        #: Processes that got SIGSTOP.
        self.suspended: set[str] = set()

    def __enter__(self) -> HealingCluster:
        with self._open:
            self._open.enter_context(self._zookeepers)
            self._clients = self._link("clients")
            lock = DirectoryLock(self._directory)
            self._open.callback(lock.release)
            group = QuickGroup(lock.fd)
            self._open.callback(group.close)
            self._open.callback(self.stop_daemons)
            for number in range(1, BOOKIES + 1):
                self.bookies.append(self._bookie(number, group))
            for number in range(1, _HEALERS + 1):
                name = f"healer-{number}"
                uri = self._uri_of(self._link(name))
                settings = {"metadataServiceUri": uri, **self._http(name)}
                self.healers.append(Healer(name, self._directory / name, group, settings))
            for process in self.processes():
                process.start()
            self.wait_registered()
            self._open = self._open.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def _bookie(self, number: int, group: GuardedProcessGroup) -> LocalBookie:
        port = self._ports.choose()
        name = f"{LOOPBACK}:{port}"
        heals = str(number in _HEALING_BOOKIES).lower()
        return LocalBookie(
            number,
            self._directory / f"bookie{number}",
            group,
            port=port,
            metadata_service_uri=self._uri_of(self._link(name)),
            settings={**_BOOKIE, **self._http(name), "autoRecoveryDaemonEnabled": heals},
        )

    def _http(self, name: str) -> dict[str, str]:
        """Settings of the admin API."""
        self._http_ports[name] = self._ports.choose()
        return {
            "httpServerEnabled": "true",
            "httpServerHost": LOOPBACK,
            "httpServerPort": str(self._http_ports[name]),
        }

    def _link(self, name: str) -> TcpProxy:
        link = TcpProxy((LOOPBACK, self.zookeeper.port))
        self._links[name] = self._open.enter_context(link)
        return link

    def _uri_of(self, link: TcpProxy) -> str:
        return str(MetadataServiceUri(f"{link.address[0]}:{link.address[1]}", "/ledgers", "hierarchical"))

    # --- what there is ---

    @property
    def zookeeper(self) -> LocalZooKeeper:
        (server,) = self._zookeepers.zookeepers
        return server

    @property
    def uri(self) -> str:
        """For clients that work while things go wrong."""
        return self._uri_of(self._clients)

    @property
    def direct_uri(self) -> str:
        """For observers, who reach ZooKeeper as long as it runs."""
        return self._zookeepers.metadata_service_uri

    def processes(self) -> Iterator[LocalProcess]:
        """All but ZooKeeper."""
        yield from self.bookies
        yield from self.healers

    def process(self, name: str) -> LocalProcess:
        """A daemon by its name in votes: a bookie's id, or the name of a healer."""
        return next(each for each in self.processes() if self.name_of(each) == name)

    @staticmethod
    def name_of(process: LocalProcess) -> str:
        return process.id if isinstance(process, LocalBookie) else process.name

    def http_port(self, name: str) -> int:
        """The port of a process's admin API."""
        return self._http_ports[name]

    def works(self, name: str) -> bool:
        """Whether a process runs, and is not suspended."""
        return self.process(name).running and name not in self.suspended

    def daemons(self) -> set[str]:
        """The names of running processes with auditor and worker."""
        bookies = {self.bookies[number - 1].id for number in _HEALING_BOOKIES}
        names = {self.name_of(each) for each in self.processes() if each.running}
        return names & (bookies | {healer.name for healer in self.healers})

    # --- faults ---

    def lose(self, bookie: LocalBookie) -> None:
        """Kill a bookie for good."""
        self.lost.add(bookie.id)
        bookie.kill()
        self.suspended.discard(bookie.id)

    def bring_back(self, bookie: LocalBookie) -> None:
        """Start a lost bookie as it was."""
        self.lost.discard(bookie.id)
        bookie.start()

    def empty(self, bookie: LocalBookie) -> None:
        """Delete everything on the disks of a bookie that does not run."""
        for name in ("journal", "ledgers"):
            shutil.rmtree(bookie.directory / name)

    def start_again(self, name: str) -> None:
        """Start a process that was killed, unless it is lost by now or runs again."""
        process = self.process(name)
        if name not in self.lost and not process.running:
            process.start()

    def suspend(self, name: str) -> None:
        self.process(name).suspend()
        self.suspended.add(name)

    def resume(self, name: str) -> None:
        if name in self.suspended:
            self.suspended.discard(name)
            self.process(name).resume()

    def cut_off(self, name: str) -> None:
        """Let everything vanish that a process and ZooKeeper send to each other."""
        self._links[name].set(to_server=SWALLOWING, to_client=SWALLOWING)

    def reconnect(self, name: str) -> None:
        self._links[name].set(to_server=GOOD, to_client=GOOD)

    def cut_all_off(self) -> None:
        """Nobody but observers reaches ZooKeeper."""
        for link in self._links.values():
            link.set(connects=Connects.REFUSE, cut=True)

    def reconnect_all(self) -> None:
        for link in self._links.values():
            link.heal()

    def heal(self) -> None:
        """Undo everything but losses for good, and wait until every server that runs has registered."""
        self.reconnect_all()
        if self.zookeeper.running:
            self.zookeeper.resume()
        else:
            self.zookeeper.start()
        for process in self.processes():
            name = self.name_of(process)
            self.resume(name)
            self.start_again(name)
        self._zookeepers.wait_ready(start_timeout_ms())
        self.wait_registered()

    def wait_registered(self) -> None:
        """Wait until all bookies that are not lost are registered, each since its last start."""
        deadline = time.monotonic() + start_timeout_ms() / 1000
        uri = MetadataServiceUri.parse(self.direct_uri)
        zookeeper = ZooKeeper(uri.servers)
        zookeeper.start(start_timeout_ms())
        try:
            for bookie in self.bookies:
                if bookie.id not in self.lost:
                    bookie.wait_registered_by(zookeeper, uri.root, deadline)
        finally:
            zookeeper.close()

    def stop_daemons(self) -> list[str]:
        """Stop all bookies and daemons. Return the names of those that did not end in order."""
        running = [process for process in self.processes() if process.running]
        for process in running:
            process.request_stop()
        deadline = time.monotonic() + STOP_TIMEOUT_MS / 1000
        return [self.name_of(process) for process in running if not process.wait_ended(deadline) or process.exit_code]
