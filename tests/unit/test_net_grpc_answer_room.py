"""Answers of Read over gRPC whose entries were read where they are sent from. Each is what it would be if joined."""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bk_spark.protocol.arrays import Bytes
from bk_spark.protocol.proto import bookie_pb2 as pb
from bk_spark.protocol.wire.batches import parse_with_records
from bookie_server.net.grpc.answer_room import AnswerRoom
from bookie_server.net.native.requests_v2 import record_views
from bookie_server.storage.entrylog.entry_log_reader import StoredEntries
from tests.support.running_storage import Place, Running, in_loop, running, stored


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.make(tmp_path / "bookie")


def read_into(room: AnswerRoom, sizes: Sequence[int]) -> StoredEntries:
    """Entries of these sizes, in the memory of ``room``."""
    ends = np.cumsum(np.array(sizes) + 4)
    data = room.take(int(ends[-1]))
    data[:] = np.frombuffer(random.Random(7).randbytes(len(data)), np.uint8)
    return StoredEntries(data, ends - np.array(sizes), np.array(sizes))


async def answer(bookie: Running, first: int, count: int, limit: int, request_id: int = 1) -> bytes | None:
    """Read a batch, and compare its answer, if it is in the memory, with what was found."""
    room = AnswerRoom(request_id)
    _, found = await bookie.bookie.read_batch(1, first, count, limit, room=room.take)
    views = [bytes(view) for entries in found for view in record_views(entries)]
    message = room.message(found)
    if message is not None:
        parsed, records = parse_with_records(pb.ReadAnswer, message)
        number = sum(len(entries.sizes) for entries in found)
        assert parsed == pb.ReadAnswer(request_id=request_id, count=number, last=True)
        assert bytes(records) == b"".join(views)
        assert pb.ReadAnswer.FromString(message).records == records  # any parser of protobuf
    return message


@in_loop
async def test_entries_of_one_size_are_read_into_the_answer(place: Place) -> None:
    async with running(place) as bookie:
        await bookie.add(*(stored(1, i, 65_000) for i in range(60)))
        assert await answer(bookie, 0, 0, 1 << 20) is None  # they are in the write cache
        await bookie.storage.checkpoint()
        assert await answer(bookie, 0, 0, 400_000) is None  # the reader does not know yet that they are neighbours
        for limit in (400_000, 1 << 20, 3 << 20, 1 << 24):
            assert await answer(bookie, 0, 0, limit) is not None
        assert await answer(bookie, 0, 20, 1 << 24, request_id=2**64 - 1) is not None
        assert await answer(bookie, 55, 0, 1 << 24) is not None
        assert await answer(bookie, 59, 0, 1 << 24) is None  # too small


@in_loop
async def test_entries_that_lie_otherwise_are_joined(place: Place) -> None:
    async with running(place) as bookie:
        dice = random.Random(3)
        await bookie.add(*(stored(1, i, dice.choice([20, 50_000, 100_000, 300_000])) for i in range(100)))
        await bookie.storage.checkpoint()
        await bookie.add(*(stored(1, i, 60_000) for i in range(100, 110)))  # in the write cache
        found = [
            await answer(bookie, dice.randrange(105), dice.choice([0, 1, 7, 40]), dice.randrange(1, 4_000_000))
            for _ in range(200)
        ]
        assert None in found
        assert any(found)


def test_only_what_is_in_the_memory_as_a_whole_is_the_answer() -> None:
    room = AnswerRoom(1)
    found = read_into(room, [100_000, 200_000])
    assert room.message([]) is None
    assert room.message([found, found]) is None
    assert room.message([StoredEntries(found.data.copy(), found.starts, found.sizes)]) is None
    assert room.message([StoredEntries(found.data, found.starts[:1], found.sizes[:1])]) is None
    assert room.message([StoredEntries(found.data, found.starts[1:], found.sizes[1:])]) is None
    assert room.message([StoredEntries(found.data, found.starts, np.array([100_000, -1]))]) is None
    message = room.message([found])
    assert message is not None
    assert parse_with_records(pb.ReadAnswer, message)[1] == found.data.data
    assert room.message([found]) is None  # it belongs to that answer


def test_the_memory_that_was_taken_last_is_the_answer() -> None:
    room = AnswerRoom(1)
    first, second = read_into(room, [300_000]), read_into(room, [400_000])
    assert room.message([first]) is None
    assert room.message([second]) is not None


@pytest.mark.parametrize("count", [1, 127, 128, 10_000])
def test_any_number_of_entries(count: int) -> None:
    room = AnswerRoom(5)
    message = room.message([read_into(room, [300] * (count - 1) + [300_000])])
    assert message is not None
    assert pb.ReadAnswer.FromString(message).count == count


def test_memory_lives_as_long_as_who_writes_into_it() -> None:
    """A thread may still read when the call has ended."""
    taken: list[Bytes] = []
    for _ in range(8):
        taken.append(AnswerRoom(1).take(1 << 20))
        gc.collect()
        taken[-1][:] = len(taken)
    assert [set(np.unique(memory).tolist()) for memory in taken] == [{i} for i in range(1, 9)]
