"""Builds a bookie's v3 answers. Source of the messages: compatibility.md §1.7, §1.8, §8.1.

Answers to adds and reads are many and differ only in their ids. Building a protobuf message for each would cost more
than all other work. So they are built here byte by byte, and runs of similar answers with numpy:

============================================= =============================================================
bytes                                         content
============================================= =============================================================
4                                             frame length
``0A`` size ``08 03 10`` operation ``18`` id  ``Response.header``: version three, operation, transaction id
``10`` status                                 ``Response.status``
``AA 06`` (add), ``A2 06`` (read) size        ``addResponse``, ``readResponse``
``08`` status ``10`` ledger ``18`` entry      the first fields of both
``28`` LAC                                    ``maxLAC``, of a read that found its entry
``22`` size, stored entry                     ``body``, of a read that found its entry
============================================= =============================================================

Rare answers are built with protobuf: :func:`response`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Bytes, Int32s, Int64s
from bk_spark.protocol.codes import Code
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.wire.framing import LENGTH_BYTES
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.stored_rows import copied_size, put_stored
from bk_spark.protocol.wire.v3.varints import put_padded

_U32: Final = struct.Struct(">I")
_ONE_BYTE: Final = [bytes((value,)) for value in range(0x80)]
#: With fewer answers, numpy's fixed costs exceed the work.
_VECTOR_MIN: Final = 12
_ADD_TAG: Final = b"\xaa\x06"
_READ_TAG: Final = b"\xa2\x06"
_ADD_HEADER: Final = b"\x08\x03\x10\x02\x18"
_READ_HEADER: Final = b"\x08\x03\x10\x01\x18"
#: The smallest numbers whose varints have 2, 3, … 9 bytes.
_VARINT_STEPS: Final = np.array([1 << 7 * size for size in range(1, 9)], np.int64)


def varint(value: int) -> bytes:
    """Return ``value`` (an int64 or uint64) as protobuf writes it."""
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    value &= 0xFFFF_FFFF_FFFF_FFFF
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


_STATUS_OF: Final = {code: varint(code.v3) for code in Code}


def status(code: Code) -> pb.StatusCode:
    """Return the code as the type that protobuf's message classes declare."""
    return cast("pb.StatusCode", code.v3)


def response(txn_id: int, operation: pb.OperationType, code: Code) -> pb.Response:
    """Return an answer without a body."""
    header = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=operation, txnId=txn_id)
    return pb.Response(header=header, status=status(code))


#: The fields of the request and of the answer that hold the body of each operation.
BODIES: Final = {
    pb.READ_ENTRY: ("readRequest", "readResponse"),
    pb.ADD_ENTRY: ("addRequest", "addResponse"),
    pb.WRITE_LAC: ("writeLacRequest", "writeLacResponse"),
    pb.READ_LAC: ("readLacRequest", "readLacResponse"),
    pb.GET_BOOKIE_INFO: ("getBookieInfoRequest", "getBookieInfoResponse"),
    pb.FORCE_LEDGER: ("forceLedgerRequest", "forceLedgerResponse"),
    pb.GET_LIST_OF_ENTRIES_OF_LEDGER: ("getListOfEntriesOfLedgerRequest", "getListOfEntriesOfLedgerResponse"),
}


def response_about(txn_id: int, operation: pb.OperationType, code: Code, ledger_id: int) -> pb.Response:
    """Return an answer whose body has status and ledger."""
    answer = response(txn_id, operation, code)
    body = getattr(answer, BODIES[operation][1])
    body.status, body.ledgerId = status(code), ledger_id
    return answer


def refusal(request: pb.Request, code: Code) -> pb.Response:
    """Return an answer with only the code, in the envelope and in the body, and the ids of the request."""
    operation = request.header.operation
    asked, answered = BODIES[operation]
    answer = response(request.header.txnId, operation, code)
    body = getattr(answer, answered)
    body.status = status(code)
    source = getattr(request, asked)
    for name in ("ledgerId", "entryId"):
        if name in body.DESCRIPTOR.fields_by_name:
            setattr(body, name, getattr(source, name))
    return answer


