"""Appends segments to the list: operations on the head and its pages. No I/O.

The tail page is filled first. Pages after it are new znodes. A few fit into the transaction itself. If there are many,
they are written before it, by transactions that check the head. The change of the head then publishes them.

A page beyond the head's tail page is unused: a failed appender left it. It is overwritten at the version that was read.
Never delete it without writing the head in the same transaction: a page that is deleted and created again would have
the version that another appender still expects for its own page.

The tail page may end with an open tail, the ledger of a log writer. The open tail is sealed first, at the end of its
ledger, which nobody can write to any more. Its entry in the page is replaced, or dropped if the ledger is empty. The
page is written in any case. If the sealed segment does not fit (an open one takes fewer bytes), it goes into the next
page.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from bk_spark.log.core.parts import in_parts
from bk_spark.log.core.plan import Readings, StaleError, write_over
from bk_spark.log.core.steps import Closed
from bk_spark.log.formats.commits import CommitKind, CommitRecord, CommitTable
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.page import SegmentPage, decode_page, encode_page, fill_pages
from bk_spark.log.formats.segment import MAX_SEGMENT_BYTES, MAX_SEGMENT_ENTRIES, Segment, SegmentTable
from bk_spark.log.formats.znodes import Head, decode_head, encode_head
from bk_spark.protocol.errors import InvalidArgumentError, LogReplacedError, MetadataFormatError, NoSuchLogError
from bk_spark.protocol.metadata.znodes import CheckOp, CreateOp, SetOp, TransactionOp, Znode

#: New pages in the appending transaction. A request to ZooKeeper must stay below 1 MiB.
MAX_INLINE_PAGES: Final = 8
_PAGES_IN_PREPARATION: Final = 16


@dataclass(frozen=True, slots=True)
class ReadHead:
    """The head and its znode's version."""

    head: Head
    version: int

    def write(self, paths: LogPaths, head: Head) -> SetOp:
        """Return the operation that replaces this head with ``head``."""
        return SetOp(paths.head, encode_head(head), self.version)


@dataclass(frozen=True, slots=True)
class ReadTail:
    """The tail page, its open segment (kept apart), and its znode's version."""

    page: SegmentPage
    version: int
    open: Segment | None


@dataclass(frozen=True, slots=True)
class Append:
    """Transactions to send first, operations of the appending transaction, and the resulting head.

    The operations of :func:`plan_pages` do not write the head yet.
    """

    preparations: tuple[tuple[TransactionOp, ...], ...]
    operations: tuple[TransactionOp, ...]
    head: Head
    pages: tuple[SegmentPage, ...] = ()

    def page_from(self, offset: int) -> int:
        """Return the first changed page with anything at or after ``offset``, or the tail page."""
        return next((page.number for page in self.pages if page.end_offset > offset), self.head.tail_page)


def read_head(readings: Readings, paths: LogPaths) -> ReadHead:
    """Read the head. Raises NoSuchLogError, LogReplacedError, MetadataFormatError."""
    return head_of(readings.get(paths.head), paths)


def head_of(znode: Znode | None, paths: LogPaths) -> ReadHead:
    """Decode the head as read. Raises NoSuchLogError if there is none or the log is being deleted, LogReplacedError,
    MetadataFormatError."""
    if znode is None:
        raise NoSuchLogError(f"log {paths.name} no longer exists (znode {paths.head}): it was deleted")
    head = decode_head(znode.data, paths.head)
    if head.log_id != paths.log_id:
        raise LogReplacedError(
            f"log {paths.name} was deleted and created again: its id is {head.log_id}, expected {paths.log_id}"
        )
    if head.deleted_time_ms:
        raise NoSuchLogError(f"log {paths.name} was deleted (its znodes and ledgers are going): use another name")
    return ReadHead(head, znode.version)


def read_tail(readings: Readings, paths: LogPaths, head: Head) -> ReadTail:
    """Read the tail page. Raises MetadataFormatError."""
    path = paths.page(head.tail_page)
    znode = readings.get(path)
    if znode is None:
        raise StaleError(f"page {path} is missing")
    page = decode_page(znode.data, path, log_id=head.log_id, number=head.tail_page)
    if page.end_offset != head.next_offset:
        raise StaleError(f"page {path} ends at offset {page.end_offset}, its head at {head.next_offset}")
    if len(page.table) and page.table.commit_time_ms[-1] > head.last_commit_time_ms:
        # Opening a tail changes no offset, but it writes the head with the opening time.
        raise StaleError(f"page {path} was committed to after its head was read")
    if page.commits is not None and page.commits.last_first_offset != head.first_offset:
        # A truncation changes no segment.
        raise StaleError(f"page {path} and its head were read before and after an overwrite or a truncation")
    if not page.open_tail:
        return ReadTail(page, znode.version, None)
    (open_tail,) = page.table[-1:]
    return ReadTail(replace(page, table=page.table[:-1]), znode.version, open_tail)


