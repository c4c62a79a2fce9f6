"""Wire protocol v3: protobuf requests and answers. Source: compatibility facts §1.2, §1.7, §1.8.

A frame's body is one ``Request`` or ``Response``. It begins with byte 0x0A (field 1, the header),
while a v2 body begins with its version (0, 1 or 2), so each frame tells its own protocol.
Apache's codec (4.18) may put fields out of order; protobuf takes them in any.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from bk_spark.protocol.codes import Code
from bk_spark.protocol.digest import Buffer
from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.framing import frame
from bk_spark.protocol.proto import bookkeeper_protocol_pb2 as pb

#: Priority that Apache's client sends for recovery traffic; any value above 0 counts as high.
HIGH_PRIORITY: Final = 100
#: Bit of ``AddRequest.writeFlags``: acknowledge before the journal is synced.
DEFERRED_SYNC: Final = 1
FIRST_BYTE: Final = 0x0A


def is_v3(body: Buffer) -> bool:
    """Whether a frame's body is v3 (else v2)."""
    return len(body) > 0 and body[0] == FIRST_BYTE


def parse_request(body: Buffer) -> pb.Request:
    """Raises WireFormatError."""
    try:
        request = pb.Request.FromString(bytes(body))
    except DecodeError as error:
        raise WireFormatError("v3 request cannot be parsed") from error
    # Python's protobuf lets missing required fields pass, and would give their defaults.
    if not request.IsInitialized():
        raise WireFormatError("v3 request lacks required fields")
    return request


def parse_response(body: Buffer) -> pb.Response:
    """Raises WireFormatError."""
    try:
        response = pb.Response.FromString(bytes(body))
    except DecodeError as error:
        raise WireFormatError("v3 response cannot be parsed") from error
    if not response.IsInitialized():
        raise WireFormatError("v3 response lacks required fields")
    return response


def request_header(operation: pb.OperationType, txn_id: int, *, high_priority: bool = False) -> pb.BKPacketHeader:
    header = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=operation, txnId=txn_id)
    if high_priority:
        header.priority = HIGH_PRIORITY
    return header


def answer_header(request: pb.BKPacketHeader) -> pb.BKPacketHeader:
    """Header of the answer to ``request``: version three, same operation and txnId."""
    return pb.BKPacketHeader(version=pb.VERSION_THREE, operation=request.operation, txnId=request.txnId)


def read_request(
    txn_id: int, ledger_id: int, entry_id: int, *, fence_key: bytes | None = None, high_priority: bool = False
) -> bytes:
    """A READ_ENTRY frame; with ``fence_key`` (the master key) it fences the ledger first."""
    body = pb.ReadRequest(ledgerId=ledger_id, entryId=entry_id)
    if fence_key is not None:
        body.masterKey = fence_key
        body.flag = pb.ReadRequest.FENCE_LEDGER
    header = request_header(pb.READ_ENTRY, txn_id, high_priority=high_priority)
    return frame(pb.Request(header=header, readRequest=body).SerializeToString())


def read_lac_request(txn_id: int, ledger_id: int) -> bytes:
    """A READ_LAC frame: the explicit LAC and the last entry that the bookie holds."""
    header = request_header(pb.READ_LAC, txn_id)
    return frame(pb.Request(header=header, readLacRequest=pb.ReadLacRequest(ledgerId=ledger_id)).SerializeToString())


def response_code(response: pb.Response, body_status: int | None) -> Code:
    """The code that counts: the body's where the envelope says OK, else the envelope's (facts §1.7)."""
    if response.status == pb.EOK and body_status is not None:
        return Code.from_v3(body_status)
    return Code.from_v3(response.status)
