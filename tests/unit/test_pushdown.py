"""Conditions that let a read leave something out: nothing that fulfils them may be left out."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)

from bk_spark.datasource.pushdown import Conditions, Limits
from bk_spark.log.entries.pieces import Piece, Pieces
from bk_spark.log.positions.bounds import Bounds

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OFFSET, LEDGER, TIME = ("offset",), ("ledgerId",), ("timestamp",)


def _at(ms: float) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def _log(rng: random.Random) -> list[Piece]:
    offset, time_ms = rng.randrange(20), 1000
    first = offset
    pieces = []
    for _ in range(rng.randint(1, 12)):
        count = rng.choice([1, 1, 3, 10])
        pieces.append(Piece(rng.randrange(5), 0, count - 1, count, count, "a", offset, time_ms))
        offset += count
        time_ms += rng.choice([0, 0, 1, 7])
    assert pieces[0].base_offset == first
    return pieces


def _rows(pieces: list[Piece]) -> list[tuple[int, int, datetime]]:
    rows = []
    for piece in pieces:
        assert piece.base_offset is not None
        assert piece.timestamp_ms is not None
        for number in range(piece.entries):
            rows.append((piece.base_offset + number, piece.ledger_id, _at(piece.timestamp_ms)))
    return rows


_COMPARISONS: dict[type, Callable[[object, object], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


def _some_filter(rng: random.Random) -> tuple[Filter, Callable[[tuple[int, int, datetime]], bool]]:
    column = rng.randrange(3)
    path = (OFFSET, LEDGER, TIME)[column]

    def value() -> object:
        return (rng.randrange(-2, 60), rng.randrange(-1, 6), _at(rng.choice([0, 999.5, 1000, 1003.25, 1010, 1100])))[
            column
        ]

    if rng.random() < 0.2:
        values = tuple(value() for _ in range(rng.randint(0, 4)))
        return In(path, values), lambda row: row[column] in values
    kind = rng.choice(list(_COMPARISONS))
    one = value()
    return kind(path, one), lambda row: _COMPARISONS[kind](row[column], one)


@pytest.mark.parametrize("seed", range(300))
def test_what_is_left_out_is_not_wanted(seed: int) -> None:
    rng = random.Random(seed)
    pieces = _log(rng)
    rows = _rows(pieces)
    filters, tests = zip(*(_some_filter(rng) for _ in range(rng.randint(1, 4))), strict=True)
    first, end = rows[0][0], rows[-1][0] + 1

    def offset_at(time_ms: int) -> int:
        return next((offset for offset, _, time in rows if time >= _at(time_ms)), end)

    conditions = Conditions.of(filters)
    start, stop = conditions.within(first, end, Bounds(first, end, offset_at))
    sums = np.cumsum([0, *(piece.entries for piece in pieces)])
    clipped = Pieces.of(pieces).part(sums, start - first, stop - first) if start < stop else Pieces.of(())
    left = _rows([*conditions.among(clipped)])
    wanted = [row for row in rows if all(test(row) for test in tests)]
    assert [row for row in left if all(test(row) for test in tests)] == wanted
    assert set(left) <= set(rows)


def test_it_does_leave_out() -> None:
    pieces = Pieces.of([Piece(n, 0, 9, 10, 10, "a", n * 10, 1000 + n) for n in range(100)])
    bounds = Bounds(0, 1000, lambda time_ms: min(max((time_ms - 1000) * 10, 0), 1000))

    def left(*filters: Filter) -> tuple[tuple[int, int], int]:
        conditions = Conditions.of(filters)
        return conditions.within(0, 1000, bounds), len(conditions.among(pieces))

    assert left(GreaterThanOrEqual(OFFSET, 500), LessThan(OFFSET, 520)) == ((500, 520), 100)
    assert left(EqualTo(OFFSET, 7)) == ((7, 8), 1)
    assert left(In(OFFSET, (7, 8, 901, None))) == ((7, 902), 2)
    assert left(EqualTo(LEDGER, 5)) == ((0, 1000), 1)
    assert left(In(LEDGER, (5, 6, 700))) == ((0, 1000), 2)
    assert left(LessThan(LEDGER, 10)) == ((0, 1000), 10)
    assert left(GreaterThan(TIME, _at(1050)), LessThanOrEqual(TIME, _at(1052))) == ((510, 530), 100)
    assert left(GreaterThan(TIME, _at(1049.5)), LessThan(TIME, _at(1050.5))) == ((500, 510), 100)
    assert left(EqualTo(TIME, _at(1050))) == ((500, 510), 1)
    assert left(In(OFFSET, (None,)))[1] == 0
    assert left(GreaterThan(OFFSET, 10), LessThan(OFFSET, 5))[0] == (11, 11)


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("value",), 5),
        EqualTo(("offset", "x"), 5),
        EqualTo(OFFSET, None),
        EqualTo(OFFSET, True),
        EqualTo(OFFSET, 5.5),
        EqualTo(TIME, 5),
        EqualTo(TIME, datetime(2026, 1, 1)),
        In(OFFSET, (5, 5.5)),
        Not(EqualTo(OFFSET, 5)),
        IsNotNull(OFFSET),
        StringContains(("log",), "a"),
    ],
    ids=str,
)
def test_other_conditions_are_left_to_spark(one: Filter) -> None:
    assert Conditions.of([one]) == Conditions()


def test_columns_of_the_logs_own() -> None:
    conditions = Conditions.of([EqualTo(OFFSET, 5), EqualTo(LEDGER, 5), EqualTo(TIME, _at(5))])
    assert conditions.without(["id"], ["offset", "timestamp"]) == Conditions(ledger_id=conditions.ledger_id)
    assert conditions.without(["ledgerId"]).ledger_id == Limits()


def test_ledgers_have_neither_offset_nor_time() -> None:
    pieces = Pieces.of([Piece(5, 0, 9, 10, 10), Piece(6, 0, 9, 10, 10)])
    assert len(Conditions.of([EqualTo(OFFSET, 5), EqualTo(TIME, _at(5))]).among(pieces)) == 2
    assert [piece.ledger_id for piece in Conditions.of([EqualTo(LEDGER, 6)]).among(pieces)] == [6]
