"""Makes the copies of given bookies again on other bookies: one ledger after another, each under its lock.

A tool decides which bookies and ledgers. An auditor and workers may run beside it, and other tools, too: whoever holds
a ledger's lock repairs it, and the others find nothing bad afterwards. It needs no marks. A mark that it finds is
deleted when nothing is bad any more, as by a worker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeVar

from bk_spark.bookie.cluster_session import ClusterSession
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.metadata.zookeeper_access import ZooKeeperAccess
from bk_spark.bookie.reading.read_access import ReadAccess
from bk_spark.bookie.replication.repair_performer import LedgerRepairs, copy_limits_of, throttle_to
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.errors import (
    BookKeeperError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    SessionLostError,
)
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.metadata.under_replication import Mark, decode_lock
from bk_spark.protocol.replication.actions import LockLost, Repaired, RepairResult, Unrepairable
from bk_spark.protocol.replication.copying.copy_rate import CopyRate
from bk_spark.protocol.replication.repair_settings import RepairSettings

#: A locked ledger is tried again after this pause.
_LOCK_PAUSE_S: Final = 1.0
_SESSION_LOST: Final = "the session with ZooKeeper has ended"
#: The name of the worker, for display.
_WORKER: Final = "bkctl recover"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """Settings of a recovery.

    Parameters
    ----------
    bookies
        Their copies are made again.
    registered_too
        Whether they are replaced even if they are registered. Otherwise a bookie that is registered again in the
        meantime keeps the ledgers of which it has every entry.
    targets
        The only bookies that new copies go to. Default: all writable ones.
    at_once
        Ledgers that are repaired at the same time.
    lock_wait_s
        How long a ledger that somebody else has locked is waited for.
    bytes_per_s
        Bytes that are copied per second. 0: no limit.
    grace_ms
        As for :class:`~bk_spark.protocol.replication.repair_settings.RepairSettings`.
    """

    bookies: frozenset[str]
    registered_too: bool = False
    targets: frozenset[str] | None = None
    at_once: int = 4
    lock_wait_s: float = 60.0
    bytes_per_s: int = 0
    grace_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class RecoveredLedger:
    """What became of a ledger.

    Parameters
    ----------
    reason
        Why the ledger is not fully replicated without the bookies. None if it is, or does not exist any more.
    fragments
        The number of fragments that were changed.
    entries, size_bytes
        What was written. An entry counts once for each bookie.
    fenced
        Whether the ledger was fenced and closed.
    """

    ledger_id: int
    reason: str | None
    fragments: int = 0
    entries: int = 0
    size_bytes: int = 0
    fenced: bool = False


async def recover_bookies(
    uri: MetadataServiceUri,
    config: ClientConfig,
    settings: RecoverySettings,
    ledger_ids: Iterable[int],
    on_ledger: Callable[[RecoveredLedger], None],
) -> None:
    """Recover these ledgers in a session of its own with ZooKeeper, and report the outcome of each, once.

    If ZooKeeper does not answer any more, the rest of the ledgers counts as not recovered. If this is cancelled, it
    ends when nothing is under way any more.

    Raises
    ------
    MetadataUnavailableError
        If ZooKeeper did not answer at the beginning.
    MetadataFormatError
        If the layout below ``underreplication`` is unknown.
    """
    # Not the client's session, which ends when it rests.
    access = await asyncio.to_thread(ZooKeeperAccess, config)
    zk = ZooKeeper(uri.servers, operation_timeout_ms=config.metadata_timeout_ms, access=access)
    try:
        await asyncio.to_thread(zk.start, config.connect_timeout_ms)
        session = await asyncio.to_thread(ClusterSession.connect, uri, config, zk)
        try:
            recovery = await asyncio.to_thread(_Recovery, session, uri, settings, on_ledger)
            await recovery.run(ledger_ids)
        finally:
            await session.close()
    finally:
        await asyncio.to_thread(zk.close)


@dataclass(frozen=True, slots=True)
class _Locked:
    """A ledger that somebody else has locked, when to try it again, and until when. Times are the loop's."""

    ledger_id: int
    next_s: float
    deadline_s: float


