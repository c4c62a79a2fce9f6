"""Conditions on ``offset``, ``ledgerId`` and ``timestamp`` that let a batch read less.

Spark passes conditions that must all hold. They are only used to skip data that cannot match. Spark applies all of them
again to the rows, so nothing here has to be exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from bk_spark.log.entries.pieces import Pieces
from bk_spark.log.positions.bounds import Bounds
from bk_spark.protocol.arrays import Int64s

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_LEAST: Final = -(2**63)
_MOST: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Limits:
    """Values from ``low`` to ``high`` (inclusive). If ``values`` is given, only those."""

    low: int = _LEAST
    high: int = _MOST
    values: frozenset[int] | None = None

    def and_from(self, low: int) -> Limits:
        """Return these limits without values below ``low``."""
        return Limits(max(low, self.low), self.high, self.values)

    def and_to(self, high: int) -> Limits:
        """Return these limits without values above ``high``."""
        return Limits(self.low, min(high, self.high), self.values)

    def and_in(self, values: frozenset[int]) -> Limits:
        """Return these limits without values other than ``values``."""
        if not values:
            return Limits(0, -1, frozenset())
        kept = values if self.values is None else self.values & values
        return Limits(max(min(values), self.low), min(max(values), self.high), kept)

    def sorted_values(self) -> Int64s | None:
        """Return ``values`` within the bounds as a sorted column, or None if there are no ``values``."""
        if self.values is None:
            return None
        return np.array(sorted(one for one in self.values if self.low <= one <= self.high), np.int64)


@dataclass(frozen=True, slots=True)
class Conditions:
    """Limits on the wanted rows. Timestamps are in microseconds of Unix time."""

    offset: Limits = Limits()
    ledger_id: Limits = Limits()
    timestamp_us: Limits = Limits()

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Conditions:
        """Take the usable ones of ``filters``."""
        limits = {"offset": Limits(), "ledgerId": Limits(), "timestamp": Limits()}
        for one in filters:
            path: tuple[str, ...] = getattr(one, "attribute", ())
            if len(path) == 1 and path[0] in limits:
                number = _microseconds if path[0] == "timestamp" else _whole
                limits[path[0]] = _with(limits[path[0]], one, number)
        return cls(limits["offset"], limits["ledgerId"], limits["timestamp"])

    def without(self, *names: Iterable[str]) -> Conditions:
        """Drop the conditions on these names, for logs that have their own columns by these names."""
        found = set(chain.from_iterable(names))
        return Conditions(
            Limits() if "offset" in found else self.offset,
            Limits() if "ledgerId" in found else self.ledger_id,
            Limits() if "timestamp" in found else self.timestamp_us,
        )

    def within(self, start: int, end: int, bounds: Bounds) -> tuple[int, int]:
        """Return the part of a log's offsets ``[start, end)`` that may hold wanted rows."""
        low, high = self.offset.low, self.offset.high
        times, offset_at = self.timestamp_us, bounds.offset_at
        if offset_at is not None and times.low > _LEAST:
            low = max(low, offset_at(_time_ms(-(-times.low // 1000))))
        if offset_at is not None and times.high < _MOST:
            high = min(high, offset_at(_time_ms(times.high // 1000 + 1)) - 1)
        start = max(start, low)
        return start, max(start, min(end, high + 1))

    def among(self, pieces: Pieces) -> Pieces:
        """Return the ``pieces`` that may hold wanted rows."""
        keep = _fulfil(self.ledger_id, pieces.ledger_id)
        has_offsets = pieces.base_offset >= 0
        offsets = self.offset.sorted_values()
        if offsets is not None:
            # Keep a piece if a wanted offset lies between its first offset and its end.
            found = np.searchsorted(offsets, pieces.base_offset + pieces.entries) > np.searchsorted(
                offsets, pieces.base_offset
            )
            keep &= found | ~has_offsets
        if self.timestamp_us.values is not None:
            keep &= _fulfil(self.timestamp_us, pieces.timestamp_ms * 1000) | ~has_offsets
        return pieces if keep.all() else pieces.where(keep)


def _fulfil(limits: Limits, column: Int64s) -> npt.NDArray[np.bool_]:
    keep = (column >= limits.low) & (column <= limits.high)
    values = limits.sorted_values()
    return keep if values is None else keep & np.isin(column, values)


def _with(limits: Limits, condition: Filter, number: Callable[[object], int | None]) -> Limits:
    """Return ``limits`` narrowed by ``condition``, or unchanged if the condition is unusable."""
    # Spark 4.0 has none of these, and passes no filters.
    from pyspark.sql.datasource import (
        EqualNullSafe,
        EqualTo,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        LessThan,
        LessThanOrEqual,
    )

    if isinstance(condition, In):
        # Nothing equals null.
        values = [number(one) for one in condition.value if one is not None]
        found = frozenset(one for one in values if one is not None)
        return limits.and_in(found) if len(found) == len(set(values)) else limits
    value = number(getattr(condition, "value", None))
    if value is None:
        return limits
    match condition:
        case EqualTo() | EqualNullSafe():
            return limits.and_in(frozenset({value}))
        case GreaterThan():
            return limits.and_from(value + 1)
        case GreaterThanOrEqual():
            return limits.and_from(value)
        case LessThan():
            return limits.and_to(value - 1)
        case LessThanOrEqual():
            return limits.and_to(value)
        case _:
            return limits


def _whole(value: object) -> int | None:
    return value if type(value) is int and _LEAST < value < _MOST else None


def _microseconds(value: object) -> int | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // _US


def _time_ms(value: int) -> int:
    return max(0, value)
