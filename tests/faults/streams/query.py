"""A streaming query as a process of its own, with real executors: run as a script by ``driver.Driver``.

Takes a JSON object as its argument. Numbered rows go from Spark's ``rate-micro-batch`` source, or from a log, into a
log. Prints the query's run. Ends with status 0 when the last batch is committed.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.support.servers import spark_session
from tests.support.streams import newest_batch, numbers, sink

_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """``source_log`` None: rows come from ``rate-micro-batch``, forever; the query is stopped after ``batches``."""

    uri: str
    log: str
    source_log: str | None
    checkpoint: str
    batches: int
    rows_per_batch: int
    partitions: int
    password: str
    #: Of each batch, at least: so that a fault has something to hit.
    trigger_ms: int = 0
    fail_on_data_loss: bool = True

    @property
    def rows(self) -> int:
        return self.batches * self.rows_per_batch


def main() -> None:
    given = json.loads(sys.argv[1])
    directory = Path(given.pop("directory"))
    master = given.pop("master")
    settings = QuerySettings(**given)
    spark = spark_session(
        directory,
        master,
        spark__executor__memory="512m",
        # One failure after another is what this is for.
        spark__task__maxFailures="8",
        spark__excludeOnFailure__enabled="false",
        spark__sql__streaming__stopTimeout="60000",
    )
    query = _start(spark, settings)
    print("run", query.runId, flush=True)
    try:
        _wait(query, settings)
    finally:
        query.stop()
        spark.stop()


def _start(spark: SparkSession, settings: QuerySettings) -> StreamingQuery:
    return sink(
        _rows(spark, settings),
        settings.uri,
        settings.log,
        Path(settings.checkpoint),
        trigger={"processingTime": f"{settings.trigger_ms} milliseconds"}
        if settings.source_log is None
        else {"availableNow": True},
        password=settings.password,
    )


def _rows(spark: SparkSession, settings: QuerySettings) -> DataFrame:
    if settings.source_log is None:
        frame = numbers(spark, settings.rows_per_batch, settings.partitions)
        return frame.selectExpr("cast(number as string) as value")
    return (
        spark.readStream.format("bookkeeper")
        .option("metadataServiceUri", settings.uri)
        .option("log", settings.source_log)
        .option("password", settings.password)
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", settings.fail_on_data_loss)
        .option("maxEntriesPerTrigger", settings.rows_per_batch)
        .option("minPartitions", settings.partitions)
        .load()
        .select("value")
    )


def _wait(query: StreamingQuery, settings: QuerySettings) -> None:
    if settings.source_log is not None:
        query.awaitTermination()
        return
    while query.isActive:
        if newest_batch(query) >= settings.batches - 1:
            return
        time.sleep(_POLL_S)
    query.awaitTermination()


if __name__ == "__main__":
    main()
