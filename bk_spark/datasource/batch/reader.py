"""Batch reads: the classes that Spark calls."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bk_spark.datasource.entries.split_rows import Split, read_split
from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.plain_errors import plain_errors, plain_errors_in
from bk_spark.datasource.pushdown import Conditions
from bk_spark.datasource.pyspark_api import HAS_FILTERS

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_LOG: Final = logging.getLogger(__name__)


class BatchReader(DataSourceReader):
    """Reads the confirmed entries of a log (committed, and in its open tail) or of a ledger."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._conditions = Conditions()

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """Return the tasks: the snapshot that every action on this DataFrame reads."""
        # Imported here because tasks do not need it.
        from bk_spark.datasource.batch.planner import batch_splits

        return [*batch_splits(self._options, self._schema, self._conditions)]

    @plain_errors_in
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one split, a block of entries at a time."""
        if isinstance(partition, Split):
            yield from read_split(self._options, self._schema, partition)


class PushDownFiltersReader(BatchReader):
    """The reader for option pushDownFilters.

    Spark fails every read by a reader that has ``pushFilters`` while ``spark.sql.python.filterPushdown.enabled`` is
    false. Its error names the class and the conf.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's)
        """Keep the filters that reduce reading. Spark still applies all of ``filters``."""
        self._conditions = Conditions.of(filters)
        return filters


def batch_reader(options: SourceOptions, schema: StructType) -> BatchReader:
    """Return the reader for ``options``."""
    if not options.push_down_filters:
        return BatchReader(options, schema)
    if not HAS_FILTERS:
        _LOG.warning("option pushDownFilters has no effect: Spark passes filters to sources in Python from 4.1 on")
        return BatchReader(options, schema)
    return PushDownFiltersReader(options, schema)
