"""Measures rows with key, value and headers as entries of an arrow log, beside a format made for such messages.

The other format is a prototype: the key, the value and the headers of each row one after another, each with its length
in four bytes, and the length of each row at the start of the entry, so that both sides work on whole columns. Its size
is also given as if lengths were varints without that table. Both have entries of 1 MiB, in one process and one thread;
seconds are of processor time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.report import figure
from bk_spark.log.entries import arrow_format
from bk_spark.log.entries.row_places import RowPlaces
from bk_spark.log.formats.schema_merge import EXACT

NAME = "message_format"
ROWS = 200_000
_BATCH_ROWS = 10_000
_ENTRY_BYTES = 1 << 20
_ROUNDS = 5
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_T = TypeVar("_T")
_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", _HEADERS)])


def main(arguments: Sequence[str] = ()) -> None:
    for value_bytes in (100, 1024):
        rows = list(_rows(value_bytes))
        for compression in (None, "lz4", "zstd"):
            name = f"value {value_bytes} B, {compression or 'not compressed'}"
            arrow, arrow_s = _best(partial(_arrow, rows, compression))
            message, message_s = _best(partial(_messages, rows, compression))
            figure(NAME, f"{name}: arrow", sum(map(len, arrow)) / ROWS, "B/row")
            figure(NAME, f"{name}: message", sum(map(len, message)) / ROWS, "B/row")
            figure(NAME, f"{name}: arrow written", ROWS / arrow_s, "rows/s of one core")
            figure(NAME, f"{name}: message written", ROWS / message_s, "rows/s of one core")
            _, arrow_s = _best(partial(_read_arrow, arrow))
            _, message_s = _best(partial(_read_messages, message, compression))
            figure(NAME, f"{name}: arrow read", ROWS / arrow_s, "rows/s of one core")
            figure(NAME, f"{name}: message read", ROWS / message_s, "rows/s of one core")
        figure(NAME, f"value {value_bytes} B: message with varints", _with_varints(rows), "B/row")


def _best(work: Callable[[], _T]) -> tuple[_T, float]:
    """The result, and the least processor time of some rounds."""
    seconds = []
    for _ in range(_ROUNDS):
        started = time.process_time()
        result = work()
        seconds.append(time.process_time() - started)
    return result, min(seconds)


def _rows(value_bytes: int) -> list[pa.RecordBatch]:
    """Rows as of a topic of orders: a key of 16 bytes, text as value, two headers."""
    rng = random.Random(7)
    words = [rng.randbytes(4).hex().encode() for _ in range(500)]
    batches = []
    for start in range(0, ROWS, _BATCH_ROWS):
        keys = [f"order-{rng.randrange(10**10):010d}".encode() for _ in range(_BATCH_ROWS)]
        values = [b" ".join(rng.choices(words, k=value_bytes // 9)) for _ in range(_BATCH_ROWS)]
        headers = [
            [("trace", rng.randbytes(16)), ("source", b"shop-%d" % rng.randrange(20))] for _ in range(_BATCH_ROWS)
        ]
        assert start < ROWS
        columns = [pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.array(headers, _HEADERS)]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
    return batches


def _arrow(rows: list[pa.RecordBatch], compression: str | None) -> list[bytes]:
    entries = arrow_format.entries_of(
        iter(rows),
        _SCHEMA,
        compression=compression,
        entry_bytes=_ENTRY_BYTES,
        max_entry_bytes=5 << 20,
        places=RowPlaces(0),
        names=EXACT,
    )
    return [entry.to_pybytes() for entry, _ in entries]


def _read_arrow(entries: list[bytes]) -> int:
    return sum(batch.num_rows for entry in entries for batch in arrow_format.batches_in(memoryview(entry), "entry"))


def _messages(rows: list[pa.RecordBatch], compression: str | None) -> list[bytes]:
    entries = []
    for batch in rows:
        messages = _joined(batch)
        step = max(1, _ENTRY_BYTES * len(messages) // messages.nbytes)
        for start in range(0, len(messages), step):
            part = pa.concat_arrays([messages.slice(start, step)])
            offsets = np.frombuffer(part.buffers()[1], np.int32)
            lengths = np.diff(offsets).astype("<u4").tobytes()
            body = len(part).to_bytes(4, "little") + lengths + part.buffers()[2].to_pybytes()
            entries.append(body if compression is None else _packed(body, compression))
    return entries


def _packed(body: bytes, compression: str) -> bytes:
    packed: bytes = pa.compress(body, compression if compression != "lz4" else "lz4_raw", asbytes=True)
    return len(body).to_bytes(4, "little") + packed


def _joined(batch: pa.RecordBatch) -> pa.Array:
    key, value, headers = batch.columns
    fields = headers.flatten()
    blobs = _join(fields.field("key").cast(pa.binary()), fields.field("value"))
    of_row = pa.ListArray.from_arrays(headers.offsets, blobs)
    return _join(key, value, pc.binary_join(of_row, b""))


def _join(*columns: pa.Array) -> pa.Array:
    parts = []
    for column in columns:
        lengths = pc.binary_length(column).to_numpy().astype("<u4")
        prefix = pa.FixedSizeBinaryArray.from_buffers(pa.binary(4), len(column), [None, pa.py_buffer(lengths)])
        parts += [prefix.cast(pa.binary()), column]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def _read_messages(entries: list[bytes], compression: str | None) -> int:
    """Key and value of each row as columns. Headers stay as they are."""
    count = 0
    for entry in entries:
        body = entry
        if compression is not None:
            size = int.from_bytes(entry[:4], "little")
            codec = compression if compression != "lz4" else "lz4_raw"
            body = pa.decompress(entry[4:], size, codec, asbytes=True)
        data = np.frombuffer(body, np.uint8)
        rows = int.from_bytes(body[:4], "little")
        lengths = np.frombuffer(body, "<u4", rows, 4).astype(np.int64)
        starts = 4 + 4 * rows + np.cumsum(lengths) - lengths
        for _ in range(2):
            field = _lengths_at(data, starts)
            _column(data, starts + 4, field)
            starts = starts + 4 + field
        count += rows
    return count


def _lengths_at(data: np.ndarray, starts: np.ndarray) -> np.ndarray:
    found: np.ndarray = sum(data[starts + byte].astype(np.int64) << (8 * byte) for byte in range(4))
    return found


def _column(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> pa.Array:
    ends = np.cumsum(lengths)
    places = np.repeat(starts - (ends - lengths), lengths) + np.arange(int(ends[-1]))
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(data[places])]
    )


def _with_varints(rows: list[pa.RecordBatch]) -> float:
    total = 0
    for batch in rows:
        key, value, headers = batch.columns
        fields = headers.flatten()
        for column in (key, value, fields.field("key").cast(pa.binary()), fields.field("value")):
            lengths = pc.binary_length(column).to_numpy()
            total += int(lengths.sum()) + int((1 + (lengths >= 128) + (lengths >= 16384)).sum())
        # The number of headers.
        total += batch.num_rows
    return total / ROWS
