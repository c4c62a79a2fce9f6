"""The order in which several test processes share the tests."""

import itertools

import pytest

from tests.support.order import expected_s, rotated, spread

_COUNTS = {"unit": 6000, "simulation": 300, "integration": 1000, "spark": 230, "interop": 450, "faults": 35}


@pytest.mark.parametrize("processes", [2, 3, 4, 7])
def test_each_process_begins_with_its_share_of_the_slow_tests(processes: int) -> None:
    items = [
        (seconds, f"{directory} {number // 2}", (seconds, directory, number))
        for directory, count in _COUNTS.items()
        for number in range(count)
        for seconds in [expected_s(directory, 1800.0 if number < 5 else 300.0)]
    ]
    first = [(0.0, "fuzz", number) for number in range(150)]
    ordered = spread(items, processes, first)
    assert sorted(ordered) == sorted([*(item for _, _, item in items), *first])
    assert ordered[: len(first)] == first
    fair_s = sum(seconds for seconds, _, _ in ordered) / processes
    for number in range(processes):
        part = [
            seconds
            for seconds, _, _ in ordered[number * len(ordered) // processes : (number + 1) * len(ordered) // processes]
        ]
        assert sum(part) == pytest.approx(fair_s, abs=60)
        # Long ones, slow ones, quick ones.
        order = [seconds >= 40.0 for seconds in part if seconds], [bool(seconds) for seconds in part[150:]]
        assert [*order] == [sorted(each, reverse=True) for each in order]


@pytest.mark.parametrize("seconds", [44.0, 4.0])
def test_the_slow_tests_of_a_file_begin_in_one_process(seconds: float) -> None:
    slow = [(seconds, f"file {number // 3}", number) for number in range(12)]
    quick = [(0.0, "unit", number) for number in range(12, 400)]
    for processes in (2, 3, 4, 5):
        ordered = spread([*slow, *quick], processes)
        ends = [number * len(ordered) // processes for number in range(processes + 1)]
        parts = [{test // 3 for test in ordered[start:end] if test < 12} for start, end in itertools.pairwise(ends)]
        assert sorted(file for part in parts for file in part) == [0, 1, 2, 3]


@pytest.mark.parametrize("seconds", [[0.0], [3.0], [0.0, 3.0, 0.0], []])
def test_few_tests_are_all_run(seconds: list[float]) -> None:
    items = [(each, "file", number) for number, each in enumerate(seconds)]
    assert sorted(spread(items, 4)) == [*range(len(seconds))]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 230])
def test_processes_begin_to_collect_in_different_parts(count: int) -> None:
    found = [*range(count)]
    taken = [rotated(found, number, 4) for number in range(4)]
    assert all(sorted(each) == found for each in taken)
    firsts = [each[: count // 4] for each in taken]
    assert len({test for each in firsts for test in each}) == count // 4 * 4
