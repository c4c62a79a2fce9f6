"""The client's side of HTTP/2: messages, windows, ends of calls, and what breaks a rule. Tests of the connection over
gRPC (test_client_grpc.py) meet gRPC's own server."""

from __future__ import annotations

import logging
import os
import tracemalloc
from base64 import b64encode

import pytest
from hpack import Decoder, Encoder, NeverIndexedHeaderTuple

from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire.http2.calls import Answered, Ended, Message
from bk_spark.protocol.wire.http2.connection import Http2
from bk_spark.protocol.wire.http2.frames import (
    PREFACE,
    Flag,
    Kind,
    Setting,
    frame,
    number_frame,
    settings_frame,
)
from bk_spark.protocol.wire.http2.headers import TooManyHeadersError
from tests.support.http2_answers import (
    MAX_MESSAGE,
    answered,
    connection,
    data,
    ended,
    frames_of,
    headers,
    output,
    prefixed,
    receive,
    settings,
)

MIB = 1024 * 1024


def test_what_a_client_says_first() -> None:
    made = Http2("peer:1", is_secure=True, max_message_bytes=10)
    made.begin("/s/M", [("bk-session-bin", b"\xff\xfe\xfd\xfc")])
    sent = b"".join(made.output())
    assert sent.startswith(PREFACE)
    assert [one[0] for one in frames_of(sent)] == [Kind.SETTINGS, Kind.WINDOW_UPDATE, Kind.HEADERS]
    _, flags, stream, block = frames_of(sent)[-1]
    assert (flags, stream) == (Flag.END_HEADERS, 1)
    fields = list(Decoder().decode(block, raw=True))
    said = dict(fields)
    assert (said[b":path"], said[b":scheme"], said[b":authority"]) == (b"/s/M", b"https", b"peer:1")
    assert fields.index((b":path", b"/s/M")) < 4  # pseudo headers come first
    # A secret is in no table, and its value is base64 as gRPC wants it.
    secret = next(one for one in fields if one[0] == b"bk-session-bin")
    assert secret[1] == b"//79/A"
    assert isinstance(secret, NeverIndexedHeaderTuple)


@pytest.mark.parametrize("size", [0, 1, 94, 95, 96, 200, 20_000])
def test_secrets_of_all_sizes_which_no_log_has(size: int, caplog: pytest.LogCaptureFixture) -> None:
    """Not hpack's either."""
    made, secret = Http2("peer:1", is_secure=True, max_message_bytes=10), bytes([0xA5]) * size
    with caplog.at_level(logging.DEBUG, "hpack"):
        made.begin("/s/M", [("bk-session-bin", secret), ("a-bin", b"")])
    said = b64encode(secret).rstrip(b"=")
    block = b"".join(one[3] for one in output(made)[2:])
    assert list(Decoder().decode(block, raw=True))[-2:] == [(b"bk-session-bin", said), (b"a-bin", b"")]
    assert "/s/M" in caplog.text
    assert size < 2 or said.decode()[:8] not in caplog.text


@pytest.mark.parametrize(("size", "rests"), [(12_000, 0), (12_280, 1), (40_000, 3)])
def test_headers_larger_than_a_frame_go_on_in_others(size: int, rests: int) -> None:
    made = Http2("peer:1", is_secure=False, max_message_bytes=10)
    made.begin("/s/M", [("bk-session-bin", bytes(size))])
    sent = output(made)[2:]
    kinds = [Kind.HEADERS] + [Kind.CONTINUATION] * rests
    assert [(one[0], one[1], one[2]) for one in sent] == [
        (kind, Flag.END_HEADERS if number == rests else 0, 1) for number, kind in enumerate(kinds)
    ]
    assert max(len(one[3]) for one in sent) <= 16_384
    fields = dict(Decoder(max_header_list_size=1 << 20).decode(b"".join(one[3] for one in sent), raw=True))
    assert fields[b"bk-session-bin"] == b64encode(bytes(size)).rstrip(b"=")


