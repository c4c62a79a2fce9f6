"""Streaming reads of topics: the class that Spark calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from bk_spark.datasource.plain_errors import plain_errors_in
from bk_spark.datasource.pulsar.rows import TopicSplit, read_topic_split
from bk_spark.datasource.stream.reader import StreamReader

if TYPE_CHECKING:
    from bk_spark.datasource.stream.planner import StreamPlanner


class TopicStreamReader(StreamReader):
    """Reads topics as they grow. The constructor does not use the network."""

    @plain_errors_in
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one split, a block of entries at a time."""
        if isinstance(partition, TopicSplit):
            yield from read_topic_split(self._options, self._schema, partition)

    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            # Imported here because tasks do not need it.
            from bk_spark.datasource.pulsar.stream_planner import TopicStreamPlanner

            self._planner = TopicStreamPlanner(self._options, self._schema)
        return self._planner
