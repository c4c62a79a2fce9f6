"""Ids of many messages at once, as bytes. The layout is that of ``message_ids``."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bk_spark.protocol.arrays import Bools, Int64s
from bk_spark.protocol.pulsar.messages.field_columns import UInt64s

_LEDGER_TAG: Final = 0x08
_ENTRY_TAG: Final = 0x10
_PARTITION_TAG: Final = 0x18
_BATCH_INDEX_TAG: Final = 0x20
_BATCH_SIZE_TAG: Final = 0x30


def message_id_bytes(
    ledger_ids: Int64s, entry_ids: Int64s, partition: int | None, batch_indexes: Int64s, batch_sizes: Int64s
) -> pa.BinaryArray:
    """Return the bytes that Pulsar's Java client gives for each id.

    Parameters
    ----------
    ledger_ids, entry_ids
        Where the messages are.
    partition
        The partition of all, or None.
    batch_indexes, batch_sizes
        The number of each message in its batch, and how many that has; -1 and 0 for those that are in none.
    """
    count = len(ledger_ids)
    everywhere = np.ones(count, np.bool_)
    columns = [_field(_LEDGER_TAG, ledger_ids, everywhere), _field(_ENTRY_TAG, entry_ids, everywhere)]
    if partition is not None:
        columns.append(_field(_PARTITION_TAG, np.full(count, partition), everywhere))
    if (batch_indexes >= 0).any():
        columns.append(_field(_BATCH_INDEX_TAG, np.maximum(batch_indexes, 0), batch_indexes >= 0))
    columns.append(_field(_BATCH_SIZE_TAG, batch_sizes, everywhere))
    data = np.concatenate([values for values, _ in columns], axis=1)
    used = np.concatenate([used for _, used in columns], axis=1)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(used.sum(axis=1), out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data[used])])


def _field(tag: int, numbers: Int64s, present: Bools) -> tuple[npt.NDArray[np.uint8], Bools]:
    """Return a field of each message, in rows of the longest one's size, and which bytes count."""
    left: UInt64s = numbers.astype(np.uint64)
    places = 1
    while places < 10 and bool((left >> np.uint64(7 * places)).any()):
        places += 1
    data = np.empty((len(numbers), places + 1), np.uint8)
    used = np.empty(data.shape, np.bool_)
    data[:, 0], used[:, 0] = tag, present
    for place in range(places):
        rest = left >> np.uint64(7 * place)
        more = rest >= 0x80
        data[:, place + 1] = (rest & np.uint64(0x7F)) | np.where(more, np.uint64(0x80), np.uint64(0))
        used[:, place + 1] = present if place == 0 else present & (rest > 0)
    return data, used
