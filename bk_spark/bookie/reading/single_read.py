"""Runs :class:`bk_spark.protocol.ledger.reading.single_read.SingleRead` without a task: a single read is short."""

from __future__ import annotations

import asyncio

from bk_spark.bookie.reading.read_access import ReadAccess
from bk_spark.protocol.entries.entry import Entry
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.ledger.reading.ledger_view import LedgerKey
from bk_spark.protocol.ledger.reading.read_actions import EntriesRead, ReadEntries, RequestFailed
from bk_spark.protocol.ledger.reading.single_read import SingleRead
from bk_spark.protocol.machine import EndedBy, StartTimer, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata


async def try_one_replica(
    ledger: LedgerKey, metadata: LedgerMetadata, entry_id: int, access: ReadAccess
) -> Entry | None:
    """Return the entry if its first replica returns it soon. None says nothing about the entry."""
    machine = SingleRead(ledger, metadata, entry_id, access.read_settings, access.history)
    match machine.take_actions():
        case [StartTimer(name, after_ms), ReadEntries(request_id, bookie_id, entry_ids)]:
            event: EntriesRead | RequestFailed | TimerFired
            try:
                async with asyncio.timeout(after_ms / 1000):
                    connection = access.pool.existing(bookie_id) or await access.pool.get(bookie_id)
                    event = EntriesRead(request_id, await connection.read(ledger.ledger_id, entry_ids))
            except TimeoutError:
                event = TimerFired(name)
            except BookKeeperError as error:
                event = RequestFailed(request_id, error)
            machine.handle(event)
    end = machine.outcome
    assert end is not None
    if isinstance(end, EndedBy):
        raise end.error
    return end.result
