"""Writes to several logs by a column of the rows (option logColumn)."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.datasource.pyspark_api import HAS_LIMITS
from bk_spark.log.store import LogStore
from tests.support.connector import Connector
from tests.support.logs import TELLING


@pytest.fixture
def names() -> list[str]:
    """Names of three logs of this test."""
    prefix = f"routed-{uuid.uuid4().hex[:8]}"
    return [f"{prefix}-{number}" for number in range(3)]


def _make(connector: Connector, names: list[str], **options: str) -> None:
    columns = "1 as id, 'x' as text" if options.get("entryFormat") == "arrow" else "'x' as value"
    for name in names:
        connector.write(connector.spark.sql(f"select {columns} where false"), name, **options)


def _rows(
    connector: Connector, names: list[str], count: int, columns: str = "concat('row ', id) as value"
) -> DataFrame:
    """Rows that go to the logs in turn."""
    logs = ", ".join(f"'{name}'" for name in names)
    return connector.spark.sql(
        f"select {columns}, array({logs})[cast(id % {len(names)} as int)] as log from range(0, {count}, 1, 3)"
    )


def _write(connector: Connector, frame: DataFrame, mode: str = "append", **options: str) -> None:
    given = {"metadataServiceUri": connector.metadata_service_uri, "logColumn": "log", **options}
    frame.write.format("bookkeeper").mode(mode).options(**given).save()


def _refused(action: Callable[[], object]) -> str:
    with pytest.raises(PySparkException) as raised:
        action()
    found = re.findall(r"bk_spark\.protocol\.errors\.\w+: (.*)$", str(raised.value), re.MULTILINE)
    return str(found[0])


def _values(connector: Connector, name: str) -> list[str]:
    return [bytes(row.value).decode() for row in connector.read(name).orderBy("offset").collect()]


def test_rows_go_to_the_logs_they_name(connector: Connector, names: list[str]) -> None:
    _make(connector, names)
    _write(connector, _rows(connector, names, 300))
    for number, name in enumerate(names):
        assert _values(connector, name) == [f"row {row}" for row in range(number, 300, 3)]


def test_arrow_logs_of_one_write(connector: Connector, logs: LogStore, names: list[str]) -> None:
    _make(connector, names, entryFormat="arrow")
    _write(connector, _rows(connector, names, 3000, "cast(id as int) as id, concat('t', id) as text"))
    for number, name in enumerate(names):
        frame = connector.read(name)
        assert frame.columns == ["id", "text"]
        assert sorted(row.id for row in frame.collect()) == list(range(number, 3000, 3))
        # Rows gather: each task makes one entry for each log.
        assert sum(segment.entries for segment in logs.open_log(name).snapshot().segments()) == 3


def test_columns_are_found_as_spark_compares_names(connector: Connector, names: list[str]) -> None:
    """As in a write to one log."""
    _make(connector, names, entryFormat="arrow")
    frame = _rows(connector, names, 6, "concat('t', id) as TEXT, cast(id as int) as ID")
    _write(connector, frame)
    for number, name in enumerate(names):
        found = connector.read(name)
        assert found.columns == ["id", "text"]
        assert sorted(found.collect()) == [(number, f"t{number}"), (number + 3, f"t{number + 3}")]
    connector.spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        assert "has no column TEXT; it has id, text" in _refused(lambda: _write(connector, frame))
    finally:
        connector.spark.conf.unset("spark.sql.caseSensitive")


def test_a_transaction_is_in_each_log_once(connector: Connector, logs: LogStore, names: list[str]) -> None:
    _make(connector, names)
    for _ in range(2):
        _write(connector, _rows(connector, names, 30), txnAppId="nightly", txnVersion="1")
    # The next one has no rows for the last log.
    _write(connector, _rows(connector, names[:2], 30), txnAppId="nightly", txnVersion="2")
    assert [len(_values(connector, name)) for name in names] == [25, 25, 10]
    commits = logs.open_log(names[2]).history()[1]
    assert [(commit.app, commit.batch) for commit in commits if commit.rows] == [("nightly", 1)]


def test_a_commit_that_fails_between_two_logs_is_told_and_can_be_repeated(
    connector: Connector, names: list[str]
) -> None:
    _make(connector, names)
    with (
        BlockingClient(connector.metadata_service_uri, TELLING) as client,
        LogStore.of(client).open_log(names[1], password=b"").open_writer() as writer,
    ):
        writer.append(b"holds the tail")
        writer.flush()
        text = _refused(lambda: _write(connector, _rows(connector, names, 30), txnAppId="nightly", txnVersion="1"))
        assert "holds the tail open" in text
        assert f"The rows for 1 logs ({names[0]}) are committed, those for 2 ({names[1]}, {names[2]}) are not" in text
    _write(connector, _rows(connector, names, 30), txnAppId="nightly", txnVersion="1")
    assert [len(_values(connector, name)) for name in names] == [10, 11, 10]


@pytest.mark.parametrize(
    ("what", "options", "why"),
    [
        ("unknown", {}, "names log {0}-unknown, which does not exist: correct the name, or create the log first"),
        ("null", {}, "column log is null in row 0 of partition"),
        ("bad name", {}, "log name 'a/b' is not allowed"),
        ("many", {"maxLogs": "2"}, "names more than 2 logs in partition"),
        ("number", {}, "option logColumn: column log is bigint, and names of logs are strings"),
        ("missing", {"logColumn": "topic"}, "option logColumn: the rows have no column topic; they have value, log"),
    ],
)
def test_wrong_rows_commit_nothing(
    connector: Connector, logs: LogStore, names: list[str], what: str, options: dict[str, str], why: str
) -> None:
    _make(connector, names)
    frame = _rows(connector, names, 30)
    wrong = {"unknown": f"'{names[0]}-unknown'", "null": "null", "bad name": "'a/b'"}
    if what == "number":
        frame = connector.spark.sql("select 'x' as value, id as log from range(5)")
    elif what in wrong:
        frame = connector.spark.sql(f"select 'x' as value, {wrong[what]} as log from range(5)").unionAll(frame)
    text = _refused(lambda: _write(connector, frame, **options))
    assert why.format(names[0]) in text
    assert [_values(connector, name) for name in names] == [[], [], []]
    assert f"{names[0]}-unknown" not in logs.list_logs()


def test_an_overwrite_does_not_say_of_which_logs(connector: Connector, names: list[str]) -> None:
    _make(connector, names)
    text = _refused(lambda: _write(connector, _rows(connector, names, 3), mode="overwrite"))
    assert "would not say which logs to overwrite" in text


def test_a_stream_to_several_logs_that_starts_again(connector: Connector, names: list[str], tmp_path: Path) -> None:
    _make(connector, names)
    source = f"source-{uuid.uuid4().hex[:8]}"
    spark = connector.spark

    def feed(start: int, end: int) -> None:
        connector.write(spark.sql(f"select concat(id % 3, ' row ', id) as value from range({start}, {end})"), source)

    def run() -> None:
        rows = spark.readStream.format("bookkeeper").options(
            metadataServiceUri=connector.metadata_service_uri, log=source, startingOffsets="earliest"
        )
        name = f"concat('{names[0][:-1]}', substring(cast(value as string), 1, 1)) as log"
        routed = rows.load().selectExpr("substring(cast(value as string), 3) as value", name)
        query = (
            routed.writeStream.format("bookkeeper")
            .options(
                metadataServiceUri=connector.metadata_service_uri,
                logColumn="log",
                checkpointLocation=str(tmp_path / "checkpoint"),
            )
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(300)

    feed(0, 30)
    run()
    # Spark forgets that the batch was finished, and repeats it: each log has it already.
    newest = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (newest, newest.with_name(f".{newest.name}.crc")):
        path.unlink(missing_ok=True)
    feed(30, 60)
    run()
    if not HAS_LIMITS:
        # There a run that repeats a batch ends with it.
        run()
    for number, name in enumerate(names):
        assert _values(connector, name) == [f"row {row}" for row in range(number, 60, 3)]
