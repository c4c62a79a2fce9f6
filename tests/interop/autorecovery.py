"""Daemons that repair ledgers, Apache's and ours, as processes beside a cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bookie_server.local import LOOPBACK
from bookie_server.local.process import GuardedProcessGroup, LocalProcess
from bookie_server.local.zookeeper import find_java
from tests.interop import jvm
from tests.interop.maven_build import harness_classpath

#: Bookies are repaired as soon as they are lost.
_SETTINGS: Final = {
    "lostBookieRecoveryDelay": "0",
    "auditorPeriodicBookieCheckInterval": "3600",
    "openLedgerRereplicationGracePeriod": "1000",
    "rwRereplicateBackoffMs": "200",
    "zkTimeout": "4000",
    "allowLoopback": "true",
    "httpServerEnabled": "false",
}


class AutoRecovery(LocalProcess):
    """Our auditor and worker: ``bookie-server autorecovery``."""

    def __init__(self, directory: Path, group: GuardedProcessGroup, uri: str, port: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(type(self).__name__, directory, group, "autorecovery.log")
        self._uri, self._port = uri, port

    @property
    def conf_path(self) -> Path:
        return self.directory / "autorecovery.conf"

    def _prepare(self) -> None:
        # The port is no more than the daemon's identity.
        keys = {"metadataServiceUri": self._uri, "bookiePort": str(self._port), "advertisedAddress": LOOPBACK}
        lines = [f"{key}={value}" for key, value in {**keys, **_SETTINGS, **self._directories()}.items()]
        self.conf_path.write_text("\n".join([*lines, ""]), "utf-8")

    def _directories(self) -> dict[str, str]:
        return {"journalDirectories": str(self.directory / "j"), "ledgerDirectories": str(self.directory / "l")}

    def _command(self) -> Sequence[str]:
        return (sys.executable, "-m", "bookie_server", "autorecovery", "--conf", str(self.conf_path))


class ApacheAutoRecovery(AutoRecovery):
    """Apache's auditor and worker in a JVM of their own."""

    def _command(self) -> Sequence[str]:
        main = "org.apache.bookkeeper.replication.AutoRecoveryMain"
        options = (*jvm.SMALL_BOOKIE, *jvm.COMMON, "-Dinterop.log.level=INFO")
        return (find_java(), *options, "-cp", harness_classpath(), main, "--conf", str(self.conf_path))