def test_headers_that_the_peer_does_not_take_are_not_sent() -> None:
    made = Http2("peer:1", is_secure=False, max_message_bytes=10)
    receive(made, settings({Setting.MAX_HEADER_LIST_SIZE: 500}))
    output(made)
    with pytest.raises(TooManyHeadersError, match=r"have \d+ bytes, and the peer takes 500"):
        made.begin("/s/M", [("bk-session-bin", bytes(200))])
    assert output(made) == []
    assert made.begin("/s/M", [("bk-session-bin", b"")]) == 1
    # Whatever it takes.
    receive(made, settings({Setting.MAX_HEADER_LIST_SIZE: 2**32 - 1}))
    with pytest.raises(TooManyHeadersError, match="the peer takes 65536"):
        made.begin("/s/M", [("bk-session-bin", bytes(50_000))])


@pytest.mark.parametrize(("timeout_ms", "said"), [(None, None), (65_000, b"65000m"), (2**40, b"99999999m")])
def test_a_call_says_how_long_it_may_take(timeout_ms: int | None, said: bytes | None) -> None:
    made = Http2("peer:1", is_secure=False, max_message_bytes=10)
    made.begin("/s/M", (), timeout_ms)
    fields = dict(Decoder().decode(output(made)[-1][3], raw=True))
    assert fields.get(b"grpc-timeout") == said


@pytest.mark.parametrize("most", [1, 7, 9_000, 1 << 30])
@pytest.mark.parametrize("frame_bytes", [3, 16_384, 200_000])
def test_messages_are_whole_wherever_frames_and_receives_end(most: int, frame_bytes: int) -> None:
    sizes = (0, 1, 100_000, 5, 200_000) if most > 7 and frame_bytes > 3 else (0, 1, 3_000, 5)
    messages = [os.urandom(size) for size in sizes]
    made = connection()
    stream = settings() + answered(3) + data(3, b"".join(map(prefixed, messages)), frame_bytes) + ended(3)
    events = receive(made, stream, most)
    assert events[0] == Answered(3)
    assert events[-1] == Ended(3, "OK", "")
    assert [bytes(event.data) for event in events if isinstance(event, Message)] == messages


def test_calls_in_turn_padding_and_frames_that_are_not_known() -> None:
    made = connection()
    stream = b"".join(
        (
            settings(),
            frame(0xFF, 0, 0, bytes(200_000)),  # type: ignore[arg-type]
            answered(1),
            data(1, prefixed(b"first")[:7], padding=0),
            answered(3),
            data(3, prefixed(b"other"), padding=255),
            frame(Kind.PRIORITY, 0, 1, bytes(5)),
            data(1, prefixed(b"first")[7:], padding=9),
            data(1, b"", padding=3),
        )
    )
    for most in (1, 5_000, 1 << 30):
        made = connection()
        assert receive(made, stream, most) == [
            Answered(1),
            Answered(3),
            Message(3, memoryview(b"other")),
            Message(1, memoryview(b"first")),
        ]


def test_large_messages_are_received_where_they_stay() -> None:
    made = connection()
    content = prefixed(bytes(250_000))
    begin = settings() + answered(1) + data(1, content, 1 << 24)[: 9 + 5]
    receive(made, begin)
    space = made.get_buffer()
    assert len(space) == 250_000
    space[:] = b"x" * len(space)
    (event,) = made.received(len(space))
    assert isinstance(event, Message)
    assert isinstance(event.data, memoryview)
    assert event.data.obj is space.obj  # the same memory


def test_the_peer_may_send_more_when_messages_were_taken() -> None:
    """And not for ever if they are not: then its window is used up."""
    made, size = connection(), 250_000
    receive(made, settings() + answered(1))
    output(made)
    one, more, count = data(1, prefixed(bytes(size))), 0, 0
    while count * size < 32 * MIB:
        count += 1
        receive(made, one)
        more += sum(int.from_bytes(content, "big") for kind, _, stream, content in output(made) if stream == 1)
        if (count + 1) * (size + 5) > 16 * MIB + more:
            break
    assert 15 * MIB <= count * size < 25 * MIB
    with pytest.raises(WireFormatError, match="more than it may"):
        receive(made, one)
    made = connection()
    receive(made, settings() + answered(1))
    for _ in range(200):
        assert len(receive(made, one)) == 1
        made.taken(1, size)


