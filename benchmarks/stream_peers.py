"""What the streaming benchmarks stream through: our log, Kafka, or nothing."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.kafka_broker import connector_jars


class Peer(Protocol):
    """A kind of log: ``new`` makes one, and rows ``value`` go into it and come out of it."""

    name: str

    def new(self) -> str: ...
    def fill(self, log: str, rows: DataFrame) -> None: ...
    def read(self, spark: SparkSession, log: str, rows_per_trigger: int | None = None) -> DataFrame: ...
    def write(self, rows: DataFrame, log: str) -> DataStreamWriter: ...


class BookKeeper:
    name = "bookkeeper"

    def __init__(self, metadata_service_uri: str) -> None:
        self._uri = metadata_service_uri

    def new(self) -> str:
        return f"bench-{uuid.uuid4().hex[:12]}"

    def fill(self, log: str, rows: DataFrame) -> None:
        rows.write.format("bookkeeper").mode("append").options(metadataServiceUri=self._uri, log=log).save()

    def read(self, spark: SparkSession, log: str, rows_per_trigger: int | None = None) -> DataFrame:
        reader = spark.readStream.format("bookkeeper").option("startingOffsets", "earliest")
        reader = reader.options(metadataServiceUri=self._uri, log=log)
        if rows_per_trigger is not None:
            reader = reader.option("maxEntriesPerTrigger", rows_per_trigger)
        return reader.load().select("value")

    def write(self, rows: DataFrame, log: str) -> DataStreamWriter:
        return rows.writeStream.format("bookkeeper").options(metadataServiceUri=self._uri, log=log)


class Kafka:
    """Topics of two partitions."""

    name = "kafka"

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers

    def new(self) -> str:
        return f"bench-{uuid.uuid4().hex[:12]}"

    def fill(self, log: str, rows: DataFrame) -> None:
        rows.write.format("kafka").option("kafka.bootstrap.servers", self._servers).option("topic", log).save()

    def read(self, spark: SparkSession, log: str, rows_per_trigger: int | None = None) -> DataFrame:
        reader = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._servers)
            .option("subscribe", log)
            .option("startingOffsets", "earliest")
        )
        if rows_per_trigger is not None:
            reader = reader.option("maxOffsetsPerTrigger", rows_per_trigger)
        return reader.load().select("value")

    def write(self, rows: DataFrame, log: str) -> DataStreamWriter:
        writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", self._servers)
        return writer.option("topic", log)


def session(directory: Path, *, kafka: bool = True, unix_sockets: bool = True, **conf: str) -> SparkSession:
    """Two cores, checkpoints and all other files in ``directory``; ``conf`` keys with ``__`` for each dot."""
    builder = SparkSession.builder.master("local[2]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "3g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.streaming.checkpointLocation": str(directory / "checkpoints"),
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.python.unix.domain.socket.enabled": str(unix_sockets).lower(),
        **{key.replace("__", "."): value for key, value in conf.items()},
    }
    if kafka:
        settings["spark.jars"] = connector_jars()
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
