"""The auditor's check of replicas at real bookies: what it asks them for."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.cluster_session import ClusterSession
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.v2 import BookieConnection
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import BookieTimeoutError
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from bookie_server.metrics.metrics import MetricsRegistry
from bookie_server.replication.access import ReplicationAccess
from bookie_server.replication.actions import Check, CheckLedgers, LedgersChecked, Step, StepDone
from bookie_server.replication.auditing.auditor_performer import AuditorPerformer
from bookie_server.replication.replication_metrics import ReplicationMetrics

ENTRIES = 1_000


class Asked:
    """Requests to bookies, and bytes of entries in their answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = self.lists = self.size_bytes = 0
        read, list_entries = BookieConnection.read, BookieConnectionV3.list_entries

        async def count_read(connection: BookieConnection, ledger_id: int, entry_ids: range) -> Any:
            answers = await read(connection, ledger_id, entry_ids)
            self.reads += len(entry_ids)
            self.size_bytes += sum(len(each.stored) for each in answers.values())
            return answers

        async def count_list(connection: BookieConnectionV3, ledger_id: int) -> Any:
            self.lists += 1
            return await list_entries(connection, ledger_id)

        monkeypatch.setattr(BookieConnection, "read", count_read)
        monkeypatch.setattr(BookieConnectionV3, "list_entries", count_list)


def check(
    uri: MetadataServiceUri, ledger_ids: list[int], share: float, config: ClientConfig | None = None
) -> LedgersChecked:
    async def run() -> LedgersChecked:
        zk = ZooKeeper(uri.servers)
        await asyncio.to_thread(zk.start)
        session = await asyncio.to_thread(ClusterSession.connect, uri, config or ClientConfig(), zk)
        access = await asyncio.to_thread(ReplicationAccess, session, uri, "checker")
        try:
            performer = AuditorPerformer(access, lambda event: None, share, ReplicationMetrics(MetricsRegistry()))
            ledgers = {each: (await access.call(access.ledgers.read, each)).metadata for each in ledger_ids}
            done = await performer(Step(1, CheckLedgers(ledgers, Check.REPLICAS)))
        finally:
            await access.close()
        assert isinstance(done, StepDone), done
        assert isinstance(done.event, LedgersChecked)
        return done.event

    return asyncio.run(run())


@pytest.fixture
def ledger_ids(cluster: LocalCluster) -> list[int]:
    made = []
    with BlockingClient(cluster.metadata_service_uri) as client:
        for quorum in (Quorum(3, 3, 2), Quorum(3, 2, 2)):
            with closing(client.create(quorum=quorum)) as writer:
                writer.append_many([b"x" * 500] * ENTRIES)
                writer.flush()
            made.append(writer.ledger_id)
    return made


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_lists_take_the_place_of_reads_unless_all_is_to_be_verified(
    cluster: LocalCluster, ledger_ids: list[int], monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    asked = Asked(monkeypatch)
    assert check(MetadataServiceUri.parse(cluster.metadata_service_uri), ledger_ids, share) == LedgersChecked({}, {})
    if share:
        # The ends of each copy are read first, and not again with the others.
        assert (asked.lists, asked.reads) == (0, 5 * ENTRIES)
        assert asked.size_bytes > 5 * ENTRIES * 500
    else:
        assert (asked.lists, asked.reads) == (6, 12)
        assert asked.size_bytes < 12 * 600


def test_bookies_that_give_no_list_are_read(
    cluster: LocalCluster, ledger_ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Apache's with Db storage, whose answer never comes."""
    asked = Asked(monkeypatch)

    async def silent(connection: BookieConnectionV3, ledger_id: int) -> Any:
        raise BookieTimeoutError("no answer")

    monkeypatch.setattr(BookieConnectionV3, "list_entries", silent)
    assert check(MetadataServiceUri.parse(cluster.metadata_service_uri), ledger_ids, 0.0) == LedgersChecked({}, {})
    assert asked.reads == 5 * ENTRIES


def test_lists_that_wait_for_others_of_their_bookie_do_not_time_out(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_ids = []
    with BlockingClient(cluster.metadata_service_uri) as client:
        for _ in range(10):
            with closing(client.create(quorum=Quorum(3, 3, 2))) as writer:
                writer.append_many([b"x"] * 5)
                writer.flush()
            ledger_ids.append(writer.ledger_id)
    asked = Asked(monkeypatch)
    list_entries = BookieConnectionV3.list_entries
    turns: dict[BookieConnectionV3, asyncio.Lock] = {}

    async def one_at_a_time(connection: BookieConnectionV3, ledger_id: int) -> Any:
        async with turns.setdefault(connection, asyncio.Lock()):
            await asyncio.sleep(0.6)  # a slow disk: together they take longer than one may
            return await list_entries(connection, ledger_id)

    monkeypatch.setattr(BookieConnectionV3, "list_entries", one_at_a_time)
    config = ClientConfig(read_timeout_ms=5_000)
    uri = MetadataServiceUri.parse(cluster.metadata_service_uri)
    assert check(uri, ledger_ids, 0.0, config) == LedgersChecked({}, {})
    assert (asked.lists, asked.reads) == (30, 60)
