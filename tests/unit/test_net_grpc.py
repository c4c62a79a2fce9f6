"""The gRPC front end over real sockets: adds, reads, tail, fences, lists; bad input; limits; health and reflection."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from bk_spark.protocol.codes import Code
from bk_spark.protocol.proto import bookie_pb2 as pb
from bk_spark.protocol.wire.batches import SERVICE
from bookie_server.net.common.access.front_access import FrontAccess
from bookie_server.net.common.access.rights import Authorization
from bookie_server.net.common.limits import NetConfig
from tests.support import patient_loop
from tests.support.front import HeldBookie
from tests.support.grpc_front import KEY, Caller, GrpcFront, batch, caller, grpc_front, records
from tests.support.running_storage import OTHER_KEY, Place, Running, running, stored

LEDGER = 7


@asynccontextmanager
async def served(place: Place) -> AsyncIterator[tuple[Running, Caller]]:
    async with running(place) as bookie, grpc_front(bookie.bookie) as front, caller(front.port) as one:
        yield bookie, one


Play = Callable[[Running, Caller], Coroutine[Any, Any, None]]


def with_bookie(play: Play) -> Callable[[Path], None]:
    """A test of a real bookie behind the front end."""

    async def run(directory: Path) -> None:
        async with asyncio.timeout(120), served(Place.make(directory)) as (bookie, one):
            await play(bookie, one)

    def test(tmp_path: Path) -> None:
        patient_loop.run(run(tmp_path))

    test.__doc__ = play.__doc__
    return test


def cut(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        found.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def entries(count: int, first: int = 0, size: int = 64) -> list[bytes]:
    return [stored(LEDGER, first + i, size) for i in range(count)]


async def end_of(call: Any) -> grpc.StatusCode:
    """Take all answers; the status of the call."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    code: grpc.StatusCode = await call.code()
    return code


@with_bookie
async def test_batches_are_added_and_read(bookie: Running, one: Caller) -> None:
    small, large = entries(500), [stored(LEDGER, 500 + i, 300_000 + i) for i in range(3)]
    answers = await one.add(batch(1, LEDGER, small), batch(2, LEDGER, large))
    assert {i: (answer.code, list(answer.codes)) for i, answer in answers.items()} == {
        1: (pb.CODE_OK, []),
        2: (pb.CODE_OK, []),
    }
    found = await one.read(request_id=5, ledger_id=LEDGER, first_entry_id=0, count=503)
    assert [answer.last for answer in found] == [False] * (len(found) - 1) + [True]
    assert {answer.request_id for answer in found} == {5}
    assert sum(answer.count for answer in found) == 503
    assert [entry for answer in found for entry in cut(answer.records)] == small + large
    (run,) = await one.read(ledger_id=LEDGER, first_entry_id=490, count=1000, max_bytes=400_000)
    assert (run.code, run.count, run.last) == (pb.CODE_OK, 11, True)
    assert cut(run.records) == small[490:] + large[:1]
    (last,) = await one.read(ledger_id=LEDGER, first_entry_id=-1, count=1)
    assert cut(last.records) == large[-1:]


@with_bookie
async def test_entries_that_are_missing_have_their_own_codes(bookie: Running, one: Caller) -> None:
    await one.add(batch(1, LEDGER, entries(3) + entries(2, first=5)))
    (answer,) = await one.read(ledger_id=LEDGER, first_entry_id=1, count=3, step=2)
    assert (list(answer.codes), cut(answer.records)) == (
        [0, pb.CODE_NO_ENTRY, 0],
        [stored(LEDGER, 1), stored(LEDGER, 5)],
    )
    (answer,) = await one.read(ledger_id=LEDGER, first_entry_id=3, count=3, max_bytes=1000)
    assert (answer.code, answer.count, answer.records) == (pb.CODE_NO_ENTRY, 0, b"")
    (answer,) = await one.read(ledger_id=99, first_entry_id=0, count=2)
    assert list(answer.codes) == [pb.CODE_NO_LEDGER] * 2


@with_bookie
async def test_the_key_decides_who_writes_and_fences(bookie: Running, one: Caller) -> None:
    await one.add(batch(1, LEDGER, entries(1)))
    refused = await one.add(batch(1, LEDGER, entries(2, first=1), master_key=OTHER_KEY))
    assert refused[1].code == pb.CODE_UNAUTHORIZED
    fence = pb.FenceRequest(ledger_id=LEDGER, master_key=OTHER_KEY)
    assert (await one.ask("Fence", fence)).code == pb.CODE_UNAUTHORIZED
    (answer,) = await one.read(ledger_id=LEDGER, first_entry_id=0, count=1, fence_key=OTHER_KEY)
    assert (answer.code, answer.records) == (pb.CODE_UNAUTHORIZED, b"")
    assert (await one.add(batch(1, LEDGER, entries(1, first=1))))[1].code == pb.CODE_OK


