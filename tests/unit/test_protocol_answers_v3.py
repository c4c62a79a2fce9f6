"""v3 answers of one receive: whatever their mix, what is read as arrays equals what protobuf reads."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire.answers_v2 import AddAnswers
from bk_spark.protocol.wire.framing import frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import wire_v3
from bk_spark.protocol.wire.v3.add_frames_v3 import ADD_TXN_BIT
from bk_spark.protocol.wire.v3.answers_v3 import BareAddAnswer, parse_answers
from tests.support.wire import captured, frames


def add_answer(ledger_id: int, entry_id: int, code: Code = Code.OK, *, txn_id: int | None = None) -> bytes:
    txn_id = ADD_TXN_BIT | entry_id if txn_id is None else txn_id
    header = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=pb.ADD_ENTRY, txnId=txn_id)
    body = pb.AddResponse(status=code.v3, ledgerId=ledger_id, entryId=entry_id)  # type: ignore[arg-type]
    return frame(pb.Response(header=header, status=code.v3, addResponse=body).SerializeToString())  # type: ignore[arg-type]


def info_answer(txn_id: int) -> bytes:
    header = wire_v3.request_header(pb.GET_BOOKIE_INFO, txn_id)
    body = pb.GetBookieInfoResponse(status=pb.EOK, freeDiskSpace=7)
    return frame(pb.Response(header=header, status=pb.EOK, getBookieInfoResponse=body).SerializeToString())


def bare_answer(txn_id: int, status: pb.StatusCode) -> bytes:
    return frame(pb.Response(header=wire_v3.request_header(pb.ADD_ENTRY, txn_id), status=status).SerializeToString())


def adds_of(stream: bytes) -> Counter[tuple[int, int, int]]:
    return Counter(
        row
        for answer in parse_answers(frames(stream))
        if isinstance(answer, AddAnswers)
        for row in zip(answer.ledger_ids.tolist(), answer.entry_ids.tolist(), answer.codes.tolist(), strict=True)
    )


def test_a_run_becomes_one_array() -> None:
    (answers,) = parse_answers(frames(b"".join(add_answer(5, 1000 + number) for number in range(500))))
    assert isinstance(answers, AddAnswers)
    assert answers.entry_ids.tolist() == list(range(1000, 1500))
    assert set(answers.ledger_ids.tolist()) == {5}
    assert not answers.codes.any()
    assert [str(column.dtype) for column in (answers.ledger_ids, answers.entry_ids, answers.codes)] == [
        "int64",
        "int64",
        "int32",
    ]


@pytest.mark.parametrize("first", [0, 100, 16_300, 2**21 - 20, 2**40, 2**63 - 60])
def test_runs_across_the_sizes_of_ids(first: int) -> None:
    wanted = [(2**40, first + number, int(Code.OK)) for number in range(60)]
    stream = b"".join(add_answer(ledger, entry, txn_id=ADD_TXN_BIT | entry & 0xFF) for ledger, entry, _ in wanted)
    assert adds_of(stream) == Counter(wanted)


def test_random_mixes() -> None:
    random_ = random.Random(3)
    for _ in range(300):
        ledgers = [random_.getrandbits(random_.choice([3, 7, 14])) for _ in range(random_.choice([1, 2, 20]))]
        codes = random_.choice([[Code.OK], [Code.OK] * 9 + [Code.FENCED], list(Code)])
        first = random_.getrandbits(random_.choice([4, 7, 14, 30]))
        pieces: list[bytes] = []
        wanted: Counter[tuple[int, int, int]] = Counter()
        others = 0
        for number in range(random_.choice([1, 10, 30, 300])):
            if random_.random() < 0.02:
                pieces.append(info_answer(random_.getrandbits(20)))
                others += 1
                continue
            ledger_id, code = random_.choice(ledgers), random_.choice(codes)
            wanted[ledger_id, first + number, int(code)] += 1
            pieces.append(add_answer(ledger_id, first + number, code))
        if random_.random() < 0.3:
            random_.shuffle(pieces)
        stream = b"".join(pieces)
        assert adds_of(stream) == wanted
        assert sum(isinstance(answer, pb.Response) for answer in parse_answers(frames(stream))) == others


def test_fields_in_any_order() -> None:
    """Apache's codec may put a field where it likes; then the array path must not be taken for granted."""
    one = wire_v3.parse_response(add_answer(300, 70)[4:])
    header = one.header.SerializeToString()
    swapped_body = b"\x18\x46\x10\xac\x02\x08\x00"
    swapped = b"\x10\x00\xaa\x06" + bytes([len(swapped_body)]) + swapped_body + b"\x0a" + bytes([len(header)]) + header
    assert wire_v3.parse_response(swapped) == one
    assert adds_of(frame(swapped) * 40) == Counter({(300, 70, 0): 40})
    # The ledger id last, where the array path looks for the entry id.
    ledger_last = b"\x08\x00\x18\x46\x10\x46"
    data = b"\x0a" + bytes([len(header)]) + header + b"\x10\x00\xaa\x06" + bytes([len(ledger_last)]) + ledger_last
    assert adds_of(frame(data) * 40) == Counter({(70, 70, 0): 40})


