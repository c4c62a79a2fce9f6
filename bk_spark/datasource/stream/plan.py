"""Plans a streaming read: which entries wait, and at which offset a batch ends. Pure, except for its warnings.

Offsets never move back. Offsets that a checkpoint asks for but that are gone are an error, or are skipped and reported:
in a warning, and in the offset itself (``lost``), which users see in the query's progress.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from bk_spark.datasource.stream.offsets import Position, StreamOffset
from bk_spark.protocol.errors import CallerError, LogRangeGoneError, LogReplacedError, NoSuchLogError

_LOG: Final = logging.getLogger(__name__)
_REMEDY: Final = (
    ". To continue without them, set the option failOnDataLoss to false; to start over, give the query a new "
    "checkpoint directory"
)


@dataclass(frozen=True, slots=True)
class Extent:
    """Offsets ``[first, end)`` of a log are readable now. ``is_open``: another process may have seen a later end,
    because the end comes from the bookies of a ledger that is still being written."""

    identity: str | int
    first: int
    end: int
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """Unread offsets ``[start, end)`` of a log. The ``lost`` offsets before them are gone."""

    identity: str | int
    start: int
    end: int
    lost: int = 0

    def until(self, end: int) -> Waiting:
        """Return the part before ``end``."""
        return Waiting(self.identity, self.start, max(self.start, min(self.end, end)), self.lost)


class DataLoss:
    """Reports missing ranges: raises an error if ``fail`` is set, otherwise logs one warning for each range."""

    def __init__(self, fail: bool) -> None:
        self._fail = fail
        self._warned: set[tuple[str, int, int]] = set()

    def gone(self, name: str, start: int, end: int) -> None:
        """Report that ``[start, end)`` was dropped. Raises LogRangeGoneError, or warns."""
        self._report(
            name,
            start,
            end,
            f"log {name}: offsets [{start}, {end}) were removed before the query read them (truncation, retention or "
            "overwrite)",
        )

    def beyond(self, name: str, start: int, end: int) -> None:
        """Report that ``[start, end)`` is in the checkpoint but not in the log. Raises LogRangeGoneError, or warns."""
        self._report(
            name,
            start,
            end,
            f"log {name} ends at offset {start}, but the checkpoint has read it up to {end}: was ZooKeeper set back to "
            "an older state?",
        )

    def missing(self, name: str, read_to: int) -> None:
        """Report that log ``name``, read up to ``read_to``, no longer exists. Raises NoSuchLogError, or warns."""
        what = f"log {name}, which the query has read up to offset {read_to}, no longer exists"
        self._absent(NoSuchLogError, name, read_to, what)

    def _absent(self, error: type[CallerError], name: str, read_to: int, what: str) -> None:
        if self._fail:
            raise error(f"{what}{_REMEDY}")
        self._warn(name, read_to, read_to, what)

    def _report(self, name: str, start: int, end: int, what: str) -> None:
        if self._fail:
            raise LogRangeGoneError(f"{what}{_REMEDY}")
        self._warn(name, start, end, what)

    def _warn(self, name: str, start: int, end: int, what: str) -> None:
        if (name, start, end) not in self._warned:
            self._warned.add((name, start, end))
            _LOG.warning("%s; failOnDataLoss is false: the query continues without", what)


def same_log(name: str, expected: str | int, found: str | int) -> None:
    """Raise LogReplacedError if the checkpoint is of another log with the same name."""
    if expected != found:
        raise LogReplacedError(
            f"log {name} was deleted and created again: its id is {found}, and the query's checkpoint is of "
            f"{expected}. Offsets of the one mean nothing in the other: start the query with a new checkpoint directory"
        )


def waiting_entries(begun: StreamOffset, extents: Mapping[str, Extent], loss: DataLoss) -> dict[str, Waiting]:
    """Return what waits in each log after ``begun``. A log not in ``begun`` is read from its first offset, once it has
    entries.

    Raises LogReplacedError, LogRangeGoneError (by ``loss``).
    """
    found = {}
    for name, extent in extents.items():
        before = begun.positions.get(name)
        if before is None:
            if extent.end > extent.first:
                found[name] = Waiting(extent.identity, extent.first, extent.end)
            continue
        same_log(name, before.identity, extent.identity)
        if before.offset < extent.first:
            loss.gone(name, before.offset, extent.first)
        elif before.offset > extent.end and not extent.is_open:
            loss.beyond(name, extent.end, before.offset)
        start = max(before.offset, extent.first)
        found[name] = Waiting(extent.identity, start, max(start, extent.end), start - before.offset)
    return found


def advanced(begun: StreamOffset, waiting: Mapping[str, Waiting], ends: Mapping[str, int]) -> StreamOffset:
    """Return the offset of a batch from ``begun`` to ``ends``, or ``begun`` itself if nothing changes."""
    # Includes logs of which nothing is known now: their first batch is over.
    positions = {name: _settled(before) for name, before in begun.positions.items()}
    for name, one in waiting.items():
        before = positions.get(name)
        if before is not None:
            # This is still the log's first batch if nothing was read.
            positions[name] = Position(one.identity, ends[name], before.start, before.lost + one.lost)
        elif ends[name] > one.start:
            positions[name] = Position(one.identity, ends[name], one.start)
    if _ends(positions) == _ends(begun.positions):
        return begun
    return StreamOffset(positions)


def batch_ranges(begun: StreamOffset, ended: StreamOffset) -> dict[str, tuple[int, int]]:
    """Return the range of each log in the batch between two offsets. Omits logs with empty ranges.

    Raises MetadataFormatError for offsets that do not belong together.
    """
    ranges = {}
    for name, position in ended.positions.items():
        start = begun.begin(name, ended)
        if start < position.offset:
            ranges[name] = (start, position.offset)
    return ranges


def readable(name: str, start: int, end: int, extent: Extent, loss: DataLoss) -> tuple[int, int]:
    """Return the part of a batch's offsets ``[start, end)`` that exists. Raises LogRangeGoneError (by ``loss``)."""
    if start < extent.first:
        loss.gone(name, start, min(end, extent.first))
    if end > extent.end and not extent.is_open:
        loss.beyond(name, extent.end, end)
        end = max(extent.end, start)
    return min(max(start, extent.first), end), end


def _settled(position: Position) -> Position:
    """Return the position as the start of a batch: ``start`` matters only while nothing was read."""
    return position if position.start == position.offset else replace(position, start=None)


def _ends(positions: Mapping[str, Position]) -> dict[str, tuple[int, int]]:
    return {name: (position.offset, position.lost) for name, position in positions.items()}
