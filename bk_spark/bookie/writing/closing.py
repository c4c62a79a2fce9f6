"""Closing a ledger's metadata: runs :class:`bk_spark.protocol.ledger.closing.LedgerClosing`."""

from __future__ import annotations

from functools import partial

from bk_spark.bookie.metadata.ledger_store import StoredMetadata
from bk_spark.bookie.runners import AsyncRunner
from bk_spark.bookie.services import ClusterServices
from bk_spark.bookie.writing.metadata_calls import call_metadata
from bk_spark.protocol.ledger.closing import LedgerClosing
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata


async def close_ledger(
    services: ClusterServices, ledger_id: int, stored: StoredMetadata, last_entry_id: int, length: int
) -> LedgerMetadata:
    """Close a drained ledger at ``last_entry_id``. Returns its final metadata. ``stored`` is what its writer knows.

    Raises LedgerFencedError where another client closed it elsewhere, MetadataConflictError, NoSuchLedgerError,
    and MetadataUnavailableError: then it may be closed or not, and closing may be tried again.
    """
    machine = LedgerClosing(ledger_id, stored.metadata, stored.version, last_entry_id, length)
    runner = AsyncRunner(machine, partial(call_metadata, services, ledger_id), what=f"close of ledger {ledger_id}")
    runner.run()
    try:
        return await runner.result()
    finally:
        await runner.stop()
