"""One connection of HTTP/2 with calls of gRPC. Source: RFC 9113.

gRPC's own library copies each received byte more than once in Python's process, and hands each message from thread to
thread. Here the socket writes a message where it stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire.http2.calls import (
    INTERNAL,
    OK,
    PREFIX_BYTES,
    UNAVAILABLE,
    Answered,
    CallState,
    Ended,
    Event,
    Message,
    end_of_reset,
    problem_of,
    status_of,
)
from bk_spark.protocol.wire.http2.frames import (
    DEFAULT_WINDOW_BYTES,
    HEAD_BYTES,
    MAX_STREAM,
    Flag,
    Kind,
    Reset,
    check_window,
    frame,
    frame_head,
    headers_frames,
    number_frame,
    parse_farewell,
    parse_head,
    parse_increment,
    parse_number,
)
from bk_spark.protocol.wire.http2.headers import Headers, IncomingHeaders, OutgoingHeaders
from bk_spark.protocol.wire.http2.settings import CALL_WINDOW_BYTES, WINDOW_BYTES, PeerSettings, greeting

#: Bytes that are received at a time, unless they belong to a message of which at least the latter is missing.
_BUFFER_BYTES: Final = 128 * 1024
_DIRECT_BYTES: Final = 32 * 1024
#: Frames other than DATA.
_MOST_CONTROL_BYTES: Final = 32 * 1024
_LAST_KIND: Final = max(Kind)
#: Those that are about the connection, and about no call.
_OF_CONNECTION: Final = frozenset((Kind.SETTINGS, Kind.PING, Kind.GOAWAY))
#: Bytes of one DATA frame that is sent. Other frames wait for its end.
_MOST_SENT_BYTES: Final = 1024 * 1024
#: This much of a frame's content is joined with its head.
_JOINED_BYTES: Final = 64 * 1024
#: A message that is sent takes along what widens windows of which this much is left at most. Otherwise they are widened
#: when less than the other is left: frames of their own cost the peer as much time as a request does.
_WIDENED_ALONG: Final = 3 / 4
_WIDENED_ALONE: Final = 1 / 4
#: Messages of a call that are not taken, beyond which its window is not widened.
_MOST_WAITING_BYTES: Final = 8 * 1024 * 1024
#: Pings and settings of the peer whose answers it has not taken.
_MOST_OWED_ANSWERS: Final = 1_000


class Http2:
    """One connection. What comes in is written to :meth:`get_buffer`. What goes out is in :meth:`output`.

    Parameters
    ----------
    authority
        The name of the peer, with its port.
    is_secure
        Whether the connection is inside TLS.
    max_message_bytes
        Of a message that comes in.
    """

    def __init__(self, authority: str, *, is_secure: bool, max_message_bytes: int) -> None:
        self._headers_out, self._headers_in = OutgoingHeaders(authority, is_secure=is_secure), IncomingHeaders()
        self._max_message_bytes = max_message_bytes
        self._calls: dict[int, CallState] = {}
        self._next_call = 1
        self._peer = PeerSettings()
        self._room = DEFAULT_WINDOW_BYTES
        self._window = WINDOW_BYTES
        #: Whether the peer takes no further calls.
        self.is_leaving = False
        self._owed_answers = 0
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._filled = 0
        self._is_direct = False
        #: What is left of a DATA frame and of what is skipped behind it, its call, and whether that ends with it.
        self._left = self._skipped = 0
        self._data_of: CallState | None = None
        self._data_ends = False
        self._events: list[Event] = []
        self._output: list[Buffer] = [greeting()]

    # --- calls ---

    @property
    def can_begin(self) -> bool:
        """Whether the peer takes another call at present."""
        return not self.is_leaving and len(self._calls) < self._peer.max_calls

    def begin(self, path: str, metadata: Iterable[tuple[str, bytes]] = (), timeout_ms: int | None = None) -> int:
        """Begin a call. Return its number. ``metadata`` are binary, so their names end with ``-bin``; they may be
        secrets. The peer may give the call up after ``timeout_ms``. Raises TooManyHeadersError."""
        block = self._headers_out.block(
            path,
            metadata,
            timeout_ms,
            most_table_bytes=self._peer.table_bytes,
            most_bytes=self._peer.headers_bytes,
        )
        call = CallState(self._next_call, self._peer.call_room, CALL_WINDOW_BYTES)
        self._calls[call.number] = call
        self._next_call += 2
        if self._next_call > MAX_STREAM:
            self.is_leaving = True
        self._output += headers_frames(call.number, block, self._peer.frame_bytes)
        return call.number

    def send(
        self, number: int, data: memoryview, *, begins: bool, size_bytes: int = 0, ends: bool = False
    ) -> int | None:
        """Send a part of a message. Return how many bytes of ``data`` it has. None: the peer takes none at present.

        Parameters
        ----------
        number
            The call, which has not ended.
        data
            The message, or what is left of it.
        begins
            Whether this is its beginning, and ``size_bytes`` its size.
        ends
            Whether the call has no further message.
        """
        call = self._calls[number]
        prefix = b"\0" + size_bytes.to_bytes(PREFIX_BYTES - 1, "big") if begins else b""
        size = min(len(prefix) + len(data), self._room, call.room, self._peer.frame_bytes, _MOST_SENT_BYTES)
        if size <= 0 or size < len(prefix):
            return None
        self._widen_all(_WIDENED_ALONG)
        self._widen(call, _WIDENED_ALONG)
        self._room -= size
        call.room -= size
        taken = size - len(prefix)
        call.sent_all = ends and taken == len(data)
        head = frame_head(size, Kind.DATA, Flag.END_STREAM if call.sent_all else 0, number)
        self._output.append(b"".join((head, prefix, data[: min(taken, _JOINED_BYTES)])))
        if taken > _JOINED_BYTES:
            self._output.append(data[_JOINED_BYTES:taken])
        return taken

    def end(self, number: int) -> None:
        """Say that a call has no further message."""
        call = self._calls[number]
        if not call.sent_all:
            call.sent_all = True
            self._output.append(frame(Kind.DATA, Flag.END_STREAM, number))

    def cancel(self, number: int) -> None:
        """End a call. Nothing happens if it has ended."""
        if self._calls.pop(number, None) is not None:
            self._output.append(number_frame(Kind.RST_STREAM, number, Reset.CANCEL))

    def taken(self, number: int, size_bytes: int) -> None:
        """A message was taken: the peer may send more."""
        call = self._calls.get(number)
        if call is not None:
            call.taken(size_bytes)
            self._widen(call, _WIDENED_ALONE)

    def output(self) -> list[Buffer]:
        """Return what is to be sent, in this order. It must not change."""
        output, self._output = self._output, []
        return output

    def sent(self) -> None:
        """Everything of :meth:`output` was sent."""
        self._owed_answers = 0

    # --- what comes in ---

    def get_buffer(self) -> memoryview:
        """Return the space for the next bytes. It is never empty."""
        self._is_direct = False
        if self._data_of is not None and not self._filled:
            space = self._data_of.space()
            if space is not None and min(len(space), self._left) >= _DIRECT_BYTES:
                self._is_direct = True
                return space[: self._left]
        return self._buffer[self._filled :]

    def received(self, size_bytes: int) -> list[Event]:
        """Record ``size_bytes`` written to the buffer. Return what has happened.

        Raises WireFormatError if the peer breaks a rule. The connection cannot be used any more then.
        """
        self._events = []
        call = self._data_of
        if self._is_direct and call is not None:
            self._left -= size_bytes
            message = call.filled(size_bytes)
            if message is not None:
                self._events.append(Message(call.number, message))
            if not self._left and not self._skipped:
                self._end_data()
        else:
            self._cut(self._filled + size_bytes)
        return self._events

    def _cut(self, end: int) -> None:
        """Take what is in the buffer up to ``end``, but the frame at its end that is not whole."""
        at, buffer = 0, self._buffer
        while True:
            if self._left or self._skipped:
                at = self._take_content(at, end)
                if at == end:
                    break
                continue
            if end - at < HEAD_BYTES:
                break
            size, kind, flags, stream = parse_head(buffer, at)
            if not self._peer.are_known and kind != Kind.SETTINGS:
                raise WireFormatError("the peer does not speak HTTP/2")
            if self._headers_in.is_within and kind != Kind.CONTINUATION:
                raise WireFormatError("headers are not followed by their rest")
            if kind == Kind.DATA:
                is_padded = bool(flags & Flag.PADDED)
                if end - at < HEAD_BYTES + is_padded:
                    break
                at += HEAD_BYTES
                self._begin_data(size, flags, stream, 1 + buffer[at] if is_padded else 0)
                at += is_padded
            elif kind > _LAST_KIND:
                self._skipped = size
                at += HEAD_BYTES
            else:
                if size > _MOST_CONTROL_BYTES:
                    raise WireFormatError(f"a frame of kind {kind} has {size} bytes")
                if end - at < HEAD_BYTES + size:
                    break
                at += HEAD_BYTES
                self._on_frame(kind, flags, stream, bytes(buffer[at : at + size]))
                at += size
        rest = bytes(buffer[at:end])
        buffer[: len(rest)] = rest
        self._filled = len(rest)

    def _take_content(self, at: int, end: int) -> int:
        """Take the content of a DATA frame, or what is to be skipped. Return where it ends."""
        size = min(end - at, self._left)
        if size and self._data_of is not None:
            call = self._data_of
            for message in call.take(self._buffer[at : at + size], self._max_message_bytes):
                self._events.append(Message(call.number, message))
        self._left -= size
        at += size
        if not self._left:
            size = min(end - at, self._skipped)
            self._skipped -= size
            at += size
            if not self._skipped:
                self._end_data()
        return at

    def _begin_data(self, size: int, flags: int, stream: int, padding: int) -> None:
        """Begin a DATA frame. ``padding`` includes the byte with its size."""
        self._check_stream(stream)
        if padding > size:
            raise WireFormatError("a frame has more padding than bytes")
        self._window -= size
        call = self._data_of = self._calls.get(stream)
        if self._window < 0 or (call is not None and size > call.window):
            raise WireFormatError("the peer sends more than it may")
        self._widen_all(_WIDENED_ALONE)
        self._left, self._skipped = size - padding, max(0, padding - 1)
        self._data_ends = bool(flags & Flag.END_STREAM)
        if call is not None:
            if not call.answered:
                raise WireFormatError("a message comes before the headers of its call")
            call.window -= size
            if not self._data_ends:
                self._widen(call, _WIDENED_ALONE)
        if not self._left and not self._skipped:
            self._end_data()

    def _widen_all(self, below: float) -> None:
        """Let the peer send more in all calls, if less than this part of the window is left."""
        if self._window < WINDOW_BYTES * below:
            self._output.append(number_frame(Kind.WINDOW_UPDATE, 0, WINDOW_BYTES - self._window))
            self._window = WINDOW_BYTES

    def _widen(self, call: CallState, below: float) -> None:
        """The same for one call, unless too much waits to be taken."""
        if call.window < CALL_WINDOW_BYTES * below and call.waiting <= _MOST_WAITING_BYTES:
            self._output.append(number_frame(Kind.WINDOW_UPDATE, call.number, CALL_WINDOW_BYTES - call.window))
            call.window = CALL_WINDOW_BYTES

    def _end_data(self) -> None:
        call, self._data_of = self._data_of, None
        ends, self._data_ends = self._data_ends, False
        if call is not None and ends:
            self._end_call(Ended(call.number, INTERNAL, "the peer ended the call without a status"), call.unsaid)

    def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if stream and kind in _OF_CONNECTION:
            raise WireFormatError(f"a frame of kind {kind} is about stream {stream}")
        match kind:
            case Kind.HEADERS:
                self._check_stream(stream)
                self._on_headers(self._headers_in.begin(payload, flags, stream))
            case Kind.CONTINUATION:
                self._on_headers(self._headers_in.go_on(payload, flags, stream))
            case Kind.SETTINGS:
                self._on_settings(flags, payload)
            case Kind.PING:
                if len(payload) != 8:  # RFC 9113, section 6.7
                    raise WireFormatError("a ping of another size")
                if not flags & Flag.ACK:
                    self._answer(frame(Kind.PING, Flag.ACK, 0, payload))
            case Kind.WINDOW_UPDATE:
                self._on_window(stream, parse_increment(payload))
            case Kind.RST_STREAM:
                self._check_stream(stream)
                self._end_call(end_of_reset(stream, parse_number(payload)))
            case Kind.GOAWAY:
                self._on_leaving(payload)
            case Kind.PUSH_PROMISE:
                raise WireFormatError("the peer promises what nobody asked for")

    def _on_settings(self, flags: int, payload: bytes) -> None:
        if flags & Flag.ACK:
            return
        more = self._peer.take(payload)
        if more:
            for call in self._calls.values():
                call.room = check_window(call.room + more)
        self._answer(frame(Kind.SETTINGS, Flag.ACK, 0))

    def _on_window(self, stream: int, more: int) -> None:
        if stream == 0:
            self._room = check_window(self._room + more)
            return
        self._check_stream(stream)
        call = self._calls.get(stream)
        if call is not None:
            call.room = check_window(call.room + more)

    def _on_leaving(self, payload: bytes) -> None:
        last, why = parse_farewell(payload)
        self.is_leaving = True
        for number in [number for number in self._calls if number > last]:
            self._end_call(Ended(number, UNAVAILABLE, f"the peer takes no further calls ({why})", is_unseen=True))

    def _answer(self, answer: bytes) -> None:
        self._owed_answers += 1
        if self._owed_answers > _MOST_OWED_ANSWERS:
            raise WireFormatError("the peer sends pings or settings, and does not take the answers")
        self._output.append(answer)

    def _on_headers(self, headers: Headers | None) -> None:
        """Headers have come, or a part of them."""
        call = None if headers is None else self._calls.get(headers.stream)
        if headers is None or call is None:
            return
        fields, ends = headers.fields, headers.ends
        if not call.answered:
            if fields.get(b":status", b"").startswith(b"1") and not ends:
                return
            problem = problem_of(fields)
            if problem is not None:
                # What else it says is of no interest.
                self._end_call(Ended(call.number, *problem), call.unsaid if ends else Reset.CANCEL)
                return
            call.answered = True
            if not ends:
                self._events.append(Answered(call.number))
        elif not ends:
            raise WireFormatError("headers in the middle of a call")
        if ends:
            status, reason = status_of(fields)
            if status == OK and not call.is_between_messages:
                status, reason = INTERNAL, "the call ended within a message"
            self._end_call(Ended(call.number, status, reason), call.unsaid)

    def _end_call(self, end: Ended, reset: Reset | None = None) -> None:
        """Note that the peer has ended a call. ``reset``: the peer must be told to stop sending."""
        call = self._calls.pop(end.call, None)
        if call is None:
            return
        if call is self._data_of:
            self._data_of = None
        if reset is not None:
            self._output.append(number_frame(Kind.RST_STREAM, end.call, reset))
        if end.is_unseen and call.answered:
            # It says so, and has answered.
            end = replace(end, is_unseen=False)
        self._events.append(end)

    def _check_stream(self, stream: int) -> None:
        if not stream % 2 or stream >= self._next_call:
            raise WireFormatError(f"there was no stream {stream}")
