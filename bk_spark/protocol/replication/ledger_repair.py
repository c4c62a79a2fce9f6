"""The machine that repairs one ledger under its lock: check, copy, replace, and check again.

The rules, and why they lose nothing, are in docs/design/replication.md. In short:

1. Read the ledger and the registered bookies, and check all copies (:mod:`.ledger_check`).
2. For each closed fragment with bad copies: choose a target for each bad position, copy what the position stores
   (:mod:`.fragment_copy`), and replace the members by a compare-and-set that proves that the lock is still held.
   Positions that could not be copied as a whole stay as they are.
3. If the last fragment of a ledger that is not closed has bad copies, wait for the grace period and look again. If the
   same copies are still bad, recover the ledger. Then its last fragment is closed, and every entry of it is checked at
   every bookie, because the writer may have ended with fewer copies than the write quorum.
4. Begin again, until nothing is bad, or nothing more can be done.

If another client changed the ledger, the stored metadata decide again. Copies that were made stay good while the lock
is held, so they are used if the stored segment is still the one that was copied.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Generator, Iterator, Mapping
from random import Random
from typing import Any, Final, TypeVar

from bk_spark.protocol.errors import (
    BookKeeperError,
    MetadataConflictError,
    MetadataError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    SessionLostError,
)
from bk_spark.protocol.machine import EndedBy, Machine, StartTimer, StepMachine, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.replication.actions import (
    BookiesFound,
    ChooseTarget,
    FindMisplaced,
    FragmentProblem,
    Gone,
    LastAddConfirmed,
    LedgerFound,
    LedgerRecovered,
    LockLost,
    MembersReplaced,
    MisplacedFound,
    NothingBad,
    ReadBookies,
    ReadLastAddConfirmed,
    ReadLedger,
    RecoverLedger,
    RepairAction,
    Repaired,
    RepairEvent,
    RepairResult,
    ReplaceMembers,
    TargetChosen,
    Unrepairable,
)
from bk_spark.protocol.replication.fragment_copy import CopyResult, FragmentCopy
from bk_spark.protocol.replication.fragments import Fragment, fragments_of, with_members
from bk_spark.protocol.replication.ledger_check import CheckResult, LedgerCheck
from bk_spark.protocol.replication.problems import entry_of, fragment_problem, summary, why_no_target
from bk_spark.protocol.replication.repair_settings import RepairSettings

#: Checks of one ledger in one repair. Each after the second means that something changed meanwhile.
ROUNDS: Final = 8
#: Compare-and-sets of one fragment. Each after the first means that another client changed the ledger.
_REPLACE_ATTEMPTS: Final = 8
#: Copies of one fragment in one round. Each after the first means that targets failed, or entries could not be read.
_COPY_ATTEMPTS: Final = 4
_SINGLE_EVENTS: Final = (
    LedgerFound,
    BookiesFound,
    LastAddConfirmed,
    TargetChosen,
    MisplacedFound,
    MembersReplaced,
    LedgerRecovered,
)
_GRACE: Final = "grace period"

R = TypeVar("R")
#: Yields an action, or a machine to run, and receives the event or the machine's result.
_Steps = Generator[Any, Any, R]


class LedgerRepair:
    """Repairs one ledger. A machine (:mod:`bk_spark.protocol.machine`). Its result is a
    :data:`~bk_spark.protocol.replication.actions.RepairResult`.

    It begins with the ledger's lock held, after the mark was read, and the caller releases the lock afterwards.
    ZooKeeper's errors end it. Then the outcome is unknown, and the mark must stay.

    Parameters
    ----------
    missing
        The bookies that the mark names. Those that are registered again must prove every entry.
    unreadable
        Entries that an earlier repair could not read. They are read first.
    random
        Chooses the entries that a check reads.
    """

    check_class: type[LedgerCheck] = LedgerCheck
    copy_class: type[FragmentCopy] = FragmentCopy

    def __init__(
        self,
        ledger_id: int,
        missing: Collection[str],
        settings: RepairSettings,
        random: Random,
        *,
        unreadable: Collection[int] = (),
    ) -> None:
        self.ledger_id = ledger_id
        self._missing = frozenset(missing)
        self._settings = settings
        self._random = random
        self._unreadable = unreadable
        self._request_ids: Iterator[int] = itertools.count(1)
        #: The machine whose actions are under way, if any.
        self._part: Machine[Any, Any, Any] | None = None
        self._actions: list[RepairAction] = []
        # What was done.
        self._fragments = self._entries = self._size_bytes = 0
        self._recovered = False
        self._adheres = True
        #: Every entry is read from here on: the first entry of the fragment that was the last one of the open ledger.
        self._every_from: int | None = None
        #: Entries that no bookie returned, and why, by the first entry of their fragment.
        self._not_found: dict[int, dict[int, str]] = {}
        #: Copies that were written to their own bookie again.
        self._refilled: set[tuple[int, int]] = set()
        #: The last segment and its bad positions for which a grace period has passed.
        self._graced: tuple[Segment, frozenset[int]] | None = None
        self._steps: StepMachine[Any, Any, RepairResult] = StepMachine(self._run())
        self._advance()

    @property
    def outcome(self) -> Succeeded[RepairResult] | EndedBy | None:
        return self._steps.outcome

    def take_actions(self) -> list[RepairAction]:
        actions, self._actions = self._actions, []
        return actions

    def handle(self, event: RepairEvent) -> None:
        if self._part is not None:
            self._part.handle(event)
        elif isinstance(event, _SINGLE_EVENTS) or event == TimerFired(_GRACE):
            self._steps.handle(event)
        self._advance()

    def fail(self, error: Exception) -> None:
        if self._part is not None:
            self._part.fail(error)
        else:
            self._steps.fail(error)
        self._advance()

    def _advance(self) -> None:
        """Take the actions of the steps, or of the machine that they run."""
        while True:
            if self._part is not None:
                self._actions += self._part.take_actions()
                outcome = self._part.outcome
                if outcome is None:
                    return
                self._part = None
                if isinstance(outcome, EndedBy):
                    self._steps.fail(outcome.error)
                else:
                    self._steps.handle(outcome.result)
            actions = self._steps.take_actions()
            if not actions:
                return
            (action,) = actions
            if not hasattr(action, "take_actions"):
                self._actions.append(action)
                return
            self._part = action

    # --- the steps ---

    def _run(self) -> _Steps[RepairResult]:
        try:
            for _ in range(ROUNDS):
                result = yield from self._round()
                if result is not None:
                    return result
        except NoSuchLedgerError:
            return Gone()
        except SessionLostError:
            return LockLost()
        return Unrepairable("the ledger keeps changing")

    def _round(self) -> _Steps[RepairResult | None]:
        """Check the ledger, and repair what can be repaired. None: check again."""
        stored: LedgerFound = yield ReadLedger()
        registered: BookiesFound = yield ReadBookies()
        replaced = self._settings.replaced
        bookies = BookiesFound(registered.writable - replaced, registered.read_only - replaced)
        metadata = stored.metadata
        fragments = fragments_of(metadata, (yield from self._last_add_confirmed(metadata)))
        checked: CheckResult = yield self.check_class(
            self.ledger_id,
            metadata,
            fragments,
            bookies.writable | bookies.read_only,
            every=self._must_read_every,
            share=self._settings.verified_share,
            random=self._random,
            timeout_ms=self._settings.copy.timeout_ms,
            request_ids=self._request_ids,
        )
        problems: list[FragmentProblem] = []
        changed = False
        for fragment in fragments:
            bad = checked.bad.get(fragment.first_entry_id, {})
            unknown = checked.unknown.get(fragment.first_entry_id, {})
            if unknown:
                problems.append(fragment_problem(fragment, unknown, "; ".join(unknown.values())))
            if not bad:
                if not self._missing and metadata.state is LedgerState.CLOSED:
                    changed |= yield from self._move(stored, fragment, bookies)
                continue
            if not fragment.closed:
                verdict = yield from self._open_fragment(fragment, frozenset(bad), metadata)
            else:
                verdict = yield from self._closed_fragment(stored, fragment, bad, bookies)
            if isinstance(verdict, FragmentProblem):
                problems.append(verdict)
            else:
                changed = True
        if changed:
            # What could not be repaired is found again.
            return None
        if problems:
            return Unrepairable(summary(problems), tuple(problems))
        if self._fragments or self._recovered:
            return Repaired(self._fragments, self._entries, self._size_bytes, self._recovered, self._adheres)
        return NothingBad()

    def _last_add_confirmed(self, metadata: LedgerMetadata) -> _Steps[int]:
        """Return the LAC of a ledger that is not closed. If nobody knows it, nothing of the last fragment is checked
        but whether its bookies are lost."""
        nothing = metadata.last_segment.first_entry_id - 1
        if metadata.state is LedgerState.CLOSED:
            return metadata.last_entry_id
        try:
            found: LastAddConfirmed = yield ReadLastAddConfirmed(metadata)
        except MetadataError:
            raise
        except BookKeeperError:
            return nothing
        return max(nothing, found.last_add_confirmed)

    def _must_read_every(self, fragment: Fragment, bookie_id: str) -> bool:
        was_open = self._every_from is not None and fragment.first_entry_id >= self._every_from
        return was_open or bookie_id in self._missing

    # --- the last fragment of an open ledger ---

    def _open_fragment(
        self, fragment: Fragment, bad: frozenset[int], metadata: LedgerMetadata
    ) -> _Steps[FragmentProblem | None]:
        """Wait, or recover the ledger after a wait in which nothing was mended. None: check again."""
        graced = self._graced
        if self._every_from is None:
            self._every_from = fragment.first_entry_id
        if graced is None or graced[0] != metadata.last_segment or not graced[1] & bad:
            self._graced = metadata.last_segment, bad
            yield StartTimer(_GRACE, self._settings.grace_ms)
            return None
        try:
            yield RecoverLedger(metadata)
        except (NoSuchLedgerError, SessionLostError):
            raise
        except BookKeeperError as error:
            return fragment_problem(fragment, bad, f"the ledger cannot be recovered: {error.message}", entry_of(error))
        self._recovered = True
        return None

    # --- closed fragments ---

    def _closed_fragment(
        self, stored: LedgerFound, fragment: Fragment, bad: Mapping[int, str], bookies: BookiesFound
    ) -> _Steps[FragmentProblem | None]:
        """Copy and replace. None: all positions were replaced, or another client changed the segment."""
        failed: dict[str, str] = {}
        not_found = self._not_found.setdefault(fragment.first_entry_id, {})
        for _ in range(_COPY_ATTEMPTS):
            stores = fragment.quorum.stores
            possible = [each for each in bad if not any(stores(each, entry_id) for entry_id in not_found)]
            if not possible:
                reason = "; ".join(f"entry {entry_id}: {why}" for entry_id, why in not_found.items())
                return fragment_problem(fragment, bad, reason, tuple(not_found))
            targets, refusal = yield from self._choose(stored.metadata, fragment, possible, bookies, failed)
            if not targets:
                return fragment_problem(fragment, bad, refusal, tuple(not_found))
            result = yield from self._copy(stored, fragment, targets, bad)
            failed.update(result.failed_targets)
            not_found.update(result.unreadable)
            if result.copied:
                return None
        reason = "; ".join(f"bookie {bookie_id} takes no copy: {why}" for bookie_id, why in failed.items())
        return fragment_problem(fragment, bad, reason, tuple(not_found))

    def _copy(
        self, stored: LedgerFound, fragment: Fragment, targets: dict[int, str], bad: Collection[int]
    ) -> _Steps[CopyResult]:
        """Copy what the positions store to their targets, and replace the members whose copy is complete."""
        result: CopyResult = yield self.copy_class(
            self.ledger_id,
            stored.metadata,
            fragment,
            targets,
            bad,
            self._settings.copy,
            request_ids=self._request_ids,
            read_first=self._unreadable,
        )
        self._entries += result.entries
        self._size_bytes += result.size_bytes
        if result.copied:
            members = {position: targets[position] for position in result.copied}
            self._fragments += yield from self._replace(stored, fragment, members)
        return result

    def _move(self, stored: LedgerFound, fragment: Fragment, bookies: BookiesFound) -> _Steps[bool]:
        """Move a healthy copy to where the placement policy wants it. An auditor asks for it by a mark that names no
        bookie. False: nothing to move, or nowhere to move it."""
        quorum, ensemble = stored.metadata.quorum, fragment.ensemble
        found: MisplacedFound = yield FindMisplaced(quorum, ensemble)
        if found.index is None:
            return False
        try:
            chosen: TargetChosen = yield self._target(quorum, ensemble, found.index, bookies.read_only)
        except NotEnoughBookiesError:
            chosen = TargetChosen("", adheres=False)
        if not chosen.adheres:
            self._adheres = False
            return False
        result = yield from self._copy(stored, fragment, {found.index: chosen.bookie_id}, ())
        return bool(result.copied)

    def _choose(
        self,
        metadata: LedgerMetadata,
        fragment: Fragment,
        bad: Collection[int],
        bookies: BookiesFound,
        failed: Collection[str],
    ) -> _Steps[tuple[dict[int, str], str]]:
        """Choose a target for each bad position, and return why positions have none."""
        ensemble = list(fragment.ensemble)
        targets: dict[int, str] = {}
        refusal = ""
        for position in sorted(bad):
            exclude = bookies.read_only.union(fragment.ensemble, failed)
            try:
                chosen: TargetChosen = yield self._target(metadata.quorum, tuple(ensemble), position, exclude)
            except NotEnoughBookiesError as error:
                refusal = why_no_target(error, self._settings.targets, ensemble, failed)
                old, copy = fragment.ensemble[position], (fragment.first_entry_id, position)
                if old in bookies.writable and old not in failed and copy not in self._refilled:
                    # It lost entries, and no other bookie can take its place. It gets them again.
                    self._refilled.add(copy)
                    targets[position] = old
                continue
            self._adheres &= chosen.adheres
            ensemble[position] = targets[position] = chosen.bookie_id
        return targets, refusal

    def _target(self, quorum: Quorum, ensemble: tuple[str, ...], index: int, exclude: frozenset[str]) -> ChooseTarget:
        exclude = exclude.union(ensemble, self._settings.replaced)
        return ChooseTarget(quorum, ensemble, index, exclude, self._settings.targets)

    def _replace(self, stored: LedgerFound, fragment: Fragment, members: dict[int, str]) -> _Steps[bool]:
        """Put the new members into the metadata. False: another client changed the segment."""
        if all(fragment.ensemble[position] == bookie_id for position, bookie_id in members.items()):
            return True
        for _ in range(_REPLACE_ATTEMPTS):
            # An id can be used again, and an earlier fragment was replaced since the check.
            now: LedgerFound = yield ReadLedger()
            changed = with_members(now.metadata, fragment, members)
            if now.created_zxid != stored.created_zxid or changed is None:
                return False
            try:
                yield ReplaceMembers(changed, now.version)
            except NoSuchLedgerError:
                # There may be another ledger with this id.
                return False
            except SessionLostError:
                raise
            except (MetadataConflictError, OutcomeUnknownError):
                continue
            return True
        return False
