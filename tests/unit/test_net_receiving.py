"""Many connections receive into one buffer and keep only what is not whole."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire.framing import CommonBuffer, Receiving, frame

MAX = 4096


def receive(receiving: Receiving, data: bytes) -> list[bytes]:
    """What a socket with ``data`` ready would bring."""
    bodies: list[bytes] = []
    while data:
        if receiving.large_frame_bytes:
            receiving.give_room(min(receiving.large_frame_bytes, receiving.large_frame_has_bytes + 200))
        buffer = receiving.get_buffer()
        part, data = data[: len(buffer)], data[len(buffer) :]
        buffer[: len(part)] = part
        frames = receiving.received(len(part))
        if frames is not None:
            bodies += map(bytes, frames)
    return bodies


@pytest.mark.parametrize("seed", range(20))
def test_connections_do_not_see_each_others_bytes(seed: int) -> None:
    random = np.random.default_rng(seed)
    common = CommonBuffer(MAX, 512)
    receivings = [Receiving(common) for _ in range(3)]
    sent: list[list[bytes]] = [[], [], []]
    streams = [b"", b"", b""]
    for which in range(3):
        for _ in range(40):
            body = random.bytes(int(random.choice([1, 20, 20, 20, 300, 507, 508, 509, 2000, MAX - 4])))
            sent[which].append(body)
            streams[which] += frame(body)
    got: list[list[bytes]] = [[], [], []]
    while any(streams):
        which = int(random.integers(3))
        size = int(random.integers(1, 1500))
        part, streams[which] = streams[which][:size], streams[which][size:]
        got[which] += receive(receivings[which], part)
    assert got == sent
    assert [(r.half_frame_bytes, r.large_frame_bytes) for r in receivings] == [(0, 0)] * 3


def test_what_is_kept() -> None:
    common = CommonBuffer(MAX, 512)
    idle, half, announced, large = (Receiving(common) for _ in range(4))
    receive(idle, frame(bytes(100)))
    receive(half, frame(bytes(100))[:60])
    receive(announced, frame(bytes(1000))[:8])
    receive(large, frame(bytes(1000))[:700])
    assert [r.half_frame_bytes for r in (idle, half, announced, large)] == [0, 60, 8, 0]
    assert [r.large_frame_bytes for r in (idle, half, announced, large)] == [0, 0, 0, 1004]
    assert large.large_frame_has_bytes == 700
    for receiving in (half, large):
        receiving.clear()
        assert (receiving.half_frame_bytes, receiving.large_frame_bytes) == (0, 0)


def test_a_frame_too_long_leaves_the_buffer_usable_for_others() -> None:
    common = CommonBuffer(MAX, 512)
    bad, good = Receiving(common), Receiving(common)
    with pytest.raises(WireFormatError, match="nettyMaxFrameSizeBytes"):
        receive(bad, b"\x00\x00\x0f\xfd")
    assert receive(good, frame(b"hello")) == [b"hello"]


def test_detached_frames_outlive_the_next_receive() -> None:
    common = CommonBuffer(MAX, 512)
    receiving = Receiving(common)
    data = frame(b"one") + frame(b"three")
    receiving.get_buffer()[: len(data)] = data
    frames = receiving.received(len(data))
    assert frames is not None
    kept = frames.detached()
    assert receive(receiving, frame(b"x" * 12)) == [b"x" * 12]
    assert [bytes(body) for body in kept] == [b"one", b"three"]


def test_n1_large_frames_take_memory_page_by_page() -> None:
    """With huge pages the first bytes of each frame would take two megabytes, and up to 5 ms."""
    common = CommonBuffer(16 << 20, 512)
    receivings = [Receiving(common) for _ in range(10)]
    beginning = frame(bytes(8_000_000))[:1000]
    before = _resident_bytes()
    for receiving in receivings:
        receive(receiving, beginning)
        receiving.give_room(4_000_000)
        memoryview(receiving.get_buffer().obj)[3_000_000] = 1  # somewhere behind the first boundary of huge pages
    assert _resident_bytes() - before < 10_000_000


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize()
