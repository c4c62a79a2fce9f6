"""Performs the metadata calls of machines at ZooKeeper."""

from __future__ import annotations

from bk_spark.bookie.services import ClusterServices
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.ledger.metadata_calls import (
    CompareAndSet,
    MetadataAction,
    MetadataEvent,
    MetadataFailed,
    MetadataFound,
    MetadataWritten,
)


async def call_metadata(services: ClusterServices, ledger_id: int, action: MetadataAction) -> MetadataEvent:
    """Read or compare-and-set the ledger's metadata, as ``action`` says."""
    try:
        if isinstance(action, CompareAndSet):
            stored = await services.write(ledger_id, action.metadata, action.version)
            return MetadataWritten(stored.metadata, stored.version)
        stored = await services.read_latest(ledger_id)
        return MetadataFound(stored.metadata, stored.version)
    except BookKeeperError as error:
        return MetadataFailed(error)
