"""What a log's policy keeps: rows within either limit, and whole segments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from bk_spark.log.formats.segment import COMMIT_TIME_LAG_MS, Segment, SegmentTable
from bk_spark.log.formats.znodes import Policy
from bk_spark.log.gc.retention import offset_to_keep

HOUR_MS = 3_600_000
#: Ten entries each, committed an hour after one another.
TIMES_MS = (HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS)
SIZES_BYTES = (100, 200, 400)


@dataclass
class Segments:
    """Three segments, in pages of two."""

    first_offset: int = 0
    next_offset: int = 30
    last_commit_time_ms: int = TIMES_MS[-1]

    @property
    def table(self) -> SegmentTable:
        columns = enumerate(zip(TIMES_MS, SIZES_BYTES, strict=True))
        return SegmentTable.of(Segment(7 + i, 0, 9, 10 * i, 10, size, time_ms) for i, (time_ms, size) in columns)

    def offset_at(self, time_ms: int, /) -> int:
        young = np.flatnonzero(self.table.commit_time_ms >= time_ms)
        return int(self.table.base_offset[young[0]]) if len(young) else self.next_offset

    def segment_at(self, offset: int, /) -> tuple[int, Segment]:
        raise NotImplementedError

    def tables_from_end(self) -> Iterator[SegmentTable]:
        yield self.table[2:]
        yield self.table[:2]


@pytest.mark.parametrize(
    ("older_ms", "kept"),
    [
        # The first segment may have entries that were written until the second one began.
        (TIMES_MS[0], 0),
        (TIMES_MS[1], 9),
        (TIMES_MS[1] + 1, 19),
        (TIMES_MS[2], 19),
        (TIMES_MS[2] + 1, 30),
    ],
)
def test_a_segment_goes_once_everything_in_it_is_older_than_the_limit(older_ms: int, kept: int) -> None:
    """A commit may take effect a while after its time."""
    now_ms = older_ms + 5 * HOUR_MS + COMMIT_TIME_LAG_MS
    assert offset_to_keep(Segments(), Policy(retention_time_ms=5 * HOUR_MS), now_ms) == kept


@pytest.mark.parametrize(
    ("limit_bytes", "kept"), [(1, 20), (400, 20), (401, 10), (600, 10), (601, 0), (700, 0), (701, 0)]
)
def test_a_segment_goes_if_the_rest_has_the_limits_size(limit_bytes: int, kept: int) -> None:
    assert offset_to_keep(Segments(), Policy(retention_size_bytes=limit_bytes), 100 * HOUR_MS) == kept


@pytest.mark.parametrize(("limit_bytes", "kept"), [(1, 19), (400, 19), (401, 10), (601, 0)])
def test_with_both_limits_rows_within_either_are_kept(limit_bytes: int, kept: int) -> None:
    now_ms = TIMES_MS[1] + 1 + 5 * HOUR_MS + COMMIT_TIME_LAG_MS
    policy = Policy(retention_time_ms=5 * HOUR_MS, retention_size_bytes=limit_bytes)
    assert offset_to_keep(Segments(), policy, now_ms) == kept


def test_without_limits_everything_is_kept() -> None:
    assert offset_to_keep(Segments(first_offset=3), Policy(), 100 * HOUR_MS) == 3