def test_what_widens_windows_goes_with_the_next_message() -> None:
    """A frame of its own would wake the peer once more. If no message goes, it comes before the windows are used up."""
    made, size = connection(), 250_000
    receive(made, settings() + answered(1))
    output(made)

    def take(count: int) -> None:
        for _ in range(count):
            assert len(receive(made, data(1, prefixed(bytes(size)), 1 << 24))) == 1
            made.taken(1, size)

    take(34)
    assert output(made) == []
    made.send(1, memoryview(b"next"), begins=True, size_bytes=4)
    sent = output(made)
    assert [(kind, call) for kind, _, call, _ in sent] == [
        (Kind.WINDOW_UPDATE, 0),
        (Kind.WINDOW_UPDATE, 1),
        (Kind.DATA, 1),
    ]
    assert {int.from_bytes(content, "big") for kind, _, _, content in sent[:2]} == {34 * (size + 5)}
    take(140)
    assert {call for kind, _, call, _ in output(made)} == {0, 1}


def test_windows_of_the_peer_bound_what_is_sent() -> None:
    made = connection()
    message = memoryview(bytes(MIB))
    receive(made, settings({Setting.INITIAL_WINDOW_SIZE: 40_000}))
    output(made)
    assert made.send(1, message, begins=True, size_bytes=MIB) == 16_384 - 5
    assert made.send(1, message[16_379:], begins=False) == 16_384
    assert made.send(1, message[2 * 16_379 :], begins=False) == 40_000 - 2 * 16_384
    assert made.send(1, message[40_000:], begins=False) is None
    # The window of the connection is that of 65,535 bytes.
    assert made.send(3, message, begins=True, size_bytes=MIB) == 16_384 - 5
    assert made.send(3, message[16_384:], begins=False) == 65_535 - 40_000 - 16_384
    assert made.send(3, message[16_384:], begins=False) is None
    sent = output(made)
    assert sent[0][3][:5] == b"\0" + MIB.to_bytes(4, "big")
    assert sum(len(one[3]) for one in sent) == 65_535
    receive(made, number_frame(Kind.WINDOW_UPDATE, 0, 2 * MIB) + number_frame(Kind.WINDOW_UPDATE, 1, 100))
    assert made.send(1, message, begins=False) == 100
    receive(made, settings({Setting.INITIAL_WINDOW_SIZE: 4 * MIB, Setting.MAX_FRAME_SIZE: MIB}))
    assert made.send(1, message, begins=False, ends=True) == MIB
    assert output(made)[-1][1] == Flag.END_STREAM
    receive(made, settings({Setting.INITIAL_WINDOW_SIZE: 0}))
    assert made.send(3, message, begins=False) is None


def test_calls_wait_while_the_peer_takes_no_more_of_them() -> None:
    made = connection()
    receive(made, settings({Setting.MAX_CONCURRENT_STREAMS: 2}))
    assert not made.can_begin
    receive(made, answered(1) + ended(1))
    assert made.can_begin


def test_answers_to_pings_and_settings() -> None:
    made = connection()
    receive(made, settings() + frame(Kind.PING, 0, 0, b"12345678") + frame(Kind.PING, Flag.ACK, 0, bytes(8)))
    assert output(made) == [(Kind.SETTINGS, Flag.ACK, 0, b""), (Kind.PING, Flag.ACK, 0, b"12345678")]
    with pytest.raises(WireFormatError, match="does not take the answers"):
        receive(made, frame(Kind.PING, 0, 0, bytes(8)) * 2_000)
    made = connection()
    receive(made, settings())
    for _ in range(20):
        receive(made, frame(Kind.PING, 0, 0, bytes(8)) * 100)
        made.output()
        made.sent()


def test_settings_that_change_all_the_time() -> None:
    """A peer says that it has no table of headers, and thinks of it again. Nothing of that is kept."""
    made = connection()
    receive(made, settings())
    change = settings_frame({Setting.HEADER_TABLE_SIZE: 0}) + settings_frame({Setting.HEADER_TABLE_SIZE: 4096})
    tracemalloc.start()
    for _ in range(100):
        receive(made, change * 50)
        made.output()
        made.sent()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 50_000
    made.begin("/s/M")
    block = output(made)[0][3]
    assert block[:2] == b"\x20\x83"  # no table, then the first header


