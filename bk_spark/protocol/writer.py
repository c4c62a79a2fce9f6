"""The ledger writer as a state machine without I/O. Source: compatibility facts §4.3–§4.6.

Rules:

* Entries go to their write set; an entry is complete once Qa of its bookies hold it; entries are
  acknowledged in order, so the last add confirmed (LAC) is the end of the complete prefix.
* A bookie that has too many requests has not failed: what it refused is sent again later, also when it is
  acknowledged by then. Its driver gives it up when nothing gets through for too long.
* A failed bookie is replaced by an *ensemble change*: a new segment from LAC + 1 on. While one is under
  way nothing is acknowledged: an acknowledgement on an ensemble that is not yet published could be
  lost to a reader who knows only the old one. Entries not yet acknowledged are sent to the
  replacement again.
* Where no replacement can be had, the writer goes on without the bookie as long as every write set can
  still reach Qa; else it ends.
* A writer that recovers a ledger (``publish=False``) keeps its ensemble changes to itself until the
  closing compare-and-set publishes them.
* A fenced answer, or metadata found not OPEN, ends the writer: another client owns the ledger.

======== =================================== ========
state    event                               next
======== =================================== ========
OPEN     a bookie failed, adds pending       CHANGING
CHANGING segment published                   OPEN
OPEN     fail()/fenced/…                     FAILED
CHANGING no replacement, conflict, …         FAILED
======== =================================== ========

Events are method calls; what is to be done comes back from :meth:`take_actions`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.add_frames import EntryPackager
from bk_spark.protocol.codes import NO_ENTRY, Code
from bk_spark.protocol.errors import (
    BookKeeperError,
    LedgerClosedError,
    LedgerFencedError,
    UnauthorizedError,
)
from bk_spark.protocol.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bk_spark.protocol.payloads import Payloads
from bk_spark.protocol.pending_adds import PendingAdds


@dataclass(frozen=True, slots=True)
class SendAdds:
    """Send ``frames`` (v2 ADD frames of this ledger, ``entries`` in number) to ``bookie_id``."""

    bookie_id: str
    frames: list[memoryview]
    entries: int


@dataclass(frozen=True, slots=True)
class ChooseBookies:
    """Find a bookie for each ensemble index in ``failed``, none of ``exclude``. One of ``avoid`` (they failed
    this writer before) is better than none where ``needed``: the writer cannot go on without. Answer with
    :meth:`LedgerWriter.on_bookies_chosen` or :meth:`LedgerWriter.on_no_bookies`."""

    failed: tuple[int, ...]
    exclude: frozenset[str]
    avoid: frozenset[str]
    needed: bool


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Compare-and-set the ledger's metadata; answer with :meth:`LedgerWriter.on_metadata_written`,
    :meth:`LedgerWriter.on_metadata_conflict` (found something else) or :meth:`LedgerWriter.fail`."""

    metadata: LedgerMetadata


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Every entry up to ``last_add_confirmed`` is durable and will be readable."""

    last_add_confirmed: int


@dataclass(frozen=True, slots=True)
class Throttled:
    """``bookie_id`` has too many requests: wait a little, then call :meth:`LedgerWriter.retry_refused`."""

    bookie_id: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The writer has ended; entries beyond the LAC may or may not survive."""

    error: BookKeeperError


Action = SendAdds | ChooseBookies | WriteMetadata | Acknowledge | Throttled | Failed


