"""B9 on the real thing: Apache's bookies with short queues answer "too many requests"; our writer slows down."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from bk_spark.bookie.client import Client
from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.ledger.add_window import AddWindow
from bk_spark.protocol.machine import StartTimer
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.local import LocalCluster
from tests.interop.apache import ApacheBookies
from tests.interop.java_client import JavaClient

COUNT = 10_000


@pytest.fixture
def narrow(
    tmp_path_factory: pytest.TempPathFactory, zk_only: LocalCluster, java_client: JavaClient
) -> Iterator[ApacheBookies]:
    """Three of Apache's bookies that take few adds at a time, and no spare one."""
    servers = MetadataServiceUri.parse(zk_only.metadata_service_uri).servers
    uri = str(MetadataServiceUri(servers, "/narrow-ledgers", "hierarchical"))
    java_client.init_cluster(uri)
    settings = {"maxPendingAddRequestsPerThread": "100", "numAddWorkerThreads": "1"}
    with ApacheBookies(tmp_path_factory.mktemp("narrow-cluster"), uri, 3, settings) as cluster:
        yield cluster
        java_client.forget(uri)


def test_b9_back_pressure_is_no_failure(narrow: ApacheBookies, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[str] = []
    on_refused = AddWindow.on_refused

    def counted(adds: AddWindow, index: int, bookie_id: str, entry_ids: Int64s) -> list[StartTimer]:
        pauses.append(bookie_id)
        return on_refused(adds, index, bookie_id, entry_ids)

    monkeypatch.setattr(AddWindow, "on_refused", counted)
    payloads = [b"%06d" % number + bytes(94) for number in range(COUNT)]

    async def play() -> None:
        async with Client(narrow.metadata_service_uri) as client:
            writer = await client.create()
            await writer.append_many(Payloads.of(payloads))
            assert await writer.flush() == COUNT - 1
            closed = await writer.close()
            assert len(closed.segments) == 1
            reader = await client.open_for_reading(writer.ledger_id)
            assert await reader.read(0, COUNT - 1) == payloads

    asyncio.run(play())
    assert pauses, "the bookies refused nothing: their queues are not as short as this test needs them"
