"""Apache's own bookies as processes on loopback, alone in a cluster or beside ours in one."""

from __future__ import annotations

import socket
import struct
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import BookieUnavailableError
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.local import LOOPBACK, LocalBookie
from bookie_server.local.process import GuardedProcessGroup
from bookie_server.local.state import DirectoryLock, PortChooser
from bookie_server.local.zookeeper import find_java
from tests.interop import jvm
from tests.interop.java_client import JavaError
from tests.interop.maven_build import harness_classpath
from tests.interop.payloads import Payloads
from tests.interop.sides import Writer
from tests.support.nursery import QuickGroup
from tests.support.registrations import forget
from tests.support.servers import BOOKIE_SETTINGS, start_timeout_ms

#: Of a stop in order, where a test is about that.
STOP_TIMEOUT_MS: Final = 60_000
_PROBE_TIMEOUT_S: Final = 1.0
_HTTP_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.05
#: To our bookies it is a key of their configuration.
JAAS: Final = "java.security.auth.login.config"
_LOG_LEVEL: Final = "-Dinterop.log.level=INFO"
#: Of our bookies: none loses its session because the machine is busy.
LASTING: Final = {**BOOKIE_SETTINGS, "zkTimeout": "30000"}
#: For tests: little memory, little disk, few threads.
_SMALL: Final = {
    "journalMaxSizeMB": "64",
    "journalPreAllocSizeMB": "4",
    "logSizeLimit": str(64 << 20),
    "skipListSizeLimit": str(8 << 20),
    "dbStorage_writeCacheMaxSizeMb": "16",
    "dbStorage_readAheadCacheMaxSizeMb": "16",
    "numReadWorkerThreads": "2",
    "numHighPriorityWorkerThreads": "2",
    "serverNumIOThreads": "2",
}
#: v2 READ (header, ledger, entry) of a ledger that nobody has: any answer shows that the bookie serves.
_PROBE: Final = struct.pack(">IIqq", 20, 2 << 24 | 2 << 16, 2**62, 0)


class ApacheBookie(LocalBookie):
    """Apache's bookie with small files and caches; starts, stops and dies as our local bookies do."""

    jvm_options: ClassVar[Sequence[str]] = jvm.SMALL_BOOKIE
    sizes: ClassVar[Mapping[str, str]] = _SMALL

    def wait_registered_by(self, zk: ZooKeeper, root: str, deadline: float) -> None:
        super().wait_registered_by(zk, root, deadline)
        # It registers shortly before it serves, and closes connections until then.
        while not self._serves():
            if not self.running or time.monotonic() > deadline:
                raise BookieUnavailableError(self.failure("Apache's bookie does not serve"), bookie_id=self.id)
            time.sleep(_POLL_S)

    def _serves(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=_PROBE_TIMEOUT_S) as connection:
                connection.sendall(_PROBE)
                return connection.recv(4) != b""
        except OSError:
            return False

    def _command(self) -> Sequence[str]:
        main = "org.apache.bookkeeper.server.Main"
        options = [*self.jvm_options, *jvm.COMMON, _LOG_LEVEL]
        if jaas := self._settings.get(JAAS):
            options.append(f"-D{JAAS}={jaas}")
        return (find_java(), *options, "-cp", harness_classpath(), main, "--conf", str(self.conf_path))

    def _defaults(self) -> dict[str, str]:
        return {
            **super()._defaults(),
            # So that no bookie loses its session because the machine is busy.
            "zkTimeout": "30000",
            "httpServerEnabled": "false",
            "enableStatistics": "false",
            "autoRecoveryDaemonEnabled": "false",
            **self.sizes,
            # A developer's disk may be nearly full without the tests needing more of it.
            "diskUsageThreshold": "0.99",
            "diskUsageWarnThreshold": "0.98",
            "diskUsageLwmThreshold": "0.98",
        }


class ShippedApacheBookie(ApacheBookie):
    """Apache's bookie with the defaults and the JVM options that it is shipped with, for benchmarks."""

    jvm_options = jvm.AS_SHIPPED
    sizes: ClassVar[Mapping[str, str]] = {}


