"""Wire protocol v3: protobuf requests and answers. Source: compatibility.md §1.2, §1.7, §1.8.

A frame's body is one ``Request`` or ``Response``. Apache's codec (4.18) may put fields out of order. Protobuf accepts
any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.codes import LAST_ENTRY, NO_ENTRY, Code
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.entry import LAC_PACKET_HEADER
from bk_spark.protocol.errors import InvalidArgumentError, WireFormatError
from bk_spark.protocol.wire.answers_v2 import ReadAnswer
from bk_spark.protocol.wire.framing import LENGTH_BYTES, frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3.varints import INT64_BYTES, padded, put_padded

#: The priority that Apache's client sends for recovery traffic. Any value above 0 counts as high.
HIGH_PRIORITY: Final = 100
#: Bit of ``AddRequest.writeFlags``: acknowledge before the journal is synced.
DEFERRED_SYNC: Final = 1


def parse_request(body: Buffer) -> pb.Request:
    """Parse a request. Raises WireFormatError."""
    try:
        request = pb.Request.FromString(bytes(body))
    except DecodeError as error:
        raise WireFormatError("v3 request cannot be parsed") from error
    # Python's protobuf accepts missing required fields, and would return their defaults.
    if not request.IsInitialized():
        raise WireFormatError("v3 request lacks required fields")
    return request


def parse_response(body: Buffer) -> pb.Response:
    """Parse a response. Raises WireFormatError."""
    try:
        response = pb.Response.FromString(bytes(body))
    except DecodeError as error:
        raise WireFormatError("v3 response cannot be parsed") from error
    if not response.IsInitialized():
        raise WireFormatError("v3 response lacks required fields")
    return response


def request_header(operation: pb.OperationType, txn_id: int, *, high_priority: bool = False) -> pb.BKPacketHeader:
    """Return the header of a request. With ``high_priority`` bookies answer it before others."""
    header = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=operation, txnId=txn_id)
    if high_priority:
        header.priority = HIGH_PRIORITY
    return header


def answer_header(request: pb.BKPacketHeader) -> pb.BKPacketHeader:
    """Return the header of the answer to ``request``: version three, same operation and txnId."""
    return pb.BKPacketHeader(version=pb.VERSION_THREE, operation=request.operation, txnId=request.txnId)


# --- requests, built by the client --------------------------------------------------------------
# ADD_ENTRY: add_frames_v3.py.


def read_request(
    txn_id: int, ledger_id: int, entry_id: int, *, fence_key: bytes | None = None, high_priority: bool = False
) -> bytes:
    """Return a READ_ENTRY frame. With ``fence_key`` (the master key) it fences the ledger first."""
    body = pb.ReadRequest(ledgerId=ledger_id, entryId=entry_id)
    if fence_key is not None:
        body.masterKey = fence_key
        body.flag = pb.ReadRequest.FENCE_LEDGER
    header = request_header(pb.READ_ENTRY, txn_id, high_priority=high_priority)
    return _request(header, readRequest=body)


def read_requests(first_txn_id: int, ledger_id: int, entry_ids: Int64s) -> bytes:
    """Return plain READ_ENTRY frames for many entries (ids not negative), with consecutive transaction ids."""
    prefix = b"\x0a\x0e\x08\x03\x10\x01\x18" + bytes(INT64_BYTES)
    ids = b"\xa2\x06\x14\x08" + padded(ledger_id, INT64_BYTES) + b"\x10" + bytes(INT64_BYTES)
    requests = np.empty((len(entry_ids), LENGTH_BYTES + len(prefix) + len(ids)), np.uint8)
    requests[:] = np.frombuffer(frame(prefix + ids), np.uint8)
    txn_id_ends = LENGTH_BYTES + len(prefix)
    txn_ids = first_txn_id + np.arange(len(entry_ids), dtype=np.int64)
    put_padded(requests[:, txn_id_ends - INT64_BYTES : txn_id_ends], txn_ids)
    put_padded(requests[:, -INT64_BYTES:], entry_ids)
    return requests.tobytes()


def long_poll_request(txn_id: int, ledger_id: int, previous_lac: int, timeout_ms: int) -> bytes:
    """Return a READ_ENTRY frame for a long poll. The bookie waits up to ``timeout_ms`` for a LAC above
    ``previous_lac``, and then answers with entry ``previous_lac`` + 1."""
    body = pb.ReadRequest(
        ledgerId=ledger_id,
        entryId=LAST_ENTRY,
        previousLAC=previous_lac,
        timeOut=timeout_ms,
        flag=pb.ReadRequest.ENTRY_PIGGYBACK,
    )
    return _request(request_header(pb.READ_ENTRY, txn_id), readRequest=body)


def read_lac_request(txn_id: int, ledger_id: int) -> bytes:
    """Return a READ_LAC frame. It asks for the explicit LAC and the last entry that the bookie holds."""
    return _request(request_header(pb.READ_LAC, txn_id), readLacRequest=pb.ReadLacRequest(ledgerId=ledger_id))


def write_lac_request(txn_id: int, ledger_id: int, packet: bytes, master_key: bytes) -> bytes:
    """Return a WRITE_LAC frame. ``packet`` is from entry.pack_lac. Raises InvalidArgumentError for another ledger's."""
    if len(packet) < LAC_PACKET_HEADER.size or LAC_PACKET_HEADER.unpack_from(packet)[0] != ledger_id:
        raise InvalidArgumentError("this is not a LAC packet of the ledger", ledger_id=ledger_id)
    lac = LAC_PACKET_HEADER.unpack_from(packet)[1]
    body = pb.WriteLacRequest(ledgerId=ledger_id, lac=lac, masterKey=master_key, body=packet)
    return _request(request_header(pb.WRITE_LAC, txn_id), writeLacRequest=body)


