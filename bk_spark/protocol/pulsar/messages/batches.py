"""The messages of batches. Source: docs/design/pulsar.md §2.3.

A batch is ``count`` times u32 n, n bytes ``SingleMessageMetadata``, and the value, whose size is in the metadata. So a
message is found only through the one before it. The way is first guessed: messages of one size lie at equal distances,
others are walked through with a look at the few bytes that matter. Then the metadata of all messages is read at once,
and must say that each one ends where the next one was looked for. Where it does not, the guess was wrong, or the batch
is corrupt: the batch is walked through once more, with all its metadata.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.pulsar.fields import FieldError, Fields
from bk_spark.protocol.pulsar.messages.field_columns import FieldColumns
from bk_spark.protocol.pulsar.messages.words import Words

_SIZE_BYTES: Final = 4
#: Size, and metadata with nothing but a size of one byte.
MIN_MESSAGE_BYTES: Final = 6
#: Pulsar's clients put 1,000 messages into a batch if they are not told otherwise, and five million bytes fit.
MAX_BATCH_MESSAGES: Final = 2_000_000
#: The size, the first tag, and the byte after it.
_HEAD: Final = struct.Struct(">IBB")
#: Tags of properties and a key. They come before the size.
_FIRST_TAGS: Final = (0x0A, 0x12)
_SIZE_TAG: Final = 0x18


class SingleField(IntEnum):
    """Fields of ``SingleMessageMetadata`` that are read."""

    PROPERTIES = 1
    PARTITION_KEY = 2
    PAYLOAD_SIZE = 3
    COMPACTED_OUT = 4
    EVENT_TIME = 5
    PARTITION_KEY_B64_ENCODED = 6
    ORDERING_KEY = 7
    SEQUENCE_ID = 8
    NULL_VALUE = 9
    NULL_PARTITION_KEY = 10


#: The fields that are bytes. The others are numbers, except the properties.
_BYTES: Final = frozenset({SingleField.PARTITION_KEY, SingleField.ORDERING_KEY})


@dataclass(frozen=True, slots=True)
class BatchMessages:
    """All messages of some batches, in order.

    Parameters
    ----------
    owners
        The index of each message's batch, ascending.
    indexes
        The number of each message in its batch.
    fields
        The metadata of the messages.
    value_begins, value_sizes
        Where the values are.
    """

    owners: Int64s
    indexes: Int64s
    fields: FieldColumns
    value_begins: Int64s
    value_sizes: Int64s


def read_batches(
    words: Words,
    begins: Int64s,
    ends: Int64s,
    counts: Int64s,
    fields: Sequence[SingleField],
    error: Callable[[int, str], Exception],
) -> BatchMessages:
    """Find the messages of batches.

    Parameters
    ----------
    words
        The buffer with the payloads, decompressed.
    begins, ends, counts
        Where each batch is, and how many messages it has.
    fields
        Fields of the messages' metadata to read.
    error
        Makes the error of a corrupt batch from its index and what is wrong.

    Raises
    ------
    Exception
        What ``error`` makes.
    """
    room = np.minimum((ends - begins) // MIN_MESSAGE_BYTES, MAX_BATCH_MESSAGES)
    fits = (counts >= 0) & (counts <= room) & ((counts > 0) | (begins == ends))
    if not fits.all():
        index = int(np.argmin(fits))
        size = int(ends[index] - begins[index])
        raise error(index, f"a corrupt batch: {int(counts[index])} messages in {size} bytes")
    owners = np.repeat(np.arange(len(begins)), counts)
    firsts = np.cumsum(counts) - counts
    indexes = np.arange(len(owners)) - np.repeat(firsts, counts)
    limits = np.repeat(ends, counts)
    starts = _guess(words, begins, ends, counts, firsts, indexes)
    wanted = [one for one in fields if one not in _BYTES and one is not SingleField.PROPERTIES]
    for _ in range(2):
        metadata_begins = starts + _SIZE_BYTES
        metadata_ends = metadata_begins + words.big_endian_32(starts)
        within = metadata_ends <= limits
        np.minimum(metadata_ends, limits, out=metadata_ends)
        read = FieldColumns(
            words,
            metadata_begins,
            metadata_ends,
            numbers=[*wanted, SingleField.PAYLOAD_SIZE],
            spans=[one for one in fields if one in _BYTES],
            repeated=[one for one in fields if one is SingleField.PROPERTIES],
        )
        sizes = read.signed(SingleField.PAYLOAD_SIZE)
        sound = within & read.present(SingleField.PAYLOAD_SIZE) & ~read.malformed & (sizes >= 0)
        after = metadata_ends + np.minimum(sizes, limits)
        # Where the next message of the same batch begins, or the batch ends.
        expected = np.empty_like(starts)
        expected[:-1] = starts[1:]
        lasts = firsts + counts - 1
        expected[lasts[counts > 0]] = ends[counts > 0]
        sound &= after == expected
        if sound.all():
            return BatchMessages(owners, indexes, read, metadata_ends, sizes)
        for batch in np.unique(owners[~sound]).tolist():
            first, count = int(firsts[batch]), int(counts[batch])
            try:
                starts[first : first + count] = _walk_exactly(words.data, int(begins[batch]), int(ends[batch]), count)
            except FieldError as problem:
                raise error(batch, f"a corrupt batch: {problem}") from problem
    raise error(int(owners[int(np.argmin(sound))]), "a corrupt batch: the sizes of its messages do not add up")


def _guess(words: Words, begins: Int64s, ends: Int64s, counts: Int64s, firsts: Int64s, indexes: Int64s) -> Int64s:
    """Return where each message probably begins, always within its batch."""
    strides: Int64s = (ends - begins) // np.maximum(counts, 1)
    starts = np.repeat(begins, counts) + np.repeat(strides, counts) * indexes
    even = strides * counts == ends - begins
    if not len(starts):
        return starts
    # All messages of an even batch have metadata of the same size, as far as that is looked at here.
    sizes = words.big_endian_32(starts)
    differs = sizes != np.repeat(sizes[np.minimum(firsts, len(sizes) - 1)], counts)
    others = ~even
    if differs.any():
        others |= np.bincount(np.repeat(np.arange(len(begins)), counts)[differs], minlength=len(begins)) > 0
    if not others.any():
        return starts
    found: list[int] = []
    for begin, end, count in zip(begins[others].tolist(), ends[others].tolist(), counts[others].tolist(), strict=True):
        expected = len(found) + count
        _walk(words.data, begin, end, count, found)
        found += [begin] * (expected - len(found))
    starts[np.repeat(others, counts)] = found
    return starts


def _walk(data: bytes | memoryview, at: int, end: int, count: int, found: list[int]) -> None:
    """Append to ``found`` where messages of a batch begin, as far as that goes."""
    unpack, put = _HEAD.unpack_from, found.append
    try:
        for _ in range(count):
            put(at)
            size, tag, value = unpack(data, at)
            value_at = at + 5
            while tag in _FIRST_TAGS and value < 0x80:
                value_at += value + 2
                tag, value = data[value_at - 1], data[value_at]
            at += _SIZE_BYTES + size
            if tag == _SIZE_TAG and value < 0x80:
                at += value
            elif tag == _SIZE_TAG and data[value_at + 1] < 0x80:
                at += value - 0x80 + (data[value_at + 1] << 7)
            else:
                at += _size_of(data, at - size, at)
            if at > end:
                break
    except (IndexError, FieldError):
        pass


def _walk_exactly(data: bytes | memoryview, at: int, end: int, count: int) -> list[int]:
    """Return where the messages of a batch begin. Raises FieldError if it is corrupt."""
    found = []
    for index in range(count):
        if end - at < _SIZE_BYTES:
            raise FieldError(f"message {index} of {count} begins at its end")
        found.append(at)
        size = int.from_bytes(data[at : at + _SIZE_BYTES], "big")
        at += _SIZE_BYTES
        if size > end - at:
            raise FieldError(f"message {index} of {count} has {size} bytes of metadata, {end - at} are left")
        try:
            value = _size_of(data, at, at + size)
        except FieldError as problem:
            raise FieldError(f"message {index} of {count}: {problem}") from problem
        at += size
        if value > end - at:
            raise FieldError(f"message {index} of {count} has a value of {value} bytes, {end - at} are left")
        at += value
    if at != end:
        raise FieldError(f"{end - at} bytes are left after its {count} messages")
    return found


def _size_of(data: bytes | memoryview, begin: int, end: int) -> int:
    """Return the size of a value by the metadata of its message. Raises FieldError."""
    metadata = Fields(bytes(data[begin:end]))
    if SingleField.PAYLOAD_SIZE not in metadata:
        raise FieldError("its metadata has no size")
    return metadata.number(SingleField.PAYLOAD_SIZE)
