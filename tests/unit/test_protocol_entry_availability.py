"""Lists of a ledger's entries, as Apache's bookies send them."""

from __future__ import annotations

import itertools
import math
import random
import struct
import time

import numpy as np
import pytest

from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire.entry_availability import decode_availability, encode_availability
from bk_spark.protocol.wire.v3 import wire_v3
from tests.support.wire import captured

Group = tuple[int, int, int, int]


def encoded(*groups: Group, version: int = 0, count: int | None = None) -> bytes:
    head = struct.pack(">ii56x", version, len(groups) if count is None else count)
    return head + b"".join(struct.pack(">qqii", *group) for group in groups)


def ids_of(data: bytes) -> list[int]:
    return list(itertools.chain.from_iterable(decode_availability(data).ranges()))


def test_apaches_example() -> None:
    """compatibility.md §1.8: {0-2, 5-7, 10-12, 20} comes as four groups."""
    wanted = [0, 1, 2, 5, 6, 7, 10, 11, 12, 20]
    data = encoded((0, 0, 3, 0), (5, 5, 3, 0), (10, 10, 3, 0), (20, 20, 1, 0))
    assert ids_of(data) == wanted
    # The same ids in fewer groups.
    assert encode_availability(np.array(wanted)) == encoded((0, 10, 3, 5), (20, 20, 1, 0))
    assert ids_of(encode_availability(np.array(wanted))) == wanted


def test_captured_list() -> None:
    found = 0
    for one in captured("wire-v3", "v3") + captured("wire-v2", "v3"):
        if not one.request and one.says["op"] == "GET_LIST_OF_ENTRIES_OF_LEDGER":
            body = wire_v3.parse_response(one.body).getListOfEntriesOfLedgerResponse
            if body.HasField("availabilityOfEntriesOfLedger"):
                found += 1
                data = body.availabilityOfEntriesOfLedger
                ids = ids_of(data)
                assert ids == list(range(len(ids)))
                assert decode_availability(data).count == len(ids)
                assert encode_availability(np.array(ids)) == data
    assert found


def test_random_sets() -> None:
    random_ = random.Random(5)
    for _ in range(300):
        step, width = random_.randint(1, 7), random_.randint(1, 7)
        ids = {
            start + number
            for start in range(random_.randint(0, 9), random_.choice([10, 60, 300]), step)
            for number in range(min(width, step))
            if random_.random() < random_.choice([0.5, 0.97, 1])
        }
        wanted = sorted(ids)
        data = encode_availability(np.array(wanted, np.int64))
        availability = decode_availability(data)
        assert ids_of(data) == wanted
        assert availability.count == len(wanted)
        assert [entry_id for entry_id in range(-2, 320) if entry_id in availability] == wanted
        assert list(availability.lacking(range(310))) == [entry_id for entry_id in range(310) if entry_id not in ids]


def one_by_one(entry_ids: list[int]) -> list[Group]:
    """The groups as they are defined, run after run."""
    runs: list[tuple[int, int]] = []
    for entry_id in entry_ids:
        if runs and sum(runs[-1]) == entry_id:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((entry_id, 1))
    groups: list[Group] = []
    for start, size in runs:
        if groups:
            first, last, of_size, period = groups[-1]
            distance = start - last
            if size == of_size and distance < 1 << 31 and period in (0, distance):
                groups[-1] = (first, start, size, distance)
                continue
        groups.append((start, start, size, 0))
    return groups


def test_groups_are_those_made_run_by_run() -> None:
    random_ = random.Random(6)
    for _ in range(2000):
        ids, at = [], random_.randint(0, 3)
        for _ in range(random_.randint(0, 12)):
            size = random_.choice([1, 1, 1, 2])
            ids += range(at, at + size)
            at += size + random_.choice([1, 1, 2, 3, 1 << 31])
        assert encode_availability(np.array(ids, np.int64)) == encoded(*one_by_one(ids)), ids


def test_a_list_of_many_runs_is_made_at_once() -> None:
    """Every second entry missing, at distances that differ: a run for each entry."""
    ids = np.cumsum(np.random.default_rng(7).integers(2, 5, 1_000_000))
    least_s = math.inf
    for _ in range(10):  # what else the machine does can make it slower
        begun_s = time.thread_time()
        data = encode_availability(ids)
        least_s = min(least_s, time.thread_time() - begun_s)
        if least_s < 0.5:
            break
    assert least_s < 0.5
    assert decode_availability(data).count == len(ids)


def test_striping_takes_little_room() -> None:
    ids = np.array([entry for entry in range(30_000) if entry % 3 != 1])
    data = encode_availability(ids)
    assert len(data) <= 64 + 3 * 24
    assert decode_availability(data).count == 20_000


def test_groups_of_more_entries_than_fit_memory() -> None:
    availability = decode_availability(encoded((1, 1 + 2**60, 2, 4)))
    assert availability.count == 2 * (2**58 + 1)
    assert 2**60 + 2 in availability
    assert 2**60 + 3 not in availability
    assert next(iter(availability.ranges())) == range(1, 3)


def test_nothing() -> None:
    data = encode_availability(np.array([], np.int64))
    assert data == bytes(64)
    assert decode_availability(data).count == 0
    assert 0 not in decode_availability(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(63),
        encoded(version=1),
        encoded(count=-1),
        encoded(count=1),
        encoded((0, 0, 1, 0), count=2**31 - 1),
        encoded((0, 0, 1, 0)) + b"\0",
        encoded((-1, -1, 1, 0)),
        encoded((0, 0, 0, 0)),
        encoded((0, 0, -1, 0)),
        encoded((0, 0, 1, 5)),
        encoded((0, 5, 1, 0)),
        encoded((5, 0, 1, 5)),
        encoded((0, 6, 1, 5)),
        encoded((0, 5, 5, 5)),
        encoded((0, 5, 1, -5)),
        encoded((0, 0, 3, 0), (2, 2, 1, 0)),
        encoded((5, 5, 1, 0), (2, 2, 1, 0)),
        encoded((0, 10, 1, 5), (7, 7, 1, 0)),
        encoded((2**63 - 1, 2**63 - 1, 5, 0)),
        encoded((-(2**63), 2**63 - 8, 1, 7)),
    ],
)
def test_wrong_lists(data: bytes) -> None:
    with pytest.raises(WireFormatError, match="list of entries"):
        decode_availability(data)
