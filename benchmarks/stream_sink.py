"""What a micro-batch costs that goes to a log: empty and tiny ones, beside Spark's rate -> ``noop`` in the same run.

``triggerExecution`` of Spark's progress reports after a warm-up, by median and fastest. The queries take turns, in
several rounds, since other work on the machine comes and goes. Beside them a sink in Python that does
nothing: what Spark takes for asking Python at all, three times a batch. An empty batch runs, but a filter has taken its
rows away.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.discarding_sink import DiscardingSource
from benchmarks.report import figure
from benchmarks.spark_batch import session
from bookie_server.local import LocalCluster

NAME: Final = "stream_sink"
ROWS: Final = 10
_WARM_UP: Final = 8
_PARTS: Final = ("queryPlanning", "walCommit", "addBatch", "commitOffsets")
_SINKS: Final = ("noop", "discarding", "bookkeeper")


@dataclass(frozen=True, slots=True)
class Case:
    sink: str
    batches: str
    tasks: int

    def __str__(self) -> str:
        return f"{self.sink}.{self.batches}.{self.tasks}_tasks"


class StreamSink:
    def __init__(self, spark: SparkSession, uri: str, directory: Path, batches: int) -> None:
        self.spark = spark
        self.uri = uri
        self.directory = directory
        self.batches = batches
        self.found: dict[Case, list[dict[str, int]]] = defaultdict(list)

    def run(self, case: Case, round_: int) -> None:
        query = self.writer(case).option("checkpointLocation", str(self.directory / f"{case}.{round_}")).start()
        try:
            deadline = time.monotonic() + 600
            while (query.lastProgress or {"batchId": -1})["batchId"] < _WARM_UP + self.batches:
                failure = query.exception()
                if failure is not None:
                    raise failure
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{case} is too slow")
                time.sleep(0.05)
            counted = [one["durationMs"] for one in query.recentProgress if one["batchId"] > _WARM_UP]
            self.found[case] += [one for one in counted if "addBatch" in one]
        finally:
            query.stop()

    def writer(self, case: Case) -> DataStreamWriter:
        reader = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
        frame = (
            reader.option("numPartitions", case.tasks).load().where("value < 0" if case.batches == "empty" else "true")
        )
        writer = frame.selectExpr("cast(cast(value as string) as binary) value").writeStream.format(case.sink)
        if case.sink == "bookkeeper":
            writer = writer.option("metadataServiceUri", self.uri).option("log", str(case))
        return writer

    def report(self, case: Case, **more: Any) -> None:
        found = self.found[case]
        totals = [one["triggerExecution"] for one in found]
        parts = {part: statistics.median(one.get(part, 0) for one in found) for part in _PARTS}
        figure(
            NAME, str(case), statistics.median(totals), "ms", fastest=min(totals), batches=len(totals), **parts, **more
        )
        for beside in ("noop", "discarding"):
            if case.sink not in (beside, "noop"):
                others = [one["triggerExecution"] for one in self.found[Case(beside, case.batches, case.tasks)]]
                ratio = statistics.median(totals) / statistics.median(others)
                figure(
                    NAME,
                    f"{case}.over_{beside}",
                    ratio,
                    "ratio",
                    of_fastest=round(min(totals) / min(others), 3),
                    **more,
                )


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks stream_sink", description=__doc__)
    parser.add_argument("--batches", type=int, default=40, help="counted, in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--unix-sockets", action="store_true", help="spark.python.unix.domain.socket.enabled=true")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="bk-bench-") as directory,
        LocalCluster(Path(directory) / "cluster", bookies=3) as cluster,
    ):
        spark = session(options.unix_sockets)
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(DiscardingSource)
        bench = StreamSink(spark, cluster.metadata_service_uri, Path(directory), options.batches)
        cases = [Case(sink, kind, tasks) for kind in ("empty", "tiny") for tasks in options.tasks for sink in _SINKS]
        for round_ in range(options.rounds):
            for case in cases:
                bench.run(case, round_)
        for case in cases:
            bench.report(case, unix_sockets=options.unix_sockets)
        spark.stop()
