"""Copies of a lost bookie, made again by a repair, beside a plain read and write of the same bytes by the client.

For each size of entries: ledgers of 3/3/2 on four bookies. The client reads them and writes their entries to ledgers on
one bookie each. Then a bookie is killed for good, and the ledgers are repaired: each entry is read once and written
once, too. Rates are of payload. Each round measures both, one after the other.

``python -m benchmarks ledger_copy [--mib N] [--ledgers N]``
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import figure
from bk_spark.bookie.client import Client
from bk_spark.bookie.cluster_session import ClusterSession
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.reading.read_access import ReadAccess
from bk_spark.bookie.replication.repair_performer import LedgerRepairs, copy_limits_of
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.replication.actions import Repaired
from bk_spark.protocol.replication.repair_settings import RepairSettings
from bookie_server.local import LocalCluster

NAME = "ledger_copy"
_SIZES = (1024, 16 * 1024, 256 * 1024)
_MIB = 1024 * 1024


async def _write(client: Client, count: int, size: int) -> int:
    writer = await client.create(quorum=Quorum(3, 3, 2))
    at_once = max(1, _MIB // size)
    for first in range(0, count, at_once):
        await writer.append_many(Payloads.of([bytes(size)] * min(at_once, count - first)))
    await writer.close()
    return writer.ledger_id


async def _read_and_write(client: Client, ledger_id: int) -> None:
    reader = await client.open_for_reading(ledger_id)
    writer = await client.create(quorum=Quorum(1, 1, 1))
    async for block in reader.read_blocks(0, reader.last_add_confirmed):
        await writer.append_many(block.payloads)
    await writer.close()


async def _repair(uri: str, ledger_ids: Sequence[int], lost: str, config: ClientConfig) -> tuple[float, int, int]:
    parsed = MetadataServiceUri.parse(uri)
    session = await asyncio.to_thread(ClusterSession.connect, parsed, config, None)
    try:
        store = UnderReplicationStore(session.zookeeper, parsed.root)
        store.prepare()
        proof = store.begin_worker("benchmark")
        reads = ReadAccess.of(session.services, session.pool, session.pool_v3, config)
        settings = RepairSettings(copy=copy_limits_of(reads))
        repairs = LedgerRepairs(session, reads, LedgerStore(session.zookeeper, parsed), proof, settings)
        entries = size_bytes = 0
        start = time.perf_counter()
        for ledger_id in ledger_ids:
            store.mark(ledger_id, [lost])
            assert store.lock(ledger_id, proof=proof)
            mark = store.read_mark(ledger_id)
            assert mark is not None
            result = await repairs(ledger_id, mark)
            assert isinstance(result, Repaired), result
            store.finish(ledger_id, mark.version, proof=proof)
            entries += result.entries
            size_bytes += result.size_bytes
        return time.perf_counter() - start, entries, size_bytes
    finally:
        await session.close()


async def _measure(cluster: LocalCluster, mib: int, ledgers: int) -> None:
    config = ClientConfig()
    uri = cluster.metadata_service_uri
    written: dict[int, list[int]] = {}
    plain_s: dict[int, float] = {}
    async with Client(uri, config) as client:
        for size in _SIZES:
            count = max(1, mib * _MIB // size // ledgers)
            written[size] = [await _write(client, count, size) for _ in range(ledgers)]
            start = time.perf_counter()
            for ledger_id in written[size]:
                await _read_and_write(client, ledger_id)
            plain_s[size] = time.perf_counter() - start
        victim = cluster.bookies[0]
        victim.kill()
        while victim.id in {one.bookie_id for one in await client.bookies()}:
            await asyncio.sleep(0.1)
        for size in _SIZES:
            mine = [each for each in written[size] if victim.id in (await client.metadata(each)).last_segment.ensemble]
            if not mine:
                continue
            spent_s, entries, _ = await _repair(uri, mine, victim.id, config)
            plain = max(1, mib * _MIB // size // ledgers) * ledgers * size / plain_s[size] / _MIB
            repair = entries * size / spent_s / _MIB
            figure(NAME, "read_and_write", plain, "MiB/s", entry_bytes=size)
            figure(NAME, "repair", repair, "MiB/s", entry_bytes=size, ledgers=len(mine))
            figure(NAME, "repair_to_read_and_write", repair / plain, "ratio", entry_bytes=size)


def main(arguments: Sequence[str]) -> None:
    """Print the rates of both for each size of entries, and their ratio."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks ledger_copy", description=__doc__)
    parser.add_argument("--mib", type=int, default=64, help="MiB of payload for each size of entries")
    parser.add_argument("--ledgers", type=int, default=4, help="ledgers for each size")
    options = parser.parse_args(list(arguments))
    with tempfile.TemporaryDirectory() as directory:
        settings = {"zkTimeout": "2000"}
        with LocalCluster(Path(directory), bookies=4, bookie_settings=settings) as cluster:
            asyncio.run(_measure(cluster, options.mib, options.ledgers))
