"""Logs used by the streaming benchmarks, ours or Kafka's, and the source of their rows."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter


class Peer(Protocol):
    """A kind of log. ``new`` creates one; rows ``value`` are written to it and read from it."""

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
        options = {"metadataServiceUri": self._uri, "log": log, "entryFormat": "raw"}
        rows.write.format("bookkeeper").mode("append").options(**options).save()

    def read(self, spark: SparkSession, log: str, rows_per_trigger: int | None = None) -> DataFrame:
        reader = spark.readStream.format("bookkeeper").option("startingOffsets", "earliest")
        reader = reader.options(metadataServiceUri=self._uri, log=log)
        if rows_per_trigger is not None:
            reader = reader.option("maxEntriesPerTrigger", rows_per_trigger)
        return reader.load().select("value")

    def write(self, rows: DataFrame, log: str) -> DataStreamWriter:
        writer = rows.writeStream.format("bookkeeper")
        return writer.options(metadataServiceUri=self._uri, log=log, entryFormat="raw")


class Kafka:
    """Kafka. The broker determines the number of a topic's partitions."""

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


def rate(spark: SparkSession, rows_per_batch: int, tasks: int) -> DataFrame:
    """Return endless numbers as ``value``, in decimal digits, from ``rate-micro-batch``, as fast as Spark asks."""
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows_per_batch)
    return reader.option("numPartitions", tasks).load().selectExpr("cast(cast(value as string) as binary) as value")


def last_batch(query: StreamingQuery) -> int:
    """Return the last batch that the query reported, -1 for none."""
    progress = query.lastProgress
    return -1 if progress is None else progress.batchId


def wait_until(holds: Callable[[], bool], *queries: StreamingQuery, timeout_s: float = 600) -> None:
    """Wait until ``holds()``. Raises the error of a failed query, and RuntimeError on timeout."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        for query in queries:
            failure = query.exception()
            if failure is not None:
                raise failure
        if time.monotonic() > deadline:
            raise RuntimeError(f"the queries did not come so far within {timeout_s} s")
        time.sleep(0.05)
