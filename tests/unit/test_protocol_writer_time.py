"""What a writer decides by time: pauses, patience, the window, the explicit LAC. Timers fire when the test says so."""

from __future__ import annotations

import pytest

from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import AddQuorumTimeoutError, NotEnoughBookiesError
from bk_spark.protocol.ledger.writer_actions import LacAnswered, WriterTimer
from bk_spark.protocol.quorum import Quorum
from tests.support.ledgers import WriterUnderTest, ledger, payload_of

NO_MORE = NotEnoughBookiesError("no more bookies")


# --- busy bookies -------------------------------------------------------------------------------


def test_pauses_double_up_to_a_second_while_everything_is_refused() -> None:
    writer = WriterUnderTest()
    writer.add(2)
    for _ in range(8):
        writer.answer("b3", [0, 1], Code.TOO_MANY_REQUESTS)
        writer.send_refused("b3")
    assert [pause for _, pause in writer.pauses] == [20, 40, 80, 160, 320, 640, 1000, 1000]
    # The bookie took an entry, so the next pause is short again.
    writer.answers("b3", [(0, Code.OK), (1, Code.TOO_MANY_REQUESTS)])
    writer.send_refused("b3")
    writer.answer("b3", 1, Code.TOO_MANY_REQUESTS)
    assert [pause for _, pause in writer.pauses[8:]] == [20, 40]
    writer.send_refused("b3")
    writer.answer("b3", 1)
    writer.add(1)
    writer.answer("b3", 2, Code.TOO_MANY_REQUESTS)
    assert writer.pauses[-1] == ("b3", 20)


def test_each_bookie_has_its_own_pause() -> None:
    writer = WriterUnderTest()
    writer.add(1)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, 0, Code.TOO_MANY_REQUESTS)
    assert writer.pauses == [("b1", 20), ("b2", 20)]
    assert not writer.machine.adds.has_room(1, 1)
    writer.send_refused("b1")
    assert not writer.machine.adds.has_room(1, 1)
    writer.send_refused("b2")
    assert writer.machine.adds.has_room(1, 1)


# --- patience -----------------------------------------------------------------------------------


def tick(writer: WriterUnderTest, times: int = 1) -> None:
    for _ in range(times):
        assert WriterTimer.PROGRESS in writer.timers
        writer.fire(WriterTimer.PROGRESS)


def test_a_bookie_that_takes_nothing_for_the_add_timeout_is_given_up() -> None:
    writer = WriterUnderTest(add_timeout_ms=800)
    assert writer.timers == {}
    writer.add(2)
    assert writer.timers == {WriterTimer.PROGRESS: 200.0}
    for bookie in ("b1", "b2"):
        writer.answer(bookie, [0, 1])
    tick(writer, 4)
    assert writer.left == []
    # A refusal is no progress. A taken add is.
    writer.answer("b3", 1, Code.TOO_MANY_REQUESTS)
    writer.answer("b3", 0)
    tick(writer, 4)
    writer.send_refused("b3")
    writer.answer("b3", 1, Code.TOO_MANY_REQUESTS)
    assert writer.left == []
    tick(writer)
    assert writer.left == ["b3"]
    assert writer.machine.ensemble.failed == {2: "b3"}
    # No bookie owes anything, so no timer runs until something is sent.
    assert WriterTimer.PROGRESS not in writer.timers
    writer.add(1)
    assert WriterTimer.PROGRESS in writer.timers


def test_who_owes_nothing_is_not_given_up() -> None:
    writer = WriterUnderTest(add_timeout_ms=800)
    writer.add(1)
    for bookie in ("b1", "b2", "b3"):
        writer.answer(bookie, 0)
    tick(writer)
    assert writer.timers == {}
    writer.add(1)
    tick(writer, 4)
    assert writer.left == []
    tick(writer)
    assert sorted(writer.left) == ["b1", "b2", "b3"]


def test_a_replacement_that_takes_nothing_is_given_up_too() -> None:
    writer = WriterUnderTest(add_timeout_ms=800)
    writer.add(1)
    writer.answer("b1", 0)
    writer.fail("b3")
    tick(writer, 3)
    writer.chosen({2: "b4"})
    writer.written()
    writer.answer("b2", 0)
    tick(writer, 4)
    assert writer.left == ["b3"]
    tick(writer)
    assert writer.left == ["b3", "b4"]


def test_an_entry_without_its_ack_quorum_ends_the_writer_in_time() -> None:
    writer = WriterUnderTest(add_timeout_ms=60_000, add_quorum_timeout_ms=400)
    writer.add(3)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, [0, 1, 2])
    tick(writer, 9)
    assert writer.machine.outcome is None
    writer.add(1)
    writer.answer("b1", 3)
    assert writer.timers[WriterTimer.PROGRESS] == 100.0
    tick(writer, 4)
    assert writer.machine.outcome is None
    tick(writer)
    error = writer.machine.error
    assert isinstance(error, AddQuorumTimeoutError)
    assert (error.entry_id, writer.lac) == (3, 2)


def test_a_search_is_slow_after_a_second() -> None:
    writer = WriterUnderTest()
    writer.add(1)
    writer.fail("b1")
    assert writer.timers[WriterTimer.SLOW_SEARCH] == 1_000
    writer.chosen({0: "b4"})
    assert WriterTimer.SLOW_SEARCH not in writer.timers


