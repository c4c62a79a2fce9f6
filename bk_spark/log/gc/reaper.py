"""The reaper: finds everything unreferenced, and deletes it. No I/O.

One round of :func:`reap_steps`:

1. Drop from the list what the policy no longer keeps of the log's earlier states (:mod:`bk_spark.log.gc.expiry`). Read
   the whole list: all ledgers that it refers to, and the index ledgers that lead to it.
2. Page through the registrations, run by run. Check the ledgers that the list does not refer to, and condemn them if
   :mod:`bk_spark.log.gc.reap_rules` says so. Recover condemned ledgers, so that nobody writes to them any more.
3. Delete ledgers that were condemned long enough ago, metadata and registration together.
4. Remove small znodes that are no longer needed (:mod:`bk_spark.log.gc.housekeeping`).

Each change is one transaction that checks what it was decided from (:mod:`bk_spark.log.gc.reaping`). A change that
fails, or whose outcome stays unknown, is left for the next round. No round depends on an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, TypeAlias, TypeVar

import numpy as np

from bk_spark.log.core.changes import Change, change_steps
from bk_spark.log.core.parts import in_parts
from bk_spark.log.core.reading import children_steps, decision_steps, read_steps, sync_steps
from bk_spark.log.core.steps import Closed, Failed, RecoverLedger, Steps, Warn
from bk_spark.log.formats.names import LogPaths, ledger_ids_of
from bk_spark.log.gc.expiry import expire_steps
from bk_spark.log.gc.housekeeping import RemoveAppended, RemovePages, RemoveRuns, forget_steps, is_forgettable
from bk_spark.log.gc.reap_rules import ReapLimits, Reason, Run
from bk_spark.log.gc.reaping import Condemn, DeleteLedgers, is_closed, made_together, parts_of
from bk_spark.log.gc.references import ListView, view_steps
from bk_spark.log.gc.retention import ReadPolicy, policy_steps
from bk_spark.protocol.errors import (
    ClockDifferenceError,
    MetadataConflictError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    UnauthorizedError,
)

# Limits for one read or transaction. Applications may have 512 KiB, pages 32 KiB.
_APPLICATIONS_AT_ONCE: Final = 16
_PAGES_AT_ONCE: Final = 16
_RUNS_AT_ONCE: Final = 16
_APPENDED_AT_ONCE: Final = 64
#: Ledgers named in one warning.
_MAX_NAMED: Final = 10

_T = TypeVar("_T")

#: Receives how many applications were checked, the total, and how many ledgers were condemned and deleted so far.
OnReapProgress: TypeAlias = Callable[[int, int, int, int], None]


@dataclass(frozen=True, slots=True)
class ReapedLedger:
    """A ledger, the path of its run's znode, and why it is deleted."""

    ledger_id: int
    run_path: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class ReapReport:
    """What one round did. In a dry run: what it would have done.

    ``waiting``: condemned ledgers within their grace period. ``removed``: paths of other znodes. ``failed``: pairs of a
    path and its error. ``refused``: condemned ledgers whose ids bookies know with another password; they are deleted
    like the others. ``complete``: everything was checked, and everything possible was done.
    """

    condemned: tuple[ReapedLedger, ...] = ()
    deleted: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    removed: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    refused: tuple[int, ...] = ()
    complete: bool = True
    dry_run: bool = False


def reap_steps(
    paths: LogPaths,
    ledger_path: Callable[[int], str],
    now_ms: Callable[[], int],
    check_clock: Callable[[], object],
    limits: ReapLimits | None = None,
    *,
    dry_run: bool = False,
    on_progress: OnReapProgress | None = None,
) -> Steps[ReapReport]:
    """Run one round.

    ``ledger_path`` returns the znode of a ledger's metadata. ``now_ms`` returns the cluster's time, or slightly less.
    ``check_clock`` raises ClockDifferenceError if this machine's clock differs from the cluster's.

    Raises ClockDifferenceError, NoSuchLogError, LogReplacedError. If the list cannot be read, raises
    MetadataFormatError, MetadataUnavailableError or the ledger client's error; then nothing was done.
    """
    read = yield from policy_steps(paths)
    if not dry_run:
        check_clock()
    list_offset = yield from expire_steps(paths, read, now_ms, dry_run=dry_run)
    view = yield from view_steps(paths, list_offset if dry_run else None)
    limits = limits_of(limits or ReapLimits(), read)
    round_ = _Round(paths, ledger_path, now_ms, check_clock, limits, view, dry_run=dry_run, on_progress=on_progress)
    try:
        yield from round_.reap()
    except (MetadataUnavailableError, ClockDifferenceError) as error:
        round_.fail(paths.head, error)
    return round_.report()


def limits_of(limits: ReapLimits, read: ReadPolicy) -> ReapLimits:
    """Return ``limits`` with those of the log's policy: the log decides what is deleted, not who maintains it."""
    policy = read.policy
    return replace(
        limits,
        orphan_retention_ms=policy.orphan_retention_ms,
        delete_grace_ms=policy.delete_grace_ms,
        policy=read.check,
    )


