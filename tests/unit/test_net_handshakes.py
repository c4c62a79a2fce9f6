"""TLS handshakes beside other clients: a thread computes them, one at a time, and nobody waits for it in the loop."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from pathlib import Path
from typing import cast

import pytest

from bk_spark.bookie.tls.transport import TlsTransport
from bk_spark.protocol.wire.start_tls import start_tls_request
from bookie_server.net.common.access.pauses import FailedLately, Spread
from bookie_server.net.common.entrance import handshakes
from bookie_server.net.common.entrance.awaited import Awaited, late
from bookie_server.net.common.entrance.handshakes import Line
from bookie_server.net.common.entrance.newcomers import Newcomer
from bookie_server.net.common.limits import NetConfig
from tests.support.certificates import identity
from tests.support.front import Front, HeldBookie, Peer, front, reads, run, until
from tests.support.instances import instances
from tests.unit.test_net_tls import client_context, connected, front_tls, until_closed

#: The first record of a client's first message. Further ones are missing, but it waits for its step.
_HELLO = b"\x16\x03\x01\x00\x40\x01\x00\x01\xfc\x03\x03" + bytes(58)


class CountedLine(Line):
    """Knows who waits, here or in the other line."""

    def __init__(self, pause_s: float, waiting: set[TlsTransport | None]) -> None:
        super().__init__(pause_s)
        self.waiting = waiting

    def add(self, handshake: TlsTransport) -> None:
        super().add(handshake)
        self.waiting.add(handshake)

    def remove(self, handshake: TlsTransport) -> None:
        super().remove(handshake)
        self.waiting.discard(handshake)

    def next(self) -> TlsTransport | None:
        handshake = super().next()
        self.waiting.discard(handshake)
        return handshake


class Steps:
    """What was computed, and where. The steps of a thread may be held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[str] = []
        self.now = self.most = 0
        self.go = threading.Event()
        self.go.set()
        self._lock = threading.Lock()
        real = TlsTransport.step

        def step(transport: TlsTransport) -> None:
            name = threading.current_thread().name
            with self._lock:
                self.threads.append(name)
                self.now += 1
                self.most = max(self.most, self.now)
            if name.startswith("tls-handshake"):
                assert self.go.wait(60)
            real(transport)
            with self._lock:
                self.now -= 1

        monkeypatch.setattr(TlsTransport, "step", step)
        self.waiting: set[TlsTransport | None] = set()
        monkeypatch.setattr(handshakes, "Line", lambda pause_s: CountedLine(pause_s, self.waiting))

    @property
    def in_thread(self) -> int:
        return sum(name.startswith("tls-handshake") for name in self.threads)


async def _begun(served: Front, first: bytes = _HELLO) -> Peer:
    """A peer that was granted TLS, and then sent ``first``. As it is, its handshake waits for its first step."""
    peer = await served.connect()
    await peer.send(start_tls_request())
    assert await peer.body()
    await peer.send(first)
    return peer


def test_the_newest_and_the_oldest_go_in_turn() -> None:
    line, some = Line(0.0), [cast(TlsTransport, object()) for _ in range(5)]
    for one in [*some, some[2]]:
        line.add(one)
    line.remove(some[3])
    line.remove(some[3])
    assert [line.next() for _ in range(5)] == [some[0], some[4], some[1], some[2], None]


def test_a_thread_computes_what_needs_the_private_key_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch)

    async def test() -> None:
        async with front(NetConfig(), HeldBookie(), tls=front_tls(tmp_path)) as served:
            context = client_context(tmp_path / "client")

            async def once() -> None:
                async with connected(served, context) as peer:
                    peer.send(reads((1, 1)))
                    assert (await peer.body())[4:8] == bytes(4)

            await asyncio.gather(*(once() for _ in range(20)))

    run(test)
    assert steps.in_thread >= 20
    assert steps.most <= 2  # one in the thread, and a cheap one in the loop
    # The first step of each connection is the thread's.
    assert steps.threads[0].startswith("tls-handshake")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tls-handshake")]


