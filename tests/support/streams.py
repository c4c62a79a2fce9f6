"""Streaming queries of tests: started, watched and compared with what they should have written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

_PATIENCE_S = 240
_POLL_S = 0.05


def numbers(spark: SparkSession, rows_per_batch: int, partitions: int) -> DataFrame:
    """Endless batches of ``number``, with the same batches and partitions every time. Partition ``p`` of a batch
    has the numbers with remainder ``p`` modulo ``partitions``, in order."""
    source = spark.readStream.format("rate-micro-batch")
    source = source.option("rowsPerBatch", rows_per_batch).option("numPartitions", partitions)
    return source.load().selectExpr("value as number")


class JvmError(Exception):
    """The JVM's account of why a query failed. Of some errors PySpark's own has only the plan, and what is repeated is
    found by its text (pyproject.toml)."""


@contextmanager
def running(query: StreamingQuery) -> Iterator[StreamingQuery]:
    """Stop the query at the end, however it ends."""
    try:
        yield query
    finally:
        query.stop()


def newest_batch(query: StreamingQuery) -> int:
    """The newest batch of which there is progress; -1 for none. To ask for all progress that Spark has kept takes a
    core, again and again."""
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def wait_for_batch(query: StreamingQuery, batch_id: int) -> None:
    """Wait until the query has committed ``batch_id``. Raises the query's error if it failed."""

    def reached() -> bool:
        failure = query.exception()
        if failure is not None:
            raise failure from JvmError(getattr(getattr(failure, "_cause", None), "_stackTrace", ""))
        assert query.isActive, "the query ended"
        return newest_batch(query) >= batch_id

    wait_until(reached, f"batch {batch_id}")


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = _PATIENCE_S) -> None:
    """For states of other processes, which send no notification."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"no {what} within {timeout_s} s"
        time.sleep(_POLL_S)


def expected_numbers(rows_per_batch: int, partitions: int, batches: int) -> list[int]:
    """The rows of :func:`numbers` in this many batches, in the order of a log: batch after batch, within a batch
    partition after partition."""
    expected: list[int] = []
    for batch in range(batches):
        rows = range(batch * rows_per_batch, (batch + 1) * rows_per_batch)
        for partition in range(partitions):
            expected += rows[partition::partitions]
    return expected


def assert_numbers(found: Iterable[int], rows_per_batch: int, partitions: int, batches: int | None = None) -> int:
    """Check that ``found``, in the log's order, holds the expected numbers of the first ``batches`` (None: any
    whole number). Returns the number of batches."""
    listed = list(found)
    if batches is None:
        assert len(listed) % rows_per_batch == 0, f"{len(listed)} rows are no whole number of batches"
        batches = len(listed) // rows_per_batch
    expected = expected_numbers(rows_per_batch, partitions, batches)
    assert len(listed) == len(expected), f"{len(listed)} rows instead of {len(expected)}"
    assert listed == expected
    return batches


def committed(checkpoint: Path) -> list[int]:
    """Batches that Spark's own checkpoint lists as committed."""
    return sorted(int(path.name) for path in (checkpoint / "commits").glob("*") if path.name.isdigit())


def forget_last_commit(checkpoint: Path, in_log: int | None = None) -> int:
    """Remove the newest batch from the checkpoint's commits, as if the driver had died before writing it: Spark then
    runs the batch again. Returns its number. There must be one.

    ``in_log``: the last batch in the query's sink. If the sink already has a later one, nothing is removed: Spark
    repeats that one by itself, and never an earlier one.
    """
    last = committed(checkpoint)[-1]
    if in_log is not None and in_log > last:
        return in_log
    for path in (checkpoint / "commits").iterdir():
        if path.name in (str(last), f".{last}.crc"):
            path.unlink()
    # A query that ended within its next batch had already planned that batch. Spark would continue there.
    for path in (checkpoint / "offsets").iterdir():
        number = path.name.removeprefix(".").removesuffix(".crc")
        if number.isdecimal() and int(number) > last:
            path.unlink()
    return last


def set_back(checkpoint: Path, to_batch: int) -> None:
    """Restore the checkpoint to its state after ``to_batch``, like a copy made at that time."""
    for path in [*(checkpoint / "offsets").iterdir(), *(checkpoint / "commits").iterdir()]:
        number = path.name.removeprefix(".").removesuffix(".crc")
        if number.isdecimal() and int(number) > to_batch:
            path.unlink()


def sink(
    frame: DataFrame, uri: str, log: str, checkpoint: Path, *, trigger: dict[str, Any] | None = None, **options: Any
) -> StreamingQuery:
    """Start writing ``frame`` to a log, as raw entries if its only column is ``value``. A ``trigger`` other than the
    default is given as PySpark's arguments."""
    if frame.columns == ["value"]:
        options = {"entryFormat": "raw"} | options
    writer = frame.writeStream.format("bookkeeper").option("checkpointLocation", str(checkpoint))
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer.options(metadataServiceUri=uri, log=log, **options).start()
