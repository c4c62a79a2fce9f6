"""The check of all ledgers in limbo: how many at a time, and what is tried again when."""

from __future__ import annotations

from bk_spark.protocol.machine import StartTimer, Succeeded, TimerFired
from bookie_server.integrity.data_check import CheckLedger, DataCheck, LedgerChecked
from bookie_server.integrity.limbo_check import NothingToCheck, NotWhole, Whole


def test_a_few_at_a_time_until_all_are_whole() -> None:
    check = DataCheck(range(10, 15), 2)
    assert check.take_actions() == [CheckLedger(10), CheckLedger(11)]
    check.handle(LedgerChecked(11, Whole(True, 3, 30)))
    assert check.take_actions() == [CheckLedger(12)]
    check.handle(LedgerChecked(10, NothingToCheck()))
    check.handle(LedgerChecked(12, Whole(False, 4, 40)))
    assert check.take_actions() == [CheckLedger(13), CheckLedger(14)]
    check.handle(LedgerChecked(13, Whole()))
    assert check.outcome is None
    check.handle(LedgerChecked(14, Whole()))
    assert check.outcome == Succeeded(check.progress)
    progress = check.progress
    assert (progress.ledgers, progress.left, progress.recovered) == (5, 0, 1)
    assert (progress.entries, progress.size_bytes, progress.problems) == (7, 70, {})


def test_what_cannot_be_made_whole_is_tried_again_after_growing_pauses_and_holds_up_nobody() -> None:
    check = DataCheck([1, 2], 1)
    pauses = []
    assert check.take_actions() == [CheckLedger(1)]
    for attempt in range(12):
        check.handle(LedgerChecked(1, NotWhole(f"attempt {attempt}")))
        timer, *rest = check.take_actions()
        assert isinstance(timer, StartTimer)
        assert timer.name == 1
        pauses.append(timer.after_ms)
        assert rest == ([CheckLedger(2)] if attempt == 0 else [])
        if attempt == 0:
            check.handle(LedgerChecked(2, Whole()))
        assert check.progress.problems == {1: f"attempt {attempt}"}
        assert check.outcome is None
        check.handle(TimerFired(1))
        assert check.take_actions() == [CheckLedger(1)]
    assert pauses == [5_000, 10_000, 20_000, 40_000, 80_000, 160_000, *[300_000] * 6]
    check.handle(LedgerChecked(1, Whole()))
    assert check.progress.problems == {}
    assert check.outcome == Succeeded(check.progress)


def test_nothing_in_limbo() -> None:
    assert isinstance(DataCheck([], 4).outcome, Succeeded)
