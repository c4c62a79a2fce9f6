"""Which ledgers a log's segment list refers to, and how to know it at the moment of a transaction.

:func:`view_steps` reads the whole list once. A change that is decided later reads only what was appended since
(:func:`listed_now`), and its transaction checks the version of the head. Every change of the list writes the head, so
at that moment every segment of the list has been checked. Ledgers that left the list in the meantime may still count as
referenced. That errs on the safe side.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from bk_spark.log.core.append import ReadHead, read_head
from bk_spark.log.core.index import decode_indexed_page, walk_steps
from bk_spark.log.core.parts import in_parts
from bk_spark.log.core.plan import Readings, StaleError
from bk_spark.log.core.reading import head_steps, read_steps
from bk_spark.log.core.steps import EntryRead, Failed, ReadEntry, Steps
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.page import decode_page
from bk_spark.log.formats.segment import SegmentTable
from bk_spark.log.formats.znodes import Head
from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.errors import MetadataConflictError, MetadataFormatError, NoSuchLedgerError

_PAGES_AT_ONCE: Final = 16
#: Collected tables are merged at this many rows.
_MERGE_ROWS: Final = 1 << 16
#: Pages that a change reads again. A list that grew by more is handled in the next round.
_MAX_NEW_PAGES: Final = 64
_MAX_SCANS: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class References:
    """Ledgers in ascending order, and the last listed entry of each."""

    ledger_ids: Int64s
    last_entries: Int64s

    @classmethod
    def none(cls) -> References:
        """Return references to no ledger."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def of(cls, table: SegmentTable, list_offset: int = 0) -> References:
        """Collect the ledgers of an open tail and of the segments that end after ``list_offset``."""
        kept = (table.base_offset + table.entries > list_offset) | (table.entries == 0)
        return cls._merged(table.ledger_id[kept], (table.first_entry + table.entries - 1)[kept])

    def union(self, *others: References) -> References:
        """Return the ledgers of all, each with the highest of its last entries."""
        every = (self, *others)
        return self._merged(
            np.concatenate([part.ledger_ids for part in every]), np.concatenate([part.last_entries for part in every])
        )

    def with_ledgers(self, ledger_ids: Iterable[int]) -> References:
        """Add ledgers that are needed for other reasons than their entries in the list."""
        added = np.fromiter(ledger_ids, np.int64)
        return self.union(References(added, np.full(len(added), -1, np.int64)))

    def __len__(self) -> int:
        return len(self.ledger_ids)

    def __contains__(self, ledger_id: int) -> bool:
        return self.last_entry(ledger_id) is not None

    def last_entry(self, ledger_id: int) -> int | None:
        """Return the last listed entry, or None if the ledger is unreferenced."""
        position = int(np.searchsorted(self.ledger_ids, ledger_id))
        if position == len(self.ledger_ids) or self.ledger_ids[position] != ledger_id:
            return None
        return int(self.last_entries[position])

    def others(self, ledger_ids: Int64s) -> Int64s:
        """Return those of ``ledger_ids`` that are unreferenced."""
        return ledger_ids[~np.isin(ledger_ids, self.ledger_ids)]

    @classmethod
    def _merged(cls, ledger_ids: Int64s, last_entries: Int64s) -> References:
        unique, inverse = np.unique(ledger_ids, return_inverse=True)
        last = np.full(len(unique), -1, np.int64)
        np.maximum.at(last, inverse, last_entries)
        return cls(unique, last)


@dataclass(frozen=True, slots=True, eq=False)
class ListView:
    """The list at ``head``, and that znode's version. ``references`` includes index ledgers that readers need."""

    head: Head
    version: int
    references: References


def view_steps(paths: LogPaths, list_offset: int | None = None) -> Steps[ListView]:
    """Read the whole list, a few pages at a time. ``list_offset``: as if it began there already, for a dry run.

    Raises NoSuchLogError, LogReplacedError, MetadataFormatError (a page is missing or damaged),
    MetadataUnavailableError, and the ledger client's errors if an index ledger cannot be read.
    """
    for _ in range(_MAX_SCANS):
        read = yield from head_steps(paths)
        references = yield from _scan(paths, read.head, read.head.list_offset if list_offset is None else list_offset)
        if references is not None:
            return ListView(read.head, read.version, references)
    raise MetadataConflictError(f"log {paths.name}: its list was moved {_MAX_SCANS} times while it was read")


def listed_now(readings: Readings, paths: LogPaths, view: ListView) -> tuple[ReadHead, References]:
    """For a decision: return the head and all ledgers that its list refers to. The transaction must check that head's
    version.

    Raises MetadataConflictError if the list has changed too much since ``view``.
    """
    read = read_head(readings, paths)
    head = read.head
    if read.version == view.version:
        return read, view.references
    numbers = range(max(view.head.tail_page, head.first_page), head.tail_page + 1)
    if len(numbers) > _MAX_NEW_PAGES or (head.index is not None and head.index.end_page > view.head.tail_page):
        raise MetadataConflictError(f"log {paths.name}: its list grew too much in the meantime")
    readings.require(*map(paths.page, numbers))
    added = []
    for number in numbers:
        znode = readings.get(paths.page(number))
        if znode is None:
            raise StaleError(f"page {paths.page(number)} is missing")
        page = decode_page(znode.data, paths.page(number), log_id=paths.log_id, number=number)
        added.append(References.of(page.table, head.list_offset))
    return read, view.references.union(*added)


def _scan(paths: LogPaths, head: Head, list_offset: int) -> Steps[References | None]:
    """Collect the references. None if the list changed so that pages of ``head`` are gone."""
    collected = [References.none()]
    try:
        walk = yield from walk_steps(paths, head)
        for number in range(walk.pages.first_page, walk.pages.end_page):
            event = yield ReadEntry(*walk.pages.place(number))
            if isinstance(event, Failed):
                raise event.error
            assert isinstance(event, EntryRead), event
            page = decode_indexed_page(event.payload, paths, walk.pages, number)
            collected = _collect(collected, References.of(page.table, list_offset))
    except NoSuchLedgerError as error:
        yield from _check_list_changed(paths, head, error)
        return None

    for numbers in in_parts(range(head.first_znode_page, head.tail_page + 1), _PAGES_AT_ONCE):
        znodes = yield from read_steps(paths, tuple(map(paths.page, numbers)))
        for number in numbers:
            path = paths.page(number)
            znode = znodes[path]
            if znode is None:
                missing = MetadataFormatError(f"page of segments {path} is missing")
                yield from _check_list_changed(paths, head, missing)
                return None
            page = decode_page(znode.data, path, log_id=paths.log_id, number=number)
            collected = _collect(collected, References.of(page.table, list_offset))
    return collected[0].union(*collected[1:]).with_ledgers(walk.ledgers)


def _collect(collected: list[References], part: References) -> list[References]:
    collected.append(part)
    if sum(map(len, collected[1:])) > _MERGE_ROWS:
        return [collected[0].union(*collected[1:])]
    return collected


def _check_list_changed(paths: LogPaths, head: Head, error: Exception) -> Steps[None]:
    """Raise ``error`` if the head is unchanged: then no concurrent change explains it."""
    if (yield from head_steps(paths)).head == head:
        raise error
