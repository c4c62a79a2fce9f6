"""Reading the last add confirmed: coverage, silence, floors, proofs."""

from __future__ import annotations

import itertools

import pytest

from bk_spark.protocol.errors import EntryUnknownError
from bk_spark.protocol.ledger.lac import LacAnswer, LacRead
from bk_spark.protocol.quorum import Answer, Quorum, covered
from tests.support.ledgers import LEDGER, ledger

ABSENT = LacAnswer(Answer.ABSENT)
IO_ERROR = LacAnswer(Answer.UNKNOWN, reason="answered IO_ERROR")


def present(lac: int) -> LacAnswer:
    return LacAnswer(Answer.PRESENT, lac)


def test_a_hanging_bookie_delays_nothing() -> None:
    read = LacRead(LEDGER, ledger())
    assert read.bookie_ids == ("b1", "b2", "b3")
    read.on_answer("b3", present(4))
    assert not read.over
    read.on_answer("b1", present(7))
    assert (read.result, read.error) == (7, None)
    # Too late to count.
    read.on_answer("b2", present(9))
    assert read.result == 7


def test_absent_answers_cover_too() -> None:
    read = LacRead(LEDGER, ledger())
    read.on_answer("b1", ABSENT)
    read.on_answer("b2", ABSENT)
    assert read.result == -1


def test_never_below_the_start_of_the_segment() -> None:
    read = LacRead(LEDGER, ledger(Quorum(2, 2, 2), (0, "b1 b2"), (40, "b3 b2")))
    assert read.bookie_ids == ("b3", "b2")
    read.on_answer("b2", present(12))
    assert read.result == 39


def test_too_many_unknown_is_an_error_that_names_them() -> None:
    read = LacRead(LEDGER, ledger())
    read.on_answer("b1", LacAnswer(Answer.UNKNOWN, reason="did not answer in time"))
    read.on_answer("b3", present(5))
    assert not read.over
    read.on_answer("b2", IO_ERROR)
    assert read.result is None
    assert isinstance(read.error, EntryUnknownError)
    assert "b1 did not answer in time; b2 answered IO_ERROR" in str(read.error)
    assert "b3" not in str(read.error)
    assert read.error.retriable


def test_an_explicit_lac_beside_an_error_counts_but_does_not_cover() -> None:
    read = LacRead(LEDGER, ledger())
    read.on_answer("b1", LacAnswer(Answer.UNKNOWN, 6, "answered IO_ERROR"))
    read.on_answer("b2", ABSENT)
    assert not read.over
    read.on_answer("b3", ABSENT)
    assert read.result == 6


def test_the_first_answer_of_a_bookie_counts() -> None:
    read = LacRead(LEDGER, ledger())
    read.on_answer("b1", IO_ERROR)
    read.on_answer("b1", present(3))
    read.on_answer("b2", present(1))
    assert not read.over


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(4, 2, 1), Quorum(3, 1, 1)], ids=str)
def test_over_exactly_when_covered_or_hopeless(quorum: Quorum) -> None:
    """All answers in all orders: the result comes with the answer that completes the coverage, no later."""
    size = quorum.ensemble_size
    for answers in itertools.product((present(3), ABSENT, IO_ERROR), repeat=size):
        for order in itertools.permutations(range(size)):
            read = LacRead(LEDGER, ledger(quorum))
            heard = [Answer.UNHEARD] * size
            for index in order:
                read.on_answer(read.bookie_ids[index], answers[index])
                heard[index] = answers[index].answer
                assert (read.result is not None) is covered(quorum, heard)
                if read.over:
                    break
            assert read.over
            assert (read.error is None) is covered(quorum, heard)
