"""A local cluster whose bookies clients can reach only through proxies.

Every bookie listens on 127.0.0.1 and advertises 127.0.0.2 with the same port, where its proxy listens. So its id and
its registration name the proxy, across restarts too, and nothing in the cluster knows of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final

from bookie_server.local import LOOPBACK, LocalBookie
from tests.support.nursery import QuickCluster
from tests.support.servers import BOOKIE_SETTINGS, start_timeout_ms
from tests.support.tcp_proxy import TcpProxy

_PROXIES: Final = "127.0.0.2"


class ProxiedCluster:
    """One ZooKeeper and ``bookies`` bookies, each behind a proxy; a context manager. ``settings`` are the bookies'."""

    def __init__(self, directory: Path, bookies: int, settings: Mapping[str, str] | None = None) -> None:
        self.local = QuickCluster(
            directory,
            bookies=bookies,
            zookeepers=1,
            bookie_settings={**BOOKIE_SETTINGS, **(settings or {}), "advertisedAddress": _PROXIES},
            start_timeout_ms=start_timeout_ms(),
        )
        self.proxies: dict[str, TcpProxy] = {}
        self._open = ExitStack()

    def __enter__(self) -> ProxiedCluster:
        with self._open:
            self._open.enter_context(self.local)
            for bookie in self.local.bookies:
                proxy = TcpProxy((LOOPBACK, bookie.port), (_PROXIES, bookie.port))
                self.proxies[bookie.id] = self._open.enter_context(proxy)
            self._open = self._open.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @property
    def metadata_service_uri(self) -> str:
        return self.local.metadata_service_uri

    def bookie(self, bookie_id: str) -> LocalBookie:
        return next(one for one in self.local.bookies if one.id == bookie_id)

    def proxy(self, bookie: LocalBookie) -> TcpProxy:
        return self.proxies[bookie.id]

    def heal(self, timeout_ms: int = 60_000) -> None:
        """Make every link good, and every server running and registered."""
        for proxy in self.proxies.values():
            proxy.heal()
        self.local.heal(timeout_ms)
