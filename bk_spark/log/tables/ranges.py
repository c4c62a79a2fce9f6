"""Which part of a log is readable, and the pieces of a range of its offsets. Shared by Spark's reads and by scans."""

from __future__ import annotations

from typing import Final, Protocol

from bk_spark.log.entries.pieces import Piece, Pieces
from bk_spark.log.formats.segment import Segment
from bk_spark.log.io.snapshot import LogSnapshot
from bk_spark.log.positions.bounds import Bounds
from bk_spark.log.positions.texts import Position
from bk_spark.log.reader import LogReader

#: Assumed bytes of an entry of unknown size.
_UNKNOWN_ENTRY_BYTES: Final = 1024


class ReadableLog(Protocol):
    """A log, as these functions need it: see :class:`bk_spark.log.log.Log`."""

    name: str

    def open_reader(self) -> LogReader:
        """Return a reader, which finds the end of an open tail."""
        ...

    def snapshot(self) -> LogSnapshot:
        """Return the current list of segments."""
        ...


def log_bounds(log: ReadableLog, snapshot: LogSnapshot, wanted_end: Position | None = None) -> Bounds:
    """Return the readable part of ``log``. Asks bookies for the confirmed entries of an open tail.

    Asks nobody if ``wanted_end``, where the read ends, is an offset before the tail: sealed entries can be read
    whatever became of the tail.
    """
    ends_sealed = isinstance(wanted_end, int) and wanted_end <= snapshot.next_offset
    is_known = snapshot.was_sealed or ends_sealed
    return bounds_until(snapshot, snapshot.next_offset if is_known else log.open_reader().readable_end(snapshot))


def bounds_until(snapshot: LogSnapshot, end: int) -> Bounds:
    """Like :func:`log_bounds`, if the end is already known."""

    def offset_at(time_ms: int) -> int:
        offset = snapshot.offset_at(time_ms)
        if offset == snapshot.next_offset < end:
            tail = snapshot.open_tail
            # An open tail has a single time: when it was opened.
            return end if tail is not None and tail.commit_time_ms < time_ms else offset
        return offset

    return Bounds(snapshot.first_offset, end, offset_at)


def log_pieces(log: ReadableLog, snapshot: LogSnapshot, start: int, end: int) -> Pieces:
    """Return offsets ``[start, end)`` of a log. ``end`` may lie in the confirmed part of an open tail.

    Raises LogRangeGoneError if a part of the range is not, or no longer, in the log.
    """
    if start >= end:
        return Pieces.of(())
    committed = min(end, snapshot.next_offset)
    parts = []
    if start < committed:
        parts.append(Pieces.of_segments(log.name, snapshot.tables(start, committed), start, committed))
    if end > snapshot.next_offset:
        first = max(start, snapshot.next_offset)
        tail = snapshot.open_tail
        if tail is not None:
            parts.append(Pieces.of([_tail_piece(log, snapshot, tail, first, end)]))
        else:
            # The tail was sealed since the snapshot: its confirmed entries are in segments now.
            parts.append(Pieces.of_segments(log.name, log.snapshot().tables(first, end), first, end))
    return Pieces.concat(parts)


def _tail_piece(log: ReadableLog, snapshot: LogSnapshot, tail: Segment, start: int, end: int) -> Piece:
    first = tail.first_entry + start - tail.base_offset
    entries = end - start
    entry_bytes, entry_rows = _UNKNOWN_ENTRY_BYTES, 1
    if snapshot.first_offset < snapshot.next_offset:
        # The best estimate without asking bookies.
        (before,) = snapshot.segments(snapshot.next_offset - 1, snapshot.next_offset)
        entry_bytes, entry_rows = before.size_bytes // before.entries, before.rows // before.entries
    return Piece(
        tail.ledger_id,
        first,
        first + entries - 1,
        max(1, entries * entry_bytes),
        max(1, entry_rows) * entries,
        log.name,
        start,
        tail.commit_time_ms,
    )
