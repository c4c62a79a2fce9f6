"""Start and end of a read: turns the words, times and JSON in options into offsets. Does no I/O itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.options.values import Edge, Positions
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


def start_offsets(options: SourceOptions, bounds: Mapping[str, Bounds], default: Edge) -> dict[str, int]:
    """Return where to start in each log (by name) or ledger (by id as text).

    Raises InvalidArgumentError if startingOffsets names something that is not read, or omits something that is.
    Raises LogRangeGoneError for an offset out of bounds. If failOnDataLoss is false, uses the nearest bound instead.
    """
    return _offsets(
        "startingOffsets", options, bounds, options.starting_offsets or default, options.starting_timestamp_ms
    )


def end_offsets(options: SourceOptions, bounds: Mapping[str, Bounds]) -> dict[str, int]:
    """Return where a batch ends in each log or ledger. Raises as :func:`start_offsets`."""
    return _offsets(
        "endingOffsets", options, bounds, options.ending_offsets or Edge.LATEST, options.ending_timestamp_ms
    )


def batch_ranges(options: SourceOptions, bounds: Mapping[str, Bounds]) -> dict[str, tuple[int, int]]:
    """Return ``[start, end)`` of each log or ledger. Also raises InvalidArgumentError for a start after the end."""
    starts = start_offsets(options, bounds, Edge.EARLIEST)
    ends = end_offsets(options, bounds)
    for name, start in starts.items():
        if start > ends[name]:
            raise InvalidArgumentError(
                f"the read of {_thing(options)} {name} starts at {start}, after its end at {ends[name]}: check "
                f"{_given(options, 'starting')} and {_given(options, 'ending')}"
            )
    return {name: (start, ends[name]) for name, start in starts.items()}


def _offsets(
    option: str, options: SourceOptions, bounds: Mapping[str, Bounds], wanted: Positions, time_ms: int | None
) -> dict[str, int]:
    if isinstance(wanted, dict):
        _check_names(option, options, bounds, wanted)
    found = {}
    for name, one in bounds.items():
        position = wanted[name] if isinstance(wanted, dict) else wanted
        if time_ms is not None:
            assert one.offset_at is not None
            found[name] = one.offset_at(time_ms)
        elif isinstance(position, Edge):
            found[name] = one.first if position is Edge.EARLIEST else one.end
        else:
            found[name] = _within(option, options, name, position, one)
    return found


def _check_names(
    option: str, options: SourceOptions, bounds: Mapping[str, Bounds], wanted: dict[str, int | Edge]
) -> None:
    thing = _thing(options)
    for name in wanted:
        if name not in bounds:
            raise InvalidArgumentError(
                f"option {option} names {thing} {name}, which this read does not include; it includes "
                f"{_some(list(bounds))}"
            )
    left_out = [name for name in bounds if name not in wanted]
    if left_out:
        raise InvalidArgumentError(
            f"option {option} has no offset for {thing} {_some(left_out)}: give each an offset, or -2 for its first, "
            "or -1 for its end"
        )


def _within(option: str, options: SourceOptions, name: str, offset: int, bounds: Bounds) -> int:
    if bounds.first <= offset <= bounds.end:
        return offset
    thing, unit = _thing(options), "offset" if options.ledgers is None else "entry"
    nearest = min(max(offset, bounds.first), bounds.end)
    if offset < bounds.first:
        what = f"{unit}s {offset} to {bounds.first - 1} are gone, it starts at {bounds.first}"
    else:
        what = f"it ends at {bounds.end}, {unit} {bounds.end} is not written yet"
    if options.fail_on_data_loss:
        raise LogRangeGoneError(
            f"option {option} gives {thing} {name} {unit} {offset}: {what}; give another, or set failOnDataLoss to "
            "false to read the rest"
        )
    _LOG.warning("option %s gives %s %s %s %d: %s; continuing at %d", option, thing, name, unit, offset, what, nearest)
    return nearest


def _thing(options: SourceOptions) -> str:
    return "log" if options.ledgers is None else "ledger"


def _given(options: SourceOptions, kind: str) -> str:
    return f"{kind}Timestamp" if f"{kind}timestamp" in options.given else f"{kind}Offsets"


def _some(names: list[str]) -> str:
    """Join the names, at most ten of them."""
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
