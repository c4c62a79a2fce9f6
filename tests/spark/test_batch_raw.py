"""Batch reads and writes of format raw: one row, one entry."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.functions import expr
from pyspark.sql.types import BinaryType, StringType

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.datasource.entries.schemas import RAW_SCHEMA
from bk_spark.log.store import LogStore
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.payloads import Payloads
from tests.support.connector import Connector, texts
from tests.support.sparks import KEEPS_PLANS

MIB = 1 << 20
SECRET = "correct-horse-battery"
VALUES = [b"", b"plain", "zwölf, 十二, 🦆".encode(), bytes(range(256)), b"\x00", b"", b"x" * MIB, b"last"]


def _values(frame: DataFrame) -> list[str]:
    """Values as text, in the log's order."""
    return [row.value for row in frame.selectExpr("cast(value as string) value", "offset").orderBy("offset").collect()]


def _numbered(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


# --- values and metadata ---


@pytest.mark.every_spark
def test_bytes_round_trip(connector: Connector, log: str) -> None:
    frame = connector.spark.createDataFrame([(value,) for value in VALUES], "value binary").coalesce(1)
    connector.write(frame, log)
    assert_df_equality(connector.read(log).select("value"), frame)


def test_text_round_trip(connector: Connector, log: str) -> None:
    rows = [("",), ("plain",), ("zwölf, 十二, 🦆",), ("two\nlines\x00",), ("é" * (MIB // 2),)]
    frame = connector.spark.createDataFrame(rows, "value string").coalesce(1)
    connector.write(frame, log)
    assert connector.read(log).schema["value"].dataType == BinaryType()
    read = connector.read(log, "value string")
    assert read.schema["value"].dataType == StringType()
    assert_df_equality(read, frame)


def test_values_up_to_the_frame_limit(connector: Connector, log: str, client: BlockingClient) -> None:
    limit = client.config.max_payload_bytes(DigestType.CRC32C)
    connector.write(connector.spark.sql(f"select repeat('x', {limit}) value from range(2)"), log)
    assert [row.n for row in connector.read(log).selectExpr("length(value) n").collect()] == [limit, limit]


def test_schema_and_metadata(connector: Connector, log: str, client: BlockingClient) -> None:
    before_ms = time.time_ns() // 1_000_000
    connector.write(connector.spark.sql(texts(1000, partitions=7)), log)
    after_ms = time.time_ns() // 1_000_000

    frame = connector.read(log)
    assert frame.schema == RAW_SCHEMA
    rows = frame.withColumn("at_ms", expr("unix_millis(timestamp)")).collect()
    assert {row.log for row in rows} == {log}
    assert [row.offset for row in rows] == list(range(1000))
    # Partitions one after the other, each in its own order.
    assert [bytes(row.value).decode() for row in rows] == _numbered("row ", 1000)

    first_offsets: dict[int, int] = {}
    for row in rows:
        assert row.entryId == row.offset - first_offsets.setdefault(row.ledgerId, row.offset)
    assert len(first_offsets) == 7
    for ledger_id in first_offsets:
        of_ledger = [row for row in rows if row.ledgerId == ledger_id]
        stored = client.open_for_reading(ledger_id).read(0, len(of_ledger) - 1)
        assert stored == [bytes(row.value) for row in of_ledger]

    (at_ms,) = {row.at_ms for row in rows}
    assert before_ms <= at_ms <= after_ms


def test_many_partitions_some_empty(connector: Connector, log: str, logs: LogStore) -> None:
    # 40 partitions, of which every other has no row.
    frame = connector.spark.range(0, 400, 1, 40).where("id % 20 >= 10").selectExpr("cast(id as string) value")
    connector.write(frame, log)
    assert_df_equality(connector.read(log, "value string"), frame, ignore_nullable=True)
    assert len(list(logs.open_log(log).snapshot().segments())) == 20


def test_no_rows_make_an_empty_log(connector: Connector, log: str, logs: LogStore) -> None:
    connector.write(connector.spark.sql(texts(0)), log)
    assert logs.open_log(log).snapshot().next_offset == 0
    frame = connector.read(log)
    assert frame.schema == RAW_SCHEMA
    assert (frame.count(), frame.collect()) == (0, [])
    connector.write(connector.spark.sql(texts(3)), log)
    assert _values(connector.read(log)) == _numbered("row ", 3)


def test_queries_on_a_log(connector: Connector, log: str) -> None:
    connector.write(connector.spark.sql(texts(100)), log)
    frame = connector.read(log)
    assert frame.where("offset >= 90 and offset < 95").count() == 5
    assert len(frame.limit(3).collect()) == 3
    assert frame.selectExpr("max(offset)", "count(distinct ledgerId)").collect() == [(99, 2)]
    other = frame.selectExpr("offset + 1 as offset", "value as previous")
    assert frame.join(other, "offset").where("value = previous").count() == 0


# --- several writes ---


def test_append_goes_on(connector: Connector, log: str) -> None:
    connector.write(connector.spark.sql(texts(50, prefix="a")), log)
    connector.write(connector.spark.sql(texts(70, partitions=3, prefix="b")), log)
    frame = connector.read(log)
    assert _values(frame) == _numbered("a", 50) + _numbered("b", 70)
    assert [row.offset for row in frame.select("offset").orderBy("offset").collect()] == list(range(120))
    first, second = sorted(row.at_ms for row in frame.selectExpr("unix_millis(timestamp) at_ms").distinct().collect())
    assert first < second <= time.time_ns() // 1_000_000


def test_two_writers_at_once_make_one_log(connector: Connector, log: str) -> None:
    def write(prefix: str) -> None:
        # In a thread of its own a write finds no Python data source until the session is active there, which
        # createDataFrame sees to.
        rows = [(value,) for value in _numbered(prefix, 500)]
        connector.write(connector.spark.createDataFrame(rows, "value string"), log)

    with ThreadPoolExecutor(2) as executor:
        list(executor.map(write, "ab"))
    values = _values(connector.read(log))
    first = values[0][0]
    assert values == _numbered(first, 500) + _numbered("b" if first == "a" else "a", 500)


def test_overwrite_replaces_and_offsets_go_on(connector: Connector, log: str, logs: LogStore) -> None:
    connector.write(connector.spark.sql(texts(50, prefix="old ")), log)
    planned = connector.read(log)
    assert planned.count() == 50

    connector.write(connector.spark.sql(texts(20, prefix="new ")), log, mode="overwrite")
    snapshot = logs.open_log(log).snapshot()
    assert (snapshot.first_offset, snapshot.next_offset) == (50, 70)
    frame = connector.read(log)
    assert _values(frame) == _numbered("new ", 20)
    assert frame.selectExpr("min(offset)", "max(offset)").collect() == [(50, 69)]
    # A DataFrame that was used before is a snapshot: its ledgers are still there.
    assert _values(planned) == (_numbered("old ", 50) if KEEPS_PLANS else _numbered("new ", 20))

    connector.write(connector.spark.sql(texts(0)), log, mode="overwrite")
    snapshot = logs.open_log(log).snapshot()
    assert (snapshot.first_offset, snapshot.next_offset) == (70, 70)
    assert connector.read(log).count() == 0
    assert _values(planned) == (_numbered("old ", 50) if KEEPS_PLANS else [])

    connector.write(connector.spark.sql(texts(5, prefix="later ")), log)
    assert _values(connector.read(log)) == _numbered("later ", 5)
    assert connector.read(log).selectExpr("min(offset)").first() == (70,)


def test_overwrite_of_a_log_with_what_was_read_from_it(connector: Connector, log: str) -> None:
    connector.write(connector.spark.sql(texts(100)), log)
    kept = connector.read(log).where("offset % 2 = 0").select("value")
    connector.write(kept, log, mode="overwrite")
    assert _values(connector.read(log)) == _numbered("row ", 100)[::2]


def test_overwrite_makes_a_log_too(connector: Connector, log: str) -> None:
    connector.write(connector.spark.sql(texts(5)), log, mode="overwrite")
    assert _values(connector.read(log)) == _numbered("row ", 5)


def test_an_overwrite_that_fails_leaves_the_old_rows(connector: Connector, log: str) -> None:
    connector.write(connector.spark.sql(texts(50)), log)
    broken = connector.spark.sql("select if(id = 900, null, 'new') value from range(0, 1000, 1, 2)")
    with pytest.raises(PySparkException, match="column value is null"):
        connector.write(broken, log, mode="overwrite")
    assert _values(connector.read(log)) == _numbered("row ", 50)


@pytest.mark.every_spark
def test_the_same_transaction_appends_once(connector: Connector, log: str) -> None:
    frame = connector.spark.sql(texts(10, prefix="first "))
    for _ in range(2):
        connector.write(frame, log, txnAppId="nightly", txnVersion=1)
    # Nor does another version of what was written already.
    connector.write(connector.spark.sql(texts(10, prefix="changed ")), log, txnAppId="nightly", txnVersion=1)
    assert _values(connector.read(log)) == _numbered("first ", 10)
    connector.write(connector.spark.sql(texts(10, prefix="second ")), log, txnAppId="nightly", txnVersion=2)
    connector.write(frame, log, txnAppId="nightly", txnVersion=1)
    connector.write(connector.spark.sql(texts(10, prefix="other ")), log, txnAppId="weekly", txnVersion=1)
    assert _values(connector.read(log)) == [
        *_numbered("first ", 10),
        *_numbered("second ", 10),
        *_numbered("other ", 10),
    ]


def test_the_same_overwriting_transaction_happens_once(connector: Connector, log: str) -> None:
    frame = connector.spark.sql(texts(10, prefix="base "))
    connector.write(frame, log, mode="overwrite", txnAppId="nightly", txnVersion=7)
    connector.write(connector.spark.sql(texts(5, prefix="more ")), log)
    connector.write(frame, log, mode="overwrite", txnAppId="nightly", txnVersion=7)
    assert _values(connector.read(log)) == _numbered("base ", 10) + _numbered("more ", 5)


# --- schemas ---


def test_a_schema_projects_and_orders_columns(connector: Connector, log: str) -> None:
    connector.write(connector.spark.sql(texts(4, partitions=1)), log)
    frame = connector.read(log, "offset bigint, value string")
    assert frame.columns == ["offset", "value"]
    assert [tuple(row) for row in frame.collect()] == [(i, f"row {i}") for i in range(4)]
    assert [row.asDict() for row in connector.read(log, "entryId bigint").collect()] == [
        {"entryId": i} for i in range(4)
    ]


@pytest.mark.parametrize("large", ["true", "false"])
@pytest.mark.parametrize("kind", ["binary", "string"])
def test_large_variable_width_types(connector: Connector, log: str, kind: str, large: str) -> None:
    frame = connector.spark.sql(f"select cast(concat('row ', id) as {kind}) value from range(100)").coalesce(1)
    with connector.conf(spark__sql__execution__arrow__useLargeVarTypes=large):
        connector.write(frame, log)
        assert_df_equality(connector.read(log, f"value {kind}"), frame, ignore_nullable=True)


def test_bytes_that_are_no_text(connector: Connector, log: str) -> None:
    frame = connector.spark.sql("select unhex(if(id = 7, 'ff00', '41')) value from range(0, 10, 1, 1)")
    connector.write(frame, log)
    with pytest.raises(PySparkException) as raised:
        connector.read(log, "value string").collect()
    ledger_id = connector.read(log).select("ledgerId").first()
    assert ledger_id is not None
    assert f"column value is not UTF-8: read it as binary, not as string (ledger {ledger_id[0]}, entry 7)" in str(
        raised.value
    )
    assert connector.read(log).count() == 10


# --- ledgers without a log ---


def test_a_closed_ledger(connector: Connector, client: BlockingClient) -> None:
    writer = client.create(password=SECRET.encode())
    writer.append_many(Payloads.of(VALUES))
    writer.close()
    rows = connector.read_ledger(writer.ledger_id, password=SECRET).collect()
    assert [bytes(row.value) for row in rows] == VALUES
    assert [(row.ledgerId, row.entryId) for row in rows] == [(writer.ledger_id, i) for i in range(len(VALUES))]
    assert {(row.log, row.offset, row.timestamp) for row in rows} == {(None, None, None)}


def test_an_open_ledger_is_read_up_to_its_lac_and_not_fenced(connector: Connector, client: BlockingClient) -> None:
    writer = client.create()
    assert connector.read_ledger(writer.ledger_id).count() == 0
    for number in range(100):
        writer.append(b"%d" % number)
        if number % 10 == 9:
            writer.flush()
    # Entry 99 was acknowledged; no later one has told the bookies so.
    confirmed = connector.read_ledger(writer.ledger_id, "value string").count()
    assert 90 <= confirmed <= 99
    writer.append(b"100")
    writer.flush()
    values = [row.value for row in connector.read_ledger(writer.ledger_id, "value string").collect()]
    assert values == [str(number) for number in range(100)]
    writer.close()
    assert connector.read_ledger(writer.ledger_id).count() == 101


def test_an_empty_ledger(connector: Connector, client: BlockingClient) -> None:
    writer = client.create()
    writer.close()
    assert connector.read_ledger(writer.ledger_id).collect() == []


def test_a_ledger_of_a_log(connector: Connector, log: str) -> None:
    connector.write(connector.spark.sql(texts(30, partitions=3)), log, password=SECRET)
    ledgers = connector.read(log, "ledgerId bigint", password=SECRET).distinct().collect()
    frames = [connector.read_ledger(row.ledgerId, "value string", password=SECRET) for row in ledgers]
    union = frames[0].union(frames[1]).union(frames[2])
    assert sorted(row.value for row in union.collect()) == sorted(_numbered("row ", 30))


# --- tasks ---


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({}, 1),
        ({"minPartitions": 7}, 7),
        ({"splitBytes": "100k"}, 11),
        ({"splitBytes": "100k", "minPartitions": 16}, 16),
    ],
    ids=str,
)
def test_one_ledger_is_read_by_several_tasks(
    connector: Connector, client: BlockingClient, options: dict[str, Any], tasks: int
) -> None:
    count, size = 1000, 1024
    writer = client.create()
    writer.append_many(Payloads.of([number.to_bytes(size, "big") for number in range(count)]))
    writer.close()
    frame = connector.read_ledger(writer.ledger_id, **options)
    assert frame.rdd.getNumPartitions() == tasks
    rows = frame.selectExpr("value", "entryId", "spark_partition_id() task").collect()
    assert [row.entryId for row in rows] == list(range(count))
    assert [int.from_bytes(row.value, "big") for row in rows] == list(range(count))
    shares = [sum(row.task == task for row in rows) for task in range(tasks)]
    assert max(shares) - min(shares) <= 1


def test_small_ledgers_are_read_by_one_task(connector: Connector, log: str) -> None:
    frame = connector.spark.sql(texts(200, partitions=20))
    connector.write(frame, log)
    read = connector.read(log, "value string")
    assert read.rdd.getNumPartitions() == 1
    assert_df_equality(read, frame, ignore_nullable=True)
    assert connector.read(log, minPartitions=4).rdd.getNumPartitions() == 4


# --- passwords ---


def test_a_password_is_needed_for_all_of_a_log(connector: Connector, log: str) -> None:
    frame = connector.spark.sql(texts(10))
    connector.write(frame, log, password=SECRET)
    remedy = "give the one it was made with \\(option password or passwordFile\\)"
    none = f"log {log} has a password, and none was given: {remedy}"
    expected = f"wrong password for log {log}: {remedy}"
    with pytest.raises(PySparkException, match=none):
        connector.write(frame, log)
    with pytest.raises(PySparkException, match=expected):
        connector.write(frame, log, mode="overwrite", password="wrong-horse")
    with pytest.raises(PySparkException, match=none):
        connector.read(log)
    # With a schema given, Spark asks for nothing before the read itself.
    with pytest.raises(PySparkException, match=expected):
        connector.read(log, "value string", password="wrong-horse").collect()
    assert _values(connector.read(log, password=SECRET)) == _numbered("row ", 10)


def test_a_password_in_a_file(connector: Connector, log: str, tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text(f"{SECRET}\n")
    connector.write(connector.spark.sql(texts(10)), log, passwordFile=str(path))
    assert connector.read(log, passwordFile=str(path)).count() == 10
    assert connector.read(log, password=SECRET).count() == 10
    with pytest.raises(PySparkException, match="option passwordFile: .*no-such-file cannot be read"):
        connector.read(log, passwordFile=str(tmp_path / "no-such-file"))


def test_no_plan_and_no_error_shows_the_password(
    connector: Connector, log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    connector.write(connector.spark.sql(texts(10)), log, password=SECRET)
    frame = connector.read(log, password=SECRET)
    assert frame.count() == 10
    for mode in ("extended", "cost", "formatted", "codegen"):
        frame.explain(mode=mode)
    shown = [capsys.readouterr().out]
    assert "bookkeeper" in shown[0]

    failures: list[Callable[[], object]] = [
        lambda: connector.write(connector.spark.sql("select 1 id"), log, password=SECRET),
        lambda: connector.write(connector.spark.sql("select string(null) value"), log, password=SECRET),
        # Spark refuses these itself, and shows the plan with the options.
        lambda: connector.write(connector.spark.sql("select make_interval(1) value"), log, password=SECRET),
        lambda: connector.write(connector.spark.sql(texts(1)), log, mode="ignore", password=SECRET),
        lambda: connector.read(log, password=SECRET, nonsense=1),
        lambda: connector.read("no-such-log", password=SECRET),
        lambda: connector.read(log, password=SECRET).select("no_such_column"),
        lambda: connector.read(log, password=SECRET + "x"),
    ]
    for fail in failures:
        with pytest.raises(PySparkException) as raised:
            fail()
        shown.append(str(raised.value) + repr(raised.value))
    shown += connector.plans()
    assert len(shown) > 10
    assert not [text for text in shown if SECRET in text]