def test_n1_others_are_served_while_a_step_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch)
    steps.go.clear()

    async def test() -> None:
        async with front(NetConfig(), HeldBookie(), tls=front_tls(tmp_path)) as served:
            for _ in range(20):
                await _begun(served)
            await until(lambda: len(steps.waiting) == 19)
            plain = await served.connect()
            await plain.send(reads((1, 1)))
            assert await plain.codes(1) == [0]
            assert steps.in_thread == 1
            steps.go.set()

    run(test)


def test_nothing_is_computed_for_who_has_hung_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch)
    steps.go.clear()
    monkeypatch.setattr(handshakes, "_PAUSE_S", 0.0)

    async def test() -> None:
        tls = front_tls(tmp_path)
        async with front(NetConfig(), HeldBookie(), tls=tls) as served:
            await _begun(served)
            for _ in range(5):
                (await _begun(served)).socket.close()
            await until(lambda: len(steps.waiting) == 5)
            steps.go.set()
            async with connected(served, client_context(tmp_path / "client")) as peer:
                peer.send(reads((1, 1)))
                await peer.body()
                await until(lambda: tls.failed_handshakes == 5)
            assert steps.in_thread == 2

    run(test)


def test_who_gives_up_or_gives_way_leaves_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch)
    steps.go.clear()

    async def test() -> None:
        config = NetConfig(max_connections=4, idle_before_eviction_ms=0)
        async with front(config, HeldBookie(), tls=front_tls(tmp_path)) as served:
            for _ in range(12):
                await _begun(served)
            assert served.server.evicted_connections >= 8
            await until(lambda: len(steps.waiting) <= 4)
            steps.go.set()

    run(test)


def test_n1_who_stalls_before_the_first_record_is_whole_costs_no_transport_and_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch)
    made = instances(monkeypatch, Awaited)

    async def test() -> None:
        async with front(NetConfig(), HeldBookie(), tls=front_tls(tmp_path)) as served:
            (hellos, _) = made
            peers = [await _begun(served, some) for some in (b"", _HELLO[:1], _HELLO[:5], _HELLO[:-1])]
            await until(lambda: len(hellos) == 4)
            plain = await served.connect()
            await plain.send(reads((1, 1)))
            assert await plain.codes(1) == [0]
            assert steps.threads == []
            assert len(served.connections) == 1  # that of the reads
            await peers[2].send(_HELLO[5:])
            await peers[3].send(_HELLO[-1:])
            await until(lambda: steps.in_thread == 2)
            peers[1].socket.close()
            await until(lambda: served.server.failed_handshakes == 1)
            await until(lambda: len(hellos) == 1)

    run(test)


def test_who_does_not_send_the_first_record_is_closed_after_some_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie_server.net.common.entrance.front_tls._HANDSHAKE_TIMEOUT_S", 0.2)

    async def test() -> None:
        async with front(NetConfig(), HeldBookie(), tls=front_tls(tmp_path)) as served:
            for _ in range(40):  # more than are closed in a turn
                await _begun(served, _HELLO[:-1])
            await until(lambda: served.server.failed_handshakes == 40)
            assert served.server.connection_count == 0

    run(test)


def test_the_late_ones_are_closed_some_at_a_time() -> None:
    first, second, third = (cast(Newcomer, object()) for _ in range(3))
    due_s = {first: 1.0, second: 2.0, third: 3.0}
    assert late(due_s, 0.5, 10) == []
    assert late(due_s, 2.0, 10) == [first, second]
    assert late(due_s, 9.0, 2) == [first, second]


def test_the_bookie_ends_while_handshakes_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch)

    async def test() -> None:
        async with front(NetConfig(), HeldBookie(), tls=front_tls(tmp_path)) as served:
            steps.go.clear()
            for _ in range(5):
                await _begun(served)
            await until(lambda: len(steps.waiting) == 4)
            closing = asyncio.create_task(served.server.close())
            await until(lambda: served.server.connection_count == 0)
            assert not closing.done()
            steps.go.set()
            await closing

    run(test)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tls-handshake")]


