"""Start and end of a read: what the options say, for :mod:`bk_spark.log.positions`, which turns it into offsets."""

from __future__ import annotations

from collections.abc import Mapping

from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.options.range_options import NoMatch
from bk_spark.log.positions.bounds import Bounds, Reading, Wanted, offsets_of, ranges_of
from bk_spark.log.positions.texts import Edge, Position

_NO_MATCH = "set startingOffsetsByTimestampStrategy to latest to start at the end"


def start_offsets(options: SourceOptions, bounds: Mapping[str, Bounds], default: Edge) -> dict[str, int]:
    """Return where to start in each log (by name) or ledger (by id as text).

    Raises InvalidArgumentError if an option names something that is not read, or omits something that is, and for a
    time without entries if the strategy is ``error``.
    Raises LogRangeGoneError for an offset out of bounds. If failOnDataLoss is false, uses the nearest bound instead.
    """
    return offsets_of(_start(options), bounds, default, _reading(options))


def batch_ranges(options: SourceOptions, bounds: Mapping[str, Bounds]) -> dict[str, tuple[int, int]]:
    """Return ``[start, end)`` of each log or ledger. Also raises InvalidArgumentError for a start after the end."""
    return ranges_of(_start(options), _end(options), bounds, _reading(options))


def ending_position(options: SourceOptions, name: str) -> Position | None:
    """Return where the batch ends in one log."""
    positions = _end(options).positions
    return positions.get(name) if isinstance(positions, Mapping) else positions


def _start(options: SourceOptions) -> Wanted:
    if options.starting_timestamp is not None:
        strict = options.starting_time_strategy is NoMatch.ERROR
        return Wanted(options.starting_timestamp, "startingTimestamp", _NO_MATCH if strict else None)
    if options.starting_times is not None:
        lenient = options.starting_time_strategy is NoMatch.LATEST
        return Wanted(options.starting_times, "startingOffsetsByTimestamp", None if lenient else _NO_MATCH)
    return Wanted(options.starting_offsets, "startingOffsets")


def _end(options: SourceOptions) -> Wanted:
    # As in Kafka's connector, an end at a time without entries is the end of the log.
    if options.ending_timestamp is not None:
        return Wanted(options.ending_timestamp, "endingTimestamp")
    if options.ending_times is not None:
        return Wanted(options.ending_times, "endingOffsetsByTimestamp")
    return Wanted(options.ending_offsets, "endingOffsets")


def _reading(options: SourceOptions) -> Reading:
    if options.ledgers is not None:
        return Reading("ledger", "entry", options.fail_on_data_loss)
    return Reading(fail_on_data_loss=options.fail_on_data_loss)
