"""How a micro-batch's limits are shared."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bk_spark.datasource.stream.limits import Backlog, MinEntriesGate, ends_within


def _backlog(entries: int, start: int = 0, *segments: tuple[int, int]) -> Backlog:
    """``segments``: entries and bytes of each."""
    columns = np.array(segments, np.int64).reshape(-1, 2)
    return Backlog(start, start + entries, columns[:, 0], columns[:, 1])


def _taken(
    backlogs: dict[str, Backlog], entries: int | None = None, size_bytes: int | None = None, turn: int = 0
) -> dict[str, int]:
    ends = ends_within(backlogs, max_entries=entries, max_bytes=size_bytes, turn=turn)
    return {name: end - backlogs[name].start for name, end in ends.items()}


def test_without_limits_all_is_taken() -> None:
    assert _taken({"a": _backlog(5, 100), "b": _backlog(0, 7), "c": _backlog(10**12)}) == {"a": 5, "b": 0, "c": 10**12}
    assert _taken({}) == {}


def test_one_log_takes_up_to_the_limit() -> None:
    assert _taken({"a": _backlog(50, 100)}, entries=20) == {"a": 20}
    assert _taken({"a": _backlog(50, 100)}, entries=50) == {"a": 50}
    assert _taken({"a": _backlog(50, 100)}, entries=1) == {"a": 1}
    assert _taken({"a": _backlog(0, 100)}, entries=1) == {"a": 0}


def test_entries_are_shared_in_proportion() -> None:
    backlogs = {"a": _backlog(1000), "b": _backlog(3000), "c": _backlog(0)}
    for turn in range(5):
        taken = _taken(backlogs, entries=400, turn=turn)
        assert sum(taken.values()) == 400
        assert abs(taken["a"] - 100) <= 1
        assert taken["c"] == 0


def test_a_small_log_beside_a_large_one_is_not_forgotten() -> None:
    backlogs = {"large": _backlog(10**9), "small": _backlog(1)}
    assert _taken(backlogs, entries=2) == {"large": 1, "small": 1}
    # With a limit of one the logs take turns.
    assert [_taken(backlogs, entries=1, turn=turn)["small"] for turn in range(4)] == [0, 1, 0, 1]


@pytest.mark.parametrize("seed", range(20))
def test_limits_hold_and_everything_is_read_in_the_end(seed: int) -> None:
    random_of = random.Random(seed)
    max_entries = random_of.choice([None, 1, 2, 7, 100])
    max_bytes = random_of.choice([None, 1, 500, 10_000])
    segments = {
        f"log-{number}": [
            (random_of.randint(1, 30), random_of.choice([0, 1, 100, 20_000])) for _ in range(random_of.randint(0, 6))
        ]
        for number in range(random_of.randint(1, 6))
    }
    position = dict.fromkeys(segments, 0)
    ends = {name: sum(entries for entries, _ in parts) for name, parts in segments.items()}
    largest = max((-(-size // entries) for parts in segments.values() for entries, size in parts), default=0)
    passed_over = dict.fromkeys(segments, 0)
    turn = 0
    while position != ends:
        backlogs = {name: _rest(parts, position[name]) for name, parts in segments.items()}
        taken = _taken(backlogs, max_entries, max_bytes, turn)
        turn += 1
        assert sum(taken.values()) >= 1
        assert all(0 <= taken[name] <= ends[name] - position[name] for name in segments)
        if max_entries is not None:
            assert sum(taken.values()) <= max_entries
        if max_bytes is not None:
            size = sum(backlogs[name].bytes_of(count) for name, count in taken.items())
            assert size <= max_bytes + largest
        for name in segments:
            passed_over[name] = 0 if taken[name] or position[name] == ends[name] else passed_over[name] + 1
            # Others may end meanwhile, which moves the turns.
            assert passed_over[name] <= 2 * len(segments)
        position = {name: position[name] + taken[name] for name in segments}
    assert turn <= sum(ends.values()) + 1


def _rest(segments: list[tuple[int, int]], position: int) -> Backlog:
    """What is left of ``segments`` after ``position`` entries."""
    rest = []
    for entries, size in segments:
        skipped = min(position, entries)
        position -= skipped
        if skipped < entries:
            rest.append((entries - skipped, size * (entries - skipped) // entries))
    return _backlog(sum(entries for entries, _ in rest), 0, *rest)


def test_bytes_within_and_over_segments() -> None:
    backlog = _backlog(1000, 0, (10, 1000), (5, 0), (10, 50), (75, 7500))
    assert backlog.size_bytes() == 85_500
    assert [backlog.bytes_of(n) for n in (0, 1, 10, 15, 16, 25, 26)] == [0, 100, 1000, 1000, 1005, 1050, 1150]
    assert [backlog.entries_within(n) for n in (0, 99, 100, 999, 1000, 1004, 1005, 1050)] == [
        0,
        0,
        1,
        9,
        15,
        15,
        16,
        25,
    ]
    for size in range(0, 2000, 7):
        within = backlog.entries_within(size)
        assert backlog.bytes_of(within) <= size < backlog.bytes_of(within + 1)


def test_bytes_are_shared_in_proportion() -> None:
    backlogs = {"a": _backlog(100, 0, (100, 10_000)), "b": _backlog(100, 0, (100, 30_000))}
    for turn in range(2):
        taken = _taken(backlogs, size_bytes=4000, turn=turn)
        assert abs(taken["a"] - 10) <= 1
        assert abs(taken["b"] - 10) <= 1
        assert taken["a"] * 100 + taken["b"] * 300 <= 4000


def test_an_entry_larger_than_the_limit_is_read_in_its_turn() -> None:
    backlogs = {"huge": _backlog(10, 0, (10, 10**7)), "tiny": _backlog(10**6, 0, (10**6, 10**6))}
    assert _taken({"huge": backlogs["huge"]}, size_bytes=1000) == {"huge": 1}
    assert [_taken(backlogs, size_bytes=1000, turn=turn)["huge"] for turn in range(3)] == [1, 0, 1]
    assert _taken(backlogs, size_bytes=1000, turn=1)["tiny"] > 0


def test_the_stricter_of_both_limits_counts() -> None:
    backlogs = {"a": _backlog(100, 0, (100, 10_000))}
    assert _taken(backlogs, entries=5, size_bytes=100_000) == {"a": 5}
    assert _taken(backlogs, entries=50, size_bytes=500) == {"a": 5}


def test_the_gate_waits_for_entries_or_for_time() -> None:
    gate = MinEntriesGate(10, 1000)
    assert not gate.opens(0, 0)
    assert gate.opens(1, 5)
    assert [gate.opens(waiting, now) for waiting, now in ((1, 6), (9, 7), (0, 8), (10, 9))] == [
        False,
        False,
        False,
        True,
    ]
    assert [gate.opens(waiting, now) for waiting, now in ((1, 1008), (1, 1009), (1, 1010))] == [False, True, False]
    # Nothing new does not use the time up.
    assert [gate.opens(waiting, now) for waiting, now in ((0, 5000), (1, 5001))] == [False, True]
