"""AUTH, the requests of a login. Layout: wire_v2.py and compatibility.md §1.8, §1.9.

Both protocols carry an ``AuthMessage``: the name of the way of logging in (the plugin), and a message of that way. Over
v2 there is nothing else in an answer: a bookie that refuses closes the connection. Over gRPC it is a message of
sessions.proto.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from bk_spark.protocol.codes import V2, OpV2
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.errors import UnauthorizedError, WireFormatError
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.framing import frame, is_v3
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import wire_v3

#: The name of SASL's plugin.
SASL: Final = "sasl"
#: The plugin that a bookie names if no login is needed, or none any more.
DISABLED: Final = "AuthDisabledPlugin"
#: The service of gRPC for logins, and the metadata by which calls show that they have logged in.
SESSIONS: Final = "bk_spark.v1.Sessions"
SESSION_METADATA: Final = "bk-session-bin"
AUTH_DISABLED: Final = pb.AuthMessage(authPluginName=DISABLED, payload=b"").SerializeToString()
_HEADER_BYTES: Final = 4
_TXN_ID: Final = 2


class AuthMessage(NamedTuple):
    """One message of a login. Its ``payload`` may be secret."""

    plugin: str
    payload: bytes

    def __repr__(self) -> str:
        return f"AuthMessage({self.plugin!r}, {len(self.payload)} bytes)"


def parse_message(body: Buffer) -> AuthMessage:
    """Parse a protobuf AuthMessage. Raises WireFormatError."""
    try:
        found = pb.AuthMessage.FromString(bytes(body))
    except DecodeError as error:
        raise WireFormatError("an AUTH message cannot be parsed") from error
    if not found.IsInitialized():
        raise WireFormatError("an AUTH message lacks required fields")
    return AuthMessage(found.authPluginName, found.payload)


def packed(message: AuthMessage) -> bytes:
    """Return ``message`` as protobuf."""
    return pb.AuthMessage(authPluginName=message.plugin, payload=message.payload).SerializeToString()


def auth_of(body: Buffer) -> AuthMessage | None:
    """Return the message if a frame's body is a request AUTH of either protocol, else None. Raises WireFormatError."""
    if is_v3(body):
        request = wire_v3.parse_request(body)
        if request.header.operation != pb.AUTH or not request.HasField("authRequest"):
            return None
        return AuthMessage(request.authRequest.authPluginName, request.authRequest.payload)
    if len(body) < _HEADER_BYTES or bytes(body[1:2]) != bytes([OpV2.AUTH]):
        return None
    return parse_message(body[_HEADER_BYTES:])


def begins_login(body: Buffer) -> bool:
    """Return whether a frame's body is the empty message with which a login by SASL begins.

    It may come in clear before a TLS handshake. It says nothing, so it does not matter who put it there.
    """
    try:
        return auth_of(body) == AuthMessage(SASL, b"")
    except WireFormatError:
        return False


def auth_answer_v2(message: AuthMessage) -> bytes:
    """Return a bookie's answer over v2."""
    return wire_v2.auth_answer(V2, packed(message))


def auth_answer_v3(request: pb.BKPacketHeader, message: AuthMessage) -> bytes:
    """Return a bookie's answer over v3."""
    answer = pb.Response(header=wire_v3.answer_header(request), status=pb.EOK)
    answer.authResponse.authPluginName, answer.authResponse.payload = message
    return frame(answer.SerializeToString())


def auth_request(message: AuthMessage, *, v2: bool) -> bytes:
    """Return a client's request. At any time one of a connection is unanswered, so all have one transaction id."""
    if v2:
        return auth_answer_v2(message)  # over v2 requests and answers are the same
    request = pb.Request(header=wire_v3.request_header(pb.AUTH, _TXN_ID))
    request.authRequest.authPluginName, request.authRequest.payload = message
    return frame(request.SerializeToString())


def auth_answer_of(body: Buffer, *, v2: bool) -> AuthMessage | None:
    """Return the message in a bookie's answer. None: it is an answer to START_TLS.

    Raises UnauthorizedError if the bookie refuses the login, WireFormatError if it is not an answer to AUTH.
    """
    if is_v3(body):
        # Apache's bookie sends a useless one inside TLS, over v3 whatever the connection speaks.
        answer = wire_v3.parse_response(body)
        if answer.header.operation == pb.START_TLS:
            return None
        if v2 or answer.header.operation != pb.AUTH:
            raise WireFormatError("the peer answers something other than AUTH")
        if answer.status != pb.EOK or not answer.HasField("authResponse"):
            raise UnauthorizedError("the bookie refuses the login")
        return AuthMessage(answer.authResponse.authPluginName, answer.authResponse.payload)
    if not v2 or len(body) < _HEADER_BYTES or bytes(body[:2]) != bytes([V2, OpV2.AUTH]):
        raise WireFormatError("the peer answers something other than AUTH")
    return parse_message(body[_HEADER_BYTES:])
