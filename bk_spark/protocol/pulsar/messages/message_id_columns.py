"""Ids of many messages at once, as bytes. The layout is that of ``message_ids``.

Numbers and their tags are put together in words of eight bytes: what an entry has once for each entry, the index in
the batch for each message. Words are written from the last one of all ids to the first, so that what a word has too
much is written over by what belongs there.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.pulsar.message_ids import MessageIdData
from bk_spark.protocol.pulsar.messages.words import UInt64s

_LEDGER_TAG: Final = 0x08
_ENTRY_TAG: Final = 0x10
_PARTITION_TAG: Final = 0x18
_BATCH_INDEX_TAG: Final = 0x20
_BATCH_SIZE_TAG: Final = 0x30
_WORD_BYTES: Final = 8
#: A larger number does not fit a word, with its tag. No cluster has made so many ledgers.
_LIMIT: Final = 1 << 49
#: The least numbers of two, three, … bytes.
_LONGER: Final = np.array([1 << 7 * size for size in range(1, 7)], np.uint64)
#: By the size of a field, the bits that say that a byte of its number is not the last.
_BEFORE_LAST: Final = np.array([0x80808080808080 & ((1 << 8 * max(size - 2, 0)) - 1) for size in range(9)], np.uint64)
_ONE: Final = np.uint64(1)
_EIGHT: Final = np.uint64(8)
_SIXTY_THREE: Final = np.uint64(63)


def message_id_bytes(
    ledger_ids: Int64s,
    entry_ids: Int64s,
    partition: int | None,
    batch_sizes: Int64s,
    owners: Int64s,
    batch_indexes: Int64s,
) -> pa.BinaryArray:
    """Return the bytes that Pulsar's Java client gives for each id.

    Parameters
    ----------
    ledger_ids, entry_ids
        Where the entries are.
    partition
        The partition of all, or None.
    batch_sizes
        How many messages each entry has, 0 if it is not a batch.
    owners
        The index of each message's entry.
    batch_indexes
        The number of each message in its batch, -1 for those that are in none.
    """
    count = len(owners)
    if max(int(ledger_ids.max(initial=0)), int(entry_ids.max(initial=0))) >= _LIMIT:
        return _one_by_one(ledger_ids, entry_ids, partition, batch_sizes, owners, batch_indexes)
    heads = _Packed(len(ledger_ids))
    heads.append(*_field(_LEDGER_TAG, ledger_ids))
    heads.append(*_field(_ENTRY_TAG, entry_ids))
    if partition is not None:
        heads.append(*_field(_PARTITION_TAG, np.full(len(ledger_ids), partition)))
    ids = heads.take(owners)
    if (batch_indexes >= 0).all():
        ids.append(*_field(_BATCH_INDEX_TAG, batch_indexes))
    elif (batch_indexes >= 0).any():
        fields, sizes = _field(_BATCH_INDEX_TAG, np.maximum(batch_indexes, 0))
        fields[batch_indexes < 0], sizes[batch_indexes < 0] = 0, 0
        ids.append(fields, sizes)
    fields, sizes = _field(_BATCH_SIZE_TAG, batch_sizes)
    ids.append(fields[owners], sizes[owners])
    return ids.array(count)


class _Packed:
    """Bytes of many values, as columns of words."""

    def __init__(self, count: int) -> None:
        self._words: list[UInt64s] = [np.zeros(count, np.uint64)]
        self._sizes: Int64s = np.zeros(count, np.int64)

    def take(self, owners: Int64s) -> _Packed:
        """Return the values with these indexes."""
        found = _Packed(0)
        found._words, found._sizes = [one[owners] for one in self._words], self._sizes[owners]
        return found

    def append(self, fields: UInt64s, sizes: Int64s) -> None:
        """Append to each value the lowest bytes of a word, whose other bytes are 0."""
        places, shifts = self._sizes // _WORD_BYTES, (self._sizes % _WORD_BYTES).view(np.uint64) * _EIGHT
        low = fields << shifts
        # Shifted by 64 bits in all, or less.
        high = (fields >> _ONE) >> (_SIXTY_THREE - shifts)
        first, last = int(places.min(initial=0)), int(places.max(initial=0))
        while len(self._words) < last + 2:
            self._words.append(np.zeros(len(fields), np.uint64))
        for place in range(first, last + 1):
            here = True if first == last else places == place
            np.bitwise_or(self._words[place], low, out=self._words[place], where=here)
            np.bitwise_or(self._words[place + 1], high, out=self._words[place + 1], where=here)
        self._sizes = self._sizes + sizes

    def array(self, count: int) -> pa.BinaryArray:
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(self._sizes, out=offsets[1:])
        used = -(-int(self._sizes.max(initial=0)) // _WORD_BYTES)
        data = np.empty(int(offsets[-1]) + len(self._words) * _WORD_BYTES, np.uint8)
        anywhere: UInt64s = np.ndarray((len(data) - _WORD_BYTES + 1,), np.dtype("<u8"), data, strides=(1,))
        for place in reversed(range(used)):
            anywhere[offsets[:-1] + place * _WORD_BYTES] = self._words[place]
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), count, buffers)


def _field(tag: int, numbers: Int64s) -> tuple[UInt64s, Int64s]:
    """Return a field of each value as a word, and how many bytes of it count. Numbers are less than 2⁴⁹."""
    left: UInt64s = numbers.astype(np.uint64)
    sizes = np.full(len(left), 2)
    longer = np.searchsorted(_LONGER, left.max(initial=np.uint64(0)), side="right")
    for least in _LONGER[:longer]:
        sizes += left >= least
    # Seven bits to each byte, and a bit in all but the last.
    if longer >= 4:
        left = (left & np.uint64(0x0FFFFFFF)) | ((left & np.uint64(0x00FFFFFFF0000000)) << np.uint64(4))
    if longer >= 2:
        left = (left & np.uint64(0x00003FFF00003FFF)) | ((left & np.uint64(0x0FFFC0000FFFC000)) << np.uint64(2))
    if longer:
        left = (left & np.uint64(0x007F007F007F007F)) | ((left & np.uint64(0x3F803F803F803F80)) << _ONE)
        left |= _BEFORE_LAST[sizes]
    return left << _EIGHT | np.uint64(tag), sizes


def _one_by_one(
    ledger_ids: Int64s,
    entry_ids: Int64s,
    partition: int | None,
    batch_sizes: Int64s,
    owners: Int64s,
    batch_indexes: Int64s,
) -> pa.BinaryArray:
    number = -1 if partition is None else partition
    columns = (ledger_ids[owners], entry_ids[owners], batch_indexes, batch_sizes[owners])
    texts = [
        MessageIdData(ledger, entry, number, index, size).to_bytes()
        for ledger, entry, index, size in zip(*(one.tolist() for one in columns), strict=True)
    ]
    return pa.array(texts, pa.binary())
