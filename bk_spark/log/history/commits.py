"""The history of a log: its commits, and the state in which each of them left it. No I/O.

A state is a range of offsets. A commit that appends moves its end; an overwrite or a truncation moves its start. Both
only grow, so the state of an earlier commit never changes, as long as all its rows are in the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from bk_spark.log.formats.commits import CommitKind
from bk_spark.log.formats.page import SegmentPage
from bk_spark.log.formats.segment import SegmentTable
from bk_spark.log.positions.texts import AsOf, Time, Transaction


@dataclass(frozen=True, slots=True)
class Commit:
    """One change of a log: what it added, and where the log began afterwards.

    Parameters
    ----------
    kind
        What it did. Its ``value`` is append, overwrite, truncate, log writer, append-ledger, or unknown if a release
        that did not record commits wrote it.
    start_offset, end_offset
        It added the offsets ``[start_offset, end_offset)``, which may be none.
    time_ms
        When, in Unix milliseconds. For a log writer's ledger: when it was sealed.
    rows, size_bytes
        Sums over what it added.
    app, batch
        The application's name and its batch, if it has a name.
    first_offset
        The log's first offset after it. None if a release that did not record commits wrote it.
    is_continued
        Whether it has more segments in the next page.
    """

    kind: CommitKind
    start_offset: int
    end_offset: int
    time_ms: int
    rows: int
    size_bytes: int
    app: str | None = None
    batch: int | None = None
    first_offset: int | None = None
    is_continued: bool = False


def commits_of(page: SegmentPage) -> list[Commit]:
    """Return the commits of a page's sealed segments, in order."""
    table, recorded = page.table, page.commits
    if page.open_tail:
        table = table[:-1]
    if recorded is None:
        return list(_unrecorded(table))
    bounds = np.append(table.base_offset, page.base_offset if not len(table) else table.end_offset)
    rows, size_bytes = (np.append(0, np.cumsum(column)) for column in (table.rows, table.size_bytes))
    ends = recorded.unrecorded + np.cumsum(recorded.segments)
    starts = ends - recorded.segments
    numbers = zip(
        recorded.records(),
        bounds[starts].tolist(),
        bounds[ends].tolist(),
        (rows[ends] - rows[starts]).tolist(),
        (size_bytes[ends] - size_bytes[starts]).tolist(),
        recorded.first_offsets.tolist(),
        strict=True,
    )
    found = list(_unrecorded(table[: recorded.unrecorded]))
    found += (
        Commit(
            record.kind,
            start,
            end,
            record.time_ms,
            row_count,
            byte_count,
            record.app,
            record.batch,
            first_offset,
            record.is_continued,
        )
        for record, start, end, row_count, byte_count, first_offset in numbers
    )
    return found


def newest_first(pages: Iterable[SegmentPage], list_offset: int) -> Iterator[Commit]:
    """Yield the commits of ``pages``, which begin with the last page. A commit over several pages is yielded once.

    Leaves out commits that end before ``list_offset``.
    """
    later: Commit | None = None
    for page in pages:
        for commit in reversed(commits_of(page)):
            if commit.is_continued and later is not None:
                later = _joined(commit, later)
                continue
            if later is not None:
                yield later
            later = commit
            if commit.end_offset < list_offset or commit.start_offset < commit.end_offset <= list_offset:
                return
    if later is not None:
        yield later


def is_meant(commit: Commit, as_of: AsOf) -> bool:
    """Whether ``as_of`` names ``commit``, given that it names no later commit."""
    if isinstance(as_of, Time):
        return commit.time_ms <= as_of.time_ms
    if isinstance(as_of, Transaction):
        return commit.app == as_of.app and commit.batch == as_of.version
    return commit.start_offset <= as_of < commit.end_offset


def is_before(commit: Commit, as_of: AsOf) -> bool:
    """Whether neither ``commit`` nor any earlier one can be the one that is meant."""
    if isinstance(as_of, Time):
        return False
    if isinstance(as_of, Transaction):
        return commit.app == as_of.app and commit.batch is not None and commit.batch < as_of.version
    return commit.end_offset <= as_of


def end_of_state(commit: Commit, as_of: AsOf) -> int:
    """Return where the state ends. Each entry of a log writer is a commit of its own."""
    if isinstance(as_of, int) and commit.kind is CommitKind.WRITER:
        return as_of + 1
    return commit.end_offset


def _joined(part: Commit, later: Commit) -> Commit:
    return replace(
        later,
        start_offset=part.start_offset,
        rows=part.rows + later.rows,
        size_bytes=part.size_bytes + later.size_bytes,
    )


def _unrecorded(table: SegmentTable) -> Iterator[Commit]:
    """Segments with the same time count as one commit."""
    if not len(table):
        return
    starts = np.flatnonzero(np.diff(table.commit_time_ms, prepend=-1)).tolist()
    for start, end in zip(starts, [*starts[1:], len(table)], strict=True):
        part = table[start:end]
        yield Commit(
            CommitKind.UNKNOWN,
            int(part.base_offset[0]),
            part.end_offset,
            int(part.commit_time_ms[0]),
            int(part.rows.sum()),
            int(part.size_bytes.sum()),
        )
