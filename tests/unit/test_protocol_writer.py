"""The ledger writer, event by event. Bookies are b1, b2, …; C8 and the like are the protocol's known bugs."""

from __future__ import annotations

import random
import traceback

import pytest

from bk_spark.protocol.codes import Code
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import (
    EnsembleChangeRefusedError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataConflictError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from bk_spark.protocol.ledger.metadata_calls import MetadataFound
from bk_spark.protocol.ledger.writer import WriterState
from bk_spark.protocol.ledger.writer_actions import BookiesChanged, SendAdds
from bk_spark.protocol.ledger.writer_ensemble import ChangeState
from bk_spark.protocol.machine import EndedBy
from bk_spark.protocol.metadata.ledger_metadata import LedgerState, Segment
from bk_spark.protocol.quorum import Quorum
from tests.support.ledgers import WriterUnderTest, ledger, payload_of

NO_MORE = NotEnoughBookiesError("no more bookies")


def length_of(last_entry_id: int) -> int:
    return sum(len(payload_of(entry)) for entry in range(last_entry_id + 1))


# --- acknowledging ------------------------------------------------------------------------------


def test_an_entry_is_acknowledged_at_the_ack_quorum() -> None:
    writer = WriterUnderTest()
    writer.add()
    assert writer.sent() == {"b1": [0], "b2": [0], "b3": [0]}
    writer.answer("b1", 0)
    assert (writer.acknowledged, writer.machine.pending_entries) == ([], 1)
    writer.answer("b3", 0)
    assert (writer.acknowledged, writer.machine.pending_entries) == ([0], 0)
    writer.answer("b2", 0)
    assert writer.acknowledged == [0]
    assert writer.machine.length == length_of(0)


@pytest.mark.parametrize("ack_quorum", [1, 2, 3])
def test_every_ack_quorum(ack_quorum: int) -> None:
    writer = WriterUnderTest(ledger(Quorum(3, 3, ack_quorum)))
    writer.add(2)
    for number, bookie in enumerate(("b2", "b3", "b1"), 1):
        writer.answer(bookie, [0, 1])
        assert writer.lac == (1 if number >= ack_quorum else -1)


def test_acknowledged_in_order_whatever_the_order_of_answers() -> None:
    writer = WriterUnderTest()
    writer.add(3)
    writer.add(2)
    writer.answer("b1", [4, 2, 0])
    writer.answer("b2", [4, 3, 2])
    assert writer.acknowledged == []
    writer.answer("b2", [0])
    assert writer.acknowledged == [0]
    writer.answer("b1", [1, 3])
    assert writer.acknowledged == [0]
    writer.answer("b3", [1])
    assert writer.acknowledged == [0, 4]
    assert writer.machine.length == length_of(4)


def test_the_same_answer_twice_counts_once() -> None:
    writer = WriterUnderTest()
    writer.add(2)
    writer.answer("b1", [0, 0, 1])
    writer.answer("b1", [0, 1])
    assert (writer.acknowledged, writer.machine.adds.pending.owed[0], writer.machine.adds.pending.owed[1]) == ([], 0, 2)


def test_answers_nobody_asked_for_count_nothing() -> None:
    writer = WriterUnderTest(ledger(Quorum(3, 2, 2)))
    writer.add(1)
    writer.answer("b3", 0)  # not in the write set
    writer.answer("b9", 0)  # not in the ensemble
    writer.answer("b1", [5, -1, 2**40])  # no such entries
    writer.answer("b1", 0)
    assert writer.acknowledged == []
    writer.answer("b2", 0)
    assert writer.acknowledged == [0]


@pytest.mark.parametrize("quorum", [Quorum(3, 2, 2), Quorum(5, 3, 2), Quorum(4, 2, 1)], ids=str)
def test_striped_ensembles(quorum: Quorum) -> None:
    writer = WriterUnderTest(ledger(quorum))
    writer.add(7)
    writer.add(6)
    sent = writer.sent()
    for index in range(quorum.ensemble_size):
        assert sent[f"b{index + 1}"] == [entry for entry in range(13) if quorum.stores(index, entry)]
    for bookie, entries in sent.items():
        writer.answer(bookie, entries)
    assert writer.lac == 12
    assert writer.machine.adds.pending.first_entry_id == 13


def test_the_lac_travels_with_later_entries() -> None:
    writer = WriterUnderTest()
    writer.add(2)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, [0])
    first = writer.machine.last_add_pushed + 1
    writer.machine.add(Payloads.of([b"x"]))
    action = next(action for action in writer.machine.take_actions() if isinstance(action, SendAdds))
    header = bytes(action.frames[0])[28:60]
    assert int.from_bytes(header[8:16], "big") == first
    assert int.from_bytes(header[16:24], "big") == 0


