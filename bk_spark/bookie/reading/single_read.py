"""The short way to a single entry: one replica, one request, no state machine."""

from __future__ import annotations

import asyncio

from bk_spark.bookie.reading.read_access import LedgerKey, ReadAccess
from bk_spark.protocol.codes import Code
from bk_spark.protocol.entries.entry import Entry, verify_entry
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata


async def try_one_replica(
    ledger: LedgerKey, metadata: LedgerMetadata, entry_id: int, access: ReadAccess
) -> Entry | None:
    """The entry, if the first of its replicas gives it before a second would be asked; else None, which says nothing:
    the long way (range_read.py) finds out."""
    ensemble = metadata.segment_of(entry_id).ensemble
    bookie_id = ensemble[metadata.quorum.write_set(entry_id)[0]]
    if bookie_id in access.history:
        return None
    try:
        async with asyncio.timeout(access.config.first_speculative_read_timeout_ms / 1000):
            connection = access.pool.existing(bookie_id) or await access.pool.get(bookie_id)
            answers = await connection.read(ledger.ledger_id, range(entry_id, entry_id + 1))
        answer = answers[entry_id]
        if answer.code is Code.OK:
            return verify_entry(answer.stored, ledger.ledger_id, entry_id, ledger.digest_type, ledger.digest)
    except (BookKeeperError, TimeoutError):
        pass
    access.history.add(bookie_id)
    return None
