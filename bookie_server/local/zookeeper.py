"""A real ZooKeeper server as a child process, run from the jars inside pyspark."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bk_spark.protocol.errors import MetadataUnavailableError
from bookie_server.local.process import GuardedProcessGroup, LocalProcess
from bookie_server.local.state import LOOPBACK, ZooKeeperPorts, require_free_port

_MAIN_CLASS: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
#: The jars that a server needs. The several hundred others in pyspark stay off its class path.
_JARS: Final = (
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "log4j-slf4j2-impl",
    "log4j-api",
    "log4j-core",
    "metrics-core",
    "snappy-java",
)
_JVM_OPTIONS: Final = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.net.preferIPv4Stack=true",
    "-Dzookeeper.jmx.log4j.disable=true",
)
#: Short ticks shorten the minimum session timeout (two ticks), which fault tests need.
_TICK_MS: Final = 500
_MIN_SESSION_TIMEOUT_MS: Final = 1_000
_MAX_SESSION_TIMEOUT_MS: Final = 60_000
#: In ticks. Generous, because all servers share one busy machine.
_INIT_LIMIT_TICKS: Final = 60
_SYNC_LIMIT_TICKS: Final = 20
_POLL_S: Final = 0.05
_PROBE_TIMEOUT_S: Final = 2.0
_PROBE_ANSWER_BYTES: Final = 4_096
_MODE: Final = re.compile(r"^Mode: (standalone|leader|follower)$", re.MULTILINE)
_LEADING: Final = frozenset({"standalone", "leader"})

_LOG4J: Final = """\
status = error
name = zookeeper
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %-5p [%t] %c{{1}}: %m%n
appender.file.policies.type = SizeBasedTriggeringPolicy
appender.file.policies.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
"""


class LocalZooKeeper(LocalProcess):
    """Server ``number`` (from 1) of an ensemble with ``peers`` (in order, itself included).

    It listens on loopback only. As always in ZooKeeper, a transaction is on disk before it is answered.
    """

    def __init__(
        self, number: int, directory: Path, group: GuardedProcessGroup, peers: Sequence[ZooKeeperPorts]
    ) -> None:
        super().__init__(f"zookeeper{number}", directory, group, "server.log")
        self._number = number
        self._peers = tuple(peers)
        self._ports = peers[number - 1]

    @property
    def id(self) -> str:
        """``host:port`` for clients."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def port(self) -> int:
        """Client port."""
        return self._ports.client_port

    def mode(self) -> str | None:
        """``standalone``, ``leader`` or ``follower``; None while the server does not serve clients."""
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=_PROBE_TIMEOUT_S) as connection:
                connection.sendall(b"srvr")
                answer = b""
                while len(answer) < _PROBE_ANSWER_BYTES and (part := connection.recv(_PROBE_ANSWER_BYTES)):
                    answer += part
        except OSError:
            return None
        found = _MODE.search(answer.decode(errors="replace"))
        return found[1] if found else None

    def wait_ready(self, timeout_ms: int = 30_000) -> None:
        """Wait until the server serves clients. Raises the errors of :func:`wait_ensemble`."""
        wait_ensemble([self], time.monotonic() + timeout_ms / 1000, leader=False)

    def _command(self) -> Sequence[str]:
        return (
            find_java(),
            *_JVM_OPTIONS,
            f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}",
            "-cp",
            os.pathsep.join(map(str, zookeeper_jars())),
            _MAIN_CLASS,
            str(self.directory / "zoo.cfg"),
        )

    def _output_path(self) -> Path:
        return self.directory / "server.out"

    def _working_directory(self) -> Path:
        return self.directory

    def _prepare(self) -> None:
        ports = [self._ports.client_port]
        if len(self._peers) > 1:
            ports += [self._ports.quorum_port, self._ports.election_port]
        for port in ports:
            require_free_port(port, self.name)
        data_directory = self.directory / "data"
        data_directory.mkdir(parents=True, exist_ok=True)
        (data_directory / "myid").write_text(f"{self._number}\n", "ascii")
        (self.directory / "zoo.cfg").write_text(self._config(data_directory), "utf-8")
        (self.directory / "log4j2.properties").write_text(_LOG4J.format(log=self.log_path), "utf-8")

    def _config(self, data_directory: Path) -> str:
        lines = [
            f"dataDir={data_directory}",
            f"clientPort={self._ports.client_port}",
            f"clientPortAddress={LOOPBACK}",
            f"tickTime={_TICK_MS}",
            f"minSessionTimeout={_MIN_SESSION_TIMEOUT_MS}",
            f"maxSessionTimeout={_MAX_SESSION_TIMEOUT_MS}",
            "admin.enableServer=false",
            "4lw.commands.whitelist=ruok,srvr,mntr",
            "autopurge.snapRetainCount=3",
            "autopurge.purgeInterval=1",
            "preAllocSize=4096",
        ]
        if len(self._peers) > 1:
            lines += [f"initLimit={_INIT_LIMIT_TICKS}", f"syncLimit={_SYNC_LIMIT_TICKS}"]
            lines += [
                f"server.{number}={LOOPBACK}:{peer.quorum_port}:{peer.election_port}"
                for number, peer in enumerate(self._peers, start=1)
            ]
        return "\n".join(lines) + "\n"


def wait_ensemble(servers: Sequence[LocalZooKeeper], deadline: float, *, leader: bool = True) -> None:
    """Wait until all ``servers`` serve clients and, with ``leader``, one of them leads (or is standalone).

    Without the second condition, a follower that has not yet noticed the death of its leader could count as
    ready. Raises :class:`MetadataUnavailableError` with the end of a log if a server died or the monotonic
    ``deadline`` (s) passed.
    """
    while True:
        modes = [server.mode() for server in servers]
        if None not in modes and (not leader or not _LEADING.isdisjoint(modes)):
            return
        for server in servers:
            if not server.running:
                raise MetadataUnavailableError(server.failure("ZooKeeper does not run"))
        if time.monotonic() > deadline:
            late = servers[modes.index(None) if None in modes else 0]
            raise MetadataUnavailableError(late.failure("ZooKeeper was not ready in time"))
        time.sleep(_POLL_S)


def find_java() -> str:
    """Path of ``java``: under ``JAVA_HOME``, else on ``PATH``. Raises :class:`MetadataUnavailableError`."""
    home = os.environ.get("JAVA_HOME")
    if home and (java := shutil.which("java", path=os.path.join(home, "bin"))):
        return java
    if java := shutil.which("java"):
        return java
    raise MetadataUnavailableError(
        "no java program in JAVA_HOME or on PATH, and ZooKeeper needs Java 17 or newer; "
        "install it (on Debian or Ubuntu: apt-get install openjdk-17-jre-headless)"
    )


def zookeeper_jars() -> list[Path]:
    """The jars a server needs, from pyspark. Raises :class:`MetadataUnavailableError` if one is missing."""
    # Found without an import: importing pyspark takes a second, and this package does not use it.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise MetadataUnavailableError(
            "a local ZooKeeper runs from the jars in PySpark, which is not installed: pip install 'bk-spark[spark]', "
            "or use a ZooKeeper that you have, with bookie-server init and start"
        )
    directory = Path(spec.submodule_search_locations[0]) / "jars"
    jars = []
    for name in _JARS:
        found = sorted(jar for jar in directory.glob(f"{name}-*.jar") if jar.name[len(name) + 1].isdecimal())
        if not found:
            raise MetadataUnavailableError(
                f"no {name} jar in {directory}; pip install --force-reinstall 'bk-spark[spark]'"
            )
        jars.append(found[-1])
    return jars
