"""Local Kafka brokers and the jars of Spark's Kafka connector: the peer of benchmarks with Spark.

Brokers in KRaft mode, from Maven Central, with Kafka's own defaults: they acknowledge a write once the write is in
the page cache. Bookies sync their journals before they acknowledge. Those figures therefore stand for different
guarantees, and the benchmarks say so. With ``synced`` brokers promise what bookies do.
"""

from __future__ import annotations

import base64
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final

_PROJECT: Final = Path(__file__).parent / "kafka"
_LIBRARY: Final = _PROJECT / "target" / "lib"
_OF_SPARK: Final = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
_START_TIMEOUT_S: Final = 60.0
_BUILD_TIMEOUT_S: Final = 600
_POLL_S: Final = 0.1


def connector_jars() -> str:
    """Return the value for ``spark.jars``. Fetches the jars at first use."""
    return ",".join(str(jar) for jar in _jars() if jar.name.startswith(_OF_SPARK))


class KafkaBrokers:
    """Brokers, as a context manager, with all files in ``directory``. Topics are created at first use.

    Parameters
    ----------
    directory : for data, settings and output.
    partitions : of each topic.
    brokers : how many, and how many copies of each topic. Writes wait for a majority.
    synced : whether a broker syncs its log before it acknowledges a batch of messages.
    """

    def __init__(self, directory: Path, *, partitions: int = 2, brokers: int = 1, synced: bool = False) -> None:
        self._directory = directory
        self._ports = {number: (_free_port(), _free_port()) for number in range(1, brokers + 1)}
        self._shared = [
            "process.roles=broker,controller",
            "controller.quorum.voters=" + ",".join(f"{n}@127.0.0.1:{port}" for n, (_, port) in self._ports.items()),
            "controller.listener.names=CONTROLLER",
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "offsets.topic.replication.factor=1",
            f"default.replication.factor={brokers}",
            f"min.insync.replicas={brokers // 2 + 1}",
            f"num.partitions={partitions}",
            *(["log.flush.interval.messages=1"] if synced else []),
        ]
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port, _ in self._ports.values())

    @property
    def pids(self) -> list[int]:
        """The brokers' processes, while they run."""
        return [process.pid for process in self._processes]

    def __enter__(self) -> KafkaBrokers:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        with ExitStack() as undo:
            undo.callback(self._stop)
            for number in self._ports:
                self._start(number, cluster)
            for number, (port, _) in self._ports.items():
                self._wait_until_listening(number, port)
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _start(self, number: int, cluster: str) -> None:
        directory, (port, controller) = self._of(number), self._ports[number]
        directory.mkdir(parents=True, exist_ok=True)
        properties = directory / "server.properties"
        own = [
            f"node.id={number}",
            f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}",
            f"log.dirs={directory / 'data'}",
        ]
        properties.write_text("\n".join([*self._shared, *own]))
        subprocess.run(
            _java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)),
            check=True,
            capture_output=True,
            timeout=_START_TIMEOUT_S,
        )
        with (directory / "server.log").open("wb") as output:
            command = _java("kafka.Kafka", str(properties))
            self._processes.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT))

    def _stop(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def _of(self, number: int) -> Path:
        return self._directory / f"broker-{number}"

    def _wait_until_listening(self, number: int, port: int) -> None:
        process, deadline = self._processes[number - 1], time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                time.sleep(_POLL_S)
        raise RuntimeError(f"a Kafka broker did not start, see {self._of(number) / 'server.log'}")


def _java(main: str, *arguments: str) -> Sequence[str]:
    return ["java", "-Xmx512m", "-cp", ":".join(map(str, _jars())), main, *arguments]


def _jars() -> list[Path]:
    if not _LIBRARY.exists():
        maven = shutil.which("mvn")
        if maven is None:
            raise RuntimeError("this benchmark compares with Kafka and needs Maven (program mvn) to fetch it")
        command = [
            maven,
            "--quiet",
            "--batch-mode",
            "dependency:copy-dependencies",
            f"-DoutputDirectory={_LIBRARY}.new",
        ]
        subprocess.run(command, cwd=_PROJECT, check=True, timeout=_BUILD_TIMEOUT_S)
        Path(f"{_LIBRARY}.new").replace(_LIBRARY)
    return sorted(_LIBRARY.glob("*.jar"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
