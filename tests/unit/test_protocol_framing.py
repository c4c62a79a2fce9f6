"""Cutting streams into frames: every split, every mixture, absurd lengths, garbage."""

from __future__ import annotations

import random
import struct
import tracemalloc

import numpy as np
import pytest

from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire.framing import CommonBuffer, Frames, ReceiveBuffer, Receiving, frame

CHUNK = 4096


def stream_of(bodies: list[bytes]) -> bytes:
    return b"".join(frame(body) for body in bodies)


def feed(buffer: ReceiveBuffer, data: bytes) -> list[Frames]:
    """Write ``data`` as a socket does: as much as the buffer takes, again and again."""
    received = []
    while data:
        target = buffer.get_buffer()
        assert len(target), "the buffer must always take something"
        size = min(len(target), len(data))
        target[:size] = data[:size]
        data = data[size:]
        found = buffer.received(size)
        if found is not None:
            received.append(found)
    return received


def bodies_of(received: list[Frames]) -> list[bytes]:
    return [bytes(body) for found in received for body in found]


def assert_consistent(found: Frames) -> None:
    for start, length in zip(found.starts.tolist(), found.lengths.tolist(), strict=True):
        assert struct.unpack_from(">I", found.data, start - 4) == (length,)


MIXED = [b"", b"a", b"bb" * 9, *[bytes([n]) * 24 for n in range(20)], b"", b"", *[b"x"] * 12, b"end" * 7]


def test_every_split_position_gives_the_same_frames() -> None:
    stream = stream_of(MIXED)
    for position in range(len(stream) + 1):
        buffer = ReceiveBuffer(chunk_bytes=CHUNK)
        received = feed(buffer, stream[:position]) + feed(buffer, stream[position:])
        assert bodies_of(received) == MIXED
        assert buffer.pending_bytes == 0


@pytest.mark.parametrize("step", [1, 2, 3, 5, 27, 28, 29, 64])
def test_byte_by_byte_and_in_small_pieces(step: int) -> None:
    stream = stream_of(MIXED)
    buffer = ReceiveBuffer(chunk_bytes=32)
    received = [found for at in range(0, len(stream), step) for found in feed(buffer, stream[at : at + step])]
    assert bodies_of(received) == MIXED


@pytest.mark.parametrize("seed", range(40))
def test_runs_of_equal_frames_are_cut_like_any_others(seed: int) -> None:
    random_ = random.Random(seed)
    bodies: list[bytes] = []
    while len(bodies) < 150:
        size = random_.choice([0, 1, 3, 4, 5, 24, 24, 200])
        # Bodies that look like prefixes must not mislead the look-ahead.
        bodies += [
            random_.choice([random_.randbytes(size), struct.pack(">I", size) * 60])[:size].ljust(size, b"\0")
            for _ in range(random_.choice([1, 2, 7, 8, 9, 10, 30]))
        ]
    stream = stream_of(bodies)
    whole = ReceiveBuffer(chunk_bytes=len(stream) + 1)
    (found,) = feed(whole, stream)
    assert_consistent(found)
    assert (found.starts.dtype, found.lengths.dtype) == (np.int64, np.int64)
    assert bodies_of([found]) == bodies

    pieces = ReceiveBuffer(chunk_bytes=random_.choice([64, 300, 1000]))
    received: list[Frames] = []
    position = 0
    while position < len(stream):
        size = random_.randint(1, 700)
        received += feed(pieces, stream[position : position + size])
        position += size
    for found in received:
        assert_consistent(found)
    assert bodies_of(received) == bodies


def test_frames_stay_valid_after_the_next_receive() -> None:
    buffer = ReceiveBuffer(chunk_bytes=64)
    (first,) = feed(buffer, stream_of([b"one"]) + b"\0\0")
    (second,) = feed(buffer, b"\0\3two" + stream_of([b"three"]))
    assert (bodies_of([first]), bodies_of([second])) == ([b"one"], [b"two", b"three"])