def test_without_news_it_looks_again_after_half_a_minute() -> None:
    writer = WriterUnderTest()
    writer.add(1)
    writer.fail("b1")
    assert WriterTimer.SEARCH_AGAIN not in writer.timers
    writer.no_bookies(NO_MORE)
    assert writer.timers[WriterTimer.SEARCH_AGAIN] == 30_000
    writer.fire(WriterTimer.SEARCH_AGAIN)
    assert len(writer.choices) == 2
    writer.no_bookies(NO_MORE)
    assert WriterTimer.SEARCH_AGAIN in writer.timers


def test_failed_bookies_are_left_also_by_what_ends_the_writer() -> None:
    writer = WriterUnderTest(deferred_sync=True)
    writer.add(1)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, 0)
    writer.fail("b3")
    assert writer.machine.outcome is not None
    assert writer.left == ["b3"]


def test_bookies_that_stall_together_are_all_left_though_the_first_ends_the_writer() -> None:
    writer = WriterUnderTest(deferred_sync=True, add_timeout_ms=800)
    writer.add(1)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, 0)
    writer.add(1)
    writer.answer("b1", 1)
    tick(writer, 5)
    assert (sorted(writer.left), writer.choices) == (["b2", "b3"], [])
    # The outcome of a machine never changes.
    assert str(writer.machine.error).startswith("bookie b3 failed; ")


# --- the window ---------------------------------------------------------------------------------


def test_bytes_count_until_every_bookie_has_answered() -> None:
    writer = WriterUnderTest(max_pending_bytes=1_000)
    assert writer.machine.adds.has_room(1, 5_000), "if nothing is under way, there is always room"
    assert not writer.machine.adds.has_room(1, 600, waiting_entries=1, waiting_bytes=600)
    writer.add(3)
    size = sum(len(payload_of(entry)) + writer.packager.overhead_bytes for entry in range(3))
    assert 200 < size < 300
    assert writer.machine.adds.has_room(1, 1_000 - size)
    assert not writer.machine.adds.has_room(1, 1_001 - size)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, [0, 1, 2])
    assert not writer.machine.adds.has_room(1, 1_000)
    writer.answer("b3", [0, 1, 2])
    assert writer.machine.adds.has_room(1, 1_000)


def test_entries_count_by_the_slowest_bookie() -> None:
    writer = WriterUnderTest(max_unanswered_entries=4)
    writer.add(3)
    assert writer.machine.adds.has_room(1, 1)
    assert not writer.machine.adds.has_room(2, 1)
    assert not writer.machine.adds.has_room(1, 1, waiting_entries=1, waiting_bytes=1)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, [0, 1, 2])
    assert not writer.machine.adds.has_room(2, 1)
    writer.fail("b3")
    assert writer.machine.adds.has_room(4, 1)


# --- the explicit LAC ---------------------------------------------------------------------------


def acknowledged(writer: WriterUnderTest, entry_id: int) -> None:
    writer.add(1)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, entry_id)


def test_a_lac_is_told_once_unless_adds_carried_it() -> None:
    writer = WriterUnderTest(explicit_lac_interval_ms=500)
    acknowledged(writer, 0)
    assert writer.timers[WriterTimer.EXPLICIT_LAC] == 500
    # An add carries it before the interval ends.
    writer.add(1)
    writer.fire(WriterTimer.EXPLICIT_LAC)
    assert (writer.lacs, WriterTimer.EXPLICIT_LAC in writer.timers) == ([], False)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, 1)
    writer.fire(WriterTimer.EXPLICIT_LAC)
    assert {(action.bookie_id, action.last_add_confirmed) for action in writer.lacs} == {
        (bookie, 1) for bookie in ("b1", "b2", "b3")
    }
    for taken in (True, False, True):
        writer.handle(LacAnswered(1, taken))
    writer.fire(WriterTimer.EXPLICIT_LAC)
    assert (len(writer.lacs), WriterTimer.EXPLICIT_LAC in writer.timers) == (3, False)


@pytest.mark.parametrize("answers", [(True, False, False), (False, False, False)])
def test_a_lac_that_no_ack_quorum_took_is_told_again(answers: tuple[bool, ...]) -> None:
    writer = WriterUnderTest(explicit_lac_interval_ms=500)
    acknowledged(writer, 0)
    writer.fire(WriterTimer.EXPLICIT_LAC)
    # Nothing is sent while answers are missing.
    writer.handle(LacAnswered(0, answers[0]))
    writer.fire(WriterTimer.EXPLICIT_LAC)
    assert len(writer.lacs) == 3
    for taken in answers[1:]:
        writer.handle(LacAnswered(0, taken))
    # A surplus answer, or one to an older request, does not count.
    writer.handle(LacAnswered(0, True))
    writer.handle(LacAnswered(-1, True))
    writer.fire(WriterTimer.EXPLICIT_LAC)
    assert len(writer.lacs) == 6


def test_only_the_write_set_is_told() -> None:
    writer = WriterUnderTest(ledger(Quorum(3, 2, 2)), explicit_lac_interval_ms=500)
    writer.add(1)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, 0)
    writer.fire(WriterTimer.EXPLICIT_LAC)
    assert {action.bookie_id for action in writer.lacs} == {"b1", "b2"}


def test_without_an_interval_nothing_is_told() -> None:
    writer = WriterUnderTest()
    acknowledged(writer, 0)
    assert WriterTimer.EXPLICIT_LAC not in writer.timers
