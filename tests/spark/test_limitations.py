"""What docs/limitations.md says that Spark refuses, and what it says instead. More of the same is in test_bad_input.py,
test_pushdown.py, test_sql.py and test_stream_sink.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from bk_spark.log.store import LogStore
from tests.support.connector import Connector, texts
from tests.support.sparks import needs_limits
from tests.support.streams import numbers


def _stream(connector: Connector, log: str) -> DataFrame:
    reader = connector.spark.readStream.format("bookkeeper")
    return reader.options(metadataServiceUri=connector.metadata_service_uri, log=log).load()


@pytest.mark.parametrize(
    ("trigger", "text"),
    [
        ({"continuous": "1 second"}, "does not support continuous processing"),
        pytest.param({"realTime": "5 minutes"}, "STREAMING_REAL_TIME_MODE", marks=needs_limits),
    ],
    ids=["continuous", "real time"],
)
def test_triggers_that_are_not_for_python(
    connector: Connector, log: str, tmp_path: Path, trigger: dict[str, str], text: str
) -> None:
    connector.write(connector.spark.sql(texts(1)), log)
    writer = _stream(connector, log).writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(PySparkException, match=text):
        _run(writer.outputMode("update" if "realTime" in trigger else "append").trigger(**trigger).start)


def test_asynchronous_progress_tracking(connector: Connector, log: str, tmp_path: Path) -> None:
    rows = numbers(connector.spark, 1, 1).selectExpr("cast(number as string) value")
    writer = rows.writeStream.format("bookkeeper").option("checkpointLocation", str(tmp_path))
    writer = writer.options(metadataServiceUri=connector.metadata_service_uri, log=log)
    with pytest.raises(PySparkException, match="does not support async progress tracking"):
        _run(writer.option("asyncProgressTrackingEnabled", "true").start)


def _run(start: Callable[[], object]) -> None:
    """Some are refused at once, others when the query has begun."""
    query = start()
    try:
        query.processAllAvailable()  # type: ignore[attr-defined]
    finally:
        query.stop()  # type: ignore[attr-defined]


def test_partitions_of_a_write(connector: Connector, log: str, logs: LogStore) -> None:
    writer = connector.spark.sql(texts(1)).write.format("bookkeeper").mode("append").partitionBy("value")
    with pytest.raises(PySparkException, match="partition"):
        writer.options(metadataServiceUri=connector.metadata_service_uri, log=log).save()
    assert not logs.exists(log)


def test_a_thread_of_ones_own(connector: Connector, log: str) -> None:
    """Spark has no source in Python for a thread without an active session. The frame is made before the thread is."""
    frame = connector.spark.sql(texts(1))
    errors: list[str] = []

    def write() -> None:
        try:
            connector.write(frame, log)
        except Py4JJavaError as error:
            errors.append(str(error))
        connector.spark.createDataFrame([(1,)], "a int")
        connector.write(frame, log)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert len(errors) == 1
    assert "DATA_SOURCE_NOT_FOUND" in errors[0]
    assert connector.read(log).count() == 1
