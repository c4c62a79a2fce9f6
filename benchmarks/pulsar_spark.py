"""The Spark connector of Pulsar's makers (pulsar-spark) as a peer, in a Spark of its own.

pulsar-spark 3.1.1.4 is the newest release of it for Scala 2.12 that Maven Central has. It reads with Spark 3.5 in one
task for each topic, through the broker. That Spark is the newest with Scala 2.12, and not the one that this project
runs with. Its JVM therefore has a process of its own, which does one query at a time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

_SPARK: Final = "3.5"
_ARTIFACT: Final = "pulsar-spark-connector_2.12"
_VERSION: Final = "3.1.1.4"
_FETCH_TIMEOUT_S: Final = 600
_STOP_TIMEOUT_S: Final = 60
#: What Spark 3.5 itself opens, and what Pulsar's client in the connector needs.
_OPENED: Final = (
    "java.nio",
    "sun.nio.ch",
    "java.lang",
    "java.util",
    "java.lang.invoke",
    "java.net",
    "sun.util.calendar",
)


class PulsarSpark:
    """Spark with the connector; a context manager. Fetches both at first use (450 MB).

    Parameters
    ----------
    directory : for Spark's files and its output.
    service_url, admin_url : the broker's addresses, as ``pulsar://127.0.0.1:6650`` and ``http://127.0.0.1:8080``.
    """

    def __init__(self, directory: Path, service_url: str, admin_url: str) -> None:
        # The process of the queries imports this module, and has no packages of tests.
        from tests.support.sparks import python_with_spark

        python = python_with_spark(_SPARK)
        jar = _connector(Path(python).parents[1])
        self._log = (directory / "pulsar-spark.log").open("wb")
        self._process = subprocess.Popen(
            [python, str(Path(__file__)), str(jar), str(directory / "pulsar-spark"), service_url, admin_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def count(self, topic: str) -> int:
        """Return the number of messages of a topic."""
        return int(self._ask(topic=topic, columns=["value"], counts=True)["rows"])

    def read(self, topic: str, columns: Sequence[str]) -> tuple[float, float]:
        """Read all messages of a topic into Spark's ``noop`` sink. Returns seconds, and seconds of processor time of
        Spark's JVM."""
        found = self._ask(topic=topic, columns=columns, counts=False)
        return found["elapsed_s"], found["cpu_s"]

    def _ask(self, **query: object) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(query) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the Spark with pulsar-spark ended:\n" + Path(self._log.name).read_text("utf-8")[-2000:])
        return dict(json.loads(line))

    def __enter__(self) -> PulsarSpark:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        finally:
            self._process.kill()
            self._process.stdout.close()
            self._log.close()


def _connector(environment: Path) -> Path:
    jar = environment / f"{_ARTIFACT}-{_VERSION}.jar"
    if not jar.exists():
        artifact = f"io.streamnative.connectors:{_ARTIFACT}:{_VERSION}"
        fetched = environment / "fetched"
        command = ["mvn", "--batch-mode", "--quiet", "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"]
        command += [f"-Dartifact={artifact}", f"-DoutputDirectory={fetched}"]
        subprocess.run(command, check=True, timeout=_FETCH_TIMEOUT_S, stdout=sys.stderr)
        (fetched / jar.name).rename(jar)
        shutil.rmtree(fetched)
    return jar


def _serve(jar: str, directory: str, service_url: str, admin_url: str) -> None:
    """Answer one query a line, until the input ends."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    opened = " ".join(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED)
    settings: dict[str, Any] = {
        "spark.jars": jar,
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "3g",
        "spark.driver.extraJavaOptions": opened,
        "spark.local.dir": f"{directory}/local",
        "spark.sql.warehouse.dir": f"{directory}/warehouse",
    }
    with SparkSession.builder.master("local[2]").config(map=settings).getOrCreate() as spark:
        spark.sparkContext.setLogLevel("ERROR")
        gateway = SparkContext._gateway
        assert gateway is not None
        stat = Path(f"/proc/{gateway.proc.pid}/stat")
        of = {"service.url": service_url, "admin.url": admin_url, "startingOffsets": "earliest"}
        for line in sys.stdin:
            query = json.loads(line)
            began, cpu_began = time.perf_counter(), _cpu_s(stat)
            frame = spark.read.format("pulsar").options(**of, topic=query["topic"]).load().select(*query["columns"])
            if query["counts"]:
                found: dict[str, float] = {"rows": frame.count()}
            else:
                frame.write.format("noop").mode("overwrite").save()
                found = {"elapsed_s": time.perf_counter() - began, "cpu_s": _cpu_s(stat) - cpu_began}
            print(json.dumps(found), flush=True)


def _cpu_s(stat: Path) -> float:
    fields = stat.read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    _serve(*sys.argv[1:])
