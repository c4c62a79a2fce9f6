"""The ledger writer as a state machine without I/O. Source: compatibility facts §4.3–§4.6.

Rules:

* Entries go to their write set; an entry is complete once Qa of its bookies hold it; entries are
  acknowledged in order, so the last add confirmed (LAC) is the end of the complete prefix.
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
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.add_frames import AddFrames, EntryPackager
from bk_spark.protocol.codes import NO_ENTRY, Code
from bk_spark.protocol.errors import (
    BookKeeperError,
    LedgerClosedError,
    LedgerFencedError,
    UnauthorizedError,
)
from bk_spark.protocol.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bk_spark.protocol.payloads import Payloads


@dataclass(frozen=True, slots=True)
class SendAdds:
    """Send ``frames`` to ``bookie_id`` (v2 ADD frames of this ledger)."""

    bookie_id: str
    frames: list[memoryview]
    entries: int


@dataclass(frozen=True, slots=True)
class ChooseBookies:
    """Find a bookie for each ensemble index in ``failed``, none of ``exclude``; answer with
    :meth:`LedgerWriter.on_bookies_chosen` or :meth:`LedgerWriter.on_no_bookies`."""

    failed: tuple[int, ...]
    exclude: frozenset[str]


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
class Failed:
    """The writer has ended; entries beyond the LAC may or may not survive."""

    error: BookKeeperError


Action = SendAdds | ChooseBookies | WriteMetadata | Acknowledge | Failed


class WriterState(enum.Enum):
    OPEN = "open"
    CHANGING = "changing ensemble"
    FAILED = "failed"


@dataclass(slots=True)
class _Pending:
    """Entries sent together. ``acks[i, k]``: the bookie at ensemble index k holds entry i;
    ``members[i, k]``: index k is in the write set of entry i."""

    frames: AddFrames
    members: npt.NDArray[np.bool_]
    acks: npt.NDArray[np.bool_]
    done: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.done = np.zeros(len(self.frames), np.bool_)

    def recount(self, ack_quorum_size: int) -> None:
        np.greater_equal(self.acks.sum(axis=1), ack_quorum_size, out=self.done)


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
        self._pending: deque[_Pending] = deque()
        self._failed: dict[int, str] = {}
        #: Failed indexes for which no replacement was to be had.
        self._irreplaceable: set[int] = set()
        #: Bookies that failed this writer; never chosen again by it.
        self._quarantine: set[str] = set()
        self._unanswered: dict[str, int] = dict.fromkeys(self._ensemble, 0)
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
    def most_unanswered(self) -> int:
        """Adds that the slowest bookie of the ensemble has not answered. Bounding it keeps a slow
        third replica from being buried while the ack quorum runs ahead (scenario B9)."""
        live = (bookie for index, bookie in enumerate(self._ensemble) if index not in self._failed)
        return max((self._unanswered[bookie] for bookie in live), default=0)

    def unanswered(self, bookie_id: str) -> int:
        """Adds sent to ``bookie_id`` and not answered."""
        return self._unanswered.get(bookie_id, 0)

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
        quorum = self.metadata.quorum
        entry_ids = np.arange(first, first + len(frames))[:, None]
        members = (np.arange(quorum.ensemble_size)[None, :] - entry_ids) % quorum.ensemble_size
        pending = _Pending(
            frames, members < quorum.write_quorum_size, np.zeros((len(frames), quorum.ensemble_size), np.bool_)
        )
        self._pending.append(pending)
        for index in range(quorum.ensemble_size):
            if index not in self._failed:
                self._send(index, pending)
        self._change_ensemble_if_needed()
        return self.last_add_pushed

    def on_add_answers(self, bookie_id: str, entry_ids: npt.NDArray[np.int64], codes: npt.NDArray[np.int32]) -> None:
        """Answers of one bookie, of any entries, in any order."""
        if bookie_id in self._unanswered:
            self._unanswered[bookie_id] = max(0, self._unanswered[bookie_id] - len(entry_ids))
        if self.state is WriterState.FAILED or bookie_id not in self._ensemble:
            return
        bad = codes != Code.OK
        if bad.any():
            self._on_error_code(bookie_id, Code.from_v2(int(codes[bad][0])))
            if self.error is not None:
                return
            entry_ids = entry_ids[~bad]
        self._count_acks(self._ensemble.index(bookie_id), entry_ids)
        self._acknowledge()

    def on_bookie_failed(self, bookie_id: str) -> None:
        """The bookie is away: its connection broke, could not be made, or it did not answer in time."""
        if self.state is WriterState.FAILED or bookie_id not in self._ensemble:
            return
        self._failed[self._ensemble.index(bookie_id)] = bookie_id
        self._quarantine.add(bookie_id)
        self._change_ensemble_if_needed()

    def on_bookies_chosen(self, replacements: Mapping[int, str]) -> None:
        """``replacements`` gives a new bookie for some or all of the failed indexes; at least one."""
        if self.state is not WriterState.CHANGING:
            return
        ensemble = list(self._ensemble)
        for index, bookie_id in replacements.items():
            ensemble[index] = bookie_id
        changed = self.metadata.with_segment(Segment(self.last_add_confirmed + 1, tuple(ensemble)))
        if self._publish:
            self._actions.append(WriteMetadata(changed))
        else:
            self.on_metadata_written(changed)

    def on_no_bookies(self, error: BookKeeperError) -> None:
        """No bookie can take the place of any that failed; ``error`` says why."""
        if self.state is not WriterState.CHANGING:
            return
        quorum = self.metadata.quorum
        for start in range(quorum.ensemble_size):
            members = quorum.write_set(start)
            if sum(index in self._failed for index in members) > quorum.write_quorum_size - quorum.ack_quorum_size:
                self.fail(error)
                return
        self.state = WriterState.OPEN
        self._irreplaceable |= set(self._failed)
        self._acknowledge()

    def on_bookies_changed(self) -> None:
        """Bookies came or went: what could not be replaced before may be replaced now."""
        self._irreplaceable.clear()
        self._change_ensemble_if_needed()

    def on_metadata_written(self, metadata: LedgerMetadata) -> None:
        """The ensemble of ``metadata`` is published: entries may be acknowledged on it."""
        if self.state is not WriterState.CHANGING:
            return
        self.metadata = metadata
        self.state = WriterState.OPEN
        for index, bookie_id in enumerate(metadata.last_segment.ensemble):
            if bookie_id == self._ensemble[index]:
                continue
            self._ensemble[index] = bookie_id
            self._unanswered[bookie_id] = 0
            self._failed.pop(index, None)
            self._irreplaceable.discard(index)
            for pending in self._pending:
                pending.acks[:, index] = False
                pending.recount(metadata.quorum.ack_quorum_size)
                self._send(index, pending)
        self._unanswered = {bookie: count for bookie, count in self._unanswered.items() if bookie in self._ensemble}
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
        elif any(found.last_segment.ensemble[index] == bookie for index, bookie in self._failed.items()):
            # Something else changed (re-replication of an older segment): the same change upon the new base.
            self.metadata = found
            self.state = WriterState.OPEN
            self._change_ensemble_if_needed()
        else:
            self.on_metadata_written(found)

    def fail(self, error: BookKeeperError) -> None:
        """End the writer with ``error``. Pending entries stay unacknowledged."""
        if self.state is WriterState.FAILED:
            return
        self.state = WriterState.FAILED
        self.error = error
        self._pending.clear()
        self._actions.append(Failed(error))

    # --- inside ---

    def _send(self, index: int, pending: _Pending) -> None:
        wanted = pending.members[:, index]
        count = int(wanted.sum())
        if count:
            bookie_id = self._ensemble[index]
            self._unanswered[bookie_id] += count
            self._actions.append(SendAdds(bookie_id, pending.frames.select(wanted), count))

    def _on_error_code(self, bookie_id: str, code: Code) -> None:
        if code is Code.FENCED:
            self.fail(
                LedgerFencedError("another client fenced the ledger", ledger_id=self.ledger_id, bookie_id=bookie_id)
            )
        elif code is Code.UNAUTHORIZED:
            self.fail(
                UnauthorizedError(
                    "the bookie refused the ledger's password", ledger_id=self.ledger_id, bookie_id=bookie_id
                )
            )
        else:
            self.on_bookie_failed(bookie_id)

    def _count_acks(self, index: int, entry_ids: npt.NDArray[np.int64]) -> None:
        ack_quorum_size = self.metadata.quorum.ack_quorum_size
        for pending in self._pending:
            if not len(entry_ids):
                return
            first = pending.frames.first_entry_id
            inside = (entry_ids >= first) & (entry_ids < first + len(pending.frames))
            if inside.any():
                rows = entry_ids[inside] - first
                pending.acks[rows, index] = pending.members[rows, index]
                pending.recount(ack_quorum_size)
                entry_ids = entry_ids[~inside]

    def _acknowledge(self) -> None:
        if self.state is not WriterState.OPEN:
            return
        before = self.last_add_confirmed
        while self._pending:
            head = self._pending[0]
            first, count = head.frames.first_entry_id, len(head.frames)
            complete = count if head.done.all() else int(np.argmin(head.done))
            if complete:
                self.last_add_confirmed = max(self.last_add_confirmed, first + complete - 1)
                self.length = max(self.length, int(head.frames.lengths[complete - 1]))
            if complete < count:
                break
            self._pending.popleft()
        if self.last_add_confirmed != before:
            self._actions.append(Acknowledge(self.last_add_confirmed))

    def _change_ensemble_if_needed(self) -> None:
        # An idle ledger keeps its ensemble: most failures heal before the next add.
        replaceable = self._failed.keys() - self._irreplaceable
        if self.state is not WriterState.OPEN or not replaceable or not self._pending:
            return
        self.state = WriterState.CHANGING
        self._actions.append(
            ChooseBookies(tuple(sorted(self._failed)), frozenset(self._ensemble) | frozenset(self._quarantine))
        )