def test_adding_nothing_does_nothing() -> None:
    writer = WriterUnderTest()
    assert writer.machine.add(Payloads.of([])) == -1
    assert writer.sent() == {}


# --- limits and back-pressure -------------------------------------------------------------------


def test_b9_what_the_slowest_bookie_owes_is_known() -> None:
    writer = WriterUnderTest()
    writer.add(10)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, range(10))
    assert (writer.lac, writer.machine.pending_entries) == (9, 0)
    assert writer.machine.adds.most_unanswered == 10
    # Entries that b3 owes are kept, because they may be sent again.
    assert writer.machine.adds.pending.first_entry_id == 0
    writer.answer("b3", range(4))
    assert (writer.machine.adds.most_unanswered, writer.machine.adds.pending.first_entry_id) == (6, 4)
    writer.answer("b3", range(4, 10))
    assert (writer.machine.adds.most_unanswered, writer.machine.adds.pending.first_entry_id) == (0, 10)


def test_b9_too_many_requests_is_no_failure() -> None:
    writer = WriterUnderTest()
    writer.add(6)
    writer.sent()
    for bookie in ("b1", "b2"):
        writer.answer(bookie, range(6))
    writer.answers("b3", [(0, Code.OK), (1, Code.TOO_MANY_REQUESTS), (2, Code.OK)])
    writer.answer("b3", [4, 3], Code.TOO_MANY_REQUESTS)
    assert ([name for name, _ in writer.pauses], writer.choices, writer.machine.adds.throttled) == (["b3"], [], True)
    assert writer.sent() == {}
    # Refused entries are sent again once and in order, although they are acknowledged. Entries under way are not.
    writer.send_refused("b3")
    assert writer.sent() == {"b3": [1, 3, 4]}
    assert not writer.machine.adds.throttled
    writer.send_refused("b3")
    assert writer.sent() == {}
    writer.answer("b3", [1], Code.TOO_MANY_REQUESTS)
    assert [name for name, _ in writer.pauses] == ["b3", "b3"]
    writer.answer("b3", [3, 4, 5])
    assert writer.machine.adds.pending.first_entry_id == 1
    writer.send_refused("b3")
    assert writer.sent() == {"b3": [1]}
    writer.answer("b3", 1)
    assert (writer.machine.adds.pending.first_entry_id, writer.machine.adds.most_unanswered) == (6, 0)


def test_b9_a_throttled_bookie_that_is_given_up_is_replaced_like_any_other() -> None:
    writer = WriterUnderTest()
    writer.add(2)
    writer.answer("b3", [0, 1], Code.TOO_MANY_REQUESTS)
    writer.fail("b3")
    assert not writer.machine.adds.throttled
    writer.send_refused("b3")
    writer.sent()
    writer.chosen({2: "b4"})
    writer.written()
    assert writer.sent() == {"b4": [0, 1]}
    writer.send_refused("b3")
    assert writer.sent() == {}


def test_b9_a_refusal_beside_a_failure_is_a_failure() -> None:
    writer = WriterUnderTest()
    writer.add(2)
    writer.answers("b3", [(0, Code.TOO_MANY_REQUESTS), (1, Code.IO_ERROR)])
    assert (writer.pauses, [choice.failed for choice in writer.choices]) == ([], [(2,)])


def test_a_bookie_that_is_given_up_owes_nothing() -> None:
    writer = WriterUnderTest()
    writer.add(5)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, range(5))
    assert writer.machine.adds.most_unanswered == 5
    writer.fail("b3")
    assert (writer.machine.adds.most_unanswered, writer.machine.adds.pending.first_entry_id) == (0, 5)
    # Nothing is pending, so the ledger keeps its ensemble until the next add.
    assert writer.choices == []
    writer.sent()
    writer.add()
    assert [choice.failed for choice in writer.choices] == [(2,)]
    assert writer.sent() == {"b1": [5], "b2": [5]}


# --- ensemble changes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", [Code.IO_ERROR, Code.READ_ONLY, Code.NO_LEDGER, Code.BAD_REQUEST, Code.BAD_VERSION, Code.NO_ENTRY]
)
def test_an_error_replaces_the_bookie(code: Code) -> None:
    writer = WriterUnderTest()
    writer.add()
    writer.answer("b2", 0, code)
    (choice,) = writer.choices
    assert (choice.failed, choice.exclude, choice.avoid) == ((1,), {"b1", "b2", "b3"}, set())
    assert not choice.needed
    writer.chosen({1: "b4"})
    (proposal,) = writer.proposals
    assert proposal.segments == (Segment(0, ("b1", "b4", "b3")),)
    assert writer.machine.ensemble.state is ChangeState.CHANGING


