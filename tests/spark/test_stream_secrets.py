"""A streaming query's password is nowhere to be seen: not in plans, reports, errors, nor in the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming import StreamingQuery

from tests.support.connector import Connector, texts
from tests.support.streams import numbers, running, sink, wait_for_batch

SECRET = "battery-staple-horse"


def _reports(query: StreamingQuery) -> list[str]:
    return [json.dumps([one.json for one in query.recentProgress]), json.dumps(query.status), str(query.name)]


def _files(directory: Path) -> list[str]:
    return [path.read_bytes().decode("latin-1") for path in directory.rglob("*") if path.is_file()]


def test_no_plan_report_error_or_checkpoint_shows_the_password(
    connector: Connector, log: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spark, uri = connector.spark, connector.metadata_service_uri
    copy, written, read = f"{log}-copy", tmp_path / "written", tmp_path / "read"
    rows = numbers(spark, 10, 2).selectExpr("cast(number as string) as value")
    shown: list[str] = []
    with running(sink(rows, uri, log, written, password=SECRET)) as query:
        wait_for_batch(query, 1)
        query.explain(extended=True)
        shown += _reports(query)
    frame = spark.readStream.format("bookkeeper").option("startingOffsets", "earliest")
    stream = frame.options(metadataServiceUri=uri, log=log, password=SECRET).load()
    stream.explain(extended=True)
    with running(sink(stream.select("value"), uri, copy, read, password=SECRET)) as query:
        wait_for_batch(query, 0)
        query.explain(extended=True)
        shown += _reports(query)

    # With a log of another password: what fails once the query runs.
    connector.write(spark.sql(texts(10)), f"{log}-other", password="another")
    wrong_source = frame.options(metadataServiceUri=uri, log=f"{log}-other", password=SECRET)
    failures: list[Callable[[], object]] = [
        lambda: sink(rows, uri, f"{log}-other", tmp_path / "a", password=SECRET).processAllAvailable(),
        lambda: sink(rows.selectExpr("1 as id"), uri, log, tmp_path / "b", password=SECRET).processAllAvailable(),
        lambda: sink(rows, uri, log, tmp_path / "c", password=SECRET, nonsense=1).processAllAvailable(),
        lambda: sink(wrong_source.load(), uri, copy, tmp_path / "e", password=SECRET).processAllAvailable(),
        lambda: frame.options(metadataServiceUri=uri, log="no-such-log", password=SECRET).load(),
    ]
    for fail in failures:
        with pytest.raises(PySparkException) as raised:
            fail()
        shown.append(str(raised.value) + repr(raised.value))

    printed = capfd.readouterr()
    shown += [printed.out, printed.err]
    shown += connector.plans() + _files(written) + _files(read)
    assert any("bookkeeper" in text.lower() for text in shown)
    assert len(shown) > 30
    assert not [text[:2000] for text in shown if SECRET in text]
