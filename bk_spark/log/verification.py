"""Checks a log: compares its list with ledger metadata, registrations and the entries on bookies.

Nothing is changed. Entries are read as any reader reads them, and their digests are checked. So a log without a problem
can be read now, from its first to its last entry.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from bk_spark.bookie.blocking import BlockingReader
from bk_spark.log.core.parts import in_parts
from bk_spark.log.formats.names import ledger_id_of, ledger_ids_of
from bk_spark.log.formats.segment import MAX_SEGMENT_ENTRIES, Segment, SegmentTable
from bk_spark.log.formats.settings import decode_settings
from bk_spark.log.formats.znodes import decode_registration
from bk_spark.log.io.snapshot import LogSnapshot
from bk_spark.log.log import Log
from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import (
    EntryUnknownError,
    MetadataFormatError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from bk_spark.protocol.metadata import ledger_metadata
from bk_spark.protocol.metadata.ledger_metadata import LedgerState

#: Receives what is being checked (``ledgers``, then ``entries``), how many were checked so far, and the total.
OnProgress: TypeAlias = Callable[[str, int, int], None]

#: After this many consecutive unreadable entries, the rest of a segment is skipped. Each one takes some seconds.
MAX_UNREADABLE_IN_A_ROW: Final = 4
#: The ledger of a problem that is not about a ledger.
NO_LEDGER: Final = -1
_LEDGERS_AT_ONCE: Final = 256
_MAX_READERS: Final = 32


class Kind(enum.Enum):
    """What is wrong. The values are printed by ``bkctl log verify``."""

    LEDGER_MISSING = "ledger-missing"
    """The ledger's metadata is gone: its entries are lost."""
    BEYOND_END = "beyond-end"
    """The segment reaches beyond the last entry of a closed ledger."""
    LISTED_TWICE = "listed-twice"
    """Entries are in the list more than once."""
    SCHEMA_MISSING = "schema-missing"
    """The segment names a version of the schema that the log's settings do not have: they are older than the list."""
    NOT_REGISTERED = "not-registered"
    """No registration assigns the ledger to the log. Deleting the log would leave the ledger behind."""
    CONDEMNED = "condemned"
    """The ledger is marked for deletion, but the list refers to it."""
    METADATA_UNREADABLE = "metadata-unreadable"
    """The ledger's metadata or its registration cannot be decoded."""
    ENTRY_MISSING = "entry-missing"
    """Every bookie that should have the entry reports that it does not."""
    ENTRY_UNREADABLE = "entry-unreadable"
    """No bookie returned the entry, and not all of them could say whether they have it."""
    NOT_READ = "not-read"
    """Skipped because preceding entries could not be read."""
    FOREIGN_ZNODE = "foreign-znode"
    """A znode among the log's ledgers that is no ledger's: somebody else made it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem with the entries at offsets ``[start, end)``, which are in ``ledger_id``. A problem that is not
    about a ledger has no entries, and :data:`NO_LEDGER`."""

    kind: Kind
    start: int
    end: int
    ledger_id: int
    detail: str


@dataclass(slots=True)
class Counts:
    """How much was checked: segments, ledgers and entries in the list, and entries read from bookies so far."""

    segments: int = 0
    ledgers: int = 0
    entries: int = 0
    entries_read: int = 0