@dataclass
class _Round:
    paths: LogPaths
    ledger_path: Callable[[int], str]
    now_ms: Callable[[], int]
    check_clock: Callable[[], object]
    limits: ReapLimits
    view: ListView
    dry_run: bool
    on_progress: OnReapProgress | None = None
    condemned: list[ReapedLedger] = field(default_factory=list)
    deleted: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    complete: bool = True
    recoveries_failed: int = 0
    applications: tuple[int, int] = (0, 0)

    def report(self) -> ReapReport:
        return ReapReport(
            tuple(self.condemned),
            tuple(self.deleted),
            tuple(self.waiting),
            tuple(self.removed),
            tuple(self.failed),
            tuple(self.refused),
            self.complete and not self.failed,
            self.dry_run,
        )

    def fail(self, what: str, why: object) -> None:
        self.failed.append((what, str(why)))

    def _tell(self) -> None:
        if self.on_progress is not None:
            self.on_progress(*self.applications, len(self.condemned), len(self.deleted))

    def reap(self) -> Steps[None]:
        # If a round cannot do everything, the next one must not start with the same part.
        random = Random(self.now_ms())
        looked_at = 0
        app_keys = list((yield from children_steps(self.paths, self.paths.ledgers)))
        random.shuffle(app_keys)
        for number, app_key in enumerate(app_keys):
            self.applications = (number, len(app_keys))
            self._tell()
            run_keys = list((yield from children_steps(self.paths, self.paths.runs_at(app_key))))
            random.shuffle(run_keys)
            if not Run(app_key, "").is_known:
                continue
            empty = []
            for run in [Run(app_key, run_key) for run_key in run_keys[: self.limits.max_runs - looked_at]]:
                if (yield from self._reap_run(run, random)):
                    empty.append(run)
            looked_at += len(run_keys)
            yield from self._remove_runs(empty, all_empty=len(empty) == len(run_keys))
            if looked_at > self.limits.max_runs:
                self.complete = False
                break
        yield from self._forget(random)
        yield from self._remove_pages()
        yield from self._remove_appended()
        if self.refused:
            named = ", ".join(map(str, self.refused[:_MAX_NAMED]))
            more = f" and {len(self.refused) - _MAX_NAMED} more" if len(self.refused) > _MAX_NAMED else ""
            yield Warn(
                f"bookies refused to fence unused ledgers {named}{more}: somebody used their ids before, or this user "
                "may not fence. They are deleted like the others"
            )

    def _reap_run(self, run: Run, random: Random) -> Steps[bool]:
        """Reap one run. Returns whether no ledger is registered for it."""
        names = yield from children_steps(self.paths, run.path(self.paths))
        candidates = self.view.references.others(np.array(ledger_ids_of(names), np.int64))
        if len(candidates):
            # Likewise, ledgers that fail every time must not keep others from their turn.
            candidates = np.roll(candidates, random.randrange(len(candidates)))
            for part in parts_of(self.paths, run, candidates.tolist()):
                if min(len(self.condemned), len(self.deleted)) >= self.limits.max_ledgers:
                    self.complete = False
                    break
                yield from self._reap_part(run, part)
        return not names

    def _reap_part(self, run: Run, ledger_ids: Sequence[int]) -> Steps[None]:
        room = self.limits.max_ledgers - len(self.condemned)
        condemned = yield from self._change(
            Condemn(self.paths, self.view, run, ledger_ids, self.limits, room), run.path(self.paths)
        )
        if condemned is None:
            return
        run_path = run.path(self.paths)
        self.condemned += (ReapedLedger(ledger_id, run_path, why) for ledger_id, why in condemned.now.items())
        for ledger_id, why in condemned.failed.items():
            self.fail(run.registration(self.paths, ledger_id), why)
        self.complete = self.complete and len(self.condemned) < self.limits.max_ledgers

        now_ms, grace_ms = self.now_ms(), self.limits.delete_grace_ms
        due = []
        for ledger_id, condemned_ms in condemned.before.items():
            if now_ms - condemned_ms < grace_ms:
                self.waiting.append(ledger_id)
            elif ledger_id not in condemned.failed:
                due.append(ledger_id)
        room = self.limits.max_ledgers - len(self.deleted)
        if len(due) > room:
            self.waiting += due[room:]
            self.complete = False
            due = due[:room]
        if not self.dry_run:
            yield from self._recover(run, [*condemned.now])
        if due:
            yield from self._delete(run, due)
        self._tell()

    def _delete(self, run: Run, ledger_ids: Sequence[int]) -> Steps[None]:
        # A dry run fences nothing.
        closed = frozenset(ledger_ids) if self.dry_run else (yield from self._recover(run, ledger_ids))
        change = DeleteLedgers(self.paths, self.view, run, ledger_ids, closed, self.ledger_path, self.limits)
        gone = yield from self._change(change, run.path(self.paths))
        self.deleted += gone or ()
        self.waiting += sorted({*ledger_ids} - {*(gone or ())})

    def _recover(self, run: Run, ledger_ids: Sequence[int]) -> Steps[frozenset[int]]:
        """Fence and close condemned ledgers. Returns those that may be deleted: they are closed now, or bookies refuse
        the log's password for them.

        Such an id was used before, by whoever may write to bookies. No bookie will ever change its mind, so waiting
        would keep the ledger for ever. Nothing can list a condemned ledger; fencing only tells a writer sooner.
        """
        closed = set()
        registrations = [run.registration(self.paths, ledger_id) for ledger_id in ledger_ids]
        metadata_paths = [self.ledger_path(ledger_id) for ledger_id in ledger_ids]
        yield from sync_steps(self.paths)
        znodes = yield from read_steps(self.paths, (*registrations, *metadata_paths))
        for ledger_id, path, metadata_path in zip(ledger_ids, registrations, metadata_paths, strict=True):
            registration, metadata = znodes[path], znodes[metadata_path]
            if registration is None or metadata is None:
                continue
            if not made_together(registration, metadata):
                self.fail(path, f"{metadata_path} was not made with this registration: it is left alone")
                continue
            if is_closed(metadata):
                closed.add(ledger_id)
                continue
            if self.recoveries_failed >= self.limits.max_failures:
                self.complete = False
                continue
            event = yield RecoverLedger(ledger_id)
            if isinstance(event, Closed):
                closed.add(ledger_id)
            else:
                assert isinstance(event, Failed), event
                if isinstance(event.error, UnauthorizedError):
                    closed.add(ledger_id)
                    self.refused.append(ledger_id)
                elif not isinstance(event.error, NoSuchLedgerError):
                    self.recoveries_failed += 1
                    self.fail(path, f"the ledger could not be closed, so it is not deleted: {event.error}")
        return frozenset(closed)

    def _remove_runs(self, empty: Sequence[Run], *, all_empty: bool) -> Steps[None]:
        for part in in_parts(empty, _RUNS_AT_ONCE):
            above = {part[0].app_key} if all_empty and len(part) == len(empty) and part[0].is_of_application else ()
            yield from self._remove(RemoveRuns(self.paths, self.limits, part, above), part[0].path(self.paths))

    def _forget(self, random: Random) -> Steps[None]:
        app_keys = list((yield from children_steps(self.paths, self.paths.apps)))
        if len(app_keys) > self.limits.max_applications:
            # The others follow in later rounds.
            app_keys = random.sample(app_keys, self.limits.max_applications)
            self.complete = False
        for part in in_parts(app_keys, _APPLICATIONS_AT_ONCE):
            znodes = yield from read_steps(self.paths, tuple(f"{self.paths.apps}/{key}" for key in part))
            for app_key in part:
                path = f"{self.paths.apps}/{app_key}"
                znode = znodes[path]
                try:
                    if znode is None or not is_forgettable(znode, path, self.now_ms(), self.limits):
                        continue
                    if self.dry_run:
                        self.removed.append(path)
                    else:
                        self.check_clock()
                        self.removed += yield from forget_steps(
                            self.paths, self.view, app_key, self.now_ms, self.limits
                        )
                except (MetadataConflictError, MetadataFormatError) as error:
                    self.fail(path, error)

    def _remove_pages(self) -> Steps[None]:
        names = yield from children_steps(self.paths, self.paths.pages)
        numbers = sorted(int(name) for name in names if name.isascii() and name.isdecimal())
        head = self.view.head
        left = [number for number in numbers if not head.first_znode_page <= number <= head.tail_page]
        for part in in_parts(left, _PAGES_AT_ONCE):
            yield from self._remove(RemovePages(self.paths, self.limits, part), self.paths.pages)

    def _remove_appended(self) -> Steps[None]:
        names = yield from children_steps(self.paths, self.paths.appended)
        left = self.view.references.others(np.array(ledger_ids_of(names), np.int64)).tolist()
        for part in in_parts(left, _APPENDED_AT_ONCE):
            yield from self._remove(RemoveAppended(self.paths, self.limits, self.view, part), self.paths.appended)

    def _remove(self, change: Change[tuple[str, ...]], what: str) -> Steps[None]:
        self.removed += (yield from self._change(change, what)) or ()

    def _change(self, change: Change[_T], what: str) -> Steps[_T | None]:
        """Make the change and return its result. None if it must be left for another round."""
        try:
            if self.dry_run:
                return (yield from decision_steps(change, self.now_ms))
            self.check_clock()
            return (yield from change_steps(change, self.now_ms))
        except (MetadataConflictError, MetadataFormatError) as error:
            self.fail(what, error)
            return None