class WriterState(enum.Enum):
    OPEN = "open"
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
        packager: EntryPackager,
        *,
        last_entry_id: int = NO_ENTRY,
        length: int = 0,
        publish: bool = True,
    ) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.state = WriterState.OPEN
        self.last_add_pushed = last_entry_id
        self.last_add_confirmed = last_entry_id
        #: Payload bytes of acknowledged entries.
        self.length = length
        self.error: BookKeeperError | None = None
        self._packager = packager
        self._publish = publish
        self._pushed_length = length
        self._ensemble = list(metadata.last_segment.ensemble)
        self._pending = PendingAdds(metadata.quorum, last_entry_id + 1)
        self._failed: dict[int, str] = {}
        #: Failed indexes for which no replacement was to be had.
        self._irreplaceable: set[int] = set()
        #: Bookies that failed this writer.
        self._quarantine: set[str] = set()
        #: Bookies with refused entries that wait to be sent again.
        self._throttled: set[str] = set()
        #: The ensemble change that waits to be published.
        self._replacements: dict[int, str] = {}
        self._proposed = metadata
        self._actions: list[Action] = []

    # --- what the driver asks ---

    def take_actions(self) -> list[Action]:
        """What is to be done now, in order; each action is given once."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def ensemble(self) -> tuple[str, ...]:
        return tuple(self._ensemble)

    @property
    def pending_entries(self) -> int:
        """Entries added and not yet acknowledged."""
        return self.last_add_pushed - self.last_add_confirmed

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

    # --- events ---

    def add(self, payloads: Payloads, last_add_confirmed: int | None = None) -> int:
        """Add entries; the id of the last one. Raises the error that ended the writer.

        ``last_add_confirmed`` replaces the writer's own in the entries' headers (recovery writes back
        the LAC it began with).
        """
        if self.error is not None:
            raise self.error
        first = self.last_add_pushed + 1
        if not len(payloads):
            return self.last_add_pushed
        lac = self.last_add_confirmed if last_add_confirmed is None else last_add_confirmed
        frames = self._packager.package(first, lac, self._pushed_length, payloads)
        self.last_add_pushed += len(frames)
        self._pushed_length = int(frames.lengths[-1])
        live = np.array([index not in self._failed for index in range(len(self._ensemble))])
        for index, wanted in enumerate(self._pending.append(frames, live)):
            if wanted.any():
                self._send(index, frames.select(wanted), int(wanted.sum()))
        self._change_ensemble_if_needed()
        return self.last_add_pushed

    def on_add_answers(self, bookie_id: str, entry_ids: npt.NDArray[np.int64], codes: npt.NDArray[np.int32]) -> None:
        """Answers of one bookie, of any entries, in any order."""
        if self.state is WriterState.FAILED or bookie_id not in self._ensemble:
            return
        index = self._ensemble.index(bookie_id)
        held, refused = codes == Code.OK, codes == Code.TOO_MANY_REQUESTS
        if not held.all():
            bad = {Code.from_v2(code) for code in codes[~(held | refused)].tolist()}
            if bad:
                self._on_error_codes(bookie_id, bad)
            if self.error is not None:
                return
            if refused.any() and index not in self._failed:
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

    def on_bookie_failed(self, bookie_id: str) -> None:
        """The bookie is away: its connection broke, could not be made, or it did not answer in time."""
        if self.state is WriterState.FAILED:
            return
        if bookie_id in self._ensemble:
            index = self._ensemble.index(bookie_id)
            self._failed[index] = bookie_id
            self._pending.give_up(index)
            self._acknowledge()
        elif bookie_id not in self._replacements.values():
            return
        # A replacement that fails before it is published is dealt with in on_metadata_written.
        self._quarantine.add(bookie_id)
        self._throttled.discard(bookie_id)
        self._change_ensemble_if_needed()

    def on_bookies_chosen(self, replacements: Mapping[int, str]) -> None:
        """``replacements`` gives a new bookie for some or all of the failed indexes; at least one."""
        if self.state is not WriterState.CHANGING:
            return
        ensemble = list(self._ensemble)
        for index, bookie_id in replacements.items():
            ensemble[index] = bookie_id
            self._quarantine.discard(bookie_id)
        self._replacements = dict(replacements)
        self._proposed = self.metadata.with_segment(Segment(self.last_add_confirmed + 1, tuple(ensemble)))
        if self._publish:
            self._actions.append(WriteMetadata(self._proposed))
        else:
            self.on_metadata_written(self._proposed)

    def on_no_bookies(self, error: BookKeeperError) -> None:
        """No bookie can take the place of any that failed; ``error`` says why."""
        if self.state is not WriterState.CHANGING:
            return
        if not self._can_go_on():
            self.fail(error)
            return
        self.state = WriterState.OPEN
        self._irreplaceable |= set(self._failed)
        self._acknowledge()

    def on_bookies_changed(self) -> None:
        """Bookies came or went: what could not be replaced before may be replaced now, perhaps by one that
        failed and runs again."""
        if self._irreplaceable:
            self._irreplaceable.clear()
            self._quarantine.clear()
            self._change_ensemble_if_needed()

    def on_metadata_written(self, metadata: LedgerMetadata) -> None:
        """The ensemble of ``metadata`` is published: entries may be acknowledged on it."""
        if self.state is not WriterState.CHANGING:
            return
        self.metadata = metadata
        self.state = WriterState.OPEN
        replacements, self._replacements = self._replacements, {}
        for index, bookie_id in replacements.items():
            self._ensemble[index] = bookie_id
            self._failed.pop(index, None)
            self._irreplaceable.discard(index)
            frames, count = self._pending.replace(index, self.last_add_confirmed + 1)
            if bookie_id in self._quarantine:
                self._failed[index] = bookie_id
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
            self.fail(LedgerClosedError("another client closed the ledger", ledger_id=self.ledger_id))
        elif found.state is LedgerState.IN_RECOVERY:
            self.fail(LedgerFencedError("another client is recovering the ledger", ledger_id=self.ledger_id))
        elif found.last_segment == self._proposed.last_segment:
            # It was ours, only the reply got lost.
            self.on_metadata_written(found)
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
        self._actions.append(Failed(error))

    # --- inside ---

    def _send(self, index: int, frames: list[memoryview], entries: int) -> None:
        self._actions.append(SendAdds(self._ensemble[index], frames, entries))

    def _on_error_codes(self, bookie_id: str, codes: set[Code]) -> None:
        if Code.FENCED in codes:
            self.fail(
                LedgerFencedError("another client fenced the ledger", ledger_id=self.ledger_id, bookie_id=bookie_id)
            )
        elif Code.UNAUTHORIZED in codes:
            self.fail(
                UnauthorizedError(
                    "the bookie refused the ledger's password", ledger_id=self.ledger_id, bookie_id=bookie_id
                )
            )
        else:
            self.on_bookie_failed(bookie_id)

    def _throttle(self, bookie_id: str) -> None:
        if bookie_id not in self._throttled:
            self._throttled.add(bookie_id)
            self._actions.append(Throttled(bookie_id))

    def _acknowledge(self) -> None:
        if self.state is WriterState.OPEN:
            complete = self._pending.complete_through(self.last_add_confirmed)
            if complete > self.last_add_confirmed:
                self.last_add_confirmed = complete
                self.length = self._pending.length_at(complete)
                self._actions.append(Acknowledge(complete))
        self._pending.release(self.last_add_confirmed)

    def _change_ensemble_if_needed(self) -> None:
        # An idle ledger keeps its ensemble: most failures heal before the next add.
        replaceable = self._failed.keys() - self._irreplaceable
        if self.state is not WriterState.OPEN or not replaceable or not self.pending_entries:
            return
        self.state = WriterState.CHANGING
        exclude = frozenset(self._ensemble)
        avoid = frozenset(self._quarantine) - exclude
        self._actions.append(ChooseBookies(tuple(sorted(self._failed)), exclude, avoid, not self._can_go_on()))

    def _can_go_on(self) -> bool:
        """Whether every write set can reach its ack quorum without the failed bookies."""
        quorum = self.metadata.quorum
        spare = quorum.write_quorum_size - quorum.ack_quorum_size
        return all(
            sum(index in self._failed for index in quorum.write_set(start)) <= spare
            for start in range(quorum.ensemble_size)
        )
