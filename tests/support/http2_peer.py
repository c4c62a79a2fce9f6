"""Frames of HTTP/2, made by hand: peers that do with gRPC what no library lets them do (RFC 9113, RFC 7541)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: ":method: POST" and ":scheme: http", in the static table.
_POST_HTTP: Final = bytes([0x83, 0x86])


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def hello() -> bytes:
    """What a client says first. It also says that it obeys the settings of the server, before it knows them."""
    return _PREFACE + frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0)


def call(stream: int, method: str) -> bytes:
    """The beginning of a call of gRPC. The first has the stream 1, each further one the next odd number."""
    fields = {":path": method, ":authority": "peer", "content-type": "application/grpc", "te": "trailers"}
    return frame(HEADERS, END_HEADERS, stream, _POST_HTTP + b"".join(_literal(*field) for field in fields.items()))


def part_of_message(stream: int, announced_bytes: int, part: bytes) -> bytes:
    """A message of gRPC that announces more bytes than ``part`` has."""
    return frame(DATA, 0, stream, b"\0" + announced_bytes.to_bytes(4, "big") + part)


def frames(data: bytes) -> Iterator[Frame]:
    """The whole frames in ``data``."""
    at = 0
    while at + 9 <= len(data) and at + 9 + int.from_bytes(data[at : at + 3], "big") <= len(data):
        end = at + 9 + int.from_bytes(data[at : at + 3], "big")
        yield Frame(data[at + 3], data[at + 4], int.from_bytes(data[at + 5 : at + 9], "big"), data[at + 9 : end])
        at = end


def _literal(name: str, value: str) -> bytes:
    return b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))
