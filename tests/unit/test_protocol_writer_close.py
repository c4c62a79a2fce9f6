"""The end of a write, event by event: drain, force, close, again after a failure, abandon."""

from __future__ import annotations

import pytest

from bk_spark.protocol.errors import (
    BookieUnavailableError,
    BookKeeperError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataUnavailableError,
    OutcomeUnknownError,
)
from bk_spark.protocol.ledger.metadata_calls import MetadataFailed, MetadataFound
from bk_spark.protocol.ledger.writer import WriterState
from bk_spark.protocol.ledger.writer_ensemble import ChangeState
from bk_spark.protocol.machine import EndedBy, Succeeded
from bk_spark.protocol.metadata.ledger_metadata import LedgerState, Segment
from bk_spark.protocol.quorum import Quorum
from tests.support.ledgers import WriterUnderTest, ledger

AWAY = MetadataUnavailableError("away")


def drained(count: int = 2) -> WriterUnderTest:
    """``count`` entries are acknowledged, and the ledger is being closed."""
    writer = WriterUnderTest()
    writer.add(count)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, range(count))
    writer.close()
    return writer


def test_closing_waits_for_every_acknowledgement() -> None:
    writer = WriterUnderTest()
    writer.add(2)
    writer.close()
    with pytest.raises(LedgerClosedError, match=r"close\(\) or abandon\(\) was called"):
        writer.add(1)
    writer.answer("b1", [0, 1])
    writer.answer("b2", 0)
    assert (writer.lac, writer.proposals) == (0, [])
    writer.answer("b3", 1)
    (closed,) = writer.proposals
    assert (closed.state, closed.last_entry_id, writer.versions) == (LedgerState.CLOSED, 1, [0])
    assert writer.machine.outcome is None
    writer.written()
    assert writer.machine.outcome == Succeeded(closed)
    assert (writer.machine.state, writer.machine.metadata) == (WriterState.CLOSED, closed)
    # Nothing happens after the end.
    writer.close()
    writer.machine.abandon()
    writer.fail("b1")
    writer.take()
    assert (writer.machine.outcome, len(writer.proposals)) == (Succeeded(closed), 1)


def test_an_empty_ledger_is_closed_at_once() -> None:
    writer = drained(0)
    assert writer.proposals[-1].last_entry_id == -1


def test_a_bookie_that_fails_while_the_ledger_is_being_closed_is_of_no_interest() -> None:
    writer = drained()
    writer.fail("b2")
    assert (writer.choices, writer.machine.state) == ([], WriterState.CLOSING)


def test_a_bookie_that_fails_before_all_is_acknowledged_is_replaced_first() -> None:
    writer = WriterUnderTest()
    writer.add(1)
    writer.close()
    writer.answer("b1", 0)
    writer.fail("b2")
    writer.chosen({1: "b4"})
    writer.written()
    assert [proposal.state for proposal in writer.proposals] == [LedgerState.OPEN]
    writer.answer("b4", 0)
    assert writer.proposals[-1].segments == (Segment(0, ("b1", "b4", "b3")),)
    assert (writer.proposals[-1].state, writer.versions) == (LedgerState.CLOSED, [0, 1])


def test_closing_continues_after_a_change_that_lost_and_is_no_longer_needed() -> None:
    writer = WriterUnderTest(ledger(Quorum(3, 3, 2), (0, "b1 b2 b5"), (1, "b1 b2 b3")), last_entry_id=0, length=9)
    writer.add(1)
    writer.fail("b1")
    for bookie in ("b2", "b3"):
        writer.answer(bookie, 1)
    writer.search_is_slow()
    writer.chosen({0: "b4"})
    writer.close()
    found = ledger(Quorum(3, 3, 2), (0, "b1 b2 b6"), (1, "b1 b2 b3"))
    writer.conflict(found)
    assert (writer.machine.state, len(writer.choices)) == (WriterState.CLOSING, 1)
    assert writer.proposals[-1] == found.closed(1, writer.machine.length)


