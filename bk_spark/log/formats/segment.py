"""Segments: ranges of ledger entries, one after another in a log.

Offsets count entries and are half-open, ``[start, end)``. Entry ids within a ledger are inclusive, as
everywhere in BookKeeper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Int64s

#: Keeps the sum of any column over a whole page far below 2**63.
MAX_SEGMENT_ENTRIES: Final = 1 << 40
MAX_SEGMENT_ROWS: Final = 1 << 46
MAX_SEGMENT_BYTES: Final = 1 << 46
#: A commit's time is the cluster's time slightly before the commit. The known time lags by at most one call, and the
#: transaction follows the decision by at most a session's time (later it is refused). Code that drops old data by
#: commit time allows for this lag.
COMMIT_TIME_LAG_MS: Final = 2 * 60_000


@dataclass(frozen=True, slots=True)
class Segment:
    """Entries ``first_entry`` to ``last_entry`` (inclusive) of one ledger, at log offset ``base_offset``.

    ``last_entry`` is None for an open tail: a ledger still being written. ``size_bytes`` counts payload
    bytes, ``commit_time_ms`` is Unix time by the cluster's clock. The entries hold columns of version
    ``schema_version`` of the log's schema, or of an earlier one.
    """

    ledger_id: int
    first_entry: int
    last_entry: int | None
    base_offset: int
    rows: int
    size_bytes: int
    commit_time_ms: int
    schema_version: int = 0

    @property
    def entries(self) -> int:
        """The number of entries; 0 for an open tail."""
        return 0 if self.last_entry is None else self.last_entry - self.first_entry + 1

    @property
    def end_offset(self) -> int:
        """The offset after the last entry. For an open tail it is ``base_offset``."""
        return self.base_offset + self.entries

    def entry_at(self, offset: int) -> int:
        """Return the id of the entry at ``offset``, which must be in this segment."""
        assert self.base_offset <= offset < self.end_offset, f"offset {offset} is outside of {self}"
        return self.first_entry + offset - self.base_offset

    def clip(self, start: int, end: int) -> Segment:
        """Return the part of a sealed segment within offsets ``[start, end)``, which must not be empty.

        Rows and bytes of a part are estimates, proportional to its entries, because the list holds only sums.
        """
        first, last = max(start, self.base_offset), min(end, self.end_offset)
        if (first, last) == (self.base_offset, self.end_offset):
            return self
        return replace(
            self,
            first_entry=self.entry_at(first),
            last_entry=self.entry_at(last - 1),
            base_offset=first,
            rows=self.rows * (last - first) // self.entries,
            size_bytes=self.size_bytes * (last - first) // self.entries,
        )


@dataclass(frozen=True, slots=True, eq=False)
class SegmentTable:
    """Consecutive segments in int64 columns of equal length. ``entries`` is 0 for an open tail."""

    ledger_id: Int64s
    first_entry: Int64s
    entries: Int64s
    base_offset: Int64s
    rows: Int64s
    size_bytes: Int64s
    commit_time_ms: Int64s
    schema_version: Int64s

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> SegmentTable:
        """Make the columns. An open tail gets 0 entries."""
        values = [
            (
                s.ledger_id,
                s.first_entry,
                s.entries,
                s.base_offset,
                s.rows,
                s.size_bytes,
                s.commit_time_ms,
                s.schema_version,
            )
            for s in segments
        ]
        return cls(*np.array(values, dtype=np.int64).reshape(-1, 8).T)

    @classmethod
    def concat(cls, tables: list[SegmentTable]) -> SegmentTable:
        """Return the segments of all ``tables`` in order, which must follow one another."""
        if not tables:
            return cls.of(())
        return cls(*(np.concatenate(columns) for columns in zip(*(t.columns for t in tables), strict=True)))

    @property
    def columns(self) -> tuple[Int64s, ...]:
        """The columns in the order of the fields."""
        return (
            self.ledger_id,
            self.first_entry,
            self.entries,
            self.base_offset,
            self.rows,
            self.size_bytes,
            self.commit_time_ms,
            self.schema_version,
        )

    def __len__(self) -> int:
        return len(self.entries)

    def moved(self, offset: int, commit_time_ms: int, schema_version: int = 0) -> SegmentTable:
        """Return the same segments starting at ``offset``, with the given commit time and version of the schema."""
        by = offset - int(self.base_offset[0]) if len(self) else 0
        times = np.full(len(self), commit_time_ms, np.int64)
        versions = np.full(len(self), schema_version, np.int64)
        return replace(self, base_offset=self.base_offset + by, commit_time_ms=times, schema_version=versions)

    def __getitem__(self, part: slice) -> SegmentTable:
        return SegmentTable(*(column[part] for column in self.columns))

    def __iter__(self) -> Iterator[Segment]:
        for ledger_id, first, entries, base, rows, size, time_ms, schema_version in zip(
            *(column.tolist() for column in self.columns), strict=True
        ):
            last = first + entries - 1 if entries else None
            yield Segment(ledger_id, first, last, base, rows, size, time_ms, schema_version)

    @property
    def end_offset(self) -> int:
        """The offset after the last segment. The table must not be empty."""
        return int(self.base_offset[-1] + self.entries[-1])

    def overlapping(self, start: int, end: int) -> SegmentTable:
        """Return the whole sealed segments that hold any offset of ``[start, end)``."""
        if start >= end:
            return self[:0]
        low = int(np.searchsorted(self.base_offset + self.entries, start, side="right"))
        high = int(np.searchsorted(self.base_offset, end, side="left"))
        part = self[low:high]
        if len(part) and part.entries[-1] == 0:
            part = part[:-1]
        return part
