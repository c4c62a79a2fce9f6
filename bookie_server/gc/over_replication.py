"""Replication locks, under which over-replicated ledgers are removed. Source: compatibility.md §5.11, §6.1, §6.2.

After re-replication a bookie that comes back still has its copies. Each is removed under the lock that replication
workers take (``<R>/underreplication/locks/urL<id>``, ephemeral), so that none of them adds this bookie to the ledger
meanwhile. A ledger that is marked as under-replicated stays. So does an open ledger, because its ensemble may change.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from typing import Final

from bk_spark.protocol.errors import (
    MetadataError,
    MetadataFormatError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
)
from bookie_server.gc.collection_steps import LockedLedger
from bookie_server.gc.ledger_metadata_reads import LedgerMetadataReads

_LOG: Final = logging.getLogger(__name__)
_LAYOUT: Final = b'type: "BASIC"\nversion: 1\n'
_RELEASE_ATTEMPTS: Final = 3
_RELEASE_TIMEOUT_MS: Final = 5_000


class ReplicationLocks:
    """The locks of this bookie's session. Blocking; used in the collector's thread."""

    def __init__(self, reads: LedgerMetadataReads) -> None:
        self._reads = reads
        self._base = f"{reads.root}/underreplication"
        #: Ledgers whose lock this session may hold.
        self._held: set[int] = set()

    def prepare(self) -> None:
        """Create the parent znodes of locks and marks. Raises MetadataError, MetadataFormatError for another layout."""
        zk = self._reads.store.zk
        path = f"{self._base}/LAYOUT"
        layout = zk.get(path)
        if layout is None:
            zk.ensure_path(self._base)
            with contextlib.suppress(NodeExistsError):  # another bookie created it; the next pass checks it
                zk.create(path, _LAYOUT)
        elif sorted(layout.data.split()) != sorted(_LAYOUT.split()):
            raise MetadataFormatError(f"{path} is not a layout that this release knows")
        for name in ("ledgers", "locks"):
            zk.ensure_path(f"{self._base}/{name}")

    def take(self, ledger_id: int) -> bool:
        """Take the lock. Return False if another session holds it. Raises MetadataError."""
        try:
            content = f'bookieId: "{socket.gethostname()}"\n'.encode()
            self._reads.store.zk.create(self._lock_path(ledger_id), content, ephemeral=True)
        except NodeExistsError:
            return False
        except OutcomeUnknownError:
            self._held.add(ledger_id)
            raise
        return True

    def read_ledger(self, ledger_id: int) -> LockedLedger:
        """Read the ledger's znode with its lock and its mark. Raises MetadataError, GarbageCollectorStoppedError."""
        lock, path, marked = self._lock_path(ledger_id), self._reads.path(ledger_id), self._marked_path(ledger_id)
        found = self._reads.get([lock, path, marked])
        held, node = found[lock], found[path]
        return LockedLedger(
            content=None if node is None else node.data,
            locked=held is not None and held.owner_session == self._reads.store.zk.session_id,
            marked=found[marked] is not None,
        )

    def release(self, ledger_id: int) -> None:
        """Delete the lock if this session holds it.

        A lock that stays would keep replication from the ledger for as long as the session lasts, so
        :meth:`release_held` tries again.
        """
        zk, path = self._reads.store.zk, self._lock_path(ledger_id)
        self._held.add(ledger_id)
        for _ in range(_RELEASE_ATTEMPTS):
            try:
                with zk.within(_RELEASE_TIMEOUT_MS):
                    found = zk.get(path)
                    if found is not None and found.owner_session == zk.session_id:
                        zk.delete(path)
                self._held.discard(ledger_id)
                return
            except NoNodeError:
                self._held.discard(ledger_id)
                return
            except MetadataUnavailableError:
                continue
            except MetadataError as error:
                _LOG.warning("cannot release %s: %s", path, error)
                return
        _LOG.warning("cannot release %s now; the next pass tries again", path)

    def release_held(self) -> None:
        """Release locks whose release failed before. Errors leave them for the next call."""
        for ledger_id in sorted(self._held):
            self.release(ledger_id)

    def _lock_path(self, ledger_id: int) -> str:
        return f"{self._base}/locks/urL{ledger_id:010d}"

    def _marked_path(self, ledger_id: int) -> str:
        groups = "/".join(f"{ledger_id >> shift & 0xFFFF:04x}" for shift in (48, 32, 16, 0))
        return f"{self._base}/ledgers/{groups}/urL{ledger_id:010d}"
