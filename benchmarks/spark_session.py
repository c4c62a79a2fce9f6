"""The Spark session of the benchmarks: local, with two cores."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.kafka_broker import connector_jars


def session(
    directory: Path, *, kafka: bool = False, unix_sockets: bool = False, reuses_workers: bool = True
) -> SparkSession:
    """Start a session. A context manager.

    Parameters
    ----------
    directory : for checkpoints and all other files.
    kafka : whether to load Spark's Kafka connector.
    unix_sockets : whether the JVM and Python communicate over Unix sockets; Spark's default is TCP.
    reuses_workers : whether a Python process runs one task after the other, as by default.
    """
    # Spark's workers must use the Python that runs this.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "3g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": 2,
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.streaming.checkpointLocation": str(directory / "checkpoints"),
        "spark.sql.streaming.numRecentProgressUpdates": 10_000,
        "spark.python.unix.domain.socket.enabled": unix_sockets,
        "spark.python.worker.reuse": reuses_workers,
    }
    if kafka:
        settings["spark.jars"] = connector_jars()
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
