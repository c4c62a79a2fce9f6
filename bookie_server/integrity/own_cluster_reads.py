"""Ledger metadata that count only if they were read in the bookie's own cluster. Blocking.

If ZooKeeper's root was made anew, or its hosts lead elsewhere, a ledger of the same id may be closed there without this
bookie, or be missing. Limbo must not begin or end because of that.
"""

from __future__ import annotations

from typing import Final

from bk_spark.bookie.metadata.ledger_store import LedgerStore, StoredMetadata, stored_metadata
from bookie_server.gc.ledger_metadata_reads import LedgerMetadataReads
from bookie_server.gc.throttle import StopSignal, Throttle
from bookie_server.identity.cluster_identity import ClusterIdentity

_UNLIMITED: Final = 0.0


def own_cluster_reads(store: LedgerStore, identity: ClusterIdentity) -> LedgerMetadataReads:
    """Return reads of ``store`` as fast as it answers, in one session that is synced first."""
    return LedgerMetadataReads(store, identity, Throttle(_UNLIMITED), StopSignal())


def read_in_own_cluster(store: LedgerStore, identity: ClusterIdentity, ledger_id: int) -> StoredMetadata:
    """Read the metadata of a ledger.

    Raises NoSuchLedgerError; ForeignClusterError, if this is another cluster; MetadataUnavailableError, also if the
    session was replaced meanwhile; MetadataFormatError.
    """
    # A session of its own for each ledger: others are read at the same time.
    reads = own_cluster_reads(store, identity)
    reads.begin()
    path = reads.path(ledger_id)
    return stored_metadata(ledger_id, reads.get([path])[path])
