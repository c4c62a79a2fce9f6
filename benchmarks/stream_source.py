"""What a micro-batch of the streaming source costs: tiny batches (1 and 10 rows) into Spark's ``noop`` sink, and
triggers that find nothing.

Peers in the same session, in turns with ours: Spark's own ``rate-micro-batch`` source (which runs in the JVM) with as
many rows, and a source in Python that does nothing but give them: the least that any source in Python costs.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from benchmarks.report import figure
from benchmarks.spark_batch import session
from bookie_server.local import LocalCluster

NAME = "stream_source"
#: The first batches start processes and compile code.
_WARMUP_BATCHES = 5
#: Parts of a trigger, as Spark's progress names them.
_PARTS = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")


class _Least(DataSourceStreamReader):
    """Gives ``rows`` rows a batch, in one partition."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"batch": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {"batch": start["batch"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [] if start == end else [InputPartition(end["batch"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": pa.array([b"0123456789"] * self._rows, pa.binary())})


class LeastSource(DataSource):
    """The least that a source in Python does."""

    @classmethod
    def name(cls) -> str:
        return "least"

    def schema(self) -> str:
        return "value binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return _Least(int(self.options["rows"]))


class StreamSource:
    def __init__(self, spark: SparkSession, uri: str, directory: Path, batches: int) -> None:
        self._spark = spark
        self._uri = uri
        self._directory = directory
        self._batches = batches
        self._runs = 0

    def tiny(self, rows: int, rounds: int) -> None:
        """Batches of ``rows`` rows from each source, in turns."""
        log = f"tiny-{rows}"
        entries = rows * (self._batches + _WARMUP_BATCHES) * 2
        frame = self._spark.range(entries, numPartitions=1).selectExpr("cast('0123456789' as binary) as value")
        frame.write.format("bookkeeper").mode("append").options(metadataServiceUri=self._uri, log=log).save()
        ours = {"log": log, "startingOffsets": "earliest", "maxEntriesPerTrigger": rows}
        sources: dict[str, Callable[[], DataFrame]] = {
            "rate": lambda: self._stream("rate-micro-batch", rowsPerBatch=rows, numPartitions=1),
            "least_in_python": lambda: self._stream("least", rows=rows),
            "bookkeeper": lambda: self._stream("bookkeeper", metadataServiceUri=self._uri, **ours),
        }
        found: dict[str, list[Any]] = {name: [] for name in sources}
        for _ in range(rounds):
            for name, source in sources.items():
                found[name] += self._run(source())
        medians = {name: _median(batches, "triggerExecution") for name, batches in found.items()}
        for name, batches in found.items():
            parts = {part: _median(batches, part) for part in _PARTS}
            least = min(one.durationMs["triggerExecution"] for one in batches)
            figure(NAME, f"rows_{rows}.{name}", medians[name], "ms", least=least, batches=len(batches), **parts)
        for peer in ("rate", "least_in_python"):
            figure(NAME, f"rows_{rows}.bookkeeper_over_{peer}", medians["bookkeeper"] / medians[peer], "ratio")

    def idle(self, triggers: int) -> None:
        """Triggers that find nothing new; the time between two is Spark's ``pollingDelay``."""
        log = "idle"
        frame = self._spark.range(1).selectExpr("cast('0123456789' as binary) as value")
        frame.write.format("bookkeeper").mode("append").options(metadataServiceUri=self._uri, log=log).save()
        query = self._start(self._stream("bookkeeper", metadataServiceUri=self._uri, log=log))
        try:
            found: dict[str, Any] = {}
            while len(found) < triggers + _WARMUP_BATCHES:
                time.sleep(0.05)
                _raise_failure(query)
                found.update((one.timestamp, one) for one in query.recentProgress if not one.numInputRows)
        finally:
            query.stop()
        idle = [found[key] for key in sorted(found)][_WARMUP_BATCHES:]
        for part in ("triggerExecution", "latestOffset"):
            values = [one.durationMs.get(part, 0) for one in idle]
            figure(NAME, f"idle.{part}", statistics.mean(values), "ms", most=max(values), triggers=len(values))

    def _run(self, frame: DataFrame) -> list[Any]:
        """The progress of the batches after the warm-up."""
        query = self._start(frame)
        try:
            found: dict[int, Any] = {}
            while len(found) < self._batches + _WARMUP_BATCHES:
                time.sleep(0.05)
                _raise_failure(query)
                found.update((one.batchId, one) for one in query.recentProgress if one.numInputRows)
        finally:
            query.stop()
        return [found[batch] for batch in sorted(found)][_WARMUP_BATCHES:]

    def _start(self, frame: DataFrame) -> StreamingQuery:
        self._runs += 1
        writer = frame.writeStream.format("noop").trigger(processingTime="0 seconds")
        return writer.option("checkpointLocation", str(self._directory / f"checkpoint-{self._runs}")).start()

    def _stream(self, source: str, **options: Any) -> DataFrame:
        return self._spark.readStream.format(source).options(**options).load()


def _median(batches: list[Any], part: str) -> float:
    return statistics.median(one.durationMs.get(part, 0) for one in batches)


def _raise_failure(query: StreamingQuery) -> None:
    failure = query.exception()
    if failure is not None:
        raise failure


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks stream_source", description=__doc__)
    parser.add_argument("--batches", type=int, default=30, help="counted batches of each run")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each source")
    parser.add_argument("--unix-sockets", action="store_true", help="spark.python.unix.domain.socket.enabled=true")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="bk-bench-") as directory,
        LocalCluster(Path(directory) / "cluster", bookies=3) as cluster,
    ):
        spark = session(options.unix_sockets)
        spark.sparkContext.setLogLevel("ERROR")
        spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")
        # Each trigger tells of itself, also those that found nothing.
        spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "0")
        spark.dataSource.register(LeastSource)
        bench = StreamSource(spark, cluster.metadata_service_uri, Path(directory), options.batches)
        for rows in (1, 10):
            bench.tiny(rows, options.rounds)
        bench.idle(10 * options.batches)
        spark.stop()
