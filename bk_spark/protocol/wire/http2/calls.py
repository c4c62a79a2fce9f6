"""One call of gRPC: its messages and its end. Source: "gRPC over HTTP2" of gRPC's documentation.

A message is ``u8 compressed, u32 length`` and that many bytes, in DATA frames that end anywhere. A call ends with
headers that have its status.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import numpy as np

from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire.http2.frames import Reset, reason_text

OK: Final = "OK"
UNAVAILABLE: Final = "UNAVAILABLE"
UNAUTHENTICATED: Final = "UNAUTHENTICATED"
UNIMPLEMENTED: Final = "UNIMPLEMENTED"
CANCELLED: Final = "CANCELLED"
INTERNAL: Final = "INTERNAL"
RESOURCE_EXHAUSTED: Final = "RESOURCE_EXHAUSTED"
_UNKNOWN: Final = "UNKNOWN"
#: gRPC's statuses, by their numbers.
_STATUSES: Final = (
    OK, CANCELLED, _UNKNOWN, "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", RESOURCE_EXHAUSTED, "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", UNIMPLEMENTED,
    INTERNAL, UNAVAILABLE, "DATA_LOSS", UNAUTHENTICATED,
)  # fmt: skip
_BY_NUMBER: Final = {b"%d" % number: status for number, status in enumerate(_STATUSES)}
#: The statuses for HTTP answers that are not gRPC's, and for streams that end early.
_OF_HTTP: Final = {
    b"400": INTERNAL, b"401": UNAUTHENTICATED, b"403": "PERMISSION_DENIED", b"404": UNIMPLEMENTED,
    b"429": UNAVAILABLE, b"502": UNAVAILABLE, b"503": UNAVAILABLE, b"504": UNAVAILABLE,
}  # fmt: skip
_OF_RESETS: Final[dict[int, str]] = {
    Reset.REFUSED_STREAM: UNAVAILABLE, Reset.CANCEL: CANCELLED, Reset.ENHANCE_YOUR_CALM: RESOURCE_EXHAUSTED,
}  # fmt: skip
PREFIX_BYTES: Final = 5
#: Messages of a call that were not taken. Empty ones take memory, too.
_MOST_WAITING: Final = 100_000


@dataclass(frozen=True, slots=True)
class Answered:
    """The peer has begun to answer a call."""

    call: int


@dataclass(frozen=True, slots=True)
class Message:
    """A whole message of a call has come."""

    call: int
    data: Buffer


@dataclass(frozen=True, slots=True)
class Ended:
    """A call has ended, with one of gRPC's statuses. With ``is_unseen`` the peer has not looked at it."""

    call: int
    status: str
    reason: str
    is_unseen: bool = False


Event = Answered | Message | Ended


class CallState:
    """What a connection knows about a call."""

    __slots__ = (
        "_filled", "_message", "_prefix", "_waiting_count", "answered", "number", "room", "sent_all", "waiting",
        "window",
    )  # fmt: skip

    def __init__(self, number: int, room: int, window: int) -> None:
        self.number = number
        #: How many bytes the peer takes of it at present, and how many it may send.
        self.room, self.window = room, window
        self.answered = self.sent_all = False
        #: Messages that were not taken: their bytes, and how many there are.
        self.waiting = self._waiting_count = 0
        #: The message that is coming in, and how much of it has come. None: its prefix is.
        self._message: memoryview | None = None
        self._filled = 0
        self._prefix = b""

    @property
    def is_between_messages(self) -> bool:
        """Whether nothing of a message is missing."""
        return self._message is None and not self._prefix

    @property
    def unsaid(self) -> Reset | None:
        """What a peer is told that has said all, and takes no more of the call."""
        return None if self.sent_all else Reset.NO_ERROR

    def space(self) -> memoryview | None:
        """Return the space for the rest of the message that is coming in. None: its size is not known yet."""
        return None if self._message is None else self._message[self._filled :]

    def filled(self, size_bytes: int) -> Buffer | None:
        """Record ``size_bytes`` written to :meth:`space`. Return the message if it is whole.

        Raises WireFormatError if too many were not taken.
        """
        message = self._message
        self._filled += size_bytes
        if message is None or self._filled < len(message):
            return None
        self._message = None
        self.waiting += len(message)
        self._waiting_count += 1
        if self._waiting_count > _MOST_WAITING:
            raise WireFormatError("the peer sends more messages than are taken")
        return message

    def taken(self, size_bytes: int) -> None:
        """Record that a message was taken."""
        self.waiting -= size_bytes
        self._waiting_count -= 1

    def take(self, data: memoryview, max_message_bytes: int) -> Iterator[Buffer]:
        """Copy received bytes. Yield messages that are whole.

        Raises WireFormatError for a message that is too long, before allocating memory for it.
        """
        while data:
            space = self.space()
            if space is None:
                missing = PREFIX_BYTES - len(self._prefix)
                self._prefix += bytes(data[:missing])
                data = data[missing:]
                if len(self._prefix) < PREFIX_BYTES:
                    return
                prefix, self._prefix = self._prefix, b""
                self._message, self._filled = _space_for(prefix, max_message_bytes), 0
                size = 0
            else:
                size = min(len(data), len(space))
                space[:size] = data[:size]
                data = data[size:]
            message = self.filled(size)
            if message is not None:
                yield message


def _space_for(prefix: bytes, max_message_bytes: int) -> memoryview:
    size = int.from_bytes(prefix[1:], "big")
    if prefix[0]:
        raise WireFormatError("a message is compressed, which was not offered")
    if size > max_message_bytes:
        raise WireFormatError(f"a message of {size} bytes exceeds nettyMaxFrameSizeBytes")
    # It is not zeroed.
    return np.empty(size, np.uint8).data


def problem_of(fields: dict[bytes, bytes]) -> tuple[str, str] | None:
    """Return status and reason if the first headers of an answer are not gRPC's."""
    status = fields.get(b":status", b"")
    if status == b"200" and fields.get(b"content-type", b"").startswith(b"application/grpc"):
        return None
    text = reason_text(status[:3].decode("ascii", "replace"))
    return _OF_HTTP.get(status, _UNKNOWN), f"the peer does not speak gRPC here: it answers HTTP {text}"


def status_of(fields: dict[bytes, bytes]) -> tuple[str, str]:
    """Return the status and the reason of a call that has ended, from its last headers."""
    status = _BY_NUMBER.get(fields.get(b"grpc-status", b""), _UNKNOWN)
    return status, reason_text(unquote(fields.get(b"grpc-message", b"").decode("ascii", "replace")))


def end_of_reset(call: int, code: int) -> Ended:
    """Return the end of a call that the peer has reset with ``code``."""
    reason = f"the peer ended the call (HTTP/2: {code})"
    return Ended(call, _OF_RESETS.get(code, INTERNAL), reason, is_unseen=code == Reset.REFUSED_STREAM)