@pytest.mark.parametrize("where", ["in the thread", "in the loop"])
def test_n1_who_fails_a_handshake_is_told_after_a_while(tmp_path: Path, where: str) -> None:
    """Who tries again and again costs little then. The first message fails in the thread, a certificate in the loop."""

    async def test() -> None:
        tls = front_tls(tmp_path, tlsClientAuthentication="true")
        async with front(NetConfig(), HeldBookie(), tls=tls) as served:
            if where == "in the loop":
                stranger = client_context(tmp_path / "client", identity("stranger", signed_by="others"))
                begun = time.monotonic()
                async with connected(served, stranger) as peer:
                    assert isinstance(await peer.fails(), ssl.SSLError)
            else:
                begun = time.monotonic()
                await until_closed(await _begun(served, reads((1, 1))))
            assert time.monotonic() - begun >= 0.5
            context = client_context(tmp_path / "good", identity("client"))
            async with connected(served, context) as peer:
                peer.send(reads((1, 1)))
                assert (await peer.body())[4:8] == bytes(4)

    run(test)


def test_n1_who_failed_no_handshake_lately_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although a hundred others wait, of an address that failed one, and their line has a long pause."""
    steps, made = Steps(monkeypatch), instances(monkeypatch, FailedLately)
    monkeypatch.setattr(handshakes, "_SUSPECTS_PAUSE_S", 600.0)

    async def test() -> None:
        tls = front_tls(tmp_path)
        async with front(NetConfig(), HeldBookie(), tls=tls) as served:
            (failed,), loop = made, asyncio.get_running_loop()
            for number in range(2):  # the first one fails, so the other's step is in the line of those that did
                await _begun(served, reads((1, 1)))
                await until(lambda: steps.in_thread > number and failed.includes("127.0.0.1", loop.time()))  # noqa: B023
            for _ in range(100):
                await _begun(served)
            await until(lambda: len(steps.waiting) == 100)
            async with connected(served, client_context(tmp_path / "client"), source="127.0.0.2") as other:
                other.send(reads((1, 1)))
                assert (await other.body())[4:8] == bytes(4)
            assert len(steps.waiting) == 100

    run(test)


def test_who_leaves_during_a_handshake_has_failed_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a client that does not trust the bookie's certificate."""
    made = instances(monkeypatch, FailedLately)

    async def test() -> None:
        tls = front_tls(tmp_path)
        async with front(NetConfig(), HeldBookie(), tls=tls) as served:
            (failed,) = made
            with pytest.raises(ssl.SSLError):
                async with connected(served, client_context(tmp_path / "client"), host="elsewhere"):
                    pass
            await until(lambda: tls.failed_handshakes == 1)
            assert failed.includes("127.0.0.1", asyncio.get_running_loop().time())

    run(test)


def test_the_bookie_ends_before_who_failed_a_handshake_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Spread, "failure_s", lambda _: 600.0)
    steps = Steps(monkeypatch)

    async def test() -> None:
        async with front(NetConfig(), HeldBookie(), tls=front_tls(tmp_path)) as served:
            peer = await _begun(served, reads((1, 1)))
            await until(lambda: steps.in_thread == 1)
            await asyncio.wait_for(served.server.close(), 60)
            assert served.server.connection_count == 0
            with contextlib.suppress(ConnectionError):
                assert await peer.loop.sock_recv(peer.socket, 1) == b""

    run(test)


def test_tls_without_start_tls_is_named_once_in_a_while(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whether or not the bookie has certificates. A flood of such peers does not fill the log."""

    async def test() -> None:
        async with front(NetConfig(), HeldBookie()) as served:

            async def once() -> None:
                with contextlib.suppress(ConnectionError):
                    peer = await served.connect()
                    begun = time.monotonic()
                    await peer.send(_HELLO)
                    assert await peer.closed()
                    assert time.monotonic() - begun >= 0.5  # so whoever comes again and again costs little

            await asyncio.gather(*(once() for _ in range(50)))

    run(test)
    lines = [record.getMessage() for record in caplog.records]
    assert "closed: the peer began TLS without START_TLS" in lines[0]
    assert len(lines) < 25
