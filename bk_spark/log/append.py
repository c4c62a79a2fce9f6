"""How segments are appended to the list: operations on the head and its pages. No I/O.

The tail page is filled first. Pages after it are new znodes: a few go into the transaction itself; many are
written before it, by transactions that check the head, and are published by the head's change.

A page beyond the head's tail page belongs to nobody: an appender that failed left it. It is overwritten at
the version that was read. It must never be deleted without writing the head in the same transaction: a page
deleted and made again would have the version that an appender still holds for its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from bk_spark.bookie.zookeeper import CheckOp, CreateOp, SetOp, TransactionOp, Znode
from bk_spark.log.formats import Head, decode_head, encode_head
from bk_spark.log.names import LogPaths
from bk_spark.log.page import SegmentPage, decode_page, fill_pages
from bk_spark.log.plan import Readings, StaleError
from bk_spark.log.segment import SegmentTable
from bk_spark.protocol.errors import LogReplacedError, LogTailOpenError, NoSuchLogError

#: New pages in the transaction that appends; a request to ZooKeeper must stay below 1 MiB.
MAX_INLINE_PAGES: Final = 8
_PAGES_IN_PREPARATION: Final = 16


@dataclass(frozen=True, slots=True)
class ReadHead:
    """The head and its znode's version."""

    head: Head
    version: int


@dataclass(frozen=True, slots=True)
class Append:
    """Transactions to send before, operations of the transaction that appends, and the head it leaves."""

    preparations: tuple[tuple[TransactionOp, ...], ...]
    operations: tuple[TransactionOp, ...]
    head: Head


def read_head(readings: Readings, paths: LogPaths) -> ReadHead:
    """Raises NoSuchLogError, LogReplacedError, MetadataFormatError."""
    return head_of(readings.get(paths.head), paths)


def head_of(znode: Znode | None, paths: LogPaths) -> ReadHead:
    if znode is None:
        raise NoSuchLogError(f"there is no log {paths.name} any more (znode {paths.head}): it was deleted")
    head = decode_head(znode.data, paths.head)
    if head.log_id != paths.log_id:
        raise LogReplacedError(
            f"log {paths.name} was deleted and made again: its id is {head.log_id}, expected {paths.log_id}"
        )
    if head.deleted_time_ms:
        raise NoSuchLogError(f"log {paths.name} was deleted (its znodes and ledgers are going): use another name")
    return ReadHead(head, znode.version)


def plan_append(
    readings: Readings, paths: LogPaths, read: ReadHead, added: SegmentTable, time_ms: int, *, overwrite: bool
) -> Append:
    """Append ``added``, whose first segment is at the head's ``next_offset``; it may be empty.

    With ``overwrite`` the log then begins at ``added``, and old pages wait for the reaper. Raises
    LogTailOpenError.
    """
    head = read.head
    if not len(added) and not overwrite:
        return Append((), (CheckOp(paths.head, read.version),), head)

    tail, tail_version = _read_tail(readings, paths, head)
    pages = fill_pages(tail, added)
    new_pages = [(page.number, data) for page, data in pages if page.number != tail.number]
    tail_path = paths.page(tail.number)
    if pages and pages[0][0].number == tail.number:
        operations: list[TransactionOp] = [SetOp(tail_path, pages[0][1], tail_version)]
    else:
        operations = [CheckOp(tail_path, tail_version)]

    preparations: tuple[tuple[TransactionOp, ...], ...] = ()
    writes = _page_writes(readings, paths, new_pages)
    if len(writes) <= MAX_INLINE_PAGES:
        operations += writes
    else:
        preparations = _prepare(paths, read.version, writes)
        operations += [CheckOp(op.path, op.version + 1 if isinstance(op, SetOp) else 0) for op in writes]

    first_page = head.first_page
    if overwrite:
        first_page = pages[0][0].number if pages else tail.number
    new_head = replace(
        head,
        first_offset=head.next_offset if overwrite else head.first_offset,
        next_offset=added.end_offset if len(added) else head.next_offset,
        first_page=first_page,
        tail_page=pages[-1][0].number if pages else tail.number,
        last_commit_time_ms=time_ms,
    )
    operations.append(SetOp(paths.head, encode_head(new_head), read.version))
    return Append(preparations, tuple(operations), new_head)


def _read_tail(readings: Readings, paths: LogPaths, head: Head) -> tuple[SegmentPage, int]:
    path = paths.page(head.tail_page)
    znode = readings.get(path)
    if znode is None:
        raise StaleError(f"page {path} is missing")
    tail = decode_page(znode.data, path, log_id=head.log_id, number=head.tail_page)
    if tail.end_offset != head.next_offset:
        raise StaleError(f"page {path} ends at offset {tail.end_offset}, its head at {head.next_offset}")
    if tail.open_tail:
        raise LogTailOpenError(
            f"log {paths.name}: a log writer holds the tail open (ledger {tail.table.ledger_id[-1]}); "
            "close that writer, then commit again"
        )
    return tail, znode.version


def _page_writes(readings: Readings, paths: LogPaths, pages: list[tuple[int, bytes]]) -> list[CreateOp | SetOp]:
    """Operations that write new pages, over what failed appenders may have left in their places."""
    readings.require(*(paths.page(number) for number, _ in pages))
    writes: list[CreateOp | SetOp] = []
    for number, data in pages:
        path = paths.page(number)
        left_over = readings.get(path)
        writes.append(CreateOp(path, data) if left_over is None else SetOp(path, data, left_over.version))
    return writes


def _prepare(
    paths: LogPaths, head_version: int, writes: list[CreateOp | SetOp]
) -> tuple[tuple[TransactionOp, ...], ...]:
    # The head's version shows that the pages are still beyond the tail: another appender may have published
    # its own under the same numbers in the meantime.
    guards = (CheckOp(paths.identity, -1), CheckOp(paths.head, head_version))
    return tuple(
        (*guards, *writes[start : start + _PAGES_IN_PREPARATION])
        for start in range(0, len(writes), _PAGES_IN_PREPARATION)
    )
