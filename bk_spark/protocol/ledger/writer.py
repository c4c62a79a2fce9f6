"""The ledger writer, as a machine. Source: compatibility.md §4.3–§4.7, §4.10.

Rules:

* Entries go to their write set. An entry is complete once Qa of its bookies hold it. Entries are acknowledged in
  order, so the last add confirmed (LAC) is the end of the complete prefix.
* A bookie with too many requests has not failed. Entries that it refused are sent again after a pause, even if they are
  acknowledged by then. The pause doubles while the bookie refuses everything.
* A bookie has failed when its connection breaks, when it answers with an error, or when it owes adds and takes none for
  the add timeout.
* A failed bookie is replaced by an *ensemble change*: a new segment from LAC + 1 on. Nothing is acknowledged while the
  metadata are being changed. A reader who knows only the old ensemble could miss an entry that was acknowledged on an
  unpublished one. Entries not yet acknowledged are sent again, to the replacement.
* Acknowledging already stops during the search for a replacement, so that many entries get all their copies. It stops
  for one second at most. Until the new segment is written, an ack quorum of the published ensemble suffices.
* If there is no replacement, the writer continues without the bookie while every write set can still reach Qa. It
  searches again when bookies come or go, and after 30 s. If some write set cannot reach Qa, the writer ends.
* After a conflict of the compare-and-set, or a lost reply, the writer reads the metadata. The result decides.
* A writer that recovers a ledger (``publish=False``) does not publish its ensemble changes. The closing compare-and-set
  publishes them.
* A fenced answer, or metadata that are not OPEN, end the writer: another client owns the ledger.
* With *deferred sync* an acknowledged entry is held but not synced. It becomes the LAC when every bookie of the
  ensemble was forced after it was acknowledged. A failed bookie may have lost entries that it held, so the ensemble can
  be changed only before the first acknowledgement. Later a failure ends the writer. A failed force ends it too, because
  the next force would not notice what the first one lost.
* Closing drains first: every entry is acknowledged (with deferred sync: forced), and a change that may be published has
  ended. Then :class:`~bk_spark.protocol.ledger.closing.LedgerClosing` decides. A failed close may have taken effect. So
  a second call reads the store again.

======== ================================================== ========
state    event                                              next
======== ================================================== ========
OPEN     a bookie failed, adds pending                      CHOOSING
CHOOSING bookies chosen                                     CHANGING
CHOOSING none found, can continue; close() drained          OPEN
CHANGING segment published, conflict with another           OPEN
OPEN     close() drained                                    CLOSING
CLOSING  the ledger is closed                               CLOSED
any      fail(), abandon(), fenced, cannot continue, …      FAILED
======== ================================================== ========
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.codes import NO_ENTRY, Code
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import (
    AddQuorumTimeoutError,
    BookKeeperError,
    EnsembleChangeRefusedError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataConflictError,
    UnauthorizedError,
)
from bk_spark.protocol.ledger.add_window import AddWindow
from bk_spark.protocol.ledger.closing import LedgerClosing
from bk_spark.protocol.ledger.explicit_lac import ExplicitLac
from bk_spark.protocol.ledger.failed_bookies import BusyBookies, FailedBookies
from bk_spark.protocol.ledger.forcing import Forces
from bk_spark.protocol.ledger.metadata_calls import (
    CompareAndSet,
    MetadataEvent,
    MetadataFailed,
    MetadataFound,
    MetadataWritten,
    ReadMetadata,
)
from bk_spark.protocol.ledger.pending_adds import PendingAdds
from bk_spark.protocol.ledger.writer_actions import (
    AddsAnswered,
    BookieFailed,
    BookieForced,
    BookiesChanged,
    BookiesChosen,
    ConnectBookie,
    LacAnswered,
    LeaveBookie,
    NoBookies,
    SendAdds,
    SendRefused,
    WriterAction,
    WriterEvent,
    WriterLimits,
    WriterTimer,
)
from bk_spark.protocol.machine import EndedBy, StartTimer, StopTimer, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bk_spark.protocol.wire.add_frames import Packager
from bk_spark.protocol.wire.code_errors import reason_of

#: A search for a replacement delays acknowledgements for at most this long.
SLOW_SEARCH_MS: Final = 1_000.0
#: A writer that continues without a failed bookie searches for a replacement this often, even if no bookie came or
#: went. A bookie that hung may have recovered.
SEARCH_AGAIN_MS: Final = 30_000.0
CLOSED_TEXT: Final = "close() or abandon() was called on this handle: it takes no more entries"


class WriterState(enum.Enum):
    OPEN = "open"
    CHOOSING = "choosing bookies"
    CHANGING = "changing ensemble"
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"


class LedgerWriter:
    """Adds entries to one ledger, and closes it. A machine (:mod:`bk_spark.protocol.machine`). Its result is the
    metadata of the closed ledger. Not thread-safe.

    Parameters
    ----------
    metadata, version
        The stored metadata as far as known.
    packager
        Makes frames of the wire protocol of the ledger's connections.
    last_entry_id, length
        The ledger's last entry and length when a recovery takes it over.
    publish
        False for a recovery, which publishes ensemble changes when it closes the ledger.
    deferred_sync
        Only :meth:`force` confirms entries.
    """

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        packager: Packager,
        *,
        last_entry_id: int = NO_ENTRY,
        length: int = 0,
        publish: bool = True,
        deferred_sync: bool = False,
        limits: WriterLimits | None = None,
    ) -> None:
        self.outcome: Succeeded[LedgerMetadata] | EndedBy | None = None
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.version = version
        self.state = WriterState.OPEN
        self.last_add_pushed = last_entry_id
        #: The end of the run of entries that an ack quorum holds.
        self.last_add_acknowledged = last_entry_id
        #: The same, but with deferred sync only entries that were forced since.
        self.last_add_confirmed = last_entry_id
        #: Payload bytes of confirmed entries.
        self.length = length
        #: Why no more entries are added or confirmed: the error that ended the writer, or that the ledger is closing.
        self.error: BookKeeperError | None = None
        #: Why the last :meth:`close` did not close the ledger. None while it is under way.
        self.close_error: Exception | None = None
        self.deferred_sync = deferred_sync
        self._packager = packager
        self._publish = publish
        self._limits = limits = limits or WriterLimits()
        self._pushed_length = self._acknowledged_length = length
        self._ensemble = list(metadata.last_segment.ensemble)
        self._pending = PendingAdds(metadata.quorum, last_entry_id + 1)
        self._window = AddWindow(limits)
        self._progress_timer_runs = False
        self._failures = FailedBookies()
        self._busy = BusyBookies()
        #: The ensemble change that waits to be published.
        self._replacements: dict[int, str] = {}
        self._proposed = metadata
        self._reading = False
        self._changes_left = limits.max_ensemble_changes
        self._forces = Forces()
        self._lac = ExplicitLac(limits.explicit_lac_interval_ms, metadata.quorum.ack_quorum_size)
        self._close_wanted = False
        self._closing: LedgerClosing | None = None
        self._actions: list[WriterAction] = [ConnectBookie(bookie_id) for bookie_id in self._ensemble]

    # --- the contract ---

    def take_actions(self) -> list[WriterAction]:
        actions, self._actions = self._actions, []
        return actions

    def handle(self, event: WriterEvent) -> None:
        if self.outcome is not None:
            return
        if self.state is WriterState.CLOSING:
            self._on_closing_event(event)
            return
        match event:
            case AddsAnswered(bookie_id, entry_ids, codes):
                self._on_add_answers(bookie_id, entry_ids, codes)
            case BookieFailed(bookie_id):
                self._on_bookie_failed(bookie_id)
            case BookiesChosen():
                self._on_bookies_chosen(event)
            case NoBookies(error):
                self._on_no_bookies(error)
            case BookiesChanged():
                self._on_bookies_changed()
            case BookieForced(bookie_id, last_entry_id):
                length = self._forces.on_forced(bookie_id, last_entry_id)
                if length is not None:
                    self._confirm(last_entry_id, length)
            case LacAnswered(last_add_confirmed, taken):
                self._lac.on_answer(last_add_confirmed, taken=taken)
            case TimerFired(name):
                self._on_timer(name)
            case _:
                if self.state is WriterState.CHANGING:
                    self._on_metadata(event)
        if self._close_wanted:
            self._drain()

    def fail(self, error: Exception) -> None:
        """End the writer. Pending entries stay unacknowledged. While the ledger is closing, only this close fails."""
        error = error if isinstance(error, BookKeeperError) else BookKeeperError(repr(error))
        if self._closing is not None:
            self._closing.fail(error)
            self._advance_closing(self._closing)
        elif self.outcome is None:
            self._end_with(error)

    # --- queries of the owner ---

    @property
    def ensemble(self) -> tuple[str, ...]:
        return tuple(self._ensemble)

    def has_failed(self, bookie_id: str) -> bool:
        """Return whether the bookie is in the ensemble and waits to be replaced."""
        return bookie_id in self._failures.failed.values()

    @property
    def pending_entries(self) -> int:
        """The number of entries added and not yet acknowledged."""
        return self.last_add_pushed - self.last_add_acknowledged

    @property
    def oldest_retained(self) -> int:
        """The first entry that is not acknowledged, or that a bookie in use still owes."""
        return self._pending.first_entry_id

    @property
    def most_unanswered(self) -> int:
        """The number of adds that the slowest bookie of the ensemble owes. Its limit keeps a slow third replica from
        falling ever further behind the ack quorum (scenario B9)."""
        return max(self._pending.owed(index) for index in range(len(self._ensemble)))

    @property
    def throttled(self) -> bool:
        """Whether a bookie has too many requests."""
        return bool(self._busy.waiting)

    def unanswered(self, bookie_id: str) -> int:
        """Return the number of adds that ``bookie_id`` owes. 0 if it has been given up."""
        return self._pending.owed(self._ensemble.index(bookie_id)) if bookie_id in self._ensemble else 0

    def has_room(self, entries: int, size_bytes: int, waiting_entries: int = 0, waiting_bytes: int = 0) -> bool:
        """Return whether ``entries``, in frames of ``size_bytes``, may be added now, after ``waiting_…``."""
        if self._busy.waiting:
            return False
        unanswered = self.most_unanswered + waiting_entries
        return self._window.has_room(entries, size_bytes, waiting_bytes, unanswered)

    def check_open(self) -> None:
        """Raise the error that ended the writer. Raises LedgerClosedError after :meth:`close`."""
        if self.error is not None:
            raise self.error
        if self._close_wanted:
            raise LedgerClosedError(CLOSED_TEXT, ledger_id=self.ledger_id)

    # --- commands ---

    def add(self, payloads: Payloads | Sequence[Buffer], last_add_confirmed: int | None = None) -> int:
        """Add entries and return the id of the last one. Raises as :meth:`check_open` does.

        ``last_add_confirmed`` replaces the writer's own in the entries' headers. Recovery writes back the LAC that it
        began with.
        """
        self.check_open()
        first = self.last_add_pushed + 1
        if not len(payloads):
            return self.last_add_pushed
        lac = self.last_add_confirmed if last_add_confirmed is None else last_add_confirmed
        frames = self._packager.package(first, lac, self._pushed_length, payloads)
        self.last_add_pushed += len(frames)
        self._pushed_length = int(frames.lengths[-1])
        live = [index not in self._failures.failed for index in range(len(self._ensemble))]
        self._window.added(self.last_add_pushed, frames.data.nbytes)
        for index, (sent, count) in enumerate(self._pending.append(frames, live)):
            if count:
                self._send(index, sent, count)
        self._lac.on_carried(lac)
        self._change_ensemble_if_needed()
        return self.last_add_pushed

    def force(self) -> None:
        """With deferred sync: confirm the entries acknowledged so far, once every bookie has synced them."""
        assert self.deferred_sync
        if self.error is not None:
            raise self.error
        head = self.last_add_acknowledged
        if head > self.last_add_confirmed:
            self._actions += self._forces.begin(head, self._acknowledged_length, self._ensemble)

    def close(self) -> None:
        """Take no more entries, drain, and close the ledger at its last entry.

        ``outcome`` or ``close_error`` is set at the end. A call during another one changes nothing. A call after
        ``close_error`` reads the store again, because the first attempt may have taken effect.
        """
        if self.outcome is not None:
            return
        self._close_wanted = True
        self.close_error = None
        if self.state is not WriterState.CLOSING:
            self._drain()
        elif self._closing is None:
            self._begin_closing()

    def abandon(self) -> None:
        """End without closing the ledger. It stays open until a client recovers it."""
        if self.outcome is None:
            self._closing = None
            self._end_with(LedgerClosedError(CLOSED_TEXT, ledger_id=self.ledger_id))

    # --- adds ---

    def _on_add_answers(self, bookie_id: str, entry_ids: npt.NDArray[np.int64], codes: npt.NDArray[np.int32]) -> None:
        if bookie_id not in self._ensemble:
            return
        index = self._ensemble.index(bookie_id)
        if codes.any():
            held, refused = codes == Code.OK, codes == Code.TOO_MANY_REQUESTS
            bad = {Code.from_v2(code) for code in codes[~(held | refused)].tolist()}
            if bad:
                self._on_error_codes(bookie_id, bad)
            if self.outcome is not None:
                return
            entry_ids, refused_ids = entry_ids[held], entry_ids[refused]
            if len(refused_ids) and index not in self._failures.failed:
                self._pending.on_refused(index, refused_ids)
                self._actions += self._busy.on_refused(bookie_id, took_some=len(entry_ids) > 0)
        elif self._busy.pauses_ms:
            self._busy.on_taken(bookie_id)
        self._pending.on_held(index, entry_ids)
        owed = self._pending.owed(index)
        if len(entry_ids) or not owed:
            self._window.took(bookie_id, owes=owed > 0)
        self._acknowledge()

    def _send(self, index: int, frames: list[memoryview], entries: int) -> None:
        bookie_id = self._ensemble[index]
        self._actions.append(SendAdds(bookie_id, frames, entries))
        self._window.sent(bookie_id)
        if not self._progress_timer_runs:
            self._start_progress_timer()

    def _send_refused(self, bookie_id: str) -> None:
        if bookie_id in self._busy.waiting:
            self._busy.waiting.discard(bookie_id)
            index = self._ensemble.index(bookie_id)
            frames, count = self._pending.take_refused(index)
            if count:
                self._send(index, frames, count)

    def _on_error_codes(self, bookie_id: str, codes: set[Code]) -> None:
        if Code.FENCED in codes:
            self._end(LedgerFencedError, "another client fenced the ledger", bookie_id, Code.FENCED)
        elif Code.UNAUTHORIZED in codes:
            said = reason_of(Code.UNAUTHORIZED, with_key=True)
            self._end(UnauthorizedError, f"add: the bookie {said}", bookie_id, Code.UNAUTHORIZED)
        else:
            self._on_bookie_failed(bookie_id)

    def _acknowledge(self) -> None:
        # A force needs the whole ensemble, so replace the bookie first.
        held_up = self.deferred_sync and self._failures.failed
        slow = self.state is WriterState.CHOOSING and self._failures.search_is_slow
        if (self.state is WriterState.OPEN or slow) and not held_up:
            complete = self._pending.complete_through(self.last_add_acknowledged)
            if complete > self.last_add_acknowledged:
                self.last_add_acknowledged = complete
                self._acknowledged_length = self._pending.length_at(complete)
                if not self.deferred_sync:
                    self._confirm(complete, self._acknowledged_length)
        self._pending.release(self.last_add_acknowledged)
        self._window.release(self._pending.first_entry_id)

    def _confirm(self, last_entry_id: int, length: int) -> None:
        if last_entry_id > self.last_add_confirmed:
            self.last_add_confirmed, self.length = last_entry_id, length
            self._actions += self._lac.on_confirmed(last_entry_id)

    # --- time ---

    def _on_timer(self, name: object) -> None:
        match name:
            case SendRefused(bookie_id):
                self._send_refused(bookie_id)
            case WriterTimer.PROGRESS:
                self._check_progress()
            case WriterTimer.SLOW_SEARCH:
                if self.state is WriterState.CHOOSING:
                    self._failures.search_is_slow = True
                    self._acknowledge()
            case WriterTimer.SEARCH_AGAIN:
                self._on_bookies_changed()
            case WriterTimer.EXPLICIT_LAC:
                lac = self.last_add_confirmed
                write_set = [self._ensemble[index] for index in self.metadata.quorum.write_set(lac)]
                self._actions += self._lac.on_timer(lac, write_set)

    def _start_progress_timer(self) -> None:
        self._progress_timer_runs = True
        self._actions.append(StartTimer(WriterTimer.PROGRESS, self._window.tick_ms))

    def _check_progress(self) -> None:
        self._progress_timer_runs = False
        for bookie_id in self._window.tick():
            self._on_bookie_failed(bookie_id)
        acknowledged = self.last_add_acknowledged
        if self._window.is_overdue(acknowledged):
            self.fail(
                AddQuorumTimeoutError(
                    f"no ack quorum within {self._limits.add_quorum_timeout_ms} ms (addEntryQuorumTimeoutSec)",
                    ledger_id=self.ledger_id,
                    entry_id=acknowledged + 1,
                )
            )
        elif self.outcome is None and self._window.waits and not self._progress_timer_runs:
            self._start_progress_timer()

    # --- failures and ensemble changes ---

    def _on_bookie_failed(self, bookie_id: str) -> None:
        if bookie_id in self._ensemble:
            index = self._ensemble.index(bookie_id)
            self._failures.failed[index] = bookie_id
            self._pending.give_up(index)
            self._window.took(bookie_id, owes=False)
            self._acknowledge()
        elif bookie_id not in self._replacements.values():
            return
        # _on_published handles a replacement that fails before it is published.
        self._failures.quarantine.add(bookie_id)
        self._busy.forget(bookie_id)
        self._actions.append(LeaveBookie(bookie_id))
        self._change_ensemble_if_needed()

    def _on_bookies_chosen(self, event: BookiesChosen) -> None:
        if self.state is not WriterState.CHOOSING:
            return
        self._end_search(WriterState.CHANGING)
        ensemble = list(self._ensemble)
        for index, bookie_id in event.replacements.items():
            ensemble[index] = bookie_id
            self._failures.quarantine.discard(bookie_id)
        self._replacements = dict(event.replacements)
        self._proposed = self.metadata.with_segment(Segment(self.last_add_acknowledged + 1, tuple(ensemble)))
        if self._publish:
            self._actions.append(CompareAndSet(self._proposed, self.version))
        else:
            self._on_published(self._proposed, self.version)

    def _on_no_bookies(self, error: BookKeeperError) -> None:
        if self.state is not WriterState.CHOOSING:
            return
        self._end_search(WriterState.OPEN)
        self._acknowledge()
        if not self._failures.answers_what_is_wanted(self._ensemble, self.metadata.quorum):
            self._change_ensemble_if_needed()
        elif self.pending_entries and (self.deferred_sync or not self.metadata.quorum.can_spare(self._failures.failed)):
            self.fail(error)
        else:
            self._failures.irreplaceable |= set(self._failures.failed)
            self._actions.append(StartTimer(WriterTimer.SEARCH_AGAIN, SEARCH_AGAIN_MS))

    def _end_search(self, state: WriterState) -> None:
        self.state = state
        self._actions.append(StopTimer(WriterTimer.SLOW_SEARCH))

    def _on_bookies_changed(self) -> None:
        """Search again for replacements not found before. A bookie that failed may run again."""
        if self._failures.on_bookies_changed():
            self._change_ensemble_if_needed()

    def _on_metadata(self, event: MetadataEvent) -> None:
        """Handle the answer to the ensemble change, or to the read after it."""
        match event:
            case MetadataWritten(metadata, version):
                self._on_published(metadata, version)
            case MetadataFound(metadata, version):
                self._reading = False
                self._on_found(metadata, version)
            case MetadataFailed() if event.must_read and not self._reading:
                self._reading = True
                self._actions.append(ReadMetadata())
            case MetadataFailed(error):
                self.fail(error)

    def _on_published(self, metadata: LedgerMetadata, version: int) -> None:
        """Resume acknowledging, on the ensemble of ``metadata``."""
        self.metadata, self.version = metadata, version
        self.state = WriterState.OPEN
        self._changes_left -= 1
        replacements, self._replacements = self._replacements, {}
        for index, bookie_id in replacements.items():
            self._ensemble[index] = bookie_id
            self._failures.replaced(index)
            frames, count = self._pending.replace(index, self.last_add_acknowledged + 1)
            if bookie_id in self._failures.quarantine:
                self._failures.failed[index] = bookie_id
                self._pending.give_up(index)
            elif count:
                self._send(index, frames, count)
        self._acknowledge()
        self._change_ensemble_if_needed()

    def _on_found(self, found: LedgerMetadata, version: int) -> None:
        """Handle ``found``, the stored metadata after a compare-and-set that may have lost."""
        if found.state is LedgerState.CLOSED:
            self._end(LedgerClosedError, "another client closed the ledger")
        elif found.state is LedgerState.IN_RECOVERY:
            self._end(LedgerFencedError, "another client is recovering the ledger")
        elif found.last_segment == self._proposed.last_segment:
            # The change is ours. Only the reply was lost.
            self._on_published(found, version)
        elif found.last_segment != self.metadata.last_segment:
            self._end(MetadataConflictError, "another client changed the open segment")
        else:
            # Something else changed (re-replication of an older segment). Make the same change on the new base.
            self.metadata, self.version = found, version
            self.state = WriterState.OPEN
            self._replacements = {}
            self._change_ensemble_if_needed()

    def _change_ensemble_if_needed(self) -> None:
        if self._failures.failed and self.deferred_sync and self.last_add_acknowledged != NO_ENTRY:
            if not self._drained:
                self._refuse_change(
                    "a ledger with deferred sync cannot replace it; recover the ledger, write a new one"
                )
            return
        # An idle ledger keeps its ensemble, because most failures end before the next add.
        replaceable = self._failures.failed.keys() - self._failures.irreplaceable
        if self.state is not WriterState.OPEN or not replaceable or not self.pending_entries:
            return
        if self._changes_left <= 0:
            self._refuse_change("the ensemble was changed as often as maxNumEnsembleChanges allows")
            return
        self.state = WriterState.CHOOSING
        search = self._failures.begin_search(self._ensemble, self.metadata.quorum)
        self._actions += [search, StartTimer(WriterTimer.SLOW_SEARCH, SLOW_SEARCH_MS)]

    def _refuse_change(self, why: str) -> None:
        self._end(
            EnsembleChangeRefusedError, f"bookie {', '.join(sorted(self._failures.failed.values()))} failed; {why}"
        )

    # --- the end ---

    @property
    def _drained(self) -> bool:
        """Whether the ledger can be closed at its last added entry."""
        return self._close_wanted and self.last_add_confirmed == self.last_add_pushed

    def _drain(self) -> None:
        """When all added entries are done, begin to close the ledger."""
        if self.outcome is not None or self.pending_entries:
            return
        if not self._drained:
            self.force()
            return
        if self.state is WriterState.CHOOSING:
            self._end_search(WriterState.OPEN)
        # Wait for the end of a change that may be published before closing the ledger.
        if self.state is WriterState.OPEN:
            self.state = WriterState.CLOSING
            self.error = LedgerClosedError(CLOSED_TEXT, ledger_id=self.ledger_id)
            self._forget_adds()
            self._begin_closing()

    def _begin_closing(self) -> None:
        end = (self.last_add_confirmed, self.length)
        self._closing = LedgerClosing(self.ledger_id, self.metadata, self.version, *end)
        self._advance_closing(self._closing)

    def _on_closing_event(self, event: WriterEvent) -> None:
        if self._closing is not None and isinstance(event, MetadataEvent):
            self._closing.handle(event)
            self._advance_closing(self._closing)

    def _advance_closing(self, closing: LedgerClosing) -> None:
        self._actions += closing.take_actions()
        match closing.outcome:
            case Succeeded(metadata):
                self.metadata = metadata
                self.state = WriterState.CLOSED
                self.outcome = closing.outcome
            case EndedBy(error):
                self._closing = None
                self.close_error = error

    def _end(
        self, kind: type[BookKeeperError], message: str, bookie_id: str | None = None, code: Code | None = None
    ) -> None:
        name = None if code is None else code.name
        self._end_with(kind(message, ledger_id=self.ledger_id, bookie_id=bookie_id, code=name))

    def _end_with(self, error: BookKeeperError) -> None:
        self.state = WriterState.FAILED
        self.error = error
        self.outcome = EndedBy(error)
        self._forget_adds()
        # Only pending LeaveBookie actions are still performed.
        self._actions = [action for action in self._actions if isinstance(action, LeaveBookie)]

    def _forget_adds(self) -> None:
        self._pending.clear()
        self._window.clear()
        self._busy.clear()
        self._forces.clear()
