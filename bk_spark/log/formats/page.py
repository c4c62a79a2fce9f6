"""Pages of segments: ``<log>/pages/<n>``, at most 32 KiB, message ``SegmentPage``.

Columns of varints (protobuf's packed repeated fields). Each value is predicted from the preceding ones, and the
difference is stored, so that most values take one byte or none:

==================== ==========================================================================
field                meaning
==================== ==========================================================================
base_offset          offset of the first segment; the others follow without gaps
ledger_id_deltas     table of ledgers by first appearance; id minus the previous id (0 at first)
ledger_first_entries first entry of the ledger's first segment in this page
entries              number of entries; 0 for an open tail
ledger_index_deltas  index into the table, minus the previous segment's index (0 at first)
gap_position_deltas  positions of segments that do not start where the ledger's previous segment
                     ended; position minus the previous one (0 at first)
gap_entries          for each of them: first entry minus that end
rows_per_entry       r, chosen by the writer
row_residuals        rows - r * entries
bytes_per_row        b, chosen by the writer
byte_residuals       bytes - b * rows
time_run_repeats     number of consecutive segments with one commit time, less 1
time_run_deltas_ms   their time minus the previous run's (base_time_ms at first)
schema_run_repeats   number of consecutive segments with one version of the schema, less 1
schema_run_deltas    their version minus the previous run's (0 at first)
commits              which of them came together, see :mod:`.commits`
==================== ==================================================================="""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import numpy as np

from bk_spark.log.formats.commits import (
    BadCommitsError,
    CommitRecord,
    CommitTable,
    cut_records,
    decode_commits,
    encode_commits,
)
from bk_spark.log.formats.proto import log_formats_pb2 as pb
from bk_spark.log.formats.schema_history import MAX_SCHEMA_VERSIONS
from bk_spark.log.formats.segment import (
    MAX_SEGMENT_BYTES,
    MAX_SEGMENT_ENTRIES,
    MAX_SEGMENT_ROWS,
    SegmentTable,
)
from bk_spark.log.formats.znodes import parse
from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.errors import LogReplacedError, MetadataFormatError

PAGE_VERSION: Final = 2
_FIRST_VERSION: Final = 1
MAX_PAGE_BYTES: Final = 32 * 1024

# A page filled to this size counts as full. Finding the very last segment that fits is not worth it.
_FULL_BYTES: Final = MAX_PAGE_BYTES * 15 // 16
_FIRST_GUESS_SEGMENTS: Final = 4096
_MAX_PRODUCT: Final = 1 << 62
_MAX_INT64: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, eq=False)
class SegmentPage:
    """One page: ``table`` holds segments starting at ``base_offset``. ``commits`` is None if they are not recorded."""

    log_id: str
    number: int
    base_offset: int
    table: SegmentTable
    commits: CommitTable | None = None

    @property
    def end_offset(self) -> int:
        """The offset after the last sealed segment. An open tail begins there."""
        return self.table.end_offset if len(self.table) else self.base_offset

    @property
    def open_tail(self) -> bool:
        """Whether the last segment is a ledger that is still being written."""
        return len(self.table) > 0 and self.table.entries[-1] == 0