def test_a_table_that_shrinks_twice_to_the_same_size() -> None:
    """The next call has to say that it is as small, or the peer reads other headers."""
    made, theirs = Http2("peer:1", is_secure=False, max_message_bytes=10), Decoder()
    made.begin("/s/M")
    theirs.decode(output(made)[-1][3])
    receive(made, settings({Setting.HEADER_TABLE_SIZE: 100}) * 2)
    made.output()
    theirs.max_allowed_table_size = 100
    for _ in range(2):
        made.begin("/s/M")
        assert dict(theirs.decode(output(made)[-1][3], raw=True))[b":path"] == b"/s/M"
        assert theirs.header_table_size == 100


def test_messages_without_a_byte_are_bounded() -> None:
    made = connection()
    many = data(1, prefixed(b"") * 3_000)
    with pytest.raises(WireFormatError, match="more messages than are taken"):
        receive(made, settings() + answered(1) + many * 34)
    made = connection()
    receive(made, settings() + answered(1))
    for _ in range(34):
        for _event in receive(made, many):
            made.taken(1, 0)


def test_what_comes_for_calls_that_ended_counts_for_the_window_of_all() -> None:
    """Otherwise the peer may send less and less, until it may send nothing."""
    made, sent, granted = connection(), 0, 0
    receive(made, settings() + answered(1) + data(1, prefixed(bytes(100_000))[:50_000], 1 << 20))
    made.output()
    made.cancel(1)
    for _ in range(80):
        receive(made, data(1, bytes(MIB), MIB, None) + data(1, b"", padding=255))
        sent += MIB + 256
        granted += sum(int.from_bytes(content, "big") for kind, _, call, content in output(made) if call == 0)
        assert sent - granted < 26 * MIB


def test_a_window_below_zero() -> None:
    made = connection()
    receive(made, settings())
    assert made.send(1, memoryview(bytes(20_000)), begins=True, size_bytes=20_000) == 16_379
    receive(made, settings({Setting.INITIAL_WINDOW_SIZE: 10_000}))
    assert made.send(1, memoryview(bytes(100)), begins=False) is None
    receive(made, number_frame(Kind.WINDOW_UPDATE, 1, 6_384))
    assert made.send(1, memoryview(bytes(100)), begins=False) is None
    receive(made, number_frame(Kind.WINDOW_UPDATE, 1, 7))
    assert made.send(1, memoryview(bytes(100)), begins=False) == 7
    # Its last value counts.
    receive(
        made, settings_frame({Setting.INITIAL_WINDOW_SIZE: 9}) * 2 + settings({Setting.INITIAL_WINDOW_SIZE: 10_050})
    )
    assert made.send(1, memoryview(bytes(100)), begins=False) == 50


def test_numbers_of_calls_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bk_spark.protocol.wire.http2.connection.MAX_STREAM", 7)
    made = connection()
    receive(made, settings())
    assert made.begin("/s/M") == 5
    assert made.can_begin
    assert made.begin("/s/M") == 7
    assert (made.can_begin, made.is_leaving) == (False, True)


ENDS = {
    "well": (answered(1) + ended(1), "OK", ""),
    "with an error": (answered(1) + ended(1, b"8", b"too%20many%C3%A4%"), "RESOURCE_EXHAUSTED", "too many\u00e4%"),
    "with other lines": (answered(1) + ended(1, b"8", b"a%0Ab%1B[2J"), "RESOURCE_EXHAUSTED", "a\ufffdb\ufffd[2J"),
    "with the connection and other lines": (frame(Kind.GOAWAY, 0, 0, bytes(8) + b"x\ry"), "UNAVAILABLE", "x\ufffdy"),
    "with a long story": (answered(1) + ended(1, b"8", b"a" * 5_000), "RESOURCE_EXHAUSTED", "a" * 500),
    "at once": (
        headers(1, (b":status", b"200"), (b"content-type", b"application/grpc+x"), (b"grpc-status", b"12"), ends=True),
        "UNIMPLEMENTED",
        "",
    ),
    "another status": (answered(1) + ended(1, b"99"), "UNKNOWN", ""),
    "without a status": (answered(1) + frame(Kind.DATA, Flag.END_STREAM, 1), "INTERNAL", "without a status"),
    "within a message": (answered(1) + data(1, b"\0\0\0\0\x09abc") + ended(1), "INTERNAL", "within a message"),
    "by a proxy": (headers(1, (b":status", b"503")), "UNAVAILABLE", "HTTP 503"),
    "by a page": (headers(1, (b":status", b"200"), (b"content-type", b"text/html")), "UNKNOWN", "HTTP 200"),
    "by a reset": (number_frame(Kind.RST_STREAM, 1, 7), "UNAVAILABLE", "HTTP/2: 7"),
    "with the connection": (frame(Kind.GOAWAY, 0, 0, bytes(8) + b"bye"), "UNAVAILABLE", "bye"),
    "by headers in parts": (
        answered(1)
        + headers(1, (b"grpc-status", b"0"), ends=True, flags=0)
        + frame(Kind.CONTINUATION, Flag.END_HEADERS, 1),
        "OK",
        "",
    ),
}


