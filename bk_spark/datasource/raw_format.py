"""entryFormat raw: one row, one entry."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from bk_spark.datasource.schemas import VALUE
from bk_spark.protocol.entry_block import EntryBlock
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.payloads import Payloads


def payloads_of(batch: pa.RecordBatch, row_number: int) -> Payloads:
    """The values of a batch as payloads, without copying. ``row_number`` counts rows for error texts."""
    column = batch.column(VALUE)
    if column.null_count:
        first = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise InvalidArgumentError(
            f"row {row_number + first} of this task has a null value: entryFormat raw needs bytes in each row; "
            "filter nulls out first"
        )
    if pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type):
        width: type[np.int32 | np.int64] = np.int64
    else:
        width = np.int32
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, width, len(column) + 1, column.offset * np.dtype(width).itemsize)
    return Payloads(memoryview(data).cast("B") if data is not None else memoryview(b""), ends.astype(np.int64))


def value_array(block: EntryBlock, data_type: pa.DataType) -> pa.Array:
    """The payloads of a block as a binary or string column. Raises InvalidArgumentError for bad UTF-8."""
    payloads = block.payloads
    offsets = (payloads.offsets - payloads.offsets[0]).astype(np.int32)
    data = payloads.data[int(payloads.offsets[0]) : int(payloads.offsets[-1])]
    values = pa.Array.from_buffers(pa.binary(), len(block), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    if data_type == pa.binary():
        return values
    try:
        return values.cast(data_type)
    except pa.ArrowInvalid as error:
        raise InvalidArgumentError(
            f"an entry from {block.first_entry_id} on is not UTF-8: read value as binary, not as string"
        ) from error


def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[Payloads]:
    """Payloads of a task's batches, empty ones left out."""
    row_number = 0
    for batch in batches:
        if batch.num_rows:
            yield payloads_of(batch, row_number)
        row_number += batch.num_rows