# --- adds ---------------------------------------------------------------------------------------


def add_answers(
    txn_ids: Sequence[int] | Int64s,
    ledger_ids: Sequence[int] | Int64s,
    entry_ids: Sequence[int] | Int64s,
    codes: Code | Int32s,
) -> bytes:
    """Return answers to adds, joined."""
    columns = _columns(txn_ids, ledger_ids, entry_ids, codes)
    if columns is None:
        each = [codes] * len(txn_ids) if isinstance(codes, Code) else map(Code, codes.tolist())
        return b"".join(map(_add_answer, map(int, txn_ids), map(int, ledger_ids), map(int, entry_ids), each))
    answers: list[bytes] = []
    for first, last in _alike(columns):
        txns, ledgers, entries, numbers = (column[first:last] for column in columns)
        ledger_id, code = int(ledgers[0]), Code(int(numbers[0]))
        if last - first < _VECTOR_MIN:
            answers += [
                _add_answer(txn_id, ledger_id, entry_id, code)
                for txn_id, entry_id in zip(txns.tolist(), entries.tolist(), strict=True)
            ]
            continue
        one = _add_answer(int(txns[0]), ledger_id, int(entries[0]), code)
        table = np.empty((last - first, len(one)), np.uint8)
        table[:] = np.frombuffer(one, np.uint8)
        at = LENGTH_BYTES + 2 + len(_ADD_HEADER)
        put_padded(table[:, at : at + len(varint(int(txns[0])))], txns)
        put_padded(table[:, -len(varint(int(entries[0]))) :], entries)
        answers.append(table.tobytes())
    return answers[0] if len(answers) == 1 else b"".join(answers)


def _add_answer(txn_id: int, ledger_id: int, entry_id: int, code: Code) -> bytes:
    header = _ADD_HEADER + varint(txn_id)
    number = _STATUS_OF[code]
    body = b"\x08" + number + b"\x10" + varint(ledger_id) + b"\x18" + varint(entry_id)
    size = 2 + len(header) + 1 + len(number) + len(_ADD_TAG) + 1 + len(body)
    parts = (_U32.pack(size), b"\x0a", _ONE_BYTE[len(header)], header, b"\x10", number, _ADD_TAG, _ONE_BYTE[len(body)])
    return b"".join(parts) + body


# --- reads --------------------------------------------------------------------------------------


def read_refusals(txn_ids: Int64s, ledger_ids: Int64s, entry_ids: Int64s, codes: Code | Int32s) -> bytes:
    """Return answers without an entry to reads."""
    each = [codes] * len(txn_ids) if isinstance(codes, Code) else map(Code, codes.tolist())
    return b"".join(
        read_prefix(txn_id, ledger_id, entry_id, code, None, None)
        for txn_id, ledger_id, entry_id, code in zip(
            txn_ids.tolist(), ledger_ids.tolist(), entry_ids.tolist(), each, strict=True
        )
    )


