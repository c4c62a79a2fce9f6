"""Parses the v3 answers of one receive, for the client: answers to adds in runs, others one by one.

Answers to adds are small and many. Those of one ledger and code differ only in transaction id and entry id, and entries
sent together mostly have ids of one size. The first answer of such a run shows the positions of the ids, and the run is
then read as an array. Any other answer is parsed as protobuf.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import gather_rows
from bk_spark.protocol.codes import Code
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire.answers_v2 import AddAnswers
from bk_spark.protocol.wire.framing import Frames
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3.add_frames_v3 import ADD_TXN_BIT
from bk_spark.protocol.wire.v3.varints import INT64_BYTES, padded, read_varints
from bk_spark.protocol.wire.v3.wire_v3 import parse_response, response_code

#: With fewer answers of equal size, numpy's fixed costs exceed the work.
_VECTOR_MIN: Final = 24
#: The longest answer to an add.
_VECTOR_MAX_BYTES: Final = 96
#: After this many kinds of answers (ledgers, codes) in a run, the rest is parsed one by one.
_MAX_KINDS: Final = 8
#: The header of an answer to an add: field 1, its size, then version, operation and the txnId's tag.
_TXN_AT: Final = 7
_ADD_HEADER: Final = b"\x08\x03\x10\x02\x18"

Rows = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class BareAddAnswer:
    """An answer to an add that names no entry. Only its transaction id identifies the entry."""

    txn_id: int
    code: Code


AnswerV3 = AddAnswers | BareAddAnswer | pb.Response


def parse_answers(frames: Frames) -> Iterator[AnswerV3]:
    """Yield the answers in ``frames``, roughly in order. Raises WireFormatError."""
    if len(frames) == 1:
        yield from _parse_each(frames)
        return
    data = np.frombuffer(frames.data, np.uint8)
    cuts = (np.flatnonzero(np.diff(frames.lengths)) + 1).tolist()
    for first, last in zip([0, *cuts], [*cuts, len(frames)], strict=True):
        part = frames.part(first, last)
        size = int(frames.lengths[first])
        if last - first >= _VECTOR_MIN and size <= _VECTOR_MAX_BYTES:
            yield from _parse_equal(gather_rows(data, part.starts, size))
        else:
            yield from _parse_each(part)


def _parse_equal(rows: Rows) -> Iterator[AnswerV3]:
    """Yield answers of one size, given as rows."""
    for _ in range(_MAX_KINDS):
        if len(rows) < _VECTOR_MIN:
            break
        first = rows[0].tobytes()
        response = parse_response(first)
        entry_at = _entry_id_at(first, response)
        if entry_at is None:
            break
        ids = np.full(rows.shape[1], 0xFF, np.uint8)
        ids[_TXN_AT : _TXN_AT + INT64_BYTES] = ids[entry_at:] = 0x80
        alike = ((rows ^ rows[0]) & ids == 0).all(axis=1)
        count = int(np.count_nonzero(alike))
        body = response.addResponse
        yield AddAnswers(
            np.full(count, body.ledgerId, np.int64),
            read_varints(rows[alike, entry_at:]),
            np.full(count, response_code(response, body.status), np.int32),
        )
        rows = rows[~alike]
    yield from _parse_each(row.tobytes() for row in rows)


def _entry_id_at(data: bytes, response: pb.Response) -> int | None:
    """Return the position of the entry id, which ends an answer to one of our adds. None if it is not there."""
    entry_id = response.addResponse.entryId
    size = max(1, -(-entry_id.bit_length() // 7))
    if (
        not response.HasField("addResponse")
        or entry_id < 0
        or response.header.txnId >> 63  # its varint has ten bytes
        or data[:1] != b"\x0a"
        or data[2:_TXN_AT] != _ADD_HEADER
        or data[_TXN_AT : _TXN_AT + INT64_BYTES] != padded(response.header.txnId, INT64_BYTES)
        or data[-size - 1 :] != b"\x18" + padded(entry_id, size)
    ):
        return None
    return len(data) - size


def _parse_each(bodies: Iterable[Buffer]) -> Iterator[AnswerV3]:
    adds: list[tuple[int, int, int]] = []
    for body in bodies:
        response = parse_response(body)
        if response.header.version != pb.VERSION_THREE:
            raise WireFormatError(f"answer of protocol version {response.header.version} on a v3 connection")
        if response.header.operation != pb.ADD_ENTRY:
            yield response
        elif response.HasField("addResponse"):
            add = response.addResponse
            adds.append((add.ledgerId, add.entryId, response_code(response, add.status)))
        elif response.header.txnId & ADD_TXN_BIT:
            yield BareAddAnswer(response.header.txnId, response_code(response, None))
    if adds:
        ledger_ids, entry_ids, codes = zip(*adds, strict=True)
        yield AddAnswers(np.array(ledger_ids, np.int64), np.array(entry_ids, np.int64), np.array(codes, np.int32))
