"""Every entry of ledgers, read from each bookie that should have it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from bk_spark.bookie.cluster_session import ClusterSession
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.protocol.codes import Code
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri


def check_every_copy(metadata_service_uri: str, ledger_ids: Iterable[int]) -> int:
    """Read each entry of these closed ledgers at each bookie of its write set, and compare. Return how many copies
    there are."""
    return asyncio.run(_check(MetadataServiceUri.parse(metadata_service_uri), list(ledger_ids)))


async def _check(uri: MetadataServiceUri, ledger_ids: list[int]) -> int:
    session = await asyncio.to_thread(ClusterSession.connect, uri, ClientConfig(), None)
    copies = 0
    try:
        store = LedgerStore(session.zookeeper, uri)
        for ledger_id in ledger_ids:
            metadata = (await asyncio.to_thread(store.read_latest, ledger_id)).metadata
            for entry_id in range(metadata.last_entry_id + 1):
                ensemble = metadata.segment_of(entry_id).ensemble
                found = set()
                for index in metadata.quorum.write_set(entry_id):
                    connection = await session.pool.get(ensemble[index])
                    answer = (await connection.read(ledger_id, range(entry_id, entry_id + 1)))[entry_id]
                    assert answer.code is Code.OK, (ledger_id, entry_id, ensemble[index], answer.code)
                    found.add(bytes(answer.stored))
                    copies += 1
                assert len(found) == 1, (ledger_id, entry_id)
    finally:
        await session.close()
    return copies
