"""Parsers of option values. Each takes the text that a user gave, and raises :class:`WrongValueError`."""

from __future__ import annotations

import datetime
import difflib
import enum
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

_SIZE: Final = re.compile(r"(\d+)\s*([kmg]?)b?", re.IGNORECASE)
_SIZE_UNITS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)", re.IGNORECASE)
_DURATION_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MAX_INT64: Final = 2**63 - 1
_MAX_NAMES: Final = 10_000


class WrongValueError(Exception):
    """What is wrong with a value; completed to an error by the caller, who knows the option."""


class Edge(enum.Enum):
    """An end of a log, or of a ledger."""

    EARLIEST = "earliest"
    LATEST = "latest"


#: One of the ends, everywhere; or by name of log (or id of ledger, as text) an offset (entry id) or an end.
Positions: TypeAlias = Edge | dict[str, int | Edge]

#: As Kafka's connector writes the ends in JSON.
_EDGE_NUMBERS: Final = {-2: Edge.EARLIEST, -1: Edge.LATEST}


def text(value: str) -> str:
    if not value:
        raise WrongValueError("is empty")
    return value


def anything(value: str) -> str:
    return value


def boolean(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise WrongValueError("must be true or false")
    return value.lower() == "true"


def whole(least: int = 0, most: int = _MAX_INT64) -> Callable[[str], int]:
    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise WrongValueError("must be a whole number") from None
        if not least <= number <= most:
            raise WrongValueError(f"must be within {least} and {most}")
        return number

    return parse


def size(least: int, most: int) -> Callable[[str], int]:
    """Bytes."""

    def parse(value: str) -> int:
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise WrongValueError("must be a number of bytes, or one with k, m or g")
        size_bytes = int(match[1]) * _SIZE_UNITS[match[2].lower()]
        if not least <= size_bytes <= most:
            raise WrongValueError(f"must be within {least} and {most} bytes")
        return size_bytes

    return parse


def duration(least_ms: int, most_ms: int) -> Callable[[str], int]:
    """Milliseconds, of a number with its unit."""

    def parse(value: str) -> int:
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise WrongValueError("must be a number with a unit: ms, s, m, h or d")
        duration_ms = int(match[1]) * _DURATION_UNITS[match[2].lower()]
        if not least_ms <= duration_ms <= most_ms:
            raise WrongValueError(f"must be within {least_ms} and {most_ms} ms")
        return duration_ms

    return parse


def timestamp(value: str) -> int:
    """Milliseconds of Unix time, or a date and time as in ISO 8601; UTC where it names no zone."""
    value = value.strip()
    if re.fullmatch("[0-9]+", value):
        return whole()(value)
    try:
        moment = datetime.datetime.fromisoformat(value)
    except ValueError:
        raise WrongValueError(
            "must be milliseconds since 1970 (UTC), or a time such as 2026-01-31T12:00:00Z, which is in UTC where it "
            "names no zone"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    # Rounded up: what was committed in the millisecond before is not "at this time or later".
    time_ms = -((_EPOCH - moment) // datetime.timedelta(milliseconds=1))
    if time_ms < 0:
        raise WrongValueError("is before 1970")
    return time_ms


def choice(*names: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        for name in names:
            if value.lower() == name.lower():
                return name
        raise WrongValueError(f"must be one of {', '.join(names)}{did_you_mean(value, names)}")

    return parse


def name_list(value: str) -> tuple[str, ...]:
    """Names between commas; blanks around them do not count."""
    names = tuple(name.strip() for name in value.split(","))
    if not all(names):
        raise WrongValueError("must be names with commas between them, none of them empty")
    _check_list(names)
    return names


def ledger_list(value: str) -> tuple[int, ...]:
    """Ledger ids between commas."""
    try:
        ids = tuple(int(one) for one in value.split(","))
    except ValueError:
        raise WrongValueError("must be ledger ids with commas between them") from None
    if not all(0 <= one <= _MAX_INT64 for one in ids):
        raise WrongValueError(f"holds an id that is not within 0 and {_MAX_INT64}")
    _check_list(ids)
    return ids


def pattern(value: str) -> str:
    """A regular expression."""
    if not value:
        raise WrongValueError("is empty")
    try:
        re.compile(value)
    except re.error as error:
        raise WrongValueError(f"is not a regular expression of Python: {error}") from None
    return value


def positions(value: str) -> Positions:
    """``earliest``, ``latest``, or JSON such as ``{"events": 100, "clicks": -2}``; -2 is the first, -1 the end."""
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
    if type(value) is not int or not -2 <= value <= _MAX_INT64:
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


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """The nearest name as the end of an error text; empty where none is near."""
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.5)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""