def test_c8_nothing_is_acknowledged_before_the_change_is_published() -> None:
    writer = WriterUnderTest()
    writer.add(2)
    writer.answer("b1", 0)
    writer.answer("b2", 0)
    assert writer.acknowledged == [0]
    writer.fail("b3")
    # ZooKeeper stalls. b1 and b2 continue and answer everything.
    writer.add(2)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, range(4))
    assert writer.acknowledged == [0]
    writer.chosen({2: "b4"})
    for bookie in ("b1", "b2"):
        writer.answer(bookie, range(4))
    assert writer.acknowledged == [0]
    assert writer.proposals[-1].segments == (Segment(0, ("b1", "b2", "b3")), Segment(1, ("b1", "b2", "b4")))
    writer.written()
    assert writer.acknowledged == [0, 3]


def test_c8_three_bookies_fail_one_after_another_while_zookeeper_stalls() -> None:
    writer = WriterUnderTest()
    writer.add(1)
    writer.answer("b1", 0)
    writer.answer("b2", 0)
    writer.add(2)
    writer.sent()
    writer.fail("b1")
    writer.chosen({0: "b4"})
    writer.fail("b2")
    writer.fail("b3")
    writer.add(1)
    assert writer.sent() == {}
    assert len(writer.choices) == 1
    writer.written()
    # b4 gets the entries not acknowledged. Now the writer searches for the other two.
    assert writer.sent() == {"b4": [1, 2, 3]}
    assert (writer.choices[-1].failed, writer.choices[-1].exclude) == ((1, 2), {"b4", "b2", "b3"})
    assert writer.choices[-1].avoid == {"b1"}
    writer.answer("b4", [1, 2, 3])
    assert writer.acknowledged == [0]
    writer.chosen({1: "b5", 2: "b6"})
    assert writer.proposals[-1].segments == (Segment(0, ("b1", "b2", "b3")), Segment(1, ("b4", "b5", "b6")))
    writer.written()
    assert writer.sent() == {"b5": [1, 2, 3], "b6": [1, 2, 3]}
    assert writer.acknowledged == [0]
    writer.answer("b5", [1, 2, 3])
    assert writer.acknowledged == [0, 3]


def test_acks_of_a_replaced_bookie_count_no_longer() -> None:
    writer = WriterUnderTest()
    writer.add(1)
    writer.answer("b1", 0)
    writer.fail("b1")
    writer.chosen({0: "b4"})
    writer.answer("b2", 0)
    writer.written()
    # b1 holds the entry, but b1 is not in the ensemble that readers will see.
    assert writer.acknowledged == []
    writer.answer("b1", 0)
    assert writer.acknowledged == []
    writer.answer("b4", 0)
    assert writer.acknowledged == [0]


def test_exactly_the_unacknowledged_entries_go_to_the_replacement() -> None:
    writer = WriterUnderTest(ledger(Quorum(4, 3, 2)))
    writer.add(6)
    writer.add(6)
    writer.sent()
    for bookie in ("b1", "b2", "b4"):
        writer.answer(bookie, range(5))
    lac = writer.lac
    assert lac == 4
    writer.fail("b3")
    writer.add(3)
    writer.sent()
    writer.chosen({2: "b5"})
    writer.written()
    assert writer.sent() == {"b5": [entry for entry in range(lac + 1, 15) if writer.start.quorum.stores(2, entry)]}
    assert writer.proposals[-1].last_segment == Segment(5, ("b1", "b2", "b5", "b4"))


def test_several_changes_at_one_entry_leave_one_segment() -> None:
    writer = WriterUnderTest()
    writer.add(1)
    for failing, index, replacement in (("b1", 0, "b4"), ("b4", 0, "b5"), ("b2", 1, "b6")):
        writer.fail(failing)
        writer.chosen({index: replacement})
        writer.written()
    assert writer.machine.metadata.segments == (Segment(0, ("b5", "b6", "b3")),)
    writer.answer("b5", 0)
    writer.answer("b6", 0)
    assert writer.acknowledged == [0]


def test_c9_a_bookie_is_replaced_twice_and_the_ensemble_is_the_old_one_again() -> None:
    writer = WriterUnderTest()
    writer.add(1)
    writer.fail("b1")
    writer.chosen({0: "b4"})
    writer.written()
    writer.sent()
    writer.fail("b4")
    assert (writer.choices[-1].exclude, writer.choices[-1].avoid) == ({"b4", "b2", "b3"}, {"b1"})
    # Only b1 is left, which runs again.
    writer.chosen({0: "b1"})
    assert writer.proposals[-1].segments == writer.start.segments
    writer.written()
    assert writer.sent() == {"b1": [0]}
    writer.answer("b2", 0)
    assert writer.acknowledged == []
    writer.answer("b1", 0)
    assert writer.acknowledged == [0]
    assert (writer.machine.state, writer.machine.ensemble.state) == (WriterState.OPEN, ChangeState.NONE)


