"""Adds of recoveries wait for each other at the front end, and nothing waits for them."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable

import pytest

from bk_spark.protocol.codes import Code, FlagV2
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bookie_server.net.common.limits import NetConfig
from bookie_server.net.native import recovery_adds
from bookie_server.net.native.recovery_adds import HeldAdds, RecoveryAdds
from tests.support.bookie import KEY, add_frame, stored
from tests.support.front import HeldBookie, Peer, Times, front, run, until, v3, v3_add
from tests.support.grpc_front import batch, caller, grpc_front

NEVER_S = 3600.0
NOW_S = 100.0


def recovery_add(version: int, entry_id: int, size: int = 60) -> bytes:
    if version == 2:
        return add_frame(1, entry_id, flags=FlagV2.RECOVERY_ADD, size=size)
    body, flag = stored(1, entry_id, size), pb.AddRequest.RECOVERY_ADD
    add = pb.AddRequest(ledgerId=1, entryId=entry_id, masterKey=KEY, body=body, flag=flag)
    return v3(pb.ADD_ENTRY, entry_id, addRequest=add)


def plain_add(version: int, entry_id: int) -> bytes:
    return add_frame(1, entry_id, size=60) if version == 2 else v3_add(entry_id, 60)


async def answered(peer: Peer, version: int, count: int) -> list[int]:
    """The entries of the next answers, which all must be good."""
    entry_ids = []
    for _ in range(count):
        body = await peer.body()
        if version == 2:
            assert int.from_bytes(body[4:8], "big") == Code.OK
            entry_ids.append(int.from_bytes(body[16:24], "big"))
        else:
            answer = pb.Response.FromString(body)
            assert answer.status == pb.EOK
            entry_ids.append(answer.addResponse.entryId)
    return entry_ids


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let adds of recoveries wait for ever, until the test calls this."""
    for name in ("NEXT_WAIT_S", "MOST_WAIT_S"):
        monkeypatch.setattr(recovery_adds, name, NEVER_S)
    return monkeypatch.undo


@pytest.mark.parametrize("version", [2, 3])
def test_what_comes_in_several_receives_is_stored_together(version: int, patient: Callable[[], None]) -> None:
    async def test() -> None:
        bookie, times = HeldBookie(), Times()
        async with front(NetConfig(), bookie, times) as here:
            peers = [await here.connect() for _ in range(2)]
            for entry_id in range(6):
                await peers[entry_id % 2].send(recovery_add(version, entry_id))
                await asyncio.sleep(0.02)  # another receive
            assert bookie.entries == 0
            other = await here.connect()  # it does not wait for them
            await other.send(plain_add(version, 100))
            await until(lambda: bookie.entries == 1)
            bookie.answer()
            assert await answered(other, version, 1) == [100]
            assert not times.seen[1:]
            here.server.shared.recovery_adds.store()
            assert bookie.entries == 6
            assert len(bookie.adds) == (2 if version == 3 else 6)
            bookie.answer()
            assert await answered(peers[0], version, 3) == [0, 2, 4]
            assert await answered(peers[1], version, 3) == [1, 3, 5]

    run(test)
    patient()


def test_batches_over_grpc_wait_too(patient: Callable[[], None]) -> None:
    async def test() -> None:
        bookie = HeldBookie()
        async with grpc_front(bookie) as front, caller(front.port) as one:
            call, held = one.stream("Add"), front.native.shared.recovery_adds
            batches = [batch(number, 1, [stored(1, number, 60)], recovery=True) for number in range(3)]
            for each in batches:
                await call.write(each)
            await until(lambda: held.size_bytes == sum(each.ByteSize() for each in batches))
            assert bookie.entries == 0
            await call.write(batch(3, 1, [stored(1, 0, 60)]))  # it does not overtake them
            await until(lambda: bookie.entries > 0)
            assert [records.entry_ids.tolist() for records, _ in bookie.adds] == [[0], [1], [2], [0]]
            bookie.answer()
            await call.done_writing()
            assert [(await call.read()).batch_id for _ in range(4)] == [0, 1, 2, 3]

    run(test)
    patient()


