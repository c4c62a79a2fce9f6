"""Room for large frames: bounded, first come first served, and not kept by who does not finish."""

from __future__ import annotations

import asyncio

from bookie_server.net.large_frames import LargeFrames


class Peer:
    def __init__(self) -> None:
        self.held = False
        self.aborted = asyncio.Event()

    def hold_frame(self) -> None:
        self.held = True

    def go_on(self) -> None:
        self.held = False

    def abort(self) -> None:
        self.aborted.set()


def test_room_is_given_in_order() -> None:
    async def check() -> None:
        frames = LargeFrames(limit_bytes=10, timeout_s=60)
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

    asyncio.run(check())


def test_who_does_not_finish_loses_the_connection() -> None:
    async def check() -> None:
        frames = LargeFrames(limit_bytes=10, timeout_s=0.01)
        slow, waiting = Peer(), Peer()
        frames.begin(slow, 9)
        frames.begin(waiting, 9)
        await asyncio.wait_for(slow.aborted.wait(), 10)
        assert not waiting.aborted.is_set()
        frames.end(slow)
        assert not waiting.held

    asyncio.run(check())
