"""Callers of gRPC come in lines, by their address: who floods the bookie keeps those in other lines from nothing."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from bk_spark.protocol.proto import bookie_pb2 as pb
from bookie_server.net.common.limits import NetConfig
from bookie_server.net.grpc import lines
from bookie_server.net.grpc.lines import check_free, choose_by_address, line_count
from bookie_server.net.grpc.server import GrpcServer
from tests.support import http2_peer as http2, patient_loop
from tests.support.front import HeldBookie
from tests.support.grpc_front import grpc_front

_LINES: Final = 8
_OF_LINE: Final = 128
_SECRET: Final = (0x9E3779B1, 0x85EBCA6B, 0x12345678)
_GET_INFO: Final = "/bk_spark.v1.Bookie/GetInfo"


@pytest.fixture(autouse=True)
def known_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the test knows which addresses share a line."""
    drawn: list[int] = []

    def draw(bits: int) -> int:
        assert bits == 32
        drawn.append(_SECRET[len(drawn) % 3])
        return drawn[-1]

    monkeypatch.setattr(lines.secrets, "randbits", draw)


def line_of(address: str, count: int = _LINES) -> int:
    """The line of an address, as the program should choose it."""
    spread, spread_network, salt = _SECRET
    whole = ipaddress.ip_address(address)
    number = int(whole)
    if whole.version == 6:
        number = ((number >> 96) * spread_network) ^ ((number >> 64) & 0xFFFFFFFF)
    mixed = ((number ^ salt) & 0xFFFFFFFF) * spread & 0xFFFFFFFF
    return (mixed >> 16) * count >> 16


def elsewhere_than(address: str) -> str:
    """An address of this machine that has another line."""
    return next(found for found in (f"127.0.0.{i}" for i in range(3, 250)) if line_of(found) != line_of(address))


