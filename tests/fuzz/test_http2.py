"""What a server of gRPC sends to a client: HTTP/2."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire.http2.calls import Event, Message
from bk_spark.protocol.wire.http2.frames import Flag, Kind, frame, number_frame
from tests.fuzz.damage import hostile
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.guard import Refused, outcome
from tests.support.http2_answers import answered, connection, data, ended, prefixed, receive, settings

CALLS = st.sampled_from([1, 3])
#: Larger than what is received in one piece.
MESSAGES = st.binary(max_size=300) | st.integers(0, 200_000).map(bytes)
PADDING = st.none() | st.integers(0, 255)
FRAMES: SearchStrategy[bytes] = st.one_of(
    st.builds(lambda call, message, size, padding: data(call, prefixed(message), size, padding),
              CALLS, MESSAGES, st.sampled_from([700, 16_384, 1 << 20]), PADDING),
    st.builds(data, CALLS, st.binary(max_size=30), st.just(16_384), PADDING),
    st.builds(ended, CALLS, st.sampled_from([b"0", b"14", b"x"]), st.binary(max_size=20)),
    st.builds(answered, CALLS),
    st.builds(number_frame, st.sampled_from([Kind.WINDOW_UPDATE, Kind.RST_STREAM]), CALLS, st.integers(0, 2**32 - 1)),
    st.builds(frame, st.sampled_from([*Kind, 77]), st.integers(0, 255), st.sampled_from([0, 1, 2, 3, 5]),
              st.binary(max_size=60)),
    st.just(frame(Kind.PING, 0, 0, bytes(8))),
    st.just(frame(Kind.HEADERS, Flag.END_STREAM, 1)),
)  # fmt: skip
STREAMS = st.lists(FRAMES, max_size=8).map(lambda frames: settings() + answered(1) + answered(3) + b"".join(frames))
#: A connection, its messages, and what is made to compare them.
_LIMIT_BYTES = 8 * 1024 * 1024


def _plain(events: list[Event]) -> list[object]:
    return [(event.call, bytes(event.data)) if isinstance(event, Message) else event for event in events]


@fuzz(150, stream=STREAMS | hostile(STREAMS), most=st.sampled_from([1_000, 16_393, 100_000]))
def test_streams(stream: bytes, most: int) -> None:
    """Received in parts they are what they are at once, or refused."""
    whole = outcome(lambda: _plain(receive(connection(), stream)), WireFormatError, limit_bytes=_LIMIT_BYTES)
    parts = outcome(lambda: _plain(receive(connection(), stream, most)), WireFormatError, limit_bytes=_LIMIT_BYTES)
    if isinstance(whole, Refused):
        assert isinstance(parts, Refused)
        assert str(parts.error) == str(whole.error)
    else:
        assert parts == whole