class Verification:
    """One check of ``log``, which must have been opened with its password. :meth:`problems` can be iterated once.
    ``counts`` says how much was checked so far."""

    def __init__(self, log: Log, *, read_entries: bool = True, on_progress: OnProgress | None = None) -> None:
        self.counts = Counts()
        self._on_progress = on_progress or (lambda what, done, total: None)
        self._log = log
        self._zk = log.ledgers.client.zookeeper
        self._read_entries = read_entries
        #: Last entry of each existing ledger. Effectively unlimited for a ledger that is not closed.
        self._ends: dict[int, int] = {}
        self._given_up: set[int] = set()
        self._readers: OrderedDict[int, BlockingReader] = OrderedDict()

    def problems(self) -> Iterator[Problem]:
        """Yield the problems. Raises the errors of reading the list, and MetadataFormatError if the list is damaged."""
        snapshot = self._log.snapshot()
        first_offset = snapshot.first_offset
        for problem in self._problems(snapshot):
            if problem.end > first_offset or problem.start == problem.end:
                # Data truncated in the meantime may be gone.
                first_offset = self._log.snapshot().first_offset
            if problem.end > first_offset or problem.start == problem.end:
                yield problem

    def _problems(self, snapshot: LogSnapshot) -> Iterator[Problem]:
        tail = snapshot.open_tail
        listed = _Listed([*snapshot.tables(), SegmentTable.of([] if tail is None else [tail])])
        self.counts.segments = len(listed.table)
        self.counts.ledgers = len(listed.ledger_ids)
        self.counts.entries = snapshot.next_offset - snapshot.first_offset
        self._zk.sync(self._log.paths.head)
        yield from self._schema_problems(listed)
        yield from self._metadata_problems(listed)
        yield from self._registration_problems(listed)
        if self._read_entries:
            for segment in snapshot.segments():
                if segment.ledger_id in self._ends:
                    yield from self._entry_problems(segment, snapshot.first_offset)
                self._looked_at(segment.end_offset - snapshot.first_offset)

    def _schema_problems(self, listed: _Listed) -> Iterator[Problem]:
        """Read the settings after the list: versions are published with their first rows, or before."""
        path = self._log.paths.settings
        znode = self._zk.get(path)
        if znode is None:
            raise MetadataFormatError(f"the settings of the log, znode {path}, are missing")
        newest = decode_settings(znode.data, path)[1].schema_version
        for at in np.flatnonzero(listed.table.schema_version > newest).tolist():
            (segment,) = listed.table[at : at + 1]
            detail = f"version {segment.schema_version} of the schema, of which {path} has 0 to {newest}"
            yield Problem(Kind.SCHEMA_MISSING, segment.base_offset, segment.end_offset, segment.ledger_id, detail)

    def _metadata_problems(self, listed: _Listed) -> Iterator[Problem]:
        for number, part in enumerate(in_parts(listed.ledger_ids, _LEDGERS_AT_ONCE)):
            self._on_progress("ledgers", number * _LEDGERS_AT_ONCE, self.counts.ledgers)
            paths = {ledger_id: self._log.ledgers.ledger_path(ledger_id) for ledger_id in part}
            znodes = self._zk.get_many([*paths.values()])
            for ledger_id, path in paths.items():
                znode, segments = znodes[path], listed.segments(ledger_id)
                if znode is None:
                    yield from _each(Kind.LEDGER_MISSING, segments, "the ledger does not exist")
                    continue
                try:
                    metadata = ledger_metadata.decode(znode.data)
                except MetadataFormatError as error:
                    yield from _each(Kind.METADATA_UNREADABLE, segments, error.message)
                    continue
                closed = metadata.state is LedgerState.CLOSED
                self._ends[ledger_id] = metadata.last_entry_id if closed else MAX_SEGMENT_ENTRIES
                yield from _range_problems(segments, self._ends[ledger_id])

    def _registration_problems(self, listed: _Listed) -> Iterator[Problem]:
        paths, zk = self._log.paths, self._zk
        appended = zk.children(paths.appended) or ()
        yield from _foreign(paths.appended, appended)
        missing = set(listed.ledger_ids).difference(ledger_ids_of(appended))
        for app in zk.children(paths.ledgers) or ():
            for run in zk.children(paths.runs_at(app)) or ():
                run_path = paths.run_at(app, run)
                names = zk.children(run_path) or ()
                yield from _foreign(run_path, names)
                here = sorted(missing.intersection(ledger_ids_of(names)))
                for part in in_parts(here, _LEDGERS_AT_ONCE):
                    registrations = {ledger_id: f"{run_path}/{ledger_id}" for ledger_id in part}
                    znodes = zk.get_many([*registrations.values()])
                    for ledger_id, path in registrations.items():
                        znode = znodes[path]
                        if znode is not None:
                            missing.discard(ledger_id)
                            yield from _registration(znode.data, path, listed, ledger_id)
        for ledger_id in sorted(missing):
            detail = f"no znode below {paths.ledgers} or {paths.appended} names the ledger"
            yield from _each(Kind.NOT_REGISTERED, listed.segments(ledger_id), detail)

    def _looked_at(self, entries: int) -> None:
        self._on_progress("entries", entries, self.counts.entries)

    def _entry_problems(self, segment: Segment, first_offset: int) -> Iterator[Problem]:
        entry = segment.first_entry
        last = min(entry + segment.entries - 1, self._ends[segment.ledger_id])
        # In a ledger that failed before, one more failure is enough.
        in_a_row = MAX_UNREADABLE_IN_A_ROW - 1 if segment.ledger_id in self._given_up else 0
        while entry <= last:
            try:
                for block in self._reader(segment.ledger_id).read_blocks(entry, last, known_to_exist=True):
                    entry += len(block)
                    self.counts.entries_read += len(block)
                    self._looked_at(segment.base_offset + entry - segment.first_entry - first_offset)
                    in_a_row = 0
                    self._given_up.discard(segment.ledger_id)
                return
            except NoSuchLedgerError:
                yield _problem(Kind.LEDGER_MISSING, segment, entry, last, "the ledger was deleted just now")
                return
            except (EntryUnknownError, NoSuchEntryError) as error:
                kind = Kind.ENTRY_MISSING if error.code == Code.NO_ENTRY.name else Kind.ENTRY_UNREADABLE
                yield _problem(kind, segment, entry, entry, error.message)
            entry += 1
            in_a_row += 1
            if in_a_row >= MAX_UNREADABLE_IN_A_ROW:
                self._given_up.add(segment.ledger_id)
                if entry <= last:
                    detail = "the entries before could not be read"
                    yield _problem(Kind.NOT_READ, segment, entry, last, detail)
                return

    def _reader(self, ledger_id: int) -> BlockingReader:
        reader = self._readers.pop(ledger_id, None) or self._log.ledgers.reader(ledger_id)
        self._readers[ledger_id] = reader
        if len(self._readers) > _MAX_READERS:
            self._readers.popitem(last=False)
        return reader


