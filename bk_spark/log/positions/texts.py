"""Positions as users write them: ends of logs, offsets, times, and the commit whose state is read.

Functions that parse texts raise WrongValueError, as all kinds of settings do. Those that take a program's value raise
InvalidArgumentError.
"""

from __future__ import annotations

import datetime
import enum
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.pulsar.message_ids import MessageIdData
from bk_spark.settings.kinds import MAX_LONG, WrongValueError, whole

#: Names in one list or JSON.
MAX_NAMES: Final = 10_000
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_YEAR_10000_MS: Final = 253_402_300_800_000
_A_TIME: Final = (
    "milliseconds since 1970 (UTC), or a time such as 2026-01-31T12:00:00Z or 2026-01-31, which is UTC if it names no "
    "zone"
)
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{4}-W[0-9]{2}")
_T = TypeVar("_T")


class Edge(enum.Enum):
    """An end of a log, or of a ledger."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Time:
    """A moment, in milliseconds of Unix time. As a position: the first entry committed then or later."""

    time_ms: int

    def __str__(self) -> str:
        if self.time_ms >= _YEAR_10000_MS:
            return f"{self.time_ms} ms"
        moment = _EPOCH + datetime.timedelta(milliseconds=self.time_ms)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Transaction:
    """A commit by its application's name and the number of its batch."""

    app: str
    version: int

    def __str__(self) -> str:
        return f"{self.app}:{self.version}"


#: A position in one log. In a topic of Pulsar: the id of a message instead of an offset.
Position: TypeAlias = int | Edge | Time | MessageIdData
#: One end or moment for all logs, or a position for each log. For ledgers: per ledger id, as text, an entry id or an
#: end.
Positions: TypeAlias = Edge | Time | Mapping[str, Position]
#: A commit whose state of the log is read: of the commit that holds this offset, of the last one at a moment, or of a
#: transaction.
AsOf: TypeAlias = int | Time | Transaction
#: One for all logs, or one for each.
AsOfs: TypeAlias = AsOf | Mapping[str, AsOf]

#: Ends in JSON, as Kafka's connector writes them.
_EDGE_NUMBERS: Final = {-2: Edge.EARLIEST, -1: Edge.LATEST}


def parse_time(text: str) -> Time:
    """Parse milliseconds of Unix time, or an ISO 8601 date with or without a time. Without a zone it is UTC."""
    text = text.strip()
    if re.fullmatch("[0-9]+", text):
        return Time(int(whole(most=MAX_LONG).parse(text)))
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise WrongValueError(f"must be {_A_TIME}") from None
    return _time_of(moment)


def parse_positions(text: str) -> Positions:
    """Parse ``earliest``, ``latest`` or JSON such as ``{"events": 100, "clicks": -2}``: -2 is the start, -1 the end."""
    for edge in Edge:
        if text.strip().lower() == edge.value:
            return edge
    found = _json_by_name(text)
    if found is None:
        raise WrongValueError('must be earliest, latest or JSON such as {"name of the log": 100}')
    return {name: _offset(name, one) for name, one in found.items()}


def parse_times(text: str) -> Positions:
    """Parse JSON with a time for each log, such as ``{"events": 1769860800000, "clicks": "2026-01-31T12:00:00Z"}``."""
    found = _json_by_name(text)
    if found is None:
        raise WrongValueError(
            'must be JSON such as {"name of the log": 1769860800000} or {"name of the log": "2026-01-31T12:00:00Z"}'
        )
    return {name: _time(name, one) for name, one in found.items()}


def parse_as_of(text: str) -> AsOfs:
    """Parse an offset, a time or a transaction, or JSON with one of them for each log.

    Digits are an offset, a text that begins with a date is a time, ``app:7`` is a transaction. ``offset:``, ``time:``
    and ``txn:`` before the rest say which one is meant.
    """
    if text.lstrip().startswith("{"):
        found = _json_by_name(text)
        if found is None:
            raise WrongValueError(
                'must be JSON such as {"name of the log": 100}, or an offset, a time or a transaction for all logs'
            )
        return {name: _one_as_of(name, one) for name, one in found.items()}
    return _as_of(text)


def position_of(value: int | str | datetime.datetime | Edge | Time, what: str) -> Position:
    """Return the position that a program gave: an offset, a moment (datetime, or text as :func:`parse_time`), or an end
    (``earliest`` or ``latest``). ``what`` names it in errors. Raises InvalidArgumentError."""
    if isinstance(value, Edge | Time):
        return value
    if isinstance(value, datetime.datetime):
        return _checked(_time_of, value, what)
    if isinstance(value, str):
        for edge in Edge:
            if value.strip().lower() == edge.value:
                return edge
        return _checked(parse_time, value, what)
    if not _is_offset(value):
        raise InvalidArgumentError(f"{what}: {value!r} must be an offset, a time, earliest or latest")
    return value


