"""Batch reads: a snapshot of a log, or a ledger, cut into tasks by bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from bk_spark.bookie.blocking_reader import BlockingReader
from bk_spark.datasource import arrow_format, raw_format
from bk_spark.datasource.connections import client_of, logs_of
from bk_spark.datasource.options import SourceOptions
from bk_spark.datasource.plain_errors import plain_errors, plain_errors_in
from bk_spark.datasource.schemas import (
    METADATA_NAMES,
    RAW_SCHEMA,
    VALUE,
    arrow_schema,
    check_arrow_read,
    check_raw_read,
    schema_of_json,
    stored_schema,
    with_metadata,
)
from bk_spark.datasource.splits import Piece, cut_splits
from bk_spark.log.log import Log
from bk_spark.log.settings import EntryFormat
from bk_spark.protocol.entry_block import EntryBlock
from bk_spark.protocol.errors import (
    InvalidArgumentError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnauthorizedError,
)


@dataclass
class Split(InputPartition):
    """What one task reads. Self-contained: Spark pickles the reader before it asks for the splits, so
    nothing that is learnt while planning reaches the tasks but in here."""

    entry_format: EntryFormat
    pieces: tuple[Piece, ...]


def read_schema(options: SourceOptions) -> StructType:
    """The schema of a read for which the user gave none. Reads the log's settings, or the ledger's first
    entry for ``arrow``."""
    if options.log is not None:
        log = _open_log(options)
        log.settings.check_password(options.password(), log.name)
        if log.settings.entry_format is EntryFormat.RAW:
            _refuse_metadata_option(options)
            return RAW_SCHEMA
        stored = schema_of_json(log.settings.schema_json)
    elif options.entry_format is EntryFormat.ARROW:
        stored = _ledger_schema(options)
    else:
        _refuse_metadata_option(options)
        return RAW_SCHEMA
    return with_metadata(stored) if options.include_metadata else stored


class BatchReader(DataSourceReader):
    """Reads a log's committed entries, or a ledger's entries up to its last add confirmed."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """The snapshot that every action on this DataFrame reads."""
        options = self._options
        if options.log is not None:
            log = _open_log(options)
            entry_format = log.settings.entry_format
            pieces = self._log_pieces(log)
        else:
            entry_format = options.entry_format or EntryFormat.RAW
            pieces = self._ledger_pieces(entry_format)
        return [Split(entry_format, part) for part in cut_splits(pieces, options.split_bytes, options.min_partitions)]

    @plain_errors_in
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split, a block of entries at a time."""
        if not isinstance(partition, Split):
            return
        client = client_of(self._options.metadata_service_uri)
        password = self._options.password()
        schema = arrow_schema(self._schema)
        for piece in partition.pieces:
            reader = client.open_for_reading(piece.ledger_id, password, read_lac=False)
            for block in reader.read_blocks(piece.first, piece.last, known_to_exist=True):
                if partition.entry_format is EntryFormat.RAW:
                    yield self._raw_batch(block, piece, schema)
                else:
                    yield from self._arrow_batches(block, piece, schema)

    # --- planning ---

    def _log_pieces(self, log: Log) -> list[Piece]:
        settings = log.settings
        if self._options.entry_format not in (None, settings.entry_format):
            raise InvalidArgumentError(
                f"option entryFormat: log {self._options.log} was made with {settings.entry_format.value}; "
                "leave the option out"
            )
        settings.check_password(self._options.password(), log.name)
        if settings.entry_format is EntryFormat.RAW:
            _refuse_metadata_option(self._options)
            check_raw_read(self._schema)
        else:
            check_arrow_read(self._schema, schema_of_json(log.settings.schema_json), f"log {log.name}")
        snapshot = log.snapshot()
        return [
            Piece(
                segment.ledger_id,
                segment.first_entry,
                segment.last_entry,
                max(1, segment.size_bytes),
                segment.base_offset,
                segment.commit_time_ms,
            )
            for segment in snapshot.segments(snapshot.first_offset, snapshot.next_offset)
            if segment.last_entry is not None
        ]

    def _ledger_pieces(self, entry_format: EntryFormat) -> list[Piece]:
        reader = _open_ledger(self._options)
        last = reader.last_add_confirmed
        if entry_format is EntryFormat.RAW:
            _refuse_metadata_option(self._options)
            check_raw_read(self._schema)
        elif last >= 0:
            check_arrow_read(self._schema, _first_schema(reader), f"ledger {reader.ledger_id}")
        if last < 0:
            return []
        length = reader.metadata.length or _estimate_length(reader, last)
        return [Piece(reader.ledger_id, 0, last, max(1, length))]

    # --- rows ---

    def _raw_batch(self, block: EntryBlock, piece: Piece, schema: pa.Schema) -> pa.RecordBatch:
        entry_ids = np.arange(block.first_entry_id, block.first_entry_id + len(block))
        columns = [
            raw_format.value_array(block, one.type, piece.ledger_id)
            if one.name == VALUE
            else self._metadata_column(one.name, entry_ids, piece)
            for one in schema
        ]
        return _batch(columns, schema, f"ledger {piece.ledger_id}")

    def _arrow_batches(self, block: EntryBlock, piece: Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for index, entry in enumerate(block.payloads):
            entry_id = block.first_entry_id + index
            where = f"entry {entry_id} of ledger {piece.ledger_id}"
            for batch in arrow_format.batches_in(entry, where):
                yield self._project(batch, entry_id, piece, schema, where)

    def _project(
        self, batch: pa.RecordBatch, entry_id: int, piece: Piece, schema: pa.Schema, where: str
    ) -> pa.RecordBatch:
        if batch.schema.equals(schema):
            return batch
        columns = []
        for one in schema:
            position = batch.schema.get_field_index(one.name)
            if position >= 0:
                columns.append(batch.column(position))
            elif one.name in METADATA_NAMES:
                columns.append(self._metadata_column(one.name, np.full(batch.num_rows, entry_id), piece))
            else:
                raise InvalidArgumentError(
                    f"{where} has no column {one.name}; it has {', '.join(batch.schema.names)}: leave the "
                    "column out of the schema"
                )
        return _batch(columns, schema, where)

    def _metadata_column(self, name: str, entry_ids: npt.NDArray[np.int64], piece: Piece) -> pa.Array:
        """The metadata column ``name`` of rows in ``entry_ids``; only what the schema asks for is made."""
        count = len(entry_ids)
        match name:
            case "log":
                return pa.repeat(pa.scalar(self._options.log, pa.string()), count)
            case "offset":
                if piece.base_offset is None:
                    return pa.nulls(count, pa.int64())
                return pa.array(entry_ids + (piece.base_offset - piece.first))
            case "ledgerId":
                return pa.repeat(pa.scalar(piece.ledger_id, pa.int64()), count)
            case "entryId":
                return pa.array(entry_ids)
            case _:
                time = pa.scalar(piece.timestamp_ms, pa.int64())
                return pa.repeat(time, count).cast(pa.timestamp("ms", "UTC"))


def _open_log(options: SourceOptions) -> Log:
    assert options.log is not None
    return logs_of(options.metadata_service_uri, options.log_root).open_log(options.log)


def _open_ledger(options: SourceOptions) -> BlockingReader:
    """The ledger of option ledgerId, with its last add confirmed."""
    assert options.ledger_id is not None
    try:
        return client_of(options.metadata_service_uri).open_for_reading(options.ledger_id, options.password())
    except UnauthorizedError as error:
        raise UnauthorizedError(
            "wrong ledger password: give the one the ledger was made with (option password or passwordFile)",
            ledger_id=options.ledger_id,
        ) from error
    except NoSuchLedgerError as error:
        raise NoSuchLedgerError(
            f"there is no such ledger in {options.metadata_service_uri}: check option ledgerId",
            ledger_id=options.ledger_id,
        ) from error


def _batch(columns: list[pa.Array], schema: pa.Schema, where: str) -> pa.RecordBatch:
    """``columns`` as a batch of ``schema``. Raises InvalidArgumentError for one that ``schema`` cannot hold."""
    arrays = []
    for column, one in zip(columns, schema, strict=True):
        try:
            array = column if column.type == one.type else column.cast(one.type)
        except pa.ArrowException as error:
            raise InvalidArgumentError(
                f"column {one.name} in {where} cannot be read as {one.type}: {error}; leave the schema out, or let "
                "its fields be null"
            ) from error
        # Spark believes the schema: a null would become a 0, or a NullPointerException far from here.
        if array.null_count and not one.nullable:
            raise InvalidArgumentError(
                f"column {one.name} has nulls in {where}, but the schema given says NOT NULL: leave that out"
            )
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _refuse_metadata_option(options: SourceOptions) -> None:
    if options.include_metadata:
        raise InvalidArgumentError(
            "option includeMetadata is for entryFormat arrow; raw reads have these columns anyway"
        )


def _estimate_length(reader: BlockingReader, last: int) -> int:
    """Payload bytes of an open ledger, judged by its first entries."""
    sample = reader.read(0, min(last, 15))
    return sum(len(payload) for payload in sample) * (last + 1) // len(sample)


def _ledger_schema(options: SourceOptions) -> StructType:
    reader = _open_ledger(options)
    if reader.last_add_confirmed < 0:
        raise NoSuchEntryError(
            "entryFormat arrow takes the schema from the first entry, and the ledger has none: give one with schema()",
            ledger_id=options.ledger_id,
        )
    return _first_schema(reader)


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