@pytest.mark.parametrize("version", [2, 3])
def test_a_lone_add_is_stored_soon(version: int) -> None:
    async def test() -> None:
        bookie = HeldBookie()
        async with front(NetConfig(), bookie) as here:
            peer = await here.connect()
            await peer.send(recovery_add(version, 7))
            await until(lambda: bookie.entries == 1)
            bookie.answer()
            assert await answered(peer, version, 1) == [7]

    run(test)


@pytest.mark.parametrize("version", [2, 3])
def test_an_add_of_the_same_connection_does_not_overtake_them(version: int, patient: Callable[[], None]) -> None:
    """An entry that is added twice has the content that was sent last."""

    async def test() -> None:
        bookie = HeldBookie()
        async with front(NetConfig(), bookie) as here:
            peer = await here.connect()
            await peer.send(recovery_add(version, 0) + recovery_add(version, 1) + plain_add(version, 0))
            await until(lambda: bookie.entries > 0)
            assert bookie.entries == 3
            assert [records.entry_ids.tolist() for records, _ in bookie.adds][-1] == [0]
            bookie.answer()
            assert await answered(peer, version, 3) == [0, 1, 0]

    run(test)
    patient()


@pytest.mark.parametrize("version", [2, 3])
def test_runs_of_adds_wait_too(version: int, patient: Callable[[], None]) -> None:
    """Of many equal frames over v3 the bookie makes one run."""

    async def test() -> None:
        bookie = HeldBookie()
        async with front(NetConfig(), bookie) as here:
            peer = await here.connect()
            for first in (0, 40):
                await peer.send(b"".join(recovery_add(version, first + i) for i in range(40)))
                least_bytes = (first + 40) * len(stored(1, 0, 60))
                await until(lambda least_bytes=least_bytes: here.server.shared.recovery_adds.size_bytes >= least_bytes)
            assert bookie.entries == 0
            here.server.shared.recovery_adds.store()
            assert bookie.entries == 80
            bookie.answer()
            assert await answered(peer, version, 80) == list(range(80))

    run(test)
    patient()


@pytest.mark.parametrize("version", [2, 3])
def test_a_server_that_ends_answers_them(version: int, patient: Callable[[], None]) -> None:
    async def test() -> None:
        bookie = HeldBookie()
        async with front(NetConfig(), bookie) as here:
            peer = await here.connect()
            await peer.send(recovery_add(version, 3))
            await until(lambda: here.server.shared.recovery_adds.size_bytes > 0)
            ending = asyncio.create_task(here.server.close())
            await until(lambda: bookie.entries == 1 or ending.done())
            assert bookie.entries == 1
            bookie.answer()
            await ending
            assert await answered(peer, version, 1) == [3]

    run(test)
    patient()


@pytest.mark.parametrize("version", [2, 3])
def test_what_a_lost_connection_has_sent_is_stored(version: int, patient: Callable[[], None]) -> None:
    async def test() -> None:
        bookie = HeldBookie()
        async with front(NetConfig(), bookie) as here:
            peer = await here.connect()
            await peer.send(recovery_add(version, 3))
            await until(lambda: here.server.shared.recovery_adds.size_bytes > 0)
            peer.socket.close()
            await until(lambda: here.server.connection_count == 0)
            here.server.shared.recovery_adds.store()
            assert bookie.entries == 1
            bookie.answer()

    run(test)
    patient()


def test_an_unexpected_error_closes_the_connection_whose_adds_were_held(patient: Callable[[], None]) -> None:
    class Failing(HeldBookie):
        def add(self, *arguments: object, **named: object) -> None:  # type: ignore[override]
            raise RuntimeError("on purpose")

    async def test() -> None:
        async with front(NetConfig(), Failing()) as here:
            peers = [await here.connect() for _ in range(2)]
            for peer in peers:
                await peer.send(recovery_add(3, 3))
            one_bytes = len(stored(1, 3, 60))
            await until(lambda: here.server.shared.recovery_adds.size_bytes == 2 * one_bytes)
            here.server.shared.recovery_adds.store()
            for peer in peers:
                assert await peer.closed()

    run(test)
    patient()


