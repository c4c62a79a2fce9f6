"""Room for large frames: bounded, first come first served. Beginnings of frames: bounded in bytes and time."""

from __future__ import annotations

from bookie_server.net.half_frames import HalfFrames
from bookie_server.net.large_frames import LargeFrames


class Peer:
    def __init__(self) -> None:
        self.held = False
        self.aborted = False
        self.paused = False

    def hold_frame(self) -> None:
        self.held = True

    def go_on(self) -> None:
        self.held = False

    def abort(self) -> None:
        self.aborted = True


def test_room_is_given_in_order() -> None:
    frames = LargeFrames(limit_bytes=10)
    a, b, c, d = (Peer() for _ in range(4))
    for peer, size in ((a, 6), (b, 4), (c, 9), (d, 1)):
        frames.begin(peer, size)
    assert [peer.held for peer in (a, b, c, d)] == [False, False, True, True]
    frames.end(b)
    assert (c.held, d.held) == (True, True)
    frames.end(a)
    assert (c.held, d.held) == (False, False)
    frames.begin(a, 5)
    assert a.held
    frames.end(a)  # it went away while waiting
    frames.end(c)
    frames.end(d)
    frames.begin(b, 1000)  # alone, any size is taken
    frames.begin(a, 1)
    assert a.held
    frames.end(b)
    assert not a.held


def test_who_goes_away_while_waiting_lets_the_next_one_in() -> None:
    frames = LargeFrames(limit_bytes=10)
    active, waiting, small = (Peer() for _ in range(3))
    frames.begin(active, 6)
    frames.begin(waiting, 9)
    frames.begin(small, 2)
    assert small.held
    frames.end(waiting)
    assert not small.held


def test_who_does_not_finish_a_frame_loses_the_connection() -> None:
    halves = HalfFrames(max_bytes=1000, timeout_s=60)
    slow, fast, held = (Peer() for _ in range(3))
    halves.begin(slow, 10, now=0)
    halves.begin(held, 10, now=0)
    held.paused = True
    halves.grow(slow, 20, now=50)  # a byte now and then is no excuse
    halves.begin(fast, 10, now=10)
    halves.begin(fast, 10, now=59)  # a new frame
    halves.expire(now=59.9)
    assert not slow.aborted
    halves.expire(now=60)
    assert (slow.aborted, fast.aborted, held.aborted) == (True, False, False)
    assert (len(halves), halves.bytes) == (2, 20)
    held.paused = False
    halves.expire(now=119)
    assert (fast.aborted, held.aborted) == (True, False)
    halves.expire(now=120)
    assert held.aborted
    assert (len(halves), halves.bytes) == (0, 0)


def test_the_oldest_beginnings_go_when_there_are_too_many() -> None:
    halves = HalfFrames(max_bytes=100, timeout_s=60)
    peers = [Peer() for _ in range(6)]
    peers[0].paused = True
    for i, peer in enumerate(peers):
        halves.begin(peer, 30, now=i)
    assert [peer.aborted for peer in peers] == [False, True, True, True, False, False]
    halves.grow(peers[5], 50, now=7)
    assert peers[4].aborted
    assert halves.bytes == 80
    halves.end(peers[0])
    halves.end(peers[5])
    halves.end(peers[5])
    assert (len(halves), halves.bytes) == (0, 0)
