"""The collector's reads of the metadata store. Blocking; used in the collector's thread.

"Absent" may remove a ledger from this bookie, so it counts only under two conditions:

* It was read in the session that was synced after the bookie's ledgers were listed. A server may be behind, and so may
  the server of a new session.
* The store is the bookie's cluster. LAYOUT, INSTANCEID and the bookie's cookie are read with every request, from the
  first one on (cluster_identity.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bk_spark.bookie.metadata.ledger_ids import coming_ledger_id
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.protocol.errors import MetadataUnavailableError
from bk_spark.protocol.metadata.ledger_paths import MAX_LEDGER_ID, LedgerManager, parse_layout
from bk_spark.protocol.metadata.under_replication import UnderReplicationPaths
from bk_spark.protocol.metadata.znodes import Znode
from bookie_server.gc.collection_steps import READS_AT_ONCE, LockedLedger
from bookie_server.gc.throttle import StopSignal, Throttle
from bookie_server.identity.cluster_identity import ClusterIdentity, ForeignClusterError

_IDS_PER_LEAF: Final = 10_000


class LedgerMetadataReads:
    """Reads ``store`` at the rate of ``throttle``. Answers count only if it is the cluster of ``identity``."""

    def __init__(self, store: LedgerStore, identity: ClusterIdentity, throttle: Throttle, stop: StopSignal) -> None:
        self.store = store
        self.identity = identity
        self._throttle = throttle
        self._stop = stop
        self._session = 0
        self._replication = UnderReplicationPaths(store.root)

    @property
    def root(self) -> str:
        """The root of the cluster's znodes."""
        return self.store.root

    def begin(self) -> None:
        """Sync with the store. Later reads see a state that is not older than this call.

        Raises MetadataError.
        """
        zk = self.store.zk
        self._session = zk.session_id
        zk.sync(self.root)
        self._check_cluster(zk.get_many(self._cluster_paths))
        self._check_session()

    @property
    def ids_per_range(self) -> int:
        """Number of ids with the same parent znode."""
        return MAX_LEDGER_ID if self.store.manager is LedgerManager.FLAT else _IDS_PER_LEAF

    def path(self, ledger_id: int) -> str:
        """The path of the ledger's znode."""
        return self.store.manager.ledger_path(self.root, ledger_id)

    def names_in(self, path: str) -> set[str]:
        """Names of the children of ``path``, perhaps only a part of them; none if ``path`` does not exist.

        Raises MetadataError, GarbageCollectorStoppedError.
        """
        self._take(1)
        return set(self.store.zk.children(path) or ())

    def contents(self, ledger_ids: Sequence[int]) -> dict[int, bytes | None]:
        """Contents of the ledgers' znodes; None for an absent one. Raises like :meth:`get`."""
        found = self.get([self.path(ledger_id) for ledger_id in ledger_ids])
        nodes = {ledger_id: found[self.path(ledger_id)] for ledger_id in ledger_ids}
        return {ledger_id: None if node is None else node.data for ledger_id, node in nodes.items()}

    def locked_ledger(self, ledger_id: int) -> LockedLedger:
        """Read the ledger's znode with its replication lock and its mark. Raises like :meth:`get`."""
        path, lock, mark = self.path(ledger_id), self._replication.lock(ledger_id), self._replication.mark(ledger_id)
        found = self.get([lock, path, mark])
        held, node = found[lock], found[path]
        return LockedLedger(
            content=None if node is None else node.data,
            locked=held is not None and held.owner_session == self.store.zk.session_id,
            marked=found[mark] is not None,
        )

    def next_id(self) -> int:
        """The id that the next new ledger gets; 0 if the counter has given none. Raises like :meth:`get`.

        Also 0 with the flat layout, whose counter counts all znodes in the root.
        """
        if self.store.manager is LedgerManager.FLAT:
            return 0
        self._take(1)
        found = coming_ledger_id(self.store.zk, self.root, self.store.manager)
        # It counts only if it is this cluster's.
        self.get([self.path(0)])
        return found

    def unlisted(self, ledger_ids: Sequence[int]) -> list[int]:
        """Return the ledgers of one range that its list lacks. Raises like :meth:`names_in`."""
        path, _, _ = self.path(ledger_ids[0]).rpartition("/")
        names = self.names_in(path)
        return [ledger_id for ledger_id in ledger_ids if self.path(ledger_id)[len(path) + 1 :] not in names]

    def get(self, paths: Sequence[str]) -> dict[str, Znode | None]:
        """The znodes; None for an absent one.

        Raises MetadataError, GarbageCollectorStoppedError."""
        found: dict[str, Znode | None] = {}
        for first in range(0, len(paths), READS_AT_ONCE):
            part = paths[first : first + READS_AT_ONCE]
            self._take(len(part))
            answers = self.store.zk.get_many([*part, *self._cluster_paths])
            self._check_cluster(answers)
            self._check_session()
            found |= {path: answers[path] for path in part}
        return found

    @property
    def _cluster_paths(self) -> list[str]:
        return [f"{self.root}/LAYOUT", *self.identity.paths]

    def _check_cluster(self, answers: dict[str, Znode | None]) -> None:
        self.identity.check(answers)
        layout = answers[f"{self.root}/LAYOUT"]
        if layout is None or parse_layout(layout.data) is not self.store.manager:
            raise ForeignClusterError(f"{self.root}/LAYOUT is missing or different: this is not the bookie's cluster")

    def _check_session(self) -> None:
        if not self._session or self.store.zk.session_id != self._session:
            raise MetadataUnavailableError("the session with ZooKeeper was replaced, so its answers may be old")

    def _take(self, count: int) -> None:
        self._stop.sleep_blocking(self._throttle.take(count))
