"""The cluster of the model world of self-healing: where its znodes are, and what a repair does to a ledger."""

from __future__ import annotations

import functools
from random import Random

from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, Segment, decode
from bk_spark.protocol.metadata.ledger_paths import LedgerManager
from bk_spark.protocol.metadata.under_replication import UnderReplicationPaths
from bk_spark.protocol.quorum import Quorum

ROOT = "/ledgers"
BASE = f"{ROOT}/underreplication"
ELECTION, MARKS, LOCKS, WORKERS = f"{BASE}/auditorelection", f"{BASE}/ledgers", f"{BASE}/locks", f"{BASE}/workers"
PATHS = UnderReplicationPaths(ROOT)
MANAGER = LedgerManager.HIERARCHICAL
BOOKIES = tuple(f"b{number}" for number in range(1, 7))
QUORUM = Quorum(3, 3, 2)

#: Most ledgers are read again and again.
decoded = functools.lru_cache(4096)(decode)


def all_bookies(metadata: LedgerMetadata) -> list[str]:
    return [bookie for segment in metadata.segments for bookie in segment.ensemble]


def without_lost(metadata: LedgerMetadata, registered: set[str], random: Random) -> LedgerMetadata | None:
    """The ledger after its repair; None if there are too few bookies."""
    segments = []
    for segment in metadata.segments:
        ensemble = list(segment.ensemble)
        for place, bookie in enumerate(ensemble):
            if bookie not in registered:
                free = sorted(registered - set(ensemble))
                if not free:
                    return None
                ensemble[place] = random.choice(free)
        segments.append(Segment(segment.first_entry_id, tuple(ensemble)))
    return LedgerMetadata(metadata.quorum, tuple(segments)).closed(metadata.last_entry_id, metadata.length)
