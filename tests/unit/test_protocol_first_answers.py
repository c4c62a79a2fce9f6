"""Acknowledgements wait for the first answer of each bookie of a ledger that was not claimed."""

from __future__ import annotations

import pytest

from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import LedgerClosedError, UnauthorizedError
from bk_spark.protocol.ledger.claiming import PATIENCE_MS
from bk_spark.protocol.ledger.writer import WriterState
from bk_spark.protocol.ledger.writer_actions import WriterTimer
from bk_spark.protocol.quorum import Quorum
from tests.support.ledgers import WriterUnderTest, ledger

TIMER = WriterTimer.FIRST_ANSWERS


def unclaimed(quorum: Quorum = Quorum(3, 3, 2), *, deferred_sync: bool = False) -> WriterUnderTest:  # noqa: B008
    return WriterUnderTest(ledger(quorum), password_is_known=False, deferred_sync=deferred_sync)


def waiting() -> WriterUnderTest:
    """Entry 0 waits for b3 alone."""
    writer = unclaimed()
    writer.add()
    writer.answer("b1", 0)
    assert TIMER not in writer.timers
    writer.answer("b2", 0)
    assert (writer.acknowledged, writer.timers[TIMER]) == ([], PATIENCE_MS)
    return writer


def test_nothing_is_acknowledged_before_each_bookie_has_taken_an_entry() -> None:
    writer = waiting()
    writer.answer("b3", 0)
    assert writer.acknowledged == [0]
    assert TIMER not in writer.timers
    # From now on an ack quorum suffices.
    writer.add(2)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, [1, 2])
    assert writer.acknowledged == [0, 2]
    assert TIMER not in writer.timers


def test_c17_a_bookie_that_refuses_the_password_ends_the_writer_before_anything_is_acknowledged() -> None:
    writer = waiting()
    writer.machine.close()
    writer.answer("b3", 0, Code.UNAUTHORIZED)
    assert isinstance(writer.machine.error, UnauthorizedError)
    assert (writer.acknowledged, writer.proposals) == ([], [])


def test_a_bookie_that_is_silent_is_awaited_once_and_not_for_long() -> None:
    writer = waiting()
    writer.fire(TIMER)
    assert (writer.acknowledged, writer.silent) == ([0], ["b3"])
    writer.add()
    for bookie in ("b1", "b2"):
        writer.answer(bookie, 1)
    assert writer.acknowledged == [0, 1]
    assert TIMER not in writer.timers
    writer.answer("b3", 0, Code.UNAUTHORIZED)
    assert isinstance(writer.machine.error, UnauthorizedError)


def test_a_bookie_that_failed_is_not_awaited() -> None:
    writer = waiting()
    writer.fail("b3")
    assert (writer.acknowledged, writer.choices) == ([0], [])
    assert TIMER not in writer.timers
    writer = unclaimed()
    writer.fail("b3")
    writer.add()
    writer.search_is_slow()
    for bookie in ("b1", "b2"):
        writer.answer(bookie, 0)
    assert writer.acknowledged == [0]


def test_a_busy_bookie_is_awaited() -> None:
    writer = waiting()
    writer.answer("b3", 0, Code.TOO_MANY_REQUESTS)
    assert writer.acknowledged == []
    writer.send_refused("b3")
    writer.answer("b3", 0)
    assert writer.acknowledged == [0]


def test_a_bookie_that_was_sent_nothing_is_not_awaited_until_it_is() -> None:
    writer = unclaimed(Quorum(5, 3, 2))
    writer.add()
    for bookie in ("b1", "b2", "b3"):
        writer.answer(bookie, 0)
    assert writer.acknowledged == [0]
    writer.add()
    for bookie in ("b2", "b3"):
        writer.answer(bookie, 1)
    assert writer.acknowledged == [0]
    writer.answer("b4", 1)
    assert writer.acknowledged == [0, 1]