def test_closing_drops_a_search_but_not_a_change_that_may_be_published() -> None:
    for chosen in (False, True):
        writer = WriterUnderTest()
        writer.add(1)
        writer.fail("b1")
        for bookie in ("b2", "b3"):
            writer.answer(bookie, 0)
        writer.search_is_slow()
        if chosen:
            writer.chosen({0: "b4"})
            writer.close()
            assert (writer.machine.ensemble.state, len(writer.proposals)) == (ChangeState.CHANGING, 1)
            writer.written()
            assert writer.machine.metadata.last_segment == Segment(1, ("b4", "b2", "b3"))
        else:
            writer.close()
            writer.chosen({0: "b4"})
        assert (writer.lac, writer.machine.state) == (0, WriterState.CLOSING)
        assert writer.proposals[-1] == writer.machine.metadata.closed(0, writer.machine.length)
        assert not writer.timers.keys() & {"slow search"}


def test_with_deferred_sync_closing_forces_what_was_not() -> None:
    writer = WriterUnderTest(deferred_sync=True)
    writer.add(2)
    writer.close()
    for bookie in ("b1", "b2"):
        writer.answer(bookie, [0, 1])
    assert len(writer.forces) == 3
    # A second call sends nothing.
    writer.close()
    assert (len(writer.forces), writer.proposals) == (3, [])
    writer.forced(1, "b1", "b2")
    assert writer.proposals == []
    writer.forced(1, "b3")
    assert writer.proposals[-1].last_entry_id == 1


def test_a_force_that_fails_ends_the_writer() -> None:
    writer = WriterUnderTest(deferred_sync=True)
    writer.add(1)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, 0)
    writer.force()
    writer.forced(0, "b1", "b2")
    error = BookieUnavailableError("not synced", bookie_id="b3")
    writer.machine.fail(error)
    writer.forced(0, "b3")
    assert (writer.machine.outcome, writer.lac) == (EndedBy(error), -1)
    with pytest.raises(BookieUnavailableError):
        writer.force()


def test_a_second_close_joins_the_first() -> None:
    writer = drained()
    writer.close()
    assert len(writer.proposals) == 1


def test_a_close_whose_outcome_is_unknown_is_not_taken_for_done_or_failed() -> None:
    writer = drained()
    writer.handle(MetadataFailed(OutcomeUnknownError("lost")))
    writer.handle(MetadataFailed(AWAY))
    assert (writer.machine.close_error, writer.machine.outcome) == (AWAY, None)
    with pytest.raises(LedgerClosedError):
        writer.add(1)
    # The second close reads the store: the first took effect.
    writer.close()
    assert (writer.machine.close_error, len(writer.proposals)) == (None, 2)
    reads = writer.reads
    writer.conflict(writer.proposals[0])
    assert (writer.machine.outcome, writer.reads) == (Succeeded(writer.proposals[0]), reads + 1)


def test_a_second_close_finds_that_another_client_closed_the_ledger_elsewhere() -> None:
    writer = drained()
    writer.handle(MetadataFailed(AWAY))
    writer.close()
    writer.conflict(writer.start.closed(0, 8))
    assert isinstance(writer.machine.close_error, LedgerFencedError)
    assert writer.machine.outcome is None


def test_an_unexpected_error_fails_the_close_and_not_the_next_one() -> None:
    writer = drained()
    writer.machine.fail(ZeroDivisionError())
    assert isinstance(writer.machine.close_error, BookKeeperError)
    writer.close()
    writer.written()
    assert isinstance(writer.machine.outcome, Succeeded)


def test_what_ends_the_writer_ends_its_close() -> None:
    writer = WriterUnderTest()
    writer.add(1)
    writer.close()
    writer.machine.fail(AWAY)
    writer.close()
    assert (writer.machine.outcome, writer.proposals) == (EndedBy(AWAY), [])


@pytest.mark.parametrize("closing", [False, True])
def test_abandoning(closing: bool) -> None:
    writer = drained() if closing else WriterUnderTest()
    writer.machine.abandon()
    writer.handle(MetadataFound(writer.start, 0))
    assert isinstance(writer.machine.outcome, EndedBy)
    assert isinstance(writer.machine.outcome.error, LedgerClosedError)
    assert writer.machine.close_error is None
    writer.close()
    assert len(writer.proposals) == closing
