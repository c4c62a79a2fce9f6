"""Streaming reads, in Spark: rows, restarts, pace, and what users see when something is wrong."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StreamingQuery

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.datasource.entries.schemas import RAW_SCHEMA
from bk_spark.datasource.pyspark_api import HAS_LIMITS
from bk_spark.log.store import LogStore
from tests.support.connector import Connector, texts
from tests.support.sparks import needs_limits
from tests.support.streams import (
    assert_numbers,
    forget_last_commit,
    numbers,
    running,
    sink,
    wait_for_batch,
    wait_until,
)


class Seen:
    """Takes a query's batches. One that is run again must have the same rows."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}
        self.run_again: list[int] = []
        self._grown = threading.Condition()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.collect()
        with self._grown:
            if batch_id in self.batches:
                self.run_again.append(batch_id)
                assert sorted(rows) == sorted(self.batches[batch_id])
            self.batches[batch_id] = rows
            self._grown.notify_all()

    @property
    def rows(self) -> list[Row]:
        return [row for batch_id in sorted(self.batches) for row in self.batches[batch_id]]

    @property
    def values(self) -> list[str]:
        return [_text(row.value) for row in self.rows]

    def wait_for(self, count: int, query: StreamingQuery) -> None:
        """Until so many rows came."""

        def enough() -> bool:
            failure = query.exception()
            if failure is not None:
                raise failure
            return len(self.rows) >= count

        wait_until(enough, f"{count} rows")


def _text(value: object) -> str:
    return bytes(value).decode() if isinstance(value, bytes | bytearray) else str(value)


def _numbered(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def start(connector: Connector, checkpoint: Path) -> Callable[..., StreamingQuery]:
    """Start a query over ``options``; ``schema`` and the trigger apart."""

    def started(
        seen: Seen, *, schema: str | None = None, trigger: dict[str, Any] | None = None, **options: Any
    ) -> StreamingQuery:
        reader = connector.spark.readStream.format("bookkeeper")
        reader = reader.options(metadataServiceUri=connector.metadata_service_uri, **options)
        frame = (reader if schema is None else reader.schema(schema)).load()
        writer = frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(checkpoint))
        return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()

    return started


def _run_to_end(query: StreamingQuery) -> StreamingQuery:
    with running(query):
        assert query.awaitTermination(120)
    return query


NOW = {"availableNow": True}


def _offset(progress: Any, which: str, log: str) -> int:
    found: int = json.loads(getattr(progress.sources[0], which))["logs"][log]["offset"]
    return found


# --- rows, batches, restarts ---


@needs_limits
def test_rows_columns_and_lag(connector: Connector, log: str, start: Callable[..., StreamingQuery]) -> None:
    connector.write(connector.spark.sql(texts(50, partitions=3, prefix="a")), log)
    connector.write(connector.spark.sql(texts(20, prefix="b")), log)
    expected = connector.read(log).orderBy("offset").collect()

    seen = Seen()
    options = {"log": log, "startingOffsets": "earliest", "maxEntriesPerTrigger": 30}
    query = _run_to_end(start(seen, trigger=NOW, **options))
    assert [len(rows) for _, rows in sorted(seen.batches.items())] == [30, 30, 10]
    assert seen.rows == expected
    assert seen.rows[0].__fields__ == RAW_SCHEMA.fieldNames()
    assert [_offset(one, "endOffset", log) for one in query.recentProgress if one.numInputRows] == [30, 60, 70]
    # What is left to read shows beside what was read.
    assert _offset(query.recentProgress[0], "latestOffset", log) == 70

    # The next run reads on, with other limits.
    connector.write(connector.spark.sql(texts(100, partitions=4, prefix="c")), log)
    _run_to_end(start(seen, trigger=NOW, log=log, maxBytesPerTrigger="150", minPartitions=2))
    assert seen.values == _numbered("a", 50) + _numbered("b", 20) + _numbered("c", 100)
    assert len(seen.batches) == 5
    assert not seen.run_again
    assert seen.rows == connector.read(log).orderBy("offset").collect()


@needs_limits
def test_s4_restarts_in_the_middle_of_batches(
    connector: Connector, log: str, checkpoint: Path, start: Callable[..., StreamingQuery]
) -> None:
    """``latest``, and the driver dies in the first batch: that has no start in Spark's checkpoint."""
    connector.write(connector.spark.sql(texts(10, prefix="before ")), log)
    seen = Seen()
    with running(start(seen, log=log, maxEntriesPerTrigger=3)) as query:
        wait_until(lambda: 0 in seen.batches, "the first batch")
        wait_for_batch(query, 0)
    # Found where the log ended: an empty batch.
    assert seen.values == []
    connector.write(connector.spark.sql(texts(4, partitions=1, prefix="one ")), log)
    assert forget_last_commit(checkpoint) == 0
    for number in (1, 2):
        # Each run does one batch anew, and goes on.
        _run_to_end(start(seen, trigger=NOW, log=log, maxEntriesPerTrigger=3))
        assert len(seen.run_again) == number
        assert seen.values == _numbered("one ", 4)[: 4 if number == 2 else len(seen.values)]
        forget_last_commit(checkpoint)
    connector.write(connector.spark.sql(texts(5, partitions=1, prefix="two ")), log)
    _run_to_end(start(seen, trigger=NOW, log=log))
    assert seen.values == _numbered("one ", 4) + _numbered("two ", 5)
    assert len(seen.run_again) == 3


