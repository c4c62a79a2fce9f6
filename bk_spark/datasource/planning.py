"""What a read is of: its logs or ledgers, their schema, and their pieces cut into tasks. For batches and streams."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from bk_spark.bookie.blocking_reader import BlockingReader
from bk_spark.datasource.connections import client_of, logs_of
from bk_spark.datasource.entries import arrow_format
from bk_spark.datasource.entries.schemas import (
    RAW_SCHEMA,
    check_arrow_read,
    check_raw_read,
    check_same_schema,
    schema_of_json,
    stored_schema,
    with_metadata,
)
from bk_spark.datasource.entries.split_rows import Split
from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.options.positions import Bounds
from bk_spark.datasource.splits import Piece, Pieces, cut_splits
from bk_spark.log.formats.segment import Segment
from bk_spark.log.formats.settings import EntryFormat
from bk_spark.log.log import Log
from bk_spark.log.snapshot import LogSnapshot
from bk_spark.protocol.errors import (
    InvalidArgumentError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLogError,
    UnauthorizedError,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerState

#: Bytes of an entry of which nothing is known.
_UNKNOWN_ENTRY_BYTES: Final = 1024
_SAMPLE_ENTRIES: Final = 16


# --- schemas ---


def read_schema(options: SourceOptions) -> StructType:
    """The schema of a read for which the user gave none: of the logs' settings, or of each ledger's first entry."""
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


def check_log_schema(schema: StructType, log: Log) -> None:
    """Raises InvalidArgumentError where ``log`` cannot be read as ``schema``, naming the column."""
    if log.settings.entry_format is EntryFormat.RAW:
        check_raw_read(schema)
    else:
        check_arrow_read(schema, schema_of_json(log.settings.schema_json), f"log {log.name}")


def own_columns(log: Log) -> list[str]:
    """Columns of an arrow log; a raw one has none but the connector's."""
    return schema_of_json(log.settings.schema_json).fieldNames() if log.settings.schema_json else []


# --- logs ---


def log_names(options: SourceOptions) -> list[str]:
    """Names of the logs that a read is of; with ``logPattern`` those that there are now, perhaps none, sorted."""
    if options.log is not None:
        return [options.log]
    if options.logs is not None:
        return list(options.logs)
    assert options.log_pattern is not None
    pattern = re.compile(options.log_pattern)
    names = logs_of(options.metadata_service_uri, options.log_root).list_logs()
    return [name for name in names if pattern.fullmatch(name)]


def open_logs(options: SourceOptions, schema: StructType | None = None) -> dict[str, Log]:
    """The logs of a read, by name, with their ledgers within reach.

    All have one entry format and password; and each can be read as ``schema``, or, without one, all have the same
    columns. Raises NoSuchLogError (also where a pattern matches nothing), UnauthorizedError, InvalidArgumentError.
    """
    names = log_names(options)
    if not names:
        count = len(logs_of(options.metadata_service_uri, options.log_root).list_logs())
        raise NoSuchLogError(
            f"option logPattern: {options.log_pattern!r} matches none of the {count} logs under {options.log_root}; "
            "it must match a log's whole name"
        )
    logs = {name: open_log(options, name) for name in names}
    check_alike(options, logs, schema)
    return logs


def open_log(options: SourceOptions, name: str) -> Log:
    """One of the logs of a read. Raises NoSuchLogError, UnauthorizedError."""
    try:
        return logs_of(options.metadata_service_uri, options.log_root).open_log(name, password=options.password())
    except UnauthorizedError as error:
        if options.log is not None:
            raise
        raise UnauthorizedError(f"{error.message}; all logs of one read must have one password") from error


def check_alike(options: SourceOptions, logs: Mapping[str, Log], schema: StructType | None) -> None:
    """Raises InvalidArgumentError where ``logs``, at least one, cannot be read together and with these options."""
    first = next(iter(logs.values()))
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
        if schema is not None:
            check_log_schema(schema, log)
        elif settings.entry_format is EntryFormat.ARROW and log is not first:
            check_same_schema(
                schema_of_json(settings.schema_json), log.name, schema_of_json(first.settings.schema_json), first.name
            )
    if first.settings.entry_format is EntryFormat.RAW:
        _refuse_metadata_option(options)


def log_bounds(log: Log, snapshot: LogSnapshot) -> Bounds:
    """What of ``log`` can be read now: with what an open tail has confirmed, for which bookies are asked."""
    return bounds_until(snapshot, log.open_reader().readable_end(snapshot))


