"""How far a streaming query is behind, in its progress and for Prometheus; what tasks count."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.client_counts import ClientCounts
from bk_spark.datasource.pyspark_api import HAS_LIMITS
from bk_spark.datasource.spark_versions import minor_version
from bk_spark.datasource.stream_metrics import QueryMetrics, StreamMetrics
from bk_spark.log.store import LogStore
from bk_spark.protocol.errors import InvalidArgumentError
from bookie_server.local import LocalCluster
from tests.support.connector import Connector, texts
from tests.support.logs import listed_ledgers
from tests.support.registrations import kill_and_forget
from tests.support.streams import newest_batch, numbers, running, sink, wait_for_batch, wait_until

#: Releases of Spark that register no source a second time.
_WITHOUT_COUNTS = ((4, 0),)


def test_rows_and_bytes_behind_by_log(connector: Connector, tmp_path: Path) -> None:
    names = [f"lag-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    for name, count in zip(names, (25, 4), strict=True):
        connector.write(connector.spark.sql(texts(count, partitions=1, prefix="0123456789 ")), name)
    metrics = StreamMetrics()
    connector.spark.streams.addListener(metrics)
    try:
        query = (
            connector.spark.readStream.format("bookkeeper")
            .options(
                metadataServiceUri=connector.metadata_service_uri,
                logs=",".join(names),
                startingOffsets="earliest",
                **({"maxEntriesPerTrigger": "10"} if HAS_LIMITS else {}),
            )
            .load()
            .writeStream.format("noop")
            .queryName("metered")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(300)
        progress = [json.loads(one.json) for one in query.recentProgress if one.numInputRows]
        # Spark tells listeners from a thread of its own.
        wait_until(
            lambda: any(one.values["batch_id"] >= progress[-1]["batchId"] for one in _metered(metrics)),
            "word of the last batch to the listener",
        )
        found = _metered(metrics)
    finally:
        connector.spark.streams.removeListener(metrics)
    if not HAS_LIMITS:
        return
    behind = [_parsed(one["sources"][0]["latestOffset"])["behind"] for one in progress]
    left = [sum(log["entries"] for log in one.values()) for one in behind]
    assert left == [19, 9, 0]
    assert all(log["rows"] == log["entries"] for one in behind for log in one.values())
    assert behind[0][names[0]]["bytes"] >= 11 * behind[0][names[0]]["entries"]
    (last,) = found
    assert last.behind == {name: {"entries": 0, "rows": 0, "bytes": 0} for name in names}
    assert last.values["failed"] == 0
    # The checkpoint has nothing of it.
    offsets = (tmp_path / "checkpoint" / "offsets" / "0").read_text("utf-8")
    assert "behind" not in offsets


@pytest.mark.every_spark
def test_tasks_count_ledgers_and_retries(
    connector: Connector,
    log: str,
    tmp_path: Path,
    logs: LogStore,
    client: BlockingClient,
    mended_cluster: LocalCluster,
) -> None:
    """A query writes to a log while a bookie of its ledger is lost, another one reads that log, and a batch does."""
    # The registration and the setting are those of a session.
    spark, uri = connector.spark.newSession(), connector.metadata_service_uri
    metrics = StreamMetrics()
    if minor_version(spark.version) in _WITHOUT_COUNTS:
        with pytest.raises(InvalidArgumentError, match=f"cannot count with Spark {spark.version}"):
            metrics.count_tasks(spark)
        return
    metrics.count_tasks(spark)
    with pytest.raises(InvalidArgumentError, match="counted already"):
        metrics.count_tasks(spark)
    assert metrics.batches() is None
    spark.streams.addListener(metrics)
    try:
        rows = numbers(spark, 20, 1).selectExpr("cast(number as string) as value")
        quorum = {"ensembleSize": 2, "writeQuorumSize": 2, "ackQuorumSize": 2}
        with running(sink(rows, uri, log, tmp_path / "written", **quorum)) as written:
            wait_for_batch(written, 1)
            (ledger_id,) = listed_ledgers(logs.open_log(log))
            first = client.metadata(ledger_id).segments[0].ensemble[0]
            kill_and_forget(mended_cluster, *(one for one in mended_cluster.bookies if one.id == first))
            wait_for_batch(written, newest_batch(written) + 3)
            wait_until(lambda: _tasks(metrics, written.id) is not None, "word of the query that writes")
        assert _tasks(metrics, written.id) == ClientCounts(ledgers_created=1, bookies_replaced=1)

        source = spark.readStream.format("bookkeeper").options(
            metadataServiceUri=uri, log=log, startingOffsets="earliest", splitBytes="1g"
        )
        read = (
            source.load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "read"))
            .trigger(availableNow=True)
            .start()
        )
        assert read.awaitTermination(240)
        wait_until(lambda: _tasks(metrics, read.id) is not None, "word of the query that reads")
        found = _tasks(metrics, read.id)
        assert found is not None
        assert found == ClientCounts(ledgers_opened=1, read_retries=found.read_retries)
        assert found.read_retries > 0

        Connector(spark, uri).write(spark.sql(texts(10, partitions=3)), f"{log}-2", **quorum)
        assert metrics.batches() == ClientCounts(ledgers_created=3)
        labels = f'query="{read.id}",id="{read.id}"'
        assert f"bk_spark_tasks_read_retries_total{{{labels}}} {found.read_retries}" in metrics.prometheus()
    finally:
        spark.streams.removeListener(metrics)


def _tasks(metrics: StreamMetrics, query_id: str) -> ClientCounts | None:
    return next((one.tasks for one in metrics.queries() if one.query == query_id), None)


def _metered(metrics: StreamMetrics) -> list[QueryMetrics]:
    return [one for one in metrics.queries() if one.query == "metered"]


def _parsed(offset: str | dict[str, Any]) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(offset) if isinstance(offset, str) else offset
    return parsed
