"""Metrics of streaming queries: what is behind, and what is made of a query's progress."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bk_spark.bookie.client_counts import ClientCounts
from bk_spark.datasource.pulsar.offsets import TopicPosition, topics_to_json
from bk_spark.datasource.stream.behind import Behind
from bk_spark.datasource.stream.offsets import Position, StreamOffset, ledger_name
from bk_spark.datasource.stream_metrics import StreamMetrics, metrics_of
from bk_spark.datasource.task_counts import _Sums
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.pulsar.entry_numbers import NOTHING_YET

PROGRESS = {
    "id": "5b1d",
    "name": 'copy "1"',
    "batchId": 7,
    "batchDuration": 1500,
    "numInputRows": 300,
    "inputRowsPerSecond": 12.5,
    "processedRowsPerSecond": float("nan"),
    "sources": [
        {
            "endOffset": {"v": 1, "logs": {"a": {"id": "x", "offset": 5, "lost": 3}, "b": {"id": "y", "offset": 5}}},
            "latestOffset": {
                "v": 1,
                "logs": {"a": {"id": "x", "offset": 9}},
                "behind": {"a": {"entries": 4, "rows": 40, "bytes": 400}, "b": {"entries": 2}},
            },
        },
        {"endOffset": {"topic": {"0": 5}}, "latestOffset": "no json"},
        {"endOffset": None},
    ],
}


def test_what_is_known_is_counted_and_the_rest_extrapolated() -> None:
    entries, size_bytes, rows = (np.array(column) for column in ([2, 3], [20, 40], [200, 100]))
    assert Behind.of(5, entries, size_bytes, rows) == Behind(5, 300, 60)
    assert Behind.of(50, entries, size_bytes, rows) == Behind(50, 3000, 600, is_estimate=True)
    none = np.empty(0, np.int64)
    assert Behind.of(0, none, none, none) == Behind(0, 0, 0)
    assert Behind.of(4, none, none, none) == Behind(4)
    assert Behind(4).to_json() == {"entries": 4}
    assert Behind(50, 3000, 600, is_estimate=True).to_json() == {
        "entries": 50,
        "rows": 3000,
        "bytes": 600,
        "estimate": True,
    }


def test_a_progress_becomes_metrics() -> None:
    found = metrics_of(PROGRESS)
    assert found.query == 'copy "1"'
    assert found.behind == {"a": {"entries": 4, "rows": 40, "bytes": 400}, "b": {"entries": 2}}
    assert found.values["lost_offsets"] == 3
    assert (found.values["batch_id"], found.values["batch_seconds"]) == (7, 1.5)


def hear(metrics: StreamMetrics, progress: Mapping[str, object]) -> None:
    """As Spark tells it."""
    metrics.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(json=json.dumps(progress))))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("offset", "lost"),
    [
        (StreamOffset({"a": Position("A", 9, lost=3), "b": Position("B", 9, lost=4)}).to_json(), 7),
        (StreamOffset({ledger_name(7): Position(7, 9, lost=5)}).to_json(), 5),
        (topics_to_json({"t-0": TopicPosition(NOTHING_YET, lost=1), "t-1": TopicPosition(NOTHING_YET, lost=2)}), 3),
        ({"v": 1, "logs": {"a": {"lost": "many"}, "b": None}, "topics": [], "ledger": 7}, 0),
    ],
    ids=["logs", "ledger", "topics", "of another source"],
)
def test_what_was_lost_is_counted_of_each_kind_of_source(offset: dict[str, Any], lost: int) -> None:
    for text in (offset, json.dumps(offset)):
        assert metrics_of({"sources": [{"endOffset": text}]}).values["lost_offsets"] == lost
    assert metrics_of({"sources": [{"endOffset": offset}] * 2}).values["lost_offsets"] == 2 * lost


def test_two_sources_of_one_query_that_read_a_log_are_added() -> None:
    """Of what one of them does not know, there is no sum."""
    told = ({"entries": 4, "rows": 40, "bytes": 400}, {"entries": 1, "rows": 10, "bytes": 100}, {"entries": 2})
    sources = [{"latestOffset": {"v": 1, "behind": {"a": one, f"b{number}": one}}} for number, one in enumerate(told)]
    assert metrics_of({"sources": sources[:2]}).behind["a"] == {"entries": 5, "rows": 50, "bytes": 500}
    found = metrics_of({"sources": sources}).behind
    assert found == {"a": {"entries": 7}, "b0": told[0], "b1": told[1], "b2": told[2]}


def test_prometheus_gets_them() -> None:
    metrics = StreamMetrics()
    hear(metrics, PROGRESS)
    port = metrics.serve()
    try:
        with pytest.raises(InvalidArgumentError, match=f"served already, on port {port}"):
            metrics.serve()
        with pytest.raises(InvalidArgumentError, match="cannot be served on"):
            StreamMetrics().serve(port)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30)
        refused.value.close()
    finally:
        metrics.close()
    assert 'bk_spark_stream_behind_rows{query="copy \\"1\\"",id="5b1d",log="a"} 40' in lines
    assert 'bk_spark_stream_behind_entries{query="copy \\"1\\"",id="5b1d",log="b"} 2' in lines
    assert not any(line.startswith("bk_spark_stream_behind_rows") and 'log="b"' in line for line in lines)
    assert 'bk_spark_stream_input_rows_per_second{query="copy \\"1\\"",id="5b1d"} 12.5' in lines
    assert 'bk_spark_stream_processed_rows_per_second{query="copy \\"1\\"",id="5b1d"} nan' in lines
    assert sum(line.startswith("# TYPE") for line in lines) == 10


def test_queries_of_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sessions may name their queries alike. Prometheus refuses all metrics if two of them have the same labels."""
    metrics = StreamMetrics()
    counts = {"5b1d": ClientCounts(ledgers_opened=1), "77aa": ClientCounts(ledgers_opened=2), "": ClientCounts()}
    monkeypatch.setattr(metrics, "_tasks", SimpleNamespace(of=counts.get))
    for query_id in ("5b1d", "77aa"):
        hear(metrics, {**PROGRESS, "id": query_id})
    lines = [line for line in metrics.prometheus().splitlines() if not line.startswith("#")]
    values = dict(line.rpartition(" ")[::2] for line in lines)
    assert len(values) == len(lines)
    opened = "bk_spark_tasks_ledgers_opened_total"
    assert [values[f'{opened}{{query="copy \\"1\\"",id="{one}"}}'] for one in ("5b1d", "77aa")] == ["1", "2"]


def test_sums_of_tasks_are_bounded() -> None:
    sums = _Sums()
    found: dict[str, tuple[int, ...]] = {}
    for number in range(1_005):
        before = found
        found = sums.addInPlace(found, {str(number): (number, 0, 1, 0)})
        # Another thread may look at the value from before.
        assert before is not found
        found = sums.addInPlace(found, {"always": (1, 2, 0, 0)})
    assert len(found) == 1_000
    assert found["always"] == (1_005, 2_010, 0, 0)
    assert found["1004"] == (1_004, 0, 1, 0)
    assert "5" not in found


def test_of_very_many_queries_the_oldest_go() -> None:
    metrics = StreamMetrics()
    for number in range(1_005):
        hear(metrics, {"id": str(number)})
    assert len(metrics.queries()) == 1_000
    assert metrics.queries()[0].query == "5"
    assert json.dumps(dict(metrics.queries()[0].values))
