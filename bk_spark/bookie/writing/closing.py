"""Closing a ledger's metadata: drives :class:`bk_spark.protocol.ledger.closing.LedgerClosing`."""

from __future__ import annotations

from bk_spark.bookie.metadata.ledger_store import StoredMetadata
from bk_spark.bookie.services import ClusterServices
from bk_spark.protocol.errors import BookKeeperError, MetadataConflictError, OutcomeUnknownError
from bk_spark.protocol.ledger.closing import Closed, LedgerClosing, ReadMetadata
from bk_spark.protocol.ledger.writer_actions import Failed, WriteMetadata
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata


async def close_ledger(
    services: ClusterServices, ledger_id: int, stored: StoredMetadata, last_entry_id: int, length: int
) -> LedgerMetadata:
    """Close a drained ledger at ``last_entry_id``; its final metadata. ``stored`` is what its writer knows.

    Raises LedgerFencedError where another client closed it elsewhere, MetadataConflictError,
    MetadataUnavailableError (which leaves open whether it is closed; may be tried again), NoSuchLedgerError.
    """
    machine = LedgerClosing(ledger_id, stored.metadata, last_entry_id, length)
    version = stored.version
    while True:
        for action in machine.take_actions():
            match action:
                case WriteMetadata(metadata):
                    try:
                        machine.on_metadata_written((await services.write(ledger_id, metadata, version)).metadata)
                    except (MetadataConflictError, OutcomeUnknownError):
                        machine.on_outcome_unknown()
                    except BookKeeperError as error:
                        machine.on_unavailable(error)
                case ReadMetadata():
                    try:
                        found = await services.read_latest(ledger_id)
                    except BookKeeperError as error:
                        machine.on_unavailable(error)
                    else:
                        version = found.version
                        machine.on_metadata_conflict(found.metadata)
                case Closed(metadata):
                    return metadata
                case Failed(error):
                    raise error
