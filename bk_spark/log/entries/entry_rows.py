"""Entries as Arrow batches of the columns that a reader asked for, with the columns that say where rows come from."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from bk_spark.bookie.reading.arrow import binary_array, int64_array
from bk_spark.log.entries import arrow_format, raw_format
from bk_spark.log.entries.fit import ColumnLookup, fitted, position_in
from bk_spark.log.entries.pieces import NO_LOG, Pieces
from bk_spark.log.entries.projection import Projection
from bk_spark.log.entries.schema_checks import METADATA_NAMES, VALUE
from bk_spark.log.formats.schema_merge import EXACT, Names
from bk_spark.log.formats.settings import EntryFormat
from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import InvalidArgumentError

#: Batches smaller than the first are joined with their neighbours, up to about the second.
_SMALL_BATCH_BYTES: Final = 64 * 1024
_JOINED_BATCH_BYTES: Final = 1024 * 1024
#: The rows of a column of one text that is kept, and the most bytes of its text.
_LEAST_KEPT_ROWS: Final = 1024
_KEPT_ROWS: Final = 16 * 1024
_KEPT_TEXT_BYTES: Final = 1024 * 1024
_TIME: Final = pa.timestamp("ms", "UTC")


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small neighbouring ``batches``: each batch has a fixed cost for its reader."""
    small: list[pa.RecordBatch] = []
    size_bytes = 0
    rest = iter(batches)
    first = next(rest, None)
    if first is None:
        return
    second = next(rest, None)
    if second is None:
        # A block of large rows or entries. To measure a batch takes longer than to find that it is alone.
        yield first
        return
    for batch in itertools.chain((first, second), rest):
        batch_bytes = batch.nbytes
        if batch_bytes >= _SMALL_BATCH_BYTES or size_bytes >= _JOINED_BATCH_BYTES:
            yield from _as_one(small)
            small, size_bytes = [], 0
        if batch_bytes >= _SMALL_BATCH_BYTES:
            yield batch
        else:
            small.append(batch)
            size_bytes += batch_bytes
    yield from _as_one(small)


def _as_one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    found: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Origin:
    """Where rows come from: the entry of each row, and in ``counts`` the number of rows of each of ``pieces``."""

    pieces: Pieces
    counts: Int64s
    entry_ids: Int64s

    @classmethod
    def of_entries(cls, pieces: Pieces) -> _Origin:
        """Return the origin of rows that are one entry each."""
        counts = pieces.entries
        if len(counts) == 1:
            first = int(pieces.first[0])
            return cls(pieces, counts, np.arange(first, first + int(counts[0])))
        shifts = pieces.first - pieces.entry_sums[:-1]
        return cls(pieces, counts, np.repeat(shifts, counts) + np.arange(int(counts.sum())))

    @property
    def log(self) -> str | None:
        """The log of a single piece. None for a ledger that is read without a log."""
        return None if int(self.pieces.log[0]) == NO_LOG else self.pieces.logs[int(self.pieces.log[0])]

    def where(self, row: int) -> tuple[int, int]:
        """Return the ledger and entry of a row."""
        piece = int(np.searchsorted(np.cumsum(self.counts), row, side="right"))
        return int(self.pieces.ledger_id[piece]), int(self.entry_ids[row])

    def column(self, name: str) -> pa.Array:
        """Build the metadata column ``name``. Only called for columns in the schema."""
        pieces, counts = self.pieces, self.counts
        match name:
            case "log":
                if len(pieces.logs) == 1:
                    return _repeated(pieces.logs[0], len(self.entry_ids))
                names = Payloads.of([name.encode() for name in pieces.logs])
                known = pa.concat_arrays([binary_array(names), pa.nulls(1, pa.binary())])
                # NO_LOG becomes the index of the null at the end.
                numbers = int64_array(_spread(pieces.log % (len(pieces.logs) + 1), counts))
                return known.take(numbers).cast(pa.string())
            case "offset":
                shifts = pieces.base_offset - pieces.first
                return _or_nulls(
                    pieces.base_offset, self.entry_ids + (shifts if len(shifts) == 1 else np.repeat(shifts, counts))
                )
            case "ledgerId":
                return int64_array(_spread(pieces.ledger_id, counts))
            case "entryId":
                return int64_array(self.entry_ids)
            case _:
                return _or_nulls(pieces.timestamp_ms, _spread(pieces.timestamp_ms, counts), _TIME)


def _spread(values: Int64s, counts: Int64s) -> Int64s:
    """Return the value of each piece in each of its rows."""
    if len(values) == 1:
        return np.full(int(counts[0]), values[0])
    return np.repeat(values, counts)


