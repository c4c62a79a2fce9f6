"""START_TLS, the request with which a connection that begins in clear becomes TLS. Source: compatibility.md §1.8, §1.9.

It is a v3 request on every connection, also where everything after it is v2. The bookie answers in clear; the handshake
follows.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from bk_spark.protocol.codes import Code
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.wire.framing import LENGTH_BYTES, frame, frame_bytes, is_v3
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3.answer_frames_v3 import response
from bk_spark.protocol.wire.v3.wire_v3 import parse_response, request_header

#: No START_TLS request or answer is longer, with its length.
MAX_BYTES: Final = 64
_TXN_ID: Final = 1
#: The type of a record of a handshake, and the bytes before its content (RFC 8446, section 5.1).
HANDSHAKE_RECORD: Final = 0x16
_RECORD_HEAD_BYTES: Final = 5
#: A longer first message is not waited for as a whole.
_MOST_HELLO_BYTES: Final = 4096


def start_tls_request() -> bytes:
    """Return the frame of the request."""
    return frame(pb.Request(header=request_header(pb.START_TLS, _TXN_ID), startTLSRequest={}).SerializeToString())


def wanted_bytes(beginning: Buffer) -> int:
    """Return how many bytes a connection must have begun with to tell whether the first frame is START_TLS."""
    if len(beginning) < LENGTH_BYTES:
        return LENGTH_BYTES
    size = frame_bytes(beginning)
    return size if size <= MAX_BYTES else LENGTH_BYTES  # longer frames are something else


def hello_bytes(beginning: Buffer) -> int:
    """Return how many bytes a peer must have sent before its handshake is begun: the first record, whole.

    ``beginning`` is not empty. If it is not a handshake, one byte is enough: TLS fails at once.
    """
    if beginning[0] != HANDSHAKE_RECORD:
        return 1
    if len(beginning) < _RECORD_HEAD_BYTES:
        return _RECORD_HEAD_BYTES
    content_bytes = int.from_bytes(beginning[3:_RECORD_HEAD_BYTES], "big")
    return min(_RECORD_HEAD_BYTES + content_bytes, _MOST_HELLO_BYTES)


def start_tls_txn_id(first_frame: Buffer) -> int | None:
    """Return the transaction id if the frame is START_TLS, else None."""
    body = bytes(first_frame[LENGTH_BYTES:])
    if len(first_frame) > MAX_BYTES or not is_v3(body):
        return None
    try:
        request = pb.Request.FromString(body)
    except DecodeError:
        return None
    header = request.header
    if not request.IsInitialized() or header.version != pb.VERSION_THREE or header.operation != pb.START_TLS:
        return None
    return header.txnId


def start_tls_answer(txn_id: int) -> bytes:
    """Return the frame of the answer that lets the handshake begin."""
    answer = response(txn_id, pb.START_TLS, Code.OK)
    answer.startTLSResponse.SetInParent()
    return frame(answer.SerializeToString())


def is_granted(answer: Buffer) -> bool:
    """Return whether an answer to :func:`start_tls_request` lets the handshake begin. Raises WireFormatError."""
    found = parse_response(answer[LENGTH_BYTES:])
    return found.header.operation == pb.START_TLS and found.status == pb.EOK
