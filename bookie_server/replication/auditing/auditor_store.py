"""What the election and the auditor read and write in ZooKeeper. Everything here blocks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from bk_spark.bookie.metadata.cluster_clock import unix_time_ms
from bk_spark.bookie.metadata.proven_changes import prove_and_change, put
from bk_spark.bookie.metadata.zookeeper import WatchCallback
from bk_spark.protocol.errors import MetadataFormatError, MetadataUnavailableError
from bk_spark.protocol.metadata import ledger_metadata
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.metadata.replication_notes import (
    audited_delay_path,
    decode_audited_delay,
    decode_progress,
    encode_audited_delay,
    encode_progress,
    progress_path,
)
from bk_spark.protocol.metadata.under_replication import PeriodicCheck
from bk_spark.protocol.metadata.znodes import DeleteOp, TransactionConflictError
from bookie_server.replication.access import ReplicationAccess
from bookie_server.replication.actions import (
    AuditedDelayRead,
    BookiesRead,
    Check,
    CheckTimeRead,
    Children,
    DelayRead,
    Done,
    EndCheck,
    LedgersRead,
    ListChildren,
    MarkLedgers,
    ProgressRead,
    ReadLedgers,
    ReadProgress,
    ScanAction,
    ScanEvent,
    SyncStore,
    Vote,
    VotesRead,
    WriteProgress,
)

_LOG: Final = logging.getLogger(__name__)
_READ_ONLY: Final = "readonly"
_CHECK_TIMES: Final = {
    Check.LEDGERS: PeriodicCheck.ALL_LEDGERS,
    Check.PLACEMENT: PeriodicCheck.PLACEMENT_POLICY,
    Check.REPLICAS: PeriodicCheck.REPLICAS,
}


class AuditorStore:
    """The znodes of the election, the audits and the checks. All methods raise MetadataUnavailableError."""

    def __init__(self, access: ReplicationAccess) -> None:
        self._access = access

    def read_votes(self) -> VotesRead:
        """Return all votes, after a sync."""
        access = self._access
        access.zk.sync(access.election.paths.election)
        session_id = access.zk.session_id
        return VotesRead(
            tuple(Vote(vote.path, vote.number, vote.session_id == session_id) for vote in access.election.votes())
        )

    def write_auditor(self) -> None:
        """Name this process as the elected auditor, on the proof of its vote."""
        access = self._access
        mine = access.election.vote(access.bookie_id)
        access.election.write_auditor(access.bookie_id, proof=mine.path)

    def read_bookies(self, watch: WatchCallback | None) -> BookiesRead:
        """Return the bookies that are registered."""
        zk, available = self._access.zk, f"{self._access.uri.root}/available"
        writable = zk.children(available, watch)
        if writable is None:
            raise MetadataUnavailableError(f"{available} does not exist: no bookie was ever registered")
        read_only = zk.children(f"{available}/{_READ_ONLY}", watch) or ()
        # A bookie that changes its mode may be in neither list for a moment, so the first list is read again.
        writable += zk.children(available) or []
        return BookiesRead(frozenset({*writable, *read_only} - {_READ_ONLY}))

    def read_delay(self, watch: WatchCallback | None) -> DelayRead:
        """Return how long a lost bookie is waited for."""
        delay = self._access.switches.recovery_delay(watch)
        return DelayRead(0, -1) if delay is None else DelayRead(delay.seconds * 1000, delay.version)

    def read_cookies(self) -> list[str]:
        """Return the bookies that ever were."""
        return self._access.zk.children(f"{self._access.uri.root}/cookies") or []

    def read_audited_delay(self) -> AuditedDelayRead:
        """Return the delay that the last audit was done for."""
        found = self._access.zk.get(audited_delay_path(self._access.uri.root))
        try:
            return AuditedDelayRead(None if found is None else DelayRead(*decode_audited_delay(found.data)))
        except MetadataFormatError as error:
            _LOG.warning("replication: %s: an audit begins, and stores it anew", error)
            return AuditedDelayRead(None, unreadable=True)

    def read_check_time(self, check: Check) -> CheckTimeRead:
        """Return how long ago the last check of this kind ended."""
        ended_ms = self._access.switches.check_time_ms(_CHECK_TIMES[check])
        return CheckTimeRead(check, None if ended_ms is None else max(0.0, unix_time_ms() - ended_ms))

    def do(self, action: ScanAction) -> ScanEvent:
        """Perform an action of a scan that asks ZooKeeper alone."""
        access, zk, root = self._access, self._access.zk, self._access.uri.root
        match action:
            case SyncStore():
                zk.sync(root)
            case ListChildren(path):
                return Children(zk.children(path))
            case ReadLedgers(ledger_ids):
                return LedgersRead(self._read_ledgers(list(ledger_ids)))
            case MarkLedgers(missing, proof):
                access.store.mark_all({one: sorted(bookies) for one, bookies in missing.items()}, proof=proof)
            case ReadProgress(check):
                found = zk.get(progress_path(root, check.value))
                return ProgressRead(-1 if found is None else decode_progress(found.data))
            case WriteProgress(check, after, proof):
                data = encode_progress(after)
                put(zk, progress_path(root, check.value), lambda _: data, proof)
            case EndCheck(check, proof, delay):
                if delay is not None:
                    note = encode_audited_delay(delay.delay_ms, delay.version)
                    put(zk, audited_delay_path(root), lambda _: note, proof)
                self._end_check(check, proof)
            case _:
                raise AssertionError(action)
        return Done()

    def _read_ledgers(self, ledger_ids: list[int]) -> Mapping[int, LedgerMetadata | MetadataFormatError]:
        access = self._access
        paths = {access.ledgers.manager.ledger_path(access.uri.root, each): each for each in ledger_ids}
        found: dict[int, LedgerMetadata | MetadataFormatError] = {}
        for path, node in access.zk.get_many(list(paths)).items():
            if node is not None:
                try:
                    found[paths[path]] = ledger_metadata.decode(node.data)
                except MetadataFormatError as error:
                    found[paths[path]] = error
        return found

    def _end_check(self, check: Check, proof: str) -> None:
        access = self._access
        if check in _CHECK_TIMES:
            access.switches.set_check_time_ms(_CHECK_TIMES[check], unix_time_ms(), proof=proof)
        path = progress_path(access.uri.root, check.value)
        if access.zk.exists(path) is not None:
            try:
                prove_and_change(access.zk, proof, [DeleteOp(path)])
            except TransactionConflictError as conflict:
                if conflict.reason != "NoNodeError":
                    raise