def test_c9_equal_ensembles_and_a_lost_reply() -> None:
    writer = WriterUnderTest()
    writer.add(1)
    writer.fail("b1")
    writer.chosen({0: "b4"})
    writer.written()
    writer.fail("b4")
    writer.chosen({0: "b1"})
    writer.sent()
    # The reply of the compare-and-set is lost. The metadata found are ours, and equal the first ones.
    writer.conflict(writer.proposals[-1])
    assert writer.sent() == {"b1": [0]}
    writer.answer("b1", 0)
    writer.answer("b3", 0)
    assert writer.acknowledged == [0]


def test_the_replacement_fails_before_it_is_published() -> None:
    writer = WriterUnderTest()
    writer.add(1)
    writer.fail("b1")
    writer.chosen({0: "b4"})
    writer.sent()
    writer.fail("b4")
    assert len(writer.choices) == 1
    writer.written()
    assert writer.sent() == {}
    assert (writer.choices[-1].failed, writer.choices[-1].avoid) == ((0,), {"b1"})
    writer.chosen({0: "b5"})
    writer.written()
    assert writer.sent() == {"b5": [0]}


def test_a_change_replaces_what_it_can() -> None:
    writer = WriterUnderTest()
    writer.add(1)
    writer.sent()
    writer.fail("b1", "b2")
    # b2 failed after the search began.
    assert [choice.failed for choice in writer.choices] == [(0,)]
    writer.chosen({0: "b4"})
    writer.written()
    assert writer.choices[-1].failed == (1,)
    writer.no_bookies(NO_MORE)
    writer.answer("b4", 0)
    writer.answer("b3", 0)
    assert writer.acknowledged == [0]


# --- no replacement -----------------------------------------------------------------------------


def test_without_a_replacement_the_writer_goes_on_while_the_ack_quorum_can_be_reached() -> None:
    writer = WriterUnderTest()
    writer.add(1)
    writer.fail("b1")
    writer.no_bookies(NO_MORE)
    assert (writer.machine.state, writer.machine.ensemble.state) == (WriterState.OPEN, ChangeState.NONE)
    writer.answer("b2", 0)
    writer.answer("b3", 0)
    assert (writer.acknowledged, writer.proposals) == ([0], [])
    writer.sent()
    writer.add(1)
    assert writer.sent() == {"b2": [1], "b3": [1]}
    # The writer does not search again at every add …
    assert len(writer.choices) == 1
    writer.handle(BookiesChanged())
    # … but it does when bookies come or go. Then it may choose one that failed before.
    assert len(writer.choices) == 2
    assert writer.choices[-1].avoid == set()
    writer.chosen({0: "b4"})
    writer.written()
    assert writer.sent() == {"b4": [1]}


def test_answers_that_came_during_the_search_count_when_it_finds_nobody() -> None:
    writer = WriterUnderTest()
    writer.add(1)
    writer.fail("b1")
    writer.answer("b2", 0)
    writer.answer("b3", 0)
    assert writer.acknowledged == []
    writer.no_bookies(NO_MORE)
    assert writer.acknowledged == [0]


def test_while_a_replacement_is_looked_for_long_the_published_ensemble_counts() -> None:
    """A bookie that swallows connections delays nothing."""
    writer = WriterUnderTest()
    writer.add(1)
    writer.fail("b1")
    for bookie in ("b2", "b3"):
        writer.answer(bookie, 0)
    assert writer.acknowledged == []
    writer.search_is_slow()
    assert writer.acknowledged == [0]
    writer.add(2)
    for bookie in ("b2", "b3"):
        writer.answer(bookie, 1)
    assert writer.acknowledged == [0, 1]
    writer.chosen({0: "b4"})
    # The new segment begins after the entries acknowledged meanwhile. From now on it must be published first.
    assert writer.proposals[-1].segments == (Segment(0, ("b1", "b2", "b3")), Segment(2, ("b4", "b2", "b3")))
    for bookie in ("b2", "b3"):
        writer.answer(bookie, 2)
    writer.search_is_slow()
    assert writer.acknowledged == [0, 1]
    writer.sent()
    writer.written()
    assert writer.acknowledged == [0, 1, 2]
    assert writer.sent() == {"b4": [2]}
    # The next search has the full time again.
    writer.add(1)
    writer.fail("b2")
    for bookie in ("b3", "b4"):
        writer.answer(bookie, 3)
    assert writer.acknowledged == [0, 1, 2]


