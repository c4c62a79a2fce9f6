"""Copies that this bookie holds in vain: of closed ledgers that have it in no segment. Source: facts §5.11, §6.1, §6.2.

After re-replication a bookie that came back still has its copies. Each is deleted under the lock that replication
workers take (``<R>/underreplication/locks/urL<id>``, ephemeral), so that none makes this bookie a member meanwhile,
and only while nobody has marked the ledger as under-replicated. Open ledgers stay: their ensemble may change.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from typing import Final

from bk_spark.bookie.zookeeper import Znode
from bk_spark.protocol import ledger_metadata
from bk_spark.protocol.errors import (
    BookKeeperError,
    MetadataError,
    MetadataFormatError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
)
from bk_spark.protocol.ledger_metadata import LedgerState
from bookie_server.storage import files
from bookie_server.storage.collected_storage import CollectedStorage, RunBlocking
from bookie_server.storage.ledger_collection import LedgerPass
from bookie_server.storage.ledger_metadata_reads import READS_AT_ONCE, MetadataReads
from bookie_server.storage.throttle import StopSignal

_LOG: Final = logging.getLogger(__name__)
_LAYOUT: Final = b'type: "BASIC"\nversion: 1\n'
_RELEASE_ATTEMPTS: Final = 3
_RELEASE_TIMEOUT_MS: Final = 5_000


class OverReplication:
    """Deletes copies of ``storage`` that the bookie ``bookie_id`` should not have."""

    def __init__(
        self,
        storage: CollectedStorage,
        reads: MetadataReads,
        bookie_id: str,
        run_blocking: RunBlocking,
        stop: StopSignal,
    ) -> None:
        self._storage = storage
        self._reads = reads
        self._bookie_id = bookie_id
        self._run = run_blocking
        self._stop = stop
        self._base = f"{reads.root}/underreplication"
        #: Locks that could not be given back.
        self._held: set[str] = set()

    async def run(self) -> LedgerPass:
        """One pass. Raises CollectorStoppedError, SyncFailedError."""
        result = LedgerPass()
        try:
            local = (await self._storage.local_ledgers()).tolist()
            await self._run(self._begin)
            for first in range(0, len(local), READS_AT_ONCE):
                self._stop.check()
                part = [ledger_id for ledger_id in local[first : first + READS_AT_ONCE] if ledger_id >= 0]
                for ledger_id in await self._run(self._candidates, part):
                    await self._delete(ledger_id, result)
        except (BookKeeperError, OSError) as error:
            if isinstance(error, files.SyncFailedError):
                raise
            result.problem = str(error)
            _LOG.warning("the search for over-replicated ledgers ends early: %s", error)
        return result

    async def release_held(self) -> None:
        """Give back locks that could not be given back before. Errors leave them for the next time."""
        for path in sorted(self._held):
            await self._run(self._release, path)

    async def _delete(self, ledger_id: int, result: LedgerPass) -> None:
        """Delete the copy where it is still one too many under the lock."""
        lock = f"{self._base}/locks/urL{ledger_id:010d}"
        if not await self._run(self._lock, lock):
            return
        try:
            if await self._run(self._is_superfluous_locked, ledger_id, lock):
                await self._storage.delete_ledger(ledger_id)
                await self._storage.sync_deletions()
                result.deleted.append(ledger_id)
                _LOG.info("deleted ledger %d: it is closed and has this bookie in no segment", ledger_id)
        except files.SyncFailedError:
            raise
        except OSError as error:
            result.failed += 1
            _LOG.error("ledger %d cannot be deleted: %s", ledger_id, error)
        finally:
            await self._run(self._release, lock)

    # --- in the collector's thread -----------------------------------------------------------------

    def _begin(self) -> None:
        self._reads.begin()
        zk = self._reads.store.zk
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

    def _candidates(self, ledger_ids: list[int]) -> list[int]:
        paths = [self._reads.path(ledger_id) for ledger_id in ledger_ids]
        found = self._reads.get(paths)
        return [
            ledger_id
            for ledger_id, path in zip(ledger_ids, paths, strict=True)
            if self._is_superfluous(ledger_id, found[path])
        ]

    def _lock(self, path: str) -> bool:
        """Take the lock; False where another has it, or nobody can say."""
        zk = self._reads.store.zk
        try:
            zk.create(path, f'bookieId: "{socket.gethostname()}"\n'.encode(), ephemeral=True)
        except NodeExistsError:
            return False
        except OutcomeUnknownError:
            self._held.add(path)
            raise
        return True

    def _is_superfluous_locked(self, ledger_id: int, lock: str) -> bool:
        self._reads.begin()
        path, marked = self._reads.path(ledger_id), self._marked_path(ledger_id)
        found = self._reads.get([lock, path, marked])
        held = found[lock]
        if held is None or held.owner_session != self._reads.store.zk.session_id or found[marked] is not None:
            return False
        return self._is_superfluous(ledger_id, found[path])

    def _is_superfluous(self, ledger_id: int, found: Znode | None) -> bool:
        if found is None:
            return False  # for the collection of deleted ledgers
        try:
            metadata = ledger_metadata.decode(found.data)
        except MetadataFormatError as error:
            _LOG.warning("metadata of ledger %d: %s; its copy stays", ledger_id, error)
            return False
        if metadata.state is not LedgerState.CLOSED:
            return False
        return all(self._bookie_id not in segment.ensemble for segment in metadata.segments)

    def _release(self, path: str) -> None:
        """Delete the lock if it is this session's. A lock that stays would keep replication from the ledger for as
        long as the session lasts, so it is remembered."""
        zk = self._reads.store.zk
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

    def _marked_path(self, ledger_id: int) -> str:
        groups = "/".join(f"{ledger_id >> shift & 0xFFFF:04x}" for shift in (48, 32, 16, 0))
        return f"{self._base}/ledgers/{groups}/urL{ledger_id:010d}"
