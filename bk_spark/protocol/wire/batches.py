"""Batches of entries in the messages of bookie.proto, found and made without looking at each entry in Python.

A message's last field is ``records``: for each entry ``u32 length`` and the stored entry. These are exactly the records
of Apache's journal and entry log, so a bookie stores the bytes of a message as they came.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.codes import MASTER_KEY_BYTES, FlagV2
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.entry import ENTRY_HEADER_BYTES
from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.proto import bookie_pb2 as pb
from bk_spark.protocol.wire.framing import LENGTH_BYTES

SERVICE: Final = "bk_spark.v1.Bookie"
_RECORDS_TAG: Final = 15 << 3 | 2
_U32: Final = struct.Struct(">I")
#: With more fields before the records, protobuf's own parser looks for them, which costs copies.
_MOST_FIELDS: Final = 16
#: Entries of at least this size are joined one by one. This costs less than another pass over them.
_LARGE_BYTES: Final = 4096
#: What a v2 ADD frame has between its length and the stored entry: header and master key.
_V2_HEAD_BYTES: Final = 4 + MASTER_KEY_BYTES
#: Equal in all frames that one batch may hold: header, master key, ledger id.
_V2_KIND: Final = slice(LENGTH_BYTES, LENGTH_BYTES + _V2_HEAD_BYTES + 8)


_M = TypeVar("_M", bound=Message)


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of a batch. Record ``i`` is ``records[offsets[i] : offsets[i + 1]]``."""

    ledger_ids: Int64s
    entry_ids: Int64s
    last_adds_confirmed: Int64s
    records: memoryview
    offsets: Int64s


# --- messages with records ----------------------------------------------------------------------


def with_records(head: bytes, records: Sequence[Buffer]) -> bytes:
    """Return a message: ``head``, which has no records, and ``records`` in one field."""
    size = sum(map(len, records))
    return b"".join([head, records_head(size), *records]) if size else head


def records_head(size: int) -> bytes:
    """Return what stands before ``size`` bytes of records, the last field of a message."""
    return bytes([_RECORDS_TAG]) + _varint(size)


def parse_with_records(kind: type[_M], data: Buffer) -> tuple[_M, memoryview]:
    """Return a message without its records, and the records, which are not copied if they are its last field.

    Raises WireFormatError if ``data`` is not a message of ``kind``.
    """
    view = memoryview(data)
    at = _records_at(view)
    try:
        if at is not None:
            head, start = at
            return kind.FromString(bytes(view[:head])), view[start:]
        message = kind.FromString(bytes(view))
    except DecodeError as error:
        raise WireFormatError(f"this is not a {kind.DESCRIPTOR.full_name}") from error
    records: bytes = getattr(message, "records")  # noqa: B009  # not every message has them
    return message, memoryview(records)


