"""Callers of gRPC that begin calls and send nothing, or parts of messages: they go, and others are served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from bk_spark.protocol.proto import bookie_pb2 as pb
from bookie_server.net.common.limits import NetConfig
from bookie_server.net.grpc import places
from bookie_server.net.grpc.places import Place, Places
from tests.support import http2_peer as http2, patient_loop
from tests.support.front import HeldBookie
from tests.support.grpc_front import KEY, Caller, batch, caller, grpc_front
from tests.support.running_storage import stored

_METHODS = [f"/bk_spark.v1.Bookie/{name}" for name in ("Add", "Read", "Fence")] + ["/grpc.health.v1.Health/Check"]


class Peer:
    """Sends frames of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._received = b""

    def begin(self, streams: range, method: str, announced_bytes: int = 5_000_000) -> None:
        """Begin calls, each with a few bytes of a large message."""
        for stream in streams:
            self.writer.write(http2.call(stream, method))
            self.writer.write(http2.part_of_message(stream, announced_bytes, b"part"))

    async def ended(self, count: int) -> dict[int, bytes]:
        """Wait until that many of its calls have ended: by stream, how."""
        while True:
            found = {
                one.stream: one.payload
                for one in http2.frames(self._received)
                if one.kind == http2.HEADERS and one.flags & http2.END_STREAM
            }
            if len(found) >= count:
                return found
            data = await self._reader.read(1 << 16)
            assert data, "the bookie has closed the connection"
            self._received += data

    async def is_closed(self) -> bool:
        """Wait a moment. Whether the bookie has closed the connection."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(0.01):
                while await self._reader.read(1 << 16):
                    pass
                return True
        return False


@contextlib.asynccontextmanager
async def peer(port: int) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(http2.hello())
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()


async def adds(one: Caller, bookie: HeldBookie, ledger_id: int) -> pb.AddAnswer:
    """Add an entry."""
    call, before = one.stream("Add"), bookie.entries
    await call.write(batch(1, ledger_id, [stored(ledger_id, 0)], master_key=KEY))
    while bookie.entries <= before:
        await asyncio.sleep(0.005)
    bookie.answer()
    answer: pb.AddAnswer = await call.read()
    return answer


async def heard(one: Caller) -> Any:
    """A call of Read that had an answer. A busy test may be late with its first message."""
    while True:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            call = one.stream("Read")
            await call.write(pb.ReadRequest(request_id=1, ledger_id=1, first_entry_id=0, count=1))
            assert (await call.read()).request_id == 1
            return call


def test_calls_whose_first_message_never_comes_end() -> None:
    """Of methods with one request, too."""

    async def run() -> None:
        bookie = HeldBookie()
        config = NetConfig(frame_timeout_ms=200)
        async with asyncio.timeout(120), grpc_front(bookie, config) as front, contextlib.AsyncExitStack() as stack:
            one = await stack.enter_async_context(caller(front.port))
            slow = await stack.enter_async_context(peer(front.port))
            streams = {method: range(1 + 6 * i, 7 + 6 * i, 2) for i, method in enumerate(_METHODS)}
            for method, of_method in streams.items():
                slow.begin(of_method, method)
            ends = await slow.ended(3 * len(_METHODS))
            assert all(b"no whole message within 0.2 s" in end for end in ends.values()), ends
            while len(front.server.gate.places):
                await asyncio.sleep(0.005)
            # Whoever has sent a message may be quiet for longer.
            call = await heard(one)
            slow.begin(range(101, 103, 2), _METHODS[0])
            await slow.ended(3 * len(_METHODS) + 1)
            await call.write(pb.ReadRequest(request_id=2, ledger_id=1, first_entry_id=0, count=1))
            assert (await call.read()).request_id == 2
            call.cancel()

    patient_loop.run(run())


def test_a_later_message_that_never_comes_ends_the_call() -> None:
    async def run() -> None:
        config = NetConfig(grpc_message_timeout_ms=300)
        async with asyncio.timeout(120), grpc_front(HeldBookie(), config) as front, caller(front.port) as one:
            call = await heard(one)
            with pytest.raises(grpc.aio.AioRpcError, match="no whole message within 0.3 s") as late:
                await call.read()
            assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            while len(front.server.gate.places):
                await asyncio.sleep(0.005)

    patient_loop.run(run())


def test_n2_a_caller_that_stalls_on_all_calls_keeps_nobody_out() -> None:
    async def run() -> None:
        bookie = HeldBookie()
        async with asyncio.timeout(120), grpc_front(bookie, NetConfig(max_grpc_calls=8)) as front:
            async with peer(front.port) as slow, caller(front.port) as one:
                slow.begin(range(1, 25, 2), _METHODS[0])
                # Each of the last four took the place of one of the first.
                assert set(await slow.ended(4)) <= set(range(1, 9, 2))
                for ledger_id in range(1, 4):
                    assert (await adds(one, bookie, ledger_id)).code == pb.CODE_OK
                assert (await one.ask("GetInfo", pb.GetInfoRequest())).code == pb.CODE_OK
                assert all(b"quiet for longest" in end for end in (await slow.ended(8)).values())
            assert front.server.gate.places.evicted >= 8

    patient_loop.run(run())


def test_a_call_that_waits_for_answers_is_not_ended_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_LEAST_QUIET_S", 0.0)

    async def run() -> None:
        bookie = HeldBookie()
        config = NetConfig(max_grpc_calls=1)
        async with asyncio.timeout(120), grpc_front(bookie, config) as front, caller(front.port) as one:
            call = one.stream("Add")
            await call.write(batch(1, 1, [stored(1, 0)], master_key=KEY))
            while not bookie.entries:
                await asyncio.sleep(0.005)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await one.ask("GetInfo", pb.GetInfoRequest())
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            bookie.answer()
            assert (await call.read()).code == pb.CODE_OK

    patient_loop.run(run())


def test_connections_are_bounded() -> None:
    async def run() -> None:
        async with asyncio.timeout(120), grpc_front(HeldBookie(), NetConfig(max_grpc_connections=4)) as front:
            async with contextlib.AsyncExitStack() as stack:
                peers = [await stack.enter_async_context(peer(front.port)) for _ in range(10)]
                while sum([await each.is_closed() for each in peers]) < 6:
                    pass
                open_ones = [each for each in peers if not await each.is_closed()]
                assert len(open_ones) == 4
            async with caller(front.port) as one:
                while True:
                    with contextlib.suppress(grpc.aio.AioRpcError):  # the others are still being closed
                        assert (await one.ask("GetInfo", pb.GetInfoRequest())).code == pb.CODE_OK
                        return
                    await asyncio.sleep(0.05)

    patient_loop.run(run())


# --- the rule -----------------------------------------------------------------------------------


class Line:
    """Places, and who had to go."""

    def __init__(self, most: int) -> None:
        self.places = Places(most)
        self.gone: list[str] = []
        self.calls: dict[str, Place] = {}

    def enter(self, name: str, now_s: float = 0.0, *, waits: bool = True) -> bool:
        place = self.places.enter(now_s)
        if place is not None:
            self.calls[name] = place
            place.end = (lambda: self.gone.append(name)) if waits else None
        return place is not None


def test_who_goes() -> None:
    line = Line(3)
    assert all(map(line.enter, "abc"))
    line.places.on_message(line.calls["a"], 1.0)
    line.places.on_message(line.calls["c"], 2.0)
    assert line.enter("d", 5.0)
    assert line.enter("e", 5.0)
    assert line.gone == ["b", "d"], "those that have sent nothing, the oldest first"
    line.places.on_message(line.calls["e"], 5.0)
    assert line.enter("f", 6.5)
    assert line.gone == ["b", "d", "a"], "the one that is quiet for longest"
    line.places.on_message(line.calls["f"], 6.5)
    line.calls["c"].is_busy = lambda: True
    assert line.enter("g", 7.0)
    assert line.gone == ["b", "d", "a", "e"], "none that the bookie owes answers"
    line.places.leave(line.calls["g"])
    assert line.enter("h", 7.0, waits=False)
    assert not line.enter("i", 7.0), "all are busy, or were heard just now"
    assert len(line.places) == 3
