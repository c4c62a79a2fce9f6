"""Positions and commits as users and programs say them."""

from __future__ import annotations

import datetime

import pytest

from bk_spark.log.positions.texts import (
    AsOfs,
    Edge,
    Position,
    Time,
    Transaction,
    as_of,
    parse_as_of,
    position_of,
)
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.settings.kinds import WrongValueError

NOON = Time(1769860800000)
BERLIN = datetime.timezone(datetime.timedelta(hours=1))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("100", 100),
        ("offset:100", 100),
        ("2026-01-31T12:00:00Z", NOON),
        (" 2026-01-31 13:00:00+01:00 ", NOON),
        ("2026-01-31", Time(1769817600000)),
        ("time:1769860800000", NOON),
        ("nightly:7", Transaction("nightly", 7)),
        ("a:b:7", Transaction("a:b", 7)),
        ("txn:time:7", Transaction("time", 7)),
        ("txn:2026-01-31:12", Transaction("2026-01-31", 12)),
        ('{"a": 100, "b": "100", "c": "nightly:7", "d": "2026-01-31T12:00Z"}', None),
    ],
)
def test_commits(text: str, found: AsOfs | None) -> None:
    expected = found
    if found is None:
        expected = {"a": 100, "b": 100, "c": Transaction("nightly", 7), "d": NOON}
    assert parse_as_of(text) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must be an offset such as 100"),
        ("nightly", "must be an offset such as 100"),
        (":7", "must be an offset such as 100"),
        ("nightly:", "must be an offset such as 100"),
        ("nightly:-1", "must be an offset such as 100"),
        ("nightly:99999999999999999999", "must be an offset such as 100"),
        ("-5", "must be an offset such as 100"),
        ("offset:-5", "must be a whole number"),
        ("offset:x", "must be a whole number"),
        ("99999999999999999999", "must be a whole number"),
        ("time:yesterday", "must be milliseconds since 1970"),
        ("2026-02-30", "must be milliseconds since 1970"),
        ("1969-12-31", "is before 1970"),
        ("{", "must be JSON such as"),
        ('{"a": }', "must be JSON such as"),
        ('{"a": 1.5}', "must give a an offset"),
        ('{"a": true}', "must give a an offset"),
        ('{"a": -1}', "must give a an offset"),
        ('{"a": 1, "a": 2}', "names a twice"),
    ],
)
def test_texts_that_name_no_commit(text: str, why: str) -> None:
    with pytest.raises(WrongValueError) as raised:
        parse_as_of(text)
    assert str(raised.value).startswith(why)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (7, 7),
        ("earliest", Edge.EARLIEST),
        ("Latest", Edge.LATEST),
        (Edge.LATEST, Edge.LATEST),
        (NOON, NOON),
        ("1769860800000", NOON),
        ("2026-01-31T12:00:00Z", NOON),
        (datetime.datetime(2026, 1, 31, 13, tzinfo=BERLIN), NOON),
        (datetime.datetime(2026, 1, 31, 12), NOON),
    ],
)
def test_a_program_gives_a_position(value: int | str | datetime.datetime | Edge | Time, found: Position) -> None:
    assert position_of(value, "start") == found


@pytest.mark.parametrize("value", [-1, True, 1.5, "soon", 2**63, None, datetime.datetime(1969, 1, 1, tzinfo=BERLIN)])
def test_a_program_gives_something_else(value: object) -> None:
    for function in (position_of, as_of):
        with pytest.raises(InvalidArgumentError, match="^start: "):
            function(value, "start")  # type: ignore[operator]


def test_a_program_names_a_commit() -> None:
    assert as_of(7, "as_of") == 7
    assert as_of("nightly:7", "as_of") == as_of(Transaction("nightly", 7), "as_of") == Transaction("nightly", 7)
    assert as_of(datetime.datetime(2026, 1, 31, 13, tzinfo=BERLIN), "as_of") == NOON


def test_times_are_shown_as_they_are_written() -> None:
    assert str(NOON) == "2026-01-31T12:00:00.000Z"
    assert str(Time(2**63 - 1)) == "9223372036854775807 ms"
    assert str(Transaction("a:b", 7)) == "a:b:7"
