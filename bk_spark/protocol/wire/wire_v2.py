"""Wire protocol v2, in runs: many frames are parsed and built at once.

Frame body (after the u32 length, see framing.py); source: compatibility.md §1.3–§1.5, §2.4.

=========== ======================================================================================
request     layout
=========== ======================================================================================
any         ``header i32``: version << 24 | opcode << 16 | flags
ADD         header, master key (20), stored entry (see entry.py)
READ        header, ledger i64, entry i64 [, master key (20) if FENCING]
BATCH_READ  header, ledger i64, first entry i64, request id i64, max count i32, max size i64 [, key]
AUTH        header, protobuf AuthMessage
=========== ======================================================================================

=========== ======================================================================================
answer      layout
=========== ======================================================================================
ADD         header, rc i32, ledger i64, entry i64
READ        the same, then the stored entry if rc is 0
BATCH_READ  the same, request id i64, then per entry ``u32 length`` and the stored entry
AUTH        header, protobuf AuthMessage
=========== ======================================================================================

Answers echo version, opcode, ledger and entry id of the request. Their flags are 0. The header of a request of version
0 is the bare opcode, and so is the header of its answer.

An ADD's ``u32 length`` and stored entry, without the header and key between them, are exactly a record of Apache's
journal and of its entry log. :class:`AddRun` therefore returns its entries as *records*: ``u32 length, stored entry``
one after another.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Bytes, Int32s, Int64s, gather_rows
from bk_spark.protocol.codes import MASTER_KEY_BYTES, V2, Code, FlagV2, OpV2
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.entry import ENTRY_HEADER_BYTES
from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire.framing import LENGTH_BYTES, Frames
from bk_spark.protocol.wire.stored_rows import copied_size, put_stored

_HEADER: Final = struct.Struct(">I")
_ADD_PREFIX_BYTES: Final = 4 + MASTER_KEY_BYTES
#: Master key, and the ids of the stored entry.
_ONE_ADD: Final = struct.Struct(f">{MASTER_KEY_BYTES}sqqq")
_ONE_ANSWER: Final = struct.Struct(">IIiqq")
_READ_REQUEST: Final = struct.Struct(">IIqq")
_READ_IDS: Final = struct.Struct(">qq")
_BATCH_READ: Final = struct.Struct(">Iqqqiq")
_BATCH_READ_BYTES: Final = _BATCH_READ.size
_BATCH_ANSWER: Final = struct.Struct(">IIiqqq")
#: As a plain int: each operation on a flag of an enum makes a new flag.
_FENCING: Final = int(FlagV2.FENCING)
#: Bytes of a BATCH_READ answer before its first record.
BATCH_ANSWER_BYTES: Final = _BATCH_ANSWER.size

#: An ADD answer, a READ answer without an entry, or the start of a READ answer.
ANSWER_DTYPE: Final = np.dtype(
    [("frame", ">u4"), ("header", ">u4"), ("rc", ">i4"), ("ledger", ">i8"), ("entry", ">i8")]
)
ANSWER_BYTES: Final = 24
_READ_REQUEST_DTYPE: Final = np.dtype([("frame", ">u4"), ("header", ">u4"), ("ledger", ">i8"), ("entry", ">i8")])
#: What follows the header of an ADD.
_ADD_HEAD_DTYPE: Final = np.dtype(
    [("key", "u1", (MASTER_KEY_BYTES,)), ("ledger", ">i8"), ("entry", ">i8"), ("lac", ">i8")]
)


def header_int(op: int, flags: int = 0, version: int = V2) -> int:
    """Return the first four bytes of a frame body, as an int."""
    return op if version == 0 else version << 24 | op << 16 | flags


def split_header(header: int) -> tuple[int, int, int]:
    """Return (version, opcode, flags) of a header int."""
    version = header >> 24
    if version == 0:
        return 0, header, 0
    return version, header >> 16 & 0xFF, header & 0xFFFF


# --- requests, parsed by the server -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AddRun:
    """Consecutive adds with the same header and master key.

    ``records`` holds ``u32 length, stored entry`` for each add, without gaps. Record ``i`` is
    ``records[offsets[i] : offsets[i + 1]]``.
    """

    version: int
    flags: int
    master_key: bytes
    ledger_ids: Int64s
    entry_ids: Int64s
    last_adds_confirmed: Int64s
    records: memoryview
    offsets: Int64s


@dataclass(frozen=True, slots=True)
class ReadRun:
    """Consecutive reads with the same header. With FENCING they carry ``master_key``."""

    version: int
    flags: int
    master_key: bytes | None
    ledger_ids: Int64s
    entry_ids: Int64s


@dataclass(frozen=True, slots=True)
class BatchRead:
    """A BATCH_READ request. ``master_key`` comes with FENCING only."""

    version: int
    flags: int
    master_key: bytes | None
    ledger_id: int
    first_entry_id: int
    request_id: int
    max_count: int
    max_size_bytes: int


@dataclass(frozen=True, slots=True)
class Auth:
    """An AUTH request. ``body`` is an ``AuthMessage`` that is not parsed yet."""

    version: int
    body: memoryview


@dataclass(frozen=True, slots=True)
class BadVersion:
    """A frame of a version above 2. Answer it with BAD_VERSION and its version."""

    version: int
    op: int
    ledger_id: int
    entry_id: int
    #: The request id of a BATCH_READ, else -1.
    request_id: int


RequestV2 = AddRun | ReadRun | BatchRead | Auth | BadVersion


def parse_requests(frames: Frames) -> Iterator[RequestV2]:
    """Yield the requests in ``frames`` in order. Neighbours of one kind are joined into runs.

    Raises WireFormatError at an unknown opcode or a body too short for its operation. Requests yielded before that are
    valid.
    """
    if len(frames) == 0:
        return
    shortest = frames.shortest_bytes
    if shortest < _HEADER.size:
        raise WireFormatError("v2 frame without a header")
    if len(frames) == 1:  # from a client that waits for each answer: numpy would take longer than the request
        yield from _parse_same_header(_HEADER.unpack_from(frames.data, int(frames.starts[0]))[0], frames, shortest)
        return
    data = np.frombuffer(frames.data, np.uint8)
    headers = gather_rows(data, frames.starts, 4).view(">u4")[:, 0]
    cuts = np.flatnonzero(headers[1:] != headers[:-1]) + 1
    for first, last in zip([0, *cuts.tolist()], [*cuts.tolist(), len(frames)], strict=True):
        part = frames.part(first, last)
        yield from _parse_same_header(int(headers[first]), part, part.shortest_bytes)


def _parse_same_header(header: int, frames: Frames, shortest: int) -> Iterator[RequestV2]:
    version, op, flags = split_header(header)
    if version > V2:
        ids_at = _ADD_PREFIX_BYTES if op == OpV2.ADD else _HEADER.size
        for body in frames:
            ledger_id, entry_id = struct.unpack_from(">qq", body, ids_at) if len(body) >= ids_at + 16 else (-1, -1)
            request_id = -1
            if op == OpV2.BATCH_READ and len(body) >= _BATCH_READ_BYTES:
                request_id = _BATCH_READ.unpack_from(body)[3]
            yield BadVersion(version, op, ledger_id, entry_id, request_id)
    elif op == OpV2.ADD:
        _at_least(shortest, _ADD_PREFIX_BYTES + ENTRY_HEADER_BYTES, "ADD")
        yield from _parse_adds(version, flags, frames)
    elif op == OpV2.READ:
        fencing = bool(flags & _FENCING) and version >= V2
        _at_least(shortest, 20 + (MASTER_KEY_BYTES if fencing else 0), "READ")
        yield from _parse_reads(version, flags, fencing, frames)
    elif op == OpV2.BATCH_READ:
        fencing = bool(flags & _FENCING)
        _at_least(shortest, _BATCH_READ_BYTES + (MASTER_KEY_BYTES if fencing else 0), "BATCH_READ")
        for body in frames:
            _, ledger_id, entry_id, request_id, count, size = _BATCH_READ.unpack_from(body)
            key = bytes(body[_BATCH_READ_BYTES : _BATCH_READ_BYTES + MASTER_KEY_BYTES]) if fencing else None
            yield BatchRead(version, flags, key, ledger_id, entry_id, request_id, count, size)
    elif op == OpV2.AUTH:
        for body in frames:
            yield Auth(version, body[4:])
    else:
        raise WireFormatError(f"unknown v2 opcode {op}")


def _at_least(shortest: int, needed: int, what: str) -> None:
    if shortest < needed:
        raise WireFormatError(f"v2 {what} frame of {shortest} bytes, at least {needed} expected")


def _parse_adds(version: int, flags: int, frames: Frames) -> Iterator[AddRun]:
    if len(frames) == 1:
        start = int(frames.starts[0])
        key, ledger_id, entry_id, lac = _ONE_ADD.unpack_from(frames.data, start + _HEADER.size)
        stored = frames.data[start + _ADD_PREFIX_BYTES : start + int(frames.lengths[0])]
        record = b"".join((_HEADER.pack(len(stored)), stored))
        numbers = np.array((ledger_id, entry_id, lac, 0, len(record)), np.int64)
        ledger_ids, entry_ids, lacs = numbers[:1], numbers[1:2], numbers[2:3]
        yield AddRun(version, flags, key, ledger_ids, entry_ids, lacs, memoryview(record), numbers[3:])
        return
    data = np.frombuffer(frames.data, np.uint8)
    heads = gather_rows(data, frames.starts + _HEADER.size, _ADD_HEAD_DTYPE.itemsize)
    ids = heads.view(_ADD_HEAD_DTYPE)[:, 0]
    for first, last in _equal_rows(heads[:, :MASTER_KEY_BYTES]):
        records, offsets = _records(data, frames.starts[first:last], frames.lengths[first:last])
        yield AddRun(
            version,
            flags,
            heads[first, :MASTER_KEY_BYTES].tobytes(),
            ids["ledger"][first:last].astype(np.int64),
            ids["entry"][first:last].astype(np.int64),
            ids["lac"][first:last].astype(np.int64),
            records,
            offsets,
        )


def _records(data: npt.NDArray[np.uint8], starts: Int64s, lengths: Int64s) -> tuple[memoryview, Int64s]:
    """Return ``u32 length, stored entry`` of each ADD frame, joined, and the offset of each."""
    sizes = lengths - _ADD_PREFIX_BYTES
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes + LENGTH_BYTES, out=offsets[1:])
    size, stride = int(sizes[0]), int(lengths[0]) + LENGTH_BYTES
    count = len(sizes)
    if int(sizes.min()) == size == int(sizes.max()) and int(starts[-1] - starts[0]) == (count - 1) * stride:
        first = int(starts[0]) - LENGTH_BYTES
        # The end of the key is copied, too, where the length belongs: one copy of long rows is cheaper than two.
        table = data[first : first + count * stride].reshape(count, stride)[:, _ADD_PREFIX_BYTES:].copy()
        table[:, :LENGTH_BYTES] = np.frombuffer(_HEADER.pack(size), np.uint8)
        return table.reshape(-1).data, offsets
    out = np.empty(int(offsets[-1]), np.uint8)
    source, target = data.data, out.data
    pairs = zip(starts.tolist(), sizes.tolist(), offsets.tolist(), strict=False)
    for start, size, offset in pairs:
        body = start + _ADD_PREFIX_BYTES
        _HEADER.pack_into(target, offset, size)
        target[offset + LENGTH_BYTES : offset + LENGTH_BYTES + size] = source[body : body + size]
    return out.data, offsets


def _parse_reads(version: int, flags: int, fencing: bool, frames: Frames) -> Iterator[ReadRun]:
    if len(frames) == 1 and not fencing:
        both = np.array(_READ_IDS.unpack_from(frames.data, int(frames.starts[0]) + _HEADER.size), np.int64)
        yield ReadRun(version, flags, None, both[:1], both[1:])
        return
    data = np.frombuffer(frames.data, np.uint8)
    ids = gather_rows(data, frames.starts + 4, 16).view(">i8").astype(np.int64)
    if not fencing:
        yield ReadRun(version, flags, None, ids[:, 0], ids[:, 1])
        return
    keys = gather_rows(data, frames.starts + 20, MASTER_KEY_BYTES)
    for first, last in _equal_rows(keys):
        yield ReadRun(version, flags, keys[first].tobytes(), ids[first:last, 0], ids[first:last, 1])


def _equal_rows(rows: npt.NDArray[np.uint8]) -> Iterator[tuple[int, int]]:
    """Yield half-open ranges of equal neighbouring rows."""
    if rows.tobytes() == rows[0].tobytes() * len(rows):
        yield 0, len(rows)
        return
    cuts = (np.flatnonzero((rows[1:] != rows[:-1]).any(axis=1)) + 1).tolist()
    yield from zip([0, *cuts], [*cuts, len(rows)], strict=True)


# --- answers, built by the server ---------------------------------------------------------------


def add_answers(
    version: int, ledger_ids: Int64s, entry_ids: Int64s, codes: Code | Int32s, op: OpV2 = OpV2.ADD
) -> bytes:
    """Return answers to adds, or answers without an entry to reads (``op=READ``), as one run of frames."""
    if len(entry_ids) == 1:
        code = codes.v2 if isinstance(codes, Code) else int(codes[0])
        return _ONE_ANSWER.pack(
            ANSWER_BYTES, header_int(op, version=version), code, int(ledger_ids[0]), int(entry_ids[0])
        )
    answers = np.empty(len(entry_ids), ANSWER_DTYPE)
    answers["frame"] = ANSWER_BYTES
    answers["header"] = header_int(op, version=version)
    answers["rc"] = codes.v2 if isinstance(codes, Code) else codes
    answers["ledger"] = ledger_ids
    answers["entry"] = entry_ids
    return answers.tobytes()


def read_answer(version: int, ledger_id: int, entry_id: int, stored: Buffer) -> tuple[bytes, Buffer]:
    """Return a READ answer as (prefix, stored entry), to send one after the other."""
    header = header_int(OpV2.READ, version=version)
    return _ONE_ANSWER.pack(ANSWER_BYTES + len(stored), header, 0, ledger_id, entry_id), stored


def read_answers(
    version: int, ledger_ids: Int64s, entry_ids: Int64s, stored: Bytes, starts: Int64s, sizes: Int64s
) -> list[Buffer]:
    """Return READ answers. Entry ``i`` has ``sizes[i]`` bytes of ``stored``, from ``starts[i]`` on."""
    size = copied_size(sizes)
    prefixes = np.empty(len(sizes), ANSWER_DTYPE)
    prefixes["frame"] = ANSWER_BYTES + sizes
    prefixes["header"] = header_int(OpV2.READ, version=version)
    prefixes["rc"] = 0
    prefixes["ledger"] = ledger_ids
    prefixes["entry"] = entry_ids
    if size is not None:
        out = np.empty((len(sizes), ANSWER_DTYPE.itemsize + size), np.uint8)
        out[:, : ANSWER_DTYPE.itemsize] = prefixes.view(np.uint8).reshape(len(sizes), ANSWER_DTYPE.itemsize)
        put_stored(out, ANSWER_DTYPE.itemsize, stored, starts)
        return [out.reshape(-1).data]
    answers: list[Buffer] = []
    prefix, data, at = memoryview(prefixes.tobytes()), stored.data, 0
    for start, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True):
        answers += (prefix[at : at + prefixes.itemsize], data[start:end])
        at += prefixes.itemsize
    return answers


def batch_read_answer(request: BatchRead, code: Code, records_bytes: int = 0) -> bytes:
    """Return the start of a BATCH_READ answer. ``records_bytes`` of records follow it on the wire."""
    return _BATCH_ANSWER.pack(
        _BATCH_ANSWER.size - LENGTH_BYTES + records_bytes,
        header_int(OpV2.BATCH_READ, version=request.version),
        code.v2,
        request.ledger_id,
        request.first_entry_id,
        request.request_id,
    )


def auth_answer(version: int, body: bytes) -> bytes:
    """Return an AUTH frame with ``body``, an ``AuthMessage``. Requests look alike."""
    header = _HEADER.pack(header_int(OpV2.AUTH, version=version))
    return _HEADER.pack(len(header) + len(body)) + header + body


# --- requests, built by the client --------------------------------------------------------------


def read_requests(ledger_id: int, entry_ids: Int64s | Sequence[int], flags: int = 0, key: bytes | None = None) -> bytes:
    """Return READ requests for entries of one ledger. Give ``key`` if and only if ``flags`` has FENCING."""
    if key is not None:
        return b"".join(
            _READ_REQUEST.pack(20 + MASTER_KEY_BYTES, header_int(OpV2.READ, flags), ledger_id, int(entry_id)) + key
            for entry_id in entry_ids
        )
    if len(entry_ids) == 1:
        return _READ_REQUEST.pack(20, header_int(OpV2.READ, flags), ledger_id, int(entry_ids[0]))
    requests = np.empty(len(entry_ids), _READ_REQUEST_DTYPE)
    requests["frame"] = 20
    requests["header"] = header_int(OpV2.READ, flags)
    requests["ledger"] = ledger_id
    requests["entry"] = entry_ids
    return requests.tobytes()


def batch_read_request(
    ledger_id: int, first_entry_id: int, request_id: int, max_count: int, max_size_bytes: int
) -> bytes:
    """Return a BATCH_READ request. ``max_count`` of 0 is any number. ``max_size_bytes`` includes the answer's header,
    but a bookie returns at least one entry."""
    header = header_int(OpV2.BATCH_READ)
    return _HEADER.pack(_BATCH_READ_BYTES) + _BATCH_READ.pack(
        header, ledger_id, first_entry_id, request_id, max_count, max_size_bytes
    )
