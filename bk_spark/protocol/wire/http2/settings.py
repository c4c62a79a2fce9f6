"""The settings that each side announces. Source: RFC 9113, section 6.5."""

from __future__ import annotations

from typing import Final

from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire.http2.frames import (
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW_BYTES,
    MAX_FRAME_BYTES,
    MAX_STREAM,
    PREFACE,
    Kind,
    Setting,
    check_window,
    number_frame,
    parse_settings,
    settings_frame,
)
from bk_spark.protocol.wire.http2.headers import MOST_BLOCK_BYTES, MOST_HEADERS_BYTES

#: How many bytes the peer may send before they are read: in one call, and in all calls.
CALL_WINDOW_BYTES: Final = 16 * 1024 * 1024
WINDOW_BYTES: Final = 32 * 1024 * 1024
_DEFAULT_TABLE_BYTES: Final = 4096


def greeting() -> bytes:
    """Return what a client sends first."""
    settings = {
        Setting.ENABLE_PUSH: 0,
        Setting.INITIAL_WINDOW_SIZE: CALL_WINDOW_BYTES,
        Setting.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
        Setting.MAX_HEADER_LIST_SIZE: MOST_HEADERS_BYTES,
    }
    more = number_frame(Kind.WINDOW_UPDATE, 0, WINDOW_BYTES - DEFAULT_WINDOW_BYTES)
    return PREFACE + settings_frame(settings) + more


class PeerSettings:
    """The settings of the peer that are valid now."""

    __slots__ = ("are_known", "call_room", "frame_bytes", "headers_bytes", "max_calls", "table_bytes")

    def __init__(self) -> None:
        #: Whether the peer has announced its settings.
        self.are_known = False
        #: How many calls it takes at a time.
        self.max_calls = MAX_STREAM
        #: How many bytes of a call it takes before it allows more, and how many bytes a frame may have.
        self.call_room = DEFAULT_WINDOW_BYTES
        self.frame_bytes = DEFAULT_FRAME_BYTES
        #: How many bytes of headers it takes without compression. It may not say so, and as many as we take are enough.
        self.headers_bytes = MOST_BLOCK_BYTES
        #: The size of its table of headers. A larger table would not help here, so it never grows.
        self.table_bytes = _DEFAULT_TABLE_BYTES

    def take(self, payload: bytes) -> int:
        """Take a SETTINGS frame. Return by how much the room of each call changes. Raises WireFormatError."""
        if len(payload) % 6:
            raise WireFormatError("settings of another size")
        before = self.call_room
        for setting, value in parse_settings(payload):
            match setting:
                case Setting.HEADER_TABLE_SIZE:
                    self.table_bytes = min(value, self.table_bytes)
                case Setting.MAX_HEADER_LIST_SIZE:
                    self.headers_bytes = min(value, MOST_BLOCK_BYTES)
                case Setting.MAX_CONCURRENT_STREAMS:
                    self.max_calls = value
                case Setting.INITIAL_WINDOW_SIZE:
                    self.call_room = check_window(value)
                case Setting.MAX_FRAME_SIZE:
                    if not DEFAULT_FRAME_BYTES <= value <= MAX_FRAME_BYTES:
                        raise WireFormatError(f"frames of {value} bytes are not possible")
                    self.frame_bytes = value
        self.are_known = True
        return self.call_room - before