def encode_page(page: SegmentPage) -> bytes:
    """Encode the znode's content. It may be longer than MAX_PAGE_BYTES: see :func:`fill_pages`."""
    table = page.table
    message = pb.SegmentPage(
        format_version=_FIRST_VERSION,
        log_id=UUID(page.log_id).bytes,
        number=page.number,
        base_offset=page.base_offset,
        open_tail=page.open_tail,
    )
    if page.commits is not None:
        message.format_version = PAGE_VERSION
        message.commits.CopyFrom(encode_commits(page.commits, table))
    if not len(table):
        return message.SerializeToString()

    index, ledgers = _ledger_table(table.ledger_id)
    gaps, ledger_first_entries = _gaps(index, len(ledgers), table)
    message.ledger_id_deltas.extend(_deltas(ledgers).tolist())
    message.ledger_first_entries.extend(_unless_zero(ledger_first_entries))
    message.entries.extend(table.entries.tolist())
    message.ledger_index_deltas.extend(_unless_zero(_deltas(index)))
    positions = np.flatnonzero(gaps)
    message.gap_position_deltas.extend(_deltas(positions).tolist())
    message.gap_entries.extend(gaps[positions].tolist())

    message.rows_per_entry = _mean(table.rows, table.entries)
    message.row_residuals.extend(_unless_zero(table.rows - message.rows_per_entry * table.entries))
    message.bytes_per_row = _mean(table.size_bytes, table.rows)
    message.byte_residuals.extend(_unless_zero(table.size_bytes - message.bytes_per_row * table.rows))

    starts = np.flatnonzero(np.diff(table.commit_time_ms, prepend=-1))
    message.base_time_ms = int(table.commit_time_ms[0])
    message.time_run_repeats.extend(_unless_zero(np.diff(starts, append=len(table)) - 1))
    message.time_run_deltas_ms.extend(np.diff(table.commit_time_ms[starts], prepend=message.base_time_ms).tolist())

    if table.schema_version.any():
        message.format_version = PAGE_VERSION
        starts = np.flatnonzero(np.diff(table.schema_version, prepend=-1))
        message.schema_run_repeats.extend(_unless_zero(np.diff(starts, append=len(table)) - 1))
        message.schema_run_deltas.extend(_deltas(table.schema_version[starts]).tolist())
    return message.SerializeToString()


def decode_page(data: bytes, path: str, *, log_id: str, number: int) -> SegmentPage:
    """Decode a page and check that it is page ``number`` of the log.

    Raises MetadataFormatError, and LogReplacedError for a page of another log.
    """
    message = parse(pb.SegmentPage(), data, path, "page of segments", PAGE_VERSION, MAX_PAGE_BYTES)
    if message.log_id != UUID(log_id).bytes:
        raise LogReplacedError(
            f"page of segments {path} is not of log id {log_id}: the log was deleted and created again"
        )
    if message.number != number:
        raise MetadataFormatError(f"{path} holds page {message.number}, not {number}")
    try:
        table = _decode_table(message)
        _require(message.format_version > _FIRST_VERSION or not message.HasField("commits"), "its version")
        commits = decode_commits(message.commits, table) if message.HasField("commits") else None
    except (_BadPageError, BadCommitsError, OverflowError) as error:
        raise MetadataFormatError(f"page of segments {path} is damaged: {error}") from error
    return SegmentPage(log_id, number, message.base_offset, table, commits)


def fill_pages(
    tail: SegmentPage, added: SegmentTable, records: Sequence[CommitRecord] = ()
) -> list[tuple[SegmentPage, bytes]]:
    """Append ``added`` to the log whose tail page is ``tail``. Returns the new and changed pages, encoded.

    The first is the tail page itself, unless it has no room left. The last is the new tail page. ``records`` are the
    commits of the sealed segments in ``added``, if the page records commits.
    """
    pages: list[tuple[SegmentPage, bytes]] = []
    page, rest, pending = tail, added, list(records)
    while len(rest) or pending:
        taken, data = _take(page, rest, pending) if len(rest) else _take_bare(page, pending)
        if data:
            part = rest[:taken]
            page = _extended(page, part, pending)
            pages.append((page, data))
            rest, pending = rest[taken:], cut_records(pending, _sealed(part))[1]
        if len(rest) or pending:
            commits = None if page.commits is None else CommitTable.begin(page.commits.last_first_offset, 0)
            page = SegmentPage(page.log_id, page.number + 1, page.end_offset, SegmentTable.of(()), commits)
    return pages


def _take_bare(page: SegmentPage, pending: Sequence[CommitRecord]) -> tuple[int, bytes]:
    """Like :func:`_take`, for commits without segments."""
    data = encode_page(_extended(page, SegmentTable.of(()), pending))
    return 0, data if len(data) <= MAX_PAGE_BYTES else b""


def _take(page: SegmentPage, rest: SegmentTable, pending: Sequence[CommitRecord]) -> tuple[int, bytes]:
    """Return how many segments of ``rest`` fit into ``page`` (approximately: see _FULL_BYTES), and that page."""
    fits, best = 0, b""
    limit = min(len(rest), MAX_PAGE_BYTES)
    guess = min(limit, _FIRST_GUESS_SEGMENTS)
    while fits < limit:
        data = encode_page(_extended(page, rest[:guess], pending))
        if len(data) <= MAX_PAGE_BYTES:
            fits, best = guess, data
            if len(data) >= _FULL_BYTES:
                break
        else:
            limit = guess - 1
        segment_bytes = len(data) / (len(page.table) + guess)
        guess = int((MAX_PAGE_BYTES + _FULL_BYTES) / 2 / segment_bytes) - len(page.table)
        guess = max(fits + 1, min(guess, limit))
    return fits, best


