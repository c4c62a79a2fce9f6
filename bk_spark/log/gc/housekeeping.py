"""Small znodes of a log that are no longer needed, and the changes that remove them. No I/O.

Versions of a znode that is created again start at 0. So a transaction that deletes a znode whose version others check
(a run's, an application's, a page's beyond the tail page) also writes the head. A change decided from the old znode
checks the head's version too, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from bk_spark.log.core.append import read_head
from bk_spark.log.core.changes import change_steps
from bk_spark.log.core.plan import AlreadyDone, Plan, Readings, StaleError
from bk_spark.log.core.reading import children_steps, read_steps
from bk_spark.log.core.steps import Steps
from bk_spark.log.formats.names import LogPaths, ledger_ids_of
from bk_spark.log.formats.znodes import (
    Application,
    LedgerRegistration,
    decode_appended,
    decode_application,
    decode_registration,
    encode_registration,
)
from bk_spark.log.gc.reap_rules import Holder, ReapLimits, Run
from bk_spark.log.gc.reaping import parts_of
from bk_spark.log.gc.references import ListView, listed_now
from bk_spark.protocol.metadata.znodes import CheckOp, DeleteOp, SetOp, TransactionOp, Znode


class _Removal:
    """A change that removes znodes. Its result is their paths."""

    def __init__(self, paths: LogPaths, limits: ReapLimits) -> None:
        self.paths = paths
        self._limits = limits

    @property
    def what(self) -> str:
        return f"removal of old znodes of log {self.paths.name}"

    @property
    def again(self) -> str:
        return "the next round continues"

    def _plan(
        self, operations: Sequence[TransactionOp], guard: TransactionOp | None
    ) -> AlreadyDone[tuple[str, ...]] | Plan[tuple[str, ...]]:
        removed = tuple(op.path for op in operations if isinstance(op, DeleteOp))
        if not removed:
            return AlreadyDone(())
        guards = (CheckOp(self.paths.identity, -1), *(() if guard is None else (guard,)))
        return Plan((), (*guards, *operations), removed)


class RemoveRuns(_Removal):
    """Removes the znodes of ``runs``, which have no ledgers, if they have ended or were unused for long.

    ``app_keys`` are applications all of whose runs are named. The parent znodes of those runs are removed too.
    """

    def __init__(self, paths: LogPaths, limits: ReapLimits, runs: Sequence[Run], app_keys: Iterable[str]) -> None:
        super().__init__(paths, limits)
        self._runs = runs
        self._app_keys = app_keys

    def decide(
        self, readings: Readings, now_ms: int, maybe: tuple[str, ...] | None
    ) -> AlreadyDone[tuple[str, ...]] | Plan[tuple[str, ...]]:
        """Raises NoSuchLogError, LogReplacedError, MetadataFormatError."""
        paths = self.paths
        readings.require(paths.head, *(run.holder_path(paths) for run in self._runs))
        readings.require(*(run.path(paths) for run in self._runs))
        read = read_head(readings, paths)
        deletions: list[TransactionOp] = []
        kept = set()
        for run in self._runs:
            znode = readings.get(run.path(paths))
            if znode is None:
                continue
            holder = Holder(run, paths, readings.get(run.holder_path(paths)))
            unused_ms = now_ms - max(znode.ctime_ms, znode.mtime_ms)
            if holder.may_work(run) or not (holder.has_ended(run) or unused_ms >= self._limits.orphan_retention_ms):
                kept.add(run.app_key)
                continue
            # Refused if a ledger was registered in the meantime.
            deletions.append(DeleteOp(run.path(paths), znode.version))
        if deletions:
            deletions += (DeleteOp(paths.runs_at(key)) for key in self._app_keys if key not in kept)
        return self._plan(deletions, read.write(paths, read.head))


class MarkCommitted(_Removal):
    """Prepares to forget an application without a name. Writes the last listed entry of each of its ledgers in the list
    into their registrations, so that its batch is refused if it ever comes again.

    ``last_entries`` are for ledgers of ``run``. The result is empty.
    """

    def __init__(self, paths: LogPaths, limits: ReapLimits, run: Run, last_entries: Mapping[int, int]) -> None:
        super().__init__(paths, limits)
        self._run = run
        self._last_entries = last_entries

    def decide(
        self, readings: Readings, now_ms: int, maybe: tuple[str, ...] | None
    ) -> AlreadyDone[tuple[str, ...]] | Plan[tuple[str, ...]]:
        """Raises NoSuchLogError, LogReplacedError, MetadataFormatError."""
        paths, run = self.paths, self._run
        holder_path, run_path = run.holder_path(paths), run.path(paths)
        readings.require(paths.head, holder_path, run_path)
        readings.require_covered(run_path, *(run.registration(paths, ledger_id) for ledger_id in self._last_entries))
        read_head(readings, paths)
        application = _anonymous(readings.get(holder_path), holder_path)
        if application is None:
            return AlreadyDone(())
        writes: list[TransactionOp] = []
        for ledger_id, last_entry in self._last_entries.items():
            path = run.registration(paths, ledger_id)
            znode = readings.get(path)
            registration = None if znode is None else decode_registration(znode.data, path)
            if znode is not None and registration is not None and not is_refused(registration):
                data = encode_registration(replace(registration, last_committed_entry=last_entry))
                writes.append(SetOp(path, data, znode.version))
        if not writes:
            return AlreadyDone(())
        holder_znode, run_znode = readings.get(holder_path), readings.get(run_path)
        assert holder_znode is not None
        if run_znode is None:
            raise StaleError(f"{run_path} is missing")
        return Plan(
            (),
            (
                CheckOp(paths.identity, -1),
                CheckOp(holder_path, holder_znode.version),
                SetOp(run_path, run_znode.data, run_znode.version),
                *writes,
            ),
            (),
        )


class Forget(_Removal):
    """Removes an application without a name, once all its ledgers are refused (:func:`is_refused`)."""

    def __init__(self, paths: LogPaths, limits: ReapLimits, app_key: str) -> None:
        super().__init__(paths, limits)
        self._path = f"{paths.apps}/{app_key}"

    def decide(
        self, readings: Readings, now_ms: int, maybe: tuple[str, ...] | None
    ) -> AlreadyDone[tuple[str, ...]] | Plan[tuple[str, ...]]:
        """Raises NoSuchLogError, LogReplacedError, MetadataFormatError."""
        readings.require(self.paths.head, self._path)
        read, znode = read_head(readings, self.paths), readings.get(self._path)
        if znode is None or not is_forgettable(znode, self._path, now_ms, self._limits):
            return AlreadyDone(() if maybe is None else maybe)
        return self._plan([DeleteOp(self._path, znode.version)], read.write(self.paths, read.head))


class RemovePages(_Removal):
    """Removes those pages of ``numbers`` that are no longer in the list, and those that an appender left beyond its end
    longer ago than the deletion grace."""

    def __init__(self, paths: LogPaths, limits: ReapLimits, numbers: Sequence[int]) -> None:
        super().__init__(paths, limits)
        self._numbers = numbers

    def decide(
        self, readings: Readings, now_ms: int, maybe: tuple[str, ...] | None
    ) -> AlreadyDone[tuple[str, ...]] | Plan[tuple[str, ...]]:
        """Raises NoSuchLogError, LogReplacedError, MetadataFormatError."""
        paths = self.paths
        read = read_head(readings, paths)
        readings.require(*map(paths.page, self._numbers))
        head = read.head
        deletions: list[TransactionOp] = []
        guard: TransactionOp | None = None
        for number in self._numbers:
            path = paths.page(number)
            znode = readings.get(path)
            if znode is None or head.first_znode_page <= number <= head.tail_page:
                continue
            if number > head.tail_page:
                if now_ms - znode.mtime_ms < self._limits.delete_grace_ms:
                    continue
                guard = read.write(paths, head)
            deletions.append(DeleteOp(path, znode.version))
        return self._plan(deletions, guard)


class RemoveAppended(_Removal):
    """Removes the records of foreign ledgers that left the list long ago. The ledgers stay."""

    def __init__(self, paths: LogPaths, limits: ReapLimits, view: ListView, ledger_ids: Sequence[int]) -> None:
        super().__init__(paths, limits)
        self._view = view
        self._ledger_ids = ledger_ids

    def decide(
        self, readings: Readings, now_ms: int, maybe: tuple[str, ...] | None
    ) -> AlreadyDone[tuple[str, ...]] | Plan[tuple[str, ...]]:
        """Raises NoSuchLogError, LogReplacedError, MetadataConflictError, MetadataFormatError."""
        paths = self.paths
        readings.require(paths.head)
        read, references = listed_now(readings, paths, self._view)
        readings.require(*map(paths.appended_ledger, self._ledger_ids))
        deletions: list[TransactionOp] = []
        for ledger_id in self._ledger_ids:
            path = paths.appended_ledger(ledger_id)
            znode = readings.get(path)
            # An appender whose reply was lost looks for its token here. Allow it as much time as any active process.
            if (
                znode is None
                or ledger_id in references
                or decode_appended(znode.data, path).offset >= read.head.first_offset
                or now_ms - znode.mtime_ms < self._limits.orphan_retention_ms
            ):
                continue
            deletions.append(DeleteOp(path, znode.version))
        return self._plan(deletions, CheckOp(paths.head, read.version))


def forget_steps(
    paths: LogPaths, view: ListView, app_key: str, now_ms: Callable[[], int], limits: ReapLimits
) -> Steps[tuple[str, ...]]:
    """Forget an application without a name whose time is over. Returns the removed znodes.

    Removes none while one of its ledgers is neither in the list nor condemned. Raises the errors of a change.
    """
    for run_key in (yield from children_steps(paths, paths.runs_at(app_key))):
        run = Run(app_key, run_key)
        ledger_ids = ledger_ids_of((yield from children_steps(paths, run.path(paths))))
        for part in parts_of(paths, run, ledger_ids):
            znodes = yield from read_steps(paths, tuple(run.registration(paths, ledger_id) for ledger_id in part))
            last_entries = {}
            for ledger_id in part:
                path = run.registration(paths, ledger_id)
                znode = znodes[path]
                if znode is None or is_refused(decode_registration(znode.data, path)):
                    continue
                last_entry = view.references.last_entry(ledger_id)
                if last_entry is None:
                    return ()
                last_entries[ledger_id] = last_entry
            if last_entries:
                yield from change_steps(MarkCommitted(paths, limits, run, last_entries), now_ms)
    return (yield from change_steps(Forget(paths, limits, app_key), now_ms))


def is_refused(registration: LedgerRegistration) -> bool:
    """Whether this registration alone makes a batch with already committed entries refused."""
    return registration.condemned or registration.last_committed_entry is not None


def is_forgettable(znode: Znode, path: str, now_ms: int, limits: ReapLimits) -> bool:
    """Whether the application at ``path`` had no name and finished long ago. Raises MetadataFormatError."""
    # Its only commit was the last write to this znode.
    return _anonymous(znode, path) is not None and now_ms - znode.mtime_ms >= limits.forget_anonymous_ms


def _anonymous(znode: Znode | None, path: str) -> Application | None:
    application = None if znode is None else decode_application(znode.data, path)
    return application if application is not None and application.anonymous else None
