"""Batch reads: a snapshot of logs, or of ledgers, cut into tasks by bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from bk_spark.datasource.options import SourceOptions
from bk_spark.datasource.plain_errors import plain_errors, plain_errors_in
from bk_spark.datasource.planning import (
    check_ledger_schema,
    ledger_pieces,
    log_bounds,
    log_pieces,
    open_ledger,
    open_logs,
    own_columns,
    splits_of,
)
from bk_spark.datasource.positions import Bounds, batch_ranges
from bk_spark.datasource.pushdown import Conditions
from bk_spark.datasource.split_rows import Split, read_split
from bk_spark.datasource.splits import Pieces
from bk_spark.log.settings import EntryFormat


class BatchReader(DataSourceReader):
    """Reads confirmed entries: a log's committed ones and those of its open tail, or a ledger's."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._conditions = Conditions()

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """The snapshot that every action on this DataFrame reads."""
        if self._options.ledgers is None:
            entry_format, pieces = self._of_logs()
        else:
            entry_format, pieces = self._of_ledgers(self._options.ledgers)
        return [*splits_of(self._options, entry_format, pieces)]

    @plain_errors_in
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split, a block of entries at a time."""
        if isinstance(partition, Split):
            yield from read_split(self._options, self._schema, partition)

    def _of_logs(self) -> tuple[EntryFormat, list[Pieces]]:
        options = self._options
        logs = open_logs(options, self._schema)
        conditions = self._conditions.without(*(own_columns(log) for log in logs.values()))
        snapshots = {name: log.snapshot() for name, log in logs.items()}
        bounds = {name: log_bounds(log, snapshots[name]) for name, log in logs.items()}
        pieces = []
        for name, asked in batch_ranges(options, bounds).items():
            start, end = conditions.within(*asked, bounds[name])
            pieces.append(conditions.among(log_pieces(logs[name], snapshots[name], start, end)))
        return next(iter(logs.values())).settings.entry_format, pieces

    def _of_ledgers(self, ledger_ids: tuple[int, ...]) -> tuple[EntryFormat, list[Pieces]]:
        options = self._options
        entry_format = options.entry_format or EntryFormat.RAW
        # What columns entries of arrow have beyond the first nobody knows.
        conditions = self._conditions if entry_format is EntryFormat.RAW else Conditions()
        readers = {str(ledger_id): open_ledger(options, ledger_id) for ledger_id in ledger_ids}
        for reader in readers.values():
            check_ledger_schema(options, self._schema, reader)
        bounds = {name: Bounds(0, reader.last_add_confirmed + 1) for name, reader in readers.items()}
        ranges = batch_ranges(options, bounds)
        return entry_format, [
            conditions.among(ledger_pieces(reader, *ranges[name])) for name, reader in readers.items()
        ]


class PushDownFiltersReader(BatchReader):
    """For option pushDownFilters. Spark refuses every read of a reader that has ``pushFilters`` while its conf
    ``spark.sql.python.filterPushdown.enabled`` is false, and names the class and the conf in its error."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's)
        """Keep what helps to read less; all of ``filters`` are also for Spark to apply."""
        self._conditions = Conditions.of(filters)
        return filters


def batch_reader(options: SourceOptions, schema: StructType) -> BatchReader:
    """The reader that ``options`` ask for."""
    return (PushDownFiltersReader if options.push_down_filters else BatchReader)(options, schema)
