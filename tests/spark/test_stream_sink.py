"""Streaming writes to a log: each row once and in order, over restarts; what Spark may do to them."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark import inheritable_thread_target
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.log.store import LogStore
from bk_spark.log.writer import LogWriter
from bk_spark.protocol.errors import LogFencedError
from tests.support.connector import Connector, texts
from tests.support.logs import listed_ledgers, registered_ledgers
from tests.support.sparks import needs_limits
from tests.support.streams import (
    assert_numbers,
    committed,
    forget_last_commit,
    newest_batch,
    numbers,
    running,
    set_back,
    sink,
    wait_for_batch,
    wait_until,
)

ROWS, PARTITIONS = 20, 2


def _raw(connector: Connector, rows: int = ROWS, partitions: int = PARTITIONS) -> DataFrame:
    return numbers(connector.spark, rows, partitions).selectExpr("cast(number as string) as value")


def _values(connector: Connector, log: str) -> list[int]:
    return [int(row.value) for row in connector.read(log).orderBy("offset").collect()]


def _failure(query_error: StreamingQueryException) -> tuple[str, str]:
    """Kind and text of our error, as it reaches the user."""
    found = re.findall(r"^bk_spark\.protocol\.errors\.(\w+): (.*)$", str(query_error), re.MULTILINE)
    assert found, str(query_error)
    kind, message = found[0]
    return kind, message


def _in_log(logs: LogStore, log: str, app: str) -> int:
    """The last batch that an application has committed."""
    application = logs.open_log(log).application(app)
    assert application is not None
    return application.batch_id


def _append_and_flush(writer: LogWriter) -> None:
    writer.append(b"too late")
    writer.flush()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.mark.every_spark
def test_s1_restarts_and_a_forgotten_commit(
    connector: Connector, log: str, checkpoint: Path, logs: LogStore, client: BlockingClient
) -> None:
    """Stopped anywhere; then run again from the checkpoint; then from one that lost its newest commit."""
    uri = connector.metadata_service_uri
    with running(sink(_raw(connector), uri, log, checkpoint)) as query:
        wait_for_batch(query, 3)
    first_run = query.runId
    with running(sink(_raw(connector), uri, log, checkpoint)) as query:
        wait_for_batch(query, committed(checkpoint)[-1] + 2)
    assert query.runId != first_run

    repeated = forget_last_commit(checkpoint, _in_log(logs, log, query.id))
    before = connector.read(log).count()
    with running(sink(_raw(connector), uri, log, checkpoint)) as query:
        wait_for_batch(query, repeated)
        wait_for_batch(query, repeated + 2)
    batches = assert_numbers(_values(connector, log), ROWS, PARTITIONS)
    assert batches * ROWS > before

    application = logs.open_log(log).application(query.id)
    assert application is not None
    assert application.run == str(query.runId)
    assert application.retired_runs[0] == str(first_run)
    # A worker has one ledger over many batches; all that are listed exist.
    listed = listed_ledgers(logs.open_log(log))
    assert listed <= registered_ledgers(logs.open_log(log)).keys()
    assert len(listed) <= 3 * PARTITIONS
    for ledger_id in listed:
        client.metadata(ledger_id)


def test_arrow_from_files(connector: Connector, log: str, checkpoint: Path, tmp_path: Path) -> None:
    """Files come one by one; a batch without rows is a batch too."""
    spark, uri, files = connector.spark, connector.metadata_service_uri, tmp_path / "files"
    files.mkdir()

    def add(number: int, rows: int) -> None:
        frame = spark.range(number * 1000, number * 1000 + rows, 1, 1).selectExpr("id", "concat('é', id) as name")
        frame.write.mode("append").parquet(str(files))

    source = spark.readStream.schema("id long, name string").option("maxFilesPerTrigger", 1).parquet(str(files))
    add(1, 10)
    add(2, 0)
    add(3, 100)
    options = {"entryFormat": "arrow", "compression": "zstd"}
    for _ in range(2):
        writer = source.writeStream.format("bookkeeper").option("checkpointLocation", str(checkpoint))
        query = (
            writer.options(metadataServiceUri=uri, log=log, **options)
            .queryName("arrow-from-files")
            .trigger(availableNow=True)
            .start()
        )
        with running(query):
            assert query.awaitTermination(120)
        add(4, 5)
    found = [(row.id, row.name) for row in connector.read(log).collect()]
    expected = [*range(1000, 1010), *range(3000, 3100), *range(4000, 4005)]
    assert sorted(found) == [(number, f"é{number}") for number in expected]


@pytest.mark.parametrize("mode", ["complete", "update"])
def test_other_output_modes_are_refused(connector: Connector, log: str, checkpoint: Path, mode: str) -> None:
    counts = numbers(connector.spark, ROWS, 1).groupBy("number").count().selectExpr("cast(count as string) as value")
    writer = counts.writeStream.format("bookkeeper").outputMode(mode).option("checkpointLocation", str(checkpoint))
    query = writer.options(metadataServiceUri=connector.metadata_service_uri, log=log).start()
    with running(query), pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination(120)
    if mode == "update":
        # Spark's own; a data source in Python is not asked.
        assert "bookkeeper does not support Update mode" in str(raised.value)
    else:
        kind, message = _failure(raised.value)
        assert kind == "InvalidArgumentError"
        assert 'use outputMode("append"), or foreachBatch' in message


def test_an_old_name_under_a_new_checkpoint(connector: Connector, log: str, tmp_path: Path) -> None:
    uri = connector.metadata_service_uri
    with running(sink(_raw(connector), uri, log, tmp_path / "one", txnAppId="daily")) as query:
        wait_for_batch(query, 1)
    rows = connector.read(log).count()
    second = sink(_raw(connector), uri, log, tmp_path / "two", txnAppId="daily")
    with running(second), pytest.raises(StreamingQueryException) as raised:
        second.awaitTermination(120)
    kind, message = _failure(raised.value)
    assert kind == "BatchRefusedError"
    assert query.id in message
    assert "A query with a new checkpoint needs a name of its own (txnAppId)" in message
    assert connector.read(log).count() == rows
    # With the old checkpoint the name is as good as ever.
    with running(sink(_raw(connector), uri, log, tmp_path / "one", txnAppId="daily")) as query:
        wait_for_batch(query, committed(tmp_path / "one")[-1] + 1)
    assert_numbers(_values(connector, log), ROWS, PARTITIONS)


def test_txn_version_is_not_for_streams(connector: Connector, log: str, checkpoint: Path) -> None:
    query = sink(_raw(connector), connector.metadata_service_uri, log, checkpoint, txnAppId="a", txnVersion=1)
    with running(query), pytest.raises(StreamingQueryException, match="option txnVersion is for batch writes only"):
        query.awaitTermination(120)


def test_columns_that_are_not_the_logs(connector: Connector, log: str, checkpoint: Path, logs: LogStore) -> None:
    uri = connector.metadata_service_uri
    connector.write(connector.spark.range(0, 3, 1, 1), log, entryFormat="arrow")
    frame = numbers(connector.spark, ROWS, 1)
    with running(sink(frame, uri, log, checkpoint)) as query, pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination(120)
    assert _failure(raised.value)[1].startswith(f"log {log} has no column number; it has id")
    assert logs.open_log(log).snapshot().next_offset == 1


def test_several_queries_and_batch_jobs_in_one_log(connector: Connector, log: str, tmp_path: Path) -> None:
    """Each has its rows once and in its order, however they lie between those of the others."""
    uri, jobs, job_rows = connector.metadata_service_uri, 4, 30

    def tagged(tag: str) -> DataFrame:
        return numbers(connector.spark, ROWS, PARTITIONS).selectExpr(f"concat('{tag} ', number) as value")

    with (
        running(sink(tagged("a"), uri, log, tmp_path / "a")) as one,
        running(sink(tagged("b"), uri, log, tmp_path / "b")) as other,
    ):
        for query in (one, other):
            wait_for_batch(query, 1)
        for job in range(jobs):
            start = job * job_rows
            frame = connector.spark.range(start, start + job_rows, 1, 2).selectExpr("concat('j ', id) as value")
            connector.write(frame, log, txnAppId="jobs", txnVersion=job)
        reached = [committed(tmp_path / tag)[-1] for tag in "ab"]
        wait_for_batch(one, reached[0] + 1)
        wait_for_batch(other, reached[1] + 1)
    found: dict[str, list[int]] = {"a": [], "b": [], "j": []}
    for row in connector.read(log, "value string, offset long").orderBy("offset").collect():
        tag, _, number = row.value.partition(" ")
        found[tag].append(int(number))
    assert found["j"] == list(range(jobs * job_rows))
    for tag in "ab":
        assert_numbers(found[tag], ROWS, PARTITIONS)


def test_a_ledger_fenced_by_another_client(
    connector: Connector, log: str, checkpoint: Path, logs: LogStore, client: BlockingClient
) -> None:
    """Between batches and in their midst: the query goes on with other ledgers."""
    uri, fenced = connector.metadata_service_uri, 0
    with running(sink(_raw(connector, rows=400), uri, log, checkpoint)) as query:
        wait_for_batch(query, 0)
        for _ in range(3):
            last = list(logs.open_log(log).snapshot().segments())[-PARTITIONS:]
            for ledger_id in {segment.ledger_id for segment in last}:
                client.recover_and_open(ledger_id)
                fenced += 1
            wait_for_batch(query, newest_batch(query) + 2)
    assert_numbers(_values(connector, log), 400, PARTITIONS)
    assert len(listed_ledgers(logs.open_log(log))) > fenced


def test_idle_ledgers_are_closed_and_others_take_over(
    connector: Connector, log: str, checkpoint: Path, logs: LogStore, client: BlockingClient
) -> None:
    """By the interval here; 30 s of idleness do the same."""
    uri = connector.metadata_service_uri
    with running(sink(_raw(connector), uri, log, checkpoint, ledgerRollInterval="200ms")) as query:
        wait_for_batch(query, 4)
        ledgers = [segment.ledger_id for segment in logs.open_log(log).snapshot().segments()]
        assert len(set(ledgers)) > PARTITIONS
        wait_until(lambda: client.metadata(ledgers[0]).state.name == "CLOSED", "close of a rolled ledger")
    assert_numbers(_values(connector, log), ROWS, PARTITIONS)


def test_an_open_tail(connector: Connector, log: str, checkpoint: Path) -> None:
    """A log writer that lives is not ended but on demand; its rows stay."""
    uri = connector.metadata_service_uri
    connector.write(connector.spark.sql("select '-1' as value"), log)
    with BlockingClient(uri, ClientConfig(explicit_lac_interval_ms=1000)) as other:
        writer = LogStore.of(other).open_log(log, password=b"").open_writer()
        writer.append_many([b"-2", b"-3"])
        writer.flush()
        refused = sink(_raw(connector), uri, log, checkpoint)
        with running(refused), pytest.raises(StreamingQueryException) as raised:
            refused.awaitTermination(120)
        kind, message = _failure(raised.value)
        assert kind == "LogTailOpenError"
        assert f"process {os.getpid()}" in message
        assert "commit with fenceTail=true" in message

        with running(sink(_raw(connector), uri, log, checkpoint, fenceTail="true")) as query:
            wait_for_batch(query, 1)
        with pytest.raises(LogFencedError):
            _append_and_flush(writer)
        writer.abandon()
    first, *rest = _values(connector, log)
    assert [first, *rest[:2]] == [-1, -2, -3]
    assert_numbers(rest[2:], ROWS, PARTITIONS)


# --- foreachBatch ---


@pytest.mark.every_spark
def test_foreach_batch_repeated(connector: Connector, log: str, checkpoint: Path, logs: LogStore) -> None:
    """Batch writes within foreachBatch, each with the batch's number; the last one is run again."""
    done: list[int] = []
    reached = threading.Event()

    def write(frame: DataFrame, batch_id: int) -> None:
        values = frame.selectExpr("cast(number as string) as value")
        connector.write(values, log, txnAppId="foreach", txnVersion=batch_id)
        done.append(batch_id)
        if len(done) >= 3:
            reached.set()

    def run() -> Iterator[int]:
        source = numbers(connector.spark, ROWS, PARTITIONS)
        writer = source.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
        with running(writer.start()) as query:
            assert reached.wait(120)
            wait_for_batch(query, done[-1])
        yield from done

    assert next(run()) == 0
    repeated = forget_last_commit(checkpoint, _in_log(logs, log, "foreach"))
    done.clear()
    reached.clear()
    assert next(run()) == repeated
    assert_numbers(_values(connector, log), ROWS, PARTITIONS)


