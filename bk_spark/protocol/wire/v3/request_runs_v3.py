"""Parses runs of v3 requests, for the bookie: consecutive adds or plain reads, with their ids in arrays.

One client's adds of entries of one size differ only in transaction id, entry id and stored entry, and so do its reads.
The first request of a run shows where these are. The others are compared with it and then read as an array. Bodies are
copied once. Any other request is parsed as protobuf. Source of the messages: compatibility.md §1.7, §1.8, §8.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Bools, Int64s
from bk_spark.protocol.entries.entry import ENTRY_HEADER_BYTES
from bk_spark.protocol.wire.framing import LENGTH_BYTES, Frames
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3.varints import INT64_BYTES, read_varints

#: With shorter runs, numpy's fixed costs exceed the work. Very large frames are worth it, because it saves a copy.
_RUN_MIN: Final = 8
_LARGE_FRAME_BYTES: Final = 512 * 1024
_VARINT, _BYTES = 0, 2
_HEADER_FIELD, _READ_FIELD, _ADD_FIELD = 1, 100, 101
#: For each field number: where the field starts after its tag, where it ends, and its value (-1 for bytes).
Fields = dict[int, tuple[int, int, int]]
_RECOVERY_ADD: Final = int(pb.AddRequest.RECOVERY_ADD)


@dataclass(slots=True)
class AddRunV3:
    """Adds with one master key and equal flags.

    ``ledger_ids`` and ``entry_ids`` are the requests' own, for their answers. ``stored_ids``, of shape (count, 3), are
    ledger id, entry id and last add confirmed of the stored entries. ``records`` and ``offsets`` are those of
    :class:`wire_v2.AddRun`.
    """

    master_key: bytes
    recovery: bool
    high_priority: bool
    txn_ids: Int64s
    ledger_ids: Int64s
    entry_ids: Int64s
    stored_ids: Int64s
    records: memoryview
    offsets: Int64s


@dataclass(slots=True)
class ReadRunV3:
    """Plain reads with one priority."""

    high_priority: bool
    txn_ids: list[int] | Int64s
    ledger_ids: list[int] | Int64s
    entry_ids: list[int] | Int64s


def segments(frames: Frames) -> Iterator[tuple[int, bool]]:
    """Cut ``frames`` into parts. Yield where each ends, and whether its frames have equal sizes and may be a run."""
    cuts = [*(np.flatnonzero(np.diff(frames.lengths)) + 1).tolist(), len(frames)]
    first = between = 0
    for last, size in zip(cuts, frames.lengths[np.array(cuts) - 1].tolist(), strict=True):
        if is_worth_it(last - first, size):
            if between < first:
                yield first, False
            yield last, True
            between = last
        first = last
    if between < first:
        yield first, False


def is_worth_it(count: int, frame_bytes: int) -> bool:
    """Return whether a run of ``count`` frames is faster parsed as an array."""
    return count >= _RUN_MIN or frame_bytes >= _LARGE_FRAME_BYTES


def uniform_run(frames: Frames, first: int, last: int) -> AddRunV3 | ReadRunV3 | None:
    """Return the run at the beginning of ``frames`` ``first`` … ``last`` - 1, which must have equal sizes.

    None if an array is not worth it, or if the first frame is anything but a usual add or a plain read.
    """
    count, size = last - first, int(frames.lengths[first])
    if not is_worth_it(count, size):
        return None
    start = int(frames.starts[first])
    one = frames.data[start : start + size]
    top = _fields(one, 0, size)
    if top is None or _HEADER_FIELD not in top or len(top) != 2:
        return None
    header = _fields(one, *top[_HEADER_FIELD][:2])
    if header is None or not {1, 2, 3} <= header.keys() <= {1, 2, 3, 4} or header[1][2] != pb.VERSION_THREE:
        return None
    if not all(_is_number(header, field) for field in header):
        return None
    # The frames of one receive are consecutive.
    stride = size + LENGTH_BYTES
    data = np.frombuffer(frames.data, np.uint8)
    rows = np.lib.stride_tricks.as_strided(data[start:], (count, size), (stride, 1), writeable=False)
    high_priority = 4 in header and header[4][2] > 0
    if _ADD_FIELD in top and header[2][2] == pb.ADD_ENTRY:
        return _adds(one, rows, header, _fields(one, *top[_ADD_FIELD][:2]), high_priority)
    if _READ_FIELD in top and header[2][2] == pb.READ_ENTRY:
        return _reads(rows, header, _fields(one, *top[_READ_FIELD][:2]), high_priority)
    return None


def _adds(
    one: memoryview, rows: npt.NDArray[np.uint8], header: Fields, add: Fields | None, high_priority: bool
) -> AddRunV3 | None:
    if add is None or not {1, 2, 3, 4} <= add.keys() <= {1, 2, 3, 4, 5, 100}:
        return None
    numbers = all(_is_number(add, field) for field in add if field not in (3, 4))
    if not numbers or _is_number(add, 3) or _is_number(add, 4) or not _small(header[3], add[1], add[2]):
        return None
    body_at, body_end, _ = add[4]
    if body_end - body_at < ENTRY_HEADER_BYTES or (100 in add and add[100][2] != _RECOVERY_ADD):
        return None
    varying = [header[3][:2], add[2][:2]]
    alike = _alike(rows[:, :body_at], varying, 0) & _alike(rows[:, body_end:], varying, body_end)
    count = len(rows) if alike.all() else int(alike.argmin())
    rows = rows[:count]
    size = body_end - body_at
    table = np.empty((count, LENGTH_BYTES + size), np.uint8)
    table[:, :LENGTH_BYTES] = np.frombuffer(size.to_bytes(LENGTH_BYTES, "big"), np.uint8)
    table[:, LENGTH_BYTES:] = rows[:, body_at:body_end]
    ids = table[:, LENGTH_BYTES : LENGTH_BYTES + 24].copy().view(">i8").astype(np.int64)
    offsets = np.arange(count + 1, dtype=np.int64) * (LENGTH_BYTES + size)
    return AddRunV3(
        bytes(one[add[3][0] : add[3][1]]),
        100 in add,
        high_priority,
        read_varints(rows[:, slice(*header[3][:2])]),
        np.full(count, add[1][2], np.int64),
        read_varints(rows[:, slice(*add[2][:2])]),
        ids,
        table.reshape(-1).data,
        offsets,
    )


def _reads(rows: npt.NDArray[np.uint8], header: Fields, read: Fields | None, high_priority: bool) -> ReadRunV3 | None:
    if read is None or read.keys() != {1, 2} or not _is_number(read, 1) or not _is_number(read, 2):
        return None
    if not _small(header[3], read[1], read[2]):
        return None
    alike = _alike(rows, [header[3][:2], read[2][:2]], 0)
    count = len(rows) if alike.all() else int(alike.argmin())
    rows = rows[:count]
    return ReadRunV3(
        high_priority,
        read_varints(rows[:, slice(*header[3][:2])]),
        np.full(count, read[1][2], np.int64),
        read_varints(rows[:, slice(*read[2][:2])]),
    )


def _alike(rows: npt.NDArray[np.uint8], varying: list[tuple[int, int]], offset: int) -> Bools:
    """Return which rows equal the first apart from the ``varying`` varints, which must have equal sizes. Positions of
    varints count from the start of the frame. The rows begin at ``offset`` in it."""
    width = rows.shape[1]
    mask = np.full(width, 0xFF, np.uint8)
    for start, end in varying:
        mask[max(0, min(width, start - offset)) : max(0, min(width, end - offset))] = 0x80
    alike: Bools = ((rows ^ rows[0]) & mask == 0).all(axis=1)
    return alike


def _small(*fields: tuple[int, int, int]) -> bool:
    """Return whether no varint has ten bytes, as those of negative numbers have."""
    return all(end - start <= INT64_BYTES for start, end, _ in fields)


def _is_number(fields: Fields, field: int) -> bool:
    return fields[field][2] >= 0


def _fields(data: memoryview, at: int, end: int) -> Fields | None:
    """Return the fields of the message in ``data[at:end]``. None if it has other fields than numbers and bytes, if a
    field is repeated, or if it is not a message."""
    fields: Fields = {}
    while at < end:
        tag, at = _varint(data, at, end)
        if tag >> 3 in fields or at < 0:
            return None
        start = at
        value, at = _varint(data, at, end)
        if at < 0:
            return None
        if tag & 7 == _VARINT:
            fields[tag >> 3] = start, at, value & 0xFFFF_FFFF_FFFF_FFFF
        elif tag & 7 == _BYTES and value <= end - at:
            fields[tag >> 3] = at, at + value, -1
            at += value
        else:
            return None
    return fields


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """Return the value and the position after it, which is -1 if there is no varint."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, -1
