"""Calls over sockets: with gRPC's own server, and with peers that leave, break rules or take nothing."""

from __future__ import annotations

import ast
import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from bk_spark.bookie.connection.grpc import GrpcConnection
from bk_spark.bookie.connection.http2.call import Call, CallError
from bk_spark.bookie.connection.http2.channel import Channel
from bk_spark.bookie.connection.http2.line import Line
from bk_spark.bookie.connection.interface import ConnectionLimits
from bk_spark.protocol.wire.http2.frames import HEAD_BYTES, PREFACE, Kind, Setting, frame, number_frame, parse_head
from tests.support import patient_loop
from tests.support.http2_answers import answered, data, ended, prefixed, settings

MIB = 1024 * 1024


def run(play: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await play

    patient_loop.run(bounded())


class Server:
    """gRPC's, with methods Echo (messages both ways) and Wait (for ``go``)."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.waiting = self.cancelled = 0
        self.seen: set[str] = set()
        self.lines: list[Any] = []

    async def echo(self, _: object, context: Any) -> None:
        self.seen.add(context.peer())
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(message)

    async def asked(self, _: bytes, context: Any) -> bytes:
        """What the headers of the call say."""
        sizes = [len(value) for name, value in context.invocation_metadata() if name == "big-bin"]
        return repr((context.time_remaining(), sizes)).encode()

    async def wait(self, message: bytes, context: Any) -> bytes:
        self.seen.add(context.peer())
        self.waiting += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1
        return message


@asynccontextmanager
async def served(*options: tuple[str, int]) -> AsyncIterator[tuple[Server, Channel]]:
    one, server = Server(), grpc.aio.server(options=[("grpc.max_receive_message_length", -1), *options])
    methods = {
        "Echo": grpc.stream_stream_rpc_method_handler(one.echo),
        "Wait": grpc.unary_unary_rpc_method_handler(one.wait),
        "Asked": grpc.unary_unary_rpc_method_handler(one.asked),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with channel(port, one.lines) as made:
        yield one, made
    await server.stop(None)


@asynccontextmanager
async def channel(port: int, lines: list[Any] | None = None) -> AsyncIterator[Channel]:
    """``lines`` gets its connections."""

    async def connect(protocol: asyncio.BufferedProtocol) -> None:
        if lines is not None:
            lines.append(protocol)
        await asyncio.get_running_loop().create_connection(lambda: protocol, "127.0.0.1", port)

    made = Channel(connect, f"127.0.0.1:{port}", is_secure=False, max_message_bytes=8 * MIB)
    try:
        yield made
    finally:
        made.close()
        await made.wait_closed()


@asynccontextmanager
async def peer(
    *says: bytes, closes: bool = False, lines: list[Any] | None = None
) -> AsyncIterator[tuple[Channel, list[int]]]:
    """A peer that says something to each connection, takes nothing, and perhaps closes it. Also how many there were."""
    connections: list[int] = []
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(len(connections))
        writers.append(writer)
        await reader.readexactly(24)
        writer.write(b"".join(says))
        if closes:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=64)
    async with channel(server.sockets[0].getsockname()[1], lines) as made:
        yield made, connections
    for writer in writers:
        writer.transport.abort()
    server.close()
    await server.wait_closed()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_messages_both_ways() -> None:
    """Of all sizes, many at a time, and larger than the server's windows."""

    async def play() -> None:
        async with served() as (_, made):
            messages = [os.urandom(size) for size in (0, 1, 100_000, 7 * MIB, 3, 5 * MIB)]
            call = made.begin("/t.T/Echo")

            async def write() -> None:
                for message in messages:
                    await call.write(message)
                await call.done_writing()

            writing = asyncio.create_task(write())
            for message in messages:
                got = await call.read()
                assert got is not None
                assert bytes(got) == message
            assert await call.read() is None
            await writing
            with pytest.raises(CallError, match="ended"):
                await call.write(b"late")

    run(play())


def test_a_message_that_is_too_long_ends_the_call() -> None:
    async def play() -> None:
        async with served() as (_, made):
            call = made.begin("/t.T/Echo")
            await call.write(bytes(9 * MIB))
            with pytest.raises(CallError, match="nettyMaxFrameSizeBytes"):
                await call.read()

    run(play())


def test_headers_larger_than_a_frame_and_those_that_the_server_does_not_take() -> None:
    async def play() -> None:
        big = (("big-bin", bytes(30_000)),)
        async with served(("grpc.max_metadata_size", 64 * 1024)) as (_, made):
            assert await made.ask("/t.T/Asked", b"", big) == b"(None, [30000])"
        async with served() as (server, made):
            await made.ask("/t.T/Asked", b"")  # the server has said what it takes
            with pytest.raises(CallError, match="RESOURCE_EXHAUSTED: the headers of a call have 40"):
                await made.ask("/t.T/Asked", b"", big)
            # Others of the same connection are not harmed.
            assert await made.ask("/t.T/Asked", b"") == b"(None, [])"
            assert len(server.lines) == 1

    run(play())


def test_a_server_is_told_how_long_a_call_may_take() -> None:
    async def play() -> None:
        async with served() as (server, made):
            left, _ = ast.literal_eval((await made.ask("/t.T/Asked", b"", (), 65_000)).decode())
            assert 0 < left <= 65
            # A server stops working for a client that is gone without a word.
            call = made.begin("/t.T/Wait", (), 500)
            await call.write(b"", ends=True)
            with pytest.raises(CallError, match="DEADLINE_EXCEEDED"):
                await call.read()
            await until(lambda: server.cancelled == 1)

    run(play())


def test_calls_wait_for_room_and_those_given_up_give_it() -> None:
    async def play() -> None:
        async with served(("grpc.max_concurrent_streams", 3)) as (server, made):
            server.go.set()
            await made.ask("/t.T/Wait", b"first")  # the server has said how many calls it takes
            server.go.clear()
            asked = [asyncio.create_task(made.ask("/t.T/Wait", b"%d" % i)) for i in range(10)]
            await until(lambda: server.waiting == 3)
            for task in (asked[0], asked[9]):
                task.cancel()
            await until(lambda: (server.cancelled, server.waiting) == (1, 3))
            server.go.set()
            assert [await task for task in asked[1:9]] == [b"%d" % i for i in range(1, 9)]
            assert len(server.seen) == 1

    run(play())


def test_a_server_that_closes_idle_connections_is_called_again() -> None:
    """A bookie does so after three seconds. Nobody is told of a loss."""

    async def play() -> None:
        async with served(("grpc.max_connection_idle_ms", 50)) as (server, made):
            server.go.set()
            for i in range(3):
                assert await made.ask("/t.T/Wait", b"x") == b"x"
                await server.lines[i].lost
                assert len(server.seen) == i + 1

    run(play())


def test_a_peer_that_says_goodbye_is_left_when_its_last_call_is_given_up() -> None:
    """Otherwise the socket would stay, for as long as the peer likes."""

    async def play() -> None:
        lines: list[Any] = []
        goodbye = frame(Kind.GOAWAY, 0, 0, (1).to_bytes(4, "big") + bytes(4))
        async with peer(settings(), goodbye, lines=lines) as (made, _):
            asked = asyncio.create_task(made.ask("/t.T/Wait", b"x"))
            await until(lambda: bool(lines) and lines[0].http2.is_leaving)
            assert not asked.done()
            assert not lines[0].lost.done()
            asked.cancel()
            await lines[0].lost

    run(play())


def test_a_peer_that_closes_each_connection_is_not_called_for_ever() -> None:
    """It closes them before a call could begin, as what balances load may do for a bookie that is down."""

    async def play() -> None:
        count = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal count
            count += 1
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]

        async def connect(protocol: asyncio.BufferedProtocol) -> None:
            await asyncio.get_running_loop().create_connection(lambda: protocol, "127.0.0.1", port)
            assert isinstance(protocol, Line)
            await protocol.lost

        made = Channel(connect, "peer:1", is_secure=False, max_message_bytes=MIB)
        async with asyncio.timeout(30):
            with pytest.raises(CallError, match="UNAVAILABLE: the (peer closed|connection broke)"):
                await made.ask("/t.T/Wait", b"x")
        assert count == 1
        made.close()
        await made.wait_closed()
        server.close()
        await server.wait_closed()

    run(play())