def test_foreach_batch_keeps_its_ledgers_as_the_sink_does(
    connector: Connector, log: str, checkpoint: Path, logs: LogStore
) -> None:
    """The run is the query's, so no batch retires the one before, and workers go on in the ledgers that they have."""

    def write(frame: DataFrame, batch_id: int) -> None:
        values = frame.selectExpr("cast(number as string) as value")
        connector.write(values, log, txnAppId="kept", txnVersion=batch_id)

    source = numbers(connector.spark, ROWS, PARTITIONS)
    with running(source.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint)).start()) as query:
        wait_for_batch(query, 5)
        run_id = str(query.runId)
    made = logs.open_log(log)
    application = made.application("kept")
    assert application is not None
    assert (application.run, application.retired_runs) == (run_id, ())
    assert len(registered_ledgers(made)) <= 2 * PARTITIONS < len(list(made.snapshot().segments()))
    assert_numbers(_values(connector, log), ROWS, PARTITIONS)


def _copy(
    connector: Connector,
    source: str,
    log: str,
    checkpoint: Path,
    *,
    start: int = 0,
    threads: ThreadPoolExecutor | None = None,
    **options: str,
) -> StreamingQuery:
    """A query that copies a log in foreachBatch, five rows a batch, to its end; with ``threads`` from one of these."""

    def write(frame: DataFrame, batch_id: int) -> None:
        def copy() -> None:
            if threads is not None:
                # Sets the thread's active session: without one Spark finds no data source written in Python.
                frame.sparkSession.createDataFrame([(1,)], "a int")
            connector.write(frame.select("value"), log, txnAppId="copy", txnVersion=batch_id, **options)

        if threads is None:
            copy()
        else:
            threads.submit(inheritable_thread_target(frame.sparkSession)(copy)).result()

    reader = connector.spark.readStream.format("bookkeeper").option("maxEntriesPerTrigger", 5)
    rows = reader.options(
        metadataServiceUri=connector.metadata_service_uri, log=source, startingOffsets=f'{{"{source}":{start}}}'
    ).load()
    writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def _run_to_end(query: StreamingQuery) -> None:
    with running(query):
        assert query.awaitTermination(120)


