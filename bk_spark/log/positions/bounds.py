"""Start and end of a read as offsets, from what users wrote and what is readable now."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from bk_spark.log.positions.texts import Edge, Position, Positions, Time
from bk_spark.protocol.errors import InvalidArgumentError, LogRangeGoneError

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The part of a log that is readable now: offsets ``[first, end)``. For a ledger: entry ids.

    ``offset_at(time_ms)`` is the first offset committed at that time or later, or ``end`` if there is none.
    """

    first: int
    end: int
    offset_at: Callable[[int], int] | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Where to start, or to end, and how errors name it.

    Parameters
    ----------
    positions
        One for all, or one for each log or ledger. None: the default.
    option
        The option or argument that gave it.
    no_match
        What to do if no entry was committed at the given time or later. None: take the end. Otherwise raise an error,
        which ends with this remedy.
    """

    positions: Positions | None
    option: str
    no_match: str | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What is common to both ends of a read.

    Parameters
    ----------
    thing, unit
        What is read, for error texts: a log with offsets, or a ledger with entries.
    fail_on_data_loss
        Whether an offset out of bounds is an error. Otherwise the nearest bound is used, and a warning says so.
    remedy
        For such an error: how to read the rest, after "give another, or".
    """

    thing: str = "log"
    unit: str = "offset"
    fail_on_data_loss: bool = True
    remedy: str = "set failOnDataLoss to false to read the rest"


def offsets_of(
    wanted: Wanted, bounds: Mapping[str, Bounds], default: Edge, reading: Reading = Reading()
) -> dict[str, int]:
    """Return the offset in each log (by name) or ledger (by id as text).

    Raises InvalidArgumentError if ``wanted`` names something that is not read, or omits something that is, and for a
    time after the last entry with ``no_match``. Raises LogRangeGoneError for an offset out of bounds.
    """
    positions = default if wanted.positions is None else wanted.positions
    if isinstance(positions, Mapping):
        check_names(wanted.option, positions, bounds, reading.thing)
    return {
        name: _offset(wanted, reading, name, positions[name] if isinstance(positions, Mapping) else positions, one)
        for name, one in bounds.items()
    }


def ranges_of(
    start: Wanted, end: Wanted, bounds: Mapping[str, Bounds], reading: Reading = Reading()
) -> dict[str, tuple[int, int]]:
    """Return ``[start, end)`` of each log or ledger, by default all that is readable. Raises as :func:`offsets_of`, and
    InvalidArgumentError for a start after the end."""
    starts = offsets_of(start, bounds, Edge.EARLIEST, reading)
    ends = offsets_of(end, bounds, Edge.LATEST, reading)
    for name, first in starts.items():
        if first > ends[name]:
            raise InvalidArgumentError(
                f"the read of {reading.thing} {name} starts at {first}, after its end at {ends[name]}: check "
                f"{start.option} and {end.option}"
            )
    return {name: (first, ends[name]) for name, first in starts.items()}


def check_names(
    option: str, given: Mapping[str, object], read: Mapping[str, object], thing: str = "log", missing: str = ""
) -> None:
    """Raise InvalidArgumentError unless ``given`` names everything that is read, and nothing else.

    ``missing`` is what a name that is left out has in the error, such as "no time". Default: no offset.
    """
    for name in given:
        if name not in read:
            raise InvalidArgumentError(
                f"option {option} names {thing} {name}, which this read does not include; it includes "
                f"{_some(list(read))}"
            )
    left_out = [name for name in read if name not in given]
    if left_out:
        if not missing and any(isinstance(one, Time) for one in given.values()):
            missing = "no time"
        if missing:
            raise InvalidArgumentError(f"option {option} has {missing} for {thing} {_some(left_out)}: give each one")
        raise InvalidArgumentError(
            f"option {option} has no offset for {thing} {_some(left_out)}: give each an offset, or -2 for its first, "
            "or -1 for its end"
        )


def _offset(wanted: Wanted, reading: Reading, name: str, position: Position, bounds: Bounds) -> int:
    if isinstance(position, Edge):
        return bounds.first if position is Edge.EARLIEST else bounds.end
    if isinstance(position, Time):
        assert bounds.offset_at is not None
        offset = bounds.offset_at(position.time_ms)
        if offset >= bounds.end and wanted.no_match is not None:
            raise InvalidArgumentError(
                f"option {wanted.option} gives {reading.thing} {name} the time {position}: no entry was committed then "
                f"or later, it ends at {reading.unit} {bounds.end}; give an earlier time, or {wanted.no_match}"
            )
        return offset
    assert isinstance(position, int)  # ids of messages are for topics
    return _within(wanted.option, reading, name, position, bounds)


def _within(option: str, reading: Reading, name: str, offset: int, bounds: Bounds) -> int:
    if bounds.first <= offset <= bounds.end:
        return offset
    thing, unit = reading.thing, reading.unit
    nearest = min(max(offset, bounds.first), bounds.end)
    if offset < bounds.first:
        what = f"{unit}s {offset} to {bounds.first - 1} are gone, it starts at {bounds.first}"
    else:
        what = f"it ends at {bounds.end}, {unit} {bounds.end} is not written yet"
    if reading.fail_on_data_loss:
        raise LogRangeGoneError(
            f"option {option} gives {thing} {name} {unit} {offset}: {what}; give another, or {reading.remedy}"
        )
    _LOG.warning("option %s gives %s %s %s %d: %s; continuing at %d", option, thing, name, unit, offset, what, nearest)
    return nearest


def _some(names: list[str]) -> str:
    """Join the names, at most ten of them."""
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