def test_a_search_that_found_nobody_is_repeated_where_more_failed_since() -> None:
    writer = WriterUnderTest()
    writer.add(1)
    writer.fail("b1", "b2")
    assert [(choice.failed, choice.needed) for choice in writer.choices] == [((0,), False)]
    # That search was not told that a bookie is needed, and not told of b2.
    writer.no_bookies(NO_MORE)
    assert writer.machine.error is None
    assert [(choice.failed, choice.needed) for choice in writer.choices[1:]] == [((0, 1), True)]
    writer.no_bookies(NO_MORE)
    assert writer.machine.error is NO_MORE


def test_bookies_that_come_during_a_search_are_not_missed() -> None:
    writer = WriterUnderTest()
    writer.add(1)
    writer.fail("b1")
    writer.handle(BookiesChanged())
    writer.no_bookies(NO_MORE)
    assert len(writer.choices) == 2
    writer.no_bookies(NO_MORE)
    assert len(writer.choices) == 2
    assert (writer.machine.state, writer.machine.ensemble.state) == (WriterState.OPEN, ChangeState.NONE)


def test_a_search_without_result_ends_nothing_while_nothing_is_pending() -> None:
    writer = WriterUnderTest(ledger(Quorum(4, 2, 2)))
    writer.add(1)
    writer.fail("b4")
    assert writer.choices[-1].needed
    for bookie in ("b1", "b2"):
        writer.answer(bookie, 0)
    writer.no_bookies(NO_MORE)
    assert writer.acknowledged == [0]
    assert (writer.machine.error, writer.machine.ensemble.state) == (None, ChangeState.NONE)


@pytest.mark.parametrize(
    ("quorum", "failing", "ends"),
    [
        (Quorum(3, 3, 2), "b1 b3", True),
        (Quorum(3, 3, 3), "b2", True),
        (Quorum(3, 3, 1), "b1 b2", False),
        (Quorum(3, 3, 1), "b1 b2 b3", True),
        (Quorum(3, 2, 2), "b1", True),
        (Quorum(4, 2, 1), "b1 b3", False),
        (Quorum(4, 2, 1), "b1 b2", True),
        (Quorum(4, 2, 1), "b4 b1", True),
        (Quorum(5, 3, 2), "b1", False),
        (Quorum(5, 3, 2), "b1 b4", True),
        (Quorum(6, 2, 2), "b1", True),
        (Quorum(6, 3, 2), "b1 b4", False),
    ],
    ids=str,
)
def test_without_a_replacement_the_writer_ends_when_some_write_set_is_lost(
    quorum: Quorum, failing: str, ends: bool
) -> None:
    writer = WriterUnderTest(ledger(quorum))
    writer.add(1)
    writer.fail(*failing.split())
    for _ in failing.split():
        writer.no_bookies(NO_MORE)
    assert (writer.machine.error is NO_MORE) is ends
    assert (writer.machine.outcome is not None) is ends


@pytest.mark.parametrize(
    ("quorum", "failing", "needed"),
    [
        (Quorum(3, 3, 2), "b1", [False]),
        (Quorum(3, 3, 3), "b1", [True]),
        (Quorum(3, 3, 2), "b1 b2", [False, True]),
        (Quorum(5, 3, 2), "b1 b3", [False, True]),
        (Quorum(4, 2, 1), "b1 b3", [False, False]),
    ],
    ids=str,
)
def test_whether_a_replacement_is_needed(quorum: Quorum, failing: str, needed: list[bool]) -> None:
    writer = WriterUnderTest(ledger(quorum))
    writer.add(1)
    for bookie in failing.split():
        writer.fail(bookie)
        if writer.machine.ensemble.state is ChangeState.CHOOSING:
            writer.no_bookies(NO_MORE)
    assert [choice.needed for choice in writer.choices] == needed


def test_a_later_failure_looks_for_both() -> None:
    writer = WriterUnderTest(ledger(Quorum(3, 3, 1)))
    writer.add(1)
    writer.fail("b1")
    writer.no_bookies(NO_MORE)
    writer.fail("b2")
    assert [(choice.failed, choice.needed) for choice in writer.choices] == [((0,), False), ((0, 1), False)]
    writer.chosen({0: "b4"})
    writer.written()
    assert writer.machine.ensemble.state is ChangeState.CHOOSING
    assert writer.choices[-1].failed == (1,)


# --- losing the ledger --------------------------------------------------------------------------


def test_a_fenced_answer_ends_the_writer() -> None:
    writer = WriterUnderTest()
    writer.add(2)
    writer.answer("b1", 0, Code.FENCED)
    assert isinstance(writer.machine.error, LedgerFencedError)
    assert (writer.machine.error.bookie_id, writer.machine.outcome, writer.choices) == (
        "b1",
        EndedBy(writer.machine.error),
        [],
    )
    for bookie in ("b2", "b3"):
        writer.answer(bookie, [0, 1])
    writer.fail("b2")
    assert (writer.acknowledged, writer.machine.pending_entries) == ([], 2)
    with pytest.raises(LedgerFencedError):
        writer.add()


