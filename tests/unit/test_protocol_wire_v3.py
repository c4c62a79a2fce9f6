"""Wire protocol v3 against captured frames."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from bk_spark.protocol.codes import Code, DigestType
from bk_spark.protocol.entries.digest import digest_function, master_key
from bk_spark.protocol.entries.entry import pack_lac
from bk_spark.protocol.errors import InvalidArgumentError, WireFormatError
from bk_spark.protocol.wire.framing import Frames, are_v3, frame, is_v3
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import wire_v3
from tests.support.wire import Captured, captured, frames

CAPTURED = captured("wire-v3", "v3") + captured("wire-v2", "v3")
REQUESTS = [one for one in CAPTURED if one.request]
ANSWERS = [one for one in CAPTURED if not one.request]
KEY = master_key(b"golden")


def field_numbers(message: Any) -> list[int]:
    return [descriptor.number for descriptor, _ in message.ListFields()]


def raw_fields(body: bytes) -> list[int]:
    """Field numbers in the order in which they lie on the wire."""
    position, numbers = 0, []

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = body[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while position < len(body):
        tag = varint()
        numbers.append(tag >> 3)
        if tag & 7 == 0:
            varint()
        else:
            assert tag & 7 == 2
            size = varint()
            position += size
    return numbers


def in_ascending_order(one: Captured) -> bool:
    """Whether every message of the frame has its fields in the order protobuf gives them."""
    parse = wire_v3.parse_request if one.request else wire_v3.parse_response
    message = parse(one.body)
    parts = [value for _, value in message.ListFields() if hasattr(value, "ListFields")]
    bodies = [one.body, *(part.SerializeToString() for part in parts)]
    return raw_fields(bodies[0]) == sorted(raw_fields(bodies[0])) and all(piece in one.body for piece in bodies[1:])


def test_the_capture_holds_what_these_tests_are_about() -> None:
    operations = {one.says["op"] for one in CAPTURED}
    assert operations == {
        "ADD_ENTRY",
        "READ_ENTRY",
        "READ_LAC",
        "WRITE_LAC",
        "FORCE_LEDGER",
        "GET_BOOKIE_INFO",
        "GET_LIST_OF_ENTRIES_OF_LEDGER",
    }
    assert len(CAPTURED) > 120


@pytest.mark.parametrize("one", CAPTURED, ids=str)
def test_captured_frame_is_read(one: Captured) -> None:
    assert is_v3(one.body)
    message = wire_v3.parse_request(one.body) if one.request else wire_v3.parse_response(one.body)
    says = one.says
    assert message.header.version == pb.VERSION_THREE
    assert pb.OperationType.Name(message.header.operation) == says["op"]
    assert message.header.txnId == says["txnId"]
    for name, value in says.items():
        if name.startswith("field") and isinstance(value, list):
            (body,) = [part for field, part in message.ListFields() if field.number == int(name[5:])]
            wanted = dict(value)
            got = {
                field.number: content.hex() if isinstance(content, bytes) else content
                for field, content in body.ListFields()
            }
            assert set(got) == set(wanted)
            for number, content in wanted.items():
                assert got[number] == content or isinstance(got[number], int), number


@pytest.mark.parametrize("one", CAPTURED, ids=str)
def test_captured_frame_is_the_same_when_encoded_again(one: Captured) -> None:
    message = wire_v3.parse_request(one.body) if one.request else wire_v3.parse_response(one.body)
    again = frame(message.SerializeToString())
    if in_ascending_order(one):
        assert again == one.data
    else:
        # Apache's codec puts some fields out of order; the content must be the same all the same.
        assert sorted(again) == sorted(one.data)
        assert type(message).FromString(again[4:]) == message


def test_every_answer_is_compared_byte_for_byte() -> None:
    assert all(in_ascending_order(one) for one in ANSWERS)


@pytest.mark.parametrize("one", [one for one in ANSWERS if one.scene != "add-100k"], ids=str)
def test_answer_headers_are_those_we_would_send(one: Captured) -> None:
    (request,) = [
        wire_v3.parse_request(other.body)
        for other in REQUESTS
        if other.scene == one.scene and (other.says["txnId"], other.says["op"]) == (one.says["txnId"], one.says["op"])
    ]
    answer = wire_v3.parse_response(one.body)
    assert wire_v3.answer_header(request.header).SerializeToString() == answer.header.SerializeToString()


def build(request: pb.Request) -> bytes | None:
    """The same request from our functions; None for what we never send, and for adds, which have their own tests."""
    txn_id, urgent = request.header.txnId, request.header.priority > 0
    (body,) = (field.name for field, _ in request.ListFields() if field.name != "header")
    if body == "readRequest":
        read = request.readRequest
        if read.HasField("previousLAC"):
            return wire_v3.long_poll_request(txn_id, read.ledgerId, read.previousLAC, read.timeOut)
        fences = read.HasField("flag") and read.flag == pb.ReadRequest.FENCE_LEDGER
        if read.HasField("masterKey") and not fences:
            return None
        key = read.masterKey if fences else None
        return wire_v3.read_request(txn_id, read.ledgerId, read.entryId, fence_key=key, high_priority=urgent)
    if body == "writeLacRequest":
        write = request.writeLacRequest
        return wire_v3.write_lac_request(txn_id, write.ledgerId, write.body, write.masterKey)
    if body == "getBookieInfoRequest":
        return wire_v3.bookie_info_request(txn_id)
    build_one = {
        "readLacRequest": wire_v3.read_lac_request,
        "forceLedgerRequest": wire_v3.force_ledger_request,
        "getListOfEntriesOfLedgerRequest": wire_v3.list_of_entries_request,
    }.get(body)
    return build_one(txn_id, getattr(request, body).ledgerId) if build_one is not None else None


def test_the_requests_we_build() -> None:
    built: Counter[str] = Counter()
    for one in REQUESTS:
        request = wire_v3.parse_request(one.body)
        mine = build(request)
        if mine is not None:
            assert wire_v3.parse_request(mine[4:]) == request
            if in_ascending_order(one):
                assert mine == one.data
            built[str(one.says["op"])] += 1
    assert built.keys() == {one.says["op"] for one in CAPTURED} - {"ADD_ENTRY"}
    assert built["READ_ENTRY"] > 30
    polls = [one for one in REQUESTS if wire_v3.parse_request(one.body).readRequest.HasField("previousLAC")]
    assert polls


@pytest.mark.parametrize("entry_ids", [range(1), range(5, 900, 3), range(2**40, 2**40 + 3), range(7, 2, -1)], ids=str)
def test_many_reads_at_once(entry_ids: range) -> None:
    ids = np.arange(entry_ids.start, entry_ids.stop, entry_ids.step)
    for ledger_id, txn_id in ((0, 1), (2**62, 2**61), (300, 16_380)):
        bodies = list(frames(wire_v3.read_requests(txn_id, ledger_id, ids)))
        one_by_one = [
            wire_v3.parse_request(wire_v3.read_request(txn_id + number, ledger_id, entry_id)[4:])
            for number, entry_id in enumerate(entry_ids)
        ]
        assert [wire_v3.parse_request(body) for body in bodies] == one_by_one


@pytest.mark.parametrize("packet", [b"", bytes(15), pack_lac(8, 3, digest_function(DigestType.CRC32C, b""))])
def test_lac_packets_of_nobody(packet: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="LAC packet"):
        wire_v3.write_lac_request(1, 7, packet, KEY)


def response(**body: Any) -> pb.Response:
    return pb.Response(header=wire_v3.request_header(pb.READ_ENTRY, 1), status=pb.EOK, **body)


def test_answers_to_reads() -> None:
    stored = pb.ReadResponse(status=pb.EOK, ledgerId=7, entryId=9, body=b"stored")
    answer = wire_v3.read_answer(response(readResponse=stored), 7, 9)
    assert (answer.ledger_id, answer.entry_id, answer.code, answer.stored) == (7, 9, Code.OK, b"stored")
    stored.status = pb.ENOENTRY
    answer = wire_v3.read_answer(response(readResponse=stored), 7, 9)
    assert (answer.code, bytes(answer.stored)) == (Code.NO_ENTRY, b""), "an error brings no entry"
    with pytest.raises(WireFormatError, match="got an answer for ledger 7 entry 9"):
        wire_v3.read_answer(response(readResponse=stored), 7, 8)
    assert wire_v3.read_answer(response(), 7, 9).code is Code.BAD_REQUEST, "OK, but no entry"
    refused = response()
    refused.status = pb.EUA
    assert wire_v3.read_answer(refused, 7, 9).code is Code.UNAUTHORIZED


def test_answers_to_long_polls() -> None:
    body = pb.ReadResponse(status=pb.EOK, ledgerId=7, entryId=9, body=b"stored", maxLAC=12)
    answer = wire_v3.long_poll_answer(response(readResponse=body))
    assert answer == wire_v3.LongPollAnswer(Code.OK, 9, answer.stored, 12)
    assert answer.stored == b"stored"
    nothing = pb.ReadResponse(status=pb.EOK, ledgerId=7, entryId=-1, maxLAC=8)
    assert wire_v3.long_poll_answer(response(readResponse=nothing)) == wire_v3.LongPollAnswer(Code.OK, -1, None, 8)
    body.status = pb.EIO
    assert wire_v3.long_poll_answer(response(readResponse=body)) == wire_v3.LongPollAnswer(Code.IO_ERROR, -1, None, 12)
    refused = response()
    refused.status = pb.ENOLEDGER
    assert wire_v3.long_poll_answer(refused) == wire_v3.LongPollAnswer(Code.NO_LEDGER, -1, None, None)
    polls = {
        one.says["txnId"]
        for one in REQUESTS
        if one.scene == "long-poll" and wire_v3.parse_request(one.body).readRequest.HasField("previousLAC")
    }
    for one in ANSWERS:
        if one.scene == "long-poll" and one.says["txnId"] in polls:
            answer = wire_v3.long_poll_answer(wire_v3.parse_response(one.body))
            assert (answer.code, answer.stored is not None) == (Code.OK, answer.entry_id >= 0)


def test_priority_of_recovery_traffic() -> None:
    urgent = [
        wire_v3.parse_request(one.body).header.priority
        for one in REQUESTS
        if one.scene == "recover" and wire_v3.parse_request(one.body).header.HasField("priority")
    ]
    assert set(urgent) == {wire_v3.HIGH_PRIORITY}


def test_is_v3() -> None:
    assert not is_v3(b"")
    assert not any(is_v3(bytes([version]) + b"\x01\x00\x00") for version in (0, 1, 2))
    assert all(is_v3(memoryview(one.body)) for one in CAPTURED)
    assert not any(is_v3(one.body) for one in captured("wire-v2", "v2"))


def test_one_frame_and_many_are_told_apart_alike() -> None:
    bodies = [bytes([first, second]) for first in range(256) for second in range(256)]
    bodies += [bytes([first]) for first in range(256)]
    starts, lengths = np.cumsum([0, *map(len, bodies)])[:-1], np.array([len(body) for body in bodies])
    many = are_v3(Frames(memoryview(b"".join(bodies)), starts, lengths))
    assert many.tolist() == [is_v3(body) for body in bodies]
    assert 0 < np.count_nonzero(many) < len(bodies)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x0a",
        b"\x0a\x06\x08\x03\x10\x02\x18",
        b"\xff" * 40,
        b"\x02\x01",
        # Well-formed protobuf, but required fields are missing: an empty header, one without a txnId,
        # and a whole header with a body that lacks its ids.
        b"\x0a\x00",
        b"\x0a\x04\x08\x03\x10\x02",
        b"\x0a\x06\x08\x03\x10\x02\x18\x01\xa2\x06\x00",
    ],
)
def test_malformed(body: bytes) -> None:
    with pytest.raises(WireFormatError):
        wire_v3.parse_request(body)
    with pytest.raises(WireFormatError):
        wire_v3.parse_response(body)


@pytest.mark.parametrize(
    ("envelope", "body", "code"),
    [
        (pb.EOK, pb.EOK, Code.OK),
        (pb.EOK, pb.ENOENTRY, Code.NO_ENTRY),
        (pb.EOK, None, Code.OK),
        (pb.EUA, None, Code.UNAUTHORIZED),
        (pb.EFENCED, pb.EOK, Code.FENCED),
        (pb.EBADREQ, pb.EOK, Code.BAD_REQUEST),
    ],
)
def test_the_code_that_counts(envelope: pb.StatusCode, body: pb.StatusCode | None, code: Code) -> None:
    header = wire_v3.request_header(pb.READ_ENTRY, 1)
    assert wire_v3.response_code(pb.Response(header=header, status=envelope), body) is code
