"""Reads a topic of Apache Pulsar from the bookies, beside Pulsar's Java reader through its broker, in one run.

The broker runs on a ZooKeeper and three of our bookies, with its own defaults, and its JVM has the options that Apache
ships. Its cache has the newest entries. The reader is in the same JVM, so its processor time is that of broker and
reader together. Ours is that of the reading process, or of Spark's JVM and workers. Bookies are extra for all.

With ``--pulsar-spark`` Pulsar's own connector reads the topic, too, in a Spark 3.5 (pulsar_spark.py). Its processor
time is that of its Spark alone: the broker's is extra.

``core`` is one process without Spark, ``spark`` a query into Spark's ``noop`` sink. ``ceiling`` is the same query on a
source that only hands Spark the decoded batches, which it has in memory: nothing in Python is faster there. ``one_row``
is the ceiling with one row, so what Spark takes for any query.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from benchmarks.pulsar_spark import PulsarSpark
from benchmarks.python_peers import MemorySource
from benchmarks.report import figure
from benchmarks.spark_session import session
from bk_spark.datasource.options.parse import parse_options
from bk_spark.datasource.pulsar.batch import batch_splits
from bk_spark.datasource.pulsar.rows import read_topic_split
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.local import LocalCluster
from tests.interop import jvm
from tests.interop.pulsar.broker import PulsarBroker, PulsarProcess
from tests.support.bookie import free_port

NAME = "pulsar_read"
_AT_ONCE = 100_000
_MESSAGES_OF_BATCH = 1000
#: What a topic is read for: its values, and the columns that pulsar-spark has.
_VALUE = "value binary"
_PULSAR_SPARK = (
    "value binary, __key binary, __topic string, __messageId binary, __publishTime timestamp, __eventTime timestamp, "
    "__messageProperties map<string,string>"
)
_PEER = "pulsar_spark."
#: The broker's own defaults instead of those of tests.
_SETTINGS = {
    "transactionCoordinatorEnabled": "false",
    "managedLedgerMaxEntriesPerLedger": "50000",
    "managedLedgerCacheSizeMB": "256",
    "numIOThreads": "2",
}


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {NAME}", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compressions", nargs="+", default=["NONE", "LZ4"])
    parser.add_argument("--pulsar-spark", action="store_true", help="fetches Spark 3.5 and pulsar-spark (450 MB)")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="bk-bench-") as directory,
        LocalCluster(Path(directory) / "cluster", bookies=3) as cluster,
        PulsarProcess(Path(directory) / "pulsar.log", jvm.AS_SHIPPED) as process,
        session(Path(directory)) as spark,
        contextlib.ExitStack() as stack,
    ):
        spark.dataSource.register(MemorySource)
        uri = cluster.metadata_service_uri
        ports = {"brokerServicePort": str(free_port()), "webServicePort": str(free_port())}
        servers = MetadataServiceUri.parse(uri).servers
        broker = PulsarBroker(process, "broker", servers, _SETTINGS | ports)
        broker.init()
        broker.start()
        peer = None
        if options.pulsar_spark:
            addresses = (
                f"pulsar://127.0.0.1:{ports['brokerServicePort']}",
                f"http://127.0.0.1:{ports['webServicePort']}",
            )
            peer = stack.enter_context(PulsarSpark(Path(directory), *addresses))
        for compression in options.compressions:
            topic = f"persistent://public/default/{compression.lower()}"
            for first in range(0, options.messages, _AT_ONCE):
                count = min(_AT_ONCE, options.messages - first)
                how = {"batch": _MESSAGES_OF_BATCH, "compression": compression, "value_bytes": options.value_bytes}
                broker.produce(topic, first=first, count=count, timeout_ms=600_000, **how)
            # Its ledger is closed, so that both read everything.
            broker.call("unload", topic=topic)
            name = compression.lower()
            _measure(broker, spark, peer, Path(directory), uri, topic, name, options.messages, options.rounds)
        broker.stop()


def _measure(
    broker: PulsarBroker,
    spark: SparkSession,
    peer: PulsarSpark | None,
    directory: Path,
    uri: str,
    topic: str,
    name: str,
    messages: int,
    rounds: int,
) -> None:
    def java() -> tuple[float, float]:
        found = broker.call("consume", topic=topic, count=messages, timeout_ms=600_000)
        return float(found["elapsed_s"]), float(found["cpu_s"])

    def core(columns: str) -> tuple[float, float]:
        options = parse_options({"metadataServiceUri": uri, "pulsarTopic": topic}, writing=False)
        schema = cast(StructType, StructType.fromDDL(columns))
        started, cpu = time.perf_counter(), time.process_time()
        found = sum(
            batch.num_rows for split in batch_splits(options) for batch in read_topic_split(options, schema, split)
        )
        assert found == messages
        return time.perf_counter() - started, time.process_time() - cpu

    def in_spark(columns: str, source: str = "bookkeeper", **options: str) -> tuple[float, float]:
        frame = spark.read.format(source).schema(columns).options(**(options or {"pulsarTopic": topic}))
        started, cpu = time.perf_counter(), _spark_cpu_s()
        frame.options(metadataServiceUri=uri).load().write.format("noop").mode("overwrite").save()
        return time.perf_counter() - started, _spark_cpu_s() - cpu

    def ceiling(columns: str, rows: int = messages) -> tuple[float, float]:
        path = directory / f"{name}-{len(columns)}.arrow"
        source = parse_options({"metadataServiceUri": uri, "pulsarTopic": topic}, writing=False)
        splits = batch_splits(source)
        if not path.exists():
            batches = [*read_topic_split(source, cast(StructType, StructType.fromDDL(columns)), splits[0])][:16]
            with pa.ipc.new_file(path, batches[0].schema) as file:
                for batch in batches:
                    file.write_batch(batch)
        return in_spark(columns, MemorySource.name(), path=str(path), rows=str(rows), tasks=str(min(len(splits), rows)))

    ways: dict[str, Callable[[], tuple[float, float]]] = {
        "java_reader": java,
        "core.value": lambda: core(_VALUE),
        "core.pulsar_spark_columns": lambda: core(_PULSAR_SPARK),
        "spark.value": lambda: in_spark(_VALUE),
        "spark.pulsar_spark_columns": lambda: in_spark(_PULSAR_SPARK),
        "ceiling.value": lambda: ceiling(_VALUE),
        "ceiling.pulsar_spark_columns": lambda: ceiling(_PULSAR_SPARK),
        "one_row": lambda: ceiling(_VALUE, 1),
    }
    if peer is not None:
        assert peer.count(topic) == messages
        ways |= {
            f"{_PEER}value": lambda: peer.read(topic, ["value"]),
            f"{_PEER}pulsar_spark_columns": lambda: peer.read(topic, ["*"]),
        }
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        # In turn, so that other work on the machine meets all of them. The first round warms up.
        for way, run in ways.items():
            took = run()
            if number:
                found[way].append(took)
    cpus = {way: statistics.median(cpu for _, cpu in runs) for way, runs in found.items()}
    medians = {way: statistics.median(seconds for seconds, _ in runs) for way, runs in found.items()}
    figure(NAME, f"{name}.one_row", medians["one_row"], "s", cpu_s=round(cpus["one_row"], 3))
    del found["one_row"]
    for way, runs in found.items():
        figure(NAME, f"{name}.{way}", messages / medians[way], "rows/s", fastest_s=round(min(runs)[0], 3))
        figure(NAME, f"{name}.{way}.cpu", cpus[way] / messages * 1e6, "s per million rows")
        if way.startswith("ceiling"):
            mine = medians[way.replace("ceiling", "spark")]
            figure(NAME, f"{name}.{way}_to_java", medians["java_reader"] / medians[way], "ratio")
            figure(NAME, f"{name}.spark_to_{way}", medians[way] / mine, "ratio")
        elif way.startswith(_PEER):
            same = way.replace(_PEER, "spark.")
            figure(NAME, f"{name}.{same}_to_pulsar_spark", medians[way] / medians[same], "ratio", aim=3)
            figure(NAME, f"{name}.pulsar_spark_cpu_to_{same}", cpus[way] / cpus[same], "ratio")
        elif way != "java_reader":
            figure(NAME, f"{name}.{way}_to_java", medians["java_reader"] / medians[way], "ratio", aim=3)
            figure(NAME, f"{name}.java_cpu_to_{way}", cpus["java_reader"] / cpus[way], "ratio", aim=3)


def _spark_cpu_s() -> float:
    """Processor time so far of Spark's JVM and of all processes that it started, ended ones too."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    gateway = SparkContext._gateway
    assert gateway is not None
    tree = {gateway.proc.pid}
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return sum(map(_cpu_with_children_s, tree))


def _cpu_with_children_s(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0