def sealed(tail: Segment, closed: Closed) -> tuple[Segment, ...]:
    """Return the open ``tail`` as a sealed segment, now that its ledger is ``closed``. Nothing if it has no entries.

    Each entry of a log writer's ledger holds one row. The time remains the time of opening.
    """
    assert tail.ledger_id == closed.ledger_id
    entries = closed.last_entry - tail.first_entry + 1
    if entries <= 0:
        return ()
    if entries >= MAX_SEGMENT_ENTRIES or closed.size_bytes >= MAX_SEGMENT_BYTES:
        raise MetadataFormatError(
            f"ledger {tail.ledger_id} at the log's tail has {entries} entries with {closed.size_bytes} bytes, more "
            "than a segment can hold"
        )
    return (replace(tail, last_entry=closed.last_entry, rows=entries, size_bytes=closed.size_bytes),)


def plan_append(
    readings: Readings,
    paths: LogPaths,
    read: ReadHead,
    added: SegmentTable,
    time_ms: int,
    tail: ReadTail,
    *,
    record: CommitRecord | None = None,
    overwrite: bool = False,
) -> Append:
    """Append ``added``, whose first segment starts at the head's ``next_offset``. It may be empty.

    ``record`` says who appends, and how many segments. It is None if only an open ``tail`` is sealed or opened.
    With ``overwrite``, the log then begins at ``added``, and the reaper removes the old pages once nobody may read the
    earlier state. An open ``tail`` must be sealed: the first segment of ``added`` is then the result of :func:`sealed`.
    An overwritten log does not begin with that segment.
    """
    head = read.head
    first_offset = head.next_offset + _sealed_entries(tail, added)
    if overwrite and record is not None:
        record = replace(record, first_offset=first_offset)
    append = plan_pages(readings, paths, read, added, time_ms, tail, () if record is None else (record,))
    first_page = head.first_page
    if overwrite and head.kept_offset is None:
        first_page = append.page_from(first_offset)
    new_head = replace(
        append.head,
        first_offset=first_offset if overwrite else head.first_offset,
        first_page=first_page,
        last_commit_time_ms=time_ms,
    )
    return Append(append.preparations, (*append.operations, read.write(paths, new_head)), new_head)


def plan_pages(
    readings: Readings,
    paths: LogPaths,
    read: ReadHead,
    added: SegmentTable,
    time_ms: int,
    tail: ReadTail,
    records: tuple[CommitRecord, ...],
) -> Append:
    """Plan the pages of :func:`plan_append`. The caller writes the resulting head, which says only where the list ends.

    An open ``tail`` that is not sealed must be the last segment of ``added``. Raises InvalidArgumentError if the log
    records its commits, and ``records`` are not of all sealed segments.
    """
    head, page = read.head, tail.page
    if head.kept_offset is None:
        records = ()
    else:
        if page.commits is None:
            page = replace(page, commits=CommitTable.begin(head.first_offset, len(page.table)))
        if _sealed_entries(tail, added):
            records = (CommitRecord(CommitKind.WRITER, 1, time_ms), *records)
        _check_records(paths.name, added, records)
    pages = fill_pages(page, added, records)
    new_pages = {paths.page(page.number): data for page, data in pages if page.number != tail.page.number}
    tail_path = paths.page(tail.page.number)
    operations: list[TransactionOp]
    if len(new_pages) < len(pages):
        operations = [SetOp(tail_path, pages[0][1], tail.version)]
    elif tail.open is not None:
        operations = [SetOp(tail_path, encode_page(tail.page), tail.version)]
    else:
        operations = [CheckOp(tail_path, tail.version)]

    preparations: tuple[tuple[TransactionOp, ...], ...] = ()
    # Failed appenders may have left znodes at these paths.
    readings.require(*new_pages)
    writes = [write_over(path, data, readings.get(path)) for path, data in new_pages.items()]
    if len(writes) <= MAX_INLINE_PAGES:
        operations += writes
    else:
        preparations = _prepare(paths, read.version, writes)
        operations += [CheckOp(op.path, op.version + 1 if isinstance(op, SetOp) else 0) for op in writes]

    last_page = pages[-1][0] if pages else tail.page
    new_head = replace(head, next_offset=last_page.end_offset, tail_page=last_page.number)
    return Append(preparations, tuple(operations), new_head, tuple(page for page, _ in pages))


def _check_records(log: str, added: SegmentTable, records: tuple[CommitRecord, ...]) -> None:
    """Raise InvalidArgumentError unless ``records`` are of all sealed segments: readers would call the page damaged."""
    sealed_segments, recorded = int(np.count_nonzero(added.entries)), sum(one.segments for one in records)
    if recorded != sealed_segments:
        raise InvalidArgumentError(
            f"log {log} records its commits: {sealed_segments} segments are appended with records of {recorded}; plan "
            "them with the record of their commit"
        )


def _sealed_entries(tail: ReadTail, added: SegmentTable) -> int:
    """Return the entries of the open ``tail`` if ``added`` begins with it, sealed."""
    if tail.open is None or not len(added) or added.ledger_id[0] != tail.open.ledger_id:
        return 0
    return int(added.entries[0])


def _prepare(
    paths: LogPaths, head_version: int, writes: list[CreateOp | SetOp]
) -> tuple[tuple[TransactionOp, ...], ...]:
    # The head's version proves that these pages are still beyond the tail. Otherwise another appender may have
    # published its own pages under the same numbers.
    guards = (CheckOp(paths.identity, -1), CheckOp(paths.head, head_version))
    return tuple((*guards, *part) for part in in_parts(writes, _PAGES_IN_PREPARATION))
