"""Fences of ledgers that nobody has heard of: a few in each turn of the event loop, whoever asks for how many."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from bk_spark.protocol.codes import Code, FlagV2
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.framing import Frames
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bookie_server.net.common.limits import NetConfig
from bookie_server.storage.journal import group_timing
from bookie_server.storage.ledger_descriptors import LedgerDescriptor
from tests.support.bookie import KEY, stored
from tests.support.front import HeldBookie, Peer, front, run, until, v3
from tests.support.running_storage import Place, in_loop, running
from tests.unit.test_net_fair_slots import Turns


class FencingBookie(HeldBookie):
    """Notes in which turns of the event loop it was asked to fence."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = Turns()
        self.fences_by_turn: dict[int, int] = {}
        self.urgent: list[bool] = []

    def fence(self, ledger_id: int, master_key: bytes, *, urgent: bool = True) -> asyncio.Future[Code]:
        self.urgent.append(urgent)
        self.fences_by_turn[self.turns.count] = self.fences_by_turn.get(self.turns.count, 0) + 1
        return self.fences[ledger_id] if self.is_durable(ledger_id) else super().fence(ledger_id, master_key)

    def has_fences(self, count: int) -> bool:
        return len(self.fences) == count

    def is_durable(self, ledger_id: int) -> bool:
        return ledger_id in self.fences and self.fences[ledger_id].done()

    def durable(self) -> None:
        for fence in self.fences.values():
            if not fence.done():
                fence.set_result(Code.OK)


def fences(first: int, count: int) -> bytes:
    return b"".join(wire_v2.read_requests(first + i, [0], FlagV2.FENCING, KEY) for i in range(count))