@pytest.mark.parametrize("own_thread", [False, True])
def test_f1_foreach_batch_with_a_new_checkpoint_is_refused(
    connector: Connector, log: str, tmp_path: Path, own_thread: bool
) -> None:
    """It goes on where the old one ended, with batch numbers that begin anew: no row may be left out silently."""
    with ThreadPoolExecutor(1) as pool:
        _new_checkpoint_is_refused(connector, log, tmp_path, pool if own_thread else None)


def _new_checkpoint_is_refused(
    connector: Connector, log: str, tmp_path: Path, threads: ThreadPoolExecutor | None
) -> None:
    source = f"{log}-source"
    connector.write(connector.spark.sql(texts(15, partitions=1)), source)
    _run_to_end(_copy(connector, source, log, tmp_path / "one", threads=threads))
    assert connector.read(log).count() == 15
    connector.write(connector.spark.sql(texts(5, partitions=1, prefix="new ")), source)

    with pytest.raises(StreamingQueryException) as raised:
        _run_to_end(_copy(connector, source, log, tmp_path / "two", start=15, threads=threads))
    kind, message = _failure(raised.value)
    assert kind == "BatchRefusedError"
    assert "A query with a new checkpoint needs a name of its own (txnAppId)" in message
    assert connector.read(log).count() == 15
    # With the old checkpoint it goes on.
    _run_to_end(_copy(connector, source, log, tmp_path / "one", threads=threads))
    assert connector.read(log).count() == 20


