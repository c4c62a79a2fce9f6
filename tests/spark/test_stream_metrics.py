"""How far a streaming query is behind, in its progress and for Prometheus."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from bk_spark.datasource.pyspark_api import HAS_LIMITS
from bk_spark.datasource.stream_metrics import QueryMetrics, StreamMetrics
from tests.support.connector import Connector, texts
from tests.support.streams import wait_until


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


def _metered(metrics: StreamMetrics) -> list[QueryMetrics]:
    return [one for one in metrics.queries() if one.query == "metered"]


def _parsed(offset: str | dict[str, Any]) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(offset) if isinstance(offset, str) else offset
    return parsed
