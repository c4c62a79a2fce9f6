"""Planning shared by batches and streams: a read's logs or ledgers, their schema, and their pieces cut into tasks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from bk_spark.bookie.blocking import BlockingReader
from bk_spark.datasource.connections import client_of, logs_of
from bk_spark.datasource.entries.schemas import (
    RAW_SCHEMA,
    check_arrow_read,
    check_raw_read,
    check_same_schema,
    columns_of,
    schema_of_json,
    stored_schema,
    with_metadata,
)
from bk_spark.datasource.entries.split_rows import Split
from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.pyspark_api import spark_struct
from bk_spark.log.entries import arrow_format
from bk_spark.log.entries.fit import ColumnLookup
from bk_spark.log.entries.pieces import Piece, Pieces, cut_splits
from bk_spark.log.entries.schema_checks import has_names, own_names
from bk_spark.log.entries.schema_text import parse_schema
from bk_spark.log.formats.schema_merge import ANY_CASE, EXACT
from bk_spark.log.formats.settings import EntryFormat
from bk_spark.log.io.snapshot import LogSnapshot
from bk_spark.log.log import Log
from bk_spark.log.positions.bounds import check_names
from bk_spark.log.positions.texts import AsOfs
from bk_spark.protocol.errors import (
    InvalidArgumentError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLogError,
    UnauthorizedError,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerState

_SAMPLE_ENTRIES: Final = 16
_MAX_SESSIONS: Final = 3


# --- schemas ---


def read_schema(options: SourceOptions) -> StructType:
    """Return the schema of a read for which the user gives none: from the logs' settings, or from each ledger's first
    entry."""
    if options.ledgers is None:
        logs = open_logs(options)
        log = next(iter(logs.values()))
        if log.settings.entry_format is EntryFormat.RAW:
            return RAW_SCHEMA
        stored = schema_of_json(log.settings.schema_json)
    elif options.entry_format is EntryFormat.ARROW:
        stored = _schema_of_ledgers(options)
    else:
        _refuse_metadata_option(options)
        return RAW_SCHEMA
    return with_metadata(stored) if options.include_metadata else stored


def check_log_schema(options: SourceOptions, schema: StructType, log: Log) -> None:
    """Raise InvalidArgumentError, naming the column, if ``log`` cannot be read as ``schema``."""
    if log.settings.entry_format is EntryFormat.RAW:
        check_raw_read(schema)
    else:
        check_arrow_read(
            schema,
            schema_of_json(log.settings.schema_json),
            f"log {log.name}",
            include_metadata=options.include_metadata,
        )


def column_lookup(options: SourceOptions, schema: StructType, logs: Iterable[Log]) -> ColumnLookup:
    """Return how tasks find the columns of ``schema`` in entries of ``logs``.

    Columns of the connector that includeMetadata has added are its own, even if a log has grown one of that name since.
    """
    wanted, names, own = columns_of(schema), EXACT, {}
    for log in logs:
        if log.settings.entry_format is EntryFormat.RAW:
            continue
        stored = parse_schema(log.settings.schema_json)
        if not has_names(stored, wanted):
            names = ANY_CASE
        shared = own_names(stored)
        if shared and not options.include_metadata:
            own[log.name] = shared
    return ColumnLookup(names, own)


def own_columns(log: Log) -> list[str]:
    """Return the columns of an arrow log that are called as the connector's, by the connector's names. A raw log has
    only the connector's columns."""
    return [*own_names(parse_schema(log.settings.schema_json))] if log.settings.schema_json else []


# --- logs ---


def log_names(options: SourceOptions) -> list[str]:
    """Return the names of the logs to read. With ``logPattern``: the logs that match now, sorted, possibly none."""
    if options.log is not None:
        return [options.log]
    if options.logs is not None:
        return list(options.logs)
    assert options.log_pattern is not None
    pattern = re.compile(options.log_pattern)
    names = logs_of(options.metadata_service_uri, options.log_root, options.client).list_logs()
    return [name for name in names if pattern.fullmatch(name)]


