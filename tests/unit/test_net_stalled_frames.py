"""Peers that begin large frames and stall: real sockets against the real front end."""

from __future__ import annotations

import asyncio

import pytest

from bk_spark.protocol.codes import Code
from bookie_server.net.common.limits import NetConfig
from bookie_server.net.native import server as native
from tests.support.bookie import add_frame
from tests.support.front import MIB, HeldBookie, front, run, until

#: The largest frame that a peer may announce, nearly.
LARGEST = 5 * MIB - 1024


def test_n1_peers_that_announce_large_frames_and_send_eight_bytes_stop_nobody() -> None:
    """Ten of them announce more than the whole room for large frames."""

    async def test() -> None:
        async with front(NetConfig(), HeldBookie()) as here:
            stalled = [await here.connect() for _ in range(20)]
            for peer in stalled:
                await peer.send(add_frame(1, 0, size=LARGEST)[:8])
            await until(lambda: len(here.server.shared.half_frames) == 20)
            honest = await here.connect()
            for entry_id in range(5):
                await honest.send(add_frame(2, entry_id, size=MIB) + add_frame(3, entry_id))
                await until(lambda: here.bookie.entries == 2)
                here.bookie.answer()
                assert await honest.codes(2) == [Code.OK] * 2
            assert here.server.connection_count == 21  # nobody had to wait for them

    run(test)


def test_n1_peers_that_stall_with_large_frames_nearly_whole_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(native, "_LOOK_INTERVAL_S", 0.02)
        config = NetConfig(max_large_frames_bytes=4 * MIB, stalled_frame_timeout_ms=300)
        async with front(config, HeldBookie()) as here:
            stalled = [await here.connect() for _ in range(6)]
            for peer in stalled:
                await peer.send_what_is_taken(add_frame(1, 0, size=MIB)[:-1])
            honest = [await here.connect() for _ in range(3)]
            await asyncio.gather(*(peer.send(add_frame(2, i, size=3 * MIB)) for i, peer in enumerate(honest)))
            await until(lambda: here.bookie.entries == 3)
            here.bookie.answer()
            for peer in honest:
                assert await peer.codes(1) == [Code.OK]
            for peer in stalled[:4]:
                assert await peer.closed()
            assert here.server.shared.stalled_peers >= 4
            assert here.server.shared.large_frames.bytes <= 4 * MIB + 3 * MIB

    run(test)


def test_a_large_frame_that_comes_slowly_is_left_alone_while_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(native, "_LOOK_INTERVAL_S", 0.01)
        async with front(NetConfig(stalled_frame_timeout_ms=1), HeldBookie()) as here:
            slow, data = await here.connect(), add_frame(1, 0, size=LARGEST)
            for first, last in ((0, 8), (8, 300_000), (300_000, len(data) - 1), (len(data) - 1, len(data))):
                await slow.send(data[first:last])
                await asyncio.sleep(0.1)  # a hundred times the limit, ten looks
            await until(lambda: here.bookie.entries == 1)
            here.bookie.answer()
            assert await slow.codes(1) == [Code.OK]

    run(test)