def test_an_ended_writer_keeps_no_calls_of_a_program_that_tries_for_ever() -> None:
    """The calls in a traceback hold their payloads, and all raise one error."""
    writer = WriterUnderTest()
    writer.add(1)
    writer.answer("b1", 0, Code.FENCED)
    depths = []
    for _ in range(3):
        with pytest.raises(LedgerFencedError) as raised:
            writer.machine.check_open()
        depths.append(len(list(traceback.walk_tb(raised.value.__traceback__))))
    assert depths[2] == depths[1]


def test_a_fenced_answer_counts_wherever_it_comes_in_a_batch() -> None:
    writer = WriterUnderTest()
    writer.add(4)
    codes = [Code.OK, Code.TOO_MANY_REQUESTS, Code.IO_ERROR, Code.FENCED]
    writer.answers("b1", list(enumerate(codes)))
    assert isinstance(writer.machine.error, LedgerFencedError)
    assert writer.choices == []


def test_a_wrong_password_ends_the_writer() -> None:
    writer = WriterUnderTest(password_is_known=False)
    writer.add(1)
    writer.answers("b1", [(0, Code.IO_ERROR), (0, Code.UNAUTHORIZED)])
    assert isinstance(writer.machine.error, UnauthorizedError)
    assert "secret" not in str(writer.machine.error)


def test_a_bookie_with_another_password_has_failed_where_the_password_is_known() -> None:
    writer = WriterUnderTest()
    writer.add(1)
    writer.answers("b1", [(0, Code.UNAUTHORIZED)])
    assert writer.machine.error is None
    assert [choice.failed for choice in writer.choices] == [(0,)]


def changing() -> WriterUnderTest:
    writer = WriterUnderTest()
    writer.add(3)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, 0)
    writer.fail("b3")
    writer.chosen({2: "b4"})
    for bookie in ("b1", "b2"):
        writer.answer(bookie, [1, 2])
    writer.sent()
    assert writer.acknowledged == [0]
    return writer


def test_a_conflict_with_a_close_ends_the_writer() -> None:
    writer = changing()
    writer.conflict(writer.start.closed(0, length_of(0)))
    assert isinstance(writer.machine.error, LedgerClosedError)
    assert writer.acknowledged == [0]


def test_a_conflict_with_a_recovery_ends_the_writer() -> None:
    writer = changing()
    writer.conflict(writer.start.in_recovery())
    assert isinstance(writer.machine.error, LedgerFencedError)
    assert writer.acknowledged == [0]


def test_a_conflict_with_our_own_change_is_a_lost_reply() -> None:
    writer = changing()
    writer.conflict(writer.proposals[-1])
    assert writer.acknowledged == [0, 2]
    assert writer.sent() == {"b4": [1, 2]}


def test_a_lost_reply_while_another_bookie_fails() -> None:
    writer = changing()
    writer.fail("b1")
    writer.conflict(writer.proposals[-1])
    # The first change took effect: b4 is in, and b1 and b2 had answered. The next add searches only for b1.
    assert (writer.sent(), writer.acknowledged) == ({"b4": [1, 2]}, [0, 2])
    writer.add()
    assert writer.sent() == {"b2": [3], "b4": [3]}
    assert (writer.choices[-1].failed, writer.choices[-1].exclude) == ((0,), {"b1", "b2", "b4"})


def test_a_conflict_with_another_change_repeats_ours_on_the_new_base() -> None:
    writer = WriterUnderTest(ledger(Quorum(3, 3, 2), (0, "b1 b2 b9"), (1, "b1 b2 b3")), last_entry_id=0)
    writer.add(2)
    writer.fail("b3")
    writer.chosen({2: "b4"})
    # Re-replication replaced b9 in the first segment.
    found = ledger(Quorum(3, 3, 2), (0, "b1 b2 b8"), (1, "b1 b2 b3"))
    writer.conflict(found)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, [1, 2])
    assert writer.acknowledged == []
    assert writer.choices[-1].failed == (2,)
    writer.chosen({2: "b5"})
    assert writer.proposals[-1].segments == (Segment(0, ("b1", "b2", "b8")), Segment(1, ("b1", "b2", "b5")))
    writer.written()
    assert writer.acknowledged == [2]
    assert writer.sent()["b5"] == [1, 2]


def test_a_conflict_with_a_change_of_the_open_segment_ends_the_writer() -> None:
    writer = changing()
    writer.conflict(ledger(Quorum(3, 3, 2), (0, "b1 b2 b9")))
    assert isinstance(writer.machine.error, MetadataConflictError)
    assert writer.acknowledged == [0]