@needs_limits
def test_f2_a_checkpoint_set_back_is_refused_in_foreach_batch(connector: Connector, log: str, checkpoint: Path) -> None:
    source = f"{log}-source"
    connector.write(connector.spark.sql(texts(20, partitions=1)), source)
    _run_to_end(_copy(connector, source, log, checkpoint))
    last = committed(checkpoint)[-1]
    # One back is what Spark itself may do: done.
    set_back(checkpoint, last - 1)
    _run_to_end(_copy(connector, source, log, checkpoint))
    assert connector.read(log).count() == 20

    set_back(checkpoint, last - 2)
    with pytest.raises(StreamingQueryException) as raised:
        _run_to_end(_copy(connector, source, log, checkpoint))
    kind, message = _failure(raised.value)
    assert kind == "BatchRefusedError"
    assert f"has committed its batch {last} for application 'copy', and now offers batch {last - 1}" in message
    _run_to_end(_copy(connector, source, log, checkpoint, skipCommittedBatches="true"))
    connector.write(connector.spark.sql(texts(5, partitions=1, prefix="new ")), source)
    _run_to_end(_copy(connector, source, log, checkpoint))
    assert connector.read(log).count() == 25


def test_f2_a_checkpoint_set_back_is_refused_in_the_sink(
    connector: Connector, log: str, checkpoint: Path, logs: LogStore
) -> None:
    uri = connector.metadata_service_uri
    with running(sink(_raw(connector), uri, log, checkpoint)) as query:
        wait_for_batch(query, 4)
    last = _in_log(logs, log, query.id)
    set_back(checkpoint, last - 3)
    refused = sink(_raw(connector), uri, log, checkpoint)
    with running(refused), pytest.raises(StreamingQueryException) as raised:
        refused.awaitTermination(120)
    kind, message = _failure(raised.value)
    assert kind == "BatchRefusedError"
    assert f"has committed its batch {last} for application '{query.id}', and now offers batch {last - 2}" in message
    assert "its checkpoint was set back" in message
    assert _in_log(logs, log, query.id) == last
    with running(sink(_raw(connector), uri, log, checkpoint, skipCommittedBatches="true")) as query:
        wait_for_batch(query, last + 1)
    assert_numbers(_values(connector, log), ROWS, PARTITIONS)


def test_foreach_batch_with_version_numbers_of_its_own(
    connector: Connector, log: str, checkpoint: Path, tmp_path: Path
) -> None:
    """Two writes a batch under one name: repeated, both are done, though one of them is not the last."""
    failed = tmp_path / "failed"

    def write(frame: DataFrame, batch_id: int) -> None:
        for half in (0, 1):
            part = frame.where(f"number % 2 = {half}").selectExpr("cast(number as string) as value")
            connector.write(part, log, txnAppId="halves", txnVersion=2 * batch_id + half)
        if batch_id == 2 and not failed.exists():
            failed.touch()
            raise RuntimeError("after both writes")

    def start() -> StreamingQuery:
        source = numbers(connector.spark, ROWS, PARTITIONS)
        return source.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint)).start()

    first = start()
    with running(first), pytest.raises(StreamingQueryException, match="after both writes"):
        first.awaitTermination(120)
    with running(start()) as query:
        wait_for_batch(query, 3)
    values = _values(connector, log)
    assert len(values) == len(set(values))
    assert sorted(values)[: 4 * ROWS] == list(range(4 * ROWS))