def test_a_bookie_that_replaces_another_is_awaited() -> None:
    writer = unclaimed()
    writer.add()
    writer.fail("b1")
    writer.chosen({0: "b4"})
    writer.written()
    for bookie in ("b2", "b3"):
        writer.answer(bookie, 0)
    assert (writer.acknowledged, writer.timers[TIMER]) == ([], PATIENCE_MS)
    writer.answer("b4", 0)
    assert writer.acknowledged == [0]


def test_time_runs_for_those_that_are_still_awaited() -> None:
    writer = unclaimed(Quorum(4, 2, 1))
    writer.add(2)
    writer.answer("b1", 0)
    assert writer.timers.pop(TIMER) == PATIENCE_MS
    writer.answer("b2", [0, 1])
    # It runs for b3 already. It does not begin again.
    assert (writer.acknowledged, TIMER in writer.timers) == ([], False)
    writer.fire(TIMER)
    assert (writer.acknowledged, writer.silent) == ([1], ["b3"])
    # b4 is awaited for the first time.
    writer.add()
    writer.answer("b4", 2, Code.TOO_MANY_REQUESTS)
    writer.answer("b3", 2)
    assert (writer.acknowledged, writer.timers[TIMER]) == ([1], PATIENCE_MS)


def test_a_bookie_that_joins_while_time_runs_gets_all_of_it() -> None:
    writer = unclaimed(Quorum(4, 2, 1))
    writer.add()
    writer.answer("b1", 0)
    assert writer.timers[TIMER] == PATIENCE_MS
    writer.add(2)
    writer.fire(TIMER)
    # The time was over for b2 alone.
    assert (writer.acknowledged, writer.silent, writer.timers[TIMER]) == ([], ["b2"], PATIENCE_MS)


def test_time_runs_anew_for_a_bookie_that_is_awaited_after_others() -> None:
    writer = unclaimed(Quorum(4, 2, 1))
    writer.add()
    writer.answer("b1", 0)
    assert writer.timers.pop(TIMER) == PATIENCE_MS
    writer.add()
    writer.answer("b2", 0)
    assert (writer.acknowledged, writer.timers[TIMER]) == ([], PATIENCE_MS)
    writer.fire(TIMER)
    assert (writer.acknowledged, writer.silent) == ([0], ["b3"])


def test_where_the_password_is_known_nobody_is_awaited() -> None:
    writer = WriterUnderTest()
    writer.add()
    for bookie in ("b1", "b2"):
        writer.answer(bookie, 0)
    assert writer.acknowledged == [0]
    assert TIMER not in writer.timers


@pytest.mark.parametrize("answers", [True, False])
def test_closing_waits_like_every_acknowledgement(answers: bool) -> None:
    writer = waiting()
    writer.close()
    writer.close()
    assert (writer.proposals, writer.timers[TIMER]) == ([], PATIENCE_MS)
    if answers:
        writer.answer("b3", 0)
    else:
        writer.fire(TIMER)
    (closed,) = writer.proposals
    assert closed.last_entry_id == 0
    writer.written()
    assert writer.machine.state is WriterState.CLOSED


def test_an_empty_ledger_is_closed_without_waiting() -> None:
    writer = unclaimed()
    writer.close()
    assert len(writer.proposals) == 1


def test_an_abandoned_writer_waits_for_nobody() -> None:
    writer = waiting()
    writer.machine.abandon()
    assert isinstance(writer.machine.error, LedgerClosedError)
    writer.fire(TIMER)
    writer.answer("b3", 0)
    assert (writer.acknowledged, writer.machine.take_actions()) == ([], [])


def test_with_deferred_sync_nothing_is_forced_before() -> None:
    writer = unclaimed(deferred_sync=True)
    writer.add()
    for bookie in ("b1", "b2"):
        writer.answer(bookie, 0)
    writer.force()
    assert writer.forces == []
    writer.answer("b3", 0)
    writer.force()
    assert len(writer.forces) == 3
    writer.forced(0)
    assert writer.acknowledged == [0]
