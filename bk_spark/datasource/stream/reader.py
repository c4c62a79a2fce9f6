"""Streaming reads: ``readStream.format("bookkeeper")``.

Spark asks for offsets and partitions in one process per run of a query. It sends a copy of the reader, made in another
process, to the tasks. Offset handling is therefore a separate object, created on first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from bk_spark.datasource.entries.split_rows import Split, read_split
from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.plain_errors import plain_errors, plain_errors_in

if TYPE_CHECKING:
    from bk_spark.datasource.stream.planner import StreamPlanner

_JsonOffset = dict[str, Any]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads logs, or a ledger, as they grow. The constructor does not use the network."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}

    @plain_errors
    def initialOffset(self) -> _JsonOffset:  # noqa: N802 (Spark's names, here and below)
        """Return where a new query starts. The same on every call."""
        planner = self._plan()
        return planner.to_json(planner.initial())

    @plain_errors
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return anything but ReadAllAvailable if there are limits. Spark supports one limit at a time. It passes
        ReadAllAvailable back if the trigger has no limit. That is the only use of the argument."""
        options = self._options
        if options.max_entries_per_trigger is not None:
            return ReadMaxRows(options.max_entries_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_entries_per_trigger is not None:
            return ReadMinRows(options.min_entries_per_trigger)
        return ReadAllAvailable()

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._plan().stop_at_present_end()

    @plain_errors
    def latestOffset(self, start: _JsonOffset, limit: ReadLimit) -> _JsonOffset:  # noqa: N802
        planner = self._plan()
        begun = planner.parse(start)
        end = planner.next(begun, limited=not isinstance(limit, ReadAllAvailable))
        # Spark compares offsets by their texts.
        return start if end is begun else planner.to_json(end)

    @plain_errors
    def reportLatestOffset(self) -> _JsonOffset | None:  # noqa: N802
        """Return the known end, regardless of limits. Its distance to a batch's end is the lag."""
        planner = self._planner
        latest = None if planner is None else planner.latest_known()
        return None if planner is None or latest is None else planner.to_json(latest)

    @plain_errors
    def partitions(self, start: _JsonOffset, end: _JsonOffset) -> list[InputPartition]:
        # Spark may pass the same offset twice, only to say which one was last.
        if start == end:
            return []
        planner = self._plan()
        return [*planner.splits(planner.parse(start), planner.parse(end))]

    @plain_errors_in
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one split, a block of entries at a time."""
        if isinstance(partition, Split):
            yield from read_split(self._options, self._schema, partition)

    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            # Imported here because tasks do not need it.
            from bk_spark.datasource.stream.planner import LogStreamPlanner

            self._planner = LogStreamPlanner(self._options, self._schema)
        return self._planner
