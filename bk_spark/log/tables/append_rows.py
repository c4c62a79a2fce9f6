"""Rows of one task go to ledgers.

A task writes to its own ledgers, and continues in another one if one is lost. Unacknowledged entries are kept. If a
ledger is fenced or fails, the range ends at its last acknowledged entry, and the rest is sent to a new ledger, unless
the run is retired. A task may therefore report several ranges. The kept bytes are bounded: by the bytes that a ledger's
writer has in flight, plus at most one batch of rows.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from bk_spark.log.entries import arrow_format, raw_format
from bk_spark.log.entries.row_places import RowPlaces
from bk_spark.log.formats.message import LedgerRange
from bk_spark.log.formats.schema_merge import EXACT, Names
from bk_spark.log.tables.append_ledgers import OpenLedger, TaskLedgers
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import (
    LedgerClosedError,
    LedgerFencedError,
    MetadataError,
    PeerError,
    UnauthorizedError,
)

_LOG: Final = logging.getLogger(__name__)

#: Errors that end a ledger's writer but not the task.
#: Bookies refuse the password of a new ledger if somebody has used its id before.
_LOST: Final = (LedgerFencedError, LedgerClosedError, PeerError, MetadataError, UnauthorizedError)
#: Fail after this many ledgers in a row are lost before acknowledging anything.
MAX_LOST: Final = 3


@dataclass(frozen=True, slots=True)
class EntryForm:
    """How rows become entries.

    Parameters
    ----------
    schema
        The Arrow form of the columns that entries get. None: the log is raw.
    max_payload_bytes
        The most bytes of an entry.
    compression
        How arrow entries are compressed: lz4, zstd or None.
    entry_bytes
        The target size of an arrow entry, before compression.
    names
        How the names of the rows' columns are compared with those of ``schema``.
    """

    schema: pa.Schema | None
    max_payload_bytes: int
    compression: str | None
    entry_bytes: int
    names: Names = EXACT


def append_rows(
    batches: Iterator[pa.RecordBatch], ledgers: TaskLedgers, form: EntryForm, partition: int
) -> tuple[LedgerRange, ...]:
    """Append a task's rows and return where they are. A task without rows uses no ledger.

    Raises InvalidArgumentError for a row that cannot be written, RunRetiredError, errors of the ledger client.
    """
    writer = TaskWriter(ledgers)
    try:
        for payloads, rows in payloads_of(batches, form, RowPlaces(partition)):
            writer.append(payloads, rows)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def payloads_of(
    batches: Iterator[pa.RecordBatch], form: EntryForm, places: RowPlaces
) -> Iterator[tuple[Payloads, int]]:
    """Yield rows as entries, and how many rows they hold. Raises InvalidArgumentError for a row that does not fit."""
    if form.schema is None:
        for payloads in raw_format.rows(batches, places, form.max_payload_bytes):
            yield payloads, len(payloads)
        return
    entries = arrow_format.entries_of(
        batches,
        form.schema,
        compression=form.compression,
        entry_bytes=min(form.entry_bytes, form.max_payload_bytes),
        max_entry_bytes=form.max_payload_bytes,
        places=places,
        names=form.names,
    )
    for entry, rows in entries:
        yield Payloads.of([memoryview(entry)]), rows


@dataclass(frozen=True, slots=True)
class _Piece:
    """Entries appended together: one entry with ``rows`` rows, or one entry per row."""

    payloads: Payloads
    rows: int

    def without(self, entries: int) -> _Piece | None:
        """Return what remains after the first ``entries``."""
        count = len(self.payloads)
        if entries <= 0:
            return self
        return _Piece(self.payloads.part(entries, count), count - entries) if entries < count else None


class _Part:
    """The entries that a task has written to one ledger."""

    def __init__(self, ledger: OpenLedger) -> None:
        self.ledger = ledger
        self._first_entry = self._next_entry = ledger.writer.last_add_pushed + 1
        self._rows = 0
        self._size_bytes = 0
        #: Pieces not yet acknowledged, with their first entry ids.
        self._kept: deque[tuple[int, _Piece]] = deque()

    def append(self, piece: _Piece) -> None:
        self._kept.append((self._next_entry, piece))
        self._next_entry += len(piece.payloads)
        self._rows += piece.rows
        self._size_bytes += piece.payloads.size_bytes
        self.ledger.writer.append_many(piece.payloads)
        confirmed = self.ledger.writer.last_add_confirmed
        while self._kept and self._kept[0][0] + len(self._kept[0][1].payloads) - 1 <= confirmed:
            self._kept.popleft()

    def flush(self) -> None:
        self.ledger.writer.flush()

    def lost(self) -> list[_Piece]:
        """Release the failed ledger and return what it did not acknowledge."""
        self.ledger.abandon()
        confirmed = self.ledger.writer.last_add_confirmed
        left = [piece.without(confirmed + 1 - first) for first, piece in self._kept]
        pieces = [piece for piece in left if piece is not None]
        self._kept.clear()
        self._next_entry = max(confirmed + 1, self._first_entry)
        self._rows -= sum(piece.rows for piece in pieces)
        self._size_bytes -= sum(piece.payloads.size_bytes for piece in pieces)
        return pieces

    def range(self) -> LedgerRange | None:
        if self._next_entry == self._first_entry:
            return None
        return LedgerRange(
            self.ledger.writer.ledger_id, self._first_entry, self._next_entry - 1, self._rows, self._size_bytes
        )


class TaskWriter:
    """Appends one task's rows, in order. Call :meth:`abandon` if anything but this object fails."""

    def __init__(self, ledgers: TaskLedgers) -> None:
        self._ledgers = ledgers
        self._part: _Part | None = None
        self._ranges: list[LedgerRange] = []
        self._lost_in_a_row = 0

    def append(self, payloads: Payloads, rows: int) -> None:
        """Append entries: a single one with ``rows`` rows, or one per row.

        Raises RunRetiredError if another run has taken over, and the ledger client's error if three ledgers in a
        row failed.
        """
        self._send([_Piece(payloads, rows)])

    def finish(self) -> tuple[LedgerRange, ...]:
        """Wait for all acknowledgements and return where the rows are. Raises as :meth:`append`."""
        while self._part is not None:
            try:
                self._part.flush()
            except _LOST as error:
                self._send(self._after_loss(self._part, error))
            else:
                self._end_part(self._part)
        return tuple(self._ranges)

    def abandon(self) -> None:
        """Release everything. Nothing of this task will be committed."""
        if self._part is not None:
            self._part.ledger.abandon()
            self._part = None

    def _send(self, pieces: list[_Piece]) -> None:
        while pieces:
            if self._part is not None and self._ledgers.is_due(self._part.ledger):
                try:
                    self._part.flush()
                except _LOST as error:
                    pieces = self._after_loss(self._part, error) + pieces
                    continue
                self._end_part(self._part)
            part = self._part = self._part or _Part(self._ledgers.take())
            try:
                part.append(pieces[0])
            except _LOST as error:
                # The part kept this piece, so it is returned too.
                pieces = self._after_loss(part, error) + pieces[1:]
            else:
                pieces = pieces[1:]

    def _end_part(self, part: _Part) -> None:
        """Finish a part whose entries are all acknowledged."""
        self._add_range(part)
        self._part = None
        self._ledgers.give_back(part.ledger)

    def _after_loss(self, part: _Part, error: Exception) -> list[_Piece]:
        """Record what ``part`` acknowledged and return what to send again. Raises if the task cannot continue."""
        self._part = None
        left = part.lost()
        before = len(self._ranges)
        self._add_range(part)
        self._lost_in_a_row = 0 if len(self._ranges) > before else self._lost_in_a_row + 1
        self._ledgers.check_run()
        _LOG.warning(
            "ledger %d was lost (%s); %d entries that it did not acknowledge go to another one",
            part.ledger.writer.ledger_id,
            error,
            sum(len(piece.payloads) for piece in left),
        )
        if self._lost_in_a_row >= MAX_LOST:
            raise error
        return left

    def _add_range(self, part: _Part) -> None:
        written = part.range()
        if written is not None:
            self._ranges.append(written)
