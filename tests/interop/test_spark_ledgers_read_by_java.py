"""Spark's ledgers and Apache's Java client: each reads what the other wrote; and Spark on Apache's bookies."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession

from bk_spark.protocol.codes import DigestType
from bookie_server.local import LocalCluster
from tests.interop.apache import ApacheBookies
from tests.interop.java_client import WIRES, JavaClient
from tests.interop.payloads import Payloads, fingerprint
from tests.support.connector import Connector

PASSWORD = "open sesame"
JAVA_DIGEST = {
    DigestType.CRC32: "CRC32",
    DigestType.CRC32C: "CRC32C",
    DigestType.HMAC: "MAC",
    DigestType.DUMMY: "DUMMY",
}
PARTITIONS = 2


@pytest.fixture
def log() -> str:
    return f"interop-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def on_ours(spark: SparkSession, cluster: LocalCluster) -> Connector:
    return Connector(spark, cluster.metadata_service_uri)


@pytest.fixture(scope="module")
def on_apaches(spark: SparkSession, apache_cluster: ApacheBookies) -> Connector:
    apache_cluster.start()
    return Connector(spark, apache_cluster.metadata_service_uri)


def _frame(connector: Connector, payloads: Payloads) -> DataFrame:
    """One row a payload, in order over the partitions."""
    rows = [(payload,) for payload in payloads]
    return connector.spark.createDataFrame(connector.spark.sparkContext.parallelize(rows, PARTITIONS), "value binary")


def _ledgers(connector: Connector, log: str) -> Iterator[tuple[int, int, int]]:
    """(ledger, first offset, number of entries) in the log's order, as Spark's metadata columns have it."""
    frame = connector.read(log, "ledgerId bigint, offset bigint", password=PASSWORD)
    found = frame.groupBy("ledgerId").agg({"offset": "min", "*": "count"}).orderBy("min(offset)")
    for row in found.collect():
        yield row["ledgerId"], row["min(offset)"], row["count(1)"]


def _java_reads_all(
    java_client: JavaClient, connector: Connector, log: str, payloads: Payloads, digest: DigestType
) -> None:
    """Java reads every ledger of the log, plainly and with recovery; together they are the rows in order."""
    uri = connector.metadata_service_uri
    ledgers = list(_ledgers(connector, log))
    assert len(ledgers) == PARTITIONS
    assert [first for _, first, _ in ledgers] == [0, ledgers[0][2]]
    assert sum(count for _, _, count in ledgers) == len(payloads)
    for ledger_id, first, count in ledgers:
        expected = tuple(payloads)[first : first + count]
        metadata = java_client.metadata(uri, ledger_id)
        assert (metadata.state, metadata.digest) == ("CLOSED", JAVA_DIGEST[digest])
        assert (metadata.last_entry_id, metadata.length) == (count - 1, sum(map(len, expected)))
        for recovery in (False, True):
            for wire in WIRES:
                read = java_client.read(
                    uri, ledger_id, recovery=recovery, digest=JAVA_DIGEST[digest], password=PASSWORD, wire=wire
                )
                assert (read.count, read.fingerprint, read.closed) == (count, fingerprint(expected), True)


@pytest.mark.parametrize("digest", DigestType)
def test_spark_writes_java_reads(on_ours: Connector, java_client: JavaClient, log: str, digest: DigestType) -> None:
    payloads = Payloads.varied(500, seed=digest.value)
    on_ours.write(_frame(on_ours, payloads), log, digestType=digest.name, password=PASSWORD)
    _java_reads_all(java_client, on_ours, log, payloads, digest)


def test_striped_and_large_entries(on_ours: Connector, java_client: JavaClient, log: str) -> None:
    payloads = Payloads.of_size(8, 1 << 20)
    on_ours.write(_frame(on_ours, payloads), log, password=PASSWORD, ensembleSize=3, writeQuorumSize=2, ackQuorumSize=2)
    _java_reads_all(java_client, on_ours, log, payloads, DigestType.CRC32C)


@pytest.mark.parametrize("digest", DigestType)
def test_java_writes_spark_reads(on_ours: Connector, java_client: JavaClient, digest: DigestType) -> None:
    payloads = Payloads.varied(300, seed=digest.value)
    writer = java_client.create(on_ours.metadata_service_uri, digest=JAVA_DIGEST[digest], password=PASSWORD)
    writer.append(payloads)
    writer.close()
    rows = on_ours.read_ledger(writer.ledger_id, password=PASSWORD, minPartitions=3).collect()
    assert fingerprint(bytes(row.value) for row in rows) == payloads.fingerprint
    assert [row.entryId for row in rows] == list(range(300))


def test_spark_reads_what_java_is_still_writing(on_ours: Connector, java_client: JavaClient) -> None:
    payloads = Payloads.of_size(10, 50)
    writer = java_client.create(on_ours.metadata_service_uri, password=PASSWORD)
    # One at a time: each entry then carries the one before as its last add confirmed.
    writer.append(payloads, in_flight=1)
    rows = on_ours.read_ledger(writer.ledger_id, password=PASSWORD).collect()
    assert [bytes(row.value) for row in rows] == list(payloads)[:9]
    writer.append([b"the writer was not disturbed"])
    writer.close()
    assert on_ours.read_ledger(writer.ledger_id, password=PASSWORD).count() == 11


def test_spark_on_apaches_bookies(on_apaches: Connector, java_client: JavaClient, log: str) -> None:
    payloads = Payloads.varied(500)
    frame = _frame(on_apaches, payloads)
    on_apaches.write(frame, log, digestType="HMAC", password=PASSWORD)
    read = on_apaches.read(log, password=PASSWORD, splitBytes="64k")
    assert read.rdd.getNumPartitions() > 4
    assert_df_equality(read.select("value"), frame)
    _java_reads_all(java_client, on_apaches, log, payloads, DigestType.HMAC)


def test_arrow_on_apaches_bookies(on_apaches: Connector, log: str) -> None:
    frame = on_apaches.spark.sql("select id, string(id) name, array(id, null) list from range(0, 5000, 1, 2)")
    on_apaches.write(frame, log, entryFormat="arrow", compression="zstd", entryBytes="16k")
    on_apaches.write(frame, log, mode="overwrite")
    assert_df_equality(on_apaches.read(log), frame, ignore_nullable=True)
