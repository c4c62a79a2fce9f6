"""The ledger writer, as a machine. Source: compatibility.md §4.3–§4.7, §4.10.

Rules:

* Entries go to their write set. An entry is complete once Qa of its bookies hold it. Entries are acknowledged in
  order, so the last add confirmed (LAC) is the end of the complete prefix.
* A bookie has failed when its connection breaks, when it answers with an error, or when it stalls. A bookie with too
  many requests has not failed (:mod:`bk_spark.protocol.ledger.add_window`).
* A bookie that knows the ledger with another password ends the writer, too, unless others are known to take it. So
  acknowledgements wait for its first answer (:mod:`bk_spark.protocol.ledger.first_answers`).
* A failed bookie is replaced by an ensemble change (:mod:`bk_spark.protocol.ledger.writer_ensemble`).
* A fenced answer, or metadata that are not OPEN, end the writer: another client owns the ledger.
* With *deferred sync* an acknowledged entry is held but not synced. It becomes the LAC when every bookie of the
  ensemble was forced after it was acknowledged. A failed force ends the writer, because the next force would not notice
  what the first one lost.
* Closing drains first: every entry is acknowledged (with deferred sync: forced), and a change that may be published has
  ended. Then :class:`~bk_spark.protocol.ledger.closing.LedgerClosing` decides. A failed close may have taken effect. So
  a second call reads the store again.

======= ================================================== ========
state   event                                              next
======= ================================================== ========
OPEN    close() drained, no ensemble change                CLOSING
CLOSING the ledger is closed                               CLOSED
any     fail(), abandon(), fenced, cannot continue, …      FAILED
======= ================================================== ========
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.codes import NO_ENTRY, Code
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import AddQuorumTimeoutError, BookKeeperError, LedgerClosedError, LedgerFencedError
from bk_spark.protocol.ledger.add_window import AddWindow
from bk_spark.protocol.ledger.closing import LedgerClosing
from bk_spark.protocol.ledger.explicit_lac import ExplicitLac
from bk_spark.protocol.ledger.forcing import Forces
from bk_spark.protocol.ledger.metadata_calls import MetadataEvent
from bk_spark.protocol.ledger.writer_actions import (
    AddsAnswered,
    BookieFailed,
    BookieForced,
    ConnectBookie,
    LacAnswered,
    LeaveBookie,
    SendRefused,
    WriterAction,
    WriterEvent,
    WriterLimits,
    WriterTimer,
)
from bk_spark.protocol.ledger.writer_ensemble import ChangeEvent, ChangeState, WriterEnsemble
from bk_spark.protocol.machine import EndedBy, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.wire.add_frames import Packager
from bk_spark.protocol.wire.code_errors import error_of

CLOSED_TEXT: Final = "close() or abandon() was called on this handle; it accepts no more entries"


class WriterState(enum.Enum):
    """The states in the module's table."""

    OPEN = "open"
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
    password_is_known
        A bookie that knows the ledger with another password has failed like any other. Otherwise it ends the writer.
    """

    ensemble_class: type[WriterEnsemble] = WriterEnsemble

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
        password_is_known: bool = False,
        limits: WriterLimits | None = None,
    ) -> None:
        self.outcome: Succeeded[LedgerMetadata] | EndedBy | None = None
        self.ledger_id = ledger_id
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
        self._limits = limits = limits or WriterLimits()
        self._pushed_length = self._acknowledged_length = length
        #: The bookies that hold the ledger's last segment. The owner only reads it, and says if they know the password.
        self.ensemble = self.ensemble_class(
            ledger_id,
            metadata,
            version,
            publish=publish,
            deferred_sync=deferred_sync,
            password_is_known=password_is_known,
            max_changes=limits.max_ensemble_changes,
        )
        #: The adds under way. The owner only reads them.
        self.adds = AddWindow(metadata.quorum, last_entry_id + 1, limits)
        self._forces = Forces()
        self._lac = ExplicitLac(limits.explicit_lac_interval_ms, metadata.quorum.ack_quorum_size)
        self._close_wanted = False
        self._closing: LedgerClosing | None = None
        self._actions: list[WriterAction] = [ConnectBookie(bookie_id) for bookie_id in self.ensemble.members]

    # --- the contract ---

    def take_actions(self) -> list[WriterAction]:
        """Return the new actions, in order."""
        actions, self._actions = self._actions, []
        return actions

    def handle(self, event: WriterEvent) -> None:
        """Take an event. Ignored after the end. While the ledger is closing, only answers about metadata count."""
        if self.outcome is not None:
            return
        if self.state is WriterState.CLOSING:
            if self._closing is not None and isinstance(event, MetadataEvent):
                self._closing.handle(event)
                self._advance_closing(self._closing)
            return
        match event:
            case AddsAnswered(bookie_id, entry_ids, codes):
                self._on_add_answers(bookie_id, entry_ids, codes)
            case BookieFailed(bookie_id):
                self._on_bookie_failed(bookie_id)
            case BookieForced(bookie_id, last_entry_id):
                if (length := self._forces.on_forced(bookie_id, last_entry_id)) is not None:
                    self._confirm(last_entry_id, length)
            case LacAnswered(last_add_confirmed, taken):
                self._lac.on_answer(last_add_confirmed, taken=taken)
            case TimerFired(SendRefused(bookie_id)):
                if (index := self.ensemble.index_of(bookie_id)) is not None:
                    self._actions += self.adds.send_refused(index, bookie_id)
            case TimerFired(WriterTimer.PROGRESS):
                self._check_progress()
            case TimerFired(WriterTimer.EXPLICIT_LAC):
                lac = self.last_add_confirmed
                self._actions += self._lac.on_timer(lac, self.ensemble.write_set(lac))
            case _:
                self._on_ensemble_event(event)
        if self._close_wanted:
            self._drain()

    def fail(self, error: Exception) -> None:
        """End the writer. Pending entries stay unacknowledged. While the ledger is closing, only this close fails."""
        error = error if isinstance(error, BookKeeperError) else BookKeeperError(repr(error))
        if self._closing is not None:
            self._closing.fail(error)
            self._advance_closing(self._closing)
        elif self.outcome is None:
            self._end(error)

    # --- queries of the owner ---

    @property
    def metadata(self) -> LedgerMetadata:
        """The stored metadata as far as known. A recovery's ensemble changes are in here and not yet stored."""
        return self.outcome.result if isinstance(self.outcome, Succeeded) else self.ensemble.metadata

    @property
    def pending_entries(self) -> int:
        """The number of entries added and not yet acknowledged."""
        return self.last_add_pushed - self.last_add_acknowledged

    def check_open(self) -> None:
        """Raise the error that ended the writer. Raises LedgerClosedError after :meth:`close`."""
        if self.error is not None:
            # Without the calls that it was raised to before: their frames hold payloads, and a caller may try for ever.
            raise self.error.with_traceback(None)
        if self._close_wanted:
            raise LedgerClosedError(CLOSED_TEXT, ledger_id=self.ledger_id)

    # --- commands ---

    def add(self, payloads: Payloads | Sequence[Buffer], last_add_confirmed: int | None = None) -> int:
        """Add entries and return the id of the last one. Raises as :meth:`check_open` does.

        ``last_add_confirmed`` replaces the writer's own in the entries' headers. Recovery writes back the LAC that it
        began with.
        """
        self.check_open()
        if not len(payloads):
            return self.last_add_pushed
        lac = self.last_add_confirmed if last_add_confirmed is None else last_add_confirmed
        frames = self._packager.package(self.last_add_pushed + 1, lac, self._pushed_length, payloads)
        self.last_add_pushed += len(frames)
        self._pushed_length = int(frames.lengths[-1])
        self._actions += self.adds.add(frames, self.ensemble.members, self.ensemble.failed)
        self._lac.on_carried(lac)
        if self.ensemble.failed:
            self._advance_ensemble()
        return self.last_add_pushed

    def force(self) -> None:
        """With deferred sync: confirm the entries acknowledged so far, once every bookie has synced them."""
        assert self.deferred_sync
        if self.error is not None:
            raise self.error.with_traceback(None)
        head = self.last_add_acknowledged
        if head > self.last_add_confirmed:
            self._actions += self._forces.begin(head, self._acknowledged_length, self.ensemble.members)

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
            self._end(LedgerClosedError(CLOSED_TEXT, ledger_id=self.ledger_id))

    # --- adds ---

    def _on_add_answers(self, bookie_id: str, entry_ids: Int64s, codes: npt.NDArray[np.int32]) -> None:
        index = self.ensemble.index_of(bookie_id)
        if index is None:
            return
        if not (codes[0] if len(codes) == 1 else codes.any()):
            self.adds.on_held(index, bookie_id, entry_ids)
            self.ensemble.first_answers.on_held(bookie_id, len(entry_ids))
        else:
            held, refused = codes == Code.OK, codes == Code.TOO_MANY_REQUESTS
            bad = {Code.from_v2(code) for code in codes[~(held | refused)].tolist()}
            if bad:
                self._on_error_codes(bookie_id, bad)
            if self.outcome is not None:
                return
            self.adds.on_held(index, bookie_id, entry_ids[held])
            self.ensemble.first_answers.on_held(bookie_id, int(np.count_nonzero(held)))
            if refused.any() and index not in self.ensemble.failed:
                self._actions += self.adds.on_refused(index, bookie_id, entry_ids[refused])
        self._acknowledge()

    def _on_error_codes(self, bookie_id: str, codes: set[Code]) -> None:
        if Code.FENCED in codes:
            said = "another client fenced the ledger"
            self._end(LedgerFencedError(said, ledger_id=self.ledger_id, bookie_id=bookie_id, code=Code.FENCED.name))
        elif Code.UNAUTHORIZED in codes and not self.ensemble.first_answers.password_is_known:
            self._end(error_of(Code.UNAUTHORIZED, "add", ledger_id=self.ledger_id, bookie_id=bookie_id, with_key=True))
        else:
            self._on_bookie_failed(bookie_id)

    def _acknowledge(self) -> None:
        pending, ensemble = self.adds.pending, self.ensemble
        complete = pending.complete_through(self.last_add_acknowledged)
        if complete > self.last_add_acknowledged and ensemble.may_acknowledge(pending.owed):
            self.last_add_acknowledged = complete
            self._acknowledged_length = pending.length_at(complete)
            if not self.deferred_sync:
                self._confirm(complete, self._acknowledged_length)
        self._actions += ensemble.take_actions()
        self.adds.release(self.last_add_acknowledged)

    def _confirm(self, last_entry_id: int, length: int) -> None:
        if last_entry_id > self.last_add_confirmed:
            self.last_add_confirmed, self.length = last_entry_id, length
            self._actions += self._lac.on_confirmed(last_entry_id)

    # --- time ---

    def _check_progress(self) -> None:
        for bookie_id in self.adds.on_tick():
            self._on_bookie_failed(bookie_id)
        if self.adds.is_overdue(self.last_add_acknowledged):
            said = f"no ack quorum within {self._limits.add_quorum_timeout_ms} ms (addEntryQuorumTimeoutSec)"
            overdue = self.last_add_acknowledged + 1
            self.fail(AddQuorumTimeoutError(said, ledger_id=self.ledger_id, entry_id=overdue))
        elif self.outcome is None:
            self._actions += self.adds.keep_time()

    # --- the ensemble ---

    def _on_bookie_failed(self, bookie_id: str) -> None:
        self.ensemble.on_bookie_failed(bookie_id)
        if (index := self.ensemble.index_of(bookie_id)) is not None:
            self.adds.give_up(index, bookie_id)
        self._advance_ensemble()

    def _on_ensemble_event(self, event: ChangeEvent) -> None:
        joined = self.ensemble.handle(event, self.last_add_acknowledged)
        for index, bookie_id in joined.items():
            resent = self.adds.replace(index, bookie_id, self.last_add_acknowledged + 1)
            if index in self.ensemble.failed:
                self.adds.give_up(index, bookie_id)
            else:
                self._actions += resent
        self._advance_ensemble()

    def _advance_ensemble(self) -> None:
        """Acknowledge what the ensemble allows now, and let it begin the change that it needs."""
        ensemble = self.ensemble
        if self.outcome is None:
            self._acknowledge()
            ensemble.advance(self.last_add_acknowledged, pending=self.pending_entries > 0, drained=self._drained)
        self._actions += ensemble.take_actions()
        if self.outcome is None and ensemble.error is not None:
            self._end(ensemble.error)

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
        self.ensemble.stop_search()
        self._actions += self.ensemble.take_actions()
        # Wait for the end of a change that may be published before closing the ledger.
        if self.ensemble.state is ChangeState.NONE:
            self.state = WriterState.CLOSING
            self.error = LedgerClosedError(CLOSED_TEXT, ledger_id=self.ledger_id)
            self.adds.clear()
            self._forces.clear()
            self._begin_closing()

    def _begin_closing(self) -> None:
        end = (self.last_add_confirmed, self.length)
        self._closing = LedgerClosing(self.ledger_id, self.metadata, self.ensemble.version, *end)
        self._advance_closing(self._closing)

    def _advance_closing(self, closing: LedgerClosing) -> None:
        self._actions += closing.take_actions()
        match closing.outcome:
            case Succeeded():
                self.state = WriterState.CLOSED
                self.outcome = closing.outcome
            case EndedBy(error):
                self._closing = None
                self.close_error = error

    def _end(self, error: BookKeeperError) -> None:
        self.state = WriterState.FAILED
        self.error = error
        self.outcome = EndedBy(error)
        self.adds.clear()
        # Only pending LeaveBookie actions are still performed.
        self._actions = [action for action in self._actions if isinstance(action, LeaveBookie)]
