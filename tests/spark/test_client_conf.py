"""``clientConf`` and ``transport``: reads, writes and streams use a cluster that requires TLS and certificates of
clients, over gRPC, too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bookie_server.local import LocalCluster
from tests.support.bookie import BookieProcess
from tests.support.certificates import identity, write_pem
from tests.support.servers import WITH_GRPC
from tests.support.spark_inside import plan_of


@pytest.fixture
def secured(zk_only: LocalCluster, ledgers_root: str, tmp_path: Path) -> Iterator[str]:
    """The URI of a cluster with one such bookie."""
    keys = write_pem(tmp_path / "tls", identity("bookie")) | {"tlsClientAuthentication": "true", "tlsRequired": "true"}
    keys |= WITH_GRPC
    uri = f"zk+hierarchical://{zk_only.zookeepers[0].id}{ledgers_root}"
    bookie = BookieProcess(tmp_path / "bookie", uri, **keys).start()
    yield uri
    bookie.end()


def test_reads_writes_and_streams_use_the_file(
    spark: SparkSession, secured: str, ledgers_root: str, tmp_path: Path
) -> None:
    own = identity("spark", client_only=True)
    keys = write_pem(tmp_path / "client", own) | {"tlsClientAuthentication": "true"}
    conf = tmp_path / "client.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    alone = {"ensembleSize": "1", "writeQuorumSize": "1", "ackQuorumSize": "1"}
    where = {"metadataServiceUri": secured, "logRoot": f"/logs{ledgers_root}", "log": "events"}
    rows = spark.sql("select cast(id as string) value from range(100)").repartition(2)
    write = rows.write.format("bookkeeper").mode("append").options(**where, **alone)

    with pytest.raises(PySparkException) as raised:
        write.option("clientConf", str(tmp_path / "none")).save()
    assert "option clientConf: cannot read configuration file" in str(raised.value)
    write.option("clientConf", str(conf)).save()

    read = spark.read.format("bookkeeper").options(**where).option("clientConf", str(conf)).load()
    assert sorted(int(row.value) for row in read.collect()) == list(range(100))
    stream = spark.readStream.format("bookkeeper").options(**where, startingOffsets="earliest")
    copy = (
        stream.option("clientConf", str(conf))
        .load()
        .select("value")
        .writeStream.format("bookkeeper")
        .options(**where | {"log": "copy"}, **alone, clientConf=str(conf), transport="grpc")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    copy.awaitTermination(120)
    assert copy.exception() is None
    again = (
        spark.read.format("bookkeeper")
        .options(**where | {"log": "copy"}, clientConf=str(conf), transport="grpc")
        .load()
    )
    assert again.count() == 100

    key = own.key_pem().decode().splitlines()[1]
    shown = [plan_of(again)]
    shown += [path.read_bytes().decode("latin-1") for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert not any(key in text or re.search("PRIVATE KEY", text) for text in shown)
