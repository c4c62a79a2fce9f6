"""Compares Spark's batch writes and reads of our logs with Kafka's, and with the ceiling of data sources in Python.

One Spark session with two cores, all servers beside it. For each frame every way takes its turn, forwards and
backwards in alternate rounds. The frames:

  100B, 1KiB     one column ``value`` of random bytes, which no compression makes smaller
  flights        19 columns

The ways, each with its defaults but for what is said:

  raw            our log, ``entryFormat`` raw: one entry a row. 3/3/2, journals synced
  arrow          our log as Spark makes it
  kafka          three brokers, three copies, ``acks=all``, each batch synced before it is acknowledged, two partitions;
                 ``batch.size`` 512 KiB and ``linger.ms`` 10. The flights are JSON, since Kafka has no columns
  ceiling        a sink in Python that drops its batches, a source in Python that yields them from memory

Figures are medians of the rounds: rows a second with the ratio of each way to Kafka and to the ceiling (medians of the
rounds' ratios), and processor seconds of the servers and of all else (Spark and its workers, if nothing else runs)
for 10^9 bytes in Arrow's memory format.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as sql
from pyspark.sql.types import StructType

from benchmarks.kafka_broker import KafkaBrokers
from benchmarks.processes import cpu_seconds, machine_cpu_seconds
from benchmarks.python_peers import DiscardingSink, MemorySource
from benchmarks.report import figure
from benchmarks.spark_session import session
from bookie_server.local import LocalCluster
from examples.demo import flights

NAME: Final = "spark_peers"
RAW_SIZES: Final = {"100B": (100, 2_000_000), "1KiB": (1024, 400_000)}
#: A single copy is too small compared with the fixed cost of a Spark job.
FLIGHTS_COPIES: Final = 5
KAFKA_OPTIONS: Final = {"kafka.batch.size": str(512 << 10), "kafka.linger.ms": "10", "kafka.acks": "all"}
_ROWS_OF_A_BATCH: Final = 10_000
_GB: Final = 1e9


@dataclass(frozen=True, slots=True)
class Way:
    """How rows are written and read. ``servers`` take part in it."""

    write: Callable[[DataFrame, str], None]
    read: Callable[[str], DataFrame]
    servers: tuple[int, ...]


@dataclass(slots=True)
class Runs:
    """What the rounds of one way in one direction took."""

    seconds: list[float]
    cpu_of_servers: list[float]
    cpu_of_others: list[float]

    def add(self, seconds: float, cpu_of_servers: float, cpu_of_others: float) -> None:
        self.seconds.append(seconds)
        self.cpu_of_servers.append(cpu_of_servers)
        self.cpu_of_others.append(cpu_of_others)


class Peers:
    """The ways, by name."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: LocalCluster,
        kafka: KafkaBrokers | None,
        file: Path,
        *,
        value_alone: bool = False,
    ) -> None:
        self._spark = spark
        self._value_alone = value_alone
        self._uri = cluster.metadata_service_uri
        self._bookies = tuple(bookie.pid for bookie in cluster.bookies if bookie.pid)
        self._kafka = kafka
        self.file = file

    def of(self, schema: StructType) -> dict[str, Way]:
        """The ways for rows with ``schema``."""
        bytes_only = schema.fieldNames() == ["value"]
        ways = {"raw": self._of_log("raw")} if bytes_only else {}
        ways["arrow"] = self._of_log("arrow")
        if self._kafka is not None:
            ways["kafka"] = self._of_kafka(self._kafka, None if bytes_only else schema)
        return {**ways, "ceiling": self._ceiling()}

    def _of_log(self, entry_format: str) -> Way:
        def write(rows: DataFrame, log: str) -> None:
            writer = rows.write.format("bookkeeper").mode("append").option("entryFormat", entry_format)
            writer.options(metadataServiceUri=self._uri, log=log).save()

        def read(log: str) -> DataFrame:
            source = self._spark.read.format("bookkeeper").options(metadataServiceUri=self._uri, log=log)
            if entry_format != "raw":
                return source.load()
            return source.schema("value binary").load() if self._value_alone else source.load().select("value")

        return Way(write, read, self._bookies)

    def _of_kafka(self, brokers: KafkaBrokers, schema: StructType | None) -> Way:
        servers = {"kafka.bootstrap.servers": brokers.bootstrap_servers}

        def write(rows: DataFrame, log: str) -> None:
            values = rows if schema is None else rows.select(sql.to_json(sql.struct("*")).alias("value"))
            values.write.format("kafka").options(**servers, **KAFKA_OPTIONS).option("topic", log).save()

        def read(log: str) -> DataFrame:
            rows = self._spark.read.format("kafka").options(**servers).option("subscribe", log).load()
            if schema is None:
                return rows.select("value")
            return rows.select(sql.from_json(sql.col("value").cast("string"), schema).alias("row")).select("row.*")

        return Way(write, read, tuple(brokers.pids))

    def _ceiling(self) -> Way:
        def write(rows: DataFrame, log: str) -> None:
            rows.write.format(DiscardingSink.name()).mode("append").save()

        return Way(write, lambda log: memory(self._spark, self.file), ())


