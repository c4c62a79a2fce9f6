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
    MetadataError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    SessionLostError,
)
from bk_spark.protocol.machine import EndedBy, StartTimer, Succeeded, TimerFired
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
    TargetChosen,
    Unrepairable,
)
from bk_spark.protocol.replication.copying.copy_limits import CopyResult
from bk_spark.protocol.replication.copying.fragment_copy import FragmentCopy
from bk_spark.protocol.replication.fragments import Fragment, fragments_of
from bk_spark.protocol.replication.good_copies import GoodCopies
from bk_spark.protocol.replication.known_entries import KnownEntries
from bk_spark.protocol.replication.ledger_check import CheckResult, LedgerCheck
from bk_spark.protocol.replication.member_replacement import replacement
from bk_spark.protocol.replication.nested_steps import NestedSteps
from bk_spark.protocol.replication.problems import entry_of, fragment_problem, summary, why_no_target, why_not_copied
from bk_spark.protocol.replication.repair_settings import RepairSettings

#: Checks of one ledger in one repair, without those that moved copies. Each after the second means that something
#: changed meanwhile.
ROUNDS: Final = 8
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
        # What was done.
        self._fragments = self._entries = self._size_bytes = 0
        self._recovered = False
        self._adheres = True
        self._moved = self._ensemble_size = 0
        #: Every entry is read from here on: the first entry of the fragment that was the last one of the open ledger.
        self._every_from: int | None = None
        #: Entries that no bookie returned, and why, by the first entry of their fragment.
        self._not_found: dict[int, dict[int, str]] = {}
        #: What a check of this repair found good, and nothing was waited for since.
        self._good = GoodCopies()
        #: The ledger as it was read or written last, if nothing was waited for since.
        self._latest: LedgerFound | None = None
        #: What the last check has read.
        self._known = KnownEntries()
        #: Targets of moves that failed, and why.
        self._failed_moves: dict[str, str] = {}
        #: Copies that were written to their own bookie again.
        self._refilled: set[tuple[int, int]] = set()
        #: The last segment and its bad positions for which a grace period has passed.
        self._graced: tuple[Segment, frozenset[int]] | None = None
        self._steps: NestedSteps[RepairAction, RepairEvent, RepairResult] = NestedSteps(self._run())

    @property
    def outcome(self) -> Succeeded[RepairResult] | EndedBy | None:
        """None until the repair ends."""
        return self._steps.outcome

    def take_actions(self) -> list[RepairAction]:
        """Return the new actions of the repair, or of the check or copy that it runs."""
        return self._steps.take_actions()

    def handle(self, event: RepairEvent) -> None:
        """Take an event. A late answer to a check or copy that has ended is ignored."""
        if self._steps.nested or isinstance(event, _SINGLE_EVENTS) or event == TimerFired(_GRACE):
            self._steps.handle(event)

    def fail(self, error: Exception) -> None:
        """Report an error of an action without ``request_id``. Some are decided here, all others end the repair."""
        self._steps.fail(error)

    # --- the steps ---

    def _run(self) -> _Steps[RepairResult]:
        try:
            spent = moving = 0
            while spent < ROUNDS:
                moved = self._moved
                result = yield from self._round()
                if result is not None:
                    return result
                # Each move leaves fewer write quorums that break the policy. There are as many as members.
                if self._moved > moved and moving < self._ensemble_size:
                    moving += 1
                else:
                    spent += 1
        except NoSuchLedgerError:
            return Gone()
        except SessionLostError:
            return LockLost()
        return Unrepairable("the ledger, or the registrations of its bookies, keep changing")

    def _round(self) -> _Steps[RepairResult | None]:
        """Check the ledger, and repair what can be repaired. None: check again."""
        stored = self._latest = self._latest or (yield ReadLedger())
        metadata = stored.metadata
        self._ensemble_size = metadata.quorum.ensemble_size
        members = frozenset(bookie_id for segment in metadata.segments for bookie_id in segment.ensemble)
        registered: BookiesFound = yield ReadBookies(members)
        replaced = self._settings.replaced
        bookies = BookiesFound(registered.writable - replaced, registered.read_only - replaced)
        self._good.begin_round(stored.created_zxid, registered.registrations)
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
            good=self._good.copies,
            keep_bytes=self._settings.copy.pending_bytes,
        )
        self._known = checked.entries
        problems: list[FragmentProblem] = []
        changed = False
        for fragment in fragments:
            bad = checked.bad.get(fragment.first_entry_id, {})
            unknown = checked.unknown.get(fragment.first_entry_id, {})
            if unknown:
                problems.append(fragment_problem(fragment, unknown, "; ".join(unknown.values())))
            self._good.add(fragment, set(range(len(fragment.ensemble))).difference(bad, unknown))
            verdict: FragmentProblem | bool
            if not bad:
                wanted = not self._missing and metadata.state is LedgerState.CLOSED
                verdict = wanted and (yield from self._move(stored, fragment, bookies))
            elif not fragment.closed:
                verdict = yield from self._open_fragment(fragment, frozenset(bad), metadata)
            else:
                verdict = yield from self._closed_fragment(stored, fragment, bad, bookies)
            if isinstance(verdict, FragmentProblem):
                problems.append(verdict)
            else:
                changed |= verdict
        if changed:
            # What could not be repaired is found again.
            return None
        if problems:
            return Unrepairable(summary(problems), tuple(problems))
        now: BookiesFound = yield ReadBookies(members)
        if now.registrations != registered.registrations:
            # A copy may have been lost with a disk after it was read.
            self._latest = None
            return None
        if self._fragments or self._recovered:
            done = self._fragments, self._entries, self._size_bytes
            return Repaired(*done, self._recovered, self._adheres, self._moved)
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
    ) -> _Steps[FragmentProblem | bool]:
        """Wait, or recover the ledger if a wait changed nothing. True: check again."""
        graced = self._graced
        self._latest = None
        if self._every_from is None:
            self._every_from = fragment.first_entry_id
        if graced is None or graced[0] != metadata.last_segment or not graced[1] & bad:
            self._graced = metadata.last_segment, bad
            self._good.clear()
            yield StartTimer(_GRACE, self._settings.grace_ms)
            return True
        try:
            yield RecoverLedger(metadata)
        except (NoSuchLedgerError, SessionLostError):
            raise
        except BookKeeperError as error:
            return fragment_problem(fragment, bad, f"the ledger cannot be recovered: {error.message}", entry_of(error))
        self._recovered = True
        return True

    # --- closed fragments ---

    def _closed_fragment(
        self, stored: LedgerFound, fragment: Fragment, bad: Mapping[int, str], bookies: BookiesFound
    ) -> _Steps[FragmentProblem | bool]:
        """Copy and replace. True: all positions were replaced, or another client changed the segment."""
        failed: dict[str, str] = {}
        not_found = self._not_found.setdefault(fragment.first_entry_id, {})
        for _ in range(_COPY_ATTEMPTS):
            stores = fragment.quorum.stores
            possible = [each for each in bad if not any(stores(each, entry_id) for entry_id in not_found)]
            if not possible:
                return fragment_problem(fragment, bad, why_not_copied({}, not_found), tuple(not_found))
            targets, refusal = yield from self._choose(stored.metadata, fragment, possible, bookies, failed)
            if not targets:
                return fragment_problem(fragment, bad, refusal, tuple(not_found))
            result = yield from self._copy(stored, fragment, targets, bad)
            failed.update(result.failed_targets)
            not_found.update(result.unreadable)
            if result.copied:
                return True
        return fragment_problem(fragment, bad, why_not_copied(failed, {}), tuple(not_found))

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
            known=self._known,
        )
        self._entries += result.entries
        self._size_bytes += result.size_bytes
        latest, self._latest = self._latest, None
        members = {position: targets[position] for position in result.copied}
        if any(fragment.ensemble[position] != bookie_id for position, bookie_id in members.items()):
            self._latest = yield from replacement(stored.created_zxid, latest, fragment, members)
            self._fragments += self._latest is not None
        else:
            # The old members got their own entries again.
            self._fragments += bool(members)
        return result

    def _move(self, stored: LedgerFound, fragment: Fragment, bookies: BookiesFound) -> _Steps[FragmentProblem | bool]:
        """Move a healthy copy to where the placement policy wants it. An auditor asks for it by a mark that names no
        bookie. False: nothing to move, or no move helps. Each move leaves fewer write quorums that break the policy,
        so this ends."""
        quorum, ensemble, failed = stored.metadata.quorum, fragment.ensemble, self._failed_moves
        found: MisplacedFound = yield FindMisplaced(quorum, ensemble)
        if not found.unspread:
            return False
        for _ in range(_COPY_ATTEMPTS):
            try:
                exclude = bookies.read_only.union(failed)
                chosen: TargetChosen = yield self._target(quorum, ensemble, found.index, exclude)
            except NotEnoughBookiesError:
                chosen = TargetChosen("", found.unspread)
            if chosen.unspread >= found.unspread:
                self._adheres = False
                if not failed:
                    return False
                break
            before = self._fragments
            result = yield from self._copy(stored, fragment, {found.index: chosen.bookie_id}, ())
            if result.copied:
                self._moved += self._fragments - before
                return True
            failed.update(result.failed_targets)
            if result.unreadable:
                reason = why_not_copied({}, result.unreadable)
                return fragment_problem(fragment, [found.index], reason, tuple(result.unreadable))
        return fragment_problem(fragment, [found.index], why_not_copied(failed, {}))

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
            self._adheres &= not chosen.unspread
            ensemble[position] = targets[position] = chosen.bookie_id
        return targets, refusal

    def _target(self, quorum: Quorum, ensemble: tuple[str, ...], index: int, exclude: frozenset[str]) -> ChooseTarget:
        exclude = exclude.union(ensemble, self._settings.replaced)
        return ChooseTarget(quorum, ensemble, index, exclude, self._settings.targets)
