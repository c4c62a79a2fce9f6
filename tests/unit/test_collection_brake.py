"""The brake of collection: what it stops, and what an operator's word releases."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from bk_spark.protocol.arrays import Int64s
from bookie_server.gc.brake import CollectionBrake, CollectionBrakeLimits


def ids(first: int, end: int) -> Int64s:
    return np.arange(first, end, dtype=np.int64)


@pytest.mark.parametrize(
    ("share", "least", "victims", "held", "stops"),
    [
        (0.5, 100, 101, 200, True),
        (0.5, 100, 100, 200, False),
        (0.5, 100, 100, 100, False),
        (0.5, 100, 101, 202, False),
        (0.5, 0, 1, 1, True),
        (0.0, 0, 1, 1000, True),
        (0.0, 0, 0, 1000, False),
        (1.0, 0, 1000, 1000, False),
        (0.1, 100, 101, 1000, True),
    ],
)
def test_g3_what_is_too_much_at_once(share: float, least: int, victims: int, held: int, stops: bool) -> None:
    brake = CollectionBrake("deleted", CollectionBrakeLimits(share, least), lambda: 17)
    stopped = brake.stops(ids(0, victims), held)
    assert (stopped is not None) == stops
    assert brake.stopped is stopped
    if stopped is not None:
        assert (len(stopped.ledgers), stopped.held, stopped.counted_ms) == (victims, held, 17)
        assert stopped.named == list(range(min(victims, 10)))


@pytest.mark.parametrize(
    ("share", "next_id", "not_given"),
    [
        (0.5, 64, 1),
        (0.5, 60, 5),
        (0.5, 65, 0),
        # The counter has given no id: clients choose them all, or it was set back to before the first.
        (0.5, 0, 0),
        # The share has nothing to do with it.
        (1.0, 60, 5),
    ],
)
def test_g4_one_ledger_whose_id_was_not_given_is_enough(share: float, next_id: int, not_given: int) -> None:
    brake = CollectionBrake("deleted", CollectionBrakeLimits(share, 100))
    stopped = brake.stops(ids(0, 65), 10_000, next_id)
    assert (stopped is not None) == (not_given > 0)
    if stopped is not None:
        assert stopped.not_given.tolist() == list(range(next_id, 65))
        brake.release()
        assert brake.stops(ids(0, 65), 10_000, next_id) is None
        # One more than was released.
        brake.stops(ids(0, 65), 10_000, next_id)
        brake.release()
        assert brake.stops(ids(0, 66), 10_000, next_id) is not None


def test_g4_where_clients_choose_ids_this_rule_is_switched_off_and_the_share_still_holds() -> None:
    brake = CollectionBrake("deleted", CollectionBrakeLimits(0.5, 10, ids_not_given=False))
    assert brake.stops(np.array([3, 1 << 62]), 100, 5) is None
    stopped = brake.stops(ids(0, 60), 100, 5)
    assert stopped is not None
    assert stopped.why == "too many at once"


@pytest.mark.parametrize(
    ("victims", "next_id", "named"),
    [
        ([*range(20), 1 << 61, 1 << 62], 20, [1 << 61, 1 << 62, *range(8)]),
        (range(40), 12, range(12, 22)),
        (range(12), 5, [*range(5, 12), 0, 1, 2]),
        ([3, 9], 4, [9, 3]),
    ],
)
def test_g4_ids_that_were_not_given_are_named_first(victims: Sequence[int], next_id: int, named: Sequence[int]) -> None:
    brake = CollectionBrake("deleted", CollectionBrakeLimits())
    stopped = brake.stops(np.array(victims), 10_000, next_id)
    assert stopped is not None
    assert stopped.named == list(named)


def test_g4_each_reason_that_holds_is_told_and_no_cause_is_told_as_a_fact() -> None:
    brake = CollectionBrake("deleted", CollectionBrakeLimits(0.5, 10))
    not_given = (
        "ZooKeeper has not given the ids of 2 of them: it was probably set back, or clients choose ids "
        "(then set gcBrakeIdsNotGiven=false)"
    )
    for victims, next_id, why in (
        (60, 58, f"too many at once; {not_given}"),
        (60, 60, "too many at once"),
        (20, 18, not_given),
    ):
        stopped = brake.stops(ids(0, victims), 100, next_id)
        assert stopped is not None
        assert stopped.why == why


def test_g3_the_word_holds_for_one_pass_and_for_what_was_counted() -> None:
    brake = CollectionBrake("deleted", CollectionBrakeLimits(0.5, 10))
    assert brake.stops(ids(0, 60), 100) is not None
    brake.release()
    assert brake.released == 60
    # A few more than were counted are as many as may go without a word.
    assert brake.stops(ids(0, 70), 100) is None
    assert brake.released == 0
    # The next pass needs another word.
    assert brake.stops(ids(0, 60), 100) is not None
    brake.release()
    # Others than those that were counted.
    assert brake.stops(ids(1000, 1060), 100) is not None
    assert brake.released == 0


def test_g3_the_word_names_the_set() -> None:
    words = set()
    for kind in ("deleted", "over-replicated"):
        for ledgers in (ids(0, 60), ids(1, 61), ids(0, 61)):
            brake = CollectionBrake(kind, CollectionBrakeLimits(0.5, 10))
            first, again = brake.stops(ledgers, 70), brake.stops(ledgers, 71)
            assert first is not None
            assert again is not None
            assert first.word == again.word
            words.add(first.word)
    assert len(words) == 6


def test_g3_nothing_waits_any_more_where_a_pass_was_let_go() -> None:
    brake = CollectionBrake("deleted", CollectionBrakeLimits(0.5, 10))
    assert brake.stops(ids(0, 60), 100) is not None
    assert brake.stops(ids(0, 20), 100) is None
    assert brake.stopped is None
    brake.release()
    assert brake.released == 0