@pytest.mark.every_spark
def test_s4_batches_that_are_repeated(
    connector: Connector, log: str, checkpoint: Path, start: Callable[..., StreamingQuery]
) -> None:
    """As every Spark can do it. A limit has no effect before 4.2, and loses nothing."""
    connector.write(connector.spark.sql(texts(10, prefix="before ")), log)
    seen = Seen()
    with running(start(seen, log=log)) as query:
        wait_for_batch(query, 0)
    # Found where the log ended: an empty batch.
    assert seen.values == []
    for number, prefix in enumerate(("one ", "two ")):
        connector.write(connector.spark.sql(texts(4, partitions=1, prefix=prefix)), log)
        assert forget_last_commit(checkpoint) == number
        with running(start(seen, log=log, maxEntriesPerTrigger=4)) as query:
            wait_for_batch(query, number + 1)
    assert seen.run_again == [0, 1]
    assert seen.values == _numbered("one ", 4) + _numbered("two ", 4)
    connector.write(connector.spark.sql(texts(7, partitions=1, prefix="three ")), log)
    _run_to_end(start(seen, trigger=NOW, log=log, maxEntriesPerTrigger=4))
    assert seen.values == _numbered("one ", 4) + _numbered("two ", 4) + _numbered("three ", 7)
    assert len(seen.batches) == (5 if HAS_LIMITS else 4)


@pytest.mark.every_spark
def test_logs_that_grow_and_new_ones(connector: Connector, log: str, start: Callable[..., StreamingQuery]) -> None:
    first, second = f"{log}-1", f"{log}-2"
    connector.write(connector.spark.sql(texts(5, prefix="a")), first)
    seen = Seen()
    with running(
        start(seen, logPattern=f"{log}-.", startingOffsets="earliest", schema="value string, log string")
    ) as query:
        seen.wait_for(5, query)
        connector.write(connector.spark.sql(texts(5, prefix="b")), second)
        seen.wait_for(10, query)
        connector.write(connector.spark.sql(texts(5, prefix="c")), first)
        connector.write(connector.spark.sql(texts(5, prefix="d")), second)
        seen.wait_for(20, query)
    by_log = {name: [row.value for row in seen.rows if row.log == name] for name in (first, second)}
    assert by_log == {first: _numbered("a", 5) + _numbered("c", 5), second: _numbered("b", 5) + _numbered("d", 5)}


@needs_limits
def test_arrow_with_metadata_and_a_schema(
    connector: Connector, log: str, tmp_path: Path, start: Callable[..., StreamingQuery]
) -> None:
    frame = connector.spark.range(0, 1000, 1, 2).selectExpr("id", "concat('é', id) as name", "id * 1.5d as x")
    connector.write(frame, log, entryFormat="arrow", entryBytes="4k", compression="lz4")
    seen = Seen()
    options = {"log": log, "startingOffsets": "earliest", "maxEntriesPerTrigger": 2}
    _run_to_end(start(seen, trigger=NOW, schema="name string, id bigint, offset bigint, entryId bigint", **options))
    assert [(row.id, row.name) for row in seen.rows] == [(number, f"é{number}") for number in range(1000)]
    assert [row.offset for row in seen.rows] == sorted(row.offset for row in seen.rows)
    assert len(seen.batches) == (seen.rows[-1].offset + 2) // 2


def test_what_a_stream_writes_a_stream_reads(
    connector: Connector, log: str, tmp_path: Path, start: Callable[..., StreamingQuery]
) -> None:
    rows, partitions = 20, 2
    written = numbers(connector.spark, rows, partitions).selectExpr("cast(number as string) as value")
    seen = Seen()
    with running(sink(written, connector.metadata_service_uri, log, tmp_path / "writer")) as writer:
        wait_for_batch(writer, 0)
        with running(start(seen, log=log, startingOffsets="earliest", maxEntriesPerTrigger=7)) as query:
            wait_for_batch(writer, 3)
            seen.wait_for(3 * rows, query)
    _run_to_end(start(seen, trigger=NOW, log=log))
    assert_numbers(map(int, seen.values), rows, partitions)
    assert [row.offset for row in seen.rows] == list(range(len(seen.rows)))
    times = [row.timestamp for row in seen.rows]
    assert times == sorted(times)


