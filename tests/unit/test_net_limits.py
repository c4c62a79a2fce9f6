"""What peers can make the front end hold: over real sockets, above a bookie that answers when the test says so."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import numpy as np
import pytest

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.codes import Code
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.framing import frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import wire_v3
from bookie_server.entry_reader import ReadPart
from bookie_server.net.common.limits import NetConfig
from bookie_server.net.native import server as native
from bookie_server.net.native.server import NativeServer
from tests.support.bookie import KEY, add_frame, stored
from tests.support.front import AUTH, MIB, Front, HeldBookie, Times, front, poll, reads, run, until, v3_add

# --- adds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("v3_frames", [False, True])
def test_adds_beyond_the_limit_of_a_connection_are_too_many(v3_frames: bool) -> None:
    async def test() -> None:
        bookie = HeldBookie()
        async with front(NetConfig(max_pending_adds=10), bookie) as here:
            peer, other = await here.connect(), await here.connect()
            await peer.send(b"".join(v3_add(i) if v3_frames else add_frame(1, i, size=100) for i in range(50)))
            if v3_frames:
                refused = [wire_v3.parse_response(await peer.body()) for _ in range(40)]
                assert {response.addResponse.status for response in refused} == {pb.ETOOMANYREQUESTS}
                assert sorted(response.addResponse.entryId for response in refused) == list(range(10, 50))
            else:
                assert await peer.codes(40) == [Code.TOO_MANY_REQUESTS] * 40
            assert bookie.entries == 10
            assert here.server.load.rejected_adds == 40
            await other.send(add_frame(1, 0))
            await until(lambda: bookie.entries == 11)
            bookie.answer()
            for _ in range(10):
                await peer.body()
            await peer.send(v3_add(99) if v3_frames else add_frame(1, 99))
            await until(lambda: bookie.entries == 1)

    run(test)


def test_adds_in_progress_stop_the_reading_of_all_sockets() -> None:
    async def test() -> None:
        bookie = HeldBookie()
        async with front(NetConfig(max_adds_in_progress=4), bookie) as here:
            peer, other = await here.connect(), await here.connect()
            await peer.send(b"".join(add_frame(1, i) for i in range(4)))
            await until(lambda: here.server.load.full)
            await other.send(add_frame(2, 0))
            late = await here.connect()
            await late.send(add_frame(2, 1))
            await asyncio.sleep(0.1)  # more would be there
            assert bookie.entries == 4
            bookie.answer()
            assert await peer.codes(4) == [Code.OK] * 4
            await until(lambda: bookie.entries == 2)

    run(test)


def test_adds_of_a_few_bytes_each_count_with_what_they_cost() -> None:
    """Each of these is a run of its own, with objects of its own: far more than its bytes."""

    async def test() -> None:
        bookie = HeldBookie()
        config = NetConfig(adds_high_bytes=1 * MIB, adds_low_bytes=MIB // 2, max_pending_adds=0)
        async with front(config, bookie) as here:
            peer = await here.connect()
            keys = [bytes(20), KEY]
            await peer.send_what_is_taken(b"".join(add_frame(1, i, key=keys[i % 2], size=10) for i in range(20_000)))
            await until(lambda: here.server.load.full)
            assert len(bookie.adds) < 1000
            seen = 0
            while seen < 20_000:
                seen += bookie.entries
                bookie.answer()
                await asyncio.sleep(0)
                if bookie.entries == 0 and not here.server.load.adds:
                    break

    run(test)


def test_an_answer_that_cannot_be_made_does_not_keep_others_from_theirs() -> None:
    async def test() -> None:
        bookie = HeldBookie()
        async with front(NetConfig(), bookie) as here:
            bad, good = await here.connect(), await here.connect()
            await bad.send(v3_add(0))
            await until(lambda: bookie.entries == 1)
            await good.send(v3_add(1))
            await until(lambda: bookie.entries == 2)
            (_, first), (_, second) = bookie.adds
            for done in (first, second):
                done(np.array([999 if done is first else 0], np.int32))
            assert await bad.closed()
            assert wire_v3.parse_response(await good.body()).addResponse.entryId == 1
            assert here.server.load.adds == 0
            bookie.adds.clear()

    run(test)


def test_priority_is_told_to_the_bookie() -> None:
    async def test() -> None:
        bookie = HeldBookie()
        async with front(NetConfig(), bookie) as here:
            v2, v3_peer = await here.connect(), await here.connect()
            await v2.send(add_frame(1, 0) + add_frame(1, 1, flags=4) + add_frame(1, 2, flags=2))
            await until(lambda: bookie.entries == 3)
            assert bookie.priorities == [False, True, False]
            request = wire_v3.parse_request(v3_add(3)[4:])
            request.header.priority = 100
            await v3_peer.send(v3_add(4) + frame(request.SerializeToString()))
            await until(lambda: bookie.entries == 5)
            assert bookie.priorities == [False, True, False, False, True]

    run(test)


def test_what_waits_for_a_journal_counts_too() -> None:
    """WRITE_LAC and FORCE_LEDGER are not adds, but may be asked for as often."""

    async def test() -> None:
        config = NetConfig(adds_high_bytes=MIB, adds_low_bytes=MIB // 2, close_timeout_ms=50)
        server = NativeServer(HeldBookie(), disk_space=lambda: (1, 2), config=config)  # type: ignore[arg-type]
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        with contextlib.ExitStack() as stack:
            stack.enter_context(listener)
            await server.start(listener)
            here = Front(server, HeldBookie(), listener.getsockname()[1], stack)
            peer = await here.connect()
            packet = wire_v3.write_lac_request(1, 1, stored(1, 1)[:36], KEY)
            await peer.send_what_is_taken((packet + wire_v3.force_ledger_request(2, 1)) * 20_000)
            await until(lambda: server.load.full)
            assert server.load.adds_bytes < 2 * MIB
            await server.close()

    run(test)


# --- reads ---------------------------------------------------------------------------------------


def test_reads_answered_at_once_within_one_receive_are_bounded() -> None:
    """Reads with other requests between are each answered from memory, as long as the peer takes the answers."""

    async def test() -> None:
        bookie = HeldBookie(entry_bytes=100_000)
        async with front(NetConfig(), bookie) as here:
            peer = await here.connect(receive_bytes=4096)
            await peer.send_what_is_taken((reads((1, 0)) + AUTH) * 5000)
            await asyncio.sleep(0.1)  # what is answered at once is answered
            # Besides what the kernel takes for the peer.
            assert bookie.reads < 100
            assert here.server.load.unsent_bytes < MIB // 2
            assert here.server.load.reads_bytes < 3 * MIB

    run(test)


@pytest.mark.parametrize("v3_frames", [False, True])
def test_a_large_entry_waits_for_room_though_it_is_in_memory(v3_frames: bool) -> None:
    """It would be answered at once otherwise, and what peers have not read would grow beyond the limit."""

    async def test() -> None:
        config = NetConfig()
        async with front(config, HeldBookie(entry_bytes=100_000)) as here:
            peer = await here.connect()
            here.server.load.change_unsent(config.max_unsent_bytes)  # other peers do not read
            await peer.send((wire_v3.read_requests(5, 1, np.arange(1)) if v3_frames else reads((1, 0))) + AUTH)
            # The answer of the request behind it.
            assert len(await peer.body()) < 1_000
            here.server.load.change_unsent(-config.max_unsent_bytes)
            assert len(await peer.body()) > 100_000

    run(test)


def test_reads_beyond_the_limit_of_a_connection_are_too_many() -> None:
    async def test() -> None:
        bookie = HeldBookie()
        async with front(NetConfig(max_pending_reads=10), bookie) as here:
            peer = await here.connect()
            await peer.send(wire_v2.read_requests(1, range(50)))
            codes = await peer.codes(50)
            assert sorted(codes) == [Code.OK] * 10 + [Code.TOO_MANY_REQUESTS] * 40
            v3_peer = await here.connect()
            await v3_peer.send(wire_v3.read_requests(5, 1, np.arange(50)))
            answers = [wire_v3.parse_response(await v3_peer.body()).readResponse.status for _ in range(50)]
            assert sorted(answers) == [pb.EOK] * 10 + [pb.ETOOMANYREQUESTS] * 40
            assert here.server.load.rejected_reads == 80

    run(test)


def test_waiting_reads_of_all_connections_are_bounded_and_given_back() -> None:
    async def test() -> None:
        bookie = HeldBookie(entry_bytes=200_000)
        config = NetConfig(max_waiting_reads_bytes=100_000)
        async with front(config, bookie) as here:
            peers = [await here.connect(receive_bytes=4096) for _ in range(30)]
            for peer in peers:
                await peer.send_what_is_taken(wire_v2.read_requests(1, range(300)) * 3, 0.02)
            await until(lambda: here.server.load.rejected_reads > 0)
            assert here.server.load.reads_bytes <= 100_000
            for peer in peers:
                peer.socket.close()
            await until(lambda: here.server.load.reads_bytes == 0)
            again = await here.connect()
            await again.send(wire_v2.read_requests(1, range(20)))
            assert await again.codes(20) == [Code.OK] * 20

    run(test)


def test_a_peer_that_takes_nothing_makes_way_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(native, "_LOOK_INTERVAL_S", 0.02)
        bookie = HeldBookie(entry_bytes=1 * MIB)
        config = NetConfig(max_unsent_bytes=8 * MIB, stalled_peer_timeout_ms=300)
        async with front(config, bookie) as here:
            greedy = [await here.connect(receive_bytes=4096) for _ in range(40)]
            for peer in greedy:
                await peer.send(wire_v2.read_requests(1, range(40)))
            # Near the limit peers that stall are closed: whether it is reached depends on who comes first.
            await until(lambda: not here.server.load.has_room.is_set() or here.server.connection_count < 40)
            assert here.server.load.unsent_bytes < 20 * MIB
            honest = await here.connect()
            await honest.send(wire_v2.read_requests(1, range(12)))
            assert await honest.codes(12) == [Code.OK] * 12
            assert here.server.connection_count < 41

    run(test)


def test_a_slow_peer_is_left_alone_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(native, "_LOOK_INTERVAL_S", 0.02)
        bookie = HeldBookie(entry_bytes=1 * MIB)
        async with front(NetConfig(stalled_peer_timeout_ms=1), bookie) as here:
            slow = await here.connect(receive_bytes=4096)
            await slow.send(wire_v2.read_requests(1, range(20)))
            await until(lambda: here.server.load.unsent_bytes > 0)
            looks: list[float] = []
            frames = here.server.shared.large_frames
            look = frames.look

            def note(now: float) -> None:
                looks.append(now)
                look(now)

            frames.look = note  # type: ignore[method-assign]
            await until(lambda: len(looks) >= 4)  # three of them are over
            assert await slow.codes(20) == [Code.OK] * 20

    run(test)


def test_connections_that_go_away_leave_nothing_behind() -> None:
    async def test() -> None:
        bookie = HeldBookie(entry_bytes=300_000)
        async with front(NetConfig(), bookie) as here:
            for _ in range(20):
                peer = await here.connect(receive_bytes=4096)
                await peer.send(wire_v3.read_requests(5, 1, np.arange(100)) + poll(1) + v3_add(1))
                await peer.send(wire_v3.list_of_entries_request(9, 1) + v3_add(2)[:50])
                await until(lambda: here.server.load.reads > 0)
                peer.socket.close()
            await until(lambda: here.server.connection_count == 0)
            load = here.server.load
            assert (load.reads, load.reads_bytes, load.unsent_bytes) == (0, 0, 0)
            await until(lambda: load.polls == 0)

    run(test)


@pytest.mark.parametrize("data", [wire_v2.read_requests(1, range(2)), poll(1, 0)], ids=["read", "poll"])
def test_a_read_that_fails_unexpectedly_closes_its_connection(data: bytes) -> None:
    async def test() -> None:
        bookie = HeldBookie()
        async with front(NetConfig(), bookie) as here:
            bookie.read_error = RuntimeError("as it may be")
            bookie.lac_reached.set()
            peer, other = await here.connect(), await here.connect()
            await peer.send(data)
            assert await peer.closed()
            bookie.read_error = None
            await other.send(wire_v2.read_requests(1, range(2)))
            assert await other.codes(2) == [Code.OK] * 2

    run(test)


# --- long polls ----------------------------------------------------------------------------------


def test_long_polls_are_bounded_per_connection_and_in_total() -> None:
    async def test() -> None:
        async with front(NetConfig(max_polls=5, max_polls_in_total=8), HeldBookie()) as here:
            first, second = await here.connect(), await here.connect()
            await first.send(b"".join(poll(i) for i in range(7)))
            for txn_id in (5, 6):
                answer = wire_v3.parse_response(await first.body())
                assert (answer.header.txnId, answer.status) == (txn_id, pb.ETOOMANYREQUESTS)
            await second.send(b"".join(poll(i) for i in range(5)))
            assert wire_v3.parse_response(await second.body()).header.txnId == 3
            assert here.server.load.polls == 8
            first.socket.close()
            await until(lambda: here.server.load.polls == 3)

    run(test)


def test_long_polls_that_wake_together_do_not_fill_the_memory() -> None:
    async def test() -> None:
        bookie = HeldBookie(entry_bytes=MIB // 8)
        async with front(NetConfig(max_unsent_bytes=MIB), bookie) as here:
            peer = await here.connect(receive_bytes=4096)
            await peer.send(b"".join(poll(i) for i in range(300)))
            await until(lambda: here.server.load.polls == 300)
            bookie.lac_reached.set()
            await asyncio.sleep(0.3)  # all polls are awake
            assert here.server.load.unsent_bytes < 2 * MIB
            answers = {wire_v3.parse_response(await peer.body()).header.txnId for _ in range(300)}
            assert answers == set(range(300))

    run(test)


def test_a_long_poll_is_answered_after_the_longest_time_at_last() -> None:
    async def test() -> None:
        async with front(NetConfig(max_poll_ms=50), HeldBookie()) as here:
            peer = await here.connect()
            await peer.send(poll(1, 2**62))
            answer = wire_v3.parse_response(await peer.body())
            assert (answer.status, answer.readResponse.entryId, answer.readResponse.maxLAC) == (pb.EOK, -1, 0)

    run(test)


# --- connections and frames ----------------------------------------------------------------------


def test_an_idle_peer_stays_and_one_with_half_a_frame_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(native, "_LOOK_INTERVAL_S", 0.02)
        async with front(NetConfig(frame_timeout_ms=200), HeldBookie()) as here:
            idle, half, large = [await here.connect() for _ in range(3)]
            await idle.send((AUTH + reads((1, 1))) * 1000)  # too much for one turn
            for _ in range(2000):
                await idle.body()
            await half.send(add_frame(1, 0)[:50])
            await large.send(add_frame(1, 0, size=MIB)[:-1])
            assert await half.closed()
            assert await large.closed()
            assert here.server.shared.half_frames.closed == 2
            await idle.send(wire_v2.read_requests(1, [1]))
            assert await idle.codes(1) == [Code.OK]

    run(test)


def test_half_frames_of_all_connections_are_bounded() -> None:
    async def test() -> None:
        async with front(NetConfig(max_half_frames_bytes=MIB), HeldBookie()) as here:
            *others, last = [await here.connect() for _ in range(20)]
            for peer in others:
                await peer.send_what_is_taken(add_frame(1, 0, size=200_000)[:-1])
            assert here.server.shared.half_frames.bytes <= MIB
            # In one turn the server reads its connections in an order of its own. The last one begins after all others.
            await until(lambda: here.server.connection_count <= 6)
            await last.send_what_is_taken(add_frame(1, 0, size=200_000)[:-1])
            await until(lambda: here.server.connection_count <= 5)
            await last.send(add_frame(1, 0, size=200_000)[-1:])
            await until(lambda: here.bookie.entries == 1)
            assert here.server.shared.half_frames.closed == 20 - here.server.connection_count

    run(test)


def test_many_small_requests_of_all_kinds_are_all_answered_in_turns() -> None:
    async def test() -> None:
        bookie = HeldBookie()
        async with front(NetConfig(), bookie) as here:
            peer, other = await here.connect(), await here.connect()
            data = (AUTH + reads((1, 0)) + AUTH) * 3000
            sending = asyncio.ensure_future(peer.send(data))
            await other.send(reads((1, 1)))
            assert await other.codes(1) == [Code.OK]
            for _ in range(9000):
                await peer.body()
            await sending

    run(test)


def test_the_end_waits_for_adds_and_not_for_who_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(native, "_HANG_UP_TIMEOUT_S", 0.1)
        bookie = HeldBookie(entry_bytes=4 * MIB)
        async with front(NetConfig(), bookie) as here:
            stalled = await here.connect(receive_bytes=4096)
            await stalled.send(wire_v2.read_requests(1, range(10)))
            writer = await here.connect()
            await writer.send(add_frame(1, 0))
            await until(lambda: bookie.entries == 1 and here.server.load.unsent_bytes > 0)
            closing = asyncio.ensure_future(here.server.close())
            await asyncio.sleep(0.2)  # longer than it waits for who takes nothing
            assert not closing.done()
            bookie.answer()
            assert await writer.codes(1) == [Code.OK]
            await asyncio.wait_for(closing, 60)
            assert here.server.connection_count == 0 or await stalled.closed()

    run(test)


def test_times_of_requests_are_told() -> None:
    async def test() -> None:
        bookie, times = HeldBookie(), Times()
        async with front(NetConfig(), bookie, times) as here:
            peer, v3_peer = await here.connect(), await here.connect()
            await peer.send(b"".join(add_frame(1, i) for i in range(5)))
            await until(lambda: bookie.entries == 5)
            for _, done in bookie.adds:
                done(np.array([0, 0, Code.FENCED, 0, 0], np.int32))
            bookie.adds.clear()
            await peer.codes(5)
            await peer.send(wire_v2.read_requests(1, range(3)))
            await peer.codes(3)
            await v3_peer.send(poll(1, 0))
            await v3_peer.body()
            await v3_peer.send(wire_v3.bookie_info_request(2))
            await v3_peer.body()
            assert sum(count for kind, count, ok in times.seen if (kind, ok) == ("add", True)) == 4
            assert ("add", 1, False) in times.seen
            assert ("read", 3, True) in times.seen
            assert ("long_poll", 1, True) in times.seen
            assert ("info", 1, True) in times.seen

    run(test)


# --- lists of entries ----------------------------------------------------------------------------


def test_a_list_larger_than_a_frame_is_an_error_and_one_list_is_made_at_a_time() -> None:
    async def test() -> None:
        bookie = HeldBookie()
        async with front(NetConfig(max_frame_bytes=4096), bookie) as here:
            gone, peer = await here.connect(), await here.connect()
            await gone.send(wire_v3.list_of_entries_request(1, 1))
            await until(lambda: len(bookie.lists) == 1)
            gone.socket.close()
            await until(lambda: here.server.connection_count == 1)
            await peer.send(wire_v3.list_of_entries_request(2, 1))
            await asyncio.sleep(0.1)  # the second would have begun
            assert len(bookie.lists) == 1  # the first one is still being made
            bookie.lists[0].set_result((Code.OK, np.arange(3)))
            await until(lambda: len(bookie.lists) == 2)
            rises = np.cumsum(np.arange(1, 400))  # no two distances are equal
            bookie.lists[1].set_result((Code.OK, rises))
            answer = wire_v3.parse_response(await peer.body())
            assert (answer.status, answer.getListOfEntriesOfLedgerResponse.status) == (pb.EIO, pb.EIO)
            assert not answer.getListOfEntriesOfLedgerResponse.HasField("availabilityOfEntriesOfLedger")

    run(test)


class GatedBookie(HeldBookie):
    """Reads once, and then when the test says so."""

    def __init__(self) -> None:
        super().__init__(entry_bytes=64 * 1024)
        self.may_read = asyncio.Event()

    async def read(self, ledger_ids: Int64s, entry_ids: Int64s, limit_bytes: int, *, taken: bool = False) -> ReadPart:
        if self.reads:
            await self.may_read.wait()
        return await super().read(ledger_ids, entry_ids, limit_bytes, taken=taken)


def test_reads_that_were_answered_do_not_count_as_waiting() -> None:
    """A client that never has more than the limit outstanding is never told that there are too many."""

    async def test() -> None:
        bookie = GatedBookie()
        async with front(NetConfig(max_pending_reads=100), bookie) as here:
            peer = await here.connect()
            await peer.send(wire_v2.read_requests(1, range(24)))
            assert await peer.codes(8) == [Code.OK] * 8  # the first round of 512 KiB
            await peer.send(wire_v2.read_requests(1, range(84)))
            await until(lambda: here.server.load.reads == 100)
            assert here.server.load.rejected_reads == 0
            bookie.may_read.set()
            assert await peer.codes(100) == [Code.OK] * 100

    run(test)
