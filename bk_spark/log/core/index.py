"""The index of a log's pages: the content of index ledgers, and how to find pages in them. No I/O.

An index ledger holds pages exactly as they were in their znodes, one per entry. After them comes one directory: message
``IndexDirectory``, at most 256 KiB, with one line for each page, in columns of varints:

==================== ==========================================================================
field                meaning
==================== ==========================================================================
first_page           number of the first line's page; the others follow
end_offset           offset after the last page
base_offset_deltas   a page's base offset minus that of the page before (0 at first)
rows, size_bytes     sums over the page's segments
first_time_deltas_ms commit time of the page's first segment, minus the page before's (0 at first)
run_ledger_deltas *  runs of pages in neighbouring entries of one ledger: the ledger's id, minus
                     that of the preceding run (0 at first)
run_first_entries *  entry of the run's first page
run_pages *          pages in the run
previous             the directory that leads to the pages before first_page
==================== ==========================================================================

Columns marked * do not describe the pages in the directory's own ledger. Those pages are entries 0 up to the entry
before the directory, and they are the last lines.

The head refers to the newest directory. A directory repeats the lines of the previous one while there are at most
MAX_LINES. Beyond that, a new directory starts afresh and points to the previous one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np

from bk_spark.log.core.steps import EntryRead, Failed, ReadEntry, Steps
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.page import SegmentPage, decode_page, int64_column
from bk_spark.log.formats.proto import index_formats_pb2 as pb
from bk_spark.log.formats.znodes import Head, IndexPosition, log_id_of, parse
from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.errors import LogReplacedError, MetadataFormatError

DIRECTORY_VERSION: Final = 1
#: Lines written into one directory. A reader accepts any number that fits into MAX_DIRECTORY_BYTES.
MAX_LINES: Final = 4096
MAX_DIRECTORY_BYTES: Final = 256 * 1024

# Unknown until the ledger is created, and not stored in the directory.
_OWN_LEDGER: Final = -1


class Line(NamedTuple):
    """The index line of a full page: sums over its segments, and the first segment's commit time."""

    base_offset: int
    rows: int
    size_bytes: int
    first_time_ms: int


@dataclass(frozen=True, slots=True, eq=False)
class PageIndex:
    """Where pages ``[first_page, end_page)`` are, in int64 columns with one value per page.

    ``first_time_ms`` is the commit time of the page's first segment. ``previous`` leads to the pages before
    ``first_page``. It is None if there are none to find.
    """

    first_page: int
    end_offset: int
    previous: IndexPosition | None
    base_offset: Int64s
    rows: Int64s
    size_bytes: Int64s
    first_time_ms: Int64s
    ledger_id: Int64s
    entry_id: Int64s

    @classmethod
    def of(cls, first_page: int, end_offset: int, lines: list[Line]) -> PageIndex:
        """Make an index of full pages that are entries 0, 1, … of the ledger that will also hold the directory."""
        base_offset, rows, size_bytes, first_time_ms = np.array(lines, np.int64).reshape(-1, len(Line._fields)).T
        ledger_id, entry_id = np.full(len(lines), _OWN_LEDGER, np.int64), np.arange(len(lines))
        return cls(first_page, end_offset, None, base_offset, rows, size_bytes, first_time_ms, ledger_id, entry_id)

    def __len__(self) -> int:
        return len(self.base_offset)

    @property
    def end_page(self) -> int:
        """The page after the last one."""
        return self.first_page + len(self)

    @property
    def columns(self) -> tuple[Int64s, ...]:
        """The columns in the order of the fields after ``previous``."""
        return self.base_offset, self.rows, self.size_bytes, self.first_time_ms, self.ledger_id, self.entry_id

    def place(self, page: int) -> tuple[int, int]:
        """Return the ledger and entry of ``page``, which must be in this index."""
        line = page - self.first_page
        assert 0 <= line < len(self), f"page {page} is not in [{self.first_page}, {self.end_page})"
        return int(self.ledger_id[line]), int(self.entry_id[line])

    def since(self, first_page: int) -> PageIndex:
        """Drop the lines of pages before ``first_page``. Also drop ``previous`` unless it is still needed."""
        cut = max(0, min(first_page - self.first_page, len(self)))
        previous = None if first_page >= self.first_page else self.previous
        return PageIndex(self.first_page + cut, self.end_offset, previous, *(column[cut:] for column in self.columns))

    def then(self, later: PageIndex) -> PageIndex:
        """Return these lines followed by those of ``later``, which starts where these end."""
        assert (later.first_page, int(later.base_offset[0])) == (self.end_page, self.end_offset), "not neighbours"
        columns = (np.concatenate(pair) for pair in zip(self.columns, later.columns, strict=True))
        return PageIndex(self.first_page, later.end_offset, self.previous, *columns)


