"""Measures the latency of rows from one streaming query to another, and rows per second. Compares with Kafka.

The writing query stamps each row in its task. The reading query compares the stamp with its own clock, in its task.
Small batches give the latency, large ones the rate. Kafka: one broker with its defaults (acknowledged from the page
cache), topics of two partitions. Ours: three bookies, 3/3/2, acknowledged when two have synced.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.kafka_broker import KafkaBrokers
from benchmarks.report import figure
from benchmarks.spark_session import session
from benchmarks.stream_peers import BookKeeper, Kafka, Peer, last_batch, rate, wait_until
from bookie_server.local import LocalCluster

NAME: Final = "stream_latency"
LATENCY_ROWS: Final = 200
RATE_ROWS: Final = 50_000
#: A row: its stamp in seconds of Unix time, padded to 100 bytes.
_ROW: Final = np.dtype([("stamp_s", "f8"), ("rest", "V92")])
_WARM_UP: Final = 8
#: Minimum of counted batches, however long they take. The first may have started before.
_LEAST_BATCHES: Final = 3


def stamp(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        row = np.zeros(1, _ROW)
        row["stamp_s"] = time.time()
        yield pa.record_batch({"value": pa.repeat(pa.scalar(row.tobytes()), batch.num_rows)})


def age(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield when each row was seen, in seconds of Unix time, and its age then, in milliseconds."""
    for batch in batches:
        seen_s = np.full(batch.num_rows, time.time())
        rows = np.frombuffer(b"".join(batch.column("value").to_pylist()), _ROW)
        yield pa.record_batch({"seen_s": seen_s, "age_ms": (seen_s - rows["stamp_s"]) * 1000})


class StreamLatency:
    def __init__(self, spark: SparkSession, seconds: float) -> None:
        self._spark = spark
        self._seconds = seconds

    def measure(self, peer: Peer) -> dict[str, float]:
        """Return p50 and p99 of the small batches in ms, and rows per second of the large ones."""
        ages, _ = self._run(peer, LATENCY_ROWS)
        p50, p99 = (float(np.percentile(ages, at)) for at in (50, 99))
        figure(NAME, f"{peer.name}.latency_p50", p50, "ms", rows=len(ages))
        figure(NAME, f"{peer.name}.latency_p99", p99, "ms")
        ages, seconds = self._run(peer, RATE_ROWS)
        rows_per_s = len(ages) / seconds
        figure(NAME, f"{peer.name}.rate", rows_per_s, "rows/s", latency_p50_ms=round(float(np.median(ages)), 1))
        return {"latency_p50": p50, "latency_p99": p99, "rate": rows_per_s}

    def _run(self, peer: Peer, rows_per_batch: int) -> tuple[np.ndarray, float]:
        """Return the ages, in ms, of all rows seen after a warm-up, and the seconds in which they were seen."""
        log = peer.new()
        # The log must exist when the second query starts.
        peer.fill(log, self._spark.range(1).mapInArrow(stamp, "value binary"))
        seen = peer.read(self._spark, log).mapInArrow(age, "seen_s double, age_ms double")
        name = f"seen_{log.replace('-', '_')}"
        written = rate(self._spark, rows_per_batch, tasks=2).mapInArrow(stamp, "value binary")
        writing = peer.write(written, log).start()
        reading = seen.writeStream.format("memory").queryName(name).start()
        try:
            wait_until(lambda: last_batch(reading) >= _WARM_UP, writing, reading)
            begin, end = time.time(), time.monotonic() + self._seconds
            enough = last_batch(reading) + _LEAST_BATCHES
            wait_until(lambda: time.monotonic() > end and last_batch(reading) >= enough, writing, reading)
            table = self._spark.table(name).toArrow()
        finally:
            writing.stop()
            reading.stop()
            self._spark.catalog.dropTempView(name)
        seen_s, ages = (table.column(column).to_numpy() for column in ("seen_s", "age_ms"))
        counted = seen_s >= begin
        # From the last row of the warm-up to the very last row: whole batches.
        return ages[counted], float(seen_s.max() - seen_s[~counted].max())


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog=f"benchmarks {NAME}", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--no-kafka", action="store_true")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="bk-bench-") as directory,
        LocalCluster(Path(directory) / "cluster", bookies=3) as cluster,
        session(Path(directory), kafka=not options.no_kafka) as spark,
    ):
        bench = StreamLatency(spark, options.seconds)
        ours = bench.measure(BookKeeper(cluster.metadata_service_uri))
        if not options.no_kafka:
            with KafkaBrokers(Path(directory) / "kafka") as broker:
                theirs = bench.measure(Kafka(broker.bootstrap_servers))
            for name, value in ours.items():
                figure(NAME, f"{name}.over_kafka", value / theirs[name], "ratio")
