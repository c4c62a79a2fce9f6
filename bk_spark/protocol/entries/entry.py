"""Stored entries: header, digest, payload. Source: compatibility.md §2.

====== ==== ===============================================================================
offset size field
====== ==== ===============================================================================
0      8    ledger id
8      8    entry id
16     8    last add confirmed when the entry was packaged (-1: none)
24     8    length: payload bytes of the ledger up to and including this entry
32     D    digest (0, 4, 8 or 20 bytes, see digest.py)
32+D   …    payload
====== ==== ===============================================================================

All integers are big-endian. A LAC packet (explicit LAC) is ledger id, LAC, digest over those 16 bytes.

Answers with many entries are verified at once, and their payloads are put into one buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Int64s, gather_rows
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import Buffer, DigestFunction
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import DigestMismatchError, WireFormatError

ENTRY_HEADER: Final = struct.Struct(">qqqq")
ENTRY_HEADER_BYTES: Final = 32
LAC_PACKET_HEADER: Final = struct.Struct(">qq")

#: The entry header as a numpy record, for runs of entries of equal size.
ENTRY_HEADER_DTYPE: Final = np.dtype([("ledger", ">i8"), ("entry", ">i8"), ("lac", ">i8"), ("length", ">i8")])
_U32: Final = struct.Struct(">I")
_LENGTH_BYTES: Final = 4
#: With fewer entries, numpy's fixed costs exceed the work.
_VECTOR_MIN: Final = 4
#: Payloads of at least this average size, in at least so many bytes of records, are moved together in place. That takes
#: a third of the time of a copy to other memory, which the processor has to fetch first. Smaller ones numpy copies
#: faster than one by one, and small answers would keep the receive buffer that they share.
_MOVED_ENTRY_BYTES: Final = 16 * 1024
_MOVED_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """One verified entry. ``payload`` is a view into the received bytes."""

    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    length: int
    payload: memoryview


@dataclass(frozen=True, slots=True)
class EntryBlock:
    """Verified entries of one ledger, with consecutive ids.

    Parameters
    ----------
    first_entry_id
        The id of the first entry.
    payloads
        The payloads of the entries.
    max_lac
        The highest last add confirmed in the entries, -1 if none.
    """

    first_entry_id: int
    payloads: Payloads
    max_lac: int

    def __len__(self) -> int:
        return len(self.payloads)


def pack_entry(
    ledger_id: int, entry_id: int, last_add_confirmed: int, length: int, payload: Buffer, digest: DigestFunction
) -> bytes:
    """Return the stored form of one entry."""
    header = ENTRY_HEADER.pack(ledger_id, entry_id, last_add_confirmed, length)
    return b"".join((header, digest(header, payload), payload))


def verify_entry(
    stored: Buffer, ledger_id: int, entry_id: int | None, digest_type: DigestType, digest: DigestFunction
) -> Entry:
    """Check a stored entry as a reader must: size, digest, ledger id, and entry id (None in LAC reads: any).

    Raises DigestMismatchError.
    """
    view = memoryview(stored)
    payload_at = ENTRY_HEADER_BYTES + digest_type.digest_bytes
    if len(view) < payload_at:
        raise DigestMismatchError(
            f"entry of {len(view)} bytes is shorter than its header", ledger_id=ledger_id, entry_id=entry_id
        )
    found_ledger, found_entry, lac, length = ENTRY_HEADER.unpack_from(view)
    if found_ledger != ledger_id or (entry_id is not None and found_entry != entry_id):
        raise DigestMismatchError(
            f"asked for this entry, got ledger {found_ledger} entry {found_entry}",
            ledger_id=ledger_id,
            entry_id=entry_id,
        )
    payload = view[payload_at:]
    if digest(view[:ENTRY_HEADER_BYTES], payload) != view[ENTRY_HEADER_BYTES:payload_at]:
        raise DigestMismatchError(
            f"{digest_type.name} digest does not match", ledger_id=ledger_id, entry_id=found_entry
        )
    return Entry(found_ledger, found_entry, lac, length, payload)


def verify_records(
    records: memoryview,
    ledger_id: int,
    first_entry_id: int,
    digest_type: DigestType,
    digest: DigestFunction,
    *,
    may_change: bool = False,
) -> EntryBlock:
    """Verify ``u32 length, stored entry`` records that should be entries ``first_entry_id``, +1, ….

    Returns the longest prefix that is right. Raises DigestMismatchError if the first entry is wrong, and
    WireFormatError if a record is incomplete. With ``may_change`` nobody else uses ``records``: payloads of large
    entries are moved together within them, and not copied to other memory.
    """
    starts, sizes = _cut(records, ledger_id)
    if not len(starts):
        raise WireFormatError("no record where at least one was promised", ledger_id=ledger_id)
    count, size = len(starts), int(sizes[0])
    payload_at = ENTRY_HEADER_BYTES + digest_type.digest_bytes
    if count < _VECTOR_MIN or int(sizes.min()) < payload_at:
        stored = [records[s : s + n] for s, n in zip(starts.tolist(), sizes.tolist(), strict=True)]
        return verify_stored(stored, ledger_id, first_entry_id, digest_type, digest)
    stride = size + _LENGTH_BYTES
    uniform = count * stride == len(records) and int(sizes.max()) == size == int(sizes.min())
    in_place = may_change and not records.readonly and len(records) >= max(_MOVED_BYTES, count * _MOVED_ENTRY_BYTES)
    entry_ids = np.arange(first_entry_id, first_entry_id + count)
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(sizes - payload_at, out=offsets[1:])
    if uniform:
        headers = _column(records, count, stride, _LENGTH_BYTES, ENTRY_HEADER_BYTES)
        digests = _column(records, count, stride, _LENGTH_BYTES + ENTRY_HEADER_BYTES, digest_type.digest_bytes)
    else:
        data = np.frombuffer(records, np.uint8)
        headers = gather_rows(data, starts, ENTRY_HEADER_BYTES)
        digests = gather_rows(data, starts + ENTRY_HEADER_BYTES, digest_type.digest_bytes)
    if in_place:
        joined = _moved_together(records, starts + payload_at, offsets)
    elif uniform:
        # One strided copy, so that the receive buffer can be freed.
        joined = _column(records, count, stride, _LENGTH_BYTES + payload_at, size - payload_at).reshape(-1).data
    else:
        bounds = zip((starts + payload_at).tolist(), (starts + sizes).tolist(), strict=True)
        joined = memoryview(bytearray(b"").join([records[start:end] for start, end in bounds]))
    payloads = Payloads(joined, offsets)
    good, max_lac = _verify(headers, digests, payloads, ledger_id, entry_ids, digest)
    return EntryBlock(first_entry_id, payloads.part(0, good), max_lac)


def verify_apart(
    stored: Sequence[memoryview],
    ledger_id: int,
    first_entry_id: int,
    digest_type: DigestType,
    digest: DigestFunction,
    step: int = 1,
) -> list[EntryBlock]:
    """Do the same as :func:`verify_stored`, with a block for each entry: nothing is copied."""
    blocks: list[EntryBlock] = []
    for index, one in enumerate(stored):
        try:
            entry = verify_entry(one, ledger_id, first_entry_id + index * step, digest_type, digest)
        except DigestMismatchError:
            if not blocks:
                raise
            break
        blocks.append(EntryBlock(entry.entry_id, Payloads.of([entry.payload]), entry.last_add_confirmed))
    return blocks


def stored_in(records: memoryview, ledger_id: int) -> list[memoryview]:
    """Return the entries of ``u32 length, stored entry`` records. Raises WireFormatError if a record is incomplete."""
    starts, sizes = _cut(records, ledger_id)
    return [records[start : start + size] for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)]


def verify_stored(
    stored: Sequence[memoryview],
    ledger_id: int,
    first_entry_id: int,
    digest_type: DigestType,
    digest: DigestFunction,
    step: int = 1,
) -> EntryBlock:
    """Do the same as :func:`verify_records` for separate stored entries whose ids are ``step`` apart."""
    count, payload_at = len(stored), ENTRY_HEADER_BYTES + digest_type.digest_bytes
    if count >= _VECTOR_MIN and min(map(len, stored)) >= payload_at:
        heads = np.frombuffer(b"".join([one[:payload_at] for one in stored]), np.uint8).reshape(count, payload_at)
        views = [one[payload_at:] for one in stored]
        payloads = Payloads(memoryview(bytearray(b"").join(views)), Payloads.offsets_of(views))
        entry_ids = first_entry_id + step * np.arange(count)
        headers, digests = np.ascontiguousarray(heads[:, :ENTRY_HEADER_BYTES]), heads[:, ENTRY_HEADER_BYTES:]
        good, max_lac = _verify(headers, digests, payloads, ledger_id, entry_ids, digest)
        return EntryBlock(first_entry_id, payloads.part(0, good), max_lac)
    blocks = verify_apart(stored, ledger_id, first_entry_id, digest_type, digest, step)
    payloads = Payloads.joined([block.payloads for block in blocks])
    return EntryBlock(first_entry_id, payloads, max(-1, *(block.max_lac for block in blocks)))


def pack_lac(ledger_id: int, last_add_confirmed: int, digest: DigestFunction) -> bytes:
    """Return a LAC packet for WRITE_LAC."""
    header = LAC_PACKET_HEADER.pack(ledger_id, last_add_confirmed)
    return header + digest(header, b"")


def verify_lac(packet: Buffer, ledger_id: int, digest_type: DigestType, digest: DigestFunction) -> int:
    """Return the last add confirmed in a LAC packet. Raises DigestMismatchError."""
    view = memoryview(packet)
    if len(view) != LAC_PACKET_HEADER.size + digest_type.digest_bytes:
        raise DigestMismatchError(f"LAC packet of {len(view)} bytes", ledger_id=ledger_id)
    found_ledger, lac = LAC_PACKET_HEADER.unpack_from(view)
    if found_ledger != ledger_id or digest(view[:16], b"") != view[16:]:
        raise DigestMismatchError("LAC packet's digest or ledger does not match", ledger_id=ledger_id)
    return int(lac)


def _verify(
    headers: npt.NDArray[np.uint8],
    digests: npt.NDArray[np.uint8],
    payloads: Payloads,
    ledger_id: int,
    entry_ids: Int64s,
    digest: DigestFunction,
) -> tuple[int, int]:
    """Return the number of leading entries that are right, and their highest LAC.

    There is a row for each entry, contiguous in ``headers``. Nobody else has the buffer of ``payloads``. Raises
    DigestMismatchError if the first entry is wrong.
    """
    fields = headers.view(ENTRY_HEADER_DTYPE)[:, 0]
    right = fields["ledger"] == ledger_id
    right &= fields["entry"] == entry_ids
    if not digest.all_right(headers, digests, payloads.data, payloads.offsets):
        # Find which of them are right.
        right &= (digest.many(headers, list(payloads)) == digests).all(axis=1)
    good = len(payloads) if right.all() else int(np.argmin(right))
    if good == 0:
        raise DigestMismatchError(
            "digest, ledger or entry id is wrong", ledger_id=ledger_id, entry_id=int(entry_ids[0])
        )
    return good, int(fields["lac"][:good].max())


def _moved_together(records: memoryview, starts: Int64s, offsets: Int64s) -> memoryview:
    """Move what begins at ``starts`` to ``offsets``, where no byte is behind its old place. Return the whole."""
    for start, (at, end) in zip(starts.tolist(), pairwise(offsets.tolist()), strict=True):
        records[at:end] = records[start : start + end - at]
    return records[: int(offsets[-1])]


def _column(data: memoryview, count: int, stride: int, at: int, size: int) -> npt.NDArray[np.uint8]:
    """Copy ``size`` bytes from ``at`` on of each of ``count`` rows, which are ``stride`` bytes apart."""
    if not size:
        return np.empty((count, 0), np.uint8)
    # As items of one type, numpy copies each row at once, and not byte by byte.
    items = np.ndarray((count,), f"V{size}", data, at, (stride,))
    return np.ascontiguousarray(items).view(np.uint8).reshape(count, size)


def _cut(records: memoryview, ledger_id: int) -> tuple[Int64s, Int64s]:
    starts: list[int] = []
    sizes: list[int] = []
    position, end = 0, len(records)
    if end >= _LENGTH_BYTES:
        (size,) = _U32.unpack_from(records)
        stride = int(size) + _LENGTH_BYTES
        count = end // stride
        if count >= _VECTOR_MIN and count * stride == end:
            prefixes = np.ndarray((count,), ">u4", records, strides=(stride,))
            if bool((prefixes == size).all()):
                return stride * np.arange(count, dtype=np.int64) + _LENGTH_BYTES, np.full(count, size, np.int64)
    while position < end:
        if end - position < _LENGTH_BYTES:
            raise WireFormatError(f"{end - position} bytes where a record should begin", ledger_id=ledger_id)
        (size,) = _U32.unpack_from(records, position)
        position += _LENGTH_BYTES
        if end - position < size:
            raise WireFormatError(f"a record of {size} bytes ends after {end - position}", ledger_id=ledger_id)
        starts.append(position)
        sizes.append(size)
        position += size
    return np.array(starts, np.int64), np.array(sizes, np.int64)