@with_bookie
async def test_a_fence_refuses_all_adds_but_those_of_a_recovery(bookie: Running, one: Caller) -> None:
    await one.add(batch(1, LEDGER, entries(1)))
    (answer,) = await one.read(ledger_id=LEDGER, first_entry_id=-1, count=1, fence_key=KEY)
    assert cut(answer.records) == entries(1)
    answers = await one.add(batch(1, LEDGER, entries(1, first=1)), batch(2, LEDGER, entries(1, first=2), recovery=True))
    assert (answers[1].code, answers[2].code) == (pb.CODE_FENCED, pb.CODE_OK)
    assert (await one.ask("Fence", pb.FenceRequest(ledger_id=LEDGER, master_key=KEY))).code == pb.CODE_OK


@with_bookie
async def test_what_contradicts_itself_is_refused_and_changes_nothing(bookie: Running, one: Caller) -> None:
    good = entries(3)
    data = records(good)
    bad = {
        1: batch(1, LEDGER, good, records=data[:-1]),
        2: batch(2, LEDGER, good, records=data + b"\0\0"),
        3: batch(3, LEDGER, good, records=b"\xff\xff\xff\xff" + data[4:]),
        4: batch(4, LEDGER, good, count=4),
        5: batch(5, LEDGER, [], count=0),
        6: batch(6, LEDGER, [b"short"]),
        7: batch(7, LEDGER, [*good, stored(LEDGER + 1, 3)]),
        8: batch(8, LEDGER, good, master_key=b"short"),
        9: batch(9, LEDGER, [b""] * 3),
    }
    answers = await one.add(*bad.values(), batch(20, LEDGER, entries(1, first=9)))
    assert {i: answer.code for i, answer in answers.items()} == dict.fromkeys(bad, pb.CODE_BAD_REQUEST) | {20: 0}
    assert "do not add up" in answers[1].problem
    assert "too few for another length" in answers[2].problem
    assert "announces 4 entries and has 3" in answers[4].problem
    assert "another ledger" in answers[7].problem
    listed = await one.ask("ListEntries", pb.ListEntriesRequest(ledger_id=LEDGER))
    assert [(group.first_start, group.last_start, group.size) for group in listed.groups] == [(9, 9, 1)]
    wrong = [{"count": 0}, {"count": 10_001}, {"first_entry_id": -2, "count": 1}, {"first_entry_id": -1, "count": 2}]
    wrong += [{"count": 2, "step": 2, "max_bytes": 10}, {"first_entry_id": 2**63 - 2, "count": 3}]
    for fields in wrong:
        (answer,) = await one.read(ledger_id=LEDGER, **fields)
        assert (answer.code, answer.last, bool(answer.problem)) == (pb.CODE_BAD_REQUEST, True, True), fields


