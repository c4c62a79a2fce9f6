"""Parses the v2 answers of one receive, for the client. Layout: wire_v2.py."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from bk_spark.protocol.arrays import Int32s, Int64s, gather
from bk_spark.protocol.codes import V2, Code, OpV2
from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire.framing import LENGTH_BYTES, Frames
from bk_spark.protocol.wire.wire_v2 import ANSWER_BYTES

_ANSWER: Final = struct.Struct(">Iiqq")
#: ``kind`` is version and operation, the upper half of the header.
_ANSWER_DTYPE: Final = np.dtype([("kind", ">u2"), ("flags", ">u2"), ("rc", ">i4"), ("ledger", ">i8"), ("entry", ">i8")])
_REQUEST_ID: Final = struct.Struct(">q")
#: With fewer neighbouring answers to adds, numpy's fixed costs exceed the work.
_VECTOR_MIN: Final = 8
_ADD: Final = int(OpV2.ADD)
_ADD_KIND: Final = V2 << 8 | _ADD
_READ: Final = int(OpV2.READ)
_BATCH_READ: Final = int(OpV2.BATCH_READ)


@dataclass(frozen=True, slots=True)
class AddAnswers:
    """Answers to adds. Row ``i`` of each array is one answer."""

    ledger_ids: Int64s
    entry_ids: Int64s
    codes: Int32s


class ReadAnswer(NamedTuple):
    """An answer to a read. ``stored`` is the stored entry if ``code`` is OK, else empty. ``entry_id`` echoes the
    request."""

    ledger_id: int
    entry_id: int
    code: Code
    stored: memoryview


class BatchReadAnswer(NamedTuple):
    """An answer to a batch read. ``records`` holds ``u32 length, stored entry`` for each entry. entry.py verifies
    them."""

    ledger_id: int
    first_entry_id: int
    request_id: int
    code: Code
    records: memoryview


AnswerV2 = AddAnswers | ReadAnswer | BatchReadAnswer


def parse_answers(frames: Frames) -> Iterator[AnswerV2]:
    """Yield the answers in ``frames``. Neighbouring ADD answers are joined. Raises WireFormatError."""
    count = len(frames)
    if count >= _VECTOR_MIN and int(frames.lengths.max()) == int(frames.lengths.min()) == ANSWER_BYTES:
        answers = _same_adds(frames)
        if answers is not None:
            yield answers
            return
    data = frames.data
    adds: list[tuple[int, int, int]] = []
    for start, length in zip(frames.starts.tolist(), frames.lengths.tolist(), strict=True):
        if length < ANSWER_BYTES:
            raise WireFormatError(f"v2 answer shorter than {ANSWER_BYTES} bytes")
        header, rc, ledger_id, entry_id = _ANSWER.unpack_from(data, start)
        if header >> 24 != V2:
            raise WireFormatError("answer of another protocol version on a v2 connection")
        op = header >> 16 & 0xFF
        if op == _ADD:
            adds.append((ledger_id, entry_id, rc))
            continue
        if adds:
            yield _add_answers(adds)
            adds = []
        body = data[start + ANSWER_BYTES : start + length]
        if op == _READ:
            yield ReadAnswer(ledger_id, entry_id, Code.from_v2(rc), body)
        elif op == _BATCH_READ:
            if len(body) < _REQUEST_ID.size:
                raise WireFormatError("v2 batch read answer without a request id")
            (request_id,) = _REQUEST_ID.unpack_from(body)
            yield BatchReadAnswer(ledger_id, entry_id, request_id, Code.from_v2(rc), body[_REQUEST_ID.size :])
        else:
            raise WireFormatError(f"v2 answer with opcode {op}")
    if adds:
        yield _add_answers(adds)


def _add_answers(answers: list[tuple[int, int, int]]) -> AddAnswers:
    columns = np.array(answers, np.int64)
    return AddAnswers(columns[:, 0], columns[:, 1], columns[:, 2].astype(np.int32))


def _same_adds(frames: Frames) -> AddAnswers | None:
    """Return all answers at once if every one is of an add, else None."""
    starts, count, stride = frames.starts, len(frames.starts), ANSWER_BYTES + LENGTH_BYTES
    if int(starts[-1] - starts[0]) == (count - 1) * stride:
        answers = np.ndarray((count,), _ANSWER_DTYPE, frames.data, int(starts[0]), (stride,))
    else:
        answers = gather(np.frombuffer(frames.data, np.uint8), starts, ANSWER_BYTES).view(_ANSWER_DTYPE)
    # Not the flags, which are the lower half.
    if (answers["kind"] != _ADD_KIND).any():
        return None
    return AddAnswers(
        answers["ledger"].astype(np.int64), answers["entry"].astype(np.int64), answers["rc"].astype(np.int32)
    )