def force_ledger_request(txn_id: int, ledger_id: int) -> bytes:
    """Return a FORCE_LEDGER frame. It makes the bookie sync everything that it took before."""
    body = pb.ForceLedgerRequest(ledgerId=ledger_id)
    return _request(request_header(pb.FORCE_LEDGER, txn_id), forceLedgerRequest=body)


def bookie_info_request(txn_id: int) -> bytes:
    """Return a GET_BOOKIE_INFO frame that asks for all fields."""
    flags = pb.GetBookieInfoRequest.TOTAL_DISK_CAPACITY | pb.GetBookieInfoRequest.FREE_DISK_SPACE
    body = pb.GetBookieInfoRequest(requested=flags)
    return _request(request_header(pb.GET_BOOKIE_INFO, txn_id), getBookieInfoRequest=body)


def list_of_entries_request(txn_id: int, ledger_id: int) -> bytes:
    """Return a GET_LIST_OF_ENTRIES_OF_LEDGER frame (answer: entry_availability.py)."""
    body = pb.GetListOfEntriesOfLedgerRequest(ledgerId=ledger_id)
    header = request_header(pb.GET_LIST_OF_ENTRIES_OF_LEDGER, txn_id)
    return _request(header, getListOfEntriesOfLedgerRequest=body)


def _request(header: pb.BKPacketHeader, **body: Any) -> bytes:
    return frame(pb.Request(header=header, **body).SerializeToString())


# --- answers, parsed by the client --------------------------------------------------------------


def response_code(response: pb.Response, body_status: int | None) -> Code:
    """Return the valid code: the body's if the envelope says OK, else the envelope's (compatibility.md §1.7)."""
    if response.status == pb.EOK and body_status is not None:
        return Code.from_v3(body_status)
    return Code.from_v3(response.status)


def lac_answer(response: pb.Response) -> tuple[Code, bytes | None, bytes | None]:
    """Return the code of an answer to READ_LAC, the packet of the explicit LAC, and the last stored entry. The last two
    may be None."""
    body = response.readLacResponse
    code = response_code(response, body.status if response.HasField("readLacResponse") else None)
    explicit_lac = body.lacBody if body.HasField("lacBody") else None
    return code, explicit_lac, body.lastEntryBody if body.HasField("lastEntryBody") else None


def read_answer(response: pb.Response, ledger_id: int, entry_id: int) -> ReadAnswer:
    """Return the answer to a read of ``entry_id``. Raises WireFormatError if it names another entry."""
    body = response.readResponse if response.HasField("readResponse") else None
    code = response_code(response, None if body is None else body.status)
    if body is None:
        # "OK" without an entry is not a usable answer.
        return ReadAnswer(ledger_id, entry_id, Code.BAD_REQUEST if code is Code.OK else code, memoryview(b""))
    if (body.ledgerId, body.entryId) != (ledger_id, entry_id):
        raise WireFormatError(
            f"asked for this entry, got an answer for ledger {body.ledgerId} entry {body.entryId}",
            ledger_id=ledger_id,
            entry_id=entry_id,
        )
    return ReadAnswer(ledger_id, entry_id, code, memoryview(body.body if code is Code.OK else b""))


@dataclass(frozen=True, slots=True)
class LongPollAnswer:
    """The answer to a long poll.

    If the bookie has a new entry, ``stored`` is the stored entry ``entry_id``. Otherwise they are None and -1.
    ``max_lac`` is the highest LAC that the bookie knows, None if it does not say.
    """

    code: Code
    entry_id: int
    stored: memoryview | None
    max_lac: int | None


def long_poll_answer(response: pb.Response) -> LongPollAnswer:
    """Parse the answer to a long poll. The entry in it is not verified."""
    body = response.readResponse
    code = response_code(response, body.status if response.HasField("readResponse") else None)
    max_lac = body.maxLAC if body.HasField("maxLAC") else None
    if code is not Code.OK or not body.HasField("body"):
        return LongPollAnswer(code, NO_ENTRY, None, max_lac)
    return LongPollAnswer(code, body.entryId, memoryview(body.body), max_lac)


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """Sizes of the file systems that hold a bookie's ledgers. None if the bookie did not say."""

    total_disk_bytes: int | None
    free_disk_bytes: int | None