class Bookies:
    """Bookies below ``directory``, one of each of ``kinds``, in the cluster at ``metadata_service_uri``, which
    exists; ``settings`` go into their configuration.

    A context manager; :meth:`start` also brings back those that a test stopped.
    """

    group_class: ClassVar[type[GuardedProcessGroup]] = QuickGroup

    def __init__(
        self,
        directory: Path,
        metadata_service_uri: str,
        kinds: Sequence[type[LocalBookie]],
        settings: Mapping[str, str] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = DirectoryLock(directory)
        self._group = self.group_class(self._lock.fd)
        self.metadata_service_uri = metadata_service_uri
        self._settings = dict(settings or {})
        self._directory = directory
        self._ports = PortChooser(set())
        self.bookies: list[LocalBookie] = []
        for kind in kinds:
            self._append(kind)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def change_kind(self, kind: type[LocalBookie]) -> None:
        """All go on as bookies of this kind, with their directories, ports and configurations. None may run."""
        assert not any(bookie.running for bookie in self.bookies)
        self.bookies = [
            self._bookie(kind, number, bookie.directory, bookie.port)
            for number, bookie in enumerate(self.bookies, start=1)
        ]

    def replace(self, bookie: LocalBookie, kind: type[LocalBookie]) -> LocalBookie:
        """Stop a bookie in order, and start one of this kind with its directories, port and configuration."""
        assert bookie.terminate(STOP_TIMEOUT_MS), bookie.failure("the bookie did not stop in order")
        index = self.bookies.index(bookie)
        self.bookies[index] = self._bookie(kind, index + 1, bookie.directory, bookie.port)
        self.start_one(self.bookies[index])
        return self.bookies[index]

    def add(self, kind: type[LocalBookie]) -> LocalBookie:
        """Start one more bookie, with directories of its own."""
        self._append(kind)
        self.start_one(self.bookies[-1])
        return self.bookies[-1]

    def _append(self, kind: type[LocalBookie]) -> None:
        number = len(self.bookies) + 1
        self.bookies.append(self._bookie(kind, number, self._directory / f"bookie{number}", self._ports.choose()))

    def _bookie(self, kind: type[LocalBookie], number: int, directory: Path, port: int) -> LocalBookie:
        return kind(
            number,
            directory,
            self._group,
            port=port,
            metadata_service_uri=self.metadata_service_uri,
            settings=self._settings_of(kind, port),
        )

    def _settings_of(self, kind: type[LocalBookie], port: int) -> Mapping[str, str]:
        return self._settings

    def start(self) -> None:
        """Start those that do not run, and wait until all serve."""
        self._start(self.bookies)

    def kill(self, bookie: LocalBookie) -> None:
        """Kill a bookie, and end its registration."""
        bookie.kill()
        forget(self.metadata_service_uri, [bookie.id])

    def start_one(self, bookie: LocalBookie) -> None:
        """Start a bookie, and wait until it serves. Others may stay stopped."""
        self._start([bookie])

    def _start(self, bookies: Sequence[LocalBookie]) -> None:
        deadline = time.monotonic() + start_timeout_ms() / 1000
        dead = [bookie for bookie in bookies if not bookie.running]
        forget(self.metadata_service_uri, [bookie.id for bookie in dead])
        for bookie in dead:
            bookie.start()
        uri = MetadataServiceUri.parse(self.metadata_service_uri)
        zk = ZooKeeper(uri.servers)
        zk.start(start_timeout_ms())
        try:
            for bookie in bookies:
                bookie.wait_registered_by(zk, uri.root, deadline)
        finally:
            zk.close()

    def stop(self) -> None:
        """Kill those that run: nobody looks at what they leave."""
        try:
            for bookie in self.bookies:
                bookie.kill()
        finally:
            self._group.close()
            self._lock.release()


class ApacheBookies(Bookies):
    """``count`` of Apache's bookies."""

    def __init__(
        self, directory: Path, metadata_service_uri: str, count: int, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(directory, metadata_service_uri, [ApacheBookie] * count, settings)


class JavaClientStuckError(Exception):
    """Apache's client waits though every request was answered. pyproject.toml repeats the test that meets it."""


class MixedBookies(Bookies):
    """Bookies of both kinds in one cluster."""

    def __init__(self, directory: Path, metadata_service_uri: str, *, ours: int, apaches: int) -> None:
        self._http_ports: dict[int, int] = {}
        super().__init__(directory, metadata_service_uri, [LocalBookie] * ours + [ApacheBookie] * apaches, LASTING)

    def _settings_of(self, kind: type[LocalBookie], port: int) -> Mapping[str, str]:
        if issubclass(kind, ApacheBookie):
            return self._settings
        http_port = self._http_ports.setdefault(port, self._ports.choose())
        return {**self._settings, "httpServerEnabled": "true", "httpServerPort": str(http_port)}

    def append(self, ledger: Writer, payloads: Payloads) -> None:
        """Append where a bookie may have died. Apache's client may wait for ever after it has replaced a bookie
        (apache/bookkeeper#4261, #4459): then the test is repeated. Not if a bookie of ours owes an answer."""
        try:
            ledger.append(payloads)
        except JavaError as error:
            if error.error != "TimeoutException":
                raise
            owed = {bookie.id: self._adds_in_progress(bookie) for bookie in self.ours if bookie.running}
            assert not any(owed.values()), f"bookies do not answer adds: {owed}"
            raise JavaClientStuckError(f"Apache's client waits for no bookie of ours: {owed}") from error

    def _adds_in_progress(self, bookie: LocalBookie) -> int:
        url = f"http://{LOOPBACK}:{self._http_ports[bookie.port]}/metrics"
        with urllib.request.urlopen(url, timeout=_HTTP_TIMEOUT_S) as answer:
            lines = answer.read().decode().splitlines()
        (value,) = [line.split()[1] for line in lines if line.startswith("bookkeeper_server_ADD_ENTRY_IN_PROGRESS ")]
        return int(float(value))

    @property
    def ours(self) -> list[LocalBookie]:
        return [bookie for bookie in self.bookies if not isinstance(bookie, ApacheBookie)]

    @property
    def apaches(self) -> list[LocalBookie]:
        return [bookie for bookie in self.bookies if isinstance(bookie, ApacheBookie)]
