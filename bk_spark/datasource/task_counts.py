"""What tasks count for :class:`bk_spark.StreamMetrics`: ledgers, retries.

Tasks run in processes of executors, and Spark gives them no channel for metrics of their own. But a data source is
registered as a Python function, and Spark passes that function's accumulator on to all functions of the source. So the
tasks of a source that the driver's program has registered may use accumulators, as functions of an RDD may. Those of a
source that Spark found by itself may not: Spark drops their updates. Tasks learn the number of the accumulator from a
setting of the session.

As with all accumulators, a task counts when it succeeds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark import Accumulator, AccumulatorParam, TaskContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from bk_spark.bookie.client_counts import ClientCounts
from bk_spark.datasource.connections import client_of
from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.stream.identity import query_id_of
from bk_spark.protocol.errors import InvalidArgumentError

#: The session's setting that has the number of the accumulator.
SETTING: Final = "spark.bookkeeper.taskCounts"
#: What tasks of batches count under.
BATCHES: Final = ""
#: The most queries that are kept. Those without news for the longest time go first.
_MAX_QUERIES: Final = 1_000

#: Counts in the order of the fields of ClientCounts, by query id.
_Counts = dict[str, tuple[int, ...]]


class _Sums(AccumulatorParam[_Counts]):
    """Adds counts. A sum is a new value, since another thread may look at the old one."""

    def zero(self, value: _Counts) -> _Counts:
        return {}

    def addInPlace(self, value1: _Counts, value2: _Counts) -> _Counts:  # noqa: N802 (Spark's name)
        found = dict(value1)
        for query, more in value2.items():
            before = found.pop(query, (0,) * len(more))
            found[query] = tuple(map(sum, zip(before, more, strict=True)))
        while len(found) > _MAX_QUERIES:
            del found[next(iter(found))]
        return found


class TaskCounts:
    """The sums of a session's tasks, in the driver's program. Thread-safe. Registers ``source``, the data source.

    Raises InvalidArgumentError for a session of Spark Connect, and for a Spark that refuses to register the source
    again.
    """

    def __init__(self, spark: SparkSession, source: type[DataSource]) -> None:
        try:
            self._accumulator = spark.sparkContext.accumulator({}, _Sums())
        except PySparkException as error:
            raise InvalidArgumentError(
                "tasks can count only in a session whose driver is in this process: Spark Connect has no accumulators. "
                "Leave count_tasks out"
            ) from error
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            raise InvalidArgumentError(
                f"tasks cannot count with Spark {spark.version}, because it does not register a source again that it "
                f"has found by itself ({error.getCondition()}). Leave count_tasks out, or use a newer Spark"
            ) from error
        spark.conf.set(SETTING, str(self._accumulator.aid))

    def of(self, query_id: str) -> ClientCounts | None:
        """Return the sums of a query, or of :data:`BATCHES`. None if no task has ended."""
        found = self._accumulator.value.get(query_id)
        return None if found is None else ClientCounts(*found)


@contextmanager
def counted(options: SourceOptions) -> Iterator[None]:
    """Count what the client of a task does meanwhile, if the session has the setting."""
    context = TaskContext.get()
    told = None if context is None else context.getLocalProperty(SETTING)
    if context is None or told is None:
        yield
        return
    client = client_of(options.metadata_service_uri, options.client)
    before = dataclasses.astuple(client.counts)
    try:
        yield
    finally:
        done = tuple(now - then for now, then in zip(dataclasses.astuple(client.counts), before, strict=True))
        query = query_id_of(context) or BATCHES
        # Spark's worker sends the updates of all accumulators that exist when the task ends.
        Accumulator(int(told), {}, _Sums()).add({query: done})
