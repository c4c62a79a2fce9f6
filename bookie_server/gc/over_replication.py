"""Copies in excess: of closed ledgers that have this bookie in no segment. Source: compatibility.md §5.11, §6.1, §6.2.

After re-replication a bookie that came back still has its copies. Each is deleted under the lock that replication
workers take (``<R>/underreplication/locks/urL<id>``, ephemeral), so that none makes this bookie a member meanwhile,
and only while nobody has marked the ledger as under-replicated. Open ledgers stay: their ensemble may change.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from typing import Any, Final

from bk_spark.protocol.errors import (
    BookKeeperError,
    MetadataError,
    MetadataFormatError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
)
from bookie_server.gc.brake import Brake
from bookie_server.gc.collected_storage import CollectedStorage, RunBlocking
from bookie_server.gc.collection_steps import (
    LedgerPass,
    LockedLedger,
    ReadLocked,
    ReleaseLock,
    Step,
    TakeLock,
    over_replication_steps,
)
from bookie_server.gc.ledger_collection import CollectionDriver, note_error, some
from bookie_server.gc.ledger_metadata_reads import LedgerMetadataReads
from bookie_server.gc.throttle import StopSignal

_LOG: Final = logging.getLogger(__name__)
_LAYOUT: Final = b'type: "BASIC"\nversion: 1\n'
_RELEASE_ATTEMPTS: Final = 3
_RELEASE_TIMEOUT_MS: Final = 5_000
#: Ledgers named in the log.
_NAMED: Final = 10


class OverReplication(CollectionDriver):
    """Deletes copies of the storage that the bookie should not have."""

    def __init__(
        self,
        storage: CollectedStorage,
        reads: LedgerMetadataReads,
        brake: Brake,
        run_blocking: RunBlocking,
        stop: StopSignal,
    ) -> None:
        super().__init__(storage, reads, brake, run_blocking, stop)
        self._base = f"{reads.root}/underreplication"
        #: Locks that could not be given back.
        self._held: set[str] = set()

    async def run(self) -> LedgerPass:
        """One pass. Raises GarbageCollectorStoppedError, SyncFailedError."""
        report = LedgerPass()
        try:
            local = await self.storage.local_ledgers()
            await self.run_blocking(self._prepare)
        except (BookKeeperError, OSError) as error:
            note_error(report, error)
            _LOG.warning("over-replicated ledgers cannot be searched for: %s", error)
            return report
        bookie_id = self.reads.identity.bookie_id
        report = await self.play(over_replication_steps(report, local[local >= 0], bookie_id, self.brake), report)
        if report.deleted:
            named = some(report.deleted[:_NAMED], len(report.deleted))
            _LOG.info("deleted %d ledgers, closed and with this bookie in no segment: %s", len(report.deleted), named)
        return report

    async def do(self, step: Step) -> Any:
        match step:
            case TakeLock(ledger_id):
                return await self.run_blocking(self._lock, self._lock_path(ledger_id))
            case ReleaseLock(ledger_id):
                await self.run_blocking(self._release, self._lock_path(ledger_id))
                return None
            case ReadLocked(ledger_id):
                return await self.run_blocking(self._read_locked, ledger_id)
        return await super().do(step)

    async def release_held(self) -> None:
        """Give back locks that could not be given back before. Errors leave them for the next time."""
        for path in sorted(self._held):
            await self.run_blocking(self._release, path)

    # --- in the collector's thread -----------------------------------------------------------------

    def _prepare(self) -> None:
        self.reads.begin()
        zk = self.reads.store.zk
        path = f"{self._base}/LAYOUT"
        layout = zk.get(path)
        if layout is None:
            zk.ensure_path(self._base)
            with contextlib.suppress(NodeExistsError):  # made by another bookie meanwhile, looked at the next time
                zk.create(path, _LAYOUT)
        elif sorted(layout.data.split()) != sorted(_LAYOUT.split()):
            raise MetadataFormatError(f"{path} is not the layout that this release knows")
        for name in ("ledgers", "locks"):
            zk.ensure_path(f"{self._base}/{name}")

    def _lock(self, path: str) -> bool:
        """Take the lock; False where another has it, or nobody can say."""
        zk = self.reads.store.zk
        try:
            zk.create(path, f'bookieId: "{socket.gethostname()}"\n'.encode(), ephemeral=True)
        except NodeExistsError:
            return False
        except OutcomeUnknownError:
            self._held.add(path)
            raise
        return True

    def _read_locked(self, ledger_id: int) -> LockedLedger:
        lock, path, marked = self._lock_path(ledger_id), self.reads.path(ledger_id), self._marked_path(ledger_id)
        found = self.reads.get([lock, path, marked])
        held, node = found[lock], found[path]
        return LockedLedger(
            content=None if node is None else node.data,
            locked=held is not None and held.owner_session == self.reads.store.zk.session_id,
            marked=found[marked] is not None,
        )

    def _release(self, path: str) -> None:
        """Delete the lock if it is this session's. A lock that stays would keep replication from the ledger for as
        long as the session lasts, so it is remembered."""
        zk = self.reads.store.zk
        self._held.add(path)
        for _ in range(_RELEASE_ATTEMPTS):
            try:
                with zk.within(_RELEASE_TIMEOUT_MS):
                    found = zk.get(path)
                    if found is not None and found.owner_session == zk.session_id:
                        zk.delete(path)
                self._held.discard(path)
                return
            except NoNodeError:
                self._held.discard(path)
                return
            except MetadataUnavailableError:
                continue
            except MetadataError as error:
                _LOG.warning("cannot give back %s: %s", path, error)
                return
        _LOG.warning("cannot give back %s now; tried again with the next collection", path)

    def _lock_path(self, ledger_id: int) -> str:
        return f"{self._base}/locks/urL{ledger_id:010d}"

    def _marked_path(self, ledger_id: int) -> str:
        groups = "/".join(f"{ledger_id >> shift & 0xFFFF:04x}" for shift in (48, 32, 16, 0))
        return f"{self._base}/ledgers/{groups}/urL{ledger_id:010d}"