def as_of(value: int | str | datetime.datetime | Time | Transaction, what: str) -> AsOf:
    """Return the commit that a program named: an offset, a moment, or a text as :func:`parse_as_of` for one log.
    ``what`` names it in errors. Raises InvalidArgumentError."""
    if isinstance(value, Time | Transaction):
        return value
    if isinstance(value, datetime.datetime):
        return _checked(_time_of, value, what)
    if isinstance(value, str):
        return _checked(_as_of, value, what)
    if not _is_offset(value):
        raise InvalidArgumentError(f"{what}: {value!r} must be an offset, a time, or a transaction such as app:7")
    return value


def check_list(items: Iterable[str | int]) -> None:
    """Refuse a list that names something twice, or too much."""
    found = set()
    for item in items:
        if item in found:
            raise WrongValueError(f"names {item} twice")
        found.add(item)
    if len(found) > MAX_NAMES:
        raise WrongValueError(f"has {len(found)} names, more than {MAX_NAMES}")


def _time_of(moment: datetime.datetime) -> Time:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    # Round up: a commit in the millisecond before is not "at this time or later".
    time_ms = -((_EPOCH - moment) // datetime.timedelta(milliseconds=1))
    if time_ms < 0:
        raise WrongValueError("is before 1970")
    return Time(time_ms)


def _as_of(text: str) -> AsOf:
    text = text.strip()
    kind, _, rest = text.partition(":")
    if kind == "offset":
        return int(whole(most=MAX_LONG).parse(rest))
    if kind == "time":
        return parse_time(rest)
    if kind == "txn":
        return _transaction(rest)
    if re.fullmatch("[0-9]+", text):
        return int(whole(most=MAX_LONG).parse(text))
    if _DATE.match(text):
        return parse_time(text)
    return _transaction(text)


def _transaction(text: str) -> Transaction:
    app, _, version = text.rpartition(":")
    if not app or not re.fullmatch("[0-9]{1,19}", version) or int(version) > MAX_LONG:
        raise WrongValueError(
            "must be an offset such as 100, a time such as 2026-01-31T12:00:00Z, or a transaction such as nightly:7, "
            "which is txnAppId and txnVersion (offset:, time: or txn: before it says which one is meant)"
        )
    return Transaction(app, int(version))


def _one_as_of(name: str, value: object) -> AsOf:
    if isinstance(value, str):
        return _as_of(value)
    if not _is_offset(value):
        raise WrongValueError(f"must give {name} an offset, or a text with a time or a transaction")
    assert isinstance(value, int)
    return value


def _offset(name: str, value: object) -> int | Edge | MessageIdData:
    if isinstance(value, str | list):
        return _message_id(name, value)
    if type(value) is not int or not -2 <= value <= MAX_LONG:
        raise WrongValueError(f"must give {name} an offset of 0 or more, -2 for the first offset, or -1 for the end")
    return _EDGE_NUMBERS.get(value, value)


def _message_id(name: str, value: str | list[Any]) -> MessageIdData:
    """Parse the text of a message id, or its bytes as pulsar-spark writes them: a list of signed numbers."""
    try:
        if isinstance(value, str):
            return MessageIdData.parse_text(value)
        if not all(type(one) is int and -128 <= one <= 255 for one in value):
            raise WrongValueError(f"must give {name} the bytes of a message id: numbers from -128 to 127")
        return MessageIdData.parse(bytes(one & 255 for one in value))
    except InvalidArgumentError as error:
        raise WrongValueError(
            f"must give {name} an offset, or the id of a message of Pulsar: {error.message}"
        ) from None


def _time(name: str, value: object) -> Time:
    if isinstance(value, str):
        return parse_time(value)
    if not _is_offset(value):
        raise WrongValueError(f"must give {name} {_A_TIME}")
    assert isinstance(value, int)
    return Time(value)


def _is_offset(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_LONG


def _json_by_name(text: str) -> dict[str, Any] | None:
    """Return the object in the JSON ``text``, or None if it is not JSON, not an object, or empty."""
    try:
        found = json.loads(text, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found else None


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    check_list([name for name, _ in pairs])
    return dict(pairs)


def _checked(parse: Callable[[Any], _T], value: object, what: str) -> _T:
    try:
        return parse(value)
    except WrongValueError as wrong:
        raise InvalidArgumentError(f"{what}: {value!r} {wrong}") from None
