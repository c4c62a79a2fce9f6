"""entryFormat arrow: many rows per entry. Each entry is a complete Arrow IPC stream.

The stream has the log's schema (time zone UTC). Its buffers may be compressed (lz4 or zstd). Each entry says so itself,
so entries of one log may differ.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from bk_spark.log.entries.arrow_checks import (
    MAX_ENTRY_MEMORY_BYTES,
    MAX_ENTRY_ROWS,
    check_batch,
    check_memory,
    memory_bytes,
)
from bk_spark.log.entries.fit import fitted, position_in
from bk_spark.log.entries.projection import Projection
from bk_spark.log.entries.row_places import RowPlaces
from bk_spark.log.formats.schema_merge import Names
from bk_spark.protocol.errors import CorruptFileError, InvalidArgumentError

#: Compression that saves less than a tenth costs more, in CPU time of reader and writer, than it saves at the bookies.
_WORTH_SHARE: Final = 0.9
#: An entry may have less and more than its target, by these factors, so that it ends where a batch does.
_LEAST_SHARE: Final = 0.6
_MOST_SHARE: Final = 1.2
#: The most entries without a trial after one that did not pay.
_LONGEST_PAUSE: Final = 64


def entries_of(
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    *,
    compression: str | None,
    entry_bytes: int,
    max_entry_bytes: int,
    places: RowPlaces,
    names: Names,
) -> Iterator[tuple[pa.Buffer, int]]:
    """Split and join ``batches`` into entries of about ``entry_bytes`` before compression. Yields (entry, row count).

    A large batch is cut into parts of one size, 0.6 to 1.2 times ``entry_bytes``, so that few entries have rows of
    several batches: whoever reads them pays for each batch.

    The batches have the columns of ``schema`` by name, compared as ``names`` says, in types that widen to those there.
    An entry that does not become at least a tenth smaller is written without compression.

    Raises InvalidArgumentError for a single row larger than ``max_entry_bytes``. The error says where the row is, by
    ``places``.
    """
    writer = _EntryWriter(schema, compression, max_entry_bytes, places)
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0.0
    for batch in batches:
        if not batch.num_rows:
            continue
        canonical = _canonical(batch, schema, names)
        rows = canonical.num_rows
        row_bytes = max(1.0, canonical.nbytes / rows)
        start = 0
        if waiting_bytes >= _LEAST_SHARE * entry_bytes and waiting_bytes + rows * row_bytes > _MOST_SHARE * entry_bytes:
            yield from writer.write(waiting)
            waiting, waiting_bytes = [], 0.0
        while start < rows:
            room = _next_rows(rows - start, row_bytes, waiting_bytes, entry_bytes)
            waiting.append(canonical.slice(start, room))
            start += waiting[-1].num_rows
            waiting_bytes += waiting[-1].num_rows * row_bytes
            if start < rows or waiting_bytes >= entry_bytes:
                yield from writer.write(waiting)
                waiting, waiting_bytes = [], 0.0
    if waiting:
        yield from writer.write(waiting)


def _next_rows(rows: int, row_bytes: float, waiting_bytes: float, entry_bytes: int) -> int:
    """Return how many of a batch's ``rows`` go into the entry that has ``waiting_bytes``."""
    size = rows * row_bytes
    if waiting_bytes + size <= _MOST_SHARE * entry_bytes:
        return rows
    if waiting_bytes:
        return math.ceil((entry_bytes - waiting_bytes) / row_bytes)
    parts = max(1, round(size / entry_bytes))
    if size > _MOST_SHARE * entry_bytes * parts:
        parts += 1
    return max(1, rows // parts)


def batches_in(entry: memoryview, where: str, projection: Projection | None = None) -> list[pa.RecordBatch]:
    """Return the record batches of one entry, with the columns of ``projection`` only.

    Raises CorruptFileError if it is not an Arrow stream, if it is damaged, or if it would take too much memory.
    """
    with _stream_in(entry, where, projection) as stream:
        batches = list(stream)
    for batch in batches:
        check_batch(batch, where)
    return batches


def schema_in(entry: memoryview, where: str) -> pa.Schema:
    """Return the schema of one entry. Raises as :func:`batches_in`."""
    with _stream_in(entry, where) as stream:
        _ = stream.schema.names  # raises here, and not where they are used, if one is not UTF-8
        return stream.schema


@contextlib.contextmanager
def _stream_in(
    entry: memoryview, where: str, projection: Projection | None = None
) -> Iterator[pa.RecordBatchStreamReader]:
    buffer = pa.py_buffer(entry)
    try:
        check_memory(buffer, where)
        options = None if projection is None else projection.options_for(entry)
        with pa.ipc.open_stream(buffer, options=options) as stream:
            yield stream
    except (pa.ArrowException, OSError, struct.error, UnicodeDecodeError) as error:
        raise CorruptFileError(f"{where} is not an Arrow stream: was it written with entryFormat raw?") from error


def _canonical(batch: pa.RecordBatch, schema: pa.Schema, names: Names) -> pa.RecordBatch:
    """Return the batch with exactly the log's names, order and types, without session time zones and large types."""
    if batch.schema.equals(schema):
        return batch
    own = batch.schema.names
    arrays = []
    for one in schema:
        position = position_in(own, one.name, names)
        assert position is not None, f"{one.name} is not among {own}"
        arrays.append(fitted(batch.column(position), one.type, names))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _CompressionTrials:
    """Decides which entries to try to compress: fewer after trials that did not pay, since data seldom changes much."""

    def __init__(self) -> None:
        #: Entries to write without a trial: now, and after the next trial that does not pay.
        self._untried, self._pause = 0, 1

    def is_due(self) -> bool:
        """Return whether to compress the next entry."""
        if self._untried:
            self._untried -= 1
            return False
        return True

    def ended(self, *, paid: bool) -> None:
        """Note whether the compression of an entry paid."""
        if paid:
            self._pause = 1
        else:
            self._untried, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)


