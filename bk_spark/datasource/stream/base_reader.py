"""What readers of streams have in common, whatever the release of Spark.

Spark asks for offsets and partitions in one process per run of a query. It sends a copy of the reader, made in another
process, to the tasks. Offset handling is therefore a separate object, created on first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from bk_spark.datasource.entries.split_rows import Split, read_split
from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.plain_errors import plain_errors, plain_errors_in

if TYPE_CHECKING:
    from bk_spark.datasource.stream.planner import StreamPlanner

#: An offset as Spark's checkpoint keeps it.
JsonOffset = dict[str, Any]


class BaseReader(DataSourceStreamReader):
    """Reads logs, or a ledger, as they grow. The constructor does not use the network."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}

    @plain_errors
    def initialOffset(self) -> JsonOffset:  # noqa: N802 (Spark's name)
        """Return where a new query starts. The same on every call."""
        planner = self._plan()
        return planner.to_json(planner.initial())

    @plain_errors
    def partitions(self, start: JsonOffset, end: JsonOffset) -> list[InputPartition]:
        """Return the tasks of the batch from ``start`` to ``end``. Raises LogRangeGoneError for data that is gone."""
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

    def _next(self, start: JsonOffset, *, limited: bool) -> JsonOffset:
        """Return the end of the batch that begins at ``start``."""
        planner = self._plan()
        begun = planner.parse(start)
        end = planner.next(begun, limited=limited)
        # Spark compares offsets by their texts.
        return start if end is begun else planner.to_json(end)

    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            # Imported here because tasks do not need it.
            from bk_spark.datasource.stream.planner import LogStreamPlanner

            self._planner = LogStreamPlanner(self._options, self._schema)
        return self._planner
