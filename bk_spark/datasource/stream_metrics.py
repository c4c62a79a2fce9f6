"""Metrics of streaming queries, from the progress that Spark tells listeners, for Prometheus.

Spark gives sources and sinks in Python no channel for metrics of their own. What a source may say is its latest offset,
which carries how far the query is behind (:mod:`bk_spark.datasource.stream.behind`). What tasks did comes through an
accumulator, if the program asks for it (:mod:`bk_spark.datasource.task_counts`).
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from bk_spark.bookie.client_counts import ClientCounts
from bk_spark.datasource.source import BookKeeperDataSource
from bk_spark.datasource.stream.offsets import is_count
from bk_spark.datasource.task_counts import BATCHES, TaskCounts
from bk_spark.protocol.errors import InvalidArgumentError

#: The most queries that are kept. Those without news for the longest time go first.
_MAX_QUERIES: Final = 1_000
_PREFIX: Final = "bk_spark_stream"
_OF_LOG: Final = {
    "entries": ("behind_entries", "Entries that are committed and not read."),
    "rows": ("behind_rows", "Their rows."),
    "bytes": ("behind_bytes", "Their bytes."),
}
_OF_QUERY: Final = {
    "input_rows_per_second": "Rows that arrived per second.",
    "processed_rows_per_second": "Rows that were processed per second.",
    "batch_rows": "Rows of the last micro-batch.",
    "batch_seconds": "Duration of the last micro-batch.",
    "batch_id": "Number of the last micro-batch.",
    "lost_offsets": "Offsets that were skipped because they were gone (failOnDataLoss is false).",
    "failed": "1 if the query ended with an error, otherwise 0.",
}
_OF_TASKS: Final = {
    "ledgers_opened": "Ledgers that tasks opened for reading.",
    "ledgers_created": "Ledgers that tasks created.",
    "read_retries": "Reads that tasks sent to one more bookie, because one failed or was slow.",
    "bookies_replaced": "Bookies that were replaced in ledgers that tasks wrote.",
}
assert tuple(_OF_TASKS) == tuple(one.name for one in fields(ClientCounts))


@dataclass(frozen=True, slots=True)
class QueryMetrics:
    """The last progress of a query.

    Parameters
    ----------
    query
        Its name, or its id if it has none. Several queries may have the same name, at once or one after another.
    query_id
        Its id, which its checkpoint keeps.
    values
        Numbers by name: ``input_rows_per_second``, ``processed_rows_per_second``, ``batch_rows``, ``batch_seconds``,
        ``batch_id``, ``lost_offsets`` and ``failed``.
    behind
        What is unread, by log: ``entries``, and if it is known, ``rows`` and ``bytes``.
    tasks
        What the clients of its tasks did since :meth:`StreamMetrics.count_tasks`. None if nothing is known.
    """

    query: str
    query_id: str
    values: Mapping[str, float]
    behind: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    tasks: ClientCounts | None = None


class StreamMetrics(StreamingQueryListener):
    """Collects metrics of the streaming queries of a session, and serves them to Prometheus. Thread-safe.

    Examples
    --------
    >>> metrics = bk_spark.StreamMetrics()                                      # doctest: +SKIP
    >>> spark.streams.addListener(metrics)                                      # doctest: +SKIP
    >>> metrics.serve(9404)                                                     # doctest: +SKIP
    9404
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: OrderedDict[str, QueryMetrics] = OrderedDict()
        self._tasks: TaskCounts | None = None
        self._server: ThreadingHTTPServer | None = None

    def count_tasks(self, spark: SparkSession) -> None:
        """Count what tasks do, too, in reads and writes of ``spark`` that begin after this: ledgers and retries.

        It registers the data source in the session, because only then Spark tells the driver what tasks counted. A task
        counts when it has succeeded.

        Parameters
        ----------
        spark
            The session. Its driver must be in this process.

        Raises
        ------
        InvalidArgumentError
            If it is a session of Spark Connect, or tasks are counted already.
        """
        if self._tasks is not None:
            raise InvalidArgumentError("tasks are counted already, in one session for each StreamMetrics")
        self._tasks = TaskCounts(spark, BookKeeperDataSource)

    def batches(self) -> ClientCounts | None:
        """Return what the clients of the tasks of batch reads and writes did, all together.

        Returns
        -------
        ClientCounts or None
            The sums since :meth:`count_tasks`. None if nothing is known.
        """
        return None if self._tasks is None else self._tasks.of(BATCHES)

    def queries(self) -> list[QueryMetrics]:
        """Return what is known.

        Returns
        -------
        list of QueryMetrics
            One for each query that has reported progress. A query that ended is kept with its last numbers.
        """
        with self._lock:
            found = list(self._queries.values())
        tasks = self._tasks
        return found if tasks is None else [replace(one, tasks=tasks.of(one.query_id)) for one in found]

    def prometheus(self) -> str:
        """Return the metrics in Prometheus' text format.

        Returns
        -------
        str
            The text.
        """
        queries = self.queries()
        tasks = {_labels(one): one.tasks for one in queries} | {f'query="{BATCHES}"': self.batches()}
        return "".join(f"{line}\n" for line in (*_lines(queries), *_task_lines(tasks)))

    def serve(self, port: int = 0, host: str = "127.0.0.1") -> int:
        """Serve the metrics over HTTP at ``/metrics``, until :meth:`close`.

        Parameters
        ----------
        port
            The port. 0: any free one.
        host
            The address. Default: only this machine reaches it.

        Returns
        -------
        int
            The port.

        Raises
        ------
        InvalidArgumentError
            If they are served already, or the port cannot be used.
        """
        if self._server is not None:
            raise InvalidArgumentError(f"metrics are served already, on port {self._server.server_port}")
        try:
            server = ThreadingHTTPServer((host, port), _handler(self))
        except OSError as error:
            raise InvalidArgumentError(f"metrics cannot be served on {host}:{port}: {error}") from error
        self._server = server
        threading.Thread(target=server.serve_forever, name="bk-stream-metrics", daemon=True).start()
        return server.server_port

    def close(self) -> None:
        """Stop serving."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 (Spark's names, here and below)
        """Spark calls this when a query starts."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Spark calls this after each micro-batch."""
        progress = event.progress
        self._note(metrics_of(json.loads(progress.json)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Spark calls this while a query has nothing to do."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Spark calls this when a query ends."""
        with self._lock:
            known = self._queries.get(str(event.id))
        if known is not None:
            failed = float(event.exception is not None)
            self._note(replace(known, values={**known.values, "failed": failed}))

    def _note(self, metrics: QueryMetrics) -> None:
        with self._lock:
            self._queries[metrics.query_id] = metrics
            self._queries.move_to_end(metrics.query_id)
            while len(self._queries) > _MAX_QUERIES:
                self._queries.popitem(last=False)


def metrics_of(progress: Mapping[str, Any]) -> QueryMetrics:
    """Return the metrics in the JSON of a query's progress. Other sources count only with their rows."""
    behind: dict[str, dict[str, int]] = {}
    lost = 0
    for source in progress.get("sources", ()):
        _add(behind, _behind(_offset(source.get("latestOffset"))))
        lost += _lost(_offset(source.get("endOffset")))
    values = {
        "input_rows_per_second": _number(progress.get("inputRowsPerSecond")),
        "processed_rows_per_second": _number(progress.get("processedRowsPerSecond")),
        "batch_rows": _number(progress.get("numInputRows")),
        "batch_seconds": _number(progress.get("batchDuration")) / 1000,
        "batch_id": _number(progress.get("batchId")),
        "lost_offsets": float(lost),
        "failed": 0.0,
    }
    query_id = str(progress.get("id"))
    return QueryMetrics(str(progress.get("name") or query_id), query_id, values, behind)


def _offset(found: object) -> dict[str, Any]:
    """Return an offset of this data source, or nothing: other sources have offsets of other forms."""
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            return {}
    return found if isinstance(found, dict) and found.get("v") == 1 else {}


def _lost(offset: Mapping[str, Any]) -> int:
    """Return how many offsets were skipped, of logs, of partitions of topics or of a ledger."""
    positions: list[Any] = [offset.get("ledger")]
    for kind in ("logs", "topics"):
        by_name = offset.get(kind)
        positions += by_name.values() if isinstance(by_name, dict) else ()
    lost: list[Any] = [one.get("lost") for one in positions if isinstance(one, dict)]
    return sum(count for count in lost if is_count(count))


def _add(behind: dict[str, dict[str, int]], more: Mapping[str, dict[str, int]]) -> None:
    """Add what one source has not read: a query may read the same log twice. What one of them does not know is left
    out."""
    for name, numbers in more.items():
        known = behind.get(name)
        behind[name] = (
            numbers
            if known is None
            else {kind: known[kind] + numbers[kind] for kind in _OF_LOG if kind in known.keys() & numbers}
        )


def _behind(offset: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    found = offset.get("behind")
    if not isinstance(found, dict):
        return {}
    return {
        name: {kind: one[kind] for kind in _OF_LOG if isinstance(one.get(kind), int)}
        for name, one in found.items()
        if isinstance(one, dict)
    }


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _lines(queries: list[QueryMetrics]) -> Iterator[str]:
    for name, text in _OF_QUERY.items():
        yield f"# HELP {_PREFIX}_{name} {text}"
        yield f"# TYPE {_PREFIX}_{name} gauge"
        for one in queries:
            yield f"{_PREFIX}_{name}{{{_labels(one)}}} {one.values[name]:g}"
    for kind, (name, text) in _OF_LOG.items():
        yield f"# HELP {_PREFIX}_{name} {text}"
        yield f"# TYPE {_PREFIX}_{name} gauge"
        for one in queries:
            for log, numbers in one.behind.items():
                if kind in numbers:
                    yield f"{_PREFIX}_{name}{{{_labels(one)},log={_quoted(log)}}} {numbers[kind]}"


def _task_lines(tasks: Mapping[str, ClientCounts | None]) -> Iterator[str]:
    """Yield the lines of counts by their labels."""
    known = {labels: counts for labels, counts in tasks.items() if counts is not None}
    for name, text in _OF_TASKS.items() if known else ():
        yield f"# HELP bk_spark_tasks_{name}_total {text}"
        yield f"# TYPE bk_spark_tasks_{name}_total counter"
        for labels, counts in known.items():
            yield f"bk_spark_tasks_{name}_total{{{labels}}} {getattr(counts, name)}"


def _labels(query: QueryMetrics) -> str:
    """Return the labels of a query. The id keeps queries of one name apart: Prometheus refuses equal ones."""
    return f"query={_quoted(query.query)},id={_quoted(query.query_id)}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _handler(metrics: StreamMetrics) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        #: Seconds after which a silent caller is disconnected.
        timeout = 10

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "metrics are at /metrics")
                return
            body = metrics.prometheus().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing: scrapes come every minute."""

    return Handler
