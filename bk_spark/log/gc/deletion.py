"""Deletes a log: first blocks its use, then deletes everything step by step, and the head last. No I/O.

1. One transaction deletes the identity, creates ``<log>/deleting-<log id>`` and sets the head's ``deleted_time_ms``.
   Every change of the log checks the identity, so all pending changes are refused, whenever they arrive. No more
   ledgers are registered, so what is listed afterwards is complete.
2. Registered ledgers are fenced as far as possible. Each ledger's metadata is deleted together with its registration.
   Then all other znodes are deleted. Ledgers under ``appended`` do not belong to the log: they stay.
3. One transaction deletes ``settings``, ``deleting-<log id>`` and the head.

All transactions of steps 2 and 3 check ``deleting-<log id>``, which exists only once, for this log. So a transaction
that was sent and reported lost cannot touch a new log with the same name, although its znodes also have versions from 0
on. If a deletion stops half-way, the next deletion of the log continues it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bk_spark.log.core.changes import change_steps
from bk_spark.log.core.parts import in_parts
from bk_spark.log.core.plan import AlreadyDone, Plan, Readings
from bk_spark.log.core.reading import children_steps, read_steps, sync_steps
from bk_spark.log.core.steps import (
    Conflict,
    Done,
    Failed,
    OutcomeUnknown,
    Pause,
    RecoverLedger,
    Steps,
    Transact,
    Unavailable,
)
from bk_spark.log.formats.names import LogPaths, ledger_ids_of
from bk_spark.log.formats.znodes import Head, decode_head, encode_head
from bk_spark.log.gc.reaping import made_together
from bk_spark.protocol.errors import (
    LogReplacedError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NoSuchLogError,
    UnauthorizedError,
)
from bk_spark.protocol.metadata.znodes import CheckOp, CreateOp, DeleteOp, SetOp, TransactionOp, Znode

#: Consecutive failures, without a deletion in between, after which the next call must continue.
MAX_FAILURES: Final = 8
#: Consecutive ledgers that cannot be fenced because bookies are away, after which no more are tried.
MAX_UNFENCED: Final = 3
_PAUSE_MS: Final = 100
_LEDGERS_IN_TRANSACTION: Final = 64
_ZNODES_IN_TRANSACTION: Final = 256


@dataclass(frozen=True, slots=True)
class DeletionReport:
    """``ledgers``: how many this call deleted. ``not_fenced``: ledgers that may not have been closed. A writer that is
    unaware of the deletion may still add to them, until bookies collect them as ledgers without metadata."""

    ledgers: int
    not_fenced: tuple[int, ...]


class BeginDeletion:
    """The change that blocks all use of the log. Its result is the Unix time of the deletion."""

    def __init__(self, paths: LogPaths) -> None:
        self.paths = paths

    @property
    def what(self) -> str:
        """For error texts: names the log."""
        return f"deletion of log {self.paths.name}"

    @property
    def again(self) -> str:
        """A repetition continues a deletion that has begun."""
        return "delete it again"

    def decide(self, readings: Readings, now_ms: int, maybe: int | None) -> AlreadyDone[int] | Plan[int]:
        """Raises NoSuchLogError, LogReplacedError."""
        znode = readings.get(self.paths.head)
        head = _head(znode, self.paths)
        if znode is None or head is None:
            if maybe is not None:
                # It took effect, and another process has completed the deletion since.
                return AlreadyDone(maybe)
            if znode is None:
                raise NoSuchLogError(f"there is no log {self.paths.name} (no znode {self.paths.head})")
            raise LogReplacedError(
                f"log {self.paths.name} was deleted and created again: its id is no longer {self.paths.log_id}"
            )
        if head.deleted_time_ms:
            return AlreadyDone(head.deleted_time_ms)
        deleted = replace(head, deleted_time_ms=now_ms)
        return Plan(
            (),
            (
                DeleteOp(self.paths.identity),
                CreateOp(self.paths.deleting),
                SetOp(self.paths.head, encode_head(deleted), znode.version),
            ),
            now_ms,
        )


def delete_steps(
    paths: LogPaths, ledger_path: Callable[[int], str], now_ms: Callable[[], int]
) -> Steps[DeletionReport]:
    """Delete the log ``paths.log_id`` and its ledgers, or continue an interrupted deletion.

    ``ledger_path`` returns the znode of a ledger's metadata. Raises NoSuchLogError, LogReplacedError, and
    MetadataUnavailableError if the deletion stopped. Retry.
    """
    yield from change_steps(BeginDeletion(paths), now_ms)
    deletion = _Deletion(paths, ledger_path)
    failures = 0
    while True:
        before = deletion.transactions
        try:
            stopped = yield from deletion.round()
        except MetadataUnavailableError as error:
            raise _given_up(paths, error.message) from error
        if stopped is None:
            return DeletionReport(deletion.ledgers, tuple(sorted(deletion.not_fenced)))
        failures = 1 if deletion.transactions > before else failures + 1
        if failures > MAX_FAILURES:
            raise _given_up(paths, stopped)
        yield Pause(_PAUSE_MS * failures)


def _given_up(paths: LogPaths, why: str) -> MetadataUnavailableError:
    return MetadataUnavailableError(
        f"deletion of log {paths.name} stopped; the log can no longer be used. Delete it again to remove "
        f"the rest ({why})"
    )


class _StopError(Exception):
    """This round cannot continue."""


@dataclass(slots=True)
class _Deletion:
    """Each round starts from what exists, so it need not know the outcome of the previous round."""

    paths: LogPaths
    ledger_path: Callable[[int], str]
    ledgers: int = 0
    not_fenced: set[int] = field(default_factory=set)
    #: Transactions that took effect.
    transactions: int = 0
    _unfenced_in_a_row: int = 0

    def round(self) -> Steps[str | None]:
        """Delete everything that is left. Returns None, or why it stopped early."""
        paths = self.paths
        try:
            yield from sync_steps(paths)
            head_znode = (yield from self._read(paths.head))[paths.head]
            if _head(head_znode, paths) is None or head_znode is None:
                return None
            for app in (yield from self._children(paths.ledgers)):
                for run in (yield from self._children(paths.runs_at(app))):
                    yield from self._delete_ledgers(paths.run_at(app, run))
            last = {paths.settings, paths.deleting}
            for name in (yield from self._children(paths.head)):
                path = f"{paths.head}/{name}"
                if path not in last:
                    yield from self._delete_tree(path)
            settings = (yield from self._read(paths.settings))[paths.settings]
            yield from self._transact(
                (
                    *(() if settings is None else (DeleteOp(paths.settings),)),
                    DeleteOp(paths.deleting),
                    DeleteOp(paths.head, head_znode.version),
                )
            )
        except _StopError as stop:
            return str(stop)
        return None

    def _delete_ledgers(self, run_path: str) -> Steps[None]:
        names = yield from self._children(run_path)
        for part in in_parts(ledger_ids_of(names), _LEDGERS_IN_TRANSACTION):
            registrations = {ledger_id: f"{run_path}/{ledger_id}" for ledger_id in part}
            for ledger_id in (yield from self._own(registrations)):
                yield from self._fence(ledger_id)
            own = yield from self._own(registrations)
            operations: list[TransactionOp] = [CheckOp(self.paths.deleting, -1)]
            operations += map(DeleteOp, registrations.values())
            operations += (DeleteOp(self.ledger_path(ledger_id), znode.version) for ledger_id, znode in own.items())
            yield from self._transact(operations)
            self.ledgers += len(own)

    def _own(self, registrations: Mapping[int, str]) -> Steps[dict[int, Znode]]:
        """Return the metadata of ledgers that were created together with their registration. Another ledger under the
        same id does not belong to the log."""
        metadata_paths = {ledger_id: self.ledger_path(ledger_id) for ledger_id in registrations}
        znodes = yield from self._read(*registrations.values(), *metadata_paths.values())
        own = {}
        for ledger_id, path in registrations.items():
            registration, metadata = znodes[path], znodes[metadata_paths[ledger_id]]
            if registration is not None and metadata is not None and made_together(registration, metadata):
                own[ledger_id] = metadata
        return own

    def _fence(self, ledger_id: int) -> Steps[None]:
        if self._unfenced_in_a_row >= MAX_UNFENCED:
            self.not_fenced.add(ledger_id)
            return
        event = yield RecoverLedger(ledger_id)
        if not isinstance(event, Failed) or isinstance(event.error, NoSuchLedgerError):
            self._unfenced_in_a_row = 0
        else:
            # A refusal comes at once. Only bookies that do not answer cost time.
            if not isinstance(event.error, UnauthorizedError):
                self._unfenced_in_a_row += 1
            self.not_fenced.add(ledger_id)

    def _delete_tree(self, path: str) -> Steps[None]:
        for part in in_parts((yield from self._tree(path)), _ZNODES_IN_TRANSACTION):
            yield from self._transact([CheckOp(self.paths.deleting, -1), *map(DeleteOp, part)])

    def _tree(self, path: str) -> Steps[list[str]]:
        """Return all znodes at and below ``path``, children before parents."""
        found: list[str] = []
        for name in (yield from self._children(path)):
            found += yield from self._tree(f"{path}/{name}")
        return [*found, path]

    def _children(self, path: str) -> Steps[tuple[str, ...]]:
        return children_steps(self.paths, path)

    def _read(self, *paths: str) -> Steps[Mapping[str, Znode | None]]:
        return read_steps(self.paths, paths)

    def _transact(self, operations: Sequence[TransactionOp]) -> Steps[None]:
        event = yield Transact(tuple(operations))
        if isinstance(event, Conflict | OutcomeUnknown | Unavailable):
            raise _StopError(event.reason)
        assert isinstance(event, Done), event
        self.transactions += 1


def _head(znode: Znode | None, paths: LogPaths) -> Head | None:
    """Return the head of this log, deleted or not. None if there is no head, or it is another log's."""
    if znode is None:
        return None
    head = decode_head(znode.data, paths.head)
    return head if head.log_id == paths.log_id else None