class _Listed:
    """The list's segments for each ledger. In columns, because a list may have millions of segments."""

    def __init__(self, tables: list[SegmentTable]) -> None:
        table = SegmentTable.concat(tables)
        order = np.lexsort((table.first_entry, table.ledger_id))
        self.table = SegmentTable(*(column[order] for column in table.columns))
        self.ledger_ids: list[int] = np.unique(self.table.ledger_id).tolist()

    def segments(self, ledger_id: int) -> list[Segment]:
        """Return the ledger's segments, ordered by first entry."""
        start, end = np.searchsorted(self.table.ledger_id, [ledger_id, ledger_id + 1])
        return list(self.table[start:end])


def _range_problems(segments: list[Segment], last_entry: int) -> Iterator[Problem]:
    """Yield problems of the ``segments`` of one ledger, which are ordered by first entry."""
    for segment in segments:
        last = segment.first_entry + segment.entries - 1
        if last > last_entry:
            detail = f"the ledger is closed at entry {last_entry}"
            yield _problem(Kind.BEYOND_END, segment, max(segment.first_entry, last_entry + 1), last, detail)
    for before, segment in pairwise(segments):
        end = min(before.first_entry + before.entries, segment.first_entry + segment.entries) - 1
        if segment.first_entry <= end:
            detail = f"the same entries are at offset {before.base_offset + segment.first_entry - before.first_entry}"
            yield _problem(Kind.LISTED_TWICE, segment, segment.first_entry, end, detail)


def _foreign(path: str, names: Iterable[str]) -> Iterator[Problem]:
    for name in names:
        if ledger_id_of(name) is None:
            detail = f"znode {path}/{name} is not named by a ledger id: bk_spark did not make it"
            yield Problem(Kind.FOREIGN_ZNODE, 0, 0, NO_LEDGER, detail)


def _registration(data: bytes, path: str, listed: _Listed, ledger_id: int) -> Iterator[Problem]:
    try:
        condemned = decode_registration(data, path).condemned
    except MetadataFormatError as error:
        yield from _each(Kind.METADATA_UNREADABLE, listed.segments(ledger_id), error.message)
        return
    if condemned:
        yield from _each(Kind.CONDEMNED, listed.segments(ledger_id), f"according to znode {path}")


def _problem(kind: Kind, segment: Segment, first_entry: int, last_entry: int, detail: str) -> Problem:
    start = segment.base_offset + first_entry - segment.first_entry
    return Problem(kind, start, start + last_entry - first_entry + 1, segment.ledger_id, detail)


def _each(kind: Kind, segments: list[Segment], detail: str) -> Iterator[Problem]:
    return (Problem(kind, s.base_offset, s.end_offset, s.ledger_id, detail) for s in segments)
