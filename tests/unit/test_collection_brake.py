"""The brake of collection: what it stops, and what an operator's word releases."""

from __future__ import annotations

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
