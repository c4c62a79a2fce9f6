"""Requests of all connections get a bounded time of each turn of the event loop; who was served least goes first."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from bk_spark.protocol.codes import Code
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.framing import CommonBuffer, Receiving
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import wire_v3
from bookie_server.bookie import AddDone
from bookie_server.net.common import turns as turns_module
from bookie_server.net.common.fair_slots import Share
from bookie_server.net.common.large_frames import LargeFrames
from bookie_server.net.common.limits import NetConfig
from bookie_server.net.common.loop_delay import LoopDelay
from bookie_server.net.common.turns import HALF_LIFE_S, Turns
from bookie_server.net.native.requests_v2 import RUNS_PER_TURN
from bookie_server.storage.records import Records
from tests.support.bookie import add_frame
from tests.support.front import MIB, HeldBookie, front, reads, run, until
from tests.unit.test_net_fair_slots import Turns as CountedTurns


def work_for(microseconds: float) -> None:
    """Hold the event loop."""
    end = time.thread_time() + microseconds / 1e6
    while time.thread_time() < end:
        pass


class ProcessorTimeLoop(asyncio.SelectorEventLoop):
    """Waiting counts in the loop's time, and service in processor time. Here they are the same: other processes on the
    machine take no part."""

    def time(self) -> float:
        return time.thread_time()


class Asker:
    def __init__(self, turns: Turns, slices: int, order: list[Asker], by_turn: Counter[int]) -> None:
        self.time_share = Share(HALF_LIFE_S)
        self.slices = slices
        self._turns, self._order, self._by_turn = turns, order, by_turn
        self.counted: CountedTurns | None = None

    def handle_backlog(self) -> None:
        work_for(200)
        assert self.counted is not None
        self._by_turn[self.counted.count] += 1
        self._order.append(self)
        self.slices -= 1
        if self.slices:
            self._turns.wait(self)


def test_n1_a_turn_of_the_event_loop_takes_a_few_slices_and_first_of_who_was_served_least() -> None:
    async def test() -> None:
        turns, counted = Turns(), CountedTurns()
        order: list[Asker] = []
        by_turn: Counter[int] = Counter()
        greedy = [Asker(turns, 50, order, by_turn) for _ in range(20)]
        modest = Asker(turns, 1, order, by_turn)
        for asker in (*greedy, modest):
            asker.counted = counted
        for asker in greedy:
            turns.wait(asker)
            turns.wait(asker)  # it waits already
        await until(lambda: len(order) >= 400)
        came = len(order)
        assert not turns.may_go(greedy[0])  # others wait, and it has had its share
        assert turns.may_go(modest)
        turns.wait(modest)
        await until(lambda: modest in order)
        assert order.index(modest) <= came + 5
        await until(lambda: len(order) == 1001)
        assert max(by_turn.values()) <= 5
        counted.stop()

    with asyncio.Runner(loop_factory=ProcessorTimeLoop) as runner:
        runner.run(test())


def test_what_is_received_at_once_has_a_bounded_time_too() -> None:
    async def test() -> None:
        turns = Turns()
        asker = Asker(turns, 1, [], Counter())
        counts = []
        for _ in range(3):
            count = 0
            while turns.may_go(asker) and count < 100:
                turns.receiving(memoryview(b""))
                work_for(400)
                turns.received(asker)
                count += 1
            counts.append(count)
            assert not turns.may_go(asker)
            await asyncio.sleep(0)  # the next turn
        assert counts[0] <= 5  # served little so far
        assert max(counts[1:]) <= 2

    with asyncio.Runner(loop_factory=ProcessorTimeLoop) as runner:
        runner.run(test())


class Clock:
    """A loop whose time passes only while it works."""

    def __init__(self) -> None:
        self.now = 0.0
        self._soon: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    thread_time = time

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def turn(self) -> None:
        soon, self._soon = self._soon, []
        for callback in soon:
            callback()
        self.now += 0.0002  # the rest of the loop's work


class TimedAsker:
    """Sends requests that take ``cost_us`` each. Tells how long each waited in line."""

    def __init__(self, turns: Turns, clock: Clock, cost_us: int, *, for_ever: bool = False) -> None:
        self.time_share = Share(HALF_LIFE_S)
        self.waited_s: list[float] = []
        self._turns, self._clock, self._cost_us, self._for_ever = turns, clock, cost_us, for_ever
        self._since = 0.0

    def receive(self) -> None:
        self._turns.receiving(memoryview(b""))
        self._since = self._clock.now
        if self._turns.may_go(self):
            self._work()
        else:
            self._turns.wait(self)
        self._turns.received(self)

    def handle_backlog(self) -> None:
        self._work()
        if self._for_ever:
            self._turns.wait(self)

    def _work(self) -> None:
        self.waited_s.append(self._clock.now - self._since)
        self._clock.now += self._cost_us / 1e6


def turns_of(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Turns:
    monkeypatch.setattr(turns_module, "time", clock)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(asyncio, "get_running_loop", lambda: clock)
        return Turns()


def test_n1_what_comes_when_a_turn_has_no_time_left_is_received_little_by_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    turns = turns_of(clock, monkeypatch)
    asker, space = TimedAsker(turns, clock, 1_000), memoryview(bytes(256 * 1024))
    assert len(turns.receiving(space)) == len(space)
    asker.receive()
    assert len(turns.receiving(space)) == 4096
    clock.turn()
    assert len(turns.receiving(space)) == len(space)


class LargeFrame(TimedAsker):
    """Receives the next slice of a large frame once its turn has come."""

    resumed = 0

    def handle_backlog(self) -> None:
        self.resumed += 1


def test_n1_slices_of_large_frames_count_before_they_are_received(monkeypatch: pytest.MonkeyPatch) -> None:
    """To let a connection be read again takes nearly no time. What it is sent is received in the next turn."""
    clock = Clock()
    turns = turns_of(clock, monkeypatch)
    askers = [LargeFrame(turns, clock, 400) for _ in range(20)]
    for asker in askers:
        asker.time_share.serve(400, clock.now)
        turns.wait(asker)
    clock.turn()
    assert sum(asker.resumed for asker in askers) == 2


def test_those_in_line_get_what_newly_received_requests_leave_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def served_in_a_turn(received_us: int) -> int:
        clock = Clock()
        turns = turns_of(clock, monkeypatch)
        askers = [TimedAsker(turns, clock, 210) for _ in range(20)]
        for asker in askers:
            turns.wait(asker)
        turns.receiving(memoryview(b""))
        clock.now += received_us / 1e6
        turns.received(TimedAsker(turns, clock, 0))
        clock.turn()
        return sum(len(asker.waited_s) for asker in askers)

    assert served_in_a_turn(0) == 3  # slices of 210 µs
    assert served_in_a_turn(300) == served_in_a_turn(9000) == 2


def test_n1_connections_that_begin_do_not_go_before_those_in_use_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that has sent small requests for seconds has been served more than one that begins to ask for much."""

    clock = Clock()
    turns = turns_of(clock, monkeypatch)
    steady = TimedAsker(turns, clock, 250)
    greedy = [TimedAsker(turns, clock, 300, for_ever=True) for _ in range(20)]
    next_at = 0.0
    while clock.now < 5:
        if clock.now >= 4 and greedy:
            for asker in greedy:
                turns.wait(asker)
            greedy = []
        if clock.now >= next_at and len(steady.waited_s) == round(next_at * 100):
            next_at += 0.01
            steady.receive()
        clock.turn()
    assert len(steady.waited_s) > 450
    assert max(steady.waited_s) < 0.002