def open_logs(options: SourceOptions, schema: StructType | None = None) -> dict[str, Log]:
    """Open the logs of a read, by name, with access to their ledgers.

    All must have the same entry format and password. Each must be readable as ``schema``; without a schema, all must
    have the same columns. Raises NoSuchLogError (also if a pattern matches nothing), UnauthorizedError,
    InvalidArgumentError.
    """
    names = log_names(options)
    if not names:
        count = len(logs_of(options.metadata_service_uri, options.log_root, options.client).list_logs())
        raise NoSuchLogError(
            f"option logPattern: {options.log_pattern!r} matches none of the {count} logs under {options.log_root}; "
            "it must match a log's whole name"
        )
    logs = open_named(options, names)
    if len(logs) < len(names):
        store = logs_of(options.metadata_service_uri, options.log_root, options.client)
        # Raises the error that says what is missing, unless the log was made just now.
        logs = {name: logs.get(name) or store.open_log(name, password=options.password()) for name in names}
    check_alike(options, logs, schema)
    return logs


def open_named(options: SourceOptions, names: Sequence[str]) -> dict[str, Log]:
    """Open the logs of a read that exist, with few requests. Raises UnauthorizedError."""
    try:
        return logs_of(options.metadata_service_uri, options.log_root, options.client).open_logs(
            names, password=options.password()
        )
    except UnauthorizedError as error:
        if options.log is not None:
            raise
        raise UnauthorizedError(f"{error.message}; all logs of one read must have one password") from error


def check_alike(options: SourceOptions, logs: Mapping[str, Log], schema: StructType | None) -> None:
    """Raise InvalidArgumentError if ``logs``, at least one, cannot be read together with these options."""
    first = next(iter(logs.values()))
    #: Schemas that were compared. Many logs have the same one.
    compared: set[str | None] = set()
    for log in logs.values():
        settings = log.settings
        if options.entry_format not in (None, settings.entry_format):
            raise InvalidArgumentError(
                f"option entryFormat: log {log.name} was made with {settings.entry_format.value}; leave the option out"
            )
        if settings.entry_format is not first.settings.entry_format:
            raise InvalidArgumentError(
                f"log {first.name} has entryFormat {first.settings.entry_format.value} and log {log.name} "
                f"{settings.entry_format.value}: read them apart"
            )
        if settings.schema_json in compared:
            continue
        compared.add(settings.schema_json)
        if schema is not None:
            check_log_schema(options, schema, log)
        elif settings.entry_format is EntryFormat.ARROW and log is not first:
            check_same_schema(
                schema_of_json(settings.schema_json), log.name, schema_of_json(first.settings.schema_json), first.name
            )
    if first.settings.entry_format is EntryFormat.RAW:
        _refuse_metadata_option(options)


def log_snapshots(logs: Mapping[str, Log]) -> dict[str, LogSnapshot]:
    """Return the current list of each log, with its tail page, after one sync.

    Raises NoSuchLogError, LogReplacedError, MetadataUnavailableError.
    """
    zk = next(iter(logs.values())).zookeeper
    for _ in range(_MAX_SESSIONS):
        session = zk.session_id
        zk.sync(next(iter(logs.values())).paths.head)
        heads = zk.get_many([log.paths.head for log in logs.values()])
        snapshots = {name: log.snapshot_at(heads[log.paths.head], session) for name, log in logs.items()}
        tails = zk.get_many([snapshot.tail_path for snapshot in snapshots.values()])
        # The server of another session may be behind.
        if session and zk.session_id == session:
            for snapshot in snapshots.values():
                tail = tails[snapshot.tail_path]
                if tail is not None:
                    snapshot.look_at_tail(tail)
            return snapshots
    raise MetadataUnavailableError(f"sessions with ZooKeeper ended {_MAX_SESSIONS} times while lists of logs were read")


def past_snapshots(
    as_of: AsOfs, logs: Mapping[str, Log], snapshots: Mapping[str, LogSnapshot]
) -> dict[str, LogSnapshot]:
    """Return each log as the commit in ``as_of`` left it. Raises LogRangeGoneError, InvalidArgumentError."""
    if isinstance(as_of, Mapping):
        check_names("asOf", as_of, logs, missing="no commit")
    return {
        name: snapshot.as_of(as_of[name] if isinstance(as_of, Mapping) else as_of, logs[name].measured_now_ms)
        for name, snapshot in snapshots.items()
    }