def test_no_more_changes_than_allowed() -> None:
    writer = WriterUnderTest(max_ensemble_changes=1)
    writer.add(1)
    writer.fail("b1")
    writer.chosen({0: "b4"})
    writer.written()
    writer.fail("b4")
    error = writer.machine.error
    assert isinstance(error, EnsembleChangeRefusedError)
    assert "bookie b4 failed" in error.message
    assert "maxNumEnsembleChanges" in error.message


# --- deferred sync ------------------------------------------------------------------------------


def deferred(count: int = 3) -> WriterUnderTest:
    """Add ``count`` entries that b1 and b2 hold."""
    writer = WriterUnderTest(deferred_sync=True)
    writer.add(count)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, range(count))
    return writer


def test_with_deferred_sync_only_forced_entries_are_confirmed() -> None:
    writer = deferred(3)
    machine = writer.machine
    assert (machine.last_add_acknowledged, writer.lac, machine.length, machine.pending_entries) == (2, -1, 0, 0)
    writer.force()
    assert [(force.bookie_id, force.last_entry_id) for force in writer.forces] == [("b1", 2), ("b2", 2), ("b3", 2)]
    # Entries acknowledged after the request may have arrived after the bookie's sync.
    writer.add(2)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, [3, 4])
    writer.forced(2, "b1", "b3")
    assert writer.acknowledged == []
    writer.forced(2, "b2")
    assert (writer.acknowledged, writer.lac, machine.last_add_acknowledged) == ([2], 2, 4)
    assert machine.length == length_of(2)
    writer.force()
    writer.forced(4)
    assert (writer.acknowledged, machine.length) == ([2, 4], length_of(4))


def test_forcing_nothing_new_asks_nobody() -> None:
    writer = WriterUnderTest(deferred_sync=True)
    writer.force()
    assert writer.forces == []
    writer = deferred(1)
    writer.force()
    writer.force()
    assert len(writer.forces) == 3
    writer.forced(0)
    writer.force()
    assert (len(writer.forces), writer.lac) == (3, 0)


def test_forces_that_end_out_of_order() -> None:
    writer = deferred(1)
    writer.force()
    writer.add(1)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, 1)
    writer.force()
    writer.forced(1)
    writer.forced(0)
    assert (writer.acknowledged, writer.machine.length) == ([1], length_of(1))


@pytest.mark.parametrize("forced", [False, True])
def test_with_deferred_sync_a_failed_bookie_ends_the_writer(forced: bool) -> None:
    writer = deferred(1)
    if forced:
        writer.force()
        writer.forced(0, "b1", "b2")
    writer.fail("b3")
    assert isinstance(writer.machine.error, EnsembleChangeRefusedError)
    writer.forced(0)
    # b3 has synced nothing, or lost it.
    assert (writer.acknowledged, writer.choices) == ([], [])


def test_with_deferred_sync_the_ensemble_can_change_before_the_first_acknowledgement() -> None:
    writer = WriterUnderTest(deferred_sync=True)
    writer.fail("b3")
    writer.add(2)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, [0, 1])
    # Acknowledged entries cannot move to another bookie, so replace the bookie first.
    assert writer.machine.last_add_acknowledged == -1
    writer.chosen({2: "b4"})
    writer.sent()
    writer.written()
    assert writer.sent() == {"b4": [0, 1]}
    assert writer.machine.last_add_acknowledged == 1
    writer.force()
    writer.forced(1, "b1", "b2", "b4")
    assert writer.acknowledged == [1]


def test_with_deferred_sync_a_slow_search_acknowledges_nothing() -> None:
    """What was acknowledged without the failed bookie could not move to its replacement, and no force confirms it."""
    writer = WriterUnderTest(deferred_sync=True)
    writer.fail("b3")
    writer.add(1)
    for bookie in ("b1", "b2"):
        writer.answer(bookie, 0)
    writer.search_is_slow()
    assert writer.machine.last_add_acknowledged == -1
    writer.chosen({2: "b4"})
    writer.written()
    assert (writer.machine.last_add_acknowledged, writer.machine.error) == (0, None)
    assert writer.machine.ensemble.metadata.last_segment == Segment(0, ("b1", "b2", "b4"))


def test_with_deferred_sync_no_bookie_can_be_done_without() -> None:
    writer = WriterUnderTest(deferred_sync=True)
    writer.add(1)
    writer.fail("b3")
    writer.no_bookies(NO_MORE)
    assert writer.machine.error is NO_MORE


def test_a_bookie_that_fails_after_the_last_force_does_not_hinder_closing() -> None:
    writer = deferred(1)
    writer.force()
    writer.forced(0)
    writer.close()
    writer.fail("b1")
    assert (writer.machine.state, writer.machine.outcome, writer.lac) == (WriterState.CLOSING, None, 0)