def read_answers(
    txn_ids: Int64s,
    ledger_ids: Int64s,
    entry_ids: Int64s,
    lacs: Int64s,
    stored: Bytes,
    starts_at: Int64s,
    sizes_bytes: Int64s,
) -> list[Buffer]:
    """Return answers to reads that found their entries. Entry ``i`` has ``sizes_bytes[i]`` bytes of ``stored``, from
    ``starts_at[i]`` on."""
    sizes, starts, data = sizes_bytes.tolist(), starts_at.tolist(), stored.data
    size = copied_size(sizes_bytes) if len(sizes) >= _VECTOR_MIN else None
    answers: list[Buffer] = []
    columns = (txn_ids, ledger_ids, entry_ids, lacs)
    for first, last in [(0, len(sizes))] if size is None else _alike(columns):
        if size is None or last - first < _VECTOR_MIN:
            for i in range(first, last):
                ids = int(txn_ids[i]), int(ledger_ids[i]), int(entry_ids[i])
                answers.append(read_prefix(*ids, Code.OK, int(lacs[i]), sizes[i]))
                answers.append(data[starts[i] : starts[i] + sizes[i]])
            continue
        txn_id, ledger_id, entry_id, lac = (int(column[first]) for column in columns)
        one = read_prefix(txn_id, ledger_id, entry_id, Code.OK, lac, size)
        table = np.empty((last - first, len(one) + size), np.uint8)
        table[:, : len(one)] = np.frombuffer(one, np.uint8)
        at = LENGTH_BYTES + 2 + len(_READ_HEADER)
        put_padded(table[:, at : at + len(varint(txn_id))], txn_ids[first:last])
        end = len(one) - len(_lac_and_body(lac, size))
        put_padded(table[:, end - len(varint(entry_id)) : end], entry_ids[first:last])
        put_stored(table, len(one), stored, starts_at[first:last])
        answers.append(table.reshape(-1).data)
    return answers


def read_prefix(
    txn_id: int, ledger_id: int, entry_id: int, code: Code, max_lac: int | None, stored_bytes: int | None
) -> bytes:
    """Return an answer to a read up to its stored entry of ``stored_bytes``, which follows. None: there is no entry."""
    header = _READ_HEADER + varint(txn_id)
    number = _STATUS_OF[code]
    body = b"\x08" + number + b"\x10" + varint(ledger_id) + b"\x18" + varint(entry_id)
    body += _lac_and_body(max_lac, stored_bytes)
    body_size = varint(len(body) + (stored_bytes or 0))
    size = 2 + len(header) + 1 + len(number) + len(_READ_TAG) + len(body_size) + len(body) + (stored_bytes or 0)
    parts = (_U32.pack(size), b"\x0a", _ONE_BYTE[len(header)], header, b"\x10", number, _READ_TAG, body_size, body)
    return b"".join(parts)


def _lac_and_body(max_lac: int | None, stored_bytes: int | None) -> bytes:
    lac = b"" if max_lac is None else b"\x28" + varint(max_lac)
    return lac if stored_bytes is None else lac + b"\x22" + varint(stored_bytes)


# --- inside -------------------------------------------------------------------------------------


def _columns(
    txn_ids: Sequence[int] | Int64s,
    ledger_ids: Sequence[int] | Int64s,
    entry_ids: Sequence[int] | Int64s,
    codes: Code | Int32s,
) -> tuple[Int64s, Int64s, Int64s, Int64s] | None:
    """Return the columns as arrays. None if there are few answers, or an id needs a varint of ten bytes."""
    if len(txn_ids) < _VECTOR_MIN:
        return None
    try:
        txns, ledgers, entries = (np.asarray(column, np.int64) for column in (txn_ids, ledger_ids, entry_ids))
    except OverflowError:
        return None
    if int(txns.min()) < 0 or int(entries.min()) < 0:
        return None
    numbers = np.full(len(txns), int(codes), np.int64) if isinstance(codes, Code) else codes.astype(np.int64)
    return txns, ledgers, entries, numbers


def _alike(columns: tuple[Int64s, Int64s, Int64s, Int64s]) -> Iterator[tuple[int, int]]:
    """Yield half-open ranges of neighbours with varints of equal sizes, and equal second and fourth columns."""
    txns, seconds, entries, fourths = columns
    if int(txns.min()) < 0 or int(entries.min()) < 0:
        yield from ((i, i + 1) for i in range(len(txns)))
        return
    sizes = np.searchsorted(_VARINT_STEPS, txns, side="right") * 16 + np.searchsorted(
        _VARINT_STEPS, entries, side="right"
    )
    different: npt.NDArray[np.bool_] = (
        (sizes[1:] != sizes[:-1]) | (seconds[1:] != seconds[:-1]) | (fourths[1:] != fourths[:-1])
    )
    cuts = (np.flatnonzero(different) + 1).tolist()
    yield from zip([0, *cuts], [*cuts, len(txns)], strict=True)