def test_n1_of_fencing_reads_that_wait_few_more_are_parsed_than_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice has 16 of them. Parsing all that a connection sent for each slice would cost more than the fences."""
    parsed, parse = [0], wire_v2.parse_requests

    def count(frames: Frames) -> Iterator[object]:
        parsed[0] += len(frames)
        return parse(frames)

    async def test() -> None:
        bookie = FencingBookie()
        async with front(NetConfig(), bookie) as here:
            greedy = await here.connect()
            await greedy.send(fences(1000, 1000))
            while len(bookie.fences) < 1000:
                bookie.durable()
                await asyncio.sleep(0)
            assert 1000 <= parsed[0] <= 4 * 1000
            bookie.turns.stop()

    monkeypatch.setattr("bookie_server.net.native.requests_v2.wire_v2.parse_requests", count)
    run(test)


def test_n1_many_fencing_reads_of_unknown_ledgers_begin_a_few_in_a_turn() -> None:
    async def test() -> None:
        bookie = FencingBookie()
        async with front(NetConfig(), bookie) as here:
            greedy = [await here.connect() for _ in range(5)]
            honest = await here.connect()
            await until(lambda: here.server.connection_count == 6)
            for number, peer in enumerate(greedy):  # all of them in one turn
                assert peer.socket.send(fences(1000 * (number + 1), 400)) > 0
            await until(lambda: len(bookie.fences) == 256)
            await honest.send(fences(7, 1))
            await asyncio.sleep(0.1)  # one more would be there
            assert len(bookie.fences) == 256  # so many are on their way to the journal
            bookie.durable()
            await until(lambda: 7 in bookie.fences)
            assert len(bookie.fences) <= 256 + 256  # it did not wait for the other 1744
            while not all(fence.done() for fence in bookie.fences.values()) or len(bookie.fences) < 2001:
                bookie.durable()
                await asyncio.sleep(0)
            for peer in greedy:
                assert await peer.codes(400) == [Code.OK] * 400
            assert await honest.codes(1) == [Code.OK]
            assert max(bookie.fences_by_turn.values()) <= 8
            bookie.turns.stop()

    run(test)


def test_n1_many_fences_let_the_journal_write_them_together() -> None:
    """Each group of fences that the journal writes is one more that adds wait for. A recovery alone does not wait."""

    async def test() -> None:
        bookie = FencingBookie()
        async with front(NetConfig(), bookie) as here:
            peer, other = await here.connect(), await here.connect()
            for ledger_id in range(3):
                await peer.send(fences(ledger_id, 1))
                await until(partial(bookie.has_fences, ledger_id + 1))
            await other.send(fences(1000, 200))
            await until(lambda: len(bookie.fences) == 203)
            assert bookie.urgent[:3] == [True] * 3
            assert not any(bookie.urgent[20:])
            bookie.durable()
            await peer.send(fences(3, 1))
            await until(lambda: 3 in bookie.fences)
            assert bookie.urgent[-1]
            bookie.durable()
            assert await peer.codes(4) == [Code.OK] * 4
            bookie.turns.stop()

    run(test)


@pytest.mark.parametrize("version", [2, 3])
def test_who_recovers_a_ledger_gets_entries_in_memory_at_once(version: int) -> None:
    """Its reads come one after the other, and each fences. Without a task and a queue for each they cost half."""

    def fencing_read(number: int) -> bytes:
        if version == 2:
            return fences(1, 1)
        read = pb.ReadRequest(ledgerId=1, entryId=number, masterKey=KEY, flag=pb.ReadRequest.FENCE_LEDGER)
        return v3(pb.READ_ENTRY, number, readRequest=read)

    async def codes(peer: Peer) -> list[Code]:
        if version == 2:
            return await peer.codes(1)
        answer = pb.Response.FromString(await peer.body())
        return [Code.from_v3(answer.readResponse.status)]

    async def test() -> None:
        bookie = FencingBookie()
        async with front(NetConfig(), bookie) as here:
            peer = await here.connect()
            await peer.send(fencing_read(0))
            await until(lambda: 1 in bookie.fences)
            assert not bookie.reads  # nothing is answered before the fence is durable
            bookie.durable()
            assert await codes(peer) == [Code.OK]
            bookie.read_error = RuntimeError("was read by a task")
            for number in range(1, 4):
                await peer.send(fencing_read(number))
                assert await codes(peer) == [Code.OK]
            bookie.turns.stop()

    run(test)


@pytest.mark.parametrize("version", [2, 3])
def test_a_recovery_goes_on_while_other_fences_wait(version: int) -> None:
    """Its ledger is fenced. Nothing is written for its other reads."""

    def fencing_read(ledger_id: int) -> bytes:
        if version == 2:
            return fences(ledger_id, 1)
        read = pb.ReadRequest(ledgerId=ledger_id, entryId=0, masterKey=KEY, flag=pb.ReadRequest.FENCE_LEDGER)
        return v3(pb.READ_ENTRY, 0, readRequest=read)

    async def test() -> None:
        bookie = FencingBookie()
        async with front(NetConfig(), bookie) as here:
            peer, other = await here.connect(), await here.connect()
            await peer.send(fencing_read(1))
            await until(lambda: 1 in bookie.fences)
            bookie.durable()
            answer_bytes = len(await peer.body())
            bookie.new_ledgers_wait = True
            await other.send(fences(100, 10))
            await asyncio.sleep(0.1)  # fences that do not wait would have begun
            assert [*bookie.fences] == [1]
            await peer.send(fencing_read(1) * 3)
            assert [len(await peer.body()) for _ in range(3)] == [answer_bytes] * 3
            assert [*bookie.fences] == [1]
            assert len(bookie.urgent) == 1, "only the first read asks the bookie to fence"
            bookie.turns.stop()

    run(test)


def test_the_reads_of_a_recovery_leave_its_adds_together() -> None:
    """A client sends them in turn. Groups of one add each would cost a bookie twice the time."""

    async def test() -> None:
        bookie = FencingBookie()
        async with front(NetConfig(), bookie) as here:
            peer = await here.connect()
            read = pb.ReadRequest(ledgerId=1, entryId=0, masterKey=KEY, flag=pb.ReadRequest.FENCE_LEDGER)
            await peer.send(v3(pb.READ_ENTRY, 0, readRequest=read))
            await until(lambda: 1 in bookie.fences)
            bookie.durable()
            await peer.body()
            frames = b""
            for number in range(3):
                body, flag = stored(1, number, 60), pb.AddRequest.RECOVERY_ADD
                add = pb.AddRequest(ledgerId=1, entryId=number, masterKey=KEY, body=body, flag=flag)
                frames += v3(pb.ADD_ENTRY, number, addRequest=add) + v3(pb.READ_ENTRY, 10 + number, readRequest=read)
            await peer.send(frames)
            for _ in range(3):
                assert pb.Response.FromString(await peer.body()).header.operation == pb.READ_ENTRY
            await until(lambda: bookie.entries == 3)
            assert len(bookie.adds) == 1
            bookie.turns.stop()

    run(test)


def test_fences_wait_while_too_many_new_ledgers_have_no_index_file() -> None:
    async def test() -> None:
        bookie = FencingBookie()
        bookie.new_ledgers_wait = True
        async with front(NetConfig(), bookie) as here:
            peer, gone = await here.connect(), await here.connect()
            await peer.send(fences(1, 10))
            await gone.send(fences(100, 10))
            await until(lambda: here.server.load.reads == 20)
            gone.socket.close()
            await until(lambda: here.server.connection_count == 1)
            assert not bookie.fences
            bookie.new_ledgers_wait = False
            await until(lambda: len(bookie.fences) == 10)
            bookie.durable()
            assert await peer.codes(10) == [Code.OK] * 10
            assert sorted(bookie.fences) == list(range(1, 11))  # what the other one asked for is not done
            bookie.turns.stop()

    run(test)


class FullSoon(FencingBookie):
    """With the third fence too many new ledgers wait for index files."""

    def fence(self, ledger_id: int, master_key: bytes, *, urgent: bool = True) -> asyncio.Future[Code]:
        self.new_ledgers_wait = len(self.fences) >= 2
        return super().fence(ledger_id, master_key, urgent=urgent)


def test_fences_that_were_looked_up_wait_when_too_many_new_ledgers_have_no_index_file() -> None:
    async def test() -> None:
        bookie = FullSoon()
        async with front(NetConfig(), bookie) as here:
            peer = await here.connect()
            await peer.send(fences(1, 10))
            await until(lambda: bookie.new_ledgers_wait)
            await asyncio.sleep(0.1)  # fences that do not wait would have begun
            assert sorted(bookie.fences) == [1, 2, 3]
            bookie.turns.stop()

    run(test)


def test_n1_a_ledger_in_memory_is_fenced_at_once_while_new_ledgers_wait() -> None:
    """Whoever recovers a ledger that the bookie knows does not wait for the index files of an attacker's ledgers."""

    async def test() -> None:
        bookie = FencingBookie()
        bookie.new_ledgers_wait = True
        bookie.in_memory = {1, 7, 200}
        async with front(NetConfig(), bookie) as here:
            attacker, peer = await here.connect(), await here.connect()
            await attacker.send(fences(100, 10))
            await until(lambda: here.server.load.reads == 10)
            await peer.send(fences(1, 1))
            await until(lambda: [*bookie.fences] == [1])
            await attacker.send(fences(200, 1))
            await peer.send(fences(6, 1) + fences(7, 1))
            await asyncio.sleep(0.1)  # fences that do not wait would have begun
            assert [*bookie.fences] == [1], "order within a connection"
            bookie.new_ledgers_wait = False
            await until(lambda: len(bookie.fences) == 14)
            bookie.turns.stop()

    run(test)


