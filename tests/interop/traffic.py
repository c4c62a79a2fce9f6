"""Clients that go on while bookies are replaced: Apache's Java client, and two streaming queries of Spark."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.interop.java_client import HarnessError, JavaClient, JavaError, JavaWriter
from tests.interop.payloads import Payloads
from tests.support.streams import assert_numbers, numbers, sink, wait_until

PASSWORD: Final = "replaced"
_PER_APPEND: Final = 10
_ENTRY_BYTES: Final = 300
_PAUSE_S: Final = 0.2
#: An append during which a bookie goes takes as long as the writer needs to replace it.
_APPEND_TIMEOUT_MS: Final = 120_000

_ROWS_PER_BATCH: Final = 60
_PARTITIONS: Final = 2
#: Batches cost CPU, whether a bookie is being replaced or not.
_TRIGGER: Final = {"processingTime": "1 second"}


@dataclass(frozen=True, slots=True)
class Lane:
    """How one writer writes: quorums, and after how many appends it begins a new ledger (None: never)."""

    quorums: tuple[int, int, int]
    appends_per_ledger: int | None


#: One ledger that stays open over everything, and many short ones, striped and not.
LANES: Final = (Lane((3, 3, 2), None), Lane((3, 2, 2), 10), Lane((3, 3, 2), 10))


@dataclass
class Written:
    """A ledger, and the seeds of the appends that were acknowledged."""

    ledger_id: int
    quorums: tuple[int, int, int]
    seeds: list[int] = field(default_factory=list)

    @property
    def payloads(self) -> list[bytes]:
        return [payload for seed in self.seeds for payload in _payloads(seed)]


def _payloads(seed: int) -> Payloads:
    return Payloads.of_size(_PER_APPEND, _ENTRY_BYTES, seed)


class JavaTraffic:
    """Apache's client writes ledgers until the end of the context. An error of the client fails the test."""

    def __init__(self, java: JavaClient, uri: str) -> None:
        self._java, self._uri = java, uri
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(len(LANES))]
        self._written: list[list[Written]] = [[] for _ in LANES]
        self._errors: list[Exception] = []
        #: The slowest append so far.
        self.slowest_s = 0.0

    def __enter__(self) -> JavaTraffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if kind is None:
            self.check()

    @property
    def written(self) -> list[Written]:
        return [ledger for lane in self._written for ledger in lane]

    def check(self) -> None:
        """Raise what the client raised."""
        if self._errors:
            raise ExceptionGroup("Apache's client failed", self._errors)

    def wait_progress(self) -> None:
        """Wait until every lane has begun and finished an append."""
        aims = [self._appends(number) + 2 for number in range(len(LANES))]

        def reached() -> bool:
            self.check()
            return all(self._appends(number) >= aim for number, aim in enumerate(aims))

        wait_until(reached, "progress of Apache's client")

    def _appends(self, number: int) -> int:
        return sum(len(ledger.seeds) for ledger in list(self._written[number]))

    def _run(self, number: int) -> None:
        try:
            while not self._stop.is_set():
                self._write_ledger(number)
        except (JavaError, HarnessError) as error:
            self._errors.append(error)

    def _write_ledger(self, number: int) -> None:
        lane = LANES[number]
        writer = self._java.create(self._uri, password=PASSWORD, quorums=lane.quorums)
        ledger = Written(writer.ledger_id, lane.quorums)
        self._written[number].append(ledger)
        while not self._stop.is_set() and (
            lane.appends_per_ledger is None or len(ledger.seeds) < lane.appends_per_ledger
        ):
            # No other append of any lane has this seed.
            self._append(writer, ledger, seed=writer.ledger_id * 1_000_000 + len(ledger.seeds))
            self._stop.wait(_PAUSE_S)
        writer.close()

    def _append(self, writer: JavaWriter, ledger: Written, seed: int) -> None:
        began_s = time.monotonic()
        writer.append(_payloads(seed), timeout_ms=_APPEND_TIMEOUT_MS)
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
        ledger.seeds.append(seed)


class Streams:
    """One query writes numbers to the log ``name``, another reads it and writes to a second log. Both have
    checkpoints."""

    def __init__(self, spark: SparkSession, uri: str, directory: Path, name: str) -> None:
        self._spark, self._uri, self._directory = spark, uri, directory
        self._first, self._second = name, f"{name}-copied"
        self._queries: list[StreamingQuery] = []

    def start(self) -> None:
        """Begin, or go on from the checkpoints."""
        frame = numbers(self._spark, _ROWS_PER_BATCH, _PARTITIONS)
        first = sink(frame, self._uri, self._first, self._directory / "first", trigger=_TRIGGER, entryFormat="arrow")
        self._queries = [first]
        # The log must exist before it is read.
        self.wait_progress()
        read = self._spark.readStream.format("bookkeeper")
        read = read.options(metadataServiceUri=self._uri, log=self._first, startingOffsets="earliest")
        frame = read.load().select("number")
        second = sink(frame, self._uri, self._second, self._directory / "second", trigger=_TRIGGER, entryFormat="arrow")
        self._queries.append(second)
        self.wait_progress()

    def stop(self) -> None:
        for query in self._queries:
            query.stop()
        self._queries = []

    def wait_progress(self) -> None:
        """Wait until every query has begun and finished a batch with rows."""
        aims = [self._batch(query) + 2 for query in self._queries]
        wait_until(
            lambda: all(self._batch(query) >= aim for query, aim in zip(self._queries, aims, strict=True)),
            "progress of the streams",
        )

    @staticmethod
    def _batch(query: StreamingQuery) -> int:
        failure = query.exception()
        if failure is not None:
            raise failure
        assert query.isActive, "the query ended"
        progress = query.lastProgress
        # Without rows it tells of a batch that has not begun.
        return -1 if progress is None else int(progress["batchId"]) - (progress["numInputRows"] == 0)

    def check(self) -> int:
        """Stop the first query, let the second read the rest, and compare. Returns the number of rows of each log."""
        first, second = self._queries
        first.stop()
        second.processAllAvailable()
        self.stop()
        found = self._numbers(self._first)
        assert_numbers(found, _ROWS_PER_BATCH, _PARTITIONS)
        assert self._numbers(self._second) == found
        return len(found)

    def _numbers(self, log: str) -> list[int]:
        """The rows in the log's order."""
        read = self._spark.read.format("bookkeeper").options(metadataServiceUri=self._uri, log=log).load()
        return [row["number"] for row in read.select("number").collect()]
