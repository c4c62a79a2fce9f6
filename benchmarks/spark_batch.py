"""Measures Spark batch writes and reads: raw at 100 B and 1 KiB, the flights table as arrow; replicated 3/3/2.

Peer: the same DataFrame into Spark's ``noop`` sink in the same run. Spark has nothing comparable for reads, so they
are shown next to the write's peer. Frames are cached beforehand, so that creating rows is not measured.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions as sql

from benchmarks.processes import peak_resident_mib
from benchmarks.report import figure, rates, timed
from benchmarks.spark_session import session
from bookie_server.local import LocalCluster
from examples.demo import flights

NAME = "spark_batch"
RAW_SIZES = {"raw_100B": (100, 1_000_000), "raw_1KiB": (1024, 200_000)}

#: A single copy is too small compared with the fixed cost of a Spark job.
FLIGHTS_COPIES = 5


class SparkBatch:
    def __init__(self, cluster: LocalCluster, spark: SparkSession, runs: int) -> None:
        self.cluster = cluster
        self.spark = spark
        self.runs = runs
        self.logs = 0

    def measure(self, name: str, frame: DataFrame, entry_format: str, size_bytes: int) -> None:
        frame = frame.persist()
        rows = frame.count()
        noop = timed(lambda: frame.write.format("noop").mode("overwrite").save(), self.runs)
        rates(NAME, f"{name}.noop", noop, rows, size_bytes)

        log = ""

        def write() -> None:
            nonlocal log
            self.logs += 1
            log = f"bench-{self.logs}"
            writer = frame.write.format("bookkeeper").mode("append").option("log", log)
            writer.option("entryFormat", entry_format).option("metadataServiceUri", self.uri).save()

        written = timed(write, self.runs)
        rates(NAME, f"{name}.write", written, rows, size_bytes)
        figure(NAME, f"{name}.write_time_over_noop", written.median / noop.median, "ratio")
        frame.unpersist()

        def read() -> None:
            source = self.spark.read.format("bookkeeper").option("log", log).option("metadataServiceUri", self.uri)
            source.load().write.format("noop").mode("overwrite").save()

        found = timed(read, self.runs)
        rates(NAME, f"{name}.read", found, rows, size_bytes)
        figure(NAME, f"{name}.read_time_over_noop", found.median / noop.median, "ratio")
        for bookie in self.cluster.bookies:
            figure(NAME, f"{name}.bookie_peak_memory", peak_resident_mib(bookie.pid), "MiB", bookie=bookie.id)

    @property
    def uri(self) -> str:
        return self.cluster.metadata_service_uri


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks spark_batch", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of rows")
    parser.add_argument("--unix-sockets", action="store_true", help="spark.python.unix.domain.socket.enabled=true")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="bk-bench-") as directory,
        LocalCluster(Path(directory) / "cluster", bookies=3) as cluster,
        session(Path(directory), unix_sockets=options.unix_sockets) as spark,
    ):
        bench = SparkBatch(cluster, spark, options.runs)
        for name, (size, rows) in RAW_SIZES.items():
            count = int(rows * options.scale)
            digits = sql.lpad(sql.col("id").cast("string"), size, "0123456789abcdef")
            frame = spark.range(count, numPartitions=2).select(digits.cast("binary").alias("value"))
            bench.measure(name, frame, "raw", count * size)
        parquet = str(Path(directory) / "flights.parquet")
        table = flights()
        table.to_parquet(parquet)
        once = spark.read.parquet(parquet)
        copies = max(1, round(FLIGHTS_COPIES * options.scale))
        frame = once.crossJoin(spark.range(copies).select(sql.col("id").alias("copy"))).drop("copy").repartition(2)
        bench.measure("flights_arrow", frame, "arrow", copies * arrow_size(table))


def arrow_size(table: object) -> int:
    """Return the bytes of the table in Arrow's memory format, which "MB" refers to in the arrow figures."""
    import pyarrow as pa

    return int(pa.Table.from_pandas(table, preserve_index=False).nbytes)