def _extended(page: SegmentPage, added: SegmentTable, pending: Sequence[CommitRecord]) -> SegmentPage:
    table = SegmentTable.concat([page.table, added])
    commits = page.commits
    if commits is not None:
        commits = commits.extended(cut_records(pending, _sealed(added))[0])
    return SegmentPage(page.log_id, page.number, page.base_offset, table, commits)


def _sealed(table: SegmentTable) -> int:
    return int(np.count_nonzero(table.entries))


class _BadPageError(Exception):
    pass


def _decode_table(message: pb.SegmentPage) -> SegmentTable:
    entries = _column(message.entries)
    count = len(entries)
    if not count:
        return SegmentTable.of(())
    _require(entries.max() < MAX_SEGMENT_ENTRIES and entries.min() >= 0, "entries")
    _require(entries[:-1].all() and (entries[-1] == 0) == message.open_tail, "an open segment that is not the tail")

    ledgers = np.cumsum(_column(message.ledger_id_deltas))
    index = np.cumsum(_column(message.ledger_index_deltas, count))
    _require(len(ledgers) <= count and ledgers.min(initial=0) >= 0, "ledger ids")
    _require(index.min() >= 0 and index.max() < len(ledgers), "ledger indexes")
    first_entry = _decode_first_entries(message, index, entries, len(ledgers))
    _require(first_entry.min() >= 0 and first_entry.max() < _MAX_PRODUCT, "first entries")

    rows = _decode_product(message.rows_per_entry, entries, message.row_residuals)
    _require(rows.min() >= 0 and rows.max() < MAX_SEGMENT_ROWS, "rows")
    size_bytes = _decode_product(message.bytes_per_row, rows, message.byte_residuals)
    _require(size_bytes.min() >= 0 and size_bytes.max() < MAX_SEGMENT_BYTES, "bytes")

    times = message.base_time_ms + np.cumsum(_column(message.time_run_deltas_ms))
    _require(times.min(initial=0) >= 0, "commit times")

    ends = np.cumsum(entries)
    _require(message.base_offset < _MAX_PRODUCT, "base offset")
    return SegmentTable(
        ledgers[index],
        first_entry,
        entries,
        message.base_offset + ends - entries,
        rows,
        size_bytes,
        _decode_runs(times, message.time_run_repeats, count, "commit times"),
        _decode_schema_versions(message, count),
    )


def _decode_schema_versions(message: pb.SegmentPage, count: int) -> Int64s:
    deltas = _column(message.schema_run_deltas)
    if not len(deltas):
        _require(not len(message.schema_run_repeats), "versions of the schema")
        return np.zeros(count, np.int64)
    _require(message.format_version == PAGE_VERSION, "versions of the schema")
    # Bounded first, so that no sum exceeds 64 bits.
    _require(deltas.min(initial=0) > -MAX_SCHEMA_VERSIONS, "versions of the schema")
    _require(deltas.max(initial=0) < MAX_SCHEMA_VERSIONS, "versions of the schema")
    versions = np.cumsum(deltas)
    _require(versions.min(initial=0) >= 0 and versions.max(initial=0) < MAX_SCHEMA_VERSIONS, "versions of the schema")
    return _decode_runs(versions, message.schema_run_repeats, count, "versions of the schema")


def _decode_runs(values: Int64s, stored_repeats: Sequence[int], count: int, what: str) -> Int64s:
    """Return ``count`` values, of which each run shares one."""
    _require(1 <= len(values) <= count, what)
    repeats = _column(stored_repeats, len(values))
    _require(repeats.min() >= 0 and repeats.max() < count and repeats.sum() + len(values) == count, what)
    return np.repeat(values, repeats + 1)