@with_bookie
async def test_bytes_that_are_no_message_end_the_call(bookie: Running, one: Caller) -> None:
    for method in ("Add", "Read"):
        call = one.stream(method)
        await call.write(b"\xff\xff\xff")
        assert await end_of(call) is grpc.StatusCode.INVALID_ARGUMENT
        assert (await call.details()).startswith("this is not a bk_spark.v1.")
    unary = one.channel.unary_unary(f"/{SERVICE}/Fence")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unary(b"\xff\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@with_bookie
async def test_the_end_of_a_ledger(bookie: Running, one: Caller) -> None:
    async def tail(previous: int, timeout_ms: int = 0) -> pb.TailAnswer:
        request = pb.TailRequest(ledger_id=LEDGER, previous_last_add_confirmed=previous, timeout_ms=timeout_ms)
        answer: pb.TailAnswer = await one.ask("Tail", request)
        return answer

    assert (await tail(-1)).code == pb.CODE_NO_LEDGER
    await one.add(batch(1, LEDGER, entries(2)))
    answer = await tail(-1)
    assert (answer.code, answer.last_add_confirmed, answer.entry) == (pb.CODE_OK, 0, stored(LEDGER, 0))
    waiting = asyncio.create_task(tail(0, 60_000))
    await asyncio.sleep(0)
    await one.add(batch(2, LEDGER, entries(1, first=2)))
    answer = await waiting
    assert (answer.code, answer.last_add_confirmed, answer.entry) == (pb.CODE_OK, 1, stored(LEDGER, 1))
    answer = await tail(1, 10)
    assert (answer.code, answer.last_add_confirmed, answer.HasField("entry")) == (pb.CODE_OK, 1, False)
    packet = struct.pack(">qq", LEDGER, 2) + b"digest"
    told = await one.ask(
        "SetLastAddConfirmed", pb.SetLastAddConfirmedRequest(ledger_id=LEDGER, master_key=KEY, packet=packet)
    )
    assert told.code == pb.CODE_OK
    for wrong in (packet[:15], struct.pack(">qq", LEDGER + 1, 2)):
        request = pb.SetLastAddConfirmedRequest(ledger_id=LEDGER, master_key=KEY, packet=wrong)
        assert (await one.ask("SetLastAddConfirmed", request)).code == pb.CODE_BAD_REQUEST
    known = await one.ask("GetLastAddConfirmed", pb.GetLastAddConfirmedRequest(ledger_id=LEDGER))
    assert (known.code, known.explicit_packet, known.last_entry) == (pb.CODE_OK, packet, stored(LEDGER, 2))
    known = await one.ask("GetLastAddConfirmed", pb.GetLastAddConfirmedRequest(ledger_id=99))
    assert (known.code, known.HasField("last_entry")) == (pb.CODE_NO_LEDGER, False)
    assert (await one.ask("Force", pb.ForceRequest(ledger_id=LEDGER))).code == pb.CODE_OK


@with_bookie
async def test_lists_information_health_and_reflection(bookie: Running, one: Caller) -> None:
    await one.add(batch(1, LEDGER, entries(3) + entries(3, first=6) + entries(3, first=12)))
    listed = await one.ask("ListEntries", pb.ListEntriesRequest(ledger_id=LEDGER))
    (group,) = listed.groups
    assert (group.first_start, group.last_start, group.size, group.period) == (0, 12, 3, 6)
    assert (await one.ask("ListEntries", pb.ListEntriesRequest(ledger_id=99))).code == pb.CODE_NO_LEDGER
    info = await one.ask("GetInfo", pb.GetInfoRequest())
    assert (info.code, info.free_disk_bytes, info.total_disk_bytes) == (pb.CODE_OK, 1, 2)
    health = await health_pb2_grpc.HealthStub(one.channel).Check(health_pb2.HealthCheckRequest(service=SERVICE))
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    call = reflection_pb2_grpc.ServerReflectionStub(one.channel).ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE))
    found = await call.read()
    assert found.file_descriptor_response.file_descriptor_proto[0] == pb.DESCRIPTOR.serialized_pb
    await call.done_writing()


# --- limits -------------------------------------------------------------------------------------


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


Held = Callable[[HeldBookie, GrpcFront, Caller], Coroutine[Any, Any, None]]


def with_held(**limits: Any) -> Callable[[Held], Callable[[], None]]:
    """A test of the front end over a bookie that answers adds when the test says so."""

    def decorate(play: Held) -> Callable[[], None]:
        async def run() -> None:
            bookie = HeldBookie()
            async with asyncio.timeout(120), grpc_front(bookie, NetConfig(**limits)) as front:
                async with caller(front.port) as one:
                    await play(bookie, front, one)
                bookie.answer()
            assert (front.load.adds, front.load.adds_bytes) == (0, 0)

        def test() -> None:
            patient_loop.run(run())

        test.__doc__ = play.__doc__
        return test

    return decorate


def many(batch_id: int, count: int) -> pb.AddBatch:
    return batch(batch_id, 1, [stored(1, i) for i in range(count)])


@with_held(max_pending_adds=100)
async def test_a_caller_with_many_unanswered_adds_is_not_read(
    bookie: HeldBookie, front: GrpcFront, one: Caller
) -> None:
    call = one.stream("Add")
    for i in range(8):
        await call.write(many(i, 20))
    # More than half of the limit: the third batch crosses it.
    await until(lambda: bookie.entries == 60)
    await asyncio.sleep(0.1)  # the fourth would be there
    assert bookie.entries == 60
    answered = 0
    while answered < 8:
        bookie.answer()
        answer = await call.read()
        assert (answer.batch_id, answer.code) == (answered, pb.CODE_OK)
        answered += 1
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


