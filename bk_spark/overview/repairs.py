"""Under-replicated ledgers and their repair."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.replication.auditor_election import AuditorElection
from bk_spark.bookie.replication.replication_switches import ReplicationSwitches
from bk_spark.bookie.replication.under_replication_store import LedgerLock, UnderReplicationStore
from bk_spark.protocol.errors import MetadataFormatError
from bk_spark.protocol.metadata import ledger_metadata
from bk_spark.protocol.metadata.under_replication import Mark

#: Marks that are counted, at most, and ledgers that are shown.
MAX_COUNTED: Final = 2_000
MAX_SHOWN: Final = 50


class Repairs:
    """Looks at the marks of ``store``'s cluster. It remembers how many there were, to show how many are done."""

    def __init__(self, store: LedgerStore) -> None:
        self._ledgers = store
        self._marks = UnderReplicationStore(store.zk, store.root)
        self._switches = ReplicationSwitches(store.zk, store.root)
        self._election = AuditorElection(store.zk, store.root)
        #: The most ledgers that were marked since none was.
        self._most = 0

    def collect(self) -> dict[str, Any]:
        """Return the state of self-healing, and the first under-replicated ledgers."""
        marks: dict[int, Mark] = {}
        for page in self._marks.marks():
            marks |= page
            if len(marks) >= MAX_COUNTED:
                break
        self._most = max(self._most, len(marks)) if marks else 0
        locks = self._marks.locks()
        vote = self._election.auditor()
        # Those that are being repaired first: something happens there.
        ids = sorted(marks, key=lambda ledger_id: (ledger_id not in locks, ledger_id))
        shown = list(islice(ids, MAX_SHOWN))
        return {
            "enabled": not self._switches.is_disabled(),
            "auditor": None if vote is None else vote.bookie_id,
            "under_replicated": len(marks),
            "more": len(marks) >= MAX_COUNTED,
            "most": self._most,
            "repairing": sum(ledger_id in locks for ledger_id in marks),
            "ledgers": [
                self._record(ledger_id, marks[ledger_id], locks.get(ledger_id), fragments)
                for ledger_id, fragments in zip(shown, self._fragments(shown, marks), strict=True)
            ],
        }

    def _record(
        self, ledger_id: int, mark: Mark, lock: LedgerLock | None, fragments: tuple[int, int] | None
    ) -> dict[str, Any]:
        return {
            "ledger": ledger_id,
            "missing": list(mark.missing),
            "marked_ms": mark.ctime_ms,
            "fragments": None if fragments is None else fragments[0],
            "all_fragments": None if fragments is None else fragments[1],
            "repaired_by": None if lock is None else lock.holder or "unknown",
            "since_ms": None if lock is None else lock.since_ms,
        }

    def _fragments(self, ids: list[int], marks: dict[int, Mark]) -> list[tuple[int, int] | None]:
        """Return, for each ledger, how many of its fragments name a missing bookie, and how many it has."""
        store = self._ledgers
        paths = [store.manager.ledger_path(store.root, ledger_id) for ledger_id in ids]
        found = store.zk.get_many(paths)
        counts: list[tuple[int, int] | None] = []
        for ledger_id, path in zip(ids, paths, strict=True):
            znode = found[path]
            try:
                segments = () if znode is None else ledger_metadata.decode(znode.data).segments
            except MetadataFormatError:
                counts.append(None)
                continue
            missing = set(marks[ledger_id].missing)
            bad = sum(not missing.isdisjoint(segment.ensemble) for segment in segments)
            counts.append(None if znode is None else (bad, len(segments)))
        return counts
