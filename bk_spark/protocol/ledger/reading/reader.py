"""The machine that reads a range of entries, in passes. Each pass begins with current metadata.

A pass ends at an entry that no replica returned. A re-replication may have moved the segment since the metadata were
read. So they are read again, and another pass begins at that entry. After ``attempts`` consecutive passes without any
entry, the error is final.

The reader's metadata may be old, for example if a handle was opened long ago and kept. An open ledger has a newer end
than they say, so entries that are known to exist are read beyond it. The end of a closed ledger is final. Before the
reader says that a known entry lies beyond it, it reads the metadata again: the ledger may have been deleted.
"""

from __future__ import annotations

import itertools
from typing import Final

from bk_spark.protocol.entries.entry import EntryBlock
from bk_spark.protocol.errors import EntryUnknownError, NoSuchEntryError
from bk_spark.protocol.ledger.metadata_calls import MetadataFailed, MetadataFound, ReadMetadata
from bk_spark.protocol.ledger.reading.ledger_view import LedgerKey, LedgerView
from bk_spark.protocol.ledger.reading.range_pass import Action as PassAction, Event as PassEvent, RangePass
from bk_spark.protocol.ledger.reading.read_settings import ReadSettings, Suspects
from bk_spark.protocol.machine import EndedBy, StartTimer, Succeeded, TimerFired

#: The pause before the second pass is twice this. It doubles before each further one.
_PAUSE_MS: Final = 200
_PAUSE: Final = "pause"

Action = PassAction | ReadMetadata
Event = PassEvent | MetadataFound | MetadataFailed


class RangeReader:
    """Reads entries ``first`` to ``last`` (inclusive), in order, in blocks from :meth:`next_block`.

    Parameters
    ----------
    view
        The shared knowledge of the ledger. The reader updates it.
    unconfirmed
        The entries may not exist. Entries of an open ledger may never be acknowledged, because recovery can still
        remove them. If false, the caller knows that they were acknowledged, for example from
        :meth:`LedgerView.check_range` or from a log's list.
    suspects, without_batch_reads
        See :class:`RangePass`.

    The error comes after all entries before it. It is EntryUnknownError if no replica could return an entry,
    NoSuchEntryError if the entry is beyond the end of a closed ledger, or the error of reading the metadata, such as
    NoSuchLedgerError. For unconfirmed entries it is also NoSuchEntryError if every replica lacks the entry. In an open
    ledger the entry may still come.
    """

    def __init__(
        self,
        ledger: LedgerKey,
        view: LedgerView,
        first: int,
        last: int,
        settings: ReadSettings,
        *,
        unconfirmed: bool = False,
        suspects: Suspects,
        without_batch_reads: set[str],
    ) -> None:
        view.check_order(first, last)
        self.outcome: Succeeded[None] | EndedBy | None = None
        self._ledger = ledger
        self._view = view
        self._first = first
        self._last = last
        self._settings = settings
        self._unconfirmed = unconfirmed
        self._suspects = suspects
        self._without_batch_reads = without_batch_reads
        self._request_ids = itertools.count()
        #: The number of consecutive passes without any entry.
        self._failures = 0
        #: Why the last pass ended, and its metadata.
        self._error: Exception | None = None
        self._metadata = view.metadata
        self._actions: list[Action] = []
        self._pass: RangePass | None = None
        self._begin()

    def take_actions(self) -> list[Action]:
        """Return the new actions of the reader and of its pass."""
        actions, self._actions = self._actions, []
        if self._pass is not None:
            actions += self._pass.take_actions()
        return actions

    def next_block(self) -> EntryBlock | None:
        """Return the next entries in order, or None if they have not arrived."""
        if self._pass is None or self.outcome is not None:
            return None
        block = self._pass.next_block()
        if block is not None:
            self._first += len(block)
            self._failures = 0
            self._view.learn_lac(block.max_lac)
        self._look()
        return block

    def handle(self, event: Event) -> None:
        """Take an event of the pass, or the metadata read between passes. Ignored after the end."""
        if self.outcome is not None:
            return
        match event:
            case TimerFired(name=name) if name == _PAUSE:
                self._actions.append(ReadMetadata())
            case MetadataFound(metadata, _):
                self._view.learn_metadata(metadata)
                # Bookies of an ensemble that was replaced meanwhile do not have later entries.
                replaced = self._failures < self._settings.attempts and self._view.metadata != self._metadata
                if isinstance(self._error, NoSuchEntryError) and not replaced:
                    self.outcome = EndedBy(self._error)
                else:
                    self._begin()
            case MetadataFailed(error):
                self.outcome = EndedBy(error)
            case _ if self._pass is not None:
                self._pass.handle(event)
                self._look()

    def fail(self, error: Exception) -> None:
        """End with this error, without another pass. Ignored after the end."""
        if self.outcome is None:
            self.outcome = EndedBy(error)

    def _begin(self) -> None:
        view, last = self._view, self._last
        self._metadata = view.metadata
        beyond = self._first > view.last_add_confirmed
        if beyond and view.closed:
            self._on_end_of_ledger()
            return
        unconfirmed = self._unconfirmed and beyond
        if view.closed or (self._unconfirmed and not beyond):
            last = min(last, view.last_add_confirmed)
        self._pass = RangePass(
            self._ledger,
            view.metadata,
            self._first,
            last,
            self._settings,
            unconfirmed=unconfirmed,
            suspects=self._suspects,
            without_batch_reads=self._without_batch_reads,
            request_ids=self._request_ids,
        )

    def _on_end_of_ledger(self) -> None:
        self._error = self._view.beyond(self._first)
        if self._unconfirmed:
            self.outcome = EndedBy(self._error)
        else:
            self._failures += 1
            self._actions.append(ReadMetadata())

    def _look(self) -> None:
        """Handle the end of a pass."""
        assert self._pass is not None
        end = self._pass.outcome
        if end is None:
            return
        self._actions += self._pass.take_actions()
        self._pass = None
        if isinstance(end, Succeeded):
            if self._first > self._last:
                self.outcome = end
            else:
                self._begin()
            return
        self._error = end.error
        self._failures += 1
        if isinstance(end.error, NoSuchEntryError):
            self._actions.append(ReadMetadata())
        elif isinstance(end.error, EntryUnknownError) and self._failures < self._settings.attempts:
            self._actions.append(StartTimer(_PAUSE, _PAUSE_MS * 2**self._failures))
        else:
            self.outcome = end
