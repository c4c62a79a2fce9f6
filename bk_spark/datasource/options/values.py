"""Kinds of values used only by the data source: positions, times, lists of names and of ledgers."""

from __future__ import annotations

import re
from typing import Final

from bk_spark.log.positions.texts import check_list, parse_as_of, parse_positions, parse_time, parse_times
from bk_spark.settings.kinds import MAX_LONG, Kind, WrongValueError, whole

_LEDGER_ID: Final = whole(most=MAX_LONG)


def _name_list(value: str) -> tuple[str, ...]:
    """Parse names separated by commas. Ignores blanks around them."""
    names = tuple(name.strip() for name in value.split(","))
    if not all(names):
        raise WrongValueError("must be names separated by commas, none of them empty")
    check_list(names)
    return names


def _ledger_list(value: str) -> tuple[int, ...]:
    """Parse ledger ids separated by commas."""
    try:
        ids = tuple(_LEDGER_ID.parse(one) for one in value.split(","))
    except WrongValueError as wrong:
        raise WrongValueError(f"must be ledger ids separated by commas; each {wrong}") from None
    check_list(ids)
    return ids


def _pattern(value: str) -> str:
    """Check a regular expression."""
    if not value:
        raise WrongValueError("is empty")
    try:
        re.compile(value)
    except re.error as error:
        raise WrongValueError(f"is not a regular expression of Python: {error}") from None
    return value


TIMESTAMP: Final = Kind("a time", parse_time)
AS_OF: Final = Kind("an offset, a time or a transaction", parse_as_of)
TIMES: Final = Kind("JSON with a time for each log", parse_times)
NAMES: Final = Kind("names", _name_list)
LEDGERS: Final = Kind("ledger ids", _ledger_list)
PATTERN: Final = Kind("a regular expression", _pattern)
POSITIONS: Final = Kind("earliest, latest or JSON", parse_positions)