@pytest.mark.parametrize("seed", range(20))
def test_a_common_buffer_gives_the_same_frames(seed: int) -> None:
    """Its frames are valid until the next receive only."""
    random_ = random.Random(seed)
    sizes = [random_.choice([0, 4, 24, 24, 24, 90, 200]) for _ in range(200)]
    bodies = [random_.randbytes(size) for size in sizes]
    stream = stream_of(bodies)
    buffer = Receiving(CommonBuffer(1 << 20, random_.choice([256, 300, 1000])))
    received: list[bytes] = []
    position = 0
    while position < len(stream):
        target = buffer.get_buffer()
        size = min(len(target), len(stream) - position, random_.randint(1, 400))
        target[:size] = stream[position : position + size]
        position += size
        found = buffer.received(size)
        if found is not None:
            assert_consistent(found)
            received += [bytes(body) for body in found]
    assert received == bodies
    assert buffer.half_frame_bytes == 0


def test_a_frame_larger_than_the_chunk() -> None:
    buffer = ReceiveBuffer(chunk_bytes=64)
    large = bytes(range(256)) * 40
    assert bodies_of(feed(buffer, stream_of([b"a", large, b"z"]))) == [b"a", large, b"z"]
    # Memory goes back to a chunk when it is through.
    assert buffer.capacity_bytes == 64


def test_small_frames_share_a_buffer_and_are_not_received_in_driblets() -> None:
    buffer = ReceiveBuffer(chunk_bytes=400)
    received: list[Frames] = []
    for number in range(100):
        assert len(buffer.get_buffer()) >= 100
        received += feed(buffer, stream_of([bytes([number]) * 20]))
    assert bodies_of(received) == [bytes([number]) * 20 for number in range(100)]
    assert len({id(found.data.obj) for found in received}) <= 100 * 24 // 300 + 1


def test_the_limit_counts_the_prefix() -> None:
    buffer = ReceiveBuffer(max_frame_bytes=100, chunk_bytes=32)
    assert bodies_of(feed(buffer, stream_of([bytes(96)]))) == [bytes(96)]
    with pytest.raises(WireFormatError, match="97 bytes exceeds nettyMaxFrameSizeBytes, 100"):
        feed(buffer, struct.pack(">I", 97))


@pytest.mark.parametrize("length", [5 * 1024 * 1024 - 3, 0x0A060803, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_an_absurd_length_is_refused_before_anything_is_allocated(length: int) -> None:
    buffer = ReceiveBuffer(chunk_bytes=64)
    target = buffer.get_buffer()
    target[:4] = struct.pack(">I", length)
    tracemalloc.start()
    try:
        with pytest.raises(WireFormatError):
            buffer.received(4)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 256 * 1024


def test_an_absurd_length_after_good_frames() -> None:
    for good in (1, 8, 9, 10, 30):
        buffer = ReceiveBuffer(chunk_bytes=CHUNK)
        with pytest.raises(WireFormatError):
            feed(buffer, stream_of([b"abcd"] * good) + b"\xff\xff\xff\xff")


def test_frame() -> None:
    assert frame(b"abc") == b"\0\0\0\3abc"
    assert frame(b"") == b"\0\0\0\0"


def test_large_frames_of_about_one_size_are_not_moved() -> None:
    buffer = ReceiveBuffer(chunk_bytes=64)
    feed(buffer, stream_of([bytes(300)]))
    bodies = [bytes([number]) * (300 - 15 * (number % 3)) for number in range(1, 20)]
    received: list[Frames] = []
    stream, targets = stream_of(bodies), []
    while stream:
        target = buffer.get_buffer()
        targets.append(target)
        size = min(len(target), len(stream), 50)
        target[:size], stream = stream[:size], stream[size:]
        found = buffer.received(size)
        if found is not None:
            # Each byte of a frame, and none of the next one, was received where the frame is now.
            assert {id(one.obj) for one in targets} == {id(found.data.obj)}
            assert buffer.pending_bytes == 0
            received.append(found)
            targets = []
    assert bodies_of(received) == bodies


def test_the_room_for_an_expected_frame_is_given_up_once_a_small_one_came() -> None:
    buffer = ReceiveBuffer(chunk_bytes=64)
    feed(buffer, stream_of([bytes(300)]))
    assert buffer.capacity_bytes == 304 * 9 // 8
    feed(buffer, stream_of([b"small"] * 40))
    assert buffer.capacity_bytes == 64
    # Of a very large one it is not kept.
    feed(buffer, stream_of([bytes(64 * 10)]))
    assert buffer.capacity_bytes == 64
