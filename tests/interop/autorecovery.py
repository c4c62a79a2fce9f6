"""Daemons that repair ledgers, Apache's and ours, as processes beside a cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final

from bookie_server.local import LOOPBACK
from bookie_server.local.process import GuardedProcessGroup, LocalProcess
from bookie_server.local.state import DirectoryLock
from bookie_server.local.zookeeper import find_java
from tests.interop import jvm
from tests.interop.maven_build import harness_classpath
from tests.support.nursery import QuickGroup

#: Bookies are repaired as soon as they are lost, unless a test says otherwise.
_SETTINGS: Final = {
    "lostBookieRecoveryDelay": "0",
    "auditorPeriodicBookieCheckInterval": "3600",
    "openLedgerRereplicationGracePeriod": "1000",
    "rwRereplicateBackoffMs": "200",
    "allowLoopback": "true",
    "httpServerEnabled": "false",
}
_STOP_TIMEOUT_S: Final = 60.0


class AutoRecovery(LocalProcess):
    """Our auditor and worker: ``bookie-server autorecovery``."""

    #: A new auditor of ours waits for two of them.
    session_timeout_ms: ClassVar[int] = 4_000

    def __init__(
        self,
        directory: Path,
        group: GuardedProcessGroup,
        uri: str,
        port: int,
        settings: Mapping[str, str] = _SETTINGS,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(type(self).__name__, directory, group, "autorecovery.log")
        self._uri, self._port, self._settings = uri, port, settings

    @property
    def conf_path(self) -> Path:
        return self.directory / "autorecovery.conf"

    def _prepare(self) -> None:
        # The port is no more than the daemon's identity.
        keys = {"metadataServiceUri": self._uri, "bookiePort": str(self._port), "advertisedAddress": LOOPBACK}
        keys["zkTimeout"] = str(self.session_timeout_ms)
        lines = [f"{key}={value}" for key, value in {**keys, **self._settings, **self._directories()}.items()]
        self.conf_path.write_text("\n".join([*lines, ""]), "utf-8")

    def _directories(self) -> dict[str, str]:
        return {"journalDirectories": str(self.directory / "j"), "ledgerDirectories": str(self.directory / "l")}

    def _command(self) -> Sequence[str]:
        return (sys.executable, "-m", "bookie_server", "autorecovery", "--conf", str(self.conf_path))


class ApacheAutoRecovery(AutoRecovery):
    """Apache's auditor and worker in a JVM of their own."""

    #: It ends with its session, which it must not lose because the machine is busy.
    session_timeout_ms = 30_000
    jvm_options: ClassVar[Sequence[str]] = jvm.SMALL_BOOKIE

    def _command(self) -> Sequence[str]:
        main = "org.apache.bookkeeper.replication.AutoRecoveryMain"
        options = (*self.jvm_options, *jvm.COMMON, "-Dinterop.log.level=INFO")
        return (find_java(), *options, "-cp", harness_classpath(), main, "--conf", str(self.conf_path))


class ShippedApacheAutoRecovery(ApacheAutoRecovery):
    """Apache's daemon with the JVM options that it is shipped with, for benchmarks."""

    jvm_options = jvm.AS_SHIPPED


@contextmanager
def daemons_of(
    kinds: Sequence[type[AutoRecovery]], directory: Path, uri: str, settings: Mapping[str, str] | None = None
) -> Iterator[list[AutoRecovery]]:
    """Run these daemons, with ``settings`` in their configuration. At the end ours must stop in order,
    and Apache's are killed."""
    directory.mkdir()
    lock = DirectoryLock(directory)
    group = QuickGroup(lock.fd)
    merged = {**_SETTINGS, **(settings or {})}
    daemons = [
        kind(directory / f"daemon{number}", group, uri, 4100 + number, merged) for number, kind in enumerate(kinds)
    ]
    try:
        for daemon in daemons:
            daemon.start()
        yield daemons
        ours = [daemon for daemon in daemons if type(daemon) is AutoRecovery]
        for daemon in ours:
            daemon.request_stop()
        for daemon in ours:
            daemon.wait_ended(time.monotonic() + _STOP_TIMEOUT_S)
            assert daemon.exit_code == 0, daemon.failure("the daemon did not stop in order")
    finally:
        for daemon in daemons:
            if daemon.running:
                daemon.kill()
        group.close()
        lock.release()