@with_held(max_pending_adds=100)
async def test_a_batch_beyond_the_limit_is_refused_whole(bookie: HeldBookie, front: GrpcFront, one: Caller) -> None:
    call = one.stream("Add")
    await call.write(many(1, 40))
    await call.write(many(2, 61))
    await call.write(many(3, 101))
    first, second = await call.read(), await call.read()
    assert (first.batch_id, first.code) == (2, pb.CODE_TOO_MANY_REQUESTS)
    assert (second.batch_id, second.code) == (3, pb.CODE_BAD_REQUEST)
    assert "more than 100 entries" in second.problem
    bookie.answer(Code.READ_ONLY)
    assert (await call.read()).code == pb.CODE_READ_ONLY


@with_held(adds_high_bytes=20_000, adds_low_bytes=10_000)
async def test_the_bytes_of_all_callers_count(bookie: HeldBookie, front: GrpcFront, one: Caller) -> None:
    """What waits on the native port counts here, too."""
    calls = [one.stream("Add") for _ in range(4)]
    for call in calls:
        await call.write(many(1, 200))
    await until(lambda: front.load.full)
    await asyncio.sleep(0.1)  # more would be there
    assert bookie.entries == 400
    bookie.answer()
    await until(lambda: bookie.entries == 400)
    bookie.answer()
    for call in calls:
        assert (await call.read()).code == pb.CODE_OK


@with_held()
async def test_adds_go_on_without_a_caller_that_left(bookie: HeldBookie, front: GrpcFront, one: Caller) -> None:
    call = one.stream("Add")
    await call.write(many(1, 5))
    await until(lambda: bookie.entries == 5)
    call.cancel()
    await until(lambda: not len(front.server.gate.places))
    assert front.load.adds == 5
    bookie.answer()
    await until(lambda: front.load.adds == 0)
    assert (await one.ask("GetInfo", pb.GetInfoRequest())).code == pb.CODE_OK


@with_held(max_unsent_bytes=400_000, stalled_peer_timeout_ms=50)
async def test_a_caller_that_does_not_take_its_answers_goes_if_others_wait(
    bookie: HeldBookie, front: GrpcFront, one: Caller
) -> None:
    bookie.entry = bytes(100_000)
    calls = [one.stream("Read") for _ in range(3)]
    for call in calls:
        # A busy test may be late: then the call has ended.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for _ in range(20):
                await call.write(pb.ReadRequest(ledger_id=1, first_entry_id=0, count=100))
            await call.done_writing()
    await until(lambda: front.native.shared.stalled_peers > 0)
    codes = [await end_of(call) for call in calls]
    assert grpc.StatusCode.RESOURCE_EXHAUSTED in codes
    assert set(codes) <= {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.OK}
    assert front.load.unsent_bytes == 0


@with_held()
async def test_a_message_beyond_the_limit_is_refused_before_it_is_taken(
    bookie: HeldBookie, front: GrpcFront, one: Caller
) -> None:
    call = one.stream("Add")
    await call.write(batch(1, 1, [stored(1, 0, 6 * 1024 * 1024)]))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert bookie.entries == 0


def test_calls_and_bytes_are_counted(tmp_path: Path) -> None:
    async def play() -> None:
        (tmp_path / "rights").write_text("read *\n")
        access = FrontAccess(authorization=Authorization.load(str(tmp_path / "rights")))
        bookie = HeldBookie(1000)
        async with asyncio.timeout(120), grpc_front(bookie, access=access) as front, caller(front.port) as one:
            counters = front.server.gate.counters
            (found,) = await one.read(request_id=1, ledger_id=1, first_entry_id=0, count=3)
            assert (found.code, counters.calls) == (pb.CODE_OK, 1)
            assert counters.received_bytes == len(
                pb.ReadRequest(request_id=1, ledger_id=1, first_entry_id=0, count=3).SerializeToString()
            )
            assert counters.sent_bytes == len(found.SerializeToString()) > 3000
            assert (await one.ask("GetInfo", pb.GetInfoRequest())).code == pb.CODE_UNAUTHORIZED
            assert counters.sent_bytes > len(found.SerializeToString())
            call = one.channel.unary_unary("/bk_spark.v1.Bookie/Tail")(b"\xff\xff")
            assert await call.code() is not grpc.StatusCode.OK
            assert (counters.calls, counters.unauthorized, counters.rejected, counters.failed) == (3, 0, 0, 1)

    patient_loop.run(play())