def _records_at(message: memoryview) -> tuple[int, int] | None:
    """Return where the field of records begins, and where its content begins, if it is the last field."""
    at = 0
    for _ in range(_MOST_FIELDS):
        begin = at
        tag, at = _read_varint(message, at)
        if at < 0:
            return None
        match tag & 7:
            case 0:
                _, at = _read_varint(message, at)
                if at < 0:
                    return None
            case 1:
                at += 8
            case 2:
                size, at = _read_varint(message, at)
                if at < 0:
                    return None
                if tag == _RECORDS_TAG:
                    return (begin, at) if at + size == len(message) else None
                at += size
            case 5:
                at += 4
            case _:
                return None
        if at >= len(message):
            return None
    return None


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the number at ``at`` and the position after it. That is -1 if there is none."""
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, at + i + 1
    return 0, -1


# --- records ------------------------------------------------------------------------------------


def record_offsets(records: memoryview, most: int) -> Int64s:
    """Return where each record begins, and where the last one ends. There may be ``most``.

    Raises WireFormatError if the lengths do not add up to the size of ``records``, or there are more.
    """
    size = len(records)
    if size >= LENGTH_BYTES:
        stride = LENGTH_BYTES + int(_U32.unpack_from(records)[0])
        count, rest = divmod(size, stride)
        if not rest and count <= most:
            rows = np.frombuffer(records, np.uint8).reshape(count, stride)
            if count == 1 or bool((rows[:, :LENGTH_BYTES] == rows[0, :LENGTH_BYTES]).all()):
                return np.arange(count + 1, dtype=np.int64) * stride
    offsets, at = [0], 0
    while at < size:
        if len(offsets) > most:
            raise WireFormatError(f"more than {most} entries in one batch")
        if size - at < LENGTH_BYTES:
            raise WireFormatError(f"{size - at} bytes after the last record are too few for another length")
        end = at + LENGTH_BYTES + int(_U32.unpack_from(records, at)[0])
        if end > size:
            raise WireFormatError(
                f"the lengths do not add up: record {len(offsets) - 1} ends at {end}, the records end at {size}"
            )
        offsets.append(end)
        at = end
    return np.array(offsets, np.int64)


def batch_entries(batch: pb.AddBatch, records: memoryview, most: int) -> Entries:
    """Return the entries of a batch. Raises WireFormatError, with what is wrong, if it contradicts itself."""
    offsets = record_offsets(records, most)
    count = len(offsets) - 1
    if count != batch.count:
        raise WireFormatError(f"the batch announces {batch.count} entries and has {count}")
    if not count:
        raise WireFormatError("the batch has no entries")
    shortest = int(np.diff(offsets).min()) - LENGTH_BYTES
    if shortest < ENTRY_HEADER_BYTES:
        raise WireFormatError(f"an entry of {shortest} bytes is shorter than its header, {ENTRY_HEADER_BYTES} bytes")
    ids = _int64s(records, offsets[:-1] + LENGTH_BYTES, 3)
    if bool((ids[:, 0] != batch.ledger_id).any()):
        raise WireFormatError(f"an entry is of another ledger than its batch, ledger {batch.ledger_id}")
    return Entries(ids[:, 0].copy(), ids[:, 1].copy(), ids[:, 2].copy(), records, offsets)


def _int64s(data: memoryview, starts: Int64s, count: int) -> Int64s:
    """Return ``count`` big-endian numbers from each of ``starts`` on."""
    size = 8 * count
    items = np.ndarray((len(data) - size + 1,), f"V{size}", data, strides=(1,))
    return items[starts].view(">i8").reshape(-1, count).astype(np.int64)


# --- v2 frames as batches -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutgoingBatch:
    """A batch that is ready to send, and what its answer is about."""

    message: bytes
    ledger_id: int
    entry_ids: Int64s


def kind_of_frames(frames: memoryview) -> bytes:
    """Return what is equal in all v2 ADD frames that may share a batch: flags, master key and ledger."""
    return bytes(frames[_V2_KIND])


def batch_of_frames(batch_id: int, frames: memoryview, offsets: Int64s) -> OutgoingBatch:
    """Return the v2 ADD frames of one kind as one batch.

    Parameters
    ----------
    batch_id
        The number of the batch.
    frames
        The frames, without gaps.
    offsets
        Where each frame begins in ``frames``, and where the last one ends.
    """
    starts = offsets[:-1]
    count, first = len(starts), int(starts[0])
    kind = kind_of_frames(frames[first:])
    flags = FlagV2(int.from_bytes(kind[2:4], "big"))
    ledger_id = int.from_bytes(kind[-8:], "big", signed=True)
    entry_ids = _int64s(frames, starts + (LENGTH_BYTES + _V2_HEAD_BYTES + 8), 1)[:, 0]
    head = pb.AddBatch(
        batch_id=batch_id,
        ledger_id=ledger_id,
        master_key=kind[4 : 4 + MASTER_KEY_BYTES],
        recovery=FlagV2.RECOVERY_ADD in flags,
        high_priority=FlagV2.HIGH_PRIORITY in flags,
        count=count,
    ).SerializeToString()
    return OutgoingBatch(with_records(head, _records_of_frames(frames, offsets)), ledger_id, entry_ids)


def _records_of_frames(frames: memoryview, offsets: Int64s) -> list[Buffer]:
    """Return the frames without header and key."""
    sizes = np.diff(offsets)
    lengths = (sizes - (LENGTH_BYTES + _V2_HEAD_BYTES)).astype(">u4")
    count, first, stride = len(sizes), int(offsets[0]), int(sizes[0])
    if count > 1 and stride < _LARGE_BYTES and bool((sizes == stride).all()):
        rows = np.frombuffer(frames, np.uint8, count * stride, first).reshape(count, stride)
        out = np.empty((count, stride - _V2_HEAD_BYTES), np.uint8)
        out[:, :LENGTH_BYTES] = lengths.view(np.uint8).reshape(count, LENGTH_BYTES)
        out[:, LENGTH_BYTES:] = rows[:, LENGTH_BYTES + _V2_HEAD_BYTES :]
        return [out.reshape(-1).data]
    prefixes = lengths.tobytes()
    parts: list[Buffer] = []
    for i, (start, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        parts += (
            prefixes[LENGTH_BYTES * i : LENGTH_BYTES * (i + 1)],
            frames[start + LENGTH_BYTES + _V2_HEAD_BYTES : end],
        )
    return parts
