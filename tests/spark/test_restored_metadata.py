"""ZooKeeper is restored from an older backup, as docs/operations.md describes. Queries whose checkpoints are ahead of
the log must say so and stop: nothing may be left out silently."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.metadata.ledger_ids import skip_ledger_ids
from bk_spark.protocol.metadata.ledger_paths import LedgerManager
from bookie_server.local import LOOPBACK, LocalCluster
from tests.support.connector import Connector
from tests.support.nursery import QuickCluster
from tests.support.servers import BOOKIE_SETTINGS, start_timeout_ms
from tests.support.streams import running, sink

ROWS = 10


class Queries:
    """One query that writes files to a log, each in a batch of its own, and one that reads the log."""

    def __init__(self, connector: Connector, directory: Path) -> None:
        self.connector = connector
        self.files = directory / "files"
        self._directory = directory

    def add(self, number: int) -> None:
        first = number * ROWS
        frame = self.connector.spark.range(first, first + ROWS, 1, 1).selectExpr("cast(id as string) as value")
        frame.write.mode("append").text(str(self.files))

    def write(self, uri: str, checkpoint: str = "written") -> None:
        source = self.connector.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.files))
        _run(sink(source, uri, "events", self._directory / checkpoint, trigger={"availableNow": True}))

    def follow(self, uri: str) -> None:
        source = self.connector.spark.readStream.format("bookkeeper").options(metadataServiceUri=uri, log="events")
        writer = (
            source.option("startingOffsets", "earliest")
            .load()
            .select("value")
            .writeStream.format("parquet")
            .trigger(availableNow=True)
        )
        writer = writer.option("checkpointLocation", str(self._directory / "followed"))
        _run(writer.start(str(self._directory / "rows")))

    def followed(self) -> int:
        return self.connector.spark.read.parquet(str(self._directory / "rows")).count()


def _run(query: StreamingQuery) -> None:
    with running(query):
        assert query.awaitTermination(120)


def _failure(error: StreamingQueryException) -> str:
    found = re.findall(r"^bk_spark\.protocol\.errors\.(\w+: .*)$", str(error), re.MULTILINE)
    assert found, str(error)
    return str(found[0])


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    directory = tmp_path / "cluster"
    with QuickCluster(
        directory, bookies=3, bookie_settings=BOOKIE_SETTINGS, start_timeout_ms=start_timeout_ms()
    ) as running_cluster:
        yield running_cluster


def _stop(cluster: LocalCluster) -> None:
    for server in (*cluster.bookies, *cluster.zookeepers):
        assert server.terminate()


def _start(cluster: LocalCluster) -> None:
    for server in (*cluster.zookeepers, *cluster.bookies):
        server.start()
    cluster.wait_ready(start_timeout_ms())


def test_queries_ahead_of_a_log_that_was_restored_stop_and_say_so(
    spark: SparkSession, own_cluster: LocalCluster, tmp_path: Path
) -> None:
    cluster, uri = own_cluster, own_cluster.metadata_service_uri
    connector = Connector(spark, uri)
    queries = Queries(connector, tmp_path)
    data, backup = cluster.zookeepers[0].directory / "data" / "version-2", tmp_path / "backup"
    queries.add(0)
    queries.write(uri)
    _stop(cluster)
    shutil.copytree(data, backup)
    _start(cluster)
    for number in (1, 2):
        queries.add(number)
    queries.write(uri)
    queries.follow(uri)
    assert queries.followed() == 3 * ROWS
    with BlockingClient(uri) as client:
        highest = max(client.list_ledgers())

    _stop(cluster)
    shutil.rmtree(data)
    shutil.copytree(backup, data)
    _start(cluster)
    # New clients: the sessions of the old ones have seen a newer state, and no server takes them back.
    restored = uri.replace(LOOPBACK, "localhost")
    with BlockingClient(restored) as client:
        list(skip_ledger_ids(client.zookeeper, client.root, LedgerManager.HIERARCHICAL, highest))

    # The log ends at the first batch.
    with pytest.raises(StreamingQueryException) as raised:
        queries.follow(restored)
    assert f"log events ends at offset {ROWS}, but the checkpoint has read it up to {3 * ROWS}" in _failure(
        raised.value
    )
    queries.add(3)
    with pytest.raises(StreamingQueryException) as raised:
        queries.write(restored)
    assert re.match(
        r"BatchRefusedError: log events: query \S+ offers its batch 3 for application \S+, and the last one in the "
        r"log is 0: the log lacks batches 1 to 2\. Either ZooKeeper was restored from an older backup",
        _failure(raised.value),
    )
    # Nothing was committed, and nothing was read.
    rows = Connector(connector.spark, restored).read("events")
    assert sorted(int(row.value) for row in rows.collect()) == list(range(ROWS))
    assert queries.followed() == 3 * ROWS
    # As the error advises: a new checkpoint, and a source that brings the missing rows again.
    queries.files = tmp_path / "again"
    for number in (1, 2, 3):
        queries.add(number)
    queries.write(restored, "written again")
    rows = Connector(connector.spark, restored).read("events")
    assert [int(row.value) for row in rows.orderBy("offset").collect()] == list(range(4 * ROWS))
