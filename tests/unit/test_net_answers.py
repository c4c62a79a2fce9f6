"""Answers of one connection on their way out."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

import pytest

from bk_spark.protocol.codes import Code
from bk_spark.protocol.entries.digest import Buffer
from bookie_server.net.common import kernel_room
from bookie_server.net.common.fair_slots import FairSlots
from bookie_server.net.common.limits import NetConfig
from bookie_server.net.common.load import Load
from bookie_server.net.native.answers import Answers, send_together
from bookie_server.net.native.outbox import Outbox
from bookie_server.net.native.slices import SLICE_BYTES, Slices
from tests.support.front import MIB, Front, HeldBookie, Peer, front, reads, run, until


class Transport:
    """Takes everything, and notes the writes."""

    def __init__(self, **extra: object) -> None:
        self.writes: list[Buffer] = []
        self.buffered_bytes = 0
        self.breaks = False
        self.closing = False
        self._extra = extra

    def get_extra_info(self, name: str) -> object:
        return self._extra.get(name)

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.buffered_bytes

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: Buffer) -> None:
        self.writes.append(data)
        self.closing = self.breaks


def test_small_answers_are_one_write_and_large_ones_are_not_copied() -> None:
    async def test() -> None:
        load = Load(NetConfig(), lambda: None, lambda: None, lambda: 0)
        answers, transport = Answers(load, FairSlots(8), Slices(), Outbox(), 64 * 1024), Transport()
        answers.begin(cast(asyncio.Transport, transport))
        answers.send(b"a", b"b")
        answers.send(b"c")
        await asyncio.sleep(0)
        assert transport.writes == [b"abc"]
        transport.writes.clear()
        answers.has_read()
        large = memoryview(bytes(MIB))
        answers.send(b"a", b"b", large, b"c" * 100_000, b"d" * 100_000, b"e")
        await asyncio.sleep(0)
        assert transport.writes == [b"ab", large, b"c" * 100_000, b"d" * 100_000 + b"e"]
        assert transport.writes[1] is large

    run(test)


class Pair:
    """A connected pair of sockets, and the transport of the sending one."""

    def __init__(self, **extra: object) -> None:
        self.sending, self.receiving = socket.socketpair()
        self.sending.setblocking(False)
        self.transport = Transport(socket=self.sending, **extra)

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.sending.close()
        self.receiving.close()

    def send(self, *buffers: Buffer) -> None:
        send_together(cast(asyncio.Transport, self.transport), self.sending.fileno(), buffers)

    def received(self) -> bytes:
        """What the kernel took."""
        data = bytearray()
        self.receiving.setblocking(False)
        while True:
            try:
                data += self.receiving.recv(MIB)
            except BlockingIOError:
                return bytes(data)


def test_the_first_bytes_of_a_large_answer_do_not_go_out_alone() -> None:
    with Pair() as pair:
        pair.send(b"head", memoryview(b"body"), b"tail")
        assert pair.receiving.recv(MIB) == b"headbodytail"
        assert pair.transport.writes == []


@pytest.mark.parametrize(("size", "copied"), [(16 * 1024, True), (64 * 1024, False)])
def test_where_one_call_sends_many_buffers_fewer_are_copied(size: int, copied: bool) -> None:
    async def test() -> None:
        with Pair() as pair:
            load = Load(NetConfig(), lambda: None, lambda: None, lambda: 0)
            answers = Answers(load, FairSlots(8), Slices(), Outbox(), MIB)
            answers.begin(cast(asyncio.Transport, pair.transport))
            pair.transport.buffered_bytes = 1  # so the transport gets the buffers that the call would get
            entry = memoryview(bytes(size))
            answers.send(b"head", entry, b"tail", b"end")
            await asyncio.sleep(0)
            assert b"".join(pair.transport.writes) == b"head" + entry + b"tailend"
            assert any(buffer is entry for buffer in pair.transport.writes) is not copied

    run(test)


def test_what_the_kernel_does_not_take_is_left_to_the_transport_in_order() -> None:
    with Pair() as pair:
        buffers = [b"a", b"b" * MIB, b"", b"c" * MIB, b"d"]
        pair.send(*buffers)
        taken, left = pair.received(), b"".join(pair.transport.writes)
        assert len(taken) > 1
        assert len(left) > 1
        assert taken + left == b"".join(buffers)


def test_nothing_overtakes_what_the_transport_holds_already() -> None:
    with Pair() as pair:
        pair.transport.buffered_bytes = 1
        pair.send(b"a", b"b")
        assert pair.received() == b""
        assert pair.transport.writes == [b"a", b"b"]


def test_the_transport_gets_the_answers_to_a_broken_connection() -> None:
    with Pair() as pair:
        pair.receiving.close()
        pair.send(b"a", b"b")
        assert pair.transport.writes == [b"a", b"b"]


def test_a_transport_that_closes_gets_no_more() -> None:
    """From the fifth write after its failure on, asyncio warns."""
    with Pair() as pair:
        pair.receiving.close()
        pair.transport.breaks = True
        pair.send(*[b"a"] * 8)
        assert pair.transport.writes == [b"a"]


def test_more_buffers_than_one_call_takes() -> None:
    with Pair() as pair:
        buffers = [bytes([i % 251]) for i in range(2500)]
        pair.send(*buffers)
        assert pair.received() + b"".join(pair.transport.writes) == b"".join(buffers)


@pytest.mark.parametrize("tls", [None, "a context"])
def test_bytes_go_past_the_transport_only_without_tls(tls: object) -> None:
    async def test() -> None:
        load = Load(NetConfig(), lambda: None, lambda: None, lambda: 0)
        with Pair(sslcontext=tls) as pair:
            answers = Answers(load, FairSlots(8), Slices(), Outbox(), 64 * 1024)
            answers.begin(cast(asyncio.Transport, pair.transport))
            answers.has_read()
            answers.send(b"a", b"b" * 140_000)
            await asyncio.sleep(0)
            assert (pair.received()[:2], len(pair.transport.writes)) == ((b"ab", 0) if tls is None else (b"", 2))

    run(test)


def answers_to(transport: Transport, slices: Slices) -> tuple[Answers, Load]:
    load = Load(NetConfig(), lambda: None, lambda: None, lambda: 0)
    answers = Answers(load, FairSlots(8), slices, Outbox(), 64 * 1024)
    answers.begin(cast(asyncio.Transport, transport))
    return answers, load


def test_n1_large_answers_to_peers_of_which_nobody_knows_whether_they_read_go_out_a_little_in_a_turn() -> None:
    async def test() -> None:
        slices, transports = Slices(), [Transport() for _ in range(20)]
        answers = [answers_to(transport, slices)[0] for transport in transports]
        entry = bytes(range(256)) * 4096
        for one in answers:
            one.send(b"head", memoryview(entry))
            one.flush()  # the first slices
            one.send(b"tail")
        before = len(transports)
        while any(not one.all_taken for one in answers):
            await asyncio.sleep(0)
            handed_over = sum(map(len, (transport.writes for transport in transports)))
            assert handed_over - before <= 6  # two slices; in one turn each also joins the small buffers
            before = handed_over
        await asyncio.sleep(0)
        for transport in transports:
            assert b"".join(transport.writes) == b"head" + entry + b"tail"
            assert max(map(len, transport.writes)) <= SLICE_BYTES

    run(test)


@pytest.mark.parametrize("is_part", [False, True], ids=["own_memory", "part_of_larger_memory"])
def test_n1_answers_wait_without_a_copy_for_peers_that_do_not_read_unless_they_hold_more_memory(is_part: bool) -> None:
    async def test() -> None:
        transport = Transport()
        answers, load = answers_to(transport, Slices())
        answers.send(memoryview(bytes(8 * MIB if is_part else MIB))[:MIB])
        answers.flush()
        answers.held_back()
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(b"".join(transport.writes)) == (MIB if is_part else 2 * SLICE_BYTES)
        assert load.unsent_bytes == (0 if is_part else MIB - 2 * SLICE_BYTES)  # this transport takes everything
        answers.go_on()
        await asyncio.wait_for(answers.wait_taken(), 60)
        assert len(b"".join(transport.writes)) == MIB
        assert load.unsent_bytes == 0

    run(test)


@pytest.mark.parametrize("how", ["finish", "end"])
def test_what_is_left_of_slices_when_a_connection_ends(how: str) -> None:
    async def test() -> None:
        transport = Transport()
        answers, load = answers_to(transport, Slices())
        answers.send(bytes(MIB))
        answers.flush()
        answers.held_back()
        getattr(answers, how)()
        assert len(b"".join(transport.writes)) == (MIB if how == "finish" else SLICE_BYTES)
        assert load.unsent_bytes == 0
        await asyncio.wait_for(answers.wait_taken(), 60) if how == "end" else None

    run(test)


def _limits(here: Front) -> list[int]:
    """How many bytes the kernel keeps for each connection."""
    return sorted(here.socket_options(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT))


async def _ask(here: Front, *, entries: int) -> Peer:
    """Return a peer for which answers wait."""
    peer = await here.connect(receive_bytes=4096)
    await peer.send(reads(*((1, i) for i in range(entries))))
    await until(lambda: any(one.answers.unsent_bytes for one in here.connections))
    return peer


def test_n1_the_kernel_keeps_more_for_a_peer_that_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_room, "_MOST_READERS", 1)
    little, much = kernel_room.LITTLE_BYTES, kernel_room.MUCH_BYTES

    async def test() -> None:
        async with front(NetConfig(), HeldBookie(entry_bytes=MIB)) as here:
            first = await _ask(here, entries=3)
            assert _limits(here) == [little]  # nobody knows whether it reads
            assert await first.codes(3) == [Code.OK] * 3
            assert _limits(here) == [much]
            second = await _ask(here, entries=3)
            assert await second.codes(3) == [Code.OK] * 3
            assert _limits(here) == [little, much]  # enough peers have more
            first.socket.close()
            await until(lambda: here.server.connection_count == 1)
            await second.send(reads(*((1, i) for i in range(3))))
            assert await second.codes(3) == [Code.OK] * 3
            assert _limits(here) == [much]

    run(test)


def test_n1_adds_of_a_group_are_answered_when_it_is_through_and_not_a_turn_later() -> None:
    class Counting:
        sent = 0

        def flush(self) -> None:
            self.sent += 1

    class Failing(Counting):
        def flush(self) -> None:
            super().flush()
            raise RuntimeError("of one connection")

    async def test() -> None:
        outbox, senders = Outbox(), [Failing(), Counting(), Counting()]
        for sender in (*senders, senders[0]):
            outbox.wait(sender)
        assert [sender.sent for sender in senders] == [0, 0, 0]
        outbox.flush()  # the group is through
        assert [sender.sent for sender in senders] == [1, 1, 1]
        await asyncio.sleep(0)
        assert [sender.sent for sender in senders] == [1, 1, 1]
        outbox.wait(senders[1])
        await asyncio.sleep(0)  # without a group
        assert senders[1].sent == 2

    run(test)