def memory(spark: SparkSession, file: Path) -> DataFrame:
    """The rows of an Arrow file, from memory, in two tasks."""
    return spark.read.format(MemorySource.name()).option("path", str(file)).option("tasks", 2).load()


def measure(name: str, table: pa.Table, spark: SparkSession, peers: Peers, rounds: int) -> None:
    frame = memory(spark, peers.file).persist()
    rows = frame.count()
    ways = peers.of(frame.schema)
    runs: dict[tuple[str, str], Runs] = defaultdict(lambda: Runs([], [], []))
    for number in range(-1, rounds):
        for way_name in list(ways)[:: -1 if number % 2 else 1]:
            way, log = ways[way_name], f"{name}-{way_name}-{number + 1}"

            written = _run(partial(way.write, frame, log), way)
            found = _run(partial(_read, way, log), way)
            # The first round warms up: code is compiled, workers start, and every row must be there.
            if number < 0:
                count = way.read(log).count()
                if count != rows:
                    raise RuntimeError(f"{way_name} returned {count:,} of {rows:,} rows")
                continue
            for direction, run in (("write", written), ("read", found)):
                runs[direction, way_name].add(*run)
    frame.unpersist()
    for (direction, way_name), of_way in runs.items():
        seconds = of_way.seconds
        ratios = {}
        for peer in ("kafka", "ceiling"):
            if peer != way_name and (direction, peer) in runs:
                of_rounds = zip(runs[direction, peer].seconds, seconds, strict=True)
                ratios[f"of_{peer}"] = round(statistics.median(theirs / ours for theirs, ours in of_rounds), 3)
        spread = {"slowest": round(rows / max(seconds)), "fastest": round(rows / min(seconds)), "rounds": rounds}
        figure(NAME, f"{name}.{direction}.{way_name}", rows / statistics.median(seconds), "rows/s", **ratios, **spread)
        for who, values in (("servers", of_way.cpu_of_servers), ("spark", of_way.cpu_of_others)):
            cpu = statistics.median(values) / (table.nbytes / _GB)
            figure(NAME, f"{name}.{direction}.{way_name}.cpu_{who}", cpu, "s/GB")


def _read(way: Way, log: str) -> None:
    way.read(log).write.format("noop").mode("overwrite").save()


def _run(work: Callable[[], None], way: Way) -> tuple[float, float, float]:
    """Seconds, processor seconds of the servers, and those of all else."""
    servers, machine = sum(map(cpu_seconds, way.servers)), machine_cpu_seconds()
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    of_servers = sum(map(cpu_seconds, way.servers)) - servers
    return seconds, of_servers, machine_cpu_seconds() - machine - of_servers


def random_values(size: int, count: int) -> pa.Table:
    """``count`` values of ``size`` random bytes."""
    data = np.random.default_rng(1).bytes(size * count)
    value = pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), count, [None, pa.py_buffer(data)])
    return pa.table({"value": value.cast(pa.binary())})


def rows_of(name: str, scale: float) -> pa.Table:
    """The rows of a frame."""
    if name != "flights":
        size, rows = RAW_SIZES[name]
        return random_values(size, int(rows * scale))
    copies = max(1, round(FLIGHTS_COPIES * scale))
    return pa.concat_tables([pa.Table.from_pandas(flights(), preserve_index=False)] * copies)


def saved(table: pa.Table, file: Path) -> Path:
    """Write a frame as an Arrow file, in batches as Spark makes them."""
    with pa.ipc.new_file(str(file), table.schema) as out:
        out.write_table(table, max_chunksize=_ROWS_OF_A_BATCH)
    return file


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks spark_peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of rows")
    parser.add_argument("--frames", nargs="+", choices=[*RAW_SIZES, "flights"], default=[*RAW_SIZES, "flights"])
    parser.add_argument(
        "--value-alone",
        action="store_true",
        help="read raw logs with schema('value binary'): else Spark has the source make all six columns",
    )
    parser.add_argument("--no-kafka", action="store_true", help="only our logs and the ceiling")
    options = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bk-bench-")))
        cluster = stack.enter_context(LocalCluster(directory / "cluster", bookies=3))
        kafka = None
        if not options.no_kafka:
            kafka = stack.enter_context(KafkaBrokers(directory / "kafka", brokers=3, synced=True))
        spark = stack.enter_context(session(directory, kafka=kafka is not None))
        spark.dataSource.register(MemorySource)
        spark.dataSource.register(DiscardingSink)
        for name in options.frames:
            table = rows_of(name, options.scale)
            file = saved(table, directory / f"{name}.arrow")
            peers = Peers(spark, cluster, kafka, file, value_alone=options.value_alone)
            measure(name, table, spark, peers, options.rounds)
    figure(NAME, "conditions.cores", os.cpu_count() or 0, "cores")