def test_a_failed_change_ends_the_writer() -> None:
    writer = changing()
    error = MetadataUnavailableError("stalled")
    writer.machine.fail(error)
    writer.machine.fail(LedgerClosedError("too late"))
    writer.take()
    assert writer.machine.outcome == EndedBy(error)
    writer.written()
    writer.handle(MetadataFound(writer.start, 1))
    writer.chosen({2: "b5"})
    writer.no_bookies(NO_MORE)
    writer.handle(BookiesChanged())
    writer.send_refused("b1")
    writer.take()
    assert (writer.acknowledged, writer.machine.state, len(writer.proposals)) == ([0], WriterState.FAILED, 1)


# --- recovery's writer --------------------------------------------------------------------------


def test_a_recovery_keeps_its_changes_to_itself() -> None:
    start = ledger(Quorum(3, 3, 2), (0, "b1 b2 b3"), state=LedgerState.IN_RECOVERY)
    writer = WriterUnderTest(start, publish=False, last_entry_id=9, length=length_of(9))
    writer.add(3, lac=9)
    assert writer.sent() == {bookie: [10, 11, 12] for bookie in ("b1", "b2", "b3")}
    writer.answer("b1", [10, 11, 12])
    writer.answer("b2", 10)
    writer.fail("b3")
    writer.chosen({2: "b4"})
    assert writer.proposals == []
    assert writer.sent() == {"b4": [11, 12]}
    writer.answer("b4", [11, 12])
    assert (writer.lac, writer.machine.length) == (12, length_of(12))
    assert writer.machine.metadata.segments == (Segment(0, ("b1", "b2", "b3")), Segment(11, ("b1", "b2", "b4")))
    assert writer.machine.metadata.state is LedgerState.IN_RECOVERY


# --- everything at once -------------------------------------------------------------------------


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(5, 3, 2), Quorum(2, 2, 2), Quorum(4, 3, 1)], ids=str)
@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_events(quorum: Quorum, seed: int) -> None:
    """Whatever happens, entries are acknowledged in order, and an ack quorum of the published ensemble holds them. Once
    the faults end, everything is acknowledged."""
    random_ = random.Random(f"{seed} {quorum}")
    writer = WriterUnderTest(ledger(quorum))
    machine = writer.machine
    holds: dict[str, set[int]] = {}
    on_the_way: list[tuple[str, int]] = []
    published = writer.start
    spare = quorum.ensemble_size
    chosen = written = checked = 0

    def absorb() -> None:
        nonlocal checked
        for bookie, entries in writer.sent().items():
            on_the_way.extend((bookie, entry) for entry in entries)
        for entry in range(checked, writer.lac + 1):
            ensemble = published.segment_of(entry).ensemble
            copies = sum(entry in holds.get(ensemble[index], ()) for index in quorum.write_set(entry))
            assert copies >= quorum.ack_quorum_size
        checked = writer.lac + 1

    def settle_change() -> bool:
        nonlocal chosen, written, published, spare
        if chosen < len(writer.choices):
            failed = writer.choices[chosen].failed
            chosen += 1
            some = [index for index in failed if random_.random() < 0.7] or [failed[0]]
            spare += len(some)
            writer.chosen({index: f"b{spare - number}" for number, index in enumerate(some)})
            return True
        if written < len(writer.proposals):
            written += 1
            published = writer.proposals[-1]
            writer.conflict(published) if random_.random() < 0.3 else writer.written()
            return True
        return False

    def deliver() -> None:
        bookie, entry = on_the_way.pop(random_.randrange(len(on_the_way)))
        if random_.random() < 0.15:
            writer.answer(bookie, entry, Code.TOO_MANY_REQUESTS)
        else:
            holds.setdefault(bookie, set()).add(entry)
            writer.answer(bookie, entry)

    for _ in range(150):
        step = random_.random()
        if step < 0.2:
            writer.add(random_.randint(1, 4))
        elif step < 0.26:
            writer.fail(random_.choice(machine.ensemble.members))
        elif step < 0.36:
            settle_change()
        elif step < 0.40:
            writer.search_is_slow()
        elif step < 0.46:
            writer.send_refused(random_.choice(machine.ensemble.members))
        elif on_the_way:
            deliver()
        absorb()
    while settle_change() or on_the_way or machine.adds.throttled:
        absorb()
        if on_the_way:
            deliver()
        for bookie in machine.ensemble.members:
            writer.send_refused(bookie)
        absorb()
    assert machine.error is None
    assert (machine.pending_entries, machine.length) == (0, length_of(machine.last_add_pushed))
    assert writer.acknowledged == sorted(set(writer.acknowledged))
