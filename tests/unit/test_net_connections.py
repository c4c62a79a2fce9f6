"""As many connections as may be: newcomers take the place of who does nothing. Open files are shared among parts."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bk_spark.protocol.codes import Code
from bk_spark.protocol.wire import wire_v2
from bookie_server.disks.open_files import share_open_files
from bookie_server.net.common.connections import Connections
from bookie_server.net.common.limits import NetConfig, connection_limit
from bookie_server.storage.fd_cache import FdCache
from tests.support.bookie import add_frame
from tests.support.front import HeldBookie, front, reads, run, until


class Peer:
    def __init__(self, busy: bool = False) -> None:
        self.busy = busy


def test_who_sent_nothing_goes_first_and_then_the_idlest() -> None:
    connections: Connections[Peer] = Connections(4, idle_s=1)
    a, b, c, d = (Peer() for _ in range(4))
    for peer in (a, b, c, d):
        assert not connections.full
        connections.add(peer)
    assert connections.full
    connections.active(a, now=10)
    assert connections.idlest(now=10) is b
    connections.remove(b)
    assert connections.idlest(now=10) is c
    for now, peer in ((11, c), (12, d), (13, a)):
        connections.active(peer, now)
    assert connections.idlest(now=11.9) is None  # nobody is idle for so long
    assert connections.idlest(now=12) is c
    connections.active(b, now=99)  # it was removed
    assert len(connections) == 3
    assert set(connections) == {a, c, d}


def test_who_is_busy_stays_and_is_not_looked_at_again_soon() -> None:
    connections: Connections[Peer] = Connections(100, idle_s=1)
    peers = [Peer(busy=i < 80) for i in range(100)]
    for peer in peers:
        connections.add(peer)
        connections.active(peer, now=0)
    assert connections.idlest(now=5) is None
    assert connections.idlest(now=5) is peers[80]
    peers[3].busy = False
    assert connections.idlest(now=5) is peers[80]


def test_a_small_answer_does_not_wait_until_the_one_before_is_acknowledged() -> None:
    """A peer that has nothing to send acknowledges after 40 ms: Apache's client recovered 66 entries a second."""

    async def test() -> None:
        async with front(NetConfig(), HeldBookie()) as here:
            await here.connect()
            await until(lambda: here.server.connection_count == 1)
            for connection in here.server._connections:
                accepted = connection._transport.get_extra_info("socket")
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1

    run(test)


def test_n1_a_newcomer_takes_the_place_of_an_idle_connection() -> None:
    async def test() -> None:
        async with front(NetConfig(max_connections=20, idle_before_eviction_ms=0), HeldBookie()) as here:
            adding, working = await here.connect(), await here.connect()
            await adding.send(add_frame(1, 0))
            await until(lambda: here.bookie.entries == 1)
            await working.send(reads((1, 1)))
            assert await working.codes(1) == [Code.OK]
            idle = [await here.connect() for _ in range(18)]
            await until(lambda: here.server.connection_count == 20)
            for i in range(100):
                newcomer = await here.connect()
                await newcomer.send(reads((1, i)))
                assert await newcomer.codes(1) == [Code.OK]
                await working.send(reads((1, i)))
                assert await working.codes(1) == [Code.OK]
                newcomer.socket.close()
                idle.append(await here.connect())
                await until(lambda: here.server.connection_count == 20)
            for peer in idle[:50]:
                assert await peer.closed()
            assert here.server.evicted_connections >= 100
            assert here.server.rejected_connections == 0
            here.bookie.answer()
            assert await adding.codes(1) == [Code.OK]

    run(test)


def test_where_all_connections_are_in_use_a_further_one_is_closed() -> None:
    async def test() -> None:
        async with front(NetConfig(max_connections=3, idle_before_eviction_ms=60_000), HeldBookie()) as here:
            peers = [await here.connect() for _ in range(3)]
            for peer in peers:
                await peer.send(wire_v2.read_requests(1, [1]))
                assert await peer.codes(1) == [Code.OK]
            assert await (await here.connect()).closed()
            assert here.server.rejected_connections == 1
            peers[0].socket.close()
            await until(lambda: here.server.connection_count == 2)
            again = await here.connect()
            await again.send(wire_v2.read_requests(1, [1]))
            assert await again.codes(1) == [Code.OK]

    run(test)


@pytest.mark.parametrize("limit", [64, 200, 256, 1024, 4096, 20_000, 1 << 20, resource.RLIM_INFINITY])
def test_open_files_are_shared_so_that_none_takes_anothers(limit: int) -> None:
    share = share_open_files(limit)
    assert min(share.index_files, share.entry_logs) >= 8
    assert share.connections >= 16
    if limit >= 256:
        assert share.connections >= 64
        if limit != resource.RLIM_INFINITY:
            assert share.index_files + share.entry_logs + share.connections + 128 <= limit
    if limit >= 20_000 or limit == resource.RLIM_INFINITY:
        assert (share.index_files, share.entry_logs, share.connections) == (256, 256, 10_000)


def test_how_many_connections_there_may_be_follows_from_open_files() -> None:
    assert connection_limit(7) == 7
    assert connection_limit(0) == share_open_files().connections


def test_where_no_descriptor_is_left_the_least_used_file_is_closed_for_the_next(
    tmp_path: Path, lower_open_files: Callable[[int], None]
) -> None:
    for i in range(40):
        (tmp_path / str(i)).write_text(str(i))
    cache = FdCache(1000, lambda i: os.open(tmp_path / str(i), os.O_RDONLY))
    lower_open_files(10)
    for _ in range(2):
        for i in range(40):
            with cache.borrow(i) as fd:
                assert os.pread(fd, 9, 0) == str(i).encode()
    cache.close()


@pytest.fixture
def lower_open_files() -> Iterator[Callable[[int], None]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def lower(more: int) -> None:
        """Let the process open ``more`` files than it has."""
        highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + more, hard))

    yield lower
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
