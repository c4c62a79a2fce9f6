"""How tests start servers and Spark."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.ready_worker import make_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Small files and short waits: tests see files flushed, and killed bookies come back soon.
BOOKIE_SETTINGS = {"journalPreAllocSizeMB": "1", "flushInterval": "1000", "zkTimeout": "4000"}
#: Bookies that serve gRPC, too, on any port.
WITH_GRPC = {"grpcServerEnabled": "true", "grpcServerPort": "0"}

#: Sessions of tests are short: compiling for speed takes half of their time, and gains nothing.
_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr"
#: Created by ``make`` (see class_archive.py). Without it sessions only start more slowly.
_CLASS_ARCHIVE = Path(sys.prefix) / "spark.jsa"
#: The same for ZooKeeper.
ZOOKEEPER_ARCHIVE = Path(sys.prefix) / "zookeeper.jsa"
ZOOKEEPER_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

_REPOSITORY = Path(__file__).resolve().parents[2]


def start_timeout_ms() -> int:
    """Generous, because other work may share two cores."""
    return 120_000


def jvm_options() -> str:
    """Options for the JVMs of Spark that tests start."""
    return _JVM_OPTIONS + (f" -XX:SharedArchiveFile={_CLASS_ARCHIVE}" if _CLASS_ARCHIVE.exists() else "")


def spark_environment() -> dict[str, str]:
    """For processes that create their own sessions: Spark passes these options to the JVMs of all drivers."""
    return {**os.environ, "SPARK_SUBMIT_OPTS": jvm_options()}


def spark_session(
    directory: Path, master: str = "local[2]", *, archive_at_exit: Path | None = None, **conf: str
) -> SparkSession:
    """A new session that writes all its files to ``directory``; ``conf`` keys with ``__`` for each dot. With
    ``archive_at_exit`` its JVM leaves an archive of its classes there."""
    from pyspark.sql import SparkSession

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = make_python(directory)
    options = jvm_options()
    if archive_at_exit is not None:
        options = f"{_JVM_OPTIONS} -XX:ArchiveClassesAtExit={archive_at_exit}"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": options,
        "spark.executor.extraJavaOptions": options,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        # Workers import functions of test modules by name.
        "spark.executorEnv.PYTHONPATH": str(_REPOSITORY),
        "spark.log.level": "WARN",
        **{key.replace("__", "."): value for key, value in conf.items()},
    }
    builder = SparkSession.builder.master(master).appName("bk_spark tests")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
