"""The pieces to read, in columns, and how they are cut into tasks by bytes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.log.formats.segment import SegmentTable
from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.entries.entry import ENTRY_HEADER_BYTES
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.ledger.reading.range_windows import EntryRanges

#: Fixed cost of a piece in bytes, on top of its size: it may need a separate request to a bookie.
PIECE_BYTES: Final = 1024
#: As a share of a split's size: a cut this close to a piece's end moves to that end.
_NEAR: Final = 0.05
#: Larger splits instead of more, unless the caller asks for more. A split takes a kilobyte or two.
MAX_SPLITS: Final = 100_000
#: The most splits for a caller that bounds the rows of a split.
_MOST_SPLITS: Final = 1_000_000
#: In place of a log, an offset or a time when a ledger is read without a log.
NO_LOG: Final = -1


@dataclass(frozen=True, slots=True)
class Piece:
    """Entries ``first`` to ``last`` (inclusive) of a ledger, with about ``size_bytes`` and ``rows``.

    ``base_offset`` is the offset of ``first`` in ``log``, and ``timestamp_ms`` its segment's commit time. All three
    are None when a ledger is read without a log.
    """

    ledger_id: int
    first: int
    last: int
    size_bytes: int
    rows: int
    log: str | None = None
    base_offset: int | None = None
    timestamp_ms: int | None = None

    @property
    def entries(self) -> int:
        """The number of entries, at least 1."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Pieces in int64 columns of equal length. ``log`` is an index into ``logs``.

    A list may have a million segments, so no method loops over pieces in Python. Only the tasks iterate, each over its
    own pieces.
    """

    logs: tuple[str, ...]
    log: Int64s
    ledger_id: Int64s
    first: Int64s
    entries: Int64s
    size_bytes: Int64s
    rows: Int64s
    base_offset: Int64s
    timestamp_ms: Int64s

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> Pieces:
        """Make the columns. Logs are numbered by first appearance. None becomes ``NO_LOG``."""
        numbers: dict[str, int] = {}
        values = [
            (
                NO_LOG if one.log is None else numbers.setdefault(one.log, len(numbers)),
                one.ledger_id,
                one.first,
                one.entries,
                one.size_bytes,
                one.rows,
                NO_LOG if one.base_offset is None else one.base_offset,
                NO_LOG if one.timestamp_ms is None else one.timestamp_ms,
            )
            for one in pieces
        ]
        return cls(tuple(numbers), *np.array(values, dtype=np.int64).reshape(-1, 8).T)

    @classmethod
    def of_segments(cls, log: str, tables: Iterable[SegmentTable], start: int, end: int) -> Pieces:
        """Return offsets ``[start, end)`` of the sealed segments in ``tables``, which must cover them."""
        table = SegmentTable.concat(list(tables))
        count = len(table)
        pieces = cls(
            (log,),
            np.zeros(count, np.int64),
            table.ledger_id,
            table.first_entry,
            table.entries,
            np.maximum(table.size_bytes, 1),
            np.maximum(table.rows, table.entries),
            table.base_offset,
            table.commit_time_ms,
        )
        if not count:
            return pieces
        base = int(table.base_offset[0])
        return pieces.part(_running_sum(pieces.entries), max(start - base, 0), min(end, table.end_offset) - base)

    @classmethod
    def concat(cls, parts: Iterable[Pieces]) -> Pieces:
        """Return the pieces of all ``parts`` in order. A log that several of them name appears once in ``logs``."""
        numbers: dict[str, int] = {}
        columns = []
        parts = list(parts)
        if len(parts) == 1:
            return parts[0]
        for part in parts:
            own = np.array([numbers.setdefault(name, len(numbers)) for name in part.logs] + [NO_LOG], np.int64)
            columns.append((own[part.log], *part.columns[1:]))
        if not columns:
            return cls.of(())
        return cls(tuple(numbers), *(np.concatenate(column) for column in zip(*columns, strict=True)))

    @property
    def columns(self) -> tuple[Int64s, ...]:
        """The int64 columns, in the order of the fields after ``logs``."""
        return (
            self.log,
            self.ledger_id,
            self.first,
            self.entries,
            self.size_bytes,
            self.rows,
            self.base_offset,
            self.timestamp_ms,
        )

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Piece]:
        for log, ledger_id, first, entries, size_bytes, rows, base, time_ms in zip(
            *(column.tolist() for column in self.columns), strict=True
        ):
            yield Piece(
                ledger_id,
                first,
                first + entries - 1,
                size_bytes,
                rows,
                None if log == NO_LOG else self.logs[log],
                None if base == NO_LOG else base,
                None if time_ms == NO_LOG else time_ms,
            )

    def at(self, number: int) -> Pieces:
        """Return the piece at index ``number``."""
        return Pieces(self.logs, *(column[number : number + 1] for column in self.columns))

    def where(self, keep: npt.NDArray[np.bool_]) -> Pieces:
        """Return the pieces for which ``keep`` is true."""
        return Pieces(self.logs, *(column[keep] for column in self.columns))

    @property
    def entry_ranges(self) -> EntryRanges:
        """The same entries as ranges of ledgers, which the client of bookies reads."""
        return EntryRanges(self.ledger_id, self.first, self.entries, self.size_bytes)

    @property
    def entry_sums(self) -> Int64s:
        """The number of entries before each piece, followed by the total."""
        return _running_sum(self.entries)

    def part(self, sums: Int64s, start: int, end: int) -> Pieces:
        """Return entries ``[start, end)``, numbered across all pieces. ``sums`` are their :attr:`entry_sums`."""
        low = int(np.searchsorted(sums, start, side="right")) - 1
        high = int(np.searchsorted(sums, end, side="left"))
        if start >= end:
            high = low
        columns = [column[low:high] for column in self.columns]
        if high > low:
            skipped, left = start - int(sums[low]), int(sums[high]) - end
            if skipped or left:
                columns = _cut_ends([column.copy() for column in columns], skipped, left)
        return Pieces(self.logs, *columns)._with_own_logs()

    def _with_own_logs(self) -> Pieces:
        """Drop the names of logs without pieces, so that a task is sent only what it needs."""
        if len(self.logs) < 2:
            return self
        numbers, own = np.unique(self.log, return_inverse=True)
        logs = tuple(self.logs[number] for number in numbers if number != NO_LOG)
        shift = int(len(numbers) > len(logs))
        return Pieces(logs, own.astype(np.int64) - shift, *self.columns[1:])


def cut_splits(
    pieces: Pieces, split_bytes: int, min_splits: int = 1, max_split_rows: int | None = None
) -> list[Pieces]:
    """Cut neighbouring pieces, in order, into splits of about ``split_bytes`` (payload, entry headers and
    ``PIECE_BYTES`` per piece), or larger ones if these were more than MAX_SPLITS. Returns at least ``min_splits`` if
    there are enough entries. No split has more than ``max_split_rows``. An entry is never cut.

    Raises InvalidArgumentError if ``max_split_rows`` makes far too many.
    """
    if not len(pieces):
        return []
    entries = _running_sum(pieces.entries)
    costs = pieces.size_bytes + pieces.entries * ENTRY_HEADER_BYTES + PIECE_BYTES
    # A single piece is cut by its bytes alone.
    costs[0] -= PIECE_BYTES
    weights = _running_sum(costs)
    all_entries, all_bytes = int(entries[-1]), int(weights[-1])
    # Make all splits the same size, so that the last task does not get a tiny rest.
    count = min(max(min(-(-all_bytes // split_bytes), MAX_SPLITS), min_splits), all_entries)
    numbers = np.arange(1, count)
    cuts = _cuts(entries, weights, numbers, all_bytes / count)
    # Each split has at least one entry.
    cuts = np.maximum.accumulate(np.maximum(cuts, 1) - numbers) + numbers
    cuts = np.minimum(cuts, all_entries - count + numbers)
    ends = np.concatenate(([0], cuts, [all_entries]))
    if max_split_rows is not None:
        ends = _cut_by_rows(ends, entries, _running_sum(pieces.rows), max_split_rows)
    bounds: Sequence[int] = ends.tolist()
    return [pieces.part(entries, start, end) for start, end in pairwise(bounds)]


def _cuts(entries: Int64s, weights: Int64s, numbers: Int64s, split_bytes: float) -> Int64s:
    """Return the entry number at each multiple of ``split_bytes``, or a piece's end if one is near: that saves opening
    a ledger."""
    targets = numbers * split_bytes
    after = np.searchsorted(weights, targets)
    nearest = np.where(targets - weights[after - 1] < weights[after] - targets, after - 1, after)
    is_near = np.abs(weights[nearest] - targets) <= _NEAR * split_bytes
    exact = np.rint(np.interp(targets, weights, entries)).astype(np.int64)
    return np.where(is_near, entries[nearest], exact)


def _cut_by_rows(ends: Int64s, entries: Int64s, rows: Int64s, max_rows: int) -> Int64s:
    """Add to ``ends`` so that no split has more than ``max_rows``, as far as rows are known."""
    rows_at = np.interp(ends, entries, rows)
    shares = np.ceil(np.diff(rows_at) / max_rows).astype(np.int64)
    if (count := int(np.maximum(shares, 1).sum())) > _MOST_SPLITS:
        raise InvalidArgumentError(
            f"{int(rows[-1])} rows with at most {max_rows} in a task (maxRecordsPerPartition) make {count} tasks, more "
            f"than {_MOST_SPLITS}: raise it, or read fewer rows"
        )
    found = [ends]
    for index in np.flatnonzero(shares > 1).tolist():
        targets = np.linspace(rows_at[index], rows_at[index + 1], int(shares[index]) + 1)[1:-1]
        found.append(np.rint(np.interp(targets, rows, entries)).astype(np.int64))
    # An entry with more rows than ``max_rows`` stays whole.
    return np.unique(np.concatenate(found))


def _cut_ends(columns: list[Int64s], skipped: int, left: int) -> list[Int64s]:
    """Cut ``skipped`` entries off the first piece and ``left`` off the last, in place."""
    _, _, first, entries, size_bytes, rows, base, _ = columns
    # Python integers, because sizes times entries exceed 64 bits. Read both ends first: they may be the same piece.
    ends = [(at, int(entries[at]), int(size_bytes[at]), int(rows[at])) for at in (0, -1)]
    for (at, count, size, row_count), cut, is_end in zip(ends, (skipped, left), (False, True), strict=True):
        # Complementary rounding: the parts of a piece add up to the whole.
        kept = count - cut
        entries[at] -= cut
        size_bytes[at] -= size - size * kept // count if is_end else size * cut // count
        rows[at] -= row_count - row_count * kept // count if is_end else row_count * cut // count
    first[0] += skipped
    if base[0] != NO_LOG:
        base[0] += skipped
    return columns


def _running_sum(values: Int64s) -> Int64s:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(values)))
