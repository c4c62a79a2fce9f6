"""Answers put together by hand say what protobuf would have said."""

from __future__ import annotations

import numpy as np
import pytest

from bk_spark.protocol.codes import Code
from bk_spark.protocol.wire.answers_v2 import AddAnswers
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import answer_frames_v3, answers_v3
from tests.support.wire import frames

EDGES = [0, 1, 127, 128, 16_383, 16_384, 2**40, 2**62 + 5, 2**63 - 1]


def parsed(data: bytes) -> list[pb.Response]:
    return [pb.Response.FromString(bytes(body)) for body in frames(data)]


def add_response(txn_id: int, ledger_id: int, entry_id: int, code: Code) -> pb.Response:
    header = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=pb.ADD_ENTRY, txnId=txn_id)
    body = pb.AddResponse(status=code.v3, ledgerId=ledger_id, entryId=entry_id)  # type: ignore[arg-type]
    return pb.Response(header=header, status=code.v3, addResponse=body)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", list(Code))
def test_one_answer_to_an_add(code: Code) -> None:
    for txn_id in [*EDGES, 2**64 - 1]:
        for ids in [(5, 7), (-1, -1), (2**63 - 1, 2**63 - 1), (0, -(2**63))]:
            assert parsed(answer_frames_v3.add_answers([txn_id], [ids[0]], [ids[1]], code)) == [
                add_response(txn_id, *ids, code)
            ]


def test_answers_to_many_adds() -> None:
    random = np.random.default_rng(3)
    txn_ids = np.sort(random.integers(0, 2**20, 500)).tolist() + [2**62 + i for i in range(50)]
    ledger_ids = [3] * 300 + [2**40] * 250
    entry_ids = list(range(100, 650))
    codes = np.where(np.arange(550) % 200 == 7, int(Code.FENCED), int(Code.OK)).astype(np.int32)
    wanted = [
        add_response(*ids, Code(code))
        for *ids, code in zip(txn_ids, ledger_ids, entry_ids, codes.tolist(), strict=True)
    ]
    assert parsed(answer_frames_v3.add_answers(txn_ids, ledger_ids, entry_ids, codes)) == wanted
    columns = (np.array(column, np.int64) for column in (txn_ids, ledger_ids, entry_ids))
    assert parsed(answer_frames_v3.add_answers(*columns, codes)) == wanted


@pytest.mark.parametrize("odd", [2**64 - 1, 2**63])
def test_an_unsigned_transaction_id_among_many(odd: int) -> None:
    txn_ids = [*range(20), odd, *range(20)]
    data = answer_frames_v3.add_answers(txn_ids, [1] * 41, [-1, *range(40)], Code.TOO_MANY_REQUESTS)
    assert [response.header.txnId for response in parsed(data)] == txn_ids


def test_our_client_reads_them_as_a_run() -> None:
    count = 100
    txn_ids = 2**62 + np.arange(count)
    data = answer_frames_v3.add_answers(txn_ids, np.full(count, 9), np.arange(200, 200 + count), Code.OK)
    answers = list(answers_v3.parse_answers(frames(data)))
    assert len(answers) == 1
    assert isinstance(answers[0], AddAnswers)
    assert answers[0].entry_ids.tolist() == list(range(200, 300))


@pytest.mark.parametrize("most_between", [4, 999], ids=["neighbours", "apart"])
@pytest.mark.parametrize("sizes", [[40] * 60, [40, 41] * 30, [5000] * 60], ids=["uniform", "mixed", "large"])
@pytest.mark.parametrize("lac", [-1, 0, 5000])
def test_answers_to_reads(sizes: list[int], lac: int, most_between: int) -> None:
    random = np.random.default_rng(5)
    ends = np.cumsum(np.array(sizes) + random.integers(4, most_between, len(sizes), endpoint=True))
    data = random.integers(0, 256, int(ends[-1]), np.uint8)
    starts = ends - np.array(sizes)
    count = len(sizes)
    txn_ids, entry_ids = np.arange(100, 100 + count), np.arange(110, 110 + count)
    ledger_ids, lacs = np.array([4] * 30 + [5] * 30), np.full(count, lac)
    answers = answer_frames_v3.read_answers(txn_ids, ledger_ids, entry_ids, lacs, data, starts, np.array(sizes))
    got = parsed(b"".join(answers))
    for i, response in enumerate(got):
        stored = data[starts[i] : ends[i]].tobytes()
        assert (response.header.txnId, response.header.operation, response.status) == (100 + i, pb.READ_ENTRY, 0)
        assert response.readResponse == pb.ReadResponse(
            status=pb.EOK, ledgerId=4 + (i >= 30), entryId=110 + i, body=stored, maxLAC=lac
        )
    assert len(got) == count


def test_refused_reads() -> None:
    ids = np.array([-1, 5]), np.array([1, 2]), np.array([-1, 3])
    first, second = parsed(answer_frames_v3.read_refusals(*ids, np.array([Code.NO_ENTRY, Code.IO_ERROR], np.int32)))
    assert first.header.txnId == 2**64 - 1
    assert first.readResponse == pb.ReadResponse(status=pb.ENOENTRY, ledgerId=1, entryId=-1)
    assert (second.status, second.readResponse.HasField("maxLAC")) == (pb.EIO, False)
