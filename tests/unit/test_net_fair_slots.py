"""Work is done a little in each turn of the event loop, and who was served least lately goes first."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter

import pytest

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.codes import Code
from bk_spark.protocol.wire import wire_v2
from bookie_server.entry_reader import ReadPart
from bookie_server.net.common.fair_slots import HALF_LIFE_S, FairSlots, Room, Share
from bookie_server.net.common.limits import NetConfig
from bookie_server.net.native import server as native
from bookie_server.net.native.connection import NativeConnection
from tests.support.front import MIB, HeldBookie, Peer, front, reads, run, until


class Turns:
    """Counts turns of the event loop."""

    def __init__(self) -> None:
        self.count = 0
        self._next()

    def _next(self) -> None:
        self.count += 1
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def stop(self) -> None:
        self._handle.cancel()


def test_who_was_served_least_goes_first() -> None:
    async def test() -> None:
        slots, order = FairSlots(1), []

        async def work(name: str, share: Share, size_bytes: int) -> None:
            async with slots.slot(share) as slot:
                slot.bytes = size_bytes
                order.append(name)
                await asyncio.sleep(0)

        greedy, modest = Share(HALF_LIFE_S), Share(HALF_LIFE_S)
        await work("greedy", greedy, 8 * MIB)
        await work("modest", modest, 1024)
        tasks = [asyncio.create_task(work("greedy", greedy, MIB)) for _ in range(5)]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(work("modest", modest, 1024)) for _ in range(3)]
        await asyncio.gather(*tasks)
        assert order[-3:] == ["greedy"] * 3  # these waited already when the modest ones came

    run(test)


def test_a_turn_of_the_event_loop_does_a_bounded_amount_of_work() -> None:
    async def test() -> None:
        slots, turns = FairSlots(8), Turns()
        done: dict[int, int] = {}

        async def work(share: Share, size_bytes: int) -> None:
            for _ in range(10):
                async with slots.slot(share) as slot:
                    slot.bytes = size_bytes
                    done[turns.count] = done.get(turns.count, 0) + size_bytes

        await asyncio.gather(*(work(Share(HALF_LIFE_S), 128 * 1024) for _ in range(50)))
        assert sum(done.values()) == 500 * 128 * 1024
        assert max(done.values()) <= MIB
        turns.stop()

    run(test)


def test_who_gives_up_leaves_its_slot_to_others() -> None:
    async def test() -> None:
        slots = FairSlots(1)

        async def work() -> None:
            async with slots.slot(Share(HALF_LIFE_S)):
                await asyncio.sleep(0)

        for turns in range(5):
            tasks = [asyncio.create_task(work()) for _ in range(6)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)

    run(test)


def test_n1_those_who_waited_for_room_begin_a_few_in_a_turn() -> None:
    async def test() -> None:
        slots, room, turns = FairSlots(8), Room(), Turns()
        begun: dict[int, int] = {}

        async def work() -> None:
            async with slots.slot(Share(HALF_LIFE_S), room) as slot:
                slot.bytes = 128 * 1024
                begun[turns.count] = begun.get(turns.count, 0) + 1

        room.clear()
        tasks = [asyncio.create_task(work()) for _ in range(255)]
        async with slots.slot(Share(HALF_LIFE_S)):
            pass  # who needs no room does not wait for it
        for _ in range(5):
            await asyncio.sleep(0)
        assert not begun
        room.set()
        await asyncio.gather(*tasks)
        assert max(begun.values()) <= 2
        turns.stop()

    run(test)


def test_n1_those_who_give_up_without_room_do_not_stay_in_line() -> None:
    async def test() -> None:
        slots, room = FairSlots(8), Room()

        async def work() -> None:
            async with slots.slot(Share(HALF_LIFE_S), room):
                pass

        room.clear()
        for _ in range(50):
            tasks = [asyncio.create_task(work()) for _ in range(100)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        given_up = [one for one in gc.get_objects() if isinstance(one, asyncio.Future) and one.cancelled()]
        assert len(given_up) < 2000
        room.set()
        await asyncio.wait_for(work(), 60)

    run(test)


class CountingBookie(HeldBookie):
    """Notes in which turns of the event loop it was read from."""

    def __init__(self, entry_bytes: int) -> None:
        super().__init__(entry_bytes)
        self.turns = Turns()
        self.reads_by_turn: dict[int, int] = {}

    async def read(self, ledger_ids: Int64s, entry_ids: Int64s, limit_bytes: int, *, taken: bool = False) -> ReadPart:
        self.reads_by_turn[self.turns.count] = self.reads_by_turn.get(self.turns.count, 0) + 1
        return await super().read(ledger_ids, entry_ids, limit_bytes, taken=taken)


def test_n1_reads_of_many_peers_that_never_take_them_come_a_few_in_a_turn() -> None:
    async def test() -> None:
        bookie = CountingBookie(MIB)
        async with front(NetConfig(), bookie) as here:
            peers = [await here.connect(receive_bytes=4096) for _ in range(100)]
            await until(lambda: here.server.connection_count == 100)
            for peer in peers:  # all of them in one turn
                assert peer.socket.send(wire_v2.read_requests(1, range(5))) > 0
            await until(lambda: bookie.reads >= 60)
            assert max(bookie.reads_by_turn.values()) == 1
            bookie.turns.stop()

    run(test)


@pytest.mark.parametrize("at_once", [True, False], ids=["one_read", "several_reads"])
def test_n1_small_reads_of_others_pass_peers_that_take_nothing(at_once: bool) -> None:
    """There is no room for more answers, and nobody is closed for it yet."""

    async def test() -> None:
        bookie = HeldBookie(entry_bytes=100)
        config = NetConfig(
            max_unsent_bytes=8 * MIB, stalled_peer_timeout_ms=600_000, stalled_in_the_way_timeout_ms=600_000
        )
        async with front(config, bookie) as here:
            honest = await here.connect()

            async def read(peer: Peer) -> None:
                count = 1 if at_once else 3
                await peer.send(wire_v2.read_requests(1, range(count)))
                assert await peer.codes(count) == [Code.OK] * count

            await read(honest)
            bookie.entry = bytes(MIB)
            for _ in range(60):
                await (await here.connect(receive_bytes=4096)).send(wire_v2.read_requests(1, range(40)))
            await until(lambda: not here.server.load.has_room.is_set())
            bookie.entry = bytes(100)
            for _ in range(20):
                await read(honest)
            assert not here.server.load.has_room.is_set()
            assert here.server.load.unsent_bytes < 16 * MIB
            assert here.server.shared.stalled_peers == 0

    run(test)


def test_n1_who_has_stalled_longest_is_closed_at_once_when_others_wait_for_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        monkeypatch.setattr(native, "_LOOK_INTERVAL_S", 0.02)
        bookie = HeldBookie(entry_bytes=MIB)
        config = NetConfig(max_unsent_bytes=2 * MIB, stalled_peer_timeout_ms=600_000, stalled_in_the_way_timeout_ms=100)
        async with front(config, bookie) as here:
            stalled = [await here.connect(receive_bytes=4096) for _ in range(40)]
            for peer in stalled:
                await peer.send(wire_v2.read_requests(1, range(40)))
            honest = await here.connect()
            await honest.send(reads((1, 0)) * 8)
            assert await honest.codes(1) == [Code.OK]
            assert here.server.shared.stalled_peers > 0
            assert here.server.connection_count > 1  # no more of them than need be
            assert await honest.codes(7) == [Code.OK] * 7

    run(test)


def test_n1_stalled_connections_are_closed_a_few_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        closed, turns, real = Counter[int](), Turns(), NativeConnection.abort_stalled

        def abort_stalled(connection: NativeConnection) -> None:
            closed[turns.count] += 1
            real(connection)

        monkeypatch.setattr(NativeConnection, "abort_stalled", abort_stalled)
        config = NetConfig(max_unsent_bytes=40 * MIB, stalled_peer_timeout_ms=1)
        async with front(config, HeldBookie(entry_bytes=MIB)) as here:
            for _ in range(30):  # more than half of the bytes that may be unsent
                await (await here.connect(receive_bytes=4096)).send(wire_v2.read_requests(1, range(2)))
            await until(lambda: closed.total() >= 10)
            assert max(closed.values()) <= 2
            turns.stop()

    run(test)
