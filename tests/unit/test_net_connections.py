"""As many connections as may be: newcomers take the place of who does nothing. Open files are shared among parts."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import resource
import socket
import struct
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from operator import methodcaller
from pathlib import Path

import pytest

from bk_spark.protocol.codes import Code
from bk_spark.protocol.wire import wire_v2
from bookie_server.disks.open_files import share_connections, share_open_files
from bookie_server.net.common.connections import Connections
from bookie_server.net.common.entrance.newcomers import Newcomer, Newcomers
from bookie_server.net.common.limits import NetConfig, connection_limit
from bookie_server.net.native.connection import NativeConnection
from bookie_server.storage.disk.fd_cache import FdCache
from tests.support.bookie import add_frame
from tests.support.front import Front, HeldBookie, front, poll, reads, run, until, v3_add
from tests.unit.test_net_fair_slots import Turns


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
            peer = await here.connect()
            await peer.send(reads((1, 1)))
            assert await peer.codes(1) == [Code.OK]
            assert here.socket_options(socket.IPPROTO_TCP, socket.TCP_NODELAY) == [1]

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
                await until(lambda: here.server.connection_count == 19)
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


@pytest.mark.parametrize("limit", [64, 200, 1024, 4096, 20_000, 1 << 20, resource.RLIM_INFINITY])
def test_grpc_has_a_share_of_the_connections(limit: int) -> None:
    alone = share_open_files(limit)
    native, of_grpc = share_connections(limit)
    assert min(native, of_grpc) >= 4
    assert of_grpc <= 4_000
    if limit >= 256 and limit != resource.RLIM_INFINITY:
        assert alone.index_files + alone.entry_logs + native + of_grpc + 128 <= limit
    if limit >= 20_000 or limit == resource.RLIM_INFINITY:
        assert (native, of_grpc) == (10_000, 4_000)


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


def test_n1_connections_that_are_gone_leave_nothing_to_collect() -> None:
    """A collection of everything stops the event loop for tens of milliseconds, so it is seldom."""

    async def test() -> None:
        bookie = HeldBookie()
        async with front(NetConfig(), bookie) as here:
            gone: list[weakref.ref[NativeConnection]] = []
            gc.collect()
            gc.disable()
            try:
                for request, under_way in (
                    (add_frame(1, 0), lambda: bookie.entries == 1),
                    (v3_add(1), lambda: bookie.entries == 1),
                    (wire_v2.read_requests(1, range(5)), lambda: bookie.reads == 5),
                    (poll(1), lambda: here.server.load.polls == 1),
                    (bytes(3), lambda: len(here.connections) == 1),
                ):
                    peer = await here.connect()
                    await peer.send(request)
                    await until(under_way)
                    bookie.answer()
                    gone += map(weakref.ref, here.connections)
                    peer.socket.close()
                    await until(lambda: here.server.connection_count == 0)
                    del peer
                assert len(gone) == 5
                await until(lambda: [one() for one in gone] == [None] * 5)
            finally:
                gc.enable()

    run(test)


def note_newcomers(monkeypatch: pytest.MonkeyPatch, note: Callable[[Newcomer], None]) -> None:
    """Call ``note`` with each newcomer that is taken."""
    add = Connections.add_newcomer

    def add_noted(connections: Connections[NativeConnection], newcomer: Newcomer) -> None:
        note(newcomer)
        add(connections, newcomer)

    monkeypatch.setattr(Connections, "add_newcomer", add_noted)


def test_n1_many_connections_that_say_nothing_cost_little_and_leave_when_they_hang_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bare socket each: no buffers, no handlers; a few are accepted in a turn of the event loop."""

    async def test() -> None:
        async with front(NetConfig(max_connections=600), HeldBookie()) as here:
            turns, by_turn = Turns(), Counter[int]()

            def note(newcomer: Newcomer) -> None:
                by_turn[turns.count] += 1

            note_newcomers(monkeypatch, note)
            idle = [socket.create_connection(("127.0.0.1", here.port)) for _ in range(500)]  # all in one turn
            await until(lambda: here.server.connection_count == 500)
            assert by_turn.total() == 500
            assert max(by_turn.values()) <= 16
            assert not here.connections
            honest = await here.connect()
            await honest.send(reads((1, 1)))
            assert await honest.codes(1) == [Code.OK]
            for peer in idle[:250]:
                peer.close()
            await until(lambda: here.server.connection_count == 251)
            for peer in idle[250:]:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                peer.close()  # with a reset
            await until(lambda: here.server.connection_count == 1)
            turns.stop()

    run(test)


