"""The machine that recovers a ledger: it marks it, finds its end, writes back and closes.

Source: compatibility.md §4.9, §4.14. Rules:

* Bookies are read only after the metadata say IN_RECOVERY. A writer that changes its ensemble later loses its
  compare-and-set. So every bookie that could acknowledge an entry gets fenced.
* :class:`~bk_spark.protocol.ledger.end_search.EndSearch` fences the bookies and finds the end.
* Entries found beyond the LAC are written back to their whole write quorum, with the LAC found at the start. So no
  reader sees an entry that a concurrent recovery cuts off.
* When these are acknowledged, one compare-and-set closes the ledger. It also publishes the ensemble changes of the
  write-backs.

The stored metadata decide, whoever wrote them, and also after a failed compare-and-set:

=========== ===========================================================================
found       then
=========== ===========================================================================
OPEN        compare-and-set to IN_RECOVERY
IN_RECOVERY search from the beginning: bookies and segments may have changed
CLOSED      done: that is the ledger's end
=========== ===========================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.codes import FlagV2
from bk_spark.protocol.entries.entry import Entry
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import MetadataConflictError
from bk_spark.protocol.ledger.end_search import (
    READ_AHEAD_ENTRIES,
    EndSearch,
    EntryFailed,
    EntryRead,
    SearchAction,
    Verify,
)
from bk_spark.protocol.ledger.metadata_calls import (
    CompareAndSet,
    MetadataAction,
    MetadataEvent,
    MetadataFailed,
    MetadataFound,
    MetadataWritten,
    ReadMetadata,
)
from bk_spark.protocol.ledger.writer import LedgerWriter
from bk_spark.protocol.ledger.writer_actions import WriterAction, WriterEvent, WriterLimits
from bk_spark.protocol.machine import EndedBy, StartTimer, StopTimer, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.wire.add_frames import Packager

#: Maximum number of searches. Each after the first means that another client changed the metadata meanwhile.
ATTEMPTS: Final = 5
#: Maximum number of compare-and-sets to IN_RECOVERY for each search.
_MARKS: Final = 8
#: Flags of adds that write back.
WRITE_BACK_FLAGS: Final = FlagV2.RECOVERY_ADD | FlagV2.HIGH_PRIORITY


@dataclass(frozen=True, slots=True)
class ForWriteBacks:
    """Perform an action of the writer of write-backs. Each search has a writer of its own, numbered by ``attempt``. Its
    events come as :class:`ToldWriteBacks` with the same number."""

    attempt: int
    action: WriterAction


@dataclass(frozen=True, slots=True)
class ToldWriteBacks:
    """An event of the writer of write-backs of search ``attempt``. Ignored if another search has begun."""

    attempt: int
    event: WriterEvent


@dataclass(frozen=True, slots=True)
class AwaitConnections:
    """Wait until each :class:`ConnectBookie` of the writer has succeeded or failed. The answer is
    :class:`WriteBacksReady`. So bookies that cannot be reached are replaced before they miss a write-back."""

    attempt: int


@dataclass(frozen=True, slots=True)
class WriteBacksReady:
    """The answer to :class:`AwaitConnections`."""

    attempt: int


@dataclass(frozen=True, slots=True)
class WriteBackTimer:
    """Name of a timer of the writer of write-backs."""

    attempt: int
    name: Hashable


RecoveryAction = MetadataAction | SearchAction | ForWriteBacks | AwaitConnections
RecoveryEvent = MetadataEvent | EntryRead | EntryFailed | TimerFired | ToldWriteBacks | WriteBacksReady


class LedgerRecovery:
    """Fences one ledger and closes it. The result is its final metadata. A closed ledger does not change.

    Parameters
    ----------
    verify
        Checks stored entries with the ledger's digest.
    packager_of
        Makes the packager of write-backs, given the flags of their adds.
    read_timeout_ms
        A bookie that has not answered a read after this long counts as unknown.
    limits
        The limits of the writer of write-backs. Reading pauses while it has no room.
    """

    search_class: type[EndSearch] = EndSearch

    def __init__(
        self,
        ledger_id: int,
        verify: Verify,
        packager_of: Callable[[FlagV2], Packager],
        *,
        read_timeout_ms: float,
        limits: WriterLimits,
        read_ahead_entries: int = READ_AHEAD_ENTRIES,
    ) -> None:
        self.outcome: Succeeded[LedgerMetadata] | EndedBy | None = None
        #: The number of searches begun.
        self.attempt = 0
        #: Writes back the entries that the current search finds.
        self.writer: LedgerWriter | None = None
        self._ledger_id = ledger_id
        self._verify = verify
        self._packager_of = packager_of
        self._read_timeout_ms = read_timeout_ms
        self._limits = limits
        self._read_ahead_entries = read_ahead_entries
        self._marks = 0
        self._metadata: LedgerMetadata | None = None
        self._version = -1
        self._search: EndSearch | None = None
        #: Whether all connection attempts of the writer have ended.
        self._ready = False
        #: Whether the awaited metadata answer is that of a read.
        self._reading = True
        self._actions: list[RecoveryAction] = [ReadMetadata()]

    def take_actions(self) -> list[RecoveryAction]:
        """Return the new actions of the recovery, of its search and of its writer."""
        actions, self._actions = self._actions, []
        return actions

    def handle(self, event: RecoveryEvent) -> None:
        """Take an event of the recovery, of its search or of its writer. Ignored after the end."""
        if self.outcome is not None:
            return
        match event:
            case MetadataFound(metadata, version):
                self._reading = False
                self._on_stored(metadata, version)
            case MetadataWritten(metadata, version):
                self._on_stored(metadata, version)
            case MetadataFailed() if event.must_read and not self._reading:
                self._read_metadata()
            case MetadataFailed(error):
                self.fail(error)
            case TimerFired(WriteBackTimer(attempt, name)):
                self._tell_writer(attempt, TimerFired(name))
            case ToldWriteBacks(attempt, told):
                self._tell_writer(attempt, told)
            case WriteBacksReady(attempt):
                self._ready = self._ready or attempt == self.attempt
            case _ if self._search is not None:
                self._search.handle(event)
        self._advance()

    def fail(self, error: Exception) -> None:
        """End with this error. The ledger stays IN_RECOVERY if it was marked, so any client may recover it again."""
        self._end(EndedBy(error))

    # --- metadata ---

    def _read_metadata(self) -> None:
        self._reading = True
        self._actions.append(ReadMetadata())

    def _on_stored(self, metadata: LedgerMetadata, version: int) -> None:
        if metadata.state is LedgerState.CLOSED:
            self._end(Succeeded(metadata))
        elif metadata.state is LedgerState.OPEN:
            self._on_open(metadata, version)
        else:
            self._begin(metadata, version)

    def _on_open(self, metadata: LedgerMetadata, version: int) -> None:
        if self._marks == _MARKS:
            self._fail_changing()
            return
        self._marks += 1
        self._compare_and_set(metadata.in_recovery(), version)

    def _compare_and_set(self, metadata: LedgerMetadata, version: int) -> None:
        self._actions.append(CompareAndSet(metadata, version))

    def _fail_changing(self) -> None:
        self.fail(MetadataConflictError("the ledger's metadata keeps changing", ledger_id=self._ledger_id))

    def _end(self, outcome: Succeeded[LedgerMetadata] | EndedBy) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self._actions.clear()

    # --- searching and writing back ---

    def _begin(self, metadata: LedgerMetadata, version: int) -> None:
        if self.attempt == ATTEMPTS:
            self._fail_changing()
            return
        self.attempt += 1
        self._marks = 0
        self._metadata, self._version = metadata, version
        self.writer = None
        self._ready = False
        self._search = self.search_class(
            self._ledger_id,
            metadata,
            self._verify,
            attempt=self.attempt,
            read_timeout_ms=self._read_timeout_ms,
            read_ahead_entries=self._read_ahead_entries,
        )

    def _tell_writer(self, attempt: int, event: WriterEvent) -> None:
        if self.writer is not None and self._search is not None and attempt == self.attempt:
            self.writer.handle(event)

    def _advance(self) -> None:
        """Take the next step that the search and the writer allow."""
        search = self._search
        if search is None or self.outcome is not None:
            return
        if self.writer is None and search.length is not None:
            self._start_writer(search.last_add_confirmed, search.length)
        writer = self.writer
        if writer is not None and self._ready and writer.error is None:
            found = search.take_found()
            if found:
                self._write_back(writer, found, search.last_add_confirmed)
            if writer.adds.has_room(1, 0):
                search.on_written_back(writer.last_add_pushed)
        self._actions += search.take_actions()
        if writer is not None:
            self._actions += map(self._passed_on, writer.take_actions())
        if isinstance(search.outcome, EndedBy):
            self.fail(search.outcome.error)
        elif writer is not None and writer.error is not None:
            self.fail(writer.error)
        elif writer is not None and search.outcome is not None and writer.last_add_confirmed == search.outcome.result:
            self._close(writer)

    def _start_writer(self, last_entry_id: int, length: int) -> None:
        assert self._metadata is not None
        self.writer = LedgerWriter(
            self._ledger_id,
            self._metadata,
            self._version,
            self._packager_of(WRITE_BACK_FLAGS),
            last_entry_id=last_entry_id,
            length=length,
            publish=False,
            password_is_known=True,  # bookies were fenced with it
            limits=self._limits,
        )
        self._actions += map(self._passed_on, self.writer.take_actions())
        self._actions.append(AwaitConnections(self.attempt))

    def _write_back(self, writer: LedgerWriter, entries: list[Entry], last_add_confirmed: int) -> None:
        writer.add(Payloads.of([entry.payload for entry in entries]), last_add_confirmed)

    def _passed_on(self, action: WriterAction) -> RecoveryAction:
        match action:
            case StartTimer(name, after_ms):
                return StartTimer(WriteBackTimer(self.attempt, name), after_ms)
            case StopTimer(name):
                return StopTimer(WriteBackTimer(self.attempt, name))
        return ForWriteBacks(self.attempt, action)

    def _close(self, writer: LedgerWriter) -> None:
        self._search = None
        self._compare_and_set(writer.metadata.closed(writer.last_add_confirmed, writer.length), self._version)