def test_transaction_ids_with_the_highest_bit() -> None:
    """Their varints have ten bytes, one more than those of the array path."""
    stream = add_answer(300, 70, txn_id=2**64 - 1) * 40
    assert adds_of(stream) == Counter({(300, 70, 0): 40})


def test_headers_with_a_priority() -> None:
    pieces = []
    for number in range(50):
        response = wire_v3.parse_response(add_answer(3, 200 + number)[4:])
        response.header.priority = 100
        pieces.append(frame(response.SerializeToString()))
    assert adds_of(b"".join(pieces)) == Counter((3, 200 + number, 0) for number in range(50))


def test_the_body_s_status_counts_only_where_the_envelope_is_ok() -> None:
    response = wire_v3.parse_response(add_answer(3, 4, Code.FENCED)[4:])
    response.status = pb.EOK
    assert adds_of(frame(response.SerializeToString())) == Counter([(3, 4, int(Code.FENCED))])
    response.status = pb.EIO
    assert adds_of(frame(response.SerializeToString()) * 30) == Counter({(3, 4, int(Code.IO_ERROR)): 30})


def test_answers_without_a_body() -> None:
    assert list(parse_answers(frames(bare_answer(ADD_TXN_BIT | 5, pb.EOK)))) == [
        BareAddAnswer(ADD_TXN_BIT | 5, Code.OK)
    ]
    stream = b"".join(bare_answer(ADD_TXN_BIT | number, pb.EUA) for number in range(40))
    assert list(parse_answers(frames(stream))) == [
        BareAddAnswer(ADD_TXN_BIT | number, Code.UNAUTHORIZED) for number in range(40)
    ]
    assert list(parse_answers(frames(bare_answer(5, pb.EOK)))) == [], "not one of ours"


def test_captured_answers() -> None:
    for one in captured("wire-v3", "v3"):
        if not one.request:
            (answer,) = parse_answers(frames(one.data))
            says = wire_v3.parse_response(one.body)
            if isinstance(answer, AddAnswers):
                add = says.addResponse
                assert (answer.ledger_ids[0], answer.entry_ids[0]) == (add.ledgerId, add.entryId)
                assert answer.codes[0] == Code.from_v3(add.status)
            else:
                assert answer == says


def test_another_version_is_refused() -> None:
    other = wire_v3.parse_response(add_answer(1, 2)[4:])
    other.header.version = pb.VERSION_TWO
    with pytest.raises(WireFormatError, match="version 2 on a v3 connection"):
        list(parse_answers(frames(frame(other.SerializeToString()) * 40)))
