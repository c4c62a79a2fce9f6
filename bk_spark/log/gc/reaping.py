"""Condemns and deletes ledgers: the two transactions that delete data. No I/O.

Both check the log's identity, the version of the head at which no segment refers to the ledger, and the application in
which the ledger is not in use. Condemning also writes the znode of the ledger's run. A commit checks that znode, so it
cannot list a ledger that it looked up before. From then on nothing can list the ledger.
Deleting checks all of this again. It also writes the run's znode, like every change of a registration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from bk_spark.log.core.append import ReadHead
from bk_spark.log.core.parts import in_parts
from bk_spark.log.core.plan import AlreadyDone, Plan, Readings, StaleError
from bk_spark.log.formats.names import INDEX, LogPaths
from bk_spark.log.formats.page import decode_page
from bk_spark.log.formats.znodes import LedgerRegistration, decode_registration, encode_application, encode_registration
from bk_spark.log.gc.reap_rules import Holder, ReapLimits, Reason, Run, reason_to_condemn
from bk_spark.log.gc.references import ListView, References, listed_now
from bk_spark.protocol.errors import MetadataConflictError, MetadataFormatError
from bk_spark.protocol.metadata.ledger_metadata import LedgerState, decode
from bk_spark.protocol.metadata.znodes import CheckOp, DeleteOp, SetOp, TransactionOp, Znode

#: Limit for the names in one transaction. A request to ZooKeeper must stay below 1 MiB.
_MAX_NAME_BYTES: Final = 256 * 1024
_OPERATION_BYTES: Final = 128
_MAX_LEDGERS_AT_ONCE: Final = 64


def parts_of(paths: LogPaths, run: Run, ledger_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Split the ledgers of ``run`` into parts that fit into one change."""
    size = max(1, min(_MAX_LEDGERS_AT_ONCE, _MAX_NAME_BYTES // (len(run.path(paths)) + _OPERATION_BYTES)))
    return in_parts(ledger_ids, size)


@dataclass(frozen=True, slots=True)
class Condemned:
    """``now``: ledgers condemned by this change. ``before``: ledger -> when it was condemned, by the cluster's clock.
    ``failed``: ledger -> why its state is unknown. All other requested ledgers must be kept."""

    now: Mapping[int, Reason]
    before: Mapping[int, int]
    failed: Mapping[int, str]


class Condemn:
    """The change that condemns those of ``ledger_ids``, registered for ``run``, that may go; at most ``at_most``."""

    def __init__(
        self,
        paths: LogPaths,
        view: ListView,
        run: Run,
        ledger_ids: Sequence[int],
        limits: ReapLimits,
        at_most: int,
    ) -> None:
        self.paths = paths
        self._view = view
        self._run = run
        self._ledger_ids = ledger_ids
        self._limits = limits
        self._at_most = at_most

    @property
    def what(self) -> str:
        """For error texts: names the run's znode."""
        return f"condemning of ledgers of {self._run.path(self.paths)}"

    @property
    def again(self) -> str:
        """Nobody has to act: the next round of maintenance finds what is left."""
        return "the next round continues"

    def decide(
        self, readings: Readings, now_ms: int, maybe: Condemned | None
    ) -> AlreadyDone[Condemned] | Plan[Condemned]:
        """Raises NoSuchLogError, LogReplacedError, MetadataConflictError, MetadataFormatError."""
        paths, run = self.paths, self._run
        known = _Known.of(readings, paths, self._view, run, self._limits)
        run_path = run.path(paths)
        registrations = [run.registration(paths, ledger_id) for ledger_id in self._ledger_ids]
        readings.require_covered(run_path, *registrations)
        run_znode = readings.get(run_path)

        now = dict(maybe.now) if maybe else {}
        before: dict[int, int] = {}
        failed: dict[int, str] = {}
        condemned: dict[int, Reason] = {}
        writes: list[TransactionOp] = []
        in_use: list[int] = []
        for ledger_id, path in zip(self._ledger_ids, registrations, strict=True):
            znode = readings.get(path)
            if znode is None:
                continue
            try:
                registration = decode_registration(znode.data, path)
            except MetadataFormatError as error:
                failed[ledger_id] = str(error)
                continue
            if registration.condemned:
                before[ledger_id] = znode.mtime_ms
                # With an older view, the ledger may have left the list since.
                if ledger_id in known.references and known.read.version == self._view.version:
                    failed[ledger_id] = "it is condemned but in the list, so it is not deleted"
                continue
            if ledger_id in known.references or len(condemned) == self._at_most:
                continue
            reason = known.reason_to_condemn(ledger_id, registration, znode.ctime_ms, now_ms, self._limits)
            if reason is None:
                continue
            condemned[ledger_id] = reason
            last = known.holder.last_in_use(ledger_id)
            if last is not None:
                in_use.append(ledger_id)
                registration = replace(registration, last_committed_entry=last)
            data = encode_registration(replace(registration, condemned=True))
            writes.append(SetOp(path, data, znode.version))

        # Ledgers condemned by a transaction with an unknown outcome count as this change's work too.
        done = {ledger_id: reason for ledger_id, reason in now.items() if ledger_id in before}
        before = {ledger_id: time_ms for ledger_id, time_ms in before.items() if ledger_id not in done}
        result = Condemned(done | condemned, before, failed)
        if not writes:
            return AlreadyDone(result)
        if run_znode is None:
            raise StaleError(f"{run_path} is missing")
        return Plan(
            (),
            (
                *known.checks(paths, self._limits),
                *known.holder_operations(paths, in_use),
                SetOp(run_path, run_znode.data, run_znode.version),
                *writes,
            ),
            result,
        )


class DeleteLedgers:
    """The change that deletes the metadata and registrations of condemned ledgers of ``run``. Its result is the ledgers
    that are gone.

    ``ledger_path`` returns the znode of a ledger's metadata. ``closed`` are the ledgers that were recovered, or
    never can be. Others are deleted only if their metadata is gone already.
    """

    def __init__(
        self,
        paths: LogPaths,
        view: ListView,
        run: Run,
        ledger_ids: Sequence[int],
        closed: frozenset[int],
        ledger_path: Callable[[int], str],
        limits: ReapLimits,
    ) -> None:
        self.paths = paths
        self._view = view
        self._run = run
        self._ledger_ids = ledger_ids
        self._closed = closed
        self._ledger_path = ledger_path
        self._limits = limits

    @property
    def what(self) -> str:
        """For error texts: names the run's znode."""
        return f"deletion of ledgers of {self._run.path(self.paths)}"

    @property
    def again(self) -> str:
        """Nobody has to act: the next round of maintenance finds what is left."""
        return "the next round continues"

    def decide(
        self, readings: Readings, now_ms: int, maybe: tuple[int, ...] | None
    ) -> AlreadyDone[tuple[int, ...]] | Plan[tuple[int, ...]]:
        """Raises NoSuchLogError, LogReplacedError, MetadataConflictError, MetadataFormatError."""
        paths, run = self.paths, self._run
        known = _Known.of(readings, paths, self._view, run, self._limits)
        run_path = run.path(paths)
        readings.require_covered(run_path, *(run.registration(paths, ledger_id) for ledger_id in self._ledger_ids))
        readings.require(*map(self._ledger_path, self._ledger_ids))
        run_znode = readings.get(run_path)
        gone: list[int] = []
        deletions: list[TransactionOp] = []
        for ledger_id in self._ledger_ids:
            path = run.registration(paths, ledger_id)
            znode = readings.get(path)
            if znode is None:
                gone.append(ledger_id)
                continue
            if (
                not decode_registration(znode.data, path).condemned
                or now_ms - znode.mtime_ms < self._limits.delete_grace_ms
                or ledger_id in known.references
                or known.holder.last_in_use(ledger_id) is not None
            ):
                continue
            metadata_path = self._ledger_path(ledger_id)
            metadata = readings.get(metadata_path)
            if metadata is not None:
                if ledger_id not in self._closed or not made_together(znode, metadata):
                    continue
                deletions.append(DeleteOp(metadata_path, metadata.version))
            deletions.append(DeleteOp(path, znode.version))
            gone.append(ledger_id)
        if not deletions:
            return AlreadyDone(tuple(gone))
        if run_znode is None:
            raise StaleError(f"{run_path} is missing")
        return Plan(
            (),
            (
                *known.checks(paths, self._limits),
                *known.holder_operations(paths, ()),
                SetOp(run_path, run_znode.data, run_znode.version),
                *deletions,
            ),
            tuple(gone),
        )


def made_together(registration: Znode, metadata: Znode) -> bool:
    """Whether one transaction created both the metadata and the registration. Metadata of another cluster, or of a new
    ledger under an old id, are not the log's to delete."""
    return registration.created_zxid == metadata.created_zxid


def is_closed(metadata: Znode) -> bool:
    """Whether the ledger is closed. It then stays closed: nobody adds to it any more."""
    try:
        return decode(metadata.data).state is LedgerState.CLOSED
    except MetadataFormatError:
        return False


@dataclass(frozen=True, slots=True)
class _Known:
    """What both changes must know and check in their transactions."""

    read: ReadHead
    references: References
    run: Run
    holder: Holder
    holder_znode: Znode | None
    open_tail: int | None

    @classmethod
    def of(cls, readings: Readings, paths: LogPaths, view: ListView, run: Run, limits: ReapLimits) -> _Known:
        readings.require(paths.head, run.holder_path(paths), run.path(paths))
        read, references = listed_now(readings, paths, view)
        if limits.policy is not None:
            policy = readings.get(paths.policy)
            if policy is None or policy.version != limits.policy.version:
                raise MetadataConflictError(
                    f"log {paths.name}: its policy was changed meanwhile; the next round uses the new one"
                )
        if run.app_key == INDEX and read.head.index != view.head.index:
            raise MetadataConflictError(f"log {paths.name}: more of its list was moved into index ledgers meanwhile")
        holder_znode = readings.get(run.holder_path(paths))
        tail_path = paths.page(read.head.tail_page)
        open_tail = None
        if not run.is_of_application:
            tail_znode = readings.get(tail_path)
            if tail_znode is None:
                raise StaleError(f"page {tail_path} is missing")
            tail = decode_page(tail_znode.data, tail_path, log_id=paths.log_id, number=read.head.tail_page)
            open_tail = int(tail.table.ledger_id[-1]) if tail.open_tail else None
        return cls(read, references, run, Holder(run, paths, holder_znode), holder_znode, open_tail)

    def reason_to_condemn(
        self, ledger_id: int, registration: LedgerRegistration, made_ms: int, now_ms: int, limits: ReapLimits
    ) -> Reason | None:
        return reason_to_condemn(
            self.run,
            self.holder,
            ledger_id,
            registration,
            made_ms=made_ms,
            open_tail=self.open_tail,
            now_ms=now_ms,
            limits=limits,
        )

    def checks(self, paths: LogPaths, limits: ReapLimits) -> tuple[TransactionOp, ...]:
        policy = () if limits.policy is None else (limits.policy,)
        return CheckOp(paths.identity, -1), CheckOp(paths.head, self.read.version), *policy

    def holder_operations(self, paths: LogPaths, no_more_in_use: Sequence[int]) -> list[TransactionOp]:
        """Return operations that check the application, and take ledgers out of those in use.

        Without an application nothing is in use, and a commit that creates one writes the head. The owner of the tail
        is not checked: its ledger is in the list.
        """
        application, znode = self.holder.application, self.holder_znode
        if application is None or znode is None:
            return []
        path = self.run.holder_path(paths)
        if not no_more_in_use:
            return [CheckOp(path, znode.version)]
        kept = {ledger_id: last for ledger_id, last in application.in_use.items() if ledger_id not in no_more_in_use}
        return [SetOp(path, encode_application(replace(application, in_use=MappingProxyType(kept))), znode.version)]