@contextlib.contextmanager
def listening(host: str, count: int) -> Iterator[list[socket.socket]]:
    """Sockets that share a port, with the program."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        port, found = 0, []
        for number in range(count):
            one = stack.enter_context(socket.socket(family))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind((host, port))
            one.listen()
            one.settimeout(30)
            port = one.getsockname()[1]
            found.append(one)
            if number == 0:
                choose_by_address(port, count)
        yield found


def accepted_by(listeners: list[socket.socket], host: str, source: str) -> int:
    """Connect from an address. Which of the sockets has it?"""
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    with socket.socket(family) as peer:
        peer.bind((source, 0))
        peer.connect((host, listeners[0].getsockname()[1]))
        for listener in listeners:
            listener.setblocking(False)
        while True:
            for number, listener in enumerate(listeners):
                with contextlib.suppress(BlockingIOError):
                    listener.accept()[0].close()
                    return number


@pytest.mark.parametrize("host", ["127.0.0.1", "::"])
def test_the_kernel_chooses_the_line_by_the_callers_address(host: str) -> None:
    with listening(host, _LINES) as listeners:
        seen = set()
        for number in range(1, 60):
            source = f"127.{number % 7}.{number * 5 % 250}.{number}"
            found = {accepted_by(listeners, "127.0.0.1", source) for _ in range(2)}
            assert found == {line_of(source)}
            seen |= found
        assert seen == set(range(_LINES))


def test_the_kernel_chooses_the_line_by_the_callers_network() -> None:
    with listening("::1", _LINES) as listeners:
        assert {accepted_by(listeners, "::1", "::1") for _ in range(3)} == {line_of("::1")}
    # Whoever has one address has all of its network.
    assert line_of("2001:db8:1:2::1") == line_of("2001:db8:1:2:3:4:5:6")
    assert len({line_of(f"2001:db8:1:{i:x}::1") for i in range(100)}) == _LINES


def test_how_many_lines() -> None:
    assert [line_count(8, connections) for connections in (1, 128, 256, 600, 4_000)] == [1, 1, 2, 4, 8]


def test_a_port_that_others_use_is_not_shared() -> None:
    with listening("127.0.0.1", 1) as (listener,):
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "0.0.0.0", "localhost"):
            with pytest.raises(OSError, match="in use"):
                check_free(host, port)
    check_free("127.0.0.1", port)

    async def run() -> None:
        async with asyncio.timeout(120), grpc_front(HeldBookie()) as front:
            second = GrpcServer(front.native.shared)
            with pytest.raises(OSError, match="in use"):
                await second.start("127.0.0.1", front.port)
            await second.close()

    patient_loop.run(run())


def test_a_kernel_that_does_not_choose(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """There is one line then, for all connections that there may be."""
    monkeypatch.setattr(lines, "line_program", lambda *_: b"")  # refused by the kernel

    async def run() -> None:
        config = NetConfig(max_grpc_connections=256, grpc_lines=2)
        async with asyncio.timeout(120), grpc_front(HeldBookie(), config) as front:
            with contextlib.ExitStack() as stack:
                for _ in range(200):
                    _peer(stack, front.port, "127.0.0.1")
                assert await _answered(front.port, "127.0.0.1")

    with caplog.at_level(logging.WARNING):
        patient_loop.run(run())
    assert "callers of gRPC have one line" in caplog.text


def test_who_takes_all_connections_of_a_line_keeps_those_in_others_from_nothing() -> None:
    async def run() -> None:
        config = NetConfig(max_grpc_connections=_OF_LINE * _LINES, grpc_lines=_LINES)
        async with asyncio.timeout(120), grpc_front(HeldBookie(), config) as front:
            with contextlib.ExitStack() as stack:
                for _ in range(_OF_LINE):
                    peer = _peer(stack, front.port, "127.0.0.2")
                    peer.setblocking(False)
                    await asyncio.get_running_loop().sock_recv(peer, 1)  # it has been greeted
                assert not await _answered(front.port, "127.0.0.2")
                assert await _answered(front.port, elsewhere_than("127.0.0.2"))

    patient_loop.run(run())


def test_n2_who_begins_many_calls_keeps_those_in_other_lines_waiting_for_none_of_them() -> None:
    async def run() -> None:
        config = NetConfig(max_grpc_connections=_OF_LINE * _LINES, grpc_lines=_LINES)
        async with asyncio.timeout(120), grpc_front(HeldBookie(), config) as front:
            assert await _answered(front.port, elsewhere_than("127.0.0.2"))
            with contextlib.ExitStack() as stack:
                before = front.server.gate.counters.calls
                for _ in range(5):
                    calls = b"".join(http2.call(stream, _GET_INFO) for stream in range(1, 401, 2))
                    _peer(stack, front.port, "127.0.0.2").sendall(calls)
                time.sleep(0.3)  # gRPC's threads receive all of them, while the event loop takes none
                assert await _answered(front.port, elsewhere_than("127.0.0.2"))
                assert front.server.gate.counters.calls - before < 500

    patient_loop.run(run())


def _peer(stack: contextlib.ExitStack, port: int, source: str) -> socket.socket:
    peer = stack.enter_context(socket.socket())
    peer.bind((source, 0))
    peer.connect(("127.0.0.1", port))
    peer.sendall(http2.hello())
    return peer


async def _answered(port: int, source: str) -> bool:
    """Call over a new connection. False if that is closed."""
    message = pb.GetInfoRequest().SerializeToString()
    whole = http2.frame(http2.DATA, http2.END_STREAM, 1, b"\0" + len(message).to_bytes(4, "big") + message)
    loop, received = asyncio.get_running_loop(), b""
    with contextlib.ExitStack() as stack:
        peer = _peer(stack, port, source)
        peer.setblocking(False)
        with contextlib.suppress(ConnectionError):
            await loop.sock_sendall(peer, http2.call(1, _GET_INFO) + whole)
            while True:
                data: Any = await loop.sock_recv(peer, 1 << 16)
                received += data
                if any(one.kind == http2.DATA for one in http2.frames(received)):
                    return True
                if not data:
                    break
    return False