def bounds_until(snapshot: LogSnapshot, end: int) -> Bounds:
    """The same where it is known up to which offset it can be read."""

    def offset_at(time_ms: int) -> int:
        offset = snapshot.offset_at(time_ms)
        if offset == snapshot.next_offset < end:
            tail = snapshot.open_tail
            # An open tail has one time, that of its opening.
            return end if tail is not None and tail.commit_time_ms < time_ms else offset
        return offset

    return Bounds(snapshot.first_offset, end, offset_at)


def log_pieces(log: Log, snapshot: LogSnapshot, start: int, end: int) -> Pieces:
    """Offsets ``[start, end)`` of a log; ``end`` may lie in an open tail, up to what that has confirmed.

    Raises LogRangeGoneError where a part of the range is not in the log (any more).
    """
    if start >= end:
        return Pieces.of(())
    committed = min(end, snapshot.next_offset)
    parts = []
    if start < committed:
        parts.append(Pieces.of_segments(log.name, snapshot.tables(start, committed), start, committed))
    if end > snapshot.next_offset:
        first = max(start, snapshot.next_offset)
        tail = snapshot.open_tail
        if tail is not None:
            parts.append(Pieces.of([_tail_piece(log, snapshot, tail, first, end)]))
        else:
            # It was sealed since the snapshot: what it had confirmed is in segments now.
            parts.append(Pieces.of_segments(log.name, log.snapshot().tables(first, end), first, end))
    return Pieces.concat(parts)


def splits_of(options: SourceOptions, entry_format: EntryFormat, pieces: Iterable[Pieces]) -> list[Split]:
    """The tasks that read ``pieces``, as the options say."""
    cut = cut_splits(
        Pieces.concat(pieces), options.split_bytes, options.min_partitions, options.max_records_per_partition
    )
    return [Split(entry_format, part) for part in cut]


def _tail_piece(log: Log, snapshot: LogSnapshot, tail: Segment, start: int, end: int) -> Piece:
    first = tail.first_entry + start - tail.base_offset
    entries = end - start
    entry_bytes, entry_rows = _UNKNOWN_ENTRY_BYTES, 1
    if snapshot.first_offset < snapshot.next_offset:
        # The best that is known without asking bookies.
        (before,) = snapshot.segments(snapshot.next_offset - 1, snapshot.next_offset)
        entry_bytes, entry_rows = before.size_bytes // before.entries, before.rows // before.entries
    return Piece(
        tail.ledger_id,
        first,
        first + entries - 1,
        max(1, entries * entry_bytes),
        max(1, entry_rows) * entries,
        log.name,
        start,
        tail.commit_time_ms,
    )


# --- ledgers ---


def open_ledger(options: SourceOptions, ledger_id: int) -> BlockingReader:
    """A ledger with its last add confirmed. Raises NoSuchLedgerError, UnauthorizedError."""
    try:
        return client_of(options.metadata_service_uri).open_for_reading(ledger_id, options.password())
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
    """Raises InvalidArgumentError where the ledger cannot be read as ``schema``, naming the column."""
    if options.entry_format is not EntryFormat.ARROW:
        _refuse_metadata_option(options)
        check_raw_read(schema)
    elif reader.last_add_confirmed >= 0:
        check_arrow_read(schema, _first_schema(reader), f"ledger {reader.ledger_id}")


def ledger_pieces(reader: BlockingReader, start: int, end: int) -> Pieces:
    """Entries ``[start, end)`` of a ledger, which it has confirmed."""
    if start >= end:
        return Pieces.of(())
    size_bytes, entries = known_size(reader)
    size = max(1, size_bytes * (end - start) // entries)
    return Pieces.of([Piece(reader.ledger_id, start, end - 1, size, end - start)])


def known_size(reader: BlockingReader) -> tuple[int, int]:
    """Payload bytes, and of how many entries: of all of a closed ledger, of the first ones of an open one. It must have
    entries."""
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
    """What the first entry of a ledger says of its columns."""
    (first,) = reader.read(0, 0)
    schema = arrow_format.schema_in(memoryview(first), f"entry 0 of ledger {reader.ledger_id}")
    try:
        return stored_schema(from_arrow_schema(schema))
    except PySparkException as error:
        raise InvalidArgumentError(
            f"Spark has no type for a column of this Arrow schema: {error}", ledger_id=reader.ledger_id
        ) from error


def _refuse_metadata_option(options: SourceOptions) -> None:
    if options.include_metadata:
        raise InvalidArgumentError(
            "option includeMetadata is for entryFormat arrow; raw reads have these columns anyway"
        )