@pytest.mark.parametrize(("stream", "status", "reason"), ENDS.values(), ids=ENDS)
def test_how_calls_end(stream: bytes, status: str, reason: str) -> None:
    made = connection()
    found = [event for event in receive(made, settings() + stream) if isinstance(event, Ended) and event.call == 1]
    assert [event.status for event in found] == [status]
    assert reason in found[0].reason
    assert len(found[0].reason) <= 600
    assert found[0].is_unseen == (reason in ("HTTP/2: 7", "bye", "x\ufffdy"))
    # What comes late is of no interest.
    assert receive(made, number_frame(Kind.RST_STREAM, 1, 0) + number_frame(Kind.WINDOW_UPDATE, 1, 5)) == []
    made.cancel(1)


@pytest.mark.parametrize(
    "end", [number_frame(Kind.RST_STREAM, 1, 7), frame(Kind.GOAWAY, 0, 0, bytes(8))], ids=["reset", "farewell"]
)
def test_a_call_that_was_answered_was_seen(end: bytes) -> None:
    """Whatever the peer says: the call is not made again."""
    found = [event for event in receive(connection(), settings() + answered(1) + end) if isinstance(event, Ended)]
    assert (found[0].call, found[0].status, found[0].is_unseen) == (1, "UNAVAILABLE", False)


def test_who_is_told_that_a_call_is_over() -> None:
    """A peer that goes on, with the page of a proxy, and one that takes no more."""
    page = (b":status", b"404")
    for stream, is_said, code in (
        (headers(1, page), True, 8),
        (headers(1, page, ends=True), True, None),
        (headers(1, page, ends=True), False, 0),
        (answered(1) + ended(1), True, None),
        (answered(1) + ended(1), False, 0),
        (number_frame(Kind.RST_STREAM, 1, 2), False, None),
    ):
        made = connection()
        if is_said:
            made.end(1)
        receive(made, settings() + stream)
        told = [int.from_bytes(content, "big") for kind, _, _, content in output(made) if kind == Kind.RST_STREAM]
        assert told == ([] if code is None else [code])


def test_informal_headers_come_before_others() -> None:
    hint = headers(1, (b":status", b"103"), (b"link", b"x"))
    assert receive(connection(), settings() + hint * 3 + answered(1)) == [Answered(1)]


def test_a_peer_that_leaves_ends_calls_that_it_has_not_seen() -> None:
    made = connection()
    (event,) = receive(made, settings() + frame(Kind.GOAWAY, 0, 0, (1).to_bytes(4, "big") + bytes(4)))
    assert isinstance(event, Ended)
    assert (event.call, event.is_unseen) == (3, True)
    assert (made.is_leaving, made.can_begin) == (True, False)
    assert receive(made, answered(1) + data(1, prefixed(b"x")))[-1] == Message(1, memoryview(b"x"))


def test_a_call_that_was_given_up() -> None:
    made = connection()
    receive(made, settings() + answered(1) + data(1, b"\0\0\0\0\x09abc"))
    output(made)
    made.cancel(1)
    assert output(made) == [(Kind.RST_STREAM, 0, 1, (8).to_bytes(4, "big"))]
    assert receive(made, data(1, b"defghi") + answered(3)) == [Answered(3)]