class _EntryWriter:
    """Writes entries and counts the rows in them."""

    def __init__(self, schema: pa.Schema, compression: str | None, max_entry_bytes: int, places: RowPlaces) -> None:
        self._schema = schema
        self._plain = pa.ipc.IpcWriteOptions()
        self._packed = pa.ipc.IpcWriteOptions(compression=compression)
        self._trials = None if compression is None else _CompressionTrials()
        self._max_entry_bytes = max_entry_bytes
        self._places = places
        self._rows = 0

    def write(self, parts: list[pa.RecordBatch]) -> Iterator[tuple[pa.Buffer, int]]:
        """Yield one entry with ``parts``, or several if one would be too large."""
        entry = self._smaller(parts)
        rows = sum(part.num_rows for part in parts)
        taken_bytes = memory_bytes(entry)
        if entry.size <= self._max_entry_bytes and taken_bytes <= MAX_ENTRY_MEMORY_BYTES and rows <= MAX_ENTRY_ROWS:
            self._rows += rows
            yield entry, rows
            return
        if rows == 1:
            raise self._too_large(entry.size, taken_bytes, parts)
        table = pa.Table.from_batches(parts, self._schema)
        for half in (table.slice(0, rows // 2), table.slice(rows // 2)):
            yield from self.write(half.to_batches())

    def _smaller(self, parts: list[pa.RecordBatch]) -> pa.Buffer:
        """Return the entry, compressed if that pays, or if it would be too large otherwise."""
        plain = None
        if self._trials is None or not self._trials.is_due():
            plain = self._written(parts, self._plain)
            if self._trials is None or plain.size <= self._max_entry_bytes:
                return plain
        packed = self._written(parts, self._packed)
        paid = packed.size <= _WORTH_SHARE * sum(part.nbytes for part in parts)
        self._trials.ended(paid=paid)
        if paid:
            return packed
        if plain is None:
            plain = self._written(parts, self._plain)
        return plain if plain.size <= self._max_entry_bytes else packed

    def _written(self, parts: list[pa.RecordBatch], options: pa.ipc.IpcWriteOptions) -> pa.Buffer:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema, options=options) as stream:
            for part in parts:
                stream.write_batch(part)
        return sink.getvalue()

    def _too_large(self, entry_bytes: int, taken_bytes: int, parts: list[pa.RecordBatch]) -> InvalidArgumentError:
        row = pa.Table.from_batches(parts, self._schema)
        largest = max(row.schema.names, key=lambda name: row.column(name).nbytes)
        if entry_bytes > self._max_entry_bytes:
            size = f"makes an entry of {entry_bytes} bytes"
            limit = f"a bookie's frame limit allows {self._max_entry_bytes}"
        else:
            size = f"takes {taken_bytes} bytes without compression"
            limit = f"a reader takes at most {MAX_ENTRY_MEMORY_BYTES}"
        return InvalidArgumentError(
            f"{self._places.of(self._rows)} {size} (column {largest} has most of them); {limit}: "
            f"split the row, or store column {largest} elsewhere and write a reference to it"
        )
