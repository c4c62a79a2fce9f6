"""Long tests take turns, and none is left out for longer than it says."""

from __future__ import annotations

import itertools

import pytest

from tests.support.turns import VARIABLE, only_todays, whose_turn

TESTS = [*[("a.py", 3, False)] * 4, ("b.py", 2, False), ("c.py", 1, False)]


@pytest.mark.parametrize("first_day", [0, 330, 331])
def test_each_runs_on_one_of_its_days(first_day: int) -> None:
    runs = [whose_turn(TESTS, day) for day in range(first_day, first_day + 6)]
    assert [sum(column) for column in zip(*runs, strict=True)] == [2, 2, 2, 2, 3, 6]
    for number, (_, days, _) in enumerate(TESTS):
        turns = [day for day, run in enumerate(runs) if run[number]]
        assert {later - earlier for earlier, later in itertools.pairwise(turns)} == {days}


def test_tests_of_one_file_are_spread_over_the_days() -> None:
    assert all(any(whose_turn(TESTS[:4], day)) for day in range(3))


def test_tests_with_a_common_start_run_on_one_day() -> None:
    runs = [whose_turn([("a.py", 3, True)] * 4, day) for day in range(3)]
    assert sorted(runs) == [[False] * 4, [False] * 4, [True] * 4]


def test_today_is_the_default_day() -> None:
    assert whose_turn([("a.py", 1, False)]) == [True]


def test_where_tests_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert not only_todays()
    monkeypatch.setenv(VARIABLE, "today")
    assert only_todays()
    monkeypatch.setenv(VARIABLE, "tomorrow")
    with pytest.raises(ValueError, match="TEST_TURNS must be today or all, not tomorrow"):
        only_todays()