WRONG = {
    "no HTTP/2": (b"HTTP/1.1 400 Bad Request\r\n", "does not speak HTTP/2"),
    "a message that is too long": (
        settings() + answered(1) + data(1, b"\0" + (MAX_MESSAGE + 1).to_bytes(4, "big")),
        "exceeds nettyMaxFrameSizeBytes",
    ),
    "a compressed message": (settings() + answered(1) + data(1, b"\x01\0\0\0\x01a"), "compressed"),
    "a message before headers": (settings() + data(1, prefixed(b"a")), "before the headers"),
    "a stream that is none": (settings() + answered(5), "no stream 5"),
    "a stream of the server": (settings() + data(2, b"a"), "no stream 2"),
    "a promise": (settings() + frame(Kind.PUSH_PROMISE, 0, 1, bytes(9)), "promises"),
    "padding": (settings() + answered(1) + frame(Kind.DATA, Flag.PADDED, 1, b"\x09abc"), "more padding"),
    "padding of headers": (settings() + frame(Kind.HEADERS, Flag.PADDED, 1, b"\x09abc"), "more padding"),
    "headers that cannot be decoded": (
        settings() + frame(Kind.HEADERS, Flag.END_HEADERS, 1, b"\xff\xff\xff"),
        "cannot be decoded",
    ),
    "headers without an end": (
        settings() + frame(Kind.HEADERS, 0, 1, bytes(30_000)) + frame(Kind.CONTINUATION, 0, 1, bytes(30_000)) * 2,
        "too many headers",
    ),
    "headers that are empty without an end": (
        settings() + frame(Kind.HEADERS, 0, 1, b"\x88") + frame(Kind.CONTINUATION, 0, 1),
        "empty and not the last",
    ),
    "headers that grow": (
        # One of 4,000 bytes, and then its number, again and again.
        settings()
        + frame(Kind.HEADERS, Flag.END_HEADERS, 1, Encoder().encode([(b"a", b"b" * 4_000)], huffman=False))
        + frame(Kind.HEADERS, Flag.END_HEADERS, 1, b"\xbe" * 10_000),
        "OversizedHeaderListError",
    ),
    "a table that is too large": (settings() + frame(Kind.HEADERS, Flag.END_HEADERS, 1, b"\x3f\xe2\x1f"), "TableSize"),
    "a table that changes": (
        settings() + frame(Kind.HEADERS, Flag.END_HEADERS, 1, b"\x20\x3f\xe1\x1f\x20"),
        "too often",
    ),
    "a ping of a call": (settings() + frame(Kind.PING, 0, 1, bytes(8)), "about stream 1"),
    "settings of a call": (settings() + frame(Kind.SETTINGS, 0, 1), "about stream 1"),
    "a farewell of a call": (settings() + frame(Kind.GOAWAY, 0, 1, bytes(8)), "about stream 1"),
    "a message of the connection": (settings() + data(0, b"a"), "no stream 0"),
    "headers that are interrupted": (settings() + frame(Kind.HEADERS, 0, 1) + settings(), "their rest"),
    "the rest of nothing": (settings() + frame(Kind.CONTINUATION, 0, 1), "not begun"),
    "headers in the middle": (settings() + answered(1) * 2, "in the middle"),
    "a large frame": (settings() + frame(Kind.GOAWAY, 0, 0, bytes(40_000)), "40000 bytes"),
    "a window of nothing": (settings() + number_frame(Kind.WINDOW_UPDATE, 1, 0), "by nothing"),
    "a large window": (settings() + number_frame(Kind.WINDOW_UPDATE, 0, 2**31 - 1), "too large"),
    "large windows": (settings({Setting.INITIAL_WINDOW_SIZE: 2**31}), "too large"),
    "small frames": (settings({Setting.MAX_FRAME_SIZE: 100}), "not possible"),
    "settings of another size": (frame(Kind.SETTINGS, 0, 0, bytes(5)), "settings"),
    "a short ping": (settings() + frame(Kind.PING, 0, 0, bytes(7)), "ping"),
    "a short farewell": (settings() + frame(Kind.GOAWAY, 0, 0, bytes(7)), "farewell"),
    "a short reset": (settings() + frame(Kind.RST_STREAM, 0, 1, bytes(3)), "a number"),
}


@pytest.mark.parametrize(("stream", "said"), WRONG.values(), ids=WRONG)
def test_a_peer_that_breaks_a_rule_is_left(stream: bytes, said: str) -> None:
    with pytest.raises(WireFormatError, match=said):
        receive(connection(), stream)
