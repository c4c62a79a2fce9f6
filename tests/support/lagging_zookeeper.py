"""Two ZooKeeper servers of one ensemble, the second of which can be made to lag behind.

The second one is an observer: it answers reads from what it knows, and hears of changes from the first one. A proxy
between the two holds that news back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bookie_server.local.process import GuardedProcessGroup
from bookie_server.local.state import LOOPBACK, DirectoryLock, PortChooser, ZooKeeperPorts
from bookie_server.local.zookeeper import LocalZooKeeper
from tests.support.servers import start_timeout_ms
from tests.support.tcp_proxy import STALLED, TcpProxy

#: The longest that a session may have. A server that hears nothing cannot tell the other one that its sessions live.
SESSION_TIMEOUT_MS: Final = 60_000
#: So long, in ticks of half a second, the observer waits for news before it gives the first server up.
_SYNC_LIMIT_TICKS: Final = 240


class LaggingZooKeeper:
    """``first`` takes all changes, ``second`` (an observer) hears of them unless :meth:`hold_back` was called."""

    def __init__(self, first: LocalZooKeeper, second: LocalZooKeeper, news: TcpProxy) -> None:
        self.first = first
        self.second = second
        self._news = news

    def hold_back(self) -> None:
        """Let the second server hear of no change from now on."""
        self._news.set(to_client=STALLED)

    def catch_up(self) -> None:
        """Let the second server hear of everything."""
        self._news.heal()


class _Server(LocalZooKeeper):
    def __init__(
        self, number: int, directory: Path, group: GuardedProcessGroup, peers: Sequence[ZooKeeperPorts]
    ) -> None:
        super().__init__(number, directory / f"zookeeper{number}", group, peers)
        self._observes = number == 2

    def _config(self, data_directory: Path) -> str:
        lines = [line for line in super()._config(data_directory).splitlines() if not line.startswith("syncLimit=")]
        lines = [f"{line}:observer" if line.startswith("server.2=") else line for line in lines]
        lines += [f"syncLimit={_SYNC_LIMIT_TICKS}", "standaloneEnabled=false"]
        return "\n".join([*lines, *(["peerType=observer"] if self._observes else [])]) + "\n"


@contextmanager
def lagging_zookeeper(directory: Path) -> Iterator[LaggingZooKeeper]:
    """Start both, and wait until they serve clients. They end with the block."""
    ports = PortChooser(set())
    first, second = (ZooKeeperPorts(ports.choose(), ports.choose(), ports.choose()) for _ in range(2))
    lock = DirectoryLock(directory)
    group = GuardedProcessGroup(lock.fd)
    try:
        with TcpProxy((LOOPBACK, first.quorum_port)) as news:
            # The observer believes that the first server is where the proxy is.
            elsewhere = replace(first, quorum_port=news.address[1])
            servers = (
                _Server(1, directory, group, (first, second)),
                _Server(2, directory, group, (elsewhere, second)),
            )
            for server in servers:
                server.start()
            for server in servers:
                session = ZooKeeper(server.id)
                session.start(start_timeout_ms())
                session.close()
            yield LaggingZooKeeper(*servers, news)
            for server in servers:
                server.terminate()
    finally:
        group.close()
        lock.release()
