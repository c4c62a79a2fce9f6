"""A local Kafka broker and the jars of Spark's Kafka connector: the peer of the streaming benchmarks.

One broker in KRaft mode, from Maven Central, with Kafka's own defaults: it acknowledges a write once the write is in
the page cache. Bookies sync their journals before they acknowledge. The figures therefore stand for different
guarantees, and the benchmarks say so.
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


class KafkaBroker:
    """A broker, as a context manager, with all files in ``directory``. Topics are created at first use, with
    ``partitions`` partitions."""

    def __init__(self, directory: Path, *, partitions: int = 2) -> None:
        self._directory = directory
        self._partitions = partitions
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The broker's process, while it runs."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> KafkaBroker:
        self._directory.mkdir(parents=True, exist_ok=True)
        controller = _free_port()
        properties = self._directory / "server.properties"
        properties.write_text(
            "\n".join(
                [
                    "process.roles=broker,controller",
                    "node.id=1",
                    f"controller.quorum.voters=1@127.0.0.1:{controller}",
                    f"listeners=PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{controller}",
                    f"advertised.listeners=PLAINTEXT://127.0.0.1:{self._port}",
                    "controller.listener.names=CONTROLLER",
                    "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                    f"log.dirs={self._directory / 'data'}",
                    "offsets.topic.replication.factor=1",
                    f"num.partitions={self._partitions}",
                ]
            )
        )
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        subprocess.run(
            _java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)),
            check=True,
            capture_output=True,
            timeout=_START_TIMEOUT_S,
        )
        with (self._directory / "server.log").open("wb") as output:
            self._process = subprocess.Popen(
                _java("kafka.Kafka", str(properties)), stdout=output, stderr=subprocess.STDOUT
            )
        self._wait_until_listening()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_until_listening(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                return
            except OSError:
                time.sleep(_POLL_S)
        raise RuntimeError(f"the Kafka broker did not start, see {self._directory / 'server.log'}")


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