@dataclass(frozen=True, slots=True)
class IndexWalk:
    """Everything that leads to the indexed pages of a head.

    ``pages`` starts at the head's ``first_page`` and is empty if no such page is indexed. ``directories`` are those
    read for it, newest first.
    """

    pages: PageIndex
    directories: tuple[IndexPosition, ...]

    @property
    def ledgers(self) -> frozenset[int]:
        """Index ledgers that readers of the head still need."""
        return frozenset(self.pages.ledger_id.tolist()) | {position.ledger_id for position in self.directories}


def line_of(page: SegmentPage) -> Line:
    """Sum up a full page, which must have a segment."""
    table = page.table
    return Line(page.base_offset, int(table.rows.sum()), int(table.size_bytes.sum()), int(table.commit_time_ms[0]))


def encode_directory(log_id: str, index: PageIndex) -> bytes:
    """Encode the directory entry. There must be at least one line."""
    carried = int((index.ledger_id != _OWN_LEDGER).sum())
    ledger, entry = index.ledger_id[:carried], index.entry_id[:carried]
    starts = np.flatnonzero((np.diff(ledger, prepend=-1) != 0) | (np.diff(entry, prepend=-2) != 1))
    message = pb.IndexDirectory(
        format_version=DIRECTORY_VERSION,
        log_id=UUID(log_id).bytes,
        first_page=index.first_page,
        end_offset=index.end_offset,
        base_offset_deltas=np.diff(index.base_offset, prepend=0).tolist(),
        rows=index.rows.tolist(),
        size_bytes=index.size_bytes.tolist(),
        first_time_deltas_ms=np.diff(index.first_time_ms, prepend=0).tolist(),
        run_ledger_deltas=np.diff(ledger[starts], prepend=0).tolist(),
        run_first_entries=entry[starts].tolist(),
        run_pages=np.diff(starts, append=carried).tolist(),
    )
    if index.previous is not None:
        message.previous.ledger_id = index.previous.ledger_id
        message.previous.entry_id = index.previous.entry_id
        message.previous.end_page = index.previous.end_page
        message.previous.end_offset = index.previous.end_offset
    return message.SerializeToString()


def decode_directory(data: bytes, paths: LogPaths, position: IndexPosition) -> PageIndex:
    """Decode the directory found at ``position``. Raises MetadataFormatError, and LogReplacedError for a directory of
    another log."""
    where = entry_name(paths, position.ledger_id, position.entry_id)
    message = parse(pb.IndexDirectory(), data, where, "directory of an index", DIRECTORY_VERSION, MAX_DIRECTORY_BYTES)
    if log_id_of(message.log_id, where) != paths.log_id:
        raise LogReplacedError(f"{where} holds the directory of another log's index")
    previous = None
    if message.HasField("previous"):
        before = message.previous
        previous = IndexPosition(before.ledger_id, before.entry_id, before.end_page, before.end_offset)
    try:
        runs = int64_column(message.run_pages)
        base_offset = np.cumsum(int64_column(message.base_offset_deltas))
        carried = len(base_offset) - position.entry_id
        _require(carried >= 0 and runs.min(initial=1) > 0 and runs.max(initial=0) <= carried, "runs of pages")
        _require(runs.sum() == carried, "runs of pages")
        run_ledgers = np.cumsum(int64_column(message.run_ledger_deltas))
        run_starts = np.cumsum(runs) - runs
        run_first = int64_column(message.run_first_entries)
        _require(len(run_ledgers) == len(run_first) == len(runs), "runs of pages")
        index = PageIndex(
            message.first_page,
            message.end_offset,
            previous,
            base_offset,
            int64_column(message.rows),
            int64_column(message.size_bytes),
            np.cumsum(int64_column(message.first_time_deltas_ms)),
            np.append(np.repeat(run_ledgers, runs), np.full(position.entry_id, position.ledger_id)),
            np.append(np.repeat(run_first - run_starts, runs) + np.arange(carried), np.arange(position.entry_id)),
        )
        _check(index, position)
    except (_BadDirectoryError, OverflowError) as error:
        raise MetadataFormatError(f"directory of an index {where} is damaged: {error}") from error
    return index