def test_calls_beyond_the_numbers_of_a_connection_get_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, while all calls of the first go on."""
    monkeypatch.setattr("bk_spark.protocol.wire.http2.connection.MAX_STREAM", 5)

    async def play() -> None:
        async with served() as (server, made):
            server.go.set()
            await made.ask("/t.T/Wait", b"first")
            server.go.clear()
            asked = [asyncio.create_task(made.ask("/t.T/Wait", b"%d" % i)) for i in range(6)]
            await until(lambda: server.waiting == 6)
            assert len(server.seen) == 3
            server.go.set()
            assert [await task for task in asked] == [b"%d" % i for i in range(6)]

    run(play())


def test_calls_that_were_given_up_before_they_began_are_forgotten() -> None:
    """A peer that takes no calls keeps none of them in memory."""

    async def given_up(made: Channel) -> None:
        asked = [asyncio.create_task(made.ask("/t.T/Wait", b"x")) for _ in range(50)]
        await asyncio.sleep(0)
        for task in asked:
            task.cancel()
        await asyncio.wait(asked)

    async def play() -> None:
        lines: list[Any] = []
        async with peer(settings({Setting.MAX_CONCURRENT_STREAMS: 1}), lines=lines) as (made, _):
            first = asyncio.create_task(made.ask("/t.T/Wait", b"x"))
            await until(lambda: bool(lines) and not lines[0].http2.can_begin)
            await given_up(made)
            gc.collect()
            assert sum(isinstance(one, Call) for one in gc.get_objects()) == 1
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)

    run(play())


def test_a_message_that_nobody_takes_is_watched_while_others_come_and_go() -> None:
    """The watch over an add does not end with the read that was sent meanwhile."""

    async def play() -> None:
        async with peer(settings()) as (made, _):
            connection = GrpcConnection("b:1", ConnectionLimits(silence_ms=100), made)
            add, read = connection.sending(), connection.sending()
            with add:
                await asyncio.sleep(0.06)  # most of the time that it may take
                connection.heard()
                with read:
                    await asyncio.sleep(0.06)  # the add is given more time meanwhile
                await until(lambda: connection.closed)
            await connection.wait_closed()

    run(play())


def test_a_peer_that_leaves_fails_calls_and_the_next_one_connects() -> None:
    async def play() -> None:
        async with peer(settings(), answered(1), closes=True) as (made, connections):
            for count in (1, 2):
                call = made.begin("/t.T/Echo")
                with pytest.raises(CallError, match="UNAVAILABLE") as caught:
                    await call.read()
                assert caught.value.status == "UNAVAILABLE"
                assert len(connections) == count

    run(play())


@pytest.mark.parametrize(
    ("says", "match"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak HTTP/2"),
        (settings() + answered(1) + data(1, b"\x01\0\0\0\x01a"), "compressed"),
        (settings() + answered(1) + ended(1, b"16", b"who%3f"), "UNAUTHENTICATED: who?"),
    ],
)
def test_what_a_peer_says(says: bytes, match: str) -> None:
    async def play() -> None:
        async with peer(says) as (made, _):
            with pytest.raises(CallError, match=match):
                await made.ask("/t.T/Wait", b"x")

    run(play())


def test_an_answer_that_is_not_one_message() -> None:
    async def play() -> None:
        for content in (b"", prefixed(b"a") + prefixed(b"b")):
            async with peer(settings(), answered(1), data(1, content), ended(1)) as (made, _):
                with pytest.raises(CallError, match="not one message"):
                    await made.ask("/t.T/Wait", b"x")

    run(play())


def test_a_peer_that_takes_nothing_keeps_one_message_at_most() -> None:
    """What is written beyond its window waits, until the channel is closed."""

    async def play() -> None:
        async with peer(settings()) as (made, _):
            call = made.begin("/t.T/Echo")
            writing = asyncio.create_task(call.write(bytes(MIB)))
            done, _pending = await asyncio.wait({writing}, timeout=0.2)
            assert not done
            made.close()
            with pytest.raises(CallError, match="closed"):
                await writing
            with pytest.raises(CallError, match="closed"):
                await made.ask("/t.T/Wait", b"x")

    run(play())


def test_calls_take_turns_when_the_peer_takes_little() -> None:
    """A small request does not wait for the end of a large message."""

    async def play() -> None:
        got, peers = bytearray(), []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peers.append(writer)
            writer.write(settings({Setting.INITIAL_WINDOW_SIZE: 4 * MIB}))
            while received := await reader.read(65_536):
                got.extend(received)

        def streams() -> list[int]:
            """Whose messages have come, whole frames only."""
            at, found = len(PREFACE), []
            while len(got) - at >= HEAD_BYTES:
                size, kind, _, stream = parse_head(memoryview(bytes(got)), at)
                if kind == Kind.DATA and at + HEAD_BYTES + size <= len(got):
                    found.append(stream)
                at += HEAD_BYTES + size
            return found

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with channel(server.sockets[0].getsockname()[1]) as made:
            large = asyncio.create_task(made.begin("/t.T/Echo").write(bytes(MIB)))
            await until(lambda: len(streams()) == 4)  # the window of the connection, 65,535 bytes
            small = asyncio.create_task(made.ask("/t.T/Wait", b"x"))
            await until(lambda: got.count(b"/t.T/Wait") == 1)
            for count in range(5, 8):
                peers[0].write(number_frame(Kind.WINDOW_UPDATE, 0, 1_000))
                await until(lambda count=count: len(streams()) >= count)  # type: ignore[misc]
            assert 3 in streams()
            assert not large.done()
            made.close()
            await asyncio.gather(large, small, return_exceptions=True)
        peers[0].transport.abort()
        server.close()
        await server.wait_closed()

    run(play())


def test_nobody_there() -> None:
    async def play() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            async with channel(taken.getsockname()[1]) as made:
                with pytest.raises(CallError, match="UNAVAILABLE: cannot connect"):
                    await made.ask("/t.T/Wait", b"x")

    run(play())
