"""The ledger writer as a state machine without I/O. Source: compatibility.md §4.3–§4.6, §4.10.

Rules:

* Entries go to their write set; an entry is complete once Qa of its bookies hold it; entries are
  acknowledged in order, so the last add confirmed (LAC) is the end of the complete prefix.
* A bookie that has too many requests has not failed: what it refused is sent again later, also when it is
  acknowledged by then. Its driver gives it up when nothing gets through for too long.
* A failed bookie is replaced by an *ensemble change*: a new segment from LAC + 1 on. While the metadata are
  being changed nothing is acknowledged: an acknowledgement on an ensemble that is not yet published could be
  lost to a reader who knows only the old one. Entries not yet acknowledged are sent to the replacement again.
* So that they are many, acknowledging stops already while a replacement is looked for; but only for a moment:
  until something new is written, an ack quorum of the published ensemble is as good as ever.
* Where no replacement can be had, the writer goes on without the bookie as long as every write set can
  still reach Qa; else it ends.
* A writer that recovers a ledger (``publish=False``) keeps its ensemble changes to itself until the
  closing compare-and-set publishes them.
* A fenced answer, or metadata found not OPEN, ends the writer: another client owns the ledger.
* With *deferred sync* an acknowledged entry is only held, not yet synced: it becomes the LAC when every bookie
  of the ensemble was forced after it was acknowledged. A bookie that failed may have lost what it held, so
  the ensemble can be changed only before the first acknowledgement; later a failure ends the writer.

======== ========================================= ========
state    event                                     next
======== ========================================= ========
OPEN     a bookie failed, adds pending             CHOOSING
CHOOSING bookies chosen                            CHANGING
CHOOSING none to be had, can go on without; seal() OPEN
CHANGING segment published, conflict with another  OPEN
any      fail(), fenced, cannot go on, …           FAILED
======== ========================================= ========

Events are method calls; what is to be done comes back from :meth:`take_actions`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.codes import NO_ENTRY, Code
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import (
    BookKeeperError,
    EnsembleChangeRefusedError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataConflictError,
    UnauthorizedError,
)
from bk_spark.protocol.ledger.failed_bookies import FailedBookies
from bk_spark.protocol.ledger.forcing import Forces
from bk_spark.protocol.ledger.pending_adds import PendingAdds
from bk_spark.protocol.ledger.writer_actions import (
    Acknowledge,
    Action,
    Failed,
    SendAdds,
    Throttled,
    WriteMetadata,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bk_spark.protocol.wire.add_frames import Packager
from bk_spark.protocol.wire.code_errors import reason_of

#: As Apache's maxNumEnsembleChanges has it.
UNLIMITED: Final = 2**31 - 1


class WriterState(enum.Enum):
    OPEN = "open"
    CHOOSING = "choosing bookies"
    CHANGING = "changing ensemble"
    FAILED = "failed"


class LedgerWriter:
    """Adds entries to one ledger. Not thread-safe; drives nothing itself.

    ``last_entry_id`` and ``length`` are where the ledger stands when a recovery takes it over.
    """

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        packager: Packager,
        *,
        last_entry_id: int = NO_ENTRY,
        length: int = 0,
        publish: bool = True,
        deferred_sync: bool = False,
        max_ensemble_changes: int = UNLIMITED,
    ) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.state = WriterState.OPEN
        self.last_add_pushed = last_entry_id
        #: End of the run of entries that an ack quorum holds.
        self.last_add_acknowledged = last_entry_id
        #: The same, but with deferred sync only what was forced since.
        self.last_add_confirmed = last_entry_id
        #: Payload bytes of confirmed entries.
        self.length = length
        self.error: BookKeeperError | None = None
        self.deferred_sync = deferred_sync
        self._packager = packager
        self._publish = publish
        self._pushed_length = self._acknowledged_length = length
        self._ensemble = list(metadata.last_segment.ensemble)
        self._pending = PendingAdds(metadata.quorum, last_entry_id + 1)
        self._failures = FailedBookies()
        #: Bookies with refused entries that wait to be sent again.
        self._throttled: set[str] = set()
        #: The ensemble change that waits to be published.
        self._replacements: dict[int, str] = {}
        self._proposed = metadata
        self._changes_left = max_ensemble_changes
        self._forces = Forces()
        self._sealed = False
        self._actions: list[Action] = []

    # --- what the driver asks ---

    def take_actions(self) -> list[Action]:
        """What is to be done now, in order; each action is given once."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def ensemble(self) -> tuple[str, ...]:
        return tuple(self._ensemble)

    def has_failed(self, bookie_id: str) -> bool:
        """Whether the bookie is in the ensemble and waits to be replaced."""
        return bookie_id in self._failures.failed.values()

    @property
    def pending_entries(self) -> int:
        """Entries added and not yet acknowledged."""
        return self.last_add_pushed - self.last_add_acknowledged

    @property
    def oldest_retained(self) -> int:
        """The first entry that is not acknowledged, or that a bookie in use still owes."""
        return self._pending.first_entry_id

    @property
    def most_unanswered(self) -> int:
        """Adds that the slowest bookie of the ensemble owes. Bounding it keeps a slow third replica from
        being buried while the ack quorum runs ahead (scenario B9)."""
        return max(self._pending.owed(index) for index in range(len(self._ensemble)))

    @property
    def throttled(self) -> bool:
        """Whether a bookie has too many requests."""
        return bool(self._throttled)

    def unanswered(self, bookie_id: str) -> int:
        """Adds that ``bookie_id`` owes; none where it has been given up."""
        return self._pending.owed(self._ensemble.index(bookie_id)) if bookie_id in self._ensemble else 0

    # --- adding ---

    def add(self, payloads: Payloads | Sequence[Buffer], last_add_confirmed: int | None = None) -> int:
        """Add entries; the id of the last one. Raises the error that ended the writer.

        ``last_add_confirmed`` replaces the writer's own in the entries' headers (recovery writes back
        the LAC it began with).
        """
        if self.error is not None:
            raise self.error
        if self._sealed:
            raise LedgerClosedError("the ledger is being closed", ledger_id=self.ledger_id)
        first = self.last_add_pushed + 1
        if not len(payloads):
            return self.last_add_pushed
        lac = self.last_add_confirmed if last_add_confirmed is None else last_add_confirmed
        frames = self._packager.package(first, lac, self._pushed_length, payloads)
        self.last_add_pushed += len(frames)
        self._pushed_length = int(frames.lengths[-1])
        live = [index not in self._failures.failed for index in range(len(self._ensemble))]
        for index, (sent, count) in enumerate(self._pending.append(frames, live)):
            if count:
                self._send(index, sent, count)
        self._change_ensemble_if_needed()
        return self.last_add_pushed

    def on_add_answers(self, bookie_id: str, entry_ids: npt.NDArray[np.int64], codes: npt.NDArray[np.int32]) -> None:
        """Answers of one bookie, of any entries, in any order."""
        if self.state is WriterState.FAILED or bookie_id not in self._ensemble:
            return
        index = self._ensemble.index(bookie_id)
        if codes.any():
            held, refused = codes == Code.OK, codes == Code.TOO_MANY_REQUESTS
            bad = {Code.from_v2(code) for code in codes[~(held | refused)].tolist()}
            if bad:
                self._on_error_codes(bookie_id, bad)
            if self.error is not None:
                return
            if refused.any() and index not in self._failures.failed:
                self._pending.on_refused(index, entry_ids[refused])
                self._throttle(bookie_id)
            entry_ids = entry_ids[held]
        self._pending.on_held(index, entry_ids)
        self._acknowledge()

    def retry_refused(self, bookie_id: str) -> None:
        """Some time after :class:`Throttled`: send again what the bookie refused."""
        if bookie_id in self._throttled:
            self._throttled.discard(bookie_id)
            index = self._ensemble.index(bookie_id)
            frames, count = self._pending.take_refused(index)
            if count:
                self._send(index, frames, count)

    def force(self) -> None:
        """With deferred sync: confirm what is acknowledged now, once every bookie has synced it."""
        assert self.deferred_sync
        if self.error is not None:
            raise self.error
        head = self.last_add_acknowledged
        if head > self.last_add_confirmed:
            self._actions += self._forces.begin(head, self._acknowledged_length, self._ensemble)

    def on_forced(self, bookie_id: str, last_entry_id: int) -> None:
        """The bookie has synced all it was sent before :class:`ForceBookie` of ``last_entry_id``."""
        length = self._forces.on_forced(bookie_id, last_entry_id)
        if length is not None:
            self._confirm(last_entry_id, length)

    def seal(self) -> None:
        """The ledger is about to be closed: no more adds, and no ensemble change but one being published."""
        self._sealed = True
        if self.state is WriterState.CHOOSING:
            self.state = WriterState.OPEN

    # --- failures and ensemble changes ---

    def on_bookie_failed(self, bookie_id: str) -> None:
        """The bookie is away: its connection broke, could not be made, or it did not answer in time."""
        if self.state is WriterState.FAILED:
            return
        if bookie_id in self._ensemble:
            index = self._ensemble.index(bookie_id)
            self._failures.failed[index] = bookie_id
            self._pending.give_up(index)
            self._acknowledge()
        elif bookie_id not in self._replacements.values():
            return
        # A replacement that fails before it is published is dealt with in on_metadata_written.
        self._failures.quarantine.add(bookie_id)
        self._throttled.discard(bookie_id)
        self._change_ensemble_if_needed()

    def on_bookies_chosen(self, replacements: Mapping[int, str]) -> None:
        """``replacements`` gives a new bookie for some or all of the failed indexes; at least one."""
        if self.state is not WriterState.CHOOSING:
            return
        self.state = WriterState.CHANGING
        ensemble = list(self._ensemble)
        for index, bookie_id in replacements.items():
            ensemble[index] = bookie_id
            self._failures.quarantine.discard(bookie_id)
        self._replacements = dict(replacements)
        self._proposed = self.metadata.with_segment(Segment(self.last_add_acknowledged + 1, tuple(ensemble)))
        if self._publish:
            self._actions.append(WriteMetadata(self._proposed))
        else:
            self.on_metadata_written(self._proposed)

    def on_search_slow(self) -> None:
        """Choosing bookies takes long: what an ack quorum holds need not wait for it."""
        if self.state is WriterState.CHOOSING:
            self._failures.search_is_slow = True
            self._acknowledge()

    def on_no_bookies(self, error: BookKeeperError) -> None:
        """No bookie can take the place of any that failed; ``error`` says why."""
        if self.state is not WriterState.CHOOSING:
            return
        self.state = WriterState.OPEN
        self._acknowledge()
        if not self._failures.answers_what_is_wanted(self._ensemble, self.metadata.quorum):
            self._change_ensemble_if_needed()
        elif self.pending_entries and (self.deferred_sync or not self.metadata.quorum.can_spare(self._failures.failed)):
            self.fail(error)
        else:
            self._failures.irreplaceable |= set(self._failures.failed)

    def on_bookies_changed(self) -> None:
        """Bookies came or went: what could not be replaced before may be replaced now, perhaps by one that
        failed and runs again."""
        if self._failures.on_bookies_changed():
            self._change_ensemble_if_needed()

    def on_metadata_written(self, metadata: LedgerMetadata) -> None:
        """The ensemble of ``metadata`` is published: entries may be acknowledged on it."""
        if self.state is not WriterState.CHANGING:
            return
        self.metadata = metadata
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

    def on_metadata_conflict(self, found: LedgerMetadata) -> None:
        """The compare-and-set lost; ``found`` is what the store holds now."""
        if self.state is not WriterState.CHANGING:
            return
        if found.state is LedgerState.CLOSED:
            self._end(LedgerClosedError, "another client closed the ledger")
        elif found.state is LedgerState.IN_RECOVERY:
            self._end(LedgerFencedError, "another client is recovering the ledger")
        elif found.last_segment == self._proposed.last_segment:
            # It was ours, only the reply got lost.
            self.on_metadata_written(found)
        elif found.last_segment != self.metadata.last_segment:
            self._end(MetadataConflictError, "another client changed the open segment")
        else:
            # Something else changed (re-replication of an older segment): the same change upon the new base.
            self.metadata = found
            self.state = WriterState.OPEN
            self._replacements = {}
            self._change_ensemble_if_needed()

    def fail(self, error: BookKeeperError) -> None:
        """End the writer with ``error``. Pending entries stay unacknowledged."""
        if self.state is WriterState.FAILED:
            return
        self.state = WriterState.FAILED
        self.error = error
        self._pending.clear()
        self._forces.clear()
        self._actions.append(Failed(error))

    # --- inside ---

    def _send(self, index: int, frames: list[memoryview], entries: int) -> None:
        self._actions.append(SendAdds(self._ensemble[index], frames, entries))

    def _on_error_codes(self, bookie_id: str, codes: set[Code]) -> None:
        if Code.FENCED in codes:
            self._end(LedgerFencedError, "another client fenced the ledger", bookie_id, Code.FENCED)
        elif Code.UNAUTHORIZED in codes:
            said = reason_of(Code.UNAUTHORIZED, with_key=True)
            self._end(UnauthorizedError, f"add: the bookie {said}", bookie_id, Code.UNAUTHORIZED)
        else:
            self.on_bookie_failed(bookie_id)

    def _throttle(self, bookie_id: str) -> None:
        if bookie_id not in self._throttled:
            self._throttled.add(bookie_id)
            self._actions.append(Throttled(bookie_id))

    def _acknowledge(self) -> None:
        # Without the ensemble whole, nothing more could be forced: better replace the bookie first.
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

    def _confirm(self, last_entry_id: int, length: int) -> None:
        if last_entry_id > self.last_add_confirmed:
            self.last_add_confirmed, self.length = last_entry_id, length
            self._actions.append(Acknowledge(last_entry_id))

    def _change_ensemble_if_needed(self) -> None:
        if self._sealed:
            return
        if self._failures.failed and self.deferred_sync and self.last_add_acknowledged != NO_ENTRY:
            self._refuse_change("a ledger with deferred sync cannot replace it; recover the ledger, write a new one")
        # An idle ledger keeps its ensemble: most failures heal before the next add.
        replaceable = self._failures.failed.keys() - self._failures.irreplaceable
        if self.state is not WriterState.OPEN or not replaceable or not self.pending_entries:
            return
        if self._changes_left <= 0:
            self._refuse_change("the ensemble was changed as often as maxNumEnsembleChanges allows")
            return
        self.state = WriterState.CHOOSING
        self._actions.append(self._failures.begin_search(self._ensemble, self.metadata.quorum))

    def _refuse_change(self, why: str) -> None:
        self._end(
            EnsembleChangeRefusedError, f"bookie {', '.join(sorted(self._failures.failed.values()))} failed; {why}"
        )

    def _end(
        self, kind: type[BookKeeperError], message: str, bookie_id: str | None = None, code: Code | None = None
    ) -> None:
        name = None if code is None else code.name
        self.fail(kind(message, ledger_id=self.ledger_id, bookie_id=bookie_id, code=name))
