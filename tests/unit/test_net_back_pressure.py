"""Peers that write faster than entries come to entry logs: real sockets, a real storage, a disk that waits or fails."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bk_spark.protocol.codes import Code
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.framing import ReceiveBuffer
from bookie_server.net.common.limits import NetConfig
from bookie_server.net.native.server import NativeServer
from tests.support.bookie import add_frame
from tests.support.disk_faults import fail_at, hold_at
from tests.support.failing_os import FailingOs
from tests.support.running_storage import Place, Running, in_loop, running

MIB = 1 << 20
CONFIG = NetConfig(adds_high_bytes=2 * MIB, adds_low_bytes=MIB, close_timeout_ms=1000)
ENTRY_BYTES = 10_000


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.make(tmp_path / "bookie", write_cache_bytes=MIB, flush_interval_ms=50)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingOs:
    return FailingOs(monkeypatch)


class Peer:
    """Writes entries as fast as they are taken, and counts what is answered."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._received = ReceiveBuffer(64 * MIB)
        self.codes: list[int] = []
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, entries: int) -> None:
        self._tasks = [asyncio.ensure_future(self._write(entries)), asyncio.ensure_future(self._receive())]

    async def read(self, entry_id: int) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._socket, wire_v2.read_requests(1, [entry_id]))

    async def answered(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.codes) < count:
                await asyncio.sleep(0.01)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(self, entries: int) -> None:
        loop = asyncio.get_running_loop()
        for entry_id in range(entries):
            await loop.sock_sendall(self._socket, add_frame(1, entry_id, size=ENTRY_BYTES))

    async def _receive(self) -> None:
        loop = asyncio.get_running_loop()
        while count := await loop.sock_recv_into(self._socket, self._received.get_buffer()):
            for body in self._received.received(count) or ():
                self.codes.append(int.from_bytes(body[4:8], "big"))


@contextlib.asynccontextmanager
async def served(bookie: Running, config: NetConfig = CONFIG) -> AsyncIterator[tuple[NativeServer, Peer]]:
    server = NativeServer(bookie.bookie, disk_space=lambda: None, config=config)
    with socket.socket() as listener, socket.socket() as connected:
        listener.bind(("127.0.0.1", 0))
        await server.start(listener)
        connected.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connected, listener.getsockname())
        peer = Peer(connected)
        try:
            yield server, peer
        finally:
            await peer.end()
            await server.close()


async def full(server: NativeServer) -> None:
    async with asyncio.timeout(60):
        while not server.load.full or server.load.adds:
            await asyncio.sleep(0.01)


@in_loop
async def test_memory_stays_bounded_while_a_flush_takes_long(place: Place, disk: FailingOs) -> None:
    """Journals go on, entry logs wait: without a bound the active half would take all that is sent. Once the flush
    has taken it, the bookie reads on, though no add is outstanding that could wake it."""
    async with running(place) as bookie, served(bookie) as (server, peer):
        block = hold_at(disk, "fdatasync", ".log")
        try:
            peer.begin(2000)
            await full(server)
            cache = bookie.storage.write_cache
            assert cache.active.size_bytes < MIB + CONFIG.adds_high_bytes + 2 * MIB
            assert len(peer.codes) < 1000
        finally:
            block.release()
        await peer.answered(2000)
        assert set(peer.codes) == {0}
        async with asyncio.timeout(30):  # until a flush has taken the last of them
            while server.load.full:
                await asyncio.sleep(0.01)


@in_loop
async def test_reads_are_served_while_flushes_fail_and_memory_is_full(place: Place, disk: FailingOs) -> None:
    """The sockets are read again, for adds are refused then; what was acknowledged can be read."""
    async with running(place, clean_end=False) as bookie, served(bookie) as (server, peer):
        block = hold_at(disk, "pwritev", ".log")
        peer.begin(2000)
        await full(server)
        fail_at(disk, "pwritev", ".log", errno.ENOSPC)
        block.release(errno.ENOSPC)
        await peer.answered(2000)
        acknowledged = peer.codes.index(Code.READ_ONLY.v2)
        assert set(peer.codes[:acknowledged]) == {0}
        assert set(peer.codes[acknowledged:]) == {Code.READ_ONLY.v2}
        await peer.read(acknowledged - 1)
        await peer.answered(2001)
        assert peer.codes[-1] == 0