class CreatingBookie(FencingBookie):
    """Notes when it was asked to fence which ledger. Those that are not in memory are created."""

    def __init__(self) -> None:
        super().__init__()
        self.fenced: list[tuple[int, float]] = []

    def fence(self, ledger_id: int, master_key: bytes, *, urgent: bool = True) -> asyncio.Future[Code]:
        self.fenced.append((ledger_id, asyncio.get_running_loop().time()))
        self.new_ledgers += not self.is_in_memory(ledger_id)
        return super().fence(ledger_id, master_key, urgent=urgent)


def test_n1_many_fences_that_create_ledgers_leave_the_event_loop_time_in_between() -> None:
    async def test() -> None:
        bookie = CreatingBookie()
        bookie.in_memory = {7}
        async with front(NetConfig(), bookie) as here:
            greedy, honest = await here.connect(), await here.connect()
            await greedy.send(fences(1000, 100))
            await until(lambda: bool(bookie.fences))
            await honest.send(fences(7, 1))
            await until(lambda: len(bookie.fences) == 101)
            created = [at_s for ledger_id, at_s in bookie.fenced if ledger_id != 7]
            pauses_s = [then - now for now, then in itertools.pairwise(created)]
            assert sum(pause_s > 0.0019 for pause_s in pauses_s) >= 100 // 4 - 1
            assert 7 in [ledger_id for ledger_id, _ in bookie.fenced[:100]], "a ledger in memory does not wait for them"
            bookie.durable()
            assert await greedy.codes(100) == [Code.OK] * 100
            bookie.turns.stop()

    run(test)


