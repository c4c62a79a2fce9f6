"""The bytes of a server of gRPC over HTTP/2, made here."""

from __future__ import annotations

from hpack import Encoder

from bk_spark.protocol.wire.http2.calls import Event
from bk_spark.protocol.wire.http2.connection import Http2
from bk_spark.protocol.wire.http2.frames import (
    HEAD_BYTES,
    PREFACE,
    Flag,
    Kind,
    Setting,
    frame,
    parse_head,
    settings_frame,
)

MAX_MESSAGE = 300_000


def connection() -> Http2:
    """Return a client's connection that has begun calls 1 and 3. Their beginnings were sent."""
    made = Http2("peer:1", is_secure=False, max_message_bytes=MAX_MESSAGE)
    assert [made.begin("/s/M"), made.begin("/s/N")] == [1, 3]
    made.output()
    return made


def settings(values: dict[Setting, int] | None = None) -> bytes:
    """Return what a server sends first."""
    return settings_frame(values or {})


def headers(call: int, *fields: tuple[bytes, bytes], ends: bool = False, flags: int = Flag.END_HEADERS) -> bytes:
    """Return a frame of headers. They do not depend on others."""
    block = Encoder().encode([(name, value, True) for name, value in fields], huffman=False)
    return frame(Kind.HEADERS, flags | (Flag.END_STREAM if ends else 0), call, block)


def answered(call: int) -> bytes:
    """Return the headers that begin an answer."""
    return headers(call, (b":status", b"200"), (b"content-type", b"application/grpc"))


def ended(call: int, status: bytes = b"0", message: bytes = b"") -> bytes:
    """Return the headers that end an answer."""
    return headers(call, (b"grpc-status", status), (b"grpc-message", message), ends=True)


def prefixed(message: bytes) -> bytes:
    """Return a message with its prefix."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def data(call: int, content: bytes, size_bytes: int = 16_384, padding: int | None = None) -> bytes:
    """Return frames of at most ``size_bytes`` of content."""
    frames = []
    for at in range(0, max(1, len(content)), size_bytes):
        part, flags = content[at : at + size_bytes], 0
        if padding is not None:
            part, flags = bytes([padding]) + part + bytes(padding), Flag.PADDED
        frames.append(frame(Kind.DATA, flags, call, part))
    return b"".join(frames)


def receive(into: Http2, received: bytes, most: int = 1 << 30) -> list[Event]:
    """Let a connection receive bytes, at most ``most`` at a time."""
    events, rest = [], memoryview(received)
    while rest:
        space = into.get_buffer()
        size = min(len(space), len(rest), most)
        space[:size] = rest[:size]
        rest = rest[size:]
        events += into.received(size)
    return events


def frames_of(sent: bytes) -> list[tuple[int, int, int, bytes]]:
    """Return kind, flags, stream and content of the frames that a client has sent."""
    view, at, found = memoryview(sent), len(PREFACE) if sent.startswith(PREFACE) else 0, []
    while at < len(sent):
        size, kind, flags, stream = parse_head(view, at)
        at += HEAD_BYTES
        found.append((kind, flags, stream, bytes(view[at : at + size])))
        at += size
    return found


def output(of: Http2) -> list[tuple[int, int, int, bytes]]:
    """Return the frames that a connection wants to send."""
    return frames_of(b"".join(of.output()))
