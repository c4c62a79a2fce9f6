"""Servers of Spark as processes of their own: a Spark Connect server, and a standalone cluster."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyspark

from bk_spark.datasource.spark_versions import minor_version
from tests.support.environments import REPOSITORY, environment_variables
from tests.support.ready_worker import make_python
from tests.support.servers import jvm_options

SPARK_HOME: Final = Path(pyspark.__file__).parent
_START_TIMEOUT_S: Final = 180
_STOP_TIMEOUT_S: Final = 60


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def variables(directory: Path, **more: str) -> dict[str, str]:
    """Variables of a server, whose files go to ``directory``."""
    own = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_DIRS": str(directory / "local")}
    return environment_variables(**own, **more)


@contextmanager
def server(command: list[str], directory: Path, environment: Mapping[str, str], port: int) -> Iterator[None]:
    """Run ``command`` until the end of the block, which begins when it listens on ``port``."""
    output = directory / f"{port}.log"
    with output.open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_for(process, port, output)
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_TIMEOUT_S)


def _wait_for(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert process.poll() is None, output.read_text(errors="replace")[-5000:]
        assert time.monotonic() < deadline, output.read_text(errors="replace")[-5000:]
        time.sleep(0.1)


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """A Spark Connect server of two cores. Returns its address for ``SparkSession.builder.remote``."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": jvm_options(),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    if minor_version(pyspark.__version__) == (4, 0):
        # See docs/limitations.md.
        settings["spark.python.worker.reuse"] = "false"
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    python = make_python(directory)
    more = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "PYTHONPATH": str(REPOSITORY)}
    with server([*command, "spark-internal"], directory, variables(directory, **more), port):
        yield f"sc://127.0.0.1:{port}"


@contextmanager
def standalone_cluster(directory: Path) -> Iterator[str]:
    """A master and a worker of two cores, whose Python has no package. Returns the address for ``--master``."""
    port, workers_port = free_port(), free_port()
    master = f"spark://127.0.0.1:{port}"
    environment = variables(directory, SPARK_DAEMON_JAVA_OPTS=jvm_options())
    deploy = "org.apache.spark.deploy"
    own = ["--host", "127.0.0.1", "--webui-port", "0", "--port"]
    size = ["--cores", "2", "--memory", "1g", "--work-dir", str(directory / "work")]
    run = str(SPARK_HOME / "bin" / "spark-class")
    masters = [run, f"{deploy}.master.Master", *own, str(port)]
    workers = [run, f"{deploy}.worker.Worker", *own, str(workers_port), *size, master]
    with server(masters, directory, environment, port), server(workers, directory, environment, workers_port):
        yield master
