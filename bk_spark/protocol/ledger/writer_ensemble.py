"""The ensemble of a ledger being written, and the changes that replace failed bookies.

Source: compatibility.md §4.4, §4.5.

Rules:

* A failed bookie is replaced by an *ensemble change*: a new segment from LAC + 1 on. Nothing is acknowledged while the
  metadata are being changed. A reader who knows only the old ensemble could miss an entry that was acknowledged on an
  unpublished one. Entries not yet acknowledged are sent again, to the replacement.
* Acknowledging already stops during the search for a replacement, so that many entries get all their copies. It stops
  for one second at most. Until the new segment is written, an ack quorum of the published ensemble suffices.
* If there is no replacement, the writer continues without the bookie while every write set can still reach Qa. It
  searches again when bookies come or go, and after 30 s. If some write set cannot reach Qa, the writer ends.
* After a conflict of the compare-and-set, or a lost reply, the metadata are read. The result decides.
* A recovery (``publish=False``) does not publish its ensemble changes. The closing compare-and-set publishes them.
* Nothing is acknowledged before each member has answered that may know the ledger with another password, or was silent
  for a while (:mod:`bk_spark.protocol.ledger.first_answers`).
* With deferred sync a failed bookie may have lost entries that it held, so the ensemble can be changed only before the
  first acknowledgement. Later a failure ends the writer.

======== ================================================== ========
state    event                                              next
======== ================================================== ========
NONE     a bookie failed, adds pending                      CHOOSING
CHOOSING bookies chosen                                     CHANGING
CHOOSING none found, or the ledger is closing               NONE
CHANGING segment published                                  NONE
CHANGING conflict with a change of another segment          CHOOSING
======== ================================================== ========
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final

from bk_spark.protocol.codes import NO_ENTRY
from bk_spark.protocol.errors import (
    BookKeeperError,
    EnsembleChangeRefusedError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataConflictError,
)
from bk_spark.protocol.ledger.first_answers import FirstAnswers
from bk_spark.protocol.ledger.metadata_calls import (
    CompareAndSet,
    MetadataEvent,
    MetadataFailed,
    MetadataFound,
    MetadataWritten,
    ReadMetadata,
)
from bk_spark.protocol.ledger.writer_actions import (
    BookiesChanged,
    BookiesChosen,
    ChooseBookies,
    LeaveBookie,
    NoBookies,
    WriterAction,
    WriterTimer,
)
from bk_spark.protocol.machine import StartTimer, StopTimer, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment

#: A search for a replacement delays acknowledgements for at most this long.
SLOW_SEARCH_MS: Final = 1_000.0
#: A writer that continues without a failed bookie searches for a replacement this often, even if no bookie came or
#: went. A bookie that hung may have recovered.
SEARCH_AGAIN_MS: Final = 30_000.0

ChangeEvent = BookiesChosen | NoBookies | BookiesChanged | MetadataEvent | TimerFired


class ChangeState(enum.Enum):
    """The states in the module's table. The values are words for logs."""

    NONE = "no change under way"
    CHOOSING = "choosing bookies"
    CHANGING = "changing the metadata"