def test_fences_of_ledgers_that_the_bookie_holds_do_not_pause() -> None:
    async def test() -> None:
        bookie = CreatingBookie()
        bookie.in_memory = set(range(100))
        async with front(NetConfig(), bookie) as here:
            peer = await here.connect()
            await peer.send(fences(0, 100))
            await until(lambda: len(bookie.fences) == 100)
            turns = sorted(bookie.fences_by_turn)
            assert turns[-1] - turns[0] < 3 * 100 // 4, "no turn passes without any"
            bookie.turns.stop()

    run(test)


def test_n1_adds_do_not_ask_long_polls_that_wait_for_a_later_entry() -> None:
    descriptor, asked = LedgerDescriptor(1, KEY), []
    for i in range(20_000):
        descriptor.watch_lac(1 << 40, lambda i=i: asked.append(i))  # type: ignore[misc]
    descriptor.watch_lac(5, lambda: asked.append(-1))
    for descriptor.last_add_confirmed in range(100):
        descriptor.tell_watchers()
        assert asked == ([-1] if descriptor.last_add_confirmed > 5 else [])
    assert descriptor.lac_awaited == 1 << 40
    descriptor.last_add_confirmed = (1 << 40) + 1
    descriptor.tell_watchers()
    assert len(asked) == 20_001


def test_n1_index_files_of_unknown_ledgers_are_not_searched_in_the_event_loop() -> None:
    """A search waits while a flush creates a file in the same directory, and everybody would wait with it."""

    async def test() -> None:
        bookie = FencingBookie()
        searched: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def look_up(ledger_ids: frozenset[int]) -> None:
            bookie.looked_up.append(ledger_ids)
            await asyncio.shield(searched)

        bookie.look_up = look_up  # type: ignore[method-assign]
        async with front(NetConfig(), bookie) as here:
            greedy, honest = await here.connect(), await here.connect()
            await greedy.send(fences(1000, 200))
            await until(lambda: len(bookie.looked_up) == 1)
            await honest.send(fences(7, 1))
            await until(lambda: here.server.load.reads == 201)
            assert not bookie.fences  # none begins before its search has ended
            searched.set_result(None)
            await until(lambda: len(bookie.fences) == 201)
            assert max(map(len, bookie.looked_up)) <= 64
            assert 7 in bookie.looked_up[1]  # one of the first after those that were searched already
            bookie.flushes += 1
            await greedy.send(fences(5000, 1))
            await until(lambda: 5000 in bookie.fences)
            bookie.durable()
            assert await greedy.codes(201) == [Code.OK] * 201
            assert await honest.codes(1) == [Code.OK]
            bookie.turns.stop()

    run(test)


