"""A row written by one streaming query until a second one sees it, and how many rows a second go through; beside Kafka.

The writing query stamps each row in its task; the reading query compares the stamp with its own clock, in its task.
Small batches give the latency, large ones the rate. Kafka: one broker with its defaults (acknowledged from the page
cache); ours: three bookies, 3/3/2, acknowledged when two have synced.
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.kafka_broker import KafkaBroker
from benchmarks.report import figure
from benchmarks.stream_peers import BookKeeper, Kafka, Peer, session
from bookie_server.local import LocalCluster

NAME = "stream_latency"
_STAMP = struct.Struct(">d")
#: Of a row, with its stamp.
ROW_BYTES = 100
LATENCY_ROWS = 200
RATE_ROWS = 50_000


def stamp(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of ROW_BYTES that begin with the time, in seconds."""
    for batch in batches:
        value = _STAMP.pack(time.time()).ljust(ROW_BYTES, b".")
        yield pa.record_batch({"value": pa.repeat(pa.scalar(value, pa.binary()), batch.num_rows)})


def age(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """How old each row is now, in milliseconds."""
    for batch in batches:
        now = time.time()
        stamps = [_STAMP.unpack_from(one)[0] for one in batch.column("value").to_pylist()]
        yield pa.record_batch({"age_ms": pa.array((now - np.array(stamps)) * 1000)})


class StreamLatency:
    def __init__(self, spark: SparkSession, seconds: float) -> None:
        self.spark = spark
        self.seconds = seconds

    def measure(self, peer: Peer) -> tuple[float, float, float]:
        """p50 and p99 of the small batches in ms, rows a second of the large ones."""
        ages, _ = self._run(peer, LATENCY_ROWS)
        p50, p99 = (float(np.percentile(ages, at)) for at in (50, 99))
        figure(NAME, f"{peer.name}.latency_p50", p50, "ms", rows=len(ages))
        figure(NAME, f"{peer.name}.latency_p99", p99, "ms")
        ages, seconds = self._run(peer, RATE_ROWS)
        rate = len(ages) / seconds
        figure(NAME, f"{peer.name}.rate", rate, "rows/s", latency_p50_ms=round(float(np.percentile(ages, 50)), 1))
        return p50, p99, rate

    def _run(self, peer: Peer, rows_per_batch: int) -> tuple[np.ndarray, float]:
        """Ages of all rows seen after a warm-up, and the seconds it took to see them."""
        log = peer.new()
        rows = self.spark.range(1).selectExpr("cast(cast(id as string) as binary) as value")
        peer.fill(log, rows.mapInArrow(stamp, "value binary"))
        written = self._numbers(rows_per_batch).mapInArrow(stamp, "value binary")
        writing = peer.write(written, log).start()
        name = f"ages_{log.replace('-', '_')}"
        seen = peer.read(self.spark, log).mapInArrow(age, "age_ms double")
        reading = seen.writeStream.format("memory").queryName(name).start()
        try:
            self._wait_for_batches(reading, 8)
            first = self.spark.table(name).count()
            started = time.monotonic()
            while time.monotonic() - started < self.seconds:
                for query in (writing, reading):
                    if query.exception() is not None:
                        raise query.exception()  # type: ignore[misc]
                time.sleep(0.1)
            ages = np.array(self.spark.table(name).toPandas()["age_ms"][first:])
            return ages, time.monotonic() - started
        finally:
            writing.stop()
            reading.stop()
            self.spark.sql(f"drop view if exists {name}")

    def _numbers(self, rows_per_batch: int) -> DataFrame:
        reader = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows_per_batch)
        return reader.option("numPartitions", 2).load()

    def _wait_for_batches(self, query: object, count: int) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            progress = query.lastProgress  # type: ignore[attr-defined]
            if progress is not None and progress["batchId"] >= count:
                return
            time.sleep(0.05)
        raise RuntimeError(f"the reading query did not come to batch {count}: {query}")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog=f"benchmarks {NAME}", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--no-kafka", action="store_true")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="bk-bench-") as directory,
        LocalCluster(Path(directory) / "cluster", bookies=3) as cluster,
    ):
        spark = session(Path(directory), kafka=not options.no_kafka)
        bench = StreamLatency(spark, options.seconds)
        ours = bench.measure(BookKeeper(cluster.metadata_service_uri))
        if not options.no_kafka:
            with KafkaBroker(Path(directory) / "kafka") as broker:
                theirs = bench.measure(Kafka(broker.bootstrap_servers))
            for name, our, their in zip(("latency_p50", "latency_p99", "rate"), ours, theirs, strict=True):
                figure(NAME, f"{name}.over_kafka", our / their, "ratio")
        spark.stop()