class Holder:
    """Counts how often it stored what it held."""

    stored = 0

    def store_held(self) -> None:
        self.stored += 1


class Clock:
    """The loop of one :class:`RecoveryAdds`, whose time the test passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = NOW_S
        self.looks: list[tuple[float, Callable[[], None]]] = []
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, look: Callable[[], None]) -> object:
        self.looks.append((when_s, look))
        return object()

    def pass_until(self, until_s: float, adds: RecoveryAdds, holder: Holder, each_s: float = 0.0004) -> int:
        """Let time pass, with an add each ``each_s``; the number of looks."""
        count = 0
        while self.now_s < until_s:
            adds.wait(holder, 1000)
            self.now_s += each_s
            while self.looks and self.looks[0][0] <= self.now_s:
                count += 1
                self.looks.pop(0)[1]()
        return count


@pytest.mark.parametrize(("last_ms", "after_ms"), [(0.0, 1.0), (2.0, 3.0), (3.0, 4.0), (3.5, 4.0)])
def test_adds_wait_for_the_next_one_and_not_for_ever(
    last_ms: float, after_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, holder = Clock(monkeypatch), Holder()
    adds = RecoveryAdds()
    clock.pass_until(NOW_S + last_ms / 1000, adds, holder, each_s=0.0005)
    adds.wait(holder, 1000)
    while not holder.stored:
        when_s, look = clock.looks.pop(0)
        clock.now_s = when_s
        look()
    assert clock.now_s == pytest.approx(NOW_S + after_ms / 1000, abs=1e-6)


def test_held_adds_are_taken_in_order_with_the_time_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, holder = Clock(monkeypatch), Holder()
    adds = RecoveryAdds()
    held = HeldAdds[str](adds)
    for taken, begun_s in ((["a", "b"], NOW_S), (["c"], NOW_S + 1)):
        clock.now_s = begun_s
        for each in taken:
            held.hold(holder, each, 100)
            clock.now_s += 0.0001
        assert adds.size_bytes == 100 * len(taken)
        adds.store()
        assert held.take() == (taken, begun_s)
        assert not held.adds
    assert holder.stored == 2


def test_a_handler_that_held_adds_is_freed_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    class Handler(Holder):
        def __init__(self, adds: RecoveryAdds) -> None:
            self.held = HeldAdds[str](adds)

    Clock(monkeypatch)
    adds = RecoveryAdds()
    handler = Handler(adds)
    handler.held.hold(handler, "a", 100)
    adds.store()
    left = weakref.ref(handler)
    gc.disable()
    try:
        del handler
        assert left() is None
    finally:
        gc.enable()


def test_half_a_megabyte_waits_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, holders = Clock(monkeypatch), [Holder(), Holder()]
    adds = RecoveryAdds()
    for number in range(511):
        adds.wait(holders[number % 2], 1024)
    assert [holder.stored for holder in holders] == [0, 0]
    adds.wait(holders[0], 1024)
    assert [holder.stored for holder in holders] == [1, 1]
    assert adds.size_bytes == 0
    adds.wait(holders[0], 1024)  # it waits as the first did
    clock.now_s += 0.001
    clock.looks.pop(0)[1]()
    assert [holder.stored for holder in holders] == [2, 1]


def test_while_adds_come_without_a_pause_only_the_second_limit_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look wakes the event loop."""
    clock, holder = Clock(monkeypatch), Holder()
    adds = RecoveryAdds()
    clock.pass_until(NOW_S + 0.005, adds, holder)
    assert holder.stored == 1
    assert clock.pass_until(NOW_S + 0.085, adds, holder) == holder.stored - 1 >= 15
    clock.now_s += 1
    clock.looks.pop(0)[1]()  # a pause
    adds.wait(holder, 1000)
    assert clock.looks[0][0] == clock.now_s + 0.001
