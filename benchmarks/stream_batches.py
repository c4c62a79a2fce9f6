"""What a micro-batch costs: empty and tiny ones through our source and sink, beside rate -> noop and Kafka -> Kafka.

``triggerExecution`` of Spark's own progress reports, after a warm-up; medians. An empty batch has no rows but runs: a
filter takes them all away after the source.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.kafka_broker import KafkaBroker
from benchmarks.report import figure
from benchmarks.stream_peers import BookKeeper, Kafka, Peer, session
from bookie_server.local import LocalCluster

NAME = "stream_batches"
TINY_ROWS = 10
_WARM_UP = 10
_PARTS = ("latestOffset", "queryPlanning", "getBatch", "walCommit", "addBatch", "commitOffsets", "commitBatch")

Rows = Callable[[], DataFrame]


class StreamBatches:
    def __init__(self, spark: SparkSession, batches: int) -> None:
        self.spark = spark
        self.batches = batches
        self.medians: dict[str, float] = {}

    def measure(self, name: str, writer: DataStreamWriter, *, available_now: bool = False) -> None:
        """``available_now``: the source has just so many batches."""
        query = writer.trigger(availableNow=True).start() if available_now else writer.start()
        try:
            if available_now:
                query.awaitTermination()
            else:
                self._wait(query)
            found = [one["durationMs"] for one in query.recentProgress if "addBatch" in one["durationMs"]][_WARM_UP:]
        finally:
            query.stop()
        totals = [one["triggerExecution"] for one in found]
        parts = {part: statistics.median(one.get(part, 0) for one in found) for part in _PARTS}
        self.medians[name] = statistics.median(totals)
        figure(NAME, name, self.medians[name], "ms", fastest=min(totals), batches=len(totals), **parts)

    def ratio(self, name: str, to: str) -> None:
        figure(NAME, f"{name}.over.{to}", self.medians[name] / self.medians[to], "ratio")

    def rate(self) -> DataFrame:
        reader = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", TINY_ROWS)
        return reader.option("numPartitions", 1).load().selectExpr("cast(cast(value as string) as binary) value")

    def copied(self, peer: Peer) -> DataFrame:
        """A source with TINY_ROWS for each batch."""
        log = peer.new()
        rows = self.spark.range((self.batches + _WARM_UP) * TINY_ROWS, numPartitions=1)
        peer.fill(log, rows.selectExpr("cast(cast(id as string) as binary) value"))
        return peer.read(self.spark, log, TINY_ROWS)

    def _wait(self, query: StreamingQuery) -> None:
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            failed = query.exception()
            if failed is not None:
                raise failed
            progress = query.lastProgress
            if progress is not None and progress["batchId"] >= self.batches + _WARM_UP:
                return
            time.sleep(0.05)
        raise RuntimeError("the query is too slow")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog=f"benchmarks {NAME}", description=__doc__)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--no-kafka", action="store_true")
    parser.add_argument("--tcp", action="store_true", help="spark.python.unix.domain.socket.enabled=false")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="bk-bench-") as directory,
        LocalCluster(Path(directory) / "cluster", bookies=3) as cluster,
    ):
        spark = session(Path(directory), kafka=not options.no_kafka, unix_sockets=not options.tcp)
        bench = StreamBatches(spark, options.batches)
        ours = BookKeeper(cluster.metadata_service_uri)
        for kind, some in (("tiny", "true"), ("empty", "value is null")):
            bench.measure(f"rate_noop.{kind}", bench.rate().where(some).writeStream.format("noop"))
            bench.measure(f"rate_bookkeeper.{kind}", ours.write(bench.rate().where(some), ours.new()))
            noop = bench.copied(ours).where(some).writeStream.format("noop")
            bench.measure(f"bookkeeper_noop.{kind}", noop, available_now=True)
            both = ours.write(bench.copied(ours).where(some), ours.new())
            bench.measure(f"bookkeeper_bookkeeper.{kind}", both, available_now=True)
            for name in ("rate_bookkeeper", "bookkeeper_noop", "bookkeeper_bookkeeper"):
                bench.ratio(f"{name}.{kind}", f"rate_noop.{kind}")
        if not options.no_kafka:
            with KafkaBroker(Path(directory) / "kafka") as broker:
                theirs = Kafka(broker.bootstrap_servers)
                for kind, some in (("tiny", "true"), ("empty", "value is null")):
                    both = theirs.write(bench.copied(theirs).where(some), theirs.new())
                    bench.measure(f"kafka_kafka.{kind}", both, available_now=True)
                    bench.ratio(f"bookkeeper_bookkeeper.{kind}", f"kafka_kafka.{kind}")
        spark.stop()
