"""The commits of a page: which segments came together, when, from whom, and where the log began afterwards.

They are columns of a page (message ``PageCommits``), next to those of its segments. Commits cover the page's sealed
segments in order; an open tail gets its commit when it is sealed. A commit without rows, such as a truncation, has no
segments. One with more segments than its page holds goes on in the next page (``is_continued``).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from bk_spark.log.formats.proto import log_formats_pb2 as pb
from bk_spark.log.formats.segment import SegmentTable
from bk_spark.protocol.arrays import Int64s

#: The most commits without segments at the end of a page: it must have room for a segment, too. The oldest of more are
#: dropped.
MAX_BARE_COMMITS: Final = 64
_MAX_COMMITS: Final = 1 << 15
_MAX_INT64: Final = (1 << 63) - 1
_MAX_NUMBER: Final = 1 << 62
_CONTINUED: Final = 16


class CommitKind(enum.Enum):
    """What changed a log."""

    APPEND = "append"
    OVERWRITE = "overwrite"
    TRUNCATE = "truncate"
    WRITER = "log writer"
    """A log writer's open tail was sealed."""
    LEDGER = "append-ledger"
    UNKNOWN = "unknown"
    """A release that did not record commits wrote it."""


_NUMBERS: Final = {
    kind: number
    for number, kind in enumerate(
        (CommitKind.APPEND, CommitKind.OVERWRITE, CommitKind.TRUNCATE, CommitKind.WRITER, CommitKind.LEDGER)
    )
}
_KINDS: Final = {number: kind for kind, number in _NUMBERS.items()}
_MOVING: Final = (_NUMBERS[CommitKind.OVERWRITE], _NUMBERS[CommitKind.TRUNCATE])


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One commit, or a page's part of it.

    ``segments`` is their number. ``app`` and ``batch`` are None for a commit without a name. ``first_offset`` is where
    the log begins after an overwrite or a truncation, and None for other kinds.
    """

    kind: CommitKind
    segments: int
    time_ms: int
    app: str | None = None
    batch: int | None = None
    first_offset: int | None = None
    is_continued: bool = False


class BadCommitsError(Exception):
    """The columns do not fit together."""


@dataclass(frozen=True, slots=True, eq=False)
class CommitTable:
    """Commits in columns.

    ``first_offset`` is where the log began before the first of them, ``unrecorded`` the number of segments of the page
    before them. ``app`` is an index into ``apps``, in which "" stands for none; ``batch`` is 0 then. ``first_offsets``
    is where the log began after each.
    """

    first_offset: int
    unrecorded: int
    apps: tuple[str, ...]
    kind: Int64s
    segments: Int64s
    time_ms: Int64s
    app: Int64s
    batch: Int64s
    first_offsets: Int64s
    is_continued: Int64s

    @classmethod
    def begin(cls, first_offset: int, unrecorded: int) -> CommitTable:
        """Return an empty table for a log that begins at ``first_offset``."""
        none = np.empty(0, np.int64)
        return cls(first_offset, unrecorded, (), none, none, none, none, none, none, none)

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def last_first_offset(self) -> int:
        """Where the log begins after the last of these commits."""
        return int(self.first_offsets[-1]) if len(self) else self.first_offset

    def extended(self, records: Sequence[CommitRecord]) -> CommitTable:
        """Return these commits and ``records``."""
        if not records:
            return self
        apps = dict(zip(self.apps, range(len(self.apps)), strict=True))
        first_offset = self.last_first_offset
        columns: list[list[int]] = [[] for _ in range(7)]
        for record in records:
            if record.first_offset is not None:
                first_offset = record.first_offset
            values = (
                _NUMBERS[record.kind],
                record.segments,
                record.time_ms,
                apps.setdefault(record.app or "", len(apps)),
                (record.batch or 0) if record.app else 0,
                first_offset,
                record.is_continued,
            )
            for column, value in zip(columns, values, strict=True):
                column.append(value)
        added = [np.array(column, np.int64) for column in columns]
        before = (self.kind, self.segments, self.time_ms, self.app, self.batch, self.first_offsets, self.is_continued)
        merged = (np.concatenate(pair) for pair in zip(before, added, strict=True))
        return CommitTable(self.first_offset, self.unrecorded, tuple(apps), *merged)._without_surplus()

    def records(self) -> Iterable[CommitRecord]:
        """Yield the commits in order."""
        columns = (self.kind, self.segments, self.time_ms, self.app, self.batch, self.first_offsets, self.is_continued)
        for kind, segments, time_ms, app, batch, first_offset, is_continued in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            name = self.apps[app] or None
            yield CommitRecord(
                _KINDS[kind],
                segments,
                time_ms,
                name,
                None if name is None else batch,
                first_offset if kind in _MOVING else None,
                bool(is_continued),
            )

    def _without_surplus(self) -> CommitTable:
        """Drop the oldest of too many commits without segments at the end. An empty page must not become full."""
        with_segments = np.flatnonzero(self.segments)
        end = int(with_segments[-1]) + 1 if len(with_segments) else 0
        surplus = len(self) - end - MAX_BARE_COMMITS
        if surplus <= 0:
            return self
        kept = np.r_[0:end, end + surplus : len(self)]
        used, app = np.unique(self.app[kept], return_inverse=True)
        return replace(
            self,
            apps=tuple(self.apps[index] for index in used.tolist()),
            app=app.astype(np.int64),
            **{name: getattr(self, name)[kept] for name in _COLUMNS},
        )


_COLUMNS: Final = ("kind", "segments", "time_ms", "batch", "first_offsets", "is_continued")


def cut_records(records: Sequence[CommitRecord], segments: int) -> tuple[list[CommitRecord], list[CommitRecord]]:
    """Split ``records`` after their first ``segments`` segments. A commit in the middle is split."""
    taken: list[CommitRecord] = []
    for index, record in enumerate(records):
        if not segments and record.segments:
            return taken, [*records[index:]]
        if record.segments > segments:
            taken.append(replace(record, segments=segments, is_continued=True))
            return taken, [replace(record, segments=record.segments - segments), *records[index + 1 :]]
        taken.append(record)
        segments -= record.segments
    return taken, []


def encode_commits(commits: CommitTable, table: SegmentTable) -> pb.PageCommits:
    """Encode the commits of a page with the segments ``table``."""
    message = pb.PageCommits(
        first_offset=commits.first_offset, unrecorded_segments=commits.unrecorded, count=len(commits)
    )
    if not len(commits):
        return message
    message.usual_segments = int(np.bincount(np.minimum(commits.segments, _MAX_COMMITS)).argmax())
    message.segment_residuals.extend(_unless_zero(commits.segments - message.usual_segments))
    message.kinds.extend(_unless_zero(commits.kind + _CONTINUED * commits.is_continued))
    message.apps.extend(commits.apps)
    message.app_indexes.extend(_unless_zero(commits.app))
    message.batch_residuals.extend(_unless_zero(_batch_residuals(commits.app, commits.batch, commits.apps)))
    message.time_residuals_ms.extend(_unless_zero(commits.time_ms - _near_times(commits, table)))
    moves = np.diff(commits.first_offsets, prepend=commits.first_offset)
    message.moves.extend(moves[np.isin(commits.kind, _MOVING)].tolist())
    return message


def decode_commits(message: pb.PageCommits, table: SegmentTable) -> CommitTable:
    """Decode the commits of a page with the segments ``table``. Raises BadCommitsError, OverflowError."""
    count = message.count
    _require(count <= _MAX_COMMITS, "their number")
    _require(message.first_offset < _MAX_NUMBER and message.usual_segments < _MAX_COMMITS, "numbers")
    numbers = _column(message.kinds, count)
    kind, is_continued = numbers % _CONTINUED, numbers // _CONTINUED
    _require((kind < len(_KINDS)).all() and (is_continued < 2).all(), "kinds")
    segments = message.usual_segments + _column(message.segment_residuals, count)
    sealed = len(table) - (len(table) > 0 and int(table.entries[-1]) == 0)
    _require((segments >= 0).all() and (segments <= sealed).all(), "segments")
    _require(message.unrecorded_segments + int(segments.sum()) == sealed, "segments")
    app = _column(message.app_indexes, count)
    _require((app < max(1, len(message.apps))).all() and (not count or len(message.apps) > 0), "applications")
    moves = _column(message.moves, int(np.isin(kind, _MOVING).sum()))
    _require((moves < _MAX_NUMBER).all() and message.first_offset + moves.sum(dtype=float) < _MAX_NUMBER, "moves")
    every_move = np.zeros(count, np.int64)
    every_move[np.isin(kind, _MOVING)] = moves
    commits = CommitTable(
        message.first_offset,
        message.unrecorded_segments,
        tuple(message.apps),
        kind,
        segments,
        np.zeros(count, np.int64),
        app,
        _decode_batches(app, _column(message.batch_residuals, count), tuple(message.apps)),
        message.first_offset + np.cumsum(every_move),
        is_continued,
    )
    residuals = _column(message.time_residuals_ms, count)
    _require((residuals < _MAX_NUMBER).all(), "times")
    times = _near_times(commits, table) + residuals
    _require((np.diff(times) >= 0).all(), "times that go back")
    return replace(commits, time_ms=times)


def _near_times(commits: CommitTable, table: SegmentTable) -> Int64s:
    """Return the time of each commit's first segment, or of the segment before it if it has none, or 0."""
    starts = commits.unrecorded + np.cumsum(commits.segments) - commits.segments
    times = np.append(0, table.commit_time_ms)
    near: Int64s = times[starts + (commits.segments > 0)]
    return near


