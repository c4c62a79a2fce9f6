"""A bookie of a local cluster as a child process with its own configuration file."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import BookieUnavailableError
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.settings.conf import read_conf
from bookie_server.local.process import GuardedProcessGroup, LocalProcess
from bookie_server.local.state import LOOPBACK, require_free_port

CONF_NAME: Final = "bk_server.conf"
_LOOPBACK_INTERFACE: Final = "lo" if sys.platform.startswith("linux") else "lo0"
#: How often a wait checks whether the process died. A watch reports the registration itself.
_LIVENESS_POLL_S: Final = 0.2


class LocalBookie(LocalProcess):
    """Bookie ``number`` (from 1). Its configuration is written once; afterwards only the user changes it.

    ``settings`` are additional keys for a new configuration.
    """

    def __init__(
        self,
        number: int,
        directory: Path,
        group: GuardedProcessGroup,
        *,
        port: int,
        metadata_service_uri: str,
        settings: Mapping[str, str],
    ) -> None:
        super().__init__(f"bookie{number}", directory, group, "bookie.log")
        self.port = port
        self._metadata_service_uri = metadata_service_uri
        self._settings = dict(settings)
        self._started_ms = 0

    @property
    def id(self) -> str:
        """The bookie's id: ``host:port``, unless its settings specify another."""
        return self._settings.get("bookieId") or f"{self._settings.get('advertisedAddress', LOOPBACK)}:{self.port}"

    @property
    def conf_path(self) -> Path:
        """Its configuration file, which ``bookie-server start --conf`` takes."""
        return self.directory / CONF_NAME

    @property
    def page(self) -> str | None:
        """The address of its page of the cluster, as its configuration says; None without one. Known once started."""
        conf = read_conf(str(self.conf_path)).texts
        if conf.get("httpServerEnabled", "").lower() != "true":
            return None
        scheme = "https" if conf.get("httpServerTlsEnable", "").lower() == "true" else "http"
        return f"{scheme}://{LOOPBACK}:{conf.get('httpServerPort') or 8080}/"

    def start(self) -> None:
        """Start the process, and note the time for :meth:`wait_registered`. Raises as :meth:`LocalProcess.start`."""
        self._started_ms = time.time_ns() // 1_000_000
        super().start()

    def wait_registered(self, timeout_ms: int = 30_000) -> None:
        """Wait until the bookie has registered as writable since its last start.

        Raises :class:`BookieUnavailableError` with the end of its log.
        """
        uri = MetadataServiceUri.parse(self._metadata_service_uri)
        deadline = time.monotonic() + timeout_ms / 1000
        with_session = ZooKeeper(uri.servers)
        with_session.start(timeout_ms)
        try:
            self.wait_registered_by(with_session, uri.root, deadline)
        finally:
            with_session.close()

    def wait_registered_by(self, zk: ZooKeeper, root: str, deadline: float) -> None:
        """Same as :meth:`wait_registered`, with an open session and a monotonic deadline in seconds."""
        changed = threading.Event()
        path = f"{root}/available/{self.id}"
        while True:
            changed.clear()
            node = zk.exists(path, watch=lambda _path: changed.set())
            # After kill -9 the registration of the previous process stays until its session expires.
            if node is not None and node.ctime_ms >= self._started_ms:
                return
            while not changed.wait(_LIVENESS_POLL_S):
                if not self.running:
                    raise BookieUnavailableError(self.failure("the bookie did not start"), bookie_id=self.id)
                read_only = zk.exists(f"{root}/available/readonly/{self.id}")
                if read_only is not None and read_only.ctime_ms >= self._started_ms:
                    raise BookieUnavailableError(self.failure("the bookie is read-only"), bookie_id=self.id)
                if time.monotonic() > deadline:
                    raise BookieUnavailableError(self.failure("the bookie did not register in time"), bookie_id=self.id)

    def _command(self) -> Sequence[str]:
        return (sys.executable, "-m", "bookie_server", "start", "--conf", str(self.conf_path))

    def _prepare(self) -> None:
        require_free_port(self.port, self.name)
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.conf_path.exists():
            return
        lines = [f"{key}={value}" for key, value in {**self._defaults(), **self._settings}.items()]
        header = "# Written once by bookie-server local; change it and start the bookie again."
        self.conf_path.write_text("\n".join([header, *lines, ""]), "utf-8")

    def _defaults(self) -> dict[str, str]:
        return {
            "metadataServiceUri": self._metadata_service_uri,
            "bookiePort": str(self.port),
            "advertisedAddress": LOOPBACK,
            "listeningInterface": _LOOPBACK_INTERFACE,
            "allowLoopback": "true",
            "journalDirectories": str(self.directory / "journal"),
            "ledgerDirectories": str(self.directory / "ledgers"),
            "flushInterval": "10000",
            # For experiments: use the disk until it is really full.
            "diskUsageThreshold": "0.999",
            "diskUsageWarnThreshold": "0.999",
            "minUsableSizeForEntryLogCreation": str(64 * 1024 * 1024),
            # A bookie that was killed and restarted registers when its old session has expired.
            "zkTimeout": "6000",
        }
