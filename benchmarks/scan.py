"""Compares writes and scans of a log without Spark with Parquet on the local disk and with Kafka, in one run.

Three bookies run on this machine and disk, with ledgers 3/3/2 and CRC32C. They sync their journals before they
acknowledge. Kafka is one broker that keeps one copy and acknowledges from the page cache. Parquet files are synced to
the disk after each write and read from the page cache. So the peers do less. Each round does everything once, in
another order. Figures are medians over the rounds, ratios are medians of the rounds' ratios.

Rows have a long, a double and two strings, about 100 bytes in all. CPU is that of this process, and of the bookies or
the broker, per million rows.

Operations:
  log.write                      Log.write of batches of 64 Ki rows to an arrow log, compressed by lz4, as by default
  log.write_zstd, log.write_plain   the same by zstd, and without compression
  log.scan, log.scan_zstd, log.scan_plain   Log.scan().to_arrow() of these
  log.scan_column                one of the four columns
  log.scan_duckdb                an aggregate of one column by another, by DuckDB from the scan
  parquet.write, parquet.read    the same rows by pyarrow.parquet (snappy); parquet.read_column: one column
  kafka.write, kafka.read        a message for each row, as JSON that was made before; reading makes one Arrow column of
                                 the messages and does not parse them
  kafka.write_arrow, kafka.read_arrow   messages of 8 Ki rows as Arrow streams, decoded when they are read
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import bk_spark
from benchmarks.kafka_broker import KafkaBrokers
from benchmarks.processes import cpu_seconds
from benchmarks.report import figure
from bk_spark import Log
from bookie_server.local import LocalCluster

NAME: Final = "scan"
_BATCH_ROWS: Final = 64 * 1024
_MESSAGE_ROWS: Final = 8 * 1024
_PEERS: Final = {
    "log.write": ("parquet.write", "kafka.write", "kafka.write_arrow"),
    "log.write_zstd": ("parquet.write", "kafka.write_arrow"),
    "log.write_plain": ("kafka.write_arrow",),
    "log.scan": ("parquet.read", "kafka.read", "kafka.read_arrow"),
    "log.scan_zstd": ("parquet.read", "kafka.read_arrow"),
    "log.scan_plain": ("parquet.read", "kafka.read_arrow"),
    "log.scan_column": ("parquet.read_column", "log.scan"),
    "log.scan_duckdb": ("parquet.read",),
}


class Ways:
    """Each method does one operation with ``rows``."""

    def __init__(self, bk: bk_spark.BookKeeper, broker: KafkaBrokers, directory: Path, rows: pa.Table) -> None:
        try:
            import confluent_kafka
        except ImportError as error:
            raise RuntimeError("this benchmark compares with Kafka: pip install 'bk-spark[bench]'") from error

        self._kafka = confluent_kafka
        self._bk = bk
        self._servers = broker.bootstrap_servers
        self._path = directory / "rows.parquet"
        self._rows = rows
        self._messages = [b'{"id":%d,"customer":"%s","amount":%f,"note":"%s"}' % one for one in _tuples(rows)]
        self._logs: dict[str, Log] = {}
        self._topics: dict[str, str] = {}

    def writes(self) -> dict[str, Callable[[], None]]:
        return {
            "log.write": lambda: self._write("lz4", "lz4"),
            "log.write_plain": lambda: self._write("plain", None),
            "log.write_zstd": lambda: self._write("zstd", "zstd"),
            "parquet.write": self._write_parquet,
            "kafka.write": lambda: self._produce("rows", self._messages),
            "kafka.write_arrow": lambda: self._produce("arrow", self._streams()),
        }

    def reads(self) -> dict[str, Callable[[], None]]:
        return {
            "log.scan": lambda: self._scan("lz4"),
            "log.scan_plain": lambda: self._scan("plain"),
            "log.scan_zstd": lambda: self._scan("zstd"),
            "log.scan_column": lambda: self._scan("lz4", ["amount"]),
            "log.scan_duckdb": self._aggregate,
            "parquet.read": lambda: self._check(pq.read_table(self._path)),
            "parquet.read_column": lambda: self._check(pq.read_table(self._path, columns=["amount"])),
            "kafka.read": self._consume_rows,
            "kafka.read_arrow": self._consume_streams,
        }

    def _write(self, kind: str, compression: str | None) -> None:
        log = self._logs[kind] = self._bk.create_log(f"{kind}-{uuid.uuid4().hex[:8]}", schema=self._rows.schema)
        log.write(self._rows.to_reader(_BATCH_ROWS), compression=compression)

    def _scan(self, kind: str, columns: list[str] | None = None) -> None:
        self._check(self._logs[kind].scan(columns).to_arrow())

    def _aggregate(self) -> None:
        scan = self._logs["lz4"].scan(["customer", "amount"])  # noqa: F841 (DuckDB finds it)
        with duckdb.connect() as duck:
            found = duck.sql("SELECT customer, sum(amount), count(*) AS n FROM scan GROUP BY customer").fetchall()
        assert sum(one[2] for one in found) == self._rows.num_rows

    def _write_parquet(self) -> None:
        with self._path.open("wb") as file:
            pq.write_table(self._rows, file)
            file.flush()
            os.fsync(file.fileno())

    def _produce(self, kind: str, values: Iterable[bytes]) -> None:
        topic = self._topics[kind] = f"{kind}-{uuid.uuid4().hex[:8]}"
        producer = self._kafka.Producer(
            {"bootstrap.servers": self._servers, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
        )
        for value in values:
            while True:
                try:
                    producer.produce(topic, value, partition=0)
                    break
                except BufferError:
                    producer.poll(0.01)
        assert producer.flush(120) == 0

    def _streams(self) -> list[bytes]:
        streams = []
        for batch in self._rows.to_batches(_MESSAGE_ROWS):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            streams.append(sink.getvalue().to_pybytes())
        return streams

    def _consume_rows(self) -> None:
        chunks = [
            pa.array([message.value() for message in messages], pa.binary())
            for messages in self._messages_of("rows", len(self._messages))
        ]
        assert len(pa.chunked_array(chunks)) == self._rows.num_rows

    def _consume_streams(self) -> None:
        count = -(-self._rows.num_rows // _MESSAGE_ROWS)
        tables = [
            pa.ipc.open_stream(message.value()).read_all()
            for messages in self._messages_of("arrow", count)
            for message in messages
        ]
        self._check(pa.concat_tables(tables))

    def _messages_of(self, kind: str, count: int) -> Generator[list[Any], None, None]:
        consumer = self._kafka.Consumer(
            {"bootstrap.servers": self._servers, "group.id": uuid.uuid4().hex, "enable.auto.commit": False}
        )
        try:
            consumer.assign([self._kafka.TopicPartition(self._topics[kind], 0, 0)])
            while count:
                # It waits for as many as it is asked for.
                messages = consumer.consume(min(count, 10_000), timeout=30)
                count -= len(messages)
                yield messages
        finally:
            consumer.close()

    def _check(self, table: pa.Table) -> None:
        assert table.num_rows == self._rows.num_rows


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {NAME}", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="200,000 rows, 2 rounds")
    options = parser.parse_args(arguments)
    count, rounds = (200_000, 2) if options.quick else (options.rows, options.rounds)
    seconds: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory(prefix="bk-scan-") as directory,
        LocalCluster(Path(directory) / "bookies", bookies=3) as cluster,
        KafkaBrokers(Path(directory) / "kafka", partitions=1) as broker,
        bk_spark.connect(cluster.metadata_service_uri) as bk,
    ):
        rows = _rows(count)
        ways = Ways(bk, broker, Path(directory), rows)
        bookies = [bookie.pid for bookie in cluster.bookies if bookie.pid]
        servers: dict[str, list[int]] = {"log": bookies, "kafka": broker.pids, "parquet": []}
        for number in range(rounds + 1):
            # Writes first: reads read what this round wrote.
            for group in (ways.writes(), ways.reads()):
                turn = number % len(group)
                names = [*list(group)[turn:], *list(group)[:turn]]
                for name in names:
                    pids = servers[name.partition(".")[0]]
                    used, started = _cpu(pids), time.perf_counter()
                    group[name]()
                    taken, cost = time.perf_counter() - started, _cpu(pids) - used
                    if number:  # one round warms up
                        seconds[name].append(taken)
                        cpu[name].append(cost)
    size = rows.nbytes / count
    for name, times in seconds.items():
        figure(NAME, f"{name}.rows", count / statistics.median(times), "rows/s", row_bytes=round(size))
        figure(NAME, f"{name}.cpu", statistics.median(cpu[name]) / count * 1e6, "s/million rows")
    for name, peers in _PEERS.items():
        for peer in peers:
            ratio = statistics.median(theirs / ours for ours, theirs in zip(seconds[name], seconds[peer], strict=True))
            figure(NAME, f"{name}_over_{peer}", ratio, "ratio")


def _rows(count: int) -> pa.Table:
    rng = np.random.default_rng(7)
    ids = np.arange(count)
    notes = [f"order {number:08d} some text that is about as long as notes are" for number in ids]
    return pa.table(
        {
            "id": ids,
            "customer": pa.array([f"customer-{number}" for number in range(1000)]).take(rng.integers(0, 1000, count)),
            "amount": rng.random(count) * 1000,
            "note": pa.array(notes),
        }
    )


def _tuples(rows: pa.Table) -> Iterable[tuple[int, bytes, float, bytes]]:
    for ident, customer, amount, note in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        yield ident, customer.encode(), amount, note.encode()


def _cpu(pids: list[int]) -> float:
    return sum(map(cpu_seconds, pids)) + time.process_time()
