"""The rows of one task: entries of its pieces as Arrow record batches. For batches and streams."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from bk_spark.datasource import arrow_format, raw_format
from bk_spark.datasource.connections import client_of
from bk_spark.datasource.options import SourceOptions
from bk_spark.datasource.schemas import METADATA_NAMES, VALUE, arrow_schema
from bk_spark.datasource.splits import Piece, Pieces
from bk_spark.log.settings import EntryFormat
from bk_spark.protocol.entry_block import EntryBlock
from bk_spark.protocol.errors import InvalidArgumentError, LogRangeGoneError, NoSuchLedgerError

_LOG: Final = logging.getLogger(__name__)
#: A batch of fewer bytes is joined with its neighbours, up to about so many together.
_SMALL_BATCH_BYTES: Final = 64 * 1024
_JOINED_BATCH_BYTES: Final = 1024 * 1024


@dataclass
class Split(InputPartition):
    """What one task reads. Self-contained: Spark pickles the reader before it asks for the splits, so
    nothing that is learnt while planning reaches the tasks but in here."""

    entry_format: EntryFormat
    pieces: Pieces


def read_split(options: SourceOptions, schema: StructType, split: Split) -> Iterator[pa.RecordBatch]:
    """The rows of one split, a block of entries at a time, in exactly the Arrow form of ``schema``.

    Raises LogRangeGoneError (NoSuchLedgerError without a log) where a ledger was deleted since the split was planned,
    unless failOnDataLoss is false: then its entries are left out, with a warning.
    """
    client = client_of(options.metadata_service_uri)
    password = options.password()
    rows = _Rows(arrow_schema(schema), split.entry_format)
    todo = deque(split.pieces)
    while todo:
        try:
            with closing(client.read_series([one.entry_range for one in todo], password)) as lists:
                for blocks in lists:
                    yield from joined(_rows_of(blocks, todo, rows))
        except NoSuchLedgerError as error:
            _skip(todo.popleft(), options, error)


def _rows_of(blocks: list[EntryBlock], todo: deque[Piece], rows: _Rows) -> Iterator[pa.RecordBatch]:
    """The rows of the next ``blocks`` of ``todo``, which are taken off it."""
    for block in blocks:
        yield from rows.of_block(block, todo[0])
        _take(todo, len(block))


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """``batches``, neighbours of few bytes joined: each batch has a price of its own in Spark."""
    small: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if batch.nbytes >= _SMALL_BATCH_BYTES or size_bytes >= _JOINED_BATCH_BYTES:
            yield from _as_one(small)
            small, size_bytes = [], 0
        if batch.nbytes >= _SMALL_BATCH_BYTES:
            yield batch
        else:
            small.append(batch)
            size_bytes += batch.nbytes
    yield from _as_one(small)


def _as_one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    found: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return found


def _take(todo: deque[Piece], entries: int) -> None:
    """Note that the next ``entries`` entries, of one piece, were read."""
    rest = todo.popleft().after(entries)
    if rest is not None:
        todo.appendleft(rest)


def _skip(piece: Piece, options: SourceOptions, error: NoSuchLedgerError) -> None:
    if piece.log is None or piece.base_offset is None:
        lost = f"entries {piece.first} to {piece.last} of ledger {piece.ledger_id}"
    else:
        lost = f"offsets [{piece.base_offset}, {piece.base_offset + piece.entries}) of log {piece.log}"
    if not options.fail_on_data_loss:
        _LOG.warning("%s are left out: ledger %d was deleted after this read was planned", lost, piece.ledger_id)
        return
    if piece.log is None:
        raise error
    raise LogRangeGoneError(
        f"{lost} are gone: the ledger was deleted (after truncation, retention or overwrite) since this read was "
        "planned: begin it anew (the DataFrame, or the query), or read what is left with failOnDataLoss false",
        ledger_id=piece.ledger_id,
    ) from error


class _Rows:
    """Makes batches of ``schema`` out of entries."""

    def __init__(self, schema: pa.Schema, entry_format: EntryFormat) -> None:
        self._schema = schema
        self._format = entry_format

    def of_block(self, block: EntryBlock, piece: Piece) -> Iterator[pa.RecordBatch]:
        if self._format is EntryFormat.RAW:
            yield self._raw(block, piece)
        else:
            yield from self._arrow(block, piece)

    def _raw(self, block: EntryBlock, piece: Piece) -> pa.RecordBatch:
        entry_ids = np.arange(block.first_entry_id, block.first_entry_id + len(block))
        columns = [
            raw_format.value_array(block, one.type, piece.ledger_id)
            if one.name == VALUE
            else _metadata_column(one.name, entry_ids, piece)
            for one in self._schema
        ]
        return _batch(columns, self._schema, f"ledger {piece.ledger_id}")

    def _arrow(self, block: EntryBlock, piece: Piece) -> Iterator[pa.RecordBatch]:
        for index, entry in enumerate(block.payloads):
            entry_id = block.first_entry_id + index
            where = f"entry {entry_id} of ledger {piece.ledger_id}"
            for batch in arrow_format.batches_in(entry, where):
                yield self._project(batch, entry_id, piece, where)

    def _project(self, batch: pa.RecordBatch, entry_id: int, piece: Piece, where: str) -> pa.RecordBatch:
        if batch.schema.equals(self._schema):
            return batch
        columns = []
        for one in self._schema:
            position = batch.schema.get_field_index(one.name)
            if position >= 0:
                columns.append(batch.column(position))
            elif one.name in METADATA_NAMES:
                columns.append(_metadata_column(one.name, np.full(batch.num_rows, entry_id), piece))
            else:
                raise InvalidArgumentError(
                    f"{where} has no column {one.name}; it has {', '.join(batch.schema.names)}: leave the "
                    "column out of the schema"
                )
        return _batch(columns, self._schema, where)


def _metadata_column(name: str, entry_ids: npt.NDArray[np.int64], piece: Piece) -> pa.Array:
    """The metadata column ``name`` of rows in ``entry_ids``; only what the schema asks for is made."""
    count = len(entry_ids)
    match name:
        case "log":
            return pa.repeat(pa.scalar(piece.log, pa.string()), count)
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
