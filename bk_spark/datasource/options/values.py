"""Kinds of values used only by the data source: ends of logs, positions, times, lists of names and of ledgers."""

from __future__ import annotations

import datetime
import enum
import json
import re
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from bk_spark.settings.kinds import MAX_LONG, Kind, WrongValueError, whole

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MAX_NAMES: Final = 10_000


class Edge(enum.Enum):
    """An end of a log, or of a ledger."""

    EARLIEST = "earliest"
    LATEST = "latest"


#: One end for all logs, or per log an offset or an end. For ledgers: per ledger id, as text, an entry id or an end.
Positions: TypeAlias = Edge | dict[str, int | Edge]

#: Ends in JSON, as Kafka's connector writes them.
_EDGE_NUMBERS: Final = {-2: Edge.EARLIEST, -1: Edge.LATEST}


def _timestamp(value: str) -> int:
    """Parse milliseconds of Unix time, or an ISO 8601 date and time, which is UTC if it names no zone."""
    value = value.strip()
    if re.fullmatch("[0-9]+", value):
        return int(whole(most=MAX_LONG).parse(value))
    try:
        moment = datetime.datetime.fromisoformat(value)
    except ValueError:
        raise WrongValueError(
            "must be milliseconds since 1970 (UTC), or a time such as 2026-01-31T12:00:00Z, which is UTC if it names "
            "no zone"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    # Round up: a commit in the millisecond before is not "at this time or later".
    time_ms = -((_EPOCH - moment) // datetime.timedelta(milliseconds=1))
    if time_ms < 0:
        raise WrongValueError("is before 1970")
    return time_ms


def _name_list(value: str) -> tuple[str, ...]:
    """Parse names separated by commas. Ignores blanks around them."""
    names = tuple(name.strip() for name in value.split(","))
    if not all(names):
        raise WrongValueError("must be names separated by commas, none of them empty")
    _check_list(names)
    return names


def _ledger_list(value: str) -> tuple[int, ...]:
    """Parse ledger ids separated by commas."""
    try:
        ids = tuple(int(one) for one in value.split(","))
    except ValueError:
        raise WrongValueError("must be ledger ids separated by commas") from None
    if not all(0 <= one <= MAX_LONG for one in ids):
        raise WrongValueError(f"has an id that is not from 0 to {MAX_LONG}")
    _check_list(ids)
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


def _positions(value: str) -> Positions:
    """Parse ``earliest``, ``latest`` or JSON such as ``{"events": 100, "clicks": -2}``: -2 is the start, -1 the end."""
    for edge in Edge:
        if value.strip().lower() == edge.value:
            return edge
    try:
        found = json.loads(value, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not found:
        raise WrongValueError('must be earliest, latest or JSON such as {"name of the log": 100}')
    return {name: _position(name, one) for name, one in found.items()}


def _position(name: str, value: object) -> int | Edge:
    if type(value) is not int or not -2 <= value <= MAX_LONG:
        raise WrongValueError(f"must give {name} an offset of 0 or more, -2 for the first offset, or -1 for the end")
    return _EDGE_NUMBERS.get(value, value)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _check_list([name for name, _ in pairs])
    return dict(pairs)


def _check_list(items: Iterable[str | int]) -> None:
    found = set()
    for item in items:
        if item in found:
            raise WrongValueError(f"names {item} twice")
        found.add(item)
    if len(found) > _MAX_NAMES:
        raise WrongValueError(f"has {len(found)} names, more than {_MAX_NAMES}")


TIMESTAMP: Final = Kind("a time", _timestamp)
NAMES: Final = Kind("names", _name_list)
LEDGERS: Final = Kind("ledger ids", _ledger_list)
PATTERN: Final = Kind("a regular expression", _pattern)
POSITIONS: Final = Kind("earliest, latest or JSON", _positions)
