"""Measures the cost of a micro-batch: compares sources and sinks in Python, in the JVM and in Kafka, in one run.

A cell is a source and a sink, for example ``bookkeeper_noop``. ``rate`` (Spark's ``rate-micro-batch``) and ``noop`` run
in the JVM; ``least`` and ``discarding`` are a minimal source and sink in Python. A tiny batch has ten rows, or one for
each of more tasks; in an empty one a filter after the source removes them. All batches have one task unless the
figure's name says otherwise. With many tasks fewer batches are run and counted, because Spark alone takes tens of
milliseconds of CPU for a task in Python. Reports ``triggerExecution`` of Spark's progress after a warm-up, median and
fastest, and the medians of its parts. The cells take turns in each round, because other load on the machine varies.

Ratios, of medians and of the fastest, to:
  over_rate_noop     what Spark takes for a batch without any Python
  over_python_floor  the same cell with ``least`` and ``discarding`` in our places: what Spark takes to call Python
  over_kafka_kafka   Kafka's source and sink, a topic of one partition

Idle triggers, which find nothing, are reported by their mean.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from benchmarks.kafka_broker import KafkaBrokers
from benchmarks.python_peers import DiscardingSink, LeastSource
from benchmarks.report import figure
from benchmarks.spark_session import session
from benchmarks.stream_peers import BookKeeper, Kafka, Peer, last_batch, rate, wait_until
from bookie_server.local import LocalCluster

NAME: Final = "stream_batches"
KINDS: Final = ("empty", "tiny")
ROWS: Final = 10
_IDLE_S: Final = 5.0
#: Tasks of a cell in a round, unless that were fewer than three batches.
_MOST_TASKS: Final = 1_800
_LEAST_BATCHES: Final = 3
_PARTS: Final = ("latestOffset", "queryPlanning", "getBatch", "walCommit", "addBatch", "commitOffsets", "commitBatch")


@dataclass(frozen=True, slots=True)
class Cell:
    source: str
    sink: str
    kind: str
    tasks: int = 1

    def __str__(self) -> str:
        return f"{self.source}_{self.sink}.{self.kind}" + (f".{self.tasks}_tasks" if self.tasks > 1 else "")

    @property
    def peers(self) -> dict[str, Cell]:
        """Return the cells to compare with, by name of the ratio. Not every run has all of them."""
        floor = replace(
            self,
            source="least" if self.source == "bookkeeper" else self.source,
            sink="discarding" if self.sink == "bookkeeper" else self.sink,
        )
        peers = {"rate_noop": replace(self, source="rate", sink="noop"), "python_floor": floor}
        if (self.source, self.sink) == ("bookkeeper", "bookkeeper"):
            peers["kafka_kafka"] = replace(self, source="kafka", sink="kafka")
        return {name: peer for name, peer in peers.items() if peer != self}


def cells(kinds: list[str], tasks: list[int], *, kafka: bool, only_rate: bool) -> list[Cell]:
    """Return the cells. ``tasks`` applies to cells with the rate source; the others have one task."""
    found = []
    for kind in kinds:
        found += [Cell("rate", sink, kind, count) for count in tasks for sink in ("noop", "discarding", "bookkeeper")]
        if only_rate:
            continue
        found += [Cell("least", sink, kind) for sink in ("noop", "discarding")]
        found += [Cell("bookkeeper", sink, kind) for sink in ("noop", "bookkeeper")]
        if kafka:
            found.append(Cell("kafka", "kafka", kind))
    return found


class StreamBatches:
    def __init__(self, spark: SparkSession, peers: list[Peer], batches: int, warm_up: int) -> None:
        self._spark = spark
        self._peers = {peer.name: peer for peer in peers}
        self._batches = batches
        self._warm_up = warm_up
        self._logs = {peer.name: self._filled(peer) for peer in peers}
        self._durations: dict[Cell, list[dict[str, int]]] = defaultdict(list)

    def run(self, cell: Cell) -> None:
        """Run and count more batches of ``cell``."""
        rows = self._rows(cell)
        if cell.sink in self._peers:
            peer = self._peers[cell.sink]
            writer = peer.write(rows, peer.new())
        else:
            writer = rows.writeStream.format(cell.sink)
        warm_up, batches = self._counts(cell)
        last = warm_up + batches - 1
        query = writer.start()
        try:
            wait_until(lambda: last_batch(query) >= last, query)
            found = [one.durationMs for one in query.recentProgress if "addBatch" in one.durationMs]
        finally:
            query.stop()
        counted = found[warm_up : last + 1]
        assert len(counted) == batches, f"{cell}: {len(found)} batches"
        self._durations[cell] += counted

    def report(self, **more: object) -> None:
        for cell, durations in self._durations.items():
            totals = [one["triggerExecution"] for one in durations]
            parts = {part: statistics.median(one.get(part, 0) for one in durations) for part in _PARTS}
            value, fastest = statistics.median(totals), min(totals)
            figure(NAME, str(cell), value, "ms", fastest=fastest, batches=len(totals), **parts, **more)
            for name, peer in cell.peers.items():
                if peer in self._durations:
                    others = [one["triggerExecution"] for one in self._durations[peer]]
                    of_fastest = round(fastest / min(others), 4)
                    ratio = value / statistics.median(others)
                    figure(NAME, f"{cell}.over_{name}", ratio, "ratio", of_fastest=of_fastest, **more)

    def idle(self, peer: Peer, **more: object) -> None:
        """Measure triggers that find nothing new. The time between two is Spark's ``pollingDelay``."""
        log = peer.new()
        peer.fill(log, self._numbers(1))
        # Make every trigger report progress, even if it found nothing.
        self._spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "0")
        query = peer.read(self._spark, log).writeStream.format("noop").start()
        try:
            wait_until(lambda: last_batch(query) > 0, query)
            end = time.monotonic() + _IDLE_S
            wait_until(lambda: time.monotonic() > end, query)
            found = [one.durationMs for one in query.recentProgress if "addBatch" not in one.durationMs][
                self._warm_up :
            ]
        finally:
            query.stop()
        for part in ("triggerExecution", "latestOffset"):
            values = [one.get(part, 0) for one in found]
            name = f"{peer.name}.idle.{part}"
            figure(NAME, name, statistics.mean(values), "ms", slowest=max(values), triggers=len(values), **more)

    def _counts(self, cell: Cell) -> tuple[int, int]:
        """How many batches of a query warm up, and how many count."""
        most = max(_LEAST_BATCHES, _MOST_TASKS // cell.tasks)
        warm_up = min(self._warm_up, most // 3)
        return warm_up, min(self._batches, most - warm_up)

    def _rows(self, cell: Cell) -> DataFrame:
        if cell.source == "rate":
            rows = rate(self._spark, max(ROWS, cell.tasks), cell.tasks)
        elif cell.source == "least":
            rows = self._spark.readStream.format("least").option("rows", ROWS).load()
        else:
            rows = self._peers[cell.source].read(self._spark, self._logs[cell.source], ROWS)
        # A filter that Spark cannot evaluate in advance: it must not skip the source.
        return rows.where("length(value) < 0") if cell.kind == "empty" else rows

    def _filled(self, peer: Peer) -> str:
        """Return a log with the rows of all batches of a query."""
        log = peer.new()
        peer.fill(log, self._numbers((self._warm_up + self._batches) * ROWS))
        return log

    def _numbers(self, count: int) -> DataFrame:
        return self._spark.range(count, numPartitions=1).selectExpr("cast(cast(id as string) as binary) as value")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog=f"benchmarks {NAME}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=30, help="counted, of each cell in each round, at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 2], help="of the cells with the rate source")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    parser.add_argument("--warm-up", type=int, default=10, help="first batches of a query, which start processes")
    parser.add_argument("--only-rate", action="store_true", help="only cells with the rate source")
    parser.add_argument("--no-kafka", action="store_true")
    parser.add_argument("--unix-sockets", action="store_true", help="spark.python.unix.domain.socket.enabled=true")
    options = parser.parse_args(arguments)
    kafka, unix_sockets = not options.no_kafka, options.unix_sockets
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bk-bench-")))
        cluster = stack.enter_context(LocalCluster(directory / "cluster", bookies=3))
        peers: list[Peer] = [BookKeeper(cluster.metadata_service_uri)]
        if kafka:
            broker = stack.enter_context(KafkaBrokers(directory / "kafka", partitions=1))
            peers.append(Kafka(broker.bootstrap_servers))
        spark = stack.enter_context(session(directory, kafka=kafka, unix_sockets=unix_sockets))
        spark.dataSource.register(LeastSource)
        spark.dataSource.register(DiscardingSink)
        bench = StreamBatches(spark, peers, options.batches, options.warm_up)
        for _ in range(options.rounds):
            for cell in cells(options.kinds, options.tasks, kafka=kafka, only_rate=options.only_rate):
                bench.run(cell)
        bench.report(unix_sockets=unix_sockets)
        for peer in [] if options.only_rate else peers:
            bench.idle(peer, unix_sockets=unix_sockets)