def test_n1_a_search_that_a_flush_overtook_is_repeated() -> None:
    async def test() -> None:
        bookie = FencingBookie()

        async def look_up(ledger_ids: frozenset[int]) -> None:
            bookie.looked_up.append(ledger_ids)
            bookie.flushes += len(bookie.looked_up) < 3

        bookie.look_up = look_up  # type: ignore[method-assign]
        async with front(NetConfig(), bookie) as here:
            peer = await here.connect()
            await peer.send(fences(1, 1))
            await until(lambda: 1 in bookie.fences)
            assert bookie.looked_up == [{1}] * 3
            bookie.durable()
            assert await peer.codes(1) == [Code.OK]
            bookie.turns.stop()

    run(test)


@in_loop
async def test_n1_a_ledger_that_a_search_did_not_find_needs_no_search_until_a_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place.make(tmp_path / "bookie", flush_interval_ms=600_000)
    async with running(place) as bookie:
        for ledger_id in (1, 2):
            assert await bookie.bookie.fence(ledger_id, KEY) is Code.OK
        await bookie.storage.checkpoint()
        for ledger_id in (1, 2):
            bookie.storage.descriptors.drop(ledger_id)  # as if it had not been used for a long time
        searched: list[int] = []
        path = bookie.storage.index.path

        def note(ledger_id: int) -> str | None:
            searched.append(ledger_id)
            return path(ledger_id)

        monkeypatch.setattr(bookie.storage.index, "path", note)
        await bookie.bookie.look_up([1, 3, 4])
        assert sorted(searched) == [1, 3, 4]
        searched.clear()
        assert bookie.bookie.descriptor(3) is None
        assert not searched
        known = bookie.bookie.descriptor(1)
        assert isinstance(known, LedgerDescriptor)
        assert known.fenced
        assert await bookie.bookie.fence(3, KEY) is Code.OK
        await bookie.storage.checkpoint()
        bookie.storage.descriptors.drop(3)
        made = bookie.bookie.descriptor(3)
        assert isinstance(made, LedgerDescriptor)  # the flush created its file
        assert made.fenced
        searched.clear()
        assert bookie.bookie.descriptor(4) is None
        assert searched == [4]  # what was known before the flush is forgotten


@in_loop
async def test_n1_a_fence_that_is_not_urgent_is_written_with_the_next_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NEXT_FENCE_WAIT_S", "MOST_FENCES_WAIT_S"):
        monkeypatch.setattr(group_timing, name, 600.0)
    async with running(Place.make(tmp_path / "bookie", flush_interval_ms=600_000)) as bookie:
        waiting = bookie.bookie.fence(1, KEY, urgent=False)
        await asyncio.sleep(0.05)  # it would have been written
        assert not waiting.done()
        async with asyncio.timeout(30):
            assert await asyncio.gather(waiting, bookie.bookie.fence(2, KEY)) == [Code.OK] * 2


@in_loop
async def test_new_ledgers_wait_for_a_flush_and_one_look_covers_few_ledgers(tmp_path: Path) -> None:
    place = Place.make(tmp_path / "bookie", flush_interval_ms=600_000)
    async with running(place) as bookie:
        await asyncio.gather(*(bookie.bookie.fence(i, KEY) for i in range(2047)))
        assert not bookie.bookie.new_ledgers_wait
        await bookie.bookie.fence(2047, KEY)
        assert bookie.bookie.new_ledgers_wait
        async with asyncio.timeout(60):  # it asked for a flush
            while bookie.bookie.new_ledgers_wait:
                await asyncio.sleep(0.01)
        ledger_ids = np.repeat(np.arange(1000), 2)
        part = await bookie.bookie.read(ledger_ids, np.zeros(2000, np.int64), 1 << 20)
        assert part.codes.tolist() == [Code.NO_ENTRY] * 128
