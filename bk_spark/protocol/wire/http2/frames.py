"""Frames of HTTP/2, as far as a client of gRPC needs them. Source: RFC 9113, sections 4 and 6.

A frame is ``u24 length, u8 kind, u8 flags, u32 number of the stream`` and ``length`` bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum, IntFlag
from typing import Final

from bk_spark.protocol.errors import WireFormatError

#: What a client sends first.
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
#: Windows and the size of frames, until settings say something else. A window is never larger than the last one.
DEFAULT_WINDOW_BYTES: Final = 65_535
DEFAULT_FRAME_BYTES: Final = 16_384
MAX_FRAME_BYTES: Final = 2**24 - 1
MAX_WINDOW_BYTES: Final = 2**31 - 1
MAX_STREAM: Final = 2**31 - 1
#: Characters of what a peer gives as a reason.
_MOST_REASON: Final = 500

_HEAD: Final = struct.Struct(">BHBBI")
_SETTING: Final = struct.Struct(">HI")


class Kind(IntEnum):
    """Kinds of frames. Others are to be ignored."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag(IntFlag):
    """Flags of frames. ``END_STREAM`` of DATA and HEADERS is ``ACK`` of SETTINGS and PING."""

    END_STREAM = 0x1
    ACK = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    PRIORITY = 0x20


class Setting(IntEnum):
    """Settings. Others are to be ignored."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Reset(IntEnum):
    """Why a stream or a connection ends, as far as it matters here."""

    NO_ERROR = 0
    REFUSED_STREAM = 7
    CANCEL = 8
    ENHANCE_YOUR_CALM = 11


def frame_head(size_bytes: int, kind: Kind, flags: int, stream: int) -> bytes:
    """Return the first nine bytes of a frame."""
    return _HEAD.pack(size_bytes >> 16, size_bytes & 0xFFFF, kind, flags, stream)


def frame(kind: Kind, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a whole frame."""
    return frame_head(len(payload), kind, flags, stream) + payload


def headers_frames(stream: int, block: bytes, most_bytes: int) -> list[bytes]:
    """Return the frames of a block of headers, of which each holds at most ``most_bytes``. No other frame may come
    between them: RFC 9113, section 4.3."""
    frames: list[bytes] = []
    for at in range(0, len(block), most_bytes):
        kind, is_last = Kind.CONTINUATION if at else Kind.HEADERS, at + most_bytes >= len(block)
        frames.append(frame(kind, Flag.END_HEADERS if is_last else 0, stream, block[at : at + most_bytes]))
    return frames


def parse_head(data: memoryview, at: int) -> tuple[int, int, int, int]:
    """Return size, kind, flags and stream of the frame whose first nine bytes are at ``at``."""
    high, low, kind, flags, stream = _HEAD.unpack_from(data, at)
    return high << 16 | low, kind, flags, stream & MAX_STREAM


def settings_frame(settings: Mapping[Setting, int]) -> bytes:
    """Return a frame of settings."""
    return frame(Kind.SETTINGS, 0, 0, b"".join(_SETTING.pack(*one) for one in settings.items()))


def parse_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return settings and their values. The size of ``payload`` is a multiple of six."""
    return list(_SETTING.iter_unpack(payload))


def number_frame(kind: Kind, stream: int, number: int) -> bytes:
    """Return a frame that holds one number of 32 bits: RST_STREAM or WINDOW_UPDATE."""
    return frame(kind, 0, stream, number.to_bytes(4, "big"))


def without_padding(payload: bytes, flags: int) -> bytes:
    """Return the content of a HEADERS frame. Raises WireFormatError."""
    begin = end = 0
    if flags & Flag.PADDED and payload:
        begin, end = 1, payload[0]
    if flags & Flag.PRIORITY:
        begin += 5
    if begin + end > len(payload) or (flags & Flag.PADDED and not payload):
        raise WireFormatError("a frame has more padding than bytes")
    return payload[begin : len(payload) - end]


def parse_number(payload: bytes) -> int:
    """Return the number that RST_STREAM and WINDOW_UPDATE hold. Raises WireFormatError."""
    if len(payload) != 4:  # RFC 9113, sections 6.4 and 6.9
        raise WireFormatError("a number of another size")
    return int.from_bytes(payload, "big")


def parse_increment(payload: bytes) -> int:
    """Return by how much WINDOW_UPDATE widens a window. Raises WireFormatError."""
    more = parse_number(payload) & MAX_WINDOW_BYTES
    if not more:
        raise WireFormatError("a window grows by nothing")
    return more


def parse_farewell(payload: bytes) -> tuple[int, str]:
    """Return what GOAWAY holds: the last stream that was looked at, and why. Raises WireFormatError."""
    if len(payload) < 8:  # RFC 9113, section 6.8
        raise WireFormatError("a farewell of another size")
    last, code = int.from_bytes(payload[:4], "big"), int.from_bytes(payload[4:8], "big")
    return last & MAX_STREAM, reason_text(payload[8:].decode("utf-8", "replace")) or f"HTTP/2: {code}"


def reason_text(text: str) -> str:
    """Return what a peer gives as a reason, fit for one line of a log: nothing in it can pose as another line."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text[:_MOST_REASON])


def check_window(size: int) -> int:
    """Return ``size``. Raises WireFormatError if no window may have it."""
    if size > MAX_WINDOW_BYTES:
        raise WireFormatError("a window that is too large")
    return size