def _decode_first_entries(message: pb.SegmentPage, index: Int64s, entries: Int64s, ledgers: int) -> Int64s:
    """A ledger's next segment starts at its first entry in the page, plus all its entries and gaps so far."""
    count = len(entries)
    positions = np.cumsum(_column(message.gap_position_deltas))
    gap_entries = _column(message.gap_entries)
    _require(len(positions) == len(gap_entries), "gaps")
    _require(np.diff(positions, prepend=-1).min(initial=1) >= 1 and positions.max(initial=0) < count, "gaps")
    gaps = np.zeros(count, np.int64)
    gaps[positions] = gap_entries

    order, group_starts, group_of = _by_ledger(index)
    steps = gaps[order]
    steps[1:] += entries[order][:-1]
    # One running sum over all ledgers, from which each ledger's own start is subtracted.
    sums = np.cumsum(steps)
    sums -= sums[group_starts][group_of]
    first_entry = np.empty(count, np.int64)
    first_entry[order] = sums + _column(message.ledger_first_entries, ledgers)[index[order]]
    return first_entry


def _gaps(index: Int64s, ledgers: int, table: SegmentTable) -> tuple[Int64s, Int64s]:
    """Return, per segment, its first entry minus the previous end in its ledger; per ledger, its first entry."""
    order, group_starts, _ = _by_ledger(index)
    first = table.first_entry[order]
    expected = np.empty_like(first)
    expected[1:] = (first + table.entries[order])[:-1]
    expected[group_starts] = first[group_starts]
    gaps = np.empty_like(first)
    gaps[order] = first - expected
    ledger_first_entries = np.empty(ledgers, np.int64)
    ledger_first_entries[index[order][group_starts]] = first[group_starts]
    return gaps, ledger_first_entries


def _by_ledger(index: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Sort segments by ledger, stable within one. Returns positions, where groups start, and each segment's group."""
    order = np.argsort(index, kind="stable")
    changes = np.diff(index[order], prepend=-1) != 0
    return order, np.flatnonzero(changes), np.cumsum(changes) - 1


def _ledger_table(ledger_id: Int64s) -> tuple[Int64s, Int64s]:
    """Return the index of each segment's ledger, and the ledgers in order of first appearance."""
    ledgers, first_positions, inverse = np.unique(ledger_id, return_index=True, return_inverse=True)
    by_appearance = np.argsort(first_positions)
    rank = np.empty_like(by_appearance)
    rank[by_appearance] = np.arange(len(ledgers))
    return rank[inverse], ledgers[by_appearance]


def _mean(total: Int64s, count: Int64s) -> int:
    """Return the integer mean of ``total`` per ``count``, or 0 if multiplying it back could overflow."""
    mean = int(total.sum()) // max(1, int(count.sum()))
    return mean if mean * int(count.max()) < _MAX_PRODUCT else 0


def _decode_product(factor: int, counts: Int64s, residuals: Sequence[int]) -> Int64s:
    _require(factor * int(counts.max()) < _MAX_PRODUCT, "a mean")
    residual = _column(residuals, len(counts))
    _require(abs(int(residual.min())) < _MAX_PRODUCT and residual.max() < _MAX_PRODUCT, "a residual")
    return factor * counts + residual


def _deltas(column: Int64s) -> Int64s:
    return np.diff(column, prepend=0)


def _unless_zero(column: Int64s) -> list[int]:
    return column.tolist() if column.any() else []


def int64_column(values: Sequence[int]) -> Int64s:
    """Convert a repeated field to an array. Raises OverflowError for a value of 2**63 or more."""
    # Newer protobuf releases return the whole field at once, in its own type.
    column = np.asarray(values) if len(values) else np.empty(0, np.int64)
    if column.dtype != np.int64 and column.max() > _MAX_INT64:
        raise OverflowError(f"{column.max()} is more than a signed number of 64 bits")
    return column.astype(np.int64)


def _column(values: Sequence[int], count: int | None = None) -> Int64s:
    """Like :func:`int64_column`. Returns ``count`` zeros if an optional field is omitted."""
    column = int64_column(values)
    if count is None:
        return column
    if not len(column):
        return np.zeros(count, np.int64)
    _require(len(column) == count, "columns of different lengths")
    return column


def _require(condition: object, what: str) -> None:
    if not condition:
        raise _BadPageError(what)