class WriterEnsemble:
    """The ensemble of one writer. Part of :class:`bk_spark.protocol.ledger.writer.LedgerWriter`.

    The writer reports events, acknowledges what :attr:`may_acknowledge` allows, and then calls :meth:`advance`.

    Parameters
    ----------
    metadata, version
        The stored metadata as far as known.
    publish
        False for a recovery, which publishes ensemble changes when it closes the ledger.
    """

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        *,
        publish: bool,
        deferred_sync: bool,
        password_is_known: bool,
        max_changes: int,
    ) -> None:
        self.state = ChangeState.NONE
        self.metadata = metadata
        self.version = version
        #: The bookies that adds are sent to.
        self.members = list(metadata.last_segment.ensemble)
        #: The members that have failed and are not replaced yet, by ensemble index.
        self.failed: dict[int, str] = {}
        #: Who has taken the ledger's password. ``password_is_known`` may be set later.
        self.first_answers = FirstAnswers(password_is_known=password_is_known)
        #: Why the writer must end.
        self.error: BookKeeperError | None = None
        self._ledger_id = ledger_id
        self._publish = publish
        self._deferred_sync = deferred_sync
        self._changes_left = max_changes
        #: Bookies that failed this writer.
        self._quarantine: set[str] = set()
        #: Failed indexes for which no replacement was found.
        self._irreplaceable: set[int] = set()
        self._search = ChooseBookies((), frozenset(), frozenset(), False)
        self._search_is_slow = False
        #: Whether bookies came or went since the search began.
        self._search_is_old = False
        #: Why the search that has just ended found nothing.
        self._none_found: BookKeeperError | None = None
        #: The change that waits to be published.
        self._replacements: Mapping[int, str] = {}
        self._proposed = metadata
        self._reading = False
        #: Whether the same change must be made on metadata that another client changed.
        self._must_repeat = False
        self._actions: list[WriterAction] = []

    def may_acknowledge(self, owed: Sequence[int]) -> bool:
        """Return whether entries may be acknowledged that an ack quorum of the members holds.

        ``owed`` is the number of entries that each member was sent and has not taken. If only first answers are
        missing, the time runs in which they must come.
        """
        if not self._change_admits:
            return False
        missing = self.first_answers.missing(self.members, owed)
        self._actions += self.first_answers.keep_time(missing)
        return not missing

    def index_of(self, bookie_id: str) -> int | None:
        """Return the ensemble index of a member. None for any other bookie."""
        return self.members.index(bookie_id) if bookie_id in self.members else None

    def write_set(self, entry_id: int) -> list[str]:
        """List the members that hold an entry of the last segment."""
        return [self.members[index] for index in self.metadata.quorum.write_set(entry_id)]

    def take_actions(self) -> list[WriterAction]:
        """Return the new actions of searches and changes. The writer adds them to its own."""
        actions, self._actions = self._actions, []
        return actions

    def on_bookie_failed(self, bookie_id: str) -> None:
        """Record that a member failed, or a replacement before it was published."""
        if (index := self.index_of(bookie_id)) is not None:
            self.failed[index] = bookie_id
        elif bookie_id not in self._replacements.values():
            return
        self._quarantine.add(bookie_id)
        self._actions.append(LeaveBookie(bookie_id))

    def handle(self, event: ChangeEvent, last_add_acknowledged: int) -> Mapping[int, str]:
        """Handle an event. Return the bookies that joined the ensemble now, by index. Some may have failed already."""
        match event:
            case BookiesChosen(replacements) if self.state is ChangeState.CHOOSING:
                return self._on_chosen(replacements, last_add_acknowledged + 1)
            case NoBookies(error) if self.state is ChangeState.CHOOSING:
                self._end_search(ChangeState.NONE)
                self._none_found = error
            case BookiesChanged() | TimerFired(WriterTimer.SEARCH_AGAIN):
                self._on_bookies_changed()
            case TimerFired(WriterTimer.SLOW_SEARCH):
                self._search_is_slow = True
            case TimerFired(WriterTimer.FIRST_ANSWERS):
                self._actions += self.first_answers.on_timer()
            case MetadataWritten() | MetadataFound() | MetadataFailed() if self.state is ChangeState.CHANGING:
                return self._on_metadata(event)
        return {}

    def advance(self, last_add_acknowledged: int, *, pending: bool, drained: bool) -> None:
        """Begin a change if one is needed.

        Parameters
        ----------
        pending
            Whether added entries are not acknowledged.
        drained
            Whether the ledger is closing and needs nothing more from its bookies.
        """
        if self._must_repeat:
            self._must_repeat = False
            self.state = ChangeState.NONE
        if self._none_found is not None and self._search_is_valid:
            self._continue_without(self._none_found, pending=pending)
        elif self.failed and not drained:
            self._change_if_needed(last_add_acknowledged, pending=pending)
        self._none_found = None

    def stop_search(self) -> None:
        """End a search under way, because the ledger is closing."""
        if self.state is ChangeState.CHOOSING:
            self._end_search(ChangeState.NONE)

    @property
    def _change_admits(self) -> bool:
        """Whether entries may be acknowledged in the present state of the ensemble change."""
        if self._deferred_sync and self.failed:
            return False  # a force needs the whole ensemble, so replace the bookie first
        return self.state is ChangeState.NONE or (self.state is ChangeState.CHOOSING and self._search_is_slow)

    # --- the search ---

    def _change_if_needed(self, last_add_acknowledged: int, *, pending: bool) -> None:
        if self._deferred_sync and last_add_acknowledged != NO_ENTRY:
            self._refuse_change(
                "a ledger with deferred sync cannot replace a bookie after its first acknowledged entry; recover the "
                "ledger and write a new one"
            )
            return
        # An idle ledger keeps its ensemble, because most failures end before the next add.
        replaceable = self.failed.keys() - self._irreplaceable
        if self.state is not ChangeState.NONE or not replaceable or not pending:
            return
        if self._changes_left <= 0:
            self._refuse_change("the limit maxNumEnsembleChanges is reached; raise it, or write a new ledger")
            return
        self.state = ChangeState.CHOOSING
        self._search = self._wanted()
        self._search_is_old = self._search_is_slow = False
        self._actions += [self._search, StartTimer(WriterTimer.SLOW_SEARCH, SLOW_SEARCH_MS)]

    def _wanted(self) -> ChooseBookies:
        """Return the search for replacements of all bookies that have failed so far."""
        exclude = frozenset(self.members)
        avoid = frozenset(self._quarantine) - exclude
        needed = not self.metadata.quorum.can_spare(self.failed)
        return ChooseBookies(tuple(sorted(self.failed)), exclude, avoid, needed)

    @property
    def _search_is_valid(self) -> bool:
        """Whether no bookie came and none failed since the last search began."""
        wanted = self._wanted()
        same = (wanted.failed, wanted.needed) == (self._search.failed, self._search.needed)
        return same and not self._search_is_old

    def _end_search(self, state: ChangeState) -> None:
        self.state = state
        self._actions.append(StopTimer(WriterTimer.SLOW_SEARCH))

    def _continue_without(self, error: BookKeeperError, *, pending: bool) -> None:
        """Continue without the failed bookies if possible. The search found no replacement because of ``error``."""
        if pending and (self._deferred_sync or self._search.needed):
            self.error = error
        else:
            self._irreplaceable |= self.failed.keys()
            self._actions.append(StartTimer(WriterTimer.SEARCH_AGAIN, SEARCH_AGAIN_MS))

    def _on_bookies_changed(self) -> None:
        """Search again for replacements not found before. A bookie that failed may run again."""
        self._search_is_old = True
        if self._irreplaceable:
            self._irreplaceable.clear()
            self._quarantine.clear()

    # --- the metadata ---

    def _on_chosen(self, replacements: Mapping[int, str], first_entry_id: int) -> Mapping[int, str]:
        self._end_search(ChangeState.CHANGING)
        self._replacements = replacements
        self._quarantine -= set(replacements.values())
        members = tuple(replacements.get(index, bookie_id) for index, bookie_id in enumerate(self.members))
        self._proposed = self.metadata.with_segment(Segment(first_entry_id, members))
        if not self._publish:
            return self._on_published(self._proposed, self.version)
        self._actions.append(CompareAndSet(self._proposed, self.version))
        return {}

    def _on_metadata(self, event: MetadataEvent) -> Mapping[int, str]:
        """Handle the answer to the ensemble change, or to the read after it."""
        match event:
            case MetadataWritten(metadata, version):
                return self._on_published(metadata, version)
            case MetadataFound(metadata, version):
                self._reading = False
                return self._on_found(metadata, version)
            case MetadataFailed() if event.must_read and not self._reading:
                self._reading = True
                self._actions.append(ReadMetadata())
            case MetadataFailed(error):
                self.error = error
        return {}

    def _on_published(self, metadata: LedgerMetadata, version: int) -> Mapping[int, str]:
        self.metadata, self.version = metadata, version
        self.state = ChangeState.NONE
        self._changes_left -= 1
        joined, self._replacements = self._replacements, {}
        for index, bookie_id in joined.items():
            self.members[index] = bookie_id
            self.failed.pop(index, None)
            self._irreplaceable.discard(index)
            if bookie_id in self._quarantine:
                # It failed before it was published.
                self.failed[index] = bookie_id
        return joined

    def _on_found(self, found: LedgerMetadata, version: int) -> Mapping[int, str]:
        """Handle ``found``, the stored metadata after a compare-and-set that may have lost."""
        if found.state is LedgerState.CLOSED:
            self._fail(LedgerClosedError, "another client closed the ledger")
        elif found.state is LedgerState.IN_RECOVERY:
            self._fail(LedgerFencedError, "another client is recovering the ledger")
        elif found.last_segment == self._proposed.last_segment:
            # The change is ours. Only the reply was lost.
            return self._on_published(found, version)
        elif found.last_segment != self.metadata.last_segment:
            self._fail(MetadataConflictError, "another client changed the open segment")
        else:
            # Something else changed (re-replication of an older segment). Make the same change on the new base.
            self.metadata, self.version = found, version
            self._replacements = {}
            self._must_repeat = True
        return {}

    def _refuse_change(self, why: str) -> None:
        failed = ", ".join(sorted(self.failed.values()))
        self._fail(EnsembleChangeRefusedError, f"bookie {failed} failed; {why}")

    def _fail(self, kind: type[BookKeeperError], message: str) -> None:
        self.error = kind(message, ledger_id=self._ledger_id)