def test_what_a_log_writer_appends(
    connector: Connector, log: str, logs: LogStore, metadata_service_uri: str, start: Callable[..., StreamingQuery]
) -> None:
    """Its open tail is read as it is confirmed, over rolls; and the same way again when it is sealed."""
    connector.write(connector.spark.sql(texts(5, partitions=1)), log)
    seen = Seen()
    with BlockingClient(metadata_service_uri, ClientConfig(explicit_lac_interval_ms=50)) as client:
        with (
            LogStore.of(client).open_log(log, password=b"").open_writer(roll_entries=40) as writer,
            running(start(seen, log=log, startingOffsets="earliest")) as query,
        ):
            for first in (5, 35, 65):
                writer.append_many([f"row {number}".encode() for number in range(first, first + 30)])
                writer.flush()
                seen.wait_for(first + 30, query)
        assert logs.open_log(log).snapshot().next_offset == 95
    _run_to_end(start(seen, trigger=NOW, log=log))
    assert seen.rows == connector.read(log).orderBy("offset").collect()
    assert seen.values == _numbered("row ", 95)


# --- ledgers ---


def test_a_ledger_that_is_being_written(client: BlockingClient, start: Callable[..., StreamingQuery]) -> None:
    writer = client.create()
    seen = Seen()
    with running(start(seen, ledgerId=writer.ledger_id, startingOffsets="earliest")) as query:
        # How far it is confirmed the bookies are told with the next entry.
        for part in (range(40), range(40, 41)):
            writer.append_many([f"entry {number}".encode() for number in part])
            writer.flush()
        seen.wait_for(40, query)
        writer.append_many([f"entry {number}".encode() for number in range(41, 100)])
        writer.close()
        seen.wait_for(100, query)
    assert seen.values == _numbered("entry ", 100)
    assert {(row.ledgerId, row.log, row.offset, row.timestamp) for row in seen.rows} == {
        (writer.ledger_id, None, None, None)
    }
    assert [row.entryId for row in seen.rows] == list(range(100))
    _run_to_end(start(seen, trigger=NOW, ledgerId=writer.ledger_id))
    assert len(seen.rows) == 100


# --- what is wrong ---


def _failure(query: StreamingQuery) -> str:
    """Our error, as it reaches the user."""
    with running(query), pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination(120)
    found = re.findall(r"bk_spark\.protocol\.errors\.(\w+: .*)", str(raised.value))
    assert found, str(raised.value)
    text: str = found[-1]
    return text


def test_s6_data_loss(connector: Connector, log: str, start: Callable[..., StreamingQuery], logs: LogStore) -> None:
    connector.write(connector.spark.sql(texts(10, prefix="old ")), log)
    seen = Seen()
    _run_to_end(start(seen, trigger=NOW, log=log, startingOffsets=json.dumps({log: 8})))
    connector.write(connector.spark.sql(texts(10, partitions=1, prefix="lost ")), log)
    connector.write(connector.spark.sql(texts(5, partitions=1, prefix="new ")), log, mode="overwrite")
    assert _failure(start(seen, trigger=NOW, log=log)) == (
        f"LogRangeGoneError: log {log}: offsets [10, 20) were removed before the query read them (truncation, "
        "retention or overwrite). To continue without them, set the option failOnDataLoss to false; to start over, "
        "give the query a new checkpoint directory"
    )
    query = _run_to_end(start(seen, trigger=NOW, log=log, failOnDataLoss="false", maxEntriesPerTrigger=3))
    assert seen.values == ["old 8", "old 9", *_numbered("new ", 5)]
    progress = query.lastProgress
    assert progress is not None
    # In the object that Spark 4.0 makes of it, offsets are no JSON.
    (source,) = json.loads(progress.json)["sources"]
    assert source["endOffset"]["logs"][log]["lost"] == 10
    assert not seen.run_again


def test_bad_checkpoints_and_options(connector: Connector, log: str, start: Callable[..., StreamingQuery]) -> None:
    other = f"{log}-other"
    for one in (log, other):
        connector.write(connector.spark.sql(texts(10)), one)
    seen = Seen()
    _run_to_end(start(seen, trigger=NOW, log=log))
    assert f"the query's checkpoint is of log {log}, which its options do not name: they read log {other}" in _failure(
        start(seen, trigger=NOW, log=other)
    )
    for options, text in (
        ({"log": log, "ledgerId": 1}, "log and ledgerId are given"),
        ({"log": log, "endingOffsets": "latest"}, "option endingOffsets is for batch reads only"),
        ({"log": log, "maxEntriesPerTriger": 1}, "did you mean maxEntriesPerTrigger?"),
        ({"log": log, "maxEntriesPerTrigger": 0}, "option maxEntriesPerTrigger: '0' must be"),
        ({"log": f"{log}-none"}, f"there is no log {log}-none"),
        ({"log": log, "startingOffsets": "latest", "startingTimestamp": 0}, "startingOffsets and startingTimestamp"),
    ):
        with pytest.raises(PySparkException, match=re.escape(text)):
            start(seen, **options).awaitTermination(60)
