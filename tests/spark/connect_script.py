"""A client of a Spark Connect server, in a process without a JVM: run as a script by test_connect.

Takes a JSON object as its argument, prints one as its last line. Rows are numbered.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from bk_spark.datasource.stream_metrics import StreamMetrics
from bk_spark.protocol.errors import InvalidArgumentError
from tests.support.streams import forget_last_commit

_STARTS = 5


class Client:
    """Reads and writes logs of one cluster."""

    def __init__(self, spark: SparkSession, uri: str, directory: Path) -> None:
        self._spark = spark
        self._uri = uri
        self._directory = directory

    def numbers(self, start: int, end: int) -> DataFrame:
        return self._spark.range(start, end, 1, 2).selectExpr("cast(id as string) as value")

    def write(self, frame: DataFrame, log: str, **options: object) -> None:
        writer = frame.write.format("bookkeeper").mode("append")
        writer.options(metadataServiceUri=self._uri, log=log, **options).save()

    def read(self, log: str) -> list[int]:
        reader = self._spark.read.format("bookkeeper").schema("value string, offset bigint")
        frame = reader.options(metadataServiceUri=self._uri, log=log).load()
        return [int(row.value) for row in frame.orderBy("offset").collect()]

    def rows_of_a_view(self, log: str) -> int:
        self._spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW rows USING bookkeeper OPTIONS (metadataServiceUri '{self._uri}', "
            f"log '{log}')"
        )
        (row,) = self._spark.sql("SELECT count(*) AS rows FROM rows").collect()
        return int(row.rows)

    def follow(self, log: str) -> DataFrame:
        reader = self._spark.readStream.format("bookkeeper").schema("value string")
        return reader.options(metadataServiceUri=self._uri, log=log, startingOffsets="earliest").load()

    def checkpoint(self, name: str) -> Path:
        return self._directory / name

    def copy(self, source: str, log: str) -> None:
        """From log to log by the sink, up to the present end."""
        writer = self.follow(source).writeStream.format("bookkeeper").trigger(availableNow=True)
        writer = writer.options(metadataServiceUri=self._uri, log=log, checkpointLocation=str(self.checkpoint(log)))
        assert writer.start().awaitTermination(200)

    def copy_by_batch_writes(self, source: str, log: str) -> None:
        """The same by batch writes in foreachBatch, whose function runs at the server."""
        uri = self._uri

        def write(frame: DataFrame, batch_id: int) -> None:
            writer = frame.write.format("bookkeeper").mode("append")
            writer.options(metadataServiceUri=uri, log=log, txnAppId="copy", txnVersion=batch_id).save()

        writer = self.follow(source).writeStream.foreachBatch(write).trigger(availableNow=True)
        assert _started(writer.option("checkpointLocation", str(self.checkpoint(log)))).awaitTermination(200)

    def error(self, log: str) -> str:
        try:
            self.read(log)
        except PySparkException as error:
            return str(error)
        return ""

    def error_of_counts(self) -> str:
        try:
            StreamMetrics().count_tasks(self._spark)
        except InvalidArgumentError as error:
            return str(error)
        return ""


def _started(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query with foreachBatch. Spark gives the process of the function ten seconds, on busy machines, too."""
    for _ in range(_STARTS - 1):
        try:
            return writer.start()
        except PySparkException as error:
            if "failed to connect back" not in str(error):
                raise
    return writer.start()


def main() -> None:
    given: dict[str, str] = json.loads(sys.argv[1])
    spark = SparkSession.builder.remote(given["remote"]).getOrCreate()
    client = Client(spark, given["uri"], Path(given["directory"]))
    numbers, by_sink, by_batches = (f"{given['log']}-{name}" for name in ("numbers", "sink", "batches"))
    found: dict[str, Any] = {"spark": spark.version}
    for _ in range(2):
        client.write(client.numbers(0, 500), numbers, txnAppId="numbers", txnVersion=0)
    found["view"] = client.rows_of_a_view(numbers)
    for end in (500, 700):
        if end > 500:
            client.write(client.numbers(500, end), numbers, txnAppId="numbers", txnVersion=1)
        client.copy(numbers, by_sink)
        client.copy_by_batch_writes(numbers, by_batches)
    # As if the driver had died before it noted its last batch: Spark repeats it.
    found["repeated"] = [forget_last_commit(client.checkpoint(log)) for log in (by_sink, by_batches)]
    client.copy(numbers, by_sink)
    client.copy_by_batch_writes(numbers, by_batches)
    found["rows"] = {name: client.read(f"{given['log']}-{name}") for name in ("numbers", "sink", "batches")}
    found["error"] = client.error(f"{given['log']}-none")
    found["error of counts"] = client.error_of_counts()
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
