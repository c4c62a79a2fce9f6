"""How much of a flush is due, and how long it pauses otherwise."""

from __future__ import annotations

import pytest

from bookie_server.storage.flush_pace import MOST_FILLED, FlushPace, headers_pause_s

PACE = FlushPace(total_bytes=100, span_s=2.0)


@pytest.mark.parametrize(
    ("written", "elapsed_s", "filled", "pause_s"),
    [
        (10, 0.2, 0.0, 0.0),  # on time
        (10, 0.19, 0.0, 0.01),  # a moment early
        (50, 0.2, 0.0, 0.05),  # very early: the cache may fill meanwhile
        (50, 1.5, 0.0, 0.0),  # late
        (99, 2.0, 0.0, 0.0),
        (50, 0.0, 0.25, 0.0),  # half of what may fill has filled
        (50, 0.0, 0.24, 0.04),
        (99, 0.0, MOST_FILLED, 0.0),
        (99, 0.0, 3.0, 0.0),
    ],
)
def test_pauses(written: int, elapsed_s: float, filled: float, pause_s: float) -> None:
    assert PACE.pause_s(written, elapsed_s, filled) == pytest.approx(pause_s)


def test_it_ends_in_its_time_whatever_the_steps() -> None:
    for step in (1, 7, 60):
        written, now_s = 0, 0.0
        while written < PACE.total_bytes:
            written += step
            while pause_s := PACE.pause_s(min(written, PACE.total_bytes), now_s, 0.0):
                now_s += pause_s
        assert now_s == pytest.approx(PACE.span_s)


def test_it_ends_before_the_other_half_is_full_however_fast_it_fills() -> None:
    for fills_in_s in (0.1, 0.5, 2.0):
        written, now_s = 0, 0.0
        while written < PACE.total_bytes:
            written += 5
            while pause_s := PACE.pause_s(written, now_s, now_s / fills_in_s):
                now_s += pause_s
        assert now_s <= MOST_FILLED * fills_in_s + 0.05


def test_headers_of_ledgers_without_entries_take_a_third_of_the_time_unless_the_cache_fills() -> None:
    assert headers_pause_s(0.003, 0.0) == pytest.approx(0.006)
    assert headers_pause_s(1.0, 0.49) == pytest.approx(0.008)  # whoever waits for the flush must not wait for long
    assert headers_pause_s(0.003, MOST_FILLED) == 0.0
