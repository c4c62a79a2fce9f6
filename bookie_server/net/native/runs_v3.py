"""Runs of v3 requests: adds and plain reads that follow one another, with their ids in arrays.

One client's adds of entries of one size differ in transaction id, entry id and stored entry only, and so do its
reads. Where the first of them told where these lie, the rest is read as an array, after it was compared with
the first; bodies are copied once, into the records. Whatever looks different is parsed with protobuf.
Source of the messages: compatibility.md §1.7, §1.8, §8.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.entries.entry import ENTRY_HEADER_BYTES
from bk_spark.protocol.wire.framing import LENGTH_BYTES, Frames, frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.varints import INT64_BYTES, read_varints
from bookie_server.net.native.requests_v2 import first_records
from bookie_server.storage.records import Records, gather_int64

#: Shorter runs are not worth numpy's fixed costs, unless their frames are very large: then it saves copying.
_RUN_MIN: Final = 8
_LARGE_FRAME_BYTES: Final = 512 * 1024
_VARINT, _BYTES = 0, 2
_HEADER_FIELD, _READ_FIELD, _ADD_FIELD = 1, 100, 101
#: A field's number and what protobuf says of it: its first byte after the tag, its end, and its value if a number.
Fields = dict[int, tuple[int, int, int]]
_RECOVERY_ADD: Final = int(pb.AddRequest.RECOVERY_ADD)


@dataclass(slots=True)
class AddsV3:
    """Adds with one master key and the same flags."""

    master_key: bytes
    recovery: bool
    high_priority: bool
    txn_ids: list[int] | Int64s
    ledger_ids: list[int] | Int64s
    entry_ids: list[int] | Int64s
    records: Records

    def first(self, count: int) -> AddsV3:
        """The first ``count`` of them."""
        return AddsV3(
            self.master_key,
            self.recovery,
            self.high_priority,
            self.txn_ids[:count],
            self.ledger_ids[:count],
            self.entry_ids[:count],
            first_records(self.records, count),
        )


@dataclass(slots=True)
class ReadsV3:
    """Plain reads, of one priority."""

    high_priority: bool
    txn_ids: list[int] | Int64s
    ledger_ids: list[int] | Int64s
    entry_ids: list[int] | Int64s


class GatheredAdds:
    """Adds that came one by one, to be stored together."""

    def __init__(self, master_key: bytes, recovery: bool, high_priority: bool) -> None:
        self.kind = master_key, recovery, high_priority
        self._txn_ids: list[int] = []
        self._ledger_ids: list[int] = []
        self._entry_ids: list[int] = []
        self._bodies: list[bytes] = []

    def append(self, txn_id: int, ledger_id: int, entry_id: int, body: bytes) -> None:
        self._txn_ids.append(txn_id)
        self._ledger_ids.append(ledger_id)
        self._entry_ids.append(entry_id)
        self._bodies.append(body)

    def run(self) -> AddsV3:
        return AddsV3(*self.kind, self._txn_ids, self._ledger_ids, self._entry_ids, _records(self._bodies))


def segments(frames: Frames) -> Iterator[tuple[int, bool]]:
    """``frames`` in parts: where each ends, and whether it is of frames of equal size that may be a run."""
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
    """Whether a run of ``count`` frames is faster done as one."""
    return count >= _RUN_MIN or frame_bytes >= _LARGE_FRAME_BYTES


def uniform_run(frames: Frames, first: int, last: int) -> AddsV3 | ReadsV3 | None:
    """The adds or plain reads that ``frames`` ``first`` … ``last`` - 1, which are of equal size, begin with: all that
    are like the first; None where there is no use in that, or the first is anything unusual."""
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
    # The frames of one receive lie one behind the other.
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
) -> AddsV3 | None:
    if add is None or not {1, 2, 3, 4} <= add.keys() <= {1, 2, 3, 4, 5, 100}:
        return None
    numbers = all(_is_number(add, field) for field in add if field not in (3, 4))
    if not numbers or _is_number(add, 3) or _is_number(add, 4) or not _small(header[3], add[2]):
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
    data = table.reshape(-1).data
    return AddsV3(
        bytes(one[add[3][0] : add[3][1]]),
        100 in add,
        high_priority,
        read_varints(rows[:, slice(*header[3][:2])]),
        np.full(count, add[1][2], np.int64),
        read_varints(rows[:, slice(*add[2][:2])]),
        Records(ids[:, 0].copy(), ids[:, 1].copy(), ids[:, 2].copy(), data, offsets),
    )


def _reads(rows: npt.NDArray[np.uint8], header: Fields, read: Fields | None, high_priority: bool) -> ReadsV3 | None:
    if read is None or read.keys() != {1, 2} or not _is_number(read, 1) or not _is_number(read, 2):
        return None
    if not _small(header[3], read[2]):
        return None
    alike = _alike(rows, [header[3][:2], read[2][:2]], 0)
    count = len(rows) if alike.all() else int(alike.argmin())
    rows = rows[:count]
    return ReadsV3(
        high_priority,
        read_varints(rows[:, slice(*header[3][:2])]),
        np.full(count, read[1][2], np.int64),
        read_varints(rows[:, slice(*read[2][:2])]),
    )


def _alike(rows: npt.NDArray[np.uint8], varying: list[tuple[int, int]], offset: int) -> npt.NDArray[np.bool_]:
    """Which rows are like the first but for the ``varying`` varints, which must have the same sizes. Their positions
    are of the frame, of which the rows begin at ``offset``."""
    width = rows.shape[1]
    mask = np.full(width, 0xFF, np.uint8)
    for start, end in varying:
        mask[max(0, min(width, start - offset)) : max(0, min(width, end - offset))] = 0x80
    alike: npt.NDArray[np.bool_] = ((rows ^ rows[0]) & mask == 0).all(axis=1)
    return alike


def _small(*fields: tuple[int, int, int]) -> bool:
    """Whether these varints are not of the longest kind, which negative numbers have."""
    return all(end - start <= INT64_BYTES for start, end, _ in fields)


def _is_number(fields: Fields, field: int) -> bool:
    return fields[field][2] >= 0


def _fields(data: memoryview, at: int, end: int) -> Fields | None:
    """The fields of a message in ``data[at:end]``: (start, end, value), value -1 for bytes. None for anything but
    numbers and bytes, for a field that comes twice, and for what is no message."""
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
    """(value, position behind it); position -1 where there is none."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, -1


def _records(bodies: list[bytes]) -> Records:
    """Stored entries as records. Each has an entry header at least."""
    sizes = np.array([len(body) for body in bodies], np.int64)
    offsets = np.zeros(len(bodies) + 1, np.int64)
    np.cumsum(sizes + LENGTH_BYTES, out=offsets[1:])
    data = b"".join(map(frame, bodies))
    ids = gather_int64(np.frombuffer(data, np.uint8), offsets[:-1] + LENGTH_BYTES, 3)
    return Records(ids[:, 0].copy(), ids[:, 1].copy(), ids[:, 2].copy(), memoryview(data), offsets)
