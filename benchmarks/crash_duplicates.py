"""Counts duplicate rows after the same crashes with Spark's Kafka sink and with ours.

A driver is killed (-9) repeatedly at random moments, and restarted from its checkpoint. Spark then repeats the batch
that it had not recorded as done. Kafka's sink writes it again; ours finds it in the log. ``--timeline FILE`` also keeps
when which rows were written, for :mod:`benchmarks.crash_picture`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql.functions import expr, row_number

from benchmarks.crash_query import ROWS_PER_BATCH
from benchmarks.kafka_broker import KafkaBrokers
from benchmarks.report import figure
from benchmarks.spark_session import session
from benchmarks.stream_peers import BookKeeper, Kafka
from bookie_server.local import LocalCluster

NAME = "crash_duplicates"
_TIMEOUT_S = 180.0


class Crashes:
    def __init__(self, directory: Path, seed: int, crashes: int) -> None:
        self._directory = directory
        self._chance = random.Random(seed)
        self._crashes = crashes
        #: When drivers were killed, in seconds of Unix time.
        self.killed_s: list[float] = []

    def run(self, kind: str, address: str) -> str:
        """Kill the query repeatedly, then let it finish. Returns the log that it wrote."""
        log = f"crash-{uuid.uuid4().hex[:12]}"
        checkpoint = self._directory / f"checkpoint-{kind}"
        given: dict[str, object] = {
            "kind": kind,
            "address": address,
            "log": log,
            "checkpoint": str(checkpoint),
            "directory": str(self._directory / kind),
            "batches": 1_000_000,
        }
        for _ in range(self._crashes):
            process = self._start(given)
            time.sleep(self._chance.uniform(0.5, 3.0))
            os.killpg(process.pid, signal.SIGKILL)
            self.killed_s.append(time.time())
            process.wait()
        done = max(int(one.name) for one in (checkpoint / "commits").glob("[0-9]*"))
        process = self._start({**given, "batches": done + 5})
        if process.wait(_TIMEOUT_S):
            raise RuntimeError(f"the query failed at its end, on {kind}")
        return log

    def _start(self, given: dict[str, object]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.crash_query", json.dumps(given)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == b"running\n", f"the query did not start: {line!r}"
        return process


def rows_of(spark: SparkSession, kind: str, address: str, log: str) -> DataFrame:
    """Return the numbers in a log or topic, ``n``, and when each was written."""
    if kind == Kafka.name:
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", log)
    else:
        reader = spark.read.format("bookkeeper").options(metadataServiceUri=address, log=log)
    return reader.load().selectExpr("cast(cast(value as string) as bigint) n", "timestamp")


def timeline(rows: DataFrame, killed_s: list[float]) -> dict[str, Any]:
    """Return which batches were written when, in seconds since the first: batch, copy (0: the first), rows, time."""
    copies = Window.partitionBy("n").orderBy("timestamp")
    found = rows.selectExpr(f"n div {ROWS_PER_BATCH} as batch", "n", "timestamp").withColumn(
        "copy", row_number().over(copies) - 1
    )
    grouped = found.groupBy("batch", "copy").agg(expr("count(*)"), expr("min(unix_millis(timestamp)) / 1000"))
    batches = [tuple(row) for row in grouped.orderBy("batch", "copy").collect()]
    begun_s = min(at_s for *_, at_s in batches)
    return {
        "batches": [[batch, copy, count, round(at_s - begun_s, 3)] for batch, copy, count, at_s in batches],
        "killed": [round(at_s - begun_s, 3) for at_s in killed_s],
        "rows_per_batch": ROWS_PER_BATCH,
    }


def count(numbers: DataFrame) -> dict[str, int]:
    rows, distinct, most = numbers.selectExpr("count(n)", "count(distinct n)", "max(n)").collect()[0]
    return {"rows": rows, "duplicates": rows - distinct, "missing": most + 1 - distinct, "batch": ROWS_PER_BATCH}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog=f"benchmarks {NAME}", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--crashes", type=int, default=6)
    parser.add_argument("--timeline", type=Path, help="also write when which rows were written to this JSON file")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="bk-bench-") as name,
        LocalCluster(Path(name) / "cluster", bookies=3) as cluster,
        KafkaBrokers(Path(name) / "kafka") as broker,
    ):
        peers = ((BookKeeper.name, cluster.metadata_service_uri), (Kafka.name, broker.bootstrap_servers))
        crashes = {kind: Crashes(Path(name), options.seed, options.crashes) for kind, _ in peers}
        logs = {kind: crashes[kind].run(kind, address) for kind, address in peers}
        timelines = {}
        with session(Path(name) / "count", kafka=True) as spark:
            for kind, address in peers:
                rows = rows_of(spark, kind, address, logs[kind])
                found = count(rows)
                if options.timeline is not None:
                    timelines[kind] = timeline(rows, crashes[kind].killed_s)
                for what in ("duplicates", "missing"):
                    figure(NAME, f"{kind}.{what}", found[what], "rows", crashes=options.crashes, rows=found["rows"])
    if options.timeline is not None:
        options.timeline.write_text(json.dumps(timelines) + "\n")
