"""What a streaming read does next."""

from __future__ import annotations

import logging
import random

import pytest

from bk_spark.datasource.stream.offsets import Position, StreamOffset
from bk_spark.datasource.stream.plan import (
    DataLoss,
    Extent,
    advanced,
    batch_ranges,
    readable,
    waiting_entries,
)
from bk_spark.protocol.errors import LogRangeGoneError, LogReplacedError, NoSuchLogError

STRICT, LAX = True, False


def test_what_waits_and_where_the_batch_ends() -> None:
    begun = StreamOffset({"a": Position("A", 5), "b": Position("B", 7, 7), "gone": Position("G", 3)})
    extents = {"a": Extent("A", 0, 9), "b": Extent("B", 2, 7), "new": Extent("N", 4, 6), "empty": Extent("E", 0, 0)}
    waiting = waiting_entries(begun, extents, DataLoss(STRICT))
    assert {name: (one.start, one.end) for name, one in waiting.items()} == {"a": (5, 9), "b": (7, 7), "new": (4, 6)}
    assert waiting["a"].until(7).end == 7
    assert waiting["a"].until(2).end == 5

    ended = advanced(begun, waiting, {"a": 8, "b": 7, "new": 4})
    # A log that gave nothing yet is not taken in; one in its first batch stays in it.
    assert ended.positions == {"a": Position("A", 8), "b": Position("B", 7, 7), "gone": Position("G", 3)}
    ended = advanced(begun, waiting, {"a": 5, "b": 7, "new": 6})
    assert ended.positions["new"] == Position("N", 6, 4)
    assert batch_ranges(begun, ended) == {"new": (4, 6)}
    assert advanced(begun, waiting, {"a": 5, "b": 7, "new": 4}) is begun


def test_a_log_of_another_id() -> None:
    begun = StreamOffset({"a": Position("A", 5)})
    with pytest.raises(LogReplacedError, match="its id is B, and the query's checkpoint is of A"):
        waiting_entries(begun, {"a": Extent("B", 0, 9)}, DataLoss(LAX))


def test_an_end_that_is_told_later_is_no_loss() -> None:
    begun = StreamOffset({"a": Position("A", 5)})
    (one,) = waiting_entries(begun, {"a": Extent("A", 0, 3, is_open=True)}, DataLoss(STRICT)).values()
    assert (one.start, one.end) == (5, 5)
    with pytest.raises(LogRangeGoneError, match="ends at offset 3, but the checkpoint has read it up to 5"):
        waiting_entries(begun, {"a": Extent("A", 0, 3)}, DataLoss(STRICT))
    assert readable("a", 2, 5, Extent("A", 0, 3, is_open=True), DataLoss(STRICT)) == (2, 5)


def test_what_was_removed_before_it_is_planned_is_an_error_or_counted_as_lost() -> None:
    begun, extents = StreamOffset({"a": Position("A", 5)}), {"a": Extent("A", 8, 9)}
    with pytest.raises(LogRangeGoneError, match=r"\[5, 8\) were removed"):
        waiting_entries(begun, extents, DataLoss(STRICT))
    waiting = waiting_entries(begun, extents, DataLoss(LAX))
    assert advanced(begun, waiting, {"a": 9}).positions == {"a": Position("A", 9, lost=3)}


def test_losses_are_errors_or_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(LogRangeGoneError, match=r"\[5, 8\) were removed"):
        readable("a", 5, 9, Extent("A", 8, 9), DataLoss(STRICT))
    with pytest.raises(NoSuchLogError, match="log a, which the query has read up to offset 5, no longer exists"):
        DataLoss(STRICT).missing("a", 5)
    loss = DataLoss(LAX)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert readable("a", 5, 9, Extent("A", 8, 9), loss) == (8, 9)
            assert readable("a", 5, 9, Extent("A", 20, 30), loss) == (9, 9)
            assert readable("a", 5, 9, Extent("A", 0, 7), loss) == (5, 7)
            assert readable("a", 5, 9, Extent("A", 0, 2), loss) == (5, 5)
            loss.missing("a", 5)
    assert len(caplog.records) == 5


@pytest.mark.parametrize("seed", range(30))
def test_offsets_go_on_and_batches_meet(seed: int) -> None:
    """Whatever logs seem to be, and be they not there for a moment: offsets never move back, and batches follow each
    other without gap or overlap; what is not read is counted as lost."""
    random_of = random.Random(seed)
    loss = DataLoss(LAX)
    names = ("a", "b", "c")
    offset = StreamOffset({name: Position(name, 10, 10) for name in names})
    first, end = dict.fromkeys(names, 0), dict.fromkeys(names, 10)
    read: dict[str, list[int]] = {name: [] for name in names}
    for _ in range(60):
        extents = {}
        for name in names:
            end[name] += random_of.choice([0, 0, 3, 10])
            first[name] = min(end[name], first[name] + random_of.choice([0, 0, 0, 8]))
            known = random_of.choice([end[name], end[name], random_of.randint(first[name], end[name]), first[name]])
            if random_of.random() < 0.7:
                extents[name] = Extent(name, first[name], known, is_open=True)
        waiting = waiting_entries(offset, extents, loss)
        taken = {name: random_of.randint(one.start, one.end) for name, one in waiting.items()}
        ended = advanced(offset, waiting, taken)
        if ended is offset:
            continue
        ranges = batch_ranges(offset, ended)
        if len({one.start is None for one in ended.positions.values()}) == 1:
            # In a query's first batch Spark asks anew for the start; the answer must not matter.
            anew = StreamOffset({name: Position(name, end[name], end[name]) for name in names})
            assert ended.positions["a"].start is None or batch_ranges(anew, ended) == ranges
        for name in names:
            before, after = offset.positions[name].offset, ended.positions[name].offset
            assert ranges.get(name, (before, before)) == (before, after)
            read[name] += range(*readable(name, before, after, Extent(name, first[name], end[name]), loss))
            assert read[name] == sorted(set(read[name]))
            assert len(read[name]) + ended.positions[name].lost == after - 10
        offset = ended