def decode_indexed_page(data: bytes, paths: LogPaths, index: PageIndex, number: int) -> SegmentPage:
    """Decode page ``number``, read from its indexed entry. Raises MetadataFormatError, LogReplacedError."""
    ledger_id, entry_id = index.place(number)
    where = entry_name(paths, ledger_id, entry_id)
    page = decode_page(data, where, log_id=paths.log_id, number=number)
    line = number - index.first_page
    end_offset = index.end_offset if number + 1 == index.end_page else int(index.base_offset[line + 1])
    if (page.base_offset, page.end_offset) != (int(index.base_offset[line]), end_offset):
        raise MetadataFormatError(
            f"page of segments {where} holds offsets [{page.base_offset}, {page.end_offset}), its directory says "
            f"[{index.base_offset[line]}, {end_offset})"
        )
    return page


def entry_name(paths: LogPaths, ledger_id: int, entry_id: int) -> str:
    """Name an entry's location for error texts."""
    return f"entry {entry_id} of index ledger {ledger_id} of log {paths.name}"


def directory_steps(paths: LogPaths, position: IndexPosition) -> Steps[PageIndex]:
    """Read one directory. Raises the ledger client's error, and the errors of :func:`decode_directory`."""
    event = yield ReadEntry(position.ledger_id, position.entry_id)
    if isinstance(event, Failed):
        raise event.error
    assert isinstance(event, EntryRead), event
    return decode_directory(event.payload, paths, position)


def walk_steps(paths: LogPaths, head: Head) -> Steps[IndexWalk]:
    """Read the directories needed to find the pages of ``head``.

    Raises the ledger client's error if a directory cannot be read, MetadataFormatError, LogReplacedError. It is
    NoSuchLedgerError if ``head`` is old, and what it refers to was truncated, moved and reaped since.
    """
    none = np.empty(0, np.int64)
    position = head.index
    if position is None or position.end_page <= head.first_page:
        end = (head.first_page, head.first_offset) if position is None else (position.end_page, position.end_offset)
        return IndexWalk(PageIndex(*end, None, none, none, none, none, none, none), ())
    pages: PageIndex | None = None
    directories = []
    while position is not None:
        directory = yield from directory_steps(paths, position)
        directories.append(position)
        pages = directory if pages is None else directory.then(pages)
        position = directory.previous if directory.first_page > head.first_page else None
    assert pages is not None
    if pages.first_page > head.first_page:
        where = entry_name(paths, directories[-1].ledger_id, directories[-1].entry_id)
        raise MetadataFormatError(
            f"directory of an index {where} begins at page {pages.first_page}, but log {paths.name} at page "
            f"{head.first_page}: the pages between them are lost"
        )
    return IndexWalk(pages.since(head.first_page), tuple(directories))


class _BadDirectoryError(Exception):
    pass


def _check(index: PageIndex, position: IndexPosition) -> None:
    count = len(index)
    _require(count > 0 and all(len(column) == count for column in index.columns), "columns of different lengths")
    _require(all(column.min() >= 0 for column in index.columns), "a negative value")
    _require(index.end_page == position.end_page and index.end_offset == position.end_offset, "its end")
    _require((np.diff(index.base_offset) > 0).all() and index.base_offset[-1] < index.end_offset, "offsets")
    _require((np.diff(index.first_time_ms) >= 0).all(), "commit times")
    before = index.previous
    if before is not None:
        _require((before.end_page, before.end_offset) == (index.first_page, int(index.base_offset[0])), "its start")


def _require(condition: object, what: str) -> None:
    if not condition:
        raise _BadDirectoryError(what)