class BusyBookie(HeldBookie):
    """Needs more time for each read than a newcomer may take."""

    def read_now(self, ledger_id: int, entry_id: int) -> tuple[Code, bytes]:
        work_for(700)
        return super().read_now(ledger_id, entry_id)


def test_n1_a_burst_of_newcomers_makes_no_line_that_others_have_to_wait_in() -> None:
    async def test() -> None:
        async with front(NetConfig(), BusyBookie()) as here:
            turns, longest = here.server.shared.turns, 0
            peers = [await here.connect() for _ in range(150)]
            for peer in peers:
                peer.socket.send(reads((1, 1)))
            answered = 0

            def look() -> None:
                nonlocal longest
                longest = max(longest, turns.waiting)
                if answered < len(peers):
                    asyncio.get_running_loop().call_soon(look)

            look()
            for peer in peers:
                assert await peer.codes(1) == [Code.OK]
                answered += 1
            assert longest <= 12

    with asyncio.Runner(loop_factory=ProcessorTimeLoop) as runner:
        runner.run(test())


class SlowBookie(HeldBookie):
    """Takes its time for each run of adds, and notes in which turn of the event loop it came."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = CountedTurns()
        self.by_turn: Counter[int] = Counter()

    def add(self, records: Records, master_key: bytes, *, recovery: bool, high_priority: bool, done: AddDone) -> None:
        work_for(30)
        self.by_turn[self.turns.count] += 1
        super().add(records, master_key, recovery=recovery, high_priority=high_priority, done=done)


def test_n1_requests_of_many_kinds_from_many_connections_come_a_few_in_a_turn() -> None:
    async def test() -> None:
        bookie = SlowBookie()
        async with front(NetConfig(), bookie) as here:
            greedy = [await here.connect() for _ in range(30)]
            # Each is a run of its own.
            data = b"".join(add_frame(2, i, flags=i % 2 * wire_v2.FlagV2.HIGH_PRIORITY) for i in range(200))
            for peer in greedy:  # all of them in one turn
                assert peer.socket.send(data) == len(data)
            await until(lambda: bookie.entries > 100)
            honest = await here.connect()
            await honest.send(add_frame(3, 0))
            await until(lambda: any(3 in records.ledger_ids for records, _ in bookie.adds))
            before = next(i for i, (records, _) in enumerate(bookie.adds) if 3 in records.ledger_ids)
            await until(lambda: bookie.entries == 6001)
            assert before < 3000
            assert max(bookie.by_turn.values()) <= 4 * RUNS_PER_TURN
            bookie.answer()
            for peer in greedy:
                assert await peer.codes(200) == [Code.OK] * 200
            bookie.turns.stop()

    run(test)


def test_n1_large_frames_of_many_connections_are_received_a_little_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every receive took all of a turn's time: each connection waits in line after each."""
    ticks = itertools.count()
    monkeypatch.setattr(turns_module, "time", SimpleNamespace(thread_time=lambda: next(ticks) / 100))

    async def test() -> None:
        bookie, counted = HeldBookie(), CountedTurns()
        async with front(NetConfig(), bookie) as here:
            by_turn: Counter[int] = Counter()
            progress = here.server.shared.large_frames.progress

            def note(*arguments: object) -> None:
                by_turn[counted.count] += 1
                progress(*arguments)  # type: ignore[arg-type]

            here.server.shared.large_frames.progress = note  # type: ignore[assignment,method-assign]
            peers = [await here.connect() for _ in range(20)]
            frames = [add_frame(1, i, size=MIB) for i in range(20)]
            sending = [asyncio.create_task(peer.send(frame)) for peer, frame in zip(peers, frames, strict=True)]
            while not all(task.done() for task in sending) or bookie.entries < 20:
                await asyncio.sleep(0)
            assert sum(by_turn.values()) >= 20 * MIB // (128 * 1024)
            usual = sorted(by_turn.values())[len(by_turn) // 2]
            assert usual <= 6  # of 20
            bookie.answer()
            for peer in peers:
                assert await peer.codes(1) == [Code.OK]
            counted.stop()

    run(test)


def test_a_large_frame_is_received_in_parts() -> None:
    receiving = Receiving(CommonBuffer(8 * MIB))
    view = receiving.get_buffer()
    frame = add_frame(1, 0, size=5 * MIB)
    view[: 100 * 1024] = frame[: 100 * 1024]
    assert receiving.received(100 * 1024) is None
    receiving.give_room(len(frame))
    assert len(receiving.get_buffer()) == 128 * 1024


class Receiver:
    def __init__(self) -> None:
        self.held = self.aborted = self.paused = False
        self.room = 0

    def hold_frame(self) -> None:
        self.held = True

    def give_room(self, size_bytes: int) -> None:
        self.held, self.room = False, size_bytes

    def abort_stalled(self) -> None:
        self.aborted = True


def test_n1_frames_that_stall_before_their_ends_leave_room_for_a_newcomers() -> None:
    frames = LargeFrames(48 * MIB, stalled_timeout_s=1)
    greedy = [Receiver() for _ in range(12)]
    for _ in range(8):
        for one in greedy:
            if not one.held:
                frames.progress(one, min(max(one.room, 64 * 1024), 5_200_000 - 1), 5_200_000, now=0)
    assert any(one.held for one in greedy)
    newcomer = Receiver()
    frames.progress(newcomer, 64 * 1024, 1_000_000, now=0)
    while newcomer.room < 1_000_000:
        assert not newcomer.held
        frames.progress(newcomer, newcomer.room, 1_000_000, now=0)
    assert not any(one.aborted for one in greedy)
    assert frames.bytes <= 48 * MIB + 5_200_000


def test_n1_the_kernel_keeps_little_of_what_a_peer_does_not_take() -> None:
    """Else megabytes are read for each of many peers before it is known that they take nothing."""

    async def test() -> None:
        bookie = HeldBookie(entry_bytes=MIB)
        async with front(NetConfig(), bookie) as here:
            peer = await here.connect(receive_bytes=4096)
            with contextlib.suppress(OSError):
                peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, 4096)
            await peer.send(reads(*((1, i) for i in range(40))))
            await until(lambda: here.server.load.unsent_bytes > 0)
            await asyncio.sleep(0.2)  # another would have been read
            assert bookie.reads == 1

    run(test)


