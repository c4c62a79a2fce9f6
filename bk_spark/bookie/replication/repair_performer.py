"""Repairs ledgers on real bookies: runs :class:`bk_spark.protocol.replication.ledger_repair.LedgerRepair`."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from bk_spark.bookie.cluster_session import ClusterSession
from bk_spark.bookie.metadata.ledger_store import LedgerStore, StoredMetadata, stored_metadata
from bk_spark.bookie.reading.performer import Performer, read_lac
from bk_spark.bookie.reading.read_access import ReadAccess
from bk_spark.bookie.replication.stored_adds import StoredAdds
from bk_spark.bookie.replication.under_replication_store import LockedLedger
from bk_spark.bookie.runners import AsyncRunner
from bk_spark.bookie.shielded import shielded
from bk_spark.bookie.writing.recovery import recover_ledger
from bk_spark.protocol.codes import Code, DigestType
from bk_spark.protocol.entries.digest import digest_function, master_key
from bk_spark.protocol.errors import BookKeeperError, EntryUnknownError, MetadataConflictError
from bk_spark.protocol.ledger.reading.ledger_view import LedgerKey
from bk_spark.protocol.ledger.reading.read_actions import BatchRead, EntriesRead, ReadBatch, ReadEntries, RequestFailed
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.metadata.under_replication import Mark
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.replication.actions import (
    AskPace,
    AskThrottle,
    BookiesFound,
    ChooseTarget,
    EntriesWritten,
    FindMisplaced,
    LastAddConfirmed,
    LedgerFound,
    LedgerRecovered,
    MembersReplaced,
    MisplacedFound,
    PacePassed,
    ReadBookies,
    ReadLastAddConfirmed,
    ReadLedger,
    RecoverLedger,
    RepairAction,
    RepairEvent,
    RepairResult,
    ReplaceMembers,
    StoredEntries,
    TargetChosen,
    ThrottlePassed,
    WriteEntries,
)
from bk_spark.protocol.replication.copying.copy_limits import CopyLimits
from bk_spark.protocol.replication.copying.copy_pace import CopyPace, CopyRequest
from bk_spark.protocol.replication.copying.copy_rate import CopyRate
from bk_spark.protocol.replication.ledger_repair import LedgerRepair
from bk_spark.protocol.replication.repair_settings import RepairSettings
from bk_spark.protocol.replication.verification import key_of

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")
#: What precedes each entry in a list of stored entries.
_LENGTH_BYTES: Final = 4
#: Waits until this many entries and bytes may be written.
Throttle = Callable[[int, int], Awaitable[None]]


def copy_limits_of(reads: ReadAccess, *, batch_entries: int | None = None) -> CopyLimits:
    """Return the limits of copies by a client.

    Parameters
    ----------
    batch_entries
        Entries of a batch, at most (``rereplicationEntryBatchSize``). Default: only their bytes are limited.
    """
    limits = CopyLimits(
        timeout_ms=max(reads.config.read_timeout_ms, reads.config.add_timeout_ms),
        max_answer_bytes=reads.read_settings.max_answer_bytes,
    )
    if batch_entries is None:
        return limits
    return CopyLimits(
        batch_entries=batch_entries, timeout_ms=limits.timeout_ms, max_answer_bytes=limits.max_answer_bytes
    )


async def no_throttle(entries: int, size_bytes: int) -> None:
    """Let everything pass."""


def throttle_to(rate: CopyRate) -> Throttle:
    """Return a throttle that keeps ``rate``."""

    async def throttle(entries: int, size_bytes: int) -> None:
        await asyncio.sleep(rate.take(entries, size_bytes, time.monotonic() * 1000) / 1000)

    return throttle


@dataclass(slots=True)
class CopyTotals:
    """Entries that were read to be copied, or that bookies have acknowledged as copies, once for each bookie. Their
    bytes are those that bookies store. ``told`` hears how many milliseconds each request took, and whether it
    succeeded. Reads of checks are requests, too."""

    entries: int = 0
    size_bytes: int = 0
    told: Callable[[float, bool], None] = lambda latency_ms, ok: None

    def add(self, stored: StoredEntries) -> None:
        """Count these entries and their bytes, without the length prefixes."""
        entries = len(stored.entry_ids)
        self.entries += entries
        self.size_bytes += len(stored.records) - _LENGTH_BYTES * entries


class LedgerRepairs:
    """Repairs ledgers in one session with ZooKeeper. Single event loop.

    Parameters
    ----------
    session
        Services and connections. Copies are written over connections that one repair has to itself.
    reads
        How entries are read.
    ledgers
        The metadata of ledgers, in the session that holds the locks.
    proof
        The path of the worker's ephemeral znode, from ``UnderReplicationStore.begin_worker``. None: no member can be
        replaced.
    throttle, pace
        Shared by all repairs. Both must let a batch pass before it is copied.
    read_ledger
        Reads the newest metadata of a ledger. Default: ``ledgers.read_latest``.
    read, written
        Count what is read to be copied, and what is copied. Default: totals of these repairs alone.
    """

    def __init__(
        self,
        session: ClusterSession,
        reads: ReadAccess,
        ledgers: LedgerStore,
        proof: str | None,
        settings: RepairSettings,
        *,
        throttle: Throttle = no_throttle,
        pace: CopyPace | None = None,
        read_ledger: Callable[[int], StoredMetadata] | None = None,
        read: CopyTotals | None = None,
        written: CopyTotals | None = None,
    ) -> None:
        self.session = session
        self.reads = reads
        self.ledgers = ledgers
        self.proof = proof
        self.settings = settings
        self.throttle = throttle
        self.pace = pace or CopyPace()
        self.read_ledger = read_ledger or ledgers.read_latest
        self.read = read or CopyTotals()
        self.written = written or CopyTotals()

    async def __call__(
        self,
        ledger_id: int,
        mark: Mark,
        unreadable: Collection[int] = frozenset(),
        found: LockedLedger | None = None,
    ) -> RepairResult:
        """Repair a ledger whose lock is held.

        If this is cancelled, it ends when nothing of it is under way any more. Only a recovery that has begun may
        still close the ledger.

        Parameters
        ----------
        mark
            The ledger's mark, read while the lock was held.
        unreadable
            Entries that an earlier repair could not read.
        found
            What was just read under the lock. Then the ledger is not read again for the first check.

        Raises
        ------
        MetadataError
            If ZooKeeper does not answer. What was done is unknown, and the mark must stay.
        """
        machine = LedgerRepair(ledger_id, mark.missing, self.settings, random.Random(), unreadable=unreadable)
        performer = RepairPerformer(ledger_id, self, found)
        runner: AsyncRunner[RepairAction, RepairEvent, RepairResult] = AsyncRunner(
            machine, performer, what=f"repair of ledger {ledger_id}"
        )
        try:
            return await runner.complete()
        finally:
            await performer.close()


class RepairPerformer:
    """Performs the actions of the repair of one ledger. Calls are bounded by the client's timeouts."""

    def __init__(self, ledger_id: int, repairs: LedgerRepairs, found: LockedLedger | None = None) -> None:
        self._ledger_id = ledger_id
        #: What the first read of the ledger returns.
        self._found = found
        self._repairs = repairs
        self._session = repairs.session
        #: The metadata that were read or written last. A compare-and-set is based on them.
        self._stored: StoredMetadata | None = None
        # Reading needs only the id: the machine verifies.
        unverified = LedgerKey(ledger_id, DigestType.DUMMY, digest_function(DigestType.DUMMY, b""))
        self._read = Performer(unverified, repairs.reads)
        self._pool = self._session.take_pool()
        self._adds: StoredAdds | None = None

    async def close(self) -> None:
        """Give back the connections over which copies were written. If an answer is still to come, close them, so that
        it is not taken for another one."""
        if self._adds is None or self._adds.end():
            await self._session.give_back(self._pool)
        else:
            await self._pool.close()

    def __call__(self, action: RepairAction) -> Coroutine[Any, Any, RepairEvent | None] | RepairEvent | None:
        """Begin an action. Returns None, or what gives its event."""
        match action:
            case ReadLedger():
                return self._read_ledger()
            case ReadBookies(members):
                return self._read_bookies(members)
            case ReadLastAddConfirmed(metadata):
                return self._read_lac(metadata)
            case ChooseTarget():
                return self._choose(action)
            case FindMisplaced(quorum, ensemble):
                return self._find_misplaced(quorum, ensemble)
            case ReplaceMembers(metadata, version):
                return self._replace(metadata, version)
            case RecoverLedger(metadata):
                return self._recover(metadata)
            case WriteEntries():
                return self._write(action)
            case AskPace():
                return self._keep_pace(action)
            case AskThrottle():
                return self._throttle(action)
            case ReadEntries() | ReadBatch():
                return self._timed_read(action)
        return self._read(action)

    # --- metadata ---

    async def _read_ledger(self) -> LedgerFound:
        found, self._found = self._found, None
        if found is not None:
            stored = stored_metadata(self._ledger_id, found.ledger)
        else:
            stored = await self._blocking(self._repairs.read_ledger, self._ledger_id)
        self._stored = stored
        assert stored.created_zxid is not None
        return LedgerFound(stored.metadata, stored.version, stored.created_zxid)

    async def _read_bookies(self, members: frozenset[str]) -> BookiesFound:
        seen = await self._session.services.look_at_bookies(members)
        return BookiesFound(seen.writable, seen.read_only, seen.zxids)

    async def _choose(self, action: ChooseTarget) -> TargetChosen:
        services, ensemble = self._session.services, action.ensemble
        chosen = services.choose_target(action.quorum, ensemble, action.index, action.exclude, action.among)
        return TargetChosen(*await chosen)

    async def _find_misplaced(self, quorum: Quorum, ensemble: tuple[str, ...]) -> MisplacedFound:
        return MisplacedFound(*await self._session.services.find_misplaced(quorum, ensemble))

    async def _replace(self, metadata: LedgerMetadata, version: int) -> MembersReplaced:
        read = self._stored
        proof = self._repairs.proof
        assert proof is not None
        if read is None or read.version != version:
            raise MetadataConflictError("the metadata were read again meanwhile", ledger_id=self._ledger_id)
        written = await self._blocking(self._repairs.ledgers.write_proven, self._ledger_id, metadata, read, proof)
        self._stored = written
        _LOG.info("ledger %d: members replaced, now %s", self._ledger_id, _ensembles(metadata))
        return MembersReplaced(written.version)

    async def _blocking(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call ZooKeeper in a thread, and wait for its end even if this task is cancelled."""

        def run() -> _T:
            with self._repairs.ledgers.zk.within(self._session.config.metadata_timeout_ms):
                return function(*arguments)

        running = asyncio.ensure_future(asyncio.to_thread(run))
        try:
            return await shielded(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise

    # --- bookies ---

    async def _read_lac(self, metadata: LedgerMetadata) -> LastAddConfirmed:
        key = key_of(self._ledger_id, metadata)
        if key is None:
            raise EntryUnknownError("without a password no answer proves a LAC", ledger_id=self._ledger_id)
        return LastAddConfirmed(await read_lac(key, metadata, self._repairs.reads))

    async def _recover(self, metadata: LedgerMetadata) -> LedgerRecovered:
        if metadata.digest_type is None or metadata.password is None:
            raise EntryUnknownError(
                "the metadata of the ledger have no password, so only its owner can recover it",
                ledger_id=self._ledger_id,
            )
        session = self._session
        pool = session.new_pool()
        try:
            await recover_ledger(
                self._ledger_id, metadata.digest_type, metadata.password, session.services, pool, session.config
            )
        finally:
            await pool.close()
        return LedgerRecovered()

    async def _timed_read(self, action: ReadEntries | ReadBatch) -> RepairEvent:
        reading, began = self._read(action), time.monotonic()
        assert reading is not None
        event: RepairEvent = await reading
        took_ms = (time.monotonic() - began) * 1000
        self._repairs.read.told(took_ms, not isinstance(event, RequestFailed))
        size_bytes = _size_of(event)
        if size_bytes:
            self._note(CopyRequest(action.bookie_id, False, len(action.entry_ids), size_bytes), took_ms)
        return event

    async def _write(self, action: WriteEntries) -> EntriesWritten | RequestFailed:
        if self._adds is None:
            assert self._stored is not None
            self._adds = StoredAdds(self._ledger_id, master_key(self._stored.metadata.password or b""), self._pool)
        written, began = self._repairs.written, time.monotonic()
        try:
            code = await self._adds.write(action.bookie_id, action.entries)
        except BookKeeperError as error:
            written.told((time.monotonic() - began) * 1000, False)
            return RequestFailed(action.request_id, error)
        took_ms = (time.monotonic() - began) * 1000
        written.told(took_ms, code is Code.OK)
        if code is Code.OK:
            written.add(action.entries)
            entries, size_bytes = len(action.entries.entry_ids), len(action.entries.records)
            self._note(CopyRequest(action.bookie_id, True, entries, size_bytes), took_ms)
        return EntriesWritten(action.request_id, code)

    def _note(self, request: CopyRequest, took_ms: float) -> None:
        self._repairs.pace.answered(request, took_ms, time.monotonic() * 1000)

    async def _keep_pace(self, action: AskPace) -> PacePassed:
        # Targets share the work, so what several of them get counts once.
        await asyncio.sleep(self._repairs.pace.take(action.size_bytes, time.monotonic() * 1000) / 1000)
        return PacePassed(action.request_id)

    async def _throttle(self, action: AskThrottle) -> ThrottlePassed:
        self._repairs.read.add(action.read)
        entries, size_bytes = len(action.read.entry_ids), len(action.read.records)
        await self._repairs.throttle(entries * action.targets, size_bytes * action.targets)
        self._repairs.pace.settle(size_bytes - action.paced_bytes)
        return ThrottlePassed(action.request_id)


def _size_of(event: RepairEvent) -> int:
    """Return the bytes of entries that a bookie returned."""
    match event:
        case BatchRead(_, _, records):
            return len(records)
        case EntriesRead(_, answers):
            return sum(len(answer.stored) for answer in answers.values())
    return 0


def _ensembles(metadata: LedgerMetadata) -> str:
    return ", ".join(f"{segment.first_entry_id}: {' '.join(segment.ensemble)}" for segment in metadata.segments)
