"""Plans batch reads: takes a snapshot of logs or ledgers and cuts it into tasks by bytes."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructType

from bk_spark.datasource.entries.split_rows import Split
from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.options.positions import batch_ranges, ending_position
from bk_spark.datasource.planning import (
    check_ledger_schema,
    column_lookup,
    ledger_pieces,
    log_snapshots,
    open_ledger,
    open_logs,
    own_columns,
    past_snapshots,
    splits_of,
)
from bk_spark.datasource.pushdown import Conditions
from bk_spark.log.entries.pieces import Pieces
from bk_spark.log.formats.settings import EntryFormat
from bk_spark.log.log import Log
from bk_spark.log.positions.bounds import Bounds
from bk_spark.log.tables.ranges import log_bounds, log_pieces


def batch_splits(options: SourceOptions, schema: StructType, conditions: Conditions) -> list[Split]:
    """Return the tasks of a batch: everything readable now that may match ``conditions``.

    Raises LogRangeGoneError and InvalidArgumentError for missing or incompatible ranges, schemas and logs, and any
    error from opening logs and ledgers.
    """
    if options.ledgers is not None:
        return splits_of(options, *_of_ledgers(options, options.ledgers, schema, conditions))
    logs = open_logs(options, schema)
    pieces = _of_logs(options, logs, conditions)
    entry_format = next(iter(logs.values())).settings.entry_format
    return splits_of(options, entry_format, pieces, column_lookup(options, schema, logs.values()))


def _of_logs(options: SourceOptions, logs: Mapping[str, Log], conditions: Conditions) -> list[Pieces]:
    conditions = conditions.without(*(own_columns(log) for log in logs.values()))
    snapshots = log_snapshots(logs)
    if options.as_of is not None:
        snapshots = past_snapshots(options.as_of, logs, snapshots)
    bounds = {name: log_bounds(log, snapshots[name], ending_position(options, name)) for name, log in logs.items()}
    pieces = []
    for name, asked in batch_ranges(options, bounds).items():
        start, end = conditions.within(*asked, bounds[name])
        pieces.append(conditions.among(log_pieces(logs[name], snapshots[name], start, end)))
    return pieces


def _of_ledgers(
    options: SourceOptions, ledger_ids: tuple[int, ...], schema: StructType, conditions: Conditions
) -> tuple[EntryFormat, list[Pieces]]:
    entry_format = options.entry_format or EntryFormat.RAW
    if entry_format is not EntryFormat.RAW:
        # Only the first entry's columns are known; later arrow entries may have others.
        conditions = Conditions()
    readers = {str(ledger_id): open_ledger(options, ledger_id) for ledger_id in ledger_ids}
    for reader in readers.values():
        check_ledger_schema(options, schema, reader)
    bounds = {name: Bounds(0, reader.last_add_confirmed + 1) for name, reader in readers.items()}
    ranges = batch_ranges(options, bounds)
    return entry_format, [conditions.among(ledger_pieces(reader, *ranges[name])) for name, reader in readers.items()]