def splits_of(
    options: SourceOptions, entry_format: EntryFormat, pieces: Iterable[Pieces], lookup: ColumnLookup | None = None
) -> list[Split]:
    """Cut ``pieces`` into tasks according to the options."""
    return [Split(entry_format, part, lookup or ColumnLookup()) for part in cut_by_options(options, pieces)]


def cut_by_options(options: SourceOptions, pieces: Iterable[Pieces]) -> list[Pieces]:
    """Return what each task reads of ``pieces``, as the options have it."""
    return cut_splits(
        Pieces.concat(pieces), options.split_bytes, options.min_partitions, options.max_records_per_partition
    )


# --- ledgers ---


def open_ledger(options: SourceOptions, ledger_id: int) -> BlockingReader:
    """Open a ledger with its last add confirmed. Raises NoSuchLedgerError, UnauthorizedError."""
    try:
        return client_of(options.metadata_service_uri, options.client).open_for_reading(ledger_id, options.password())
    except UnauthorizedError as error:
        raise UnauthorizedError(
            f"{error.message}: give the one the ledger was made with (option password or passwordFile)",
            ledger_id=ledger_id,
        ) from error
    except NoSuchLedgerError as error:
        raise NoSuchLedgerError(
            f"there is no such ledger in {options.metadata_service_uri}: check option "
            f"{'ledgerIds' if options.ledger_id is None else 'ledgerId'}",
            ledger_id=ledger_id,
        ) from error


def check_ledger_schema(options: SourceOptions, schema: StructType, reader: BlockingReader) -> None:
    """Raise InvalidArgumentError, naming the column, if the ledger cannot be read as ``schema``."""
    if options.entry_format is not EntryFormat.ARROW:
        _refuse_metadata_option(options)
        check_raw_read(schema)
    elif reader.last_add_confirmed >= 0:
        check_arrow_read(schema, _first_schema(reader), f"ledger {reader.ledger_id}", EXACT)


def ledger_pieces(reader: BlockingReader, start: int, end: int) -> Pieces:
    """Return the entries ``[start, end)`` of a ledger. They must be confirmed."""
    if start >= end:
        return Pieces.of(())
    size_bytes, entries = known_size(reader)
    size = max(1, size_bytes * (end - start) // entries)
    return Pieces.of([Piece(reader.ledger_id, start, end - 1, size, end - start)])


def known_size(reader: BlockingReader) -> tuple[int, int]:
    """Return payload bytes and the number of entries they cover: all of a closed ledger, the first ones of an open one.
    The ledger must have entries."""
    last = reader.last_add_confirmed
    if reader.metadata.state is LedgerState.CLOSED:
        return reader.metadata.length, last + 1
    sample = reader.read(0, min(last, _SAMPLE_ENTRIES - 1))
    return sum(map(len, sample)), len(sample)


def _schema_of_ledgers(options: SourceOptions) -> StructType:
    assert options.ledgers is not None
    found: StructType | None = None
    for ledger_id in options.ledgers:
        reader = open_ledger(options, ledger_id)
        if reader.last_add_confirmed < 0:
            continue
        schema = _first_schema(reader)
        if found is None:
            found, first = schema, ledger_id
        else:
            check_same_schema(schema, str(ledger_id), found, str(first), "ledger")
    if found is None:
        raise NoSuchEntryError(
            "entryFormat arrow takes the schema from the first entry, and the ledger has none: give one with schema()",
            ledger_id=options.ledgers[0],
        )
    return found


def _first_schema(reader: BlockingReader) -> StructType:
    """Return the schema in the first entry of a ledger."""
    (first,) = reader.read(0, 0)
    schema = arrow_format.schema_in(memoryview(first), f"entry 0 of ledger {reader.ledger_id}")
    try:
        return stored_schema(spark_struct(schema))
    except PySparkException as error:
        raise InvalidArgumentError(
            f"Spark has no type for a column of this Arrow schema: {error}", ledger_id=reader.ledger_id
        ) from error


def _refuse_metadata_option(options: SourceOptions) -> None:
    if options.include_metadata:
        raise InvalidArgumentError(
            "option includeMetadata is for entryFormat arrow; raw reads have these columns anyway"
        )
