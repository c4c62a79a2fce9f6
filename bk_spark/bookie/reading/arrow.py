"""Entries as Arrow columns, without a Python object per entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.entries.entry import EntryBlock
from bk_spark.protocol.entries.payloads import Payloads

#: The most bytes in a column of type ``binary``, whose offsets are int32.
MAX_COLUMN_BYTES: Final = 2**31 - 1

ENTRIES_SCHEMA: Final = pa.schema([pa.field("entry_id", pa.int64(), False), pa.field("value", pa.binary(), False)])


def int64_array(values: Int64s, data_type: pa.DataType | None = None) -> pa.Array:
    """Return ``values`` as a column over the same memory, of int64 or another type of 64 bits."""
    # pa.array(values) would import pandas if it is installed, which takes longer than a small task.
    buffers = [None, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(data_type or pa.int64(), len(values), buffers)


def binary_array(payloads: Payloads) -> pa.Array:
    """Return the payloads as a ``binary`` column over the same memory. At most :data:`MAX_COLUMN_BYTES`."""
    start = int(payloads.offsets[0])
    offsets = (payloads.offsets - start).astype(np.int32)
    data = payloads.data[start : int(payloads.offsets[-1])]
    return pa.Array.from_buffers(pa.binary(), len(payloads), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def taken(payloads: Payloads, positions: Int64s) -> Payloads:
    """Return the payloads at ``positions`` (int64), in this order, copied to a new buffer."""
    _, offsets, data = binary_array(payloads).take(int64_array(positions)).buffers()
    ends = np.frombuffer(offsets, np.int32, len(positions) + 1).astype(np.int64)
    return Payloads(memoryview(b"") if data is None else memoryview(data).cast("B"), ends)


def entries_batch(blocks: Sequence[EntryBlock]) -> pa.RecordBatch:
    """Return consecutive blocks as one batch of :data:`ENTRIES_SCHEMA`. A single block's payloads are not copied."""
    first = blocks[0].first_entry_id
    payloads = Payloads.joined([block.payloads for block in blocks])
    ids = np.arange(first, first + len(payloads), dtype=np.int64)
    return pa.RecordBatch.from_arrays([int64_array(ids), binary_array(payloads)], schema=ENTRIES_SCHEMA)