def test_n1_a_request_that_needs_only_the_event_loop_does_not_wait_for_one_that_needs_the_disk() -> None:
    async def test() -> None:
        bookie = HeldBookie()
        async with front(NetConfig(), bookie) as here:
            peer = await here.connect()
            await peer.send(wire_v3.list_of_entries_request(1, 1) + wire_v3.bookie_info_request(2))
            assert wire_v3.parse_response(await peer.body()).header.operation == pb.GET_BOOKIE_INFO
            await until(lambda: len(bookie.lists) == 1)
            bookie.lists[0].set_result((Code.OK, np.arange(3)))
            listed = wire_v3.parse_response(await peer.body())
            assert listed.header.operation == pb.GET_LIST_OF_ENTRIES_OF_LEDGER

    run(test)


def test_the_delay_of_the_event_loop_is_told() -> None:
    async def test() -> None:
        seen: list[float] = []
        delay = LoopDelay(seen.append)
        delay.start()
        await until(lambda: len(seen) >= 2)
        assert min(seen) >= 0
        seen.clear()
        work_for(400_000)
        await until(lambda: len(seen) >= 1)
        assert max(seen) >= 0.25
        delay.stop()
        seen.clear()
        await asyncio.sleep(0.25)  # two looks would have come
        assert not seen

    asyncio.run(test())  # its clock shows every delay