def _batch_residuals(app: Int64s, batch: Int64s, apps: Sequence[str]) -> Int64s:
    order, starts = _by_app(app)
    sorted_batches = batch[order]
    before = np.empty_like(sorted_batches)
    before[1:] = sorted_batches[:-1]
    before[starts] = -1
    residuals = np.empty_like(batch)
    residuals[order] = sorted_batches - before - 1
    return np.where(_is_nameless(app, apps), 0, residuals)


def _decode_batches(app: Int64s, residuals: Int64s, apps: Sequence[str]) -> Int64s:
    if not len(app):
        return residuals
    order, starts = _by_app(app)
    # Sums may exceed 64 bits and wrap around. Differences of them are right nevertheless.
    sums = np.append(0, np.cumsum((residuals + 1)[order]))
    groups = np.cumsum(np.isin(np.arange(len(app)), starts)) - 1
    batches = np.empty_like(app)
    batches[order] = sums[1:] - sums[starts][groups] - 1
    batches = np.where(_is_nameless(app, apps), 0, batches)
    _require((batches >= 0).all(), "batches")
    return batches


def _by_app(app: Int64s) -> tuple[Int64s, Int64s]:
    """Sort by application, stable within one. Returns positions, and where groups start."""
    order = np.argsort(app, kind="stable")
    return order, np.flatnonzero(np.diff(app[order], prepend=-1))


def _is_nameless(app: Int64s, apps: Sequence[str]) -> Int64s:
    nameless: Int64s = np.array([not name for name in apps], bool)[app]
    return nameless


def _column(values: Sequence[int], count: int) -> Int64s:
    """Return a column, or zeros if it is omitted."""
    if not len(values):
        return np.zeros(count, np.int64)
    _require(len(values) == count, "columns of different lengths")
    column = np.asarray(values)
    if column.dtype != np.int64 and column.max() > _MAX_INT64:
        raise OverflowError(f"{column.max()} is more than a signed number of 64 bits")
    return column.astype(np.int64)


def _unless_zero(column: Int64s) -> list[int]:
    return column.tolist() if column.any() else []


def _require(condition: object, what: str) -> None:
    if not condition:
        raise BadCommitsError(f"commits: {what}")