class _Recovery:
    """The constructor blocks. The rest runs in one event loop."""

    def __init__(
        self,
        session: ClusterSession,
        uri: MetadataServiceUri,
        settings: RecoverySettings,
        on_ledger: Callable[[RecoveredLedger], None],
    ) -> None:
        self._zk = session.zookeeper
        self._settings = settings
        self._on_ledger = on_ledger
        self._ledgers = LedgerStore(self._zk, uri)
        self._store = UnderReplicationStore(self._zk, uri.root)
        self._store.prepare()
        self._proof = self._store.begin_worker(_WORKER)
        reads = ReadAccess.of(session.services, session.pool, session.pool_v3, session.config)
        rate = CopyRate(bytes_per_s=settings.bytes_per_s)
        repair = RepairSettings(
            grace_ms=settings.grace_ms,
            replaced=settings.bookies if settings.registered_too else frozenset(),
            targets=settings.targets,
            copy=rate.batches(copy_limits_of(reads)),
        )
        self._repairs = LedgerRepairs(session, reads, self._ledgers, self._proof, repair, throttle=throttle_to(rate))
        self._todo: deque[int] = deque()
        self._locked: deque[_Locked] = deque()
        #: Why nothing more can be done.
        self._ended = ""

    async def run(self, ledger_ids: Iterable[int]) -> None:
        self._todo.extend(ledger_ids)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._settings.at_once):
                tasks.create_task(self._work())
        for ledger_id in (*self._todo, *(each.ledger_id for each in self._locked)):
            self._tell(ledger_id, f"not tried: {self._ended}. Run the same command again")

    async def _work(self) -> None:
        """Locked ledgers are tried again after all others."""
        loop = asyncio.get_running_loop()
        while not self._ended:
            if self._todo:
                begun_s = loop.time()
                one = _Locked(self._todo.popleft(), begun_s, begun_s + self._settings.lock_wait_s)
            elif self._locked:
                one = self._locked.popleft()
                await asyncio.sleep(one.next_s - loop.time())
            else:
                return
            try:
                await self._recover(one)
            except SessionLostError:
                self._ended = _SESSION_LOST
                self._tell(one.ledger_id, f"{_SESSION_LOST}, and with it the lock")
            except MetadataUnavailableError as error:
                self._ended = self._ended or str(error)
                self._tell(one.ledger_id, f"{error}; what was done is unknown")
            except BookKeeperError as error:
                self._tell(one.ledger_id, str(error))
                # If that fails, the lock ends with the session.
                with contextlib.suppress(BookKeeperError):
                    await self._call(self._store.release, one.ledger_id)

    async def _recover(self, one: _Locked) -> None:
        store, ledger_id = self._store, one.ledger_id
        if not await self._call(store.lock, ledger_id, proof=self._proof):
            now_s = asyncio.get_running_loop().time()
            if now_s < one.deadline_s:
                self._locked.append(_Locked(ledger_id, now_s + _LOCK_PAUSE_S, one.deadline_s))
            else:
                self._tell(ledger_id, await self._call(self._who_locks, ledger_id))
            return
        found = await self._call(store.read_locked, ledger_id, self._ledgers.path_of(ledger_id))
        mark = found.mark
        missing = self._settings.bookies.union(() if mark is None else mark.missing)
        result = await self._repairs(ledger_id, Mark(tuple(sorted(missing))), found=found)
        if isinstance(result, LockLost):
            raise SessionLostError(_SESSION_LOST)
        if mark is None or isinstance(result, Unrepairable):
            await self._call(store.release, ledger_id)
        else:
            await self._call(self._finish, ledger_id, mark.version)
        reason = await self._call(self._why_not_done, ledger_id, result)
        if isinstance(result, Repaired):
            self._tell(ledger_id, reason, result)
        else:
            self._tell(ledger_id, reason)

    def _tell(self, ledger_id: int, reason: str | None, done: Repaired | None = None) -> None:
        if done is None:
            self._on_ledger(RecoveredLedger(ledger_id, reason))
        else:
            self._on_ledger(
                RecoveredLedger(ledger_id, reason, done.fragments, done.entries, done.size_bytes, done.recovered)
            )

    # --- blocking ---

    async def _call(self, function: Callable[..., _T], *arguments: Any, **named: Any) -> _T:
        return await asyncio.to_thread(function, *arguments, **named)

    def _finish(self, ledger_id: int, mark_version: int) -> None:
        self._store.forget_reason(ledger_id)
        self._store.finish(ledger_id, mark_version, proof=self._proof)

    def _why_not_done(self, ledger_id: int, result: RepairResult) -> str | None:
        if isinstance(result, Unrepairable):
            return result.reason
        try:
            metadata = self._ledgers.read_latest(ledger_id).metadata
        except NoSuchLedgerError:
            return None
        left = sorted(self._settings.bookies.intersection(chain(*(each.ensemble for each in metadata.segments))))
        return f"{', '.join(left)} is registered again and has every entry" if left else None

    def _who_locks(self, ledger_id: int) -> str:
        path = self._store.paths.lock(ledger_id)
        found = self._zk.get(path)
        holder = None
        if found is not None:
            with contextlib.suppress(MetadataFormatError):
                holder = decode_lock(found.data, path)
        return (
            f"locked by {holder or 'another worker'} for longer than {self._settings.lock_wait_s:.0f} s; "
            "run the command again later"
        )