def count_joins(here: Front, turns: Turns) -> Counter[int]:
    """Count the newcomers that become connections from now on, by turn of the event loop."""
    by_turn = Counter[int]()
    joins = here.server.joins

    def note(connection: NativeConnection) -> bool:
        by_turn[turns.count] += 1
        return joins(connection)

    here.server.joins = note  # type: ignore[method-assign]
    return by_turn


def test_n1_a_burst_of_first_requests_becomes_connections_a_few_in_a_turn() -> None:
    """Each takes its time, and other clients' requests are handled in between."""

    async def test() -> None:
        async with front(NetConfig(), HeldBookie()) as here:
            honest = await here.connect()
            await honest.send(reads((1, 1)))
            assert await honest.codes(1) == [Code.OK]
            peers = [await here.connect() for _ in range(300)]
            await until(lambda: here.server.connection_count == 301)
            turns = Turns()
            by_turn = count_joins(here, turns)
            for peer in peers:  # all of them in one turn
                assert peer.socket.send(reads((1, 1))) > 0
            await honest.send(reads((1, 1)))
            assert await honest.codes(1) == [Code.OK]
            assert by_turn.total() < 100  # it did not wait for all of them
            for peer in peers:
                assert await peer.codes(1) == [Code.OK]
            assert max(by_turn.values()) <= 4
            turns.stop()

    run(test)


def test_n1_a_newcomer_with_a_request_waits_for_few_turns_of_the_event_loop() -> None:
    """One to be accepted and heard, one to get a transport, one to be read. Under attack each takes milliseconds."""

    async def test() -> None:
        async with front(NetConfig(), HeldBookie()) as here:
            turns = Turns()
            by_turn = count_joins(here, turns)
            with socket.create_connection(("127.0.0.1", here.port)) as newcomer:
                newcomer.sendall(reads((1, 1)))
                begun = turns.count
                await until(lambda: by_turn.total() == 1)
            assert max(by_turn) - begun <= 3
            turns.stop()

    run(test)


def test_n1_newcomers_come_one_by_one() -> None:
    async def test() -> None:
        async with front(NetConfig(), HeldBookie()) as here:
            peers = [await here.connect() for _ in range(50)]
            turns = Turns()
            by_turn = count_joins(here, turns)
            for peer in peers:
                assert peer.socket.send(reads((1, 1))) > 0
            for peer in peers:  # and yet all of them come
                assert await peer.codes(1) == [Code.OK]
            assert set(by_turn.values()) == {1}
            assert min(after - before for before, after in itertools.pairwise(sorted(by_turn))) >= 2
            turns.stop()

    run(test)


