"""docs/design/walk.md names the modules that a row passes: one row is written and read, and traced."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from bk_spark.datasource.batch.reader import batch_reader
from bk_spark.datasource.batch.writer import BatchWriter
from bk_spark.datasource.options.parse import parse_options
from bookie_server.local import LocalCluster
from tests.support.row_tracer import MARK, ROOT, RowTracer
from tests.support.spark_process import own_clients

PAGE: Final = ROOT / "docs" / "design" / "walk.md"
SCHEMA: Final = StructType([StructField("value", BinaryType())])
#: So many that numpy's paths are taken, as with most batches.
ROWS: Final = 100


def rows_of(value: bytes) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_arrays([pa.array([value] * ROWS, pa.binary())], ["value"])


@pytest.fixture(autouse=True)
def clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with own_clients(monkeypatch):
        yield


def test_the_walk_is_what_a_row_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = PAGE.read_text("utf-8")
    named = set(re.findall(r"^\| \d+ \| `([\w/]+\.py)`", page, re.MULTILINE))
    (beside,) = re.findall(r"\n(Some more got it .*?)\n\n", page, re.DOTALL)
    record = tmp_path / "record"
    monkeypatch.setenv("WALK_RECORD", str(record))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "tests" / "support" / "traced"), str(ROOT)]))
    quorum = {"ensembleSize": "1", "writeQuorumSize": "1", "ackQuorumSize": "1"}
    with LocalCluster(tmp_path / "cluster", 1, bookie_settings={"flushInterval": "500"}) as cluster:
        log = {"metadataServiceUri": cluster.metadata_service_uri, "log": "walk"}
        tracer = RowTracer()
        threading.setprofile(tracer)
        try:
            writer = BatchWriter(parse_options({**log, **quorum, "entryFormat": "raw"}, writing=True), SCHEMA, False)
            writer.write(rows_of(b"connects, and is not committed"))
            bookie = cluster.bookies[0].pid
            assert bookie is not None
            os.kill(bookie, signal.SIGUSR1)
            sys.setprofile(tracer)
            tracer.records = True
            written = writer.write(rows_of(MARK))
            tracer.records = False
            writer.commit([written])
            wait_for_flush(tmp_path / "cluster")
            reader = batch_reader(parse_options(log, writing=False), SCHEMA)
            splits = reader.partitions()
            tracer.records = True
            assert sum(rows.num_rows for split in splits for rows in reader.read(split)) == ROWS
        finally:
            tracer.records = False
            sys.setprofile(None)
            threading.setprofile(None)
        os.kill(bookie, signal.SIGUSR1)
        wait_until(record.exists)
    passed = tracer.modules | set(record.read_text("utf-8").split())
    others = set(re.findall(r"`([\w/]+\.py)`", beside))
    assert others < passed
    assert passed - others == named


def wait_for_flush(directory: Path) -> None:
    """Until the row is in an entry log, and the write cache has dropped it: the mark is written after that."""

    def is_done() -> bool:
        logs = [path for path in directory.rglob("*.log") if MARK in path.read_bytes()]
        marks = [*directory.rglob("lastMark")]
        return bool(logs and marks) and marks[0].stat().st_mtime_ns >= logs[0].stat().st_mtime_ns

    wait_until(is_done)


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)