def _repeated(text: str, count: int) -> pa.Array:
    """Return a column with ``text`` in each row."""
    rows = max(_LEAST_KEPT_ROWS, 1 << (count - 1).bit_length())
    if rows > _KEPT_ROWS or rows * len(text) > _KEPT_TEXT_BYTES:
        return _made(text, count)
    return _kept(text, rows).slice(0, count)


@functools.lru_cache(4)
def _kept(text: str, count: int) -> pa.Array:
    """Keep a column for the next batches: to make it takes as long as all other columns."""
    return _made(text, count)


def _made(text: str, count: int) -> pa.Array:
    data = text.encode()
    offsets = len(data) * np.arange(count + 1, dtype=np.int64)
    return binary_array(Payloads(memoryview(data * count), offsets)).cast(pa.string())


def _or_nulls(known: Int64s, values: Int64s, data_type: pa.DataType | None = None) -> pa.Array:
    """Return ``values``, or nulls if the pieces are of no log."""
    if int(known[0]) == NO_LOG:
        return pa.nulls(len(values), data_type or pa.int64())
    return int64_array(values, data_type)


class EntryRows:
    """Turns entries into batches of ``schema``: its columns only, in its order.

    Entries of a log may have been written with other versions of its schema. What they lack is null, and values become
    those of the types in ``schema``.
    """

    def __init__(self, schema: pa.Schema, entry_format: EntryFormat, lookup: ColumnLookup | None = None) -> None:
        self._schema = schema
        self._format = entry_format
        self._lookup = lookup or ColumnLookup()
        wanted = {name for name in schema.names if name not in METADATA_NAMES}
        for own in self._lookup.own.values():
            wanted.update(known for name, known in own.items() if schema.get_field_index(name) >= 0)
        self._projection = Projection(wanted, self._lookup.names)

    def of(self, payloads: Payloads, pieces: Pieces) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the entries in ``pieces``, in order."""
        if self._format is EntryFormat.RAW:
            yield self._raw(payloads, _Origin.of_entries(pieces))
        else:
            yield from self._arrow(payloads, pieces)

    def _raw(self, payloads: Payloads, origin: _Origin) -> pa.RecordBatch:
        columns = [
            raw_format.value_array(payloads, one.type, origin.where) if one.name == VALUE else origin.column(one.name)
            for one in self._schema
        ]
        return as_batch(columns, self._schema, f"ledger {origin.pieces.ledger_id[0]}")

    def _arrow(self, payloads: Payloads, pieces: Pieces) -> Iterator[pa.RecordBatch]:
        entries = iter(payloads)
        for number, piece in enumerate(pieces):
            own = pieces.at(number)
            for entry_id in range(piece.first, piece.last + 1):
                where = f"entry {entry_id} of ledger {piece.ledger_id}"
                for batch in arrow_format.batches_in(next(entries), where, self._projection):
                    if batch.schema.equals(self._schema):
                        yield batch
                        continue
                    rows = batch.num_rows
                    yield self._project(batch, _Origin(own, np.array([rows]), np.full(rows, entry_id)), where)

    def _project(self, batch: pa.RecordBatch, origin: _Origin, where: str) -> pa.RecordBatch:
        columns = []
        own = self._lookup.own.get(origin.log or "", {})
        for one in self._schema:
            if one.name in METADATA_NAMES and one.name not in own:
                columns.append(origin.column(one.name))
                continue
            position = self._position(batch.schema, own.get(one.name, one.name))
            if position is not None:
                columns.append(batch.column(position))
            elif origin.log is not None:
                # The column was added to the log after this entry.
                columns.append(pa.nulls(batch.num_rows, one.type))
            else:
                raise InvalidArgumentError(
                    f"{where} has no column {one.name}; it has {', '.join(batch.schema.names)}: leave the "
                    "column out of the schema"
                )
        return as_batch(columns, self._schema, where, self._lookup.names)

    def _position(self, schema: pa.Schema, name: str) -> int | None:
        position = int(schema.get_field_index(name))
        return position if position >= 0 else position_in(schema.names, name, self._lookup.names)


def as_batch(columns: list[pa.Array], schema: pa.Schema, where: str, names: Names = EXACT) -> pa.RecordBatch:
    """Return ``columns`` as a batch of ``schema``. Raises InvalidArgumentError for a column that does not fit."""
    arrays = []
    for column, one in zip(columns, schema, strict=True):
        try:
            array = fitted(column, one.type, names)
        except pa.ArrowException as error:
            raise InvalidArgumentError(
                f"column {one.name} in {where} cannot be read as {one.type}: {error}; leave the schema out, give a "
                "wider type, or make its fields nullable. A read that began before the log's columns became wider must "
                "be started again, with their present schema"
            ) from error
        # Spark trusts the schema: a null would become a 0, or a NullPointerException far from here.
        if array.null_count and not one.nullable:
            raise InvalidArgumentError(
                f"column {one.name} has nulls in {where}, but the schema given says NOT NULL: leave that out"
            )
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