class ReadBookie(HeldBookie):
    """Notes in which turn of the event loop the first entry was read, and what the peer had in the turn after it."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = Turns()
        self.read_at = 0
        self.peer: socket.socket | None = None
        self.had: bytes | None = None

    def read_now(self, ledger_id: int, entry_id: int) -> tuple[Code, bytes]:
        self.read_at = self.turns.count
        asyncio.get_running_loop().call_soon(self._look)
        return super().read_now(ledger_id, entry_id)

    def _look(self) -> None:
        assert self.peer is not None
        try:
            self.had = self.peer.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            self.had = b""


def test_n1_a_newcomers_request_is_read_and_answered_when_it_gets_a_transport() -> None:
    """Each further turn of the event loop takes as long as what others do in it."""

    async def test() -> None:
        bookie = ReadBookie()
        async with front(NetConfig(), bookie) as here:
            with socket.create_connection(("127.0.0.1", here.port)) as newcomer:
                bookie.peer = newcomer
                newcomer.sendall(reads((1, 1)))
                begun = bookie.turns.count
                await until(lambda: bookie.had is not None)
                assert bookie.read_at - begun <= 3
                assert bookie.had != b""
            bookie.turns.stop()

    run(test)


def test_n1_what_is_in_memory_is_answered_in_the_turn_in_which_the_request_came() -> None:
    async def test() -> None:
        bookie = ReadBookie()
        async with front(NetConfig(), bookie) as here:
            peer = await here.connect()
            bookie.peer = peer.socket
            await peer.send(reads((1, 1)))
            await peer.body()
            bookie.had = None
            await peer.send(reads((1, 2)))
            await until(lambda: bookie.had is not None)
            assert bookie.had != b""
            bookie.turns.stop()

    run(test)


def begun(listener: socket.socket, spoke: Callable[[Newcomer], None]) -> tuple[list[Newcomer], Newcomers]:
    """Newcomers to ``listener``, and a list of those that have not spoken."""
    came: list[Newcomer] = []
    newcomers = Newcomers(
        listener,
        came=lambda newcomer: not came.append(newcomer),
        spoke=spoke,
        left=came.remove,
    )
    newcomers.start()
    return came, newcomers


def test_n1_who_comes_after_a_burst_does_not_wait_for_its_end_and_who_came_first_still_comes() -> None:
    """The newest and the oldest newcomer become connections in turn."""

    async def test() -> None:
        spoke: list[int] = []
        with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as peers:
            port = listener.getsockname()[1]

            def note(newcomer: Newcomer) -> None:
                spoke.append(newcomer.socket.getpeername()[1])
                newcomer.socket.close()
                if len(spoke) == 10:  # in the middle of the burst
                    late.sendall(b"x")

            came, newcomers = begun(listener, note)
            burst = [peers.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(100)]
            late = peers.enter_context(socket.create_connection(("127.0.0.1", port)))
            await until(lambda: len(came) == 101)
            for peer in burst:  # all of them in one turn
                peer.sendall(b"x")
            await until(lambda: len(spoke) == 101)
            assert spoke.index(late.getsockname()[1]) < 20
            assert sorted(spoke.index(peer.getsockname()[1]) for peer in burst[:5])[-1] < 20
            newcomers.close()

    run(test)


def test_n1_who_connects_and_speaks_at_once_passes_many_that_connected_before_and_speak_together() -> None:
    async def test() -> None:
        spoke: list[int] = []

        def note(newcomer: Newcomer) -> None:
            spoke.append(newcomer.socket.getpeername()[1])
            newcomer.socket.close()

        with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as peers:
            address = listener.getsockname()
            came, newcomers = begun(listener, note)
            burst = [peers.enter_context(socket.create_connection(address)) for _ in range(800)]
            await until(lambda: len(came) == len(burst))
            for peer in burst[:400]:
                peer.sendall(b"x")
            honest = [peers.enter_context(socket.create_connection(address)) for _ in range(5)]
            await until(lambda: len(came) == len(burst) + len(honest))
            before = len(spoke)
            for peer in [*honest, *burst[400:]]:  # the honest ones speak neither first nor last
                peer.sendall(b"x")
            await until(lambda: len(spoke) == len(burst) + len(honest))
            assert max(spoke.index(peer.getsockname()[1]) for peer in honest) - before < 20
            newcomers.close()

    run(test)


def test_n1_who_speaks_in_the_middle_of_many_that_send_too_little_waits_for_few_turns() -> None:
    """In turn the newest and the oldest are heard, and the one in the middle last."""

    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as peers:
            address = listener.getsockname()
            came: list[Newcomer] = []
            turns, spoke_at = Turns(), list[int]()

            def note(newcomer: Newcomer) -> None:
                spoke_at.append(turns.count)
                came.remove(newcomer)
                newcomer.socket.close()

            newcomers = Newcomers(
                listener,
                came=lambda newcomer: not came.append(newcomer),
                spoke=note,
                left=came.remove,
                wanted_bytes=lambda first: 1 if first == b"whole" else len(first) + 1,
            )
            newcomers.start()
            all_peers = [peers.enter_context(socket.create_connection(address)) for _ in range(401)]
            await until(lambda: len(came) == 401)
            for peer in all_peers:  # all of them in one turn
                peer.sendall(b"whole" if peer is all_peers[200] else b"x")
            begun_at = turns.count
            await until(lambda: bool(spoke_at))
            assert spoke_at[0] - begun_at <= 401 / 4 + 5
            turns.stop()
            for each in came:
                each.abort()
            newcomers.close()

    run(test)


def look_again(newcomers: Newcomers) -> None:
    """In place of :meth:`Newcomers._hear`: hear nobody."""
    vars(newcomers)["_hears_soon"] = True
    asyncio.get_running_loop().call_soon(methodcaller("_hear"), newcomers)


def test_n1_who_sends_bit_by_bit_keeps_nobody_in_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """``most_ready`` counts those that nobody has heard yet."""

    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as peers:
            address = listener.getsockname()
            came: list[Newcomer] = []
            newcomers = Newcomers(
                listener,
                came=lambda newcomer: not came.append(newcomer),
                spoke=lambda newcomer: pytest.fail("nobody has sent enough"),
                left=came.remove,
                wanted_bytes=lambda first: len(first) + 1,
                most_ready=2,
            )
            newcomers.start()
            slow = [peers.enter_context(socket.create_connection(address)) for _ in range(10)]
            for peer in slow:
                peer.sendall(b"x")
            await until(lambda: len(came) == 10 and all(each.was_heard and not each.ready for each in came))
            monkeypatch.setattr(Newcomers, "_hear", look_again)  # no turn comes
            for peer in slow:
                peer.sendall(b"x")
            await until(lambda: all(each.ready for each in came))
            unheard = [peers.enter_context(socket.create_connection(address)) for _ in range(2)]
            for peer in unheard:
                peer.sendall(b"x")
            await until(lambda: len(came) == 12 and all(each.ready for each in came))
            peers.enter_context(socket.create_connection(address))
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(came) == 12
            for each in came:
                each.abort()
            newcomers.close()

    run(test)


def test_n1_who_has_sent_something_is_not_closed_for_a_newcomer_while_others_are_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    newcomers: list[Newcomer] = []
    note_newcomers(monkeypatch, newcomers.append)

    async def test() -> None:
        async with front(NetConfig(max_connections=60), HeldBookie()) as here:
            with monkeypatch.context() as stopped:
                stopped.setattr(Newcomers, "_hear", look_again)  # no turn comes
                speaking, silent = [await here.connect() for _ in range(40)], [await here.connect() for _ in range(20)]
                await until(lambda: here.server.connection_count == 60)
                for peer in speaking:
                    assert peer.socket.send(reads((1, 1))) > 0
                await until(lambda: sum(newcomer.ready for newcomer in newcomers) == 40)
                for _ in range(20):
                    await here.connect()
                await until(lambda: here.server.evicted_connections == 20)
            for peer in speaking:
                assert await peer.codes(1) == [Code.OK]
            for peer in silent:
                assert await peer.closed()

    run(test)


def test_n1_a_burst_of_connections_waits_in_the_kernel_and_is_not_dropped() -> None:
    """Where it drops one the peer tries again after a second."""

    async def test() -> None:
        async with front(NetConfig(), HeldBookie()) as here:
            # Nothing is accepted meanwhile.
            peers = [socket.create_connection(("127.0.0.1", here.port), timeout=60) for _ in range(2000)]
            assert not any(map(_retransmitted, peers)) or min(_longest_backlog(), 4096) <= 2000
            for peer in peers:
                peer.close()

    run(test)


def test_where_no_descriptor_is_left_connections_are_accepted_later(
    lower_open_files: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with front(NetConfig(), HeldBookie()) as here:
            waiting = [socket.socket() for _ in range(3)]
            lower_open_files(1)
            taken = []
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            for peer in waiting:
                peer.connect(("127.0.0.1", here.port))
            await until(lambda: "no connection can be accepted" in caplog.text)
            assert here.server.connection_count == 0
            for fd in taken:
                os.close(fd)
            lower_open_files(20)
            await until(lambda: here.server.connection_count == 3)
            for peer in waiting:
                peer.close()
            await until(lambda: here.server.connection_count == 0)

    run(test)


#: Where ``struct tcp_info`` of Linux has ``tcpi_total_retrans``, an ``u32``.
_TOTAL_RETRANS_AT = 100


def _retransmitted(connected: socket.socket) -> int:
    """Segments that this end has sent again, the first one included."""
    info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TOTAL_RETRANS_AT + 4)
    return int(struct.unpack_from("=I", info, _TOTAL_RETRANS_AT)[0])


def _longest_backlog() -> int:
    return int(Path("/proc/sys/net/core/somaxconn").read_text("ascii"))
