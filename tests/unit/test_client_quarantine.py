"""How long a failing bookie is chosen last, and what sets it free. The clock is the test's."""

from __future__ import annotations

from typing import Any

from bk_spark.bookie.placement.quarantine import Quarantine


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def staged(**settings: Any) -> tuple[Clock, Quarantine]:
    clock = Clock()
    return clock, Quarantine(clock=clock, **settings)


def time_in_quarantine(clock: Clock, quarantine: Quarantine, bookie_id: str = "b1") -> float:
    since = clock.now
    while bookie_id in quarantine.members():
        clock.now += 0.5
    return clock.now - since


def test_the_time_doubles_with_every_failure_up_to_the_limit() -> None:
    clock, quarantine = staged(first_ms=10_000, longest_ms=60_000)
    times = []
    for _ in range(5):
        quarantine.failed("b1")
        times.append(time_in_quarantine(clock, quarantine))
    assert times == [10, 20, 40, 60, 60]
    assert quarantine.members() == frozenset()


def test_a_bookie_that_behaved_for_an_interval_starts_afresh() -> None:
    clock, quarantine = staged()
    for _ in range(3):
        quarantine.failed("b1")
        time_in_quarantine(clock, quarantine)
    clock.now += 61
    quarantine.failed("b1")
    assert time_in_quarantine(clock, quarantine) == 10


def test_failures_in_quarantine_do_not_prolong_it() -> None:
    clock, quarantine = staged()
    quarantine.failed("b1")
    clock.now += 9
    quarantine.failed("b1")
    assert time_in_quarantine(clock, quarantine) == 1


def test_each_bookie_for_itself() -> None:
    clock, quarantine = staged()
    quarantine.failed("b1")
    clock.now += 5
    quarantine.failed("b2")
    assert quarantine.members() == {"b1", "b2"}
    clock.now += 6
    assert quarantine.members() == {"b2"}


def test_an_answer_sets_free() -> None:
    clock, quarantine = staged()
    quarantine.answered("b1")
    quarantine.failed("b1")
    clock.now += 1
    quarantine.answered("b1")
    assert quarantine.members() == frozenset()
    # What happens much later is another matter.
    clock.now += 50
    quarantine.answered("b1")
    clock.now += 100
    quarantine.failed("b1")
    quarantine.answered("b1")
    assert quarantine.members() == frozenset()


def test_a_bookie_that_takes_connections_and_hangs_is_not_believed_twice() -> None:
    clock, quarantine = staged()
    quarantine.failed("b1")
    quarantine.answered("b1")
    clock.now += 5
    quarantine.failed("b1")
    quarantine.answered("b1")
    assert time_in_quarantine(clock, quarantine) == 20


def test_registering_anew_sets_free_and_clears_the_record() -> None:
    clock, quarantine = staged()
    for _ in range(3):
        quarantine.failed("b1", 7)
        time_in_quarantine(clock, quarantine)
    quarantine.failed("b1", 7)
    assert not quarantine.registered("b1", 7)
    assert quarantine.members() == {"b1"}
    assert quarantine.registered("b1", 8)
    assert quarantine.members() == frozenset()
    quarantine.failed("b1", 8)
    assert time_in_quarantine(clock, quarantine) == 10
    assert not quarantine.registered("b2", 1)


def test_too_many_failures_in_an_interval_cost_the_full_time() -> None:
    clock, quarantine = staged(first_ms=1_000, longest_ms=1_800_000, error_threshold=5, interval_ms=60_000)
    for _ in range(4):
        quarantine.failed("b1")
        clock.now += 10
    assert time_in_quarantine(clock, quarantine) == 0
    quarantine.failed("b1")
    quarantine.answered("b1")
    assert time_in_quarantine(clock, quarantine) == 1800


def test_many_handles_that_lose_one_connection_count_once() -> None:
    clock, quarantine = staged(error_threshold=5)
    for _ in range(100):
        quarantine.failed("b1")
    assert time_in_quarantine(clock, quarantine) == 10
