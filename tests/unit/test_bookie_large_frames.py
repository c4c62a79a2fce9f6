"""Room for large frames: bounded, in steps, by what has come; beginnings of frames: bounded in bytes and time."""

from __future__ import annotations

from bookie_server.net.common.half_frames import HalfFrames
from bookie_server.net.common.large_frames import LargeFrames

KIB = 1024


class Peer:
    def __init__(self) -> None:
        self.held = False
        self.aborted = False
        self.paused = False
        self.room = 0

    def hold_frame(self) -> None:
        self.held = self.paused = True

    def give_room(self, size_bytes: int) -> None:
        self.held = self.paused = False
        assert size_bytes > self.room
        self.room = size_bytes

    def abort(self) -> None:
        self.aborted = True

    def abort_stalled(self) -> None:
        self.aborted = True


def large_frames(limit_kib: int) -> LargeFrames:
    return LargeFrames(limit_kib * KIB, stalled_timeout_s=1)


def test_room_is_given_for_as_much_again_as_has_come() -> None:
    frames, peer = large_frames(4096), Peer()
    rooms = []
    has, needed = 64 * KIB, 1000 * KIB
    while has < needed:
        frames.progress(peer, has, needed, now=0)
        frames.progress(peer, has + 1, needed, now=0)  # within what it was given
        rooms.append(peer.room // KIB)
        has = peer.room
    assert rooms == [192, 384, 768, 1000]
    assert frames.bytes == needed
    frames.end(peer)
    assert frames.bytes == 0


def test_what_is_announced_costs_nothing_and_who_stalls_goes_first() -> None:
    frames = large_frames(1000)
    peers = [Peer() for _ in range(6)]
    for peer in peers:
        frames.progress(peer, 64 * KIB, 5000 * KIB, now=10)  # 192 KiB each
    assert [peer.held for peer in peers] == [False] * 5 + [True]
    frames.progress(peers[1], 130 * KIB, 5000 * KIB, now=10.5)  # goes on
    frames.progress(peers[2], 70 * KIB, 5000 * KIB, now=10.5)  # hardly
    peers[3].paused = True  # by something else: it is not its fault
    frames.look(now=10.9)
    assert not any(peer.aborted for peer in peers)
    frames.look(now=11)
    assert [peer.aborted for peer in peers] == [True, False, False, False, False, False]
    assert not peers[5].held  # that was enough
    late = Peer()
    frames.progress(late, 64 * KIB, 5000 * KIB, now=11)
    assert not late.held  # another one that stalled went at once
    assert [peer.aborted for peer in peers] == [True, False, True, False, False, False]
    assert frames.bytes == 5 * 192 * KIB


def test_nobody_is_closed_while_nobody_waits() -> None:
    frames, slow, late, later = large_frames(300), Peer(), Peer(), Peer()
    frames.progress(slow, 64 * KIB, 1000 * KIB, now=0)
    for now in range(100):
        frames.look(now)
    assert not slow.aborted
    frames.progress(late, 64 * KIB, 1000 * KIB, now=100)
    assert (slow.aborted, late.held) == (True, False)
    frames.progress(later, 64 * KIB, 1000 * KIB, now=100.5)
    frames.look(100.9)
    assert (late.aborted, later.held) == (False, True)
    frames.end(late)
    frames.look(200)  # its time begins when it is given room
    assert (later.held, later.aborted) == (False, False)


def test_the_oldest_frame_goes_on_whatever_there_is() -> None:
    frames = large_frames(400)
    oldest, second, third = Peer(), Peer(), Peer()
    for peer in (oldest, second, third):
        frames.progress(peer, 64 * KIB, 5000 * KIB, now=0)
    assert [peer.held for peer in (oldest, second, third)] == [False, False, True]
    frames.progress(second, 192 * KIB, 5000 * KIB, now=0)
    assert second.held
    while oldest.room < 5000 * KIB:
        frames.progress(oldest, oldest.room, 5000 * KIB, now=0)
        assert not oldest.held
    assert frames.bytes <= (400 + 5000) * KIB
    frames.end(oldest)
    assert (second.held, third.held) == (False, True)  # the second is the oldest now
    frames.end(second)
    assert not third.held
    frames.end(third)
    assert frames.bytes == 0


def test_beginnings_of_those_that_wait_are_bounded() -> None:
    frames = large_frames(256)
    peers = [Peer() for _ in range(8)]
    for peer in peers:
        frames.progress(peer, 100 * KIB, 5000 * KIB, now=0)
    assert [peer.held for peer in peers[:3]] == [False, True, True]
    assert [peer.aborted for peer in peers] == [False] * 3 + [True] * 5
    frames.end(peers[1])  # it went away while waiting
    again = Peer()
    frames.progress(again, 100 * KIB, 5000 * KIB, now=0)
    assert (again.held, again.aborted) == (True, False)


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
