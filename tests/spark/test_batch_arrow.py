"""Batch reads and writes of format arrow: many rows an entry."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.datasource.entries.schemas import stored_schema
from bk_spark.log.entries.schema_checks import METADATA_NAMES
from bk_spark.log.store import LogStore
from bk_spark.protocol.entries.payloads import Payloads
from tests.support.connector import Connector
from tests.support.sparks import needs_times

KIB, MIB = 1 << 10, 1 << 20
SECRET = "correct-horse-battery"

ROW_AS_JSON = "to_json(struct(*), map('ignoreNullFields', 'false'))"

#: An expression of ``id`` for every type that Arrow can carry.
EXPRESSIONS = {
    "flag": "id % 3 = 0",
    "tiny": "cast(id % 200 - 100 as tinyint)",
    "small": "cast(id * 300 - 30000 as smallint)",
    "number": "cast(id * 20000000 - 2000000000 as int)",
    "big": "id * 46116860184273879 - 9223372036854775807",
    "single": "cast(id / 7 as float)",
    "wide": "id / 7D",
    "special": "element_at(array(double('NaN'), double('Infinity'), double('-Infinity'), -0.0D), int(id % 4) + 1)",
    "price": "cast(id * 1.01 - 100 as decimal(20, 2))",
    "huge": "cast(concat(repeat('9', 20), '.', repeat('1', 18)) as decimal(38, 18))",
    "word": "element_at(array('', 'zwölf', '十二 🦆', repeat('long ', 100)), int(id % 4) + 1)",
    "bytes": "element_at(array(X'', X'00ff80', unhex(repeat('ab', 300))), int(id % 3) + 1)",
    "day": "date_add(date'1970-01-01', cast(id * 5000 - 500000 as int))",
    "moment": "timestamp_micros(id * 31556952000007 - 6000000000000000)",
    "local": "timestamp_ntz'1583-01-01 00:00:00.000001' + make_dt_interval(cast(id as int) * 1000)",
    "elapsed": "make_dt_interval(cast(id as int) - 50, 1, 2, 3.000004)",
    "hours": "cast(make_dt_interval(0, cast(id as int)) as interval hour)",
    "nothing": "null",
    "list": "sequence(0, id % 5)",
    "words": "array('a', if(id % 2 = 0, null, 'b'), string(id))",
    "counts": "map('a', id, 'b', if(id % 2 = 0, null, id + 1))",
    "pair": "named_struct('x', id, 'y', if(id % 2 = 0, null, string(id)))",
    "tree": """named_struct(
        'leaves', array(named_struct('at', timestamp_seconds(id), 'tags', map(id, array(date'2024-02-29', null)))),
        'by_key', map('k', named_struct('n', cast(id as decimal(10, 3)), 'raw', X'0102')),
        'none', cast(null as struct<a: array<int>>))""",
}


def _every_type(connector: Connector, rows: int = 200, partitions: int = 3) -> DataFrame:
    """Each type with and without nulls among its values; in order over the partitions."""
    columns = [
        f"{text} as {name}, if(id % 7 = 0, null, {text}) as {name}_or_null" for name, text in EXPRESSIONS.items()
    ]
    return connector.spark.sql(f"select id, {', '.join(columns)} from range(0, {rows}, 1, {partitions})")


def _people(connector: Connector, rows: int, partitions: int = 2, width: int = 20) -> DataFrame:
    return connector.spark.sql(
        f"select id, lpad(string(id), {width}, '.') as name, id % 10 as age from range(0, {rows}, 1, {partitions})"
    )


def assert_same(read: DataFrame, written: DataFrame) -> None:
    """Same rows in the same order; same columns, except that all of what was read may be null."""
    assert read.schema == stored_schema(written.schema)
    # As JSON: chispa cannot overlook what may be null deep within a type.
    assert_df_equality(read.selectExpr(f"{ROW_AS_JSON} as row"), written.selectExpr(f"{ROW_AS_JSON} as row"))


def _entry_sizes(logs: LogStore, client: BlockingClient, log: str) -> list[int]:
    """Sizes of a log's entries, ledger by ledger."""
    sizes: list[int] = []
    for segment in logs.open_log(log).snapshot().segments():
        assert segment.last_entry is not None
        entries = client.open_for_reading(segment.ledger_id).read(segment.first_entry, segment.last_entry)
        sizes += map(len, entries)
    return sizes


# --- types ---


@pytest.mark.parametrize("large", ["false", "true"], ids=lambda large: f"largeVarTypes={large}")
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_every_type_round_trip(connector: Connector, log: str, zone: str, large: str) -> None:
    with connector.conf(spark__sql__session__timeZone=zone, spark__sql__execution__arrow__useLargeVarTypes=large):
        frame = _every_type(connector)
        connector.write(frame, log, entryFormat="arrow", entryBytes="16k")
        # Row order too: the log keeps it.
        assert_same(connector.read(log), frame)


@needs_times
def test_time_of_day_and_variant(connector: Connector, log: str) -> None:
    frame = connector.spark.sql(
        """select time'12:34:56.123456' as t, parse_json(concat('{"a": [1, "', id, '"]}')) as v from range(5)"""
    )
    connector.write(frame, log, entryFormat="arrow")
    read = connector.read(log)
    assert read.schema.simpleString() == "struct<t:time(6),v:variant>"
    assert (
        read.selectExpr("string(t) t", "to_json(v) v").collect()
        == frame.selectExpr("string(t) t", "to_json(v) v").collect()
    )


@pytest.mark.every_spark
def test_an_instant_is_the_same_in_every_time_zone(connector: Connector, log: str) -> None:
    def micros(frame: DataFrame) -> list[Any]:
        return frame.selectExpr("unix_micros(at) at", "string(wall) wall", "unix_micros(n.ats[0]) n").collect()

    with connector.conf(spark__sql__session__timeZone="America/New_York"):
        frame = connector.spark.sql(
            """select timestamp'2024-03-10 03:30:00' at, timestamp_ntz'2024-03-10 02:30:00' wall,
               named_struct('ats', array(timestamp'1883-11-18 12:00:00')) n"""
        )
        written = micros(frame)
        connector.write(frame, log, entryFormat="arrow")
        connector.write(frame, log)
    for zone in ("Asia/Tokyo", "UTC"):
        with connector.conf(spark__sql__session__timeZone=zone):
            assert micros(connector.read(log)) == written * 2


# --- schemas ---


def test_a_schema_reads_just_its_columns(connector: Connector, log: str) -> None:
    frame = _people(connector, 100)
    connector.write(frame, log, entryFormat="arrow")
    read = connector.read(log, "name string, id bigint")
    assert_same(read, frame.select("name", "id"))
    with_offsets = connector.read(log, "id bigint, offset bigint, log string")
    assert with_offsets.columns == ["id", "offset", "log"]
    assert {(row.offset, row.log) for row in with_offsets.collect()} == {(0, log), (1, log)}


def test_columns_may_be_null_whatever_the_first_write_said(connector: Connector, log: str) -> None:
    first = connector.spark.sql("select id, array(id) as ids, named_struct('a', id) as s from range(2)")
    assert not first.schema["id"].nullable
    connector.write(first, log, entryFormat="arrow")
    second = connector.spark.sql(
        "select cast(null as bigint) id, array(cast(null as bigint)) ids, named_struct('a', cast(null as bigint)) s"
    )
    connector.write(second, log)
    read = connector.read(log)
    assert read.schema["id"].nullable
    assert read.where("id is null and ids[0] is null and s.a is null").count() == 1
    assert [row.id for row in read.orderBy("id").collect()] == [None, 0, 1]
    with pytest.raises(PySparkException, match=r"column id has nulls in entry 0 of ledger \d+, but the schema given"):
        connector.read(log, "id bigint not null").collect()
    assert connector.read(log, "s struct<a: bigint>").where("s.a is null").count() == 1


def test_appended_columns_in_any_order(connector: Connector, log: str) -> None:
    frame = _people(connector, 10, partitions=1)
    connector.write(frame, log, entryFormat="arrow")
    connector.write(frame.select("age", "id", "name"), log)
    assert_same(connector.read(log), frame.union(frame))


def test_other_columns_are_not_appended(connector: Connector, log: str) -> None:
    frame = _people(connector, 10)
    connector.write(frame, log, entryFormat="arrow")
    with pytest.raises(PySparkException, match=f"column age of log {log} is missing from the data: add it"):
        connector.write(frame.drop("age"), log)
    with pytest.raises(PySparkException, match=f"column age is string here and bigint in log {log}: cast it"):
        connector.write(frame.selectExpr("id", "name", "string(age) age"), log)
    assert connector.read(log).count() == 10


def test_a_log_keeps_its_format(connector: Connector, log: str) -> None:
    connector.write(_people(connector, 10), log, entryFormat="arrow")
    with pytest.raises(PySparkException, match=f"option entryFormat: log {log} was made with arrow"):
        connector.write(connector.spark.sql("select 'x' value"), log, entryFormat="raw")
    with pytest.raises(PySparkException, match=f"option entryFormat: log {log} was made with arrow"):
        connector.read(log, entryFormat="raw").collect()
    assert connector.read(log, entryFormat="arrow").count() == 10


# --- several writes ---


def test_append_overwrite_and_no_rows(connector: Connector, log: str, logs: LogStore) -> None:
    frame = _people(connector, 100)
    nobody = frame.limit(0)
    connector.write(nobody, log, entryFormat="arrow")
    assert_same(connector.read(log), nobody)
    connector.write(frame, log)
    connector.write(frame, log)
    assert_same(connector.read(log), frame.union(frame))
    assert logs.open_log(log).snapshot().next_offset == 4

    connector.write(frame.where("id < 7"), log, mode="overwrite")
    assert_same(connector.read(log), frame.where("id < 7"))
    snapshot = logs.open_log(log).snapshot()
    assert (snapshot.first_offset, snapshot.next_offset) == (4, 5)
    connector.write(nobody, log, mode="overwrite")
    assert connector.read(log).count() == 0


def test_the_list_counts_rows_and_bytes(connector: Connector, log: str, logs: LogStore, client: BlockingClient) -> None:
    connector.write(_people(connector, 5000, partitions=3), log, entryFormat="arrow", entryBytes="16k")
    segments = list(logs.open_log(log).snapshot().segments())
    assert sum(segment.rows for segment in segments) == 5000
    assert sum(segment.size_bytes for segment in segments) == sum(_entry_sizes(logs, client, log))


# --- entries ---


@pytest.mark.parametrize("target", ["64k", "512k"])
def test_entries_are_near_the_size_asked_for(
    connector: Connector, log: str, logs: LogStore, client: BlockingClient, target: str
) -> None:
    target_bytes = int(target[:-1]) * KIB
    frame = _people(connector, 30_000, partitions=1, width=84)
    connector.write(frame, log, entryBytes=target, compression="none")
    *sizes, last = _entry_sizes(logs, client, log)
    assert len(sizes) >= 4
    assert all(0.6 * target_bytes < size < 1.3 * target_bytes for size in sizes)
    assert last < 1.3 * target_bytes
    assert_same(connector.read(log), frame)


def test_entries_never_pass_the_frame_limit(
    connector: Connector, log: str, logs: LogStore, client: BlockingClient
) -> None:
    # Far from the average that a batch is cut by: 2 MiB rows among short ones.
    frame = connector.spark.sql(
        f"select id, repeat('x', if(id % 100 = 50, {2 * MIB}, 10)) text from range(0, 600, 1, 1)"
    )
    connector.write(frame, log, entryBytes="64m", compression="none")
    sizes = _entry_sizes(logs, client, log)
    assert max(sizes) <= client.config.max_frame_bytes
    assert max(sizes) > 2 * MIB
    read = connector.read(log).selectExpr("count(*) n", "sum(length(text)) size", "count(distinct id) ids")
    assert [tuple(row) for row in read.collect()] == [(600, 6 * 2 * MIB + 594 * 10, 600)]


def test_compression(connector: Connector, log: str, logs: LogStore, client: BlockingClient) -> None:
    frame = _people(connector, 20_000, width=100)
    sizes = {}
    for compression in ("none", "lz4", "zstd"):
        connector.write(frame, log, mode="overwrite", entryFormat="arrow", compression=compression)
        assert_same(connector.read(log), frame)
        sizes[compression] = sum(_entry_sizes(logs, client, log))
    assert sizes["none"] > 2_000_000
    assert sizes["lz4"] < sizes["none"] / 2
    assert sizes["zstd"] < sizes["none"] / 3


# --- metadata ---


@pytest.mark.every_spark
def test_metadata_columns(connector: Connector, log: str) -> None:
    frame = _people(connector, 1000)
    connector.write(frame, log, entryFormat="arrow", entryBytes="2k")
    read = connector.read(log, includeMetadata="true")
    assert read.columns == ["id", "name", "age", "log", "offset", "ledgerId", "entryId", "timestamp"]
    rows = read.collect()
    assert [row.id for row in rows] == list(range(1000))
    offsets = [row.offset for row in rows]
    assert offsets == sorted(offsets)
    assert set(offsets) == set(range(max(offsets) + 1))
    assert max(offsets) > 10
    starts: dict[int, int] = {}
    for row in rows:
        assert row.offset - row.entryId == starts.setdefault(row.ledgerId, row.offset)
    assert {row.log for row in rows} == {log}
    assert len({row.timestamp for row in rows}) == 1
    assert_same(read.drop(*METADATA_NAMES), frame)


def test_columns_named_like_metadata(connector: Connector, log: str) -> None:
    frame = connector.spark.sql("select string(id) as offset, id as log from range(0, 5, 1, 1)")
    connector.write(frame, log, entryFormat="arrow")
    assert_same(connector.read(log), frame)
    with pytest.raises(PySparkException, match="includeMetadata: the log has a column log of its own"):
        connector.read(log, includeMetadata="true")
    read = connector.read(log, "offset string, entryId bigint")
    assert [tuple(row) for row in read.collect()] == [(str(number), 0) for number in range(5)]


def test_columns_named_like_metadata_but_for_case(connector: Connector, log: str) -> None:
    """Names are compared as spark.sql.caseSensitive says, so by default a log's ``Offset`` is its ``offset``."""
    connector.write(connector.spark.sql("select id + 10 as Offset, 'x' as Timestamp from range(0, 2, 1, 1)"), log)
    read = connector.read(log, "offset bigint, entryId bigint")
    assert [tuple(row) for row in read.collect()] == [(10, 0), (11, 0)]
    with connector.conf(spark__sql__python__filterPushdown__enabled="true"):
        pushed = connector.read(log, "offset bigint", pushDownFilters="true").where("offset > 10")
        assert [row.offset for row in pushed.collect()] == [11]
    with pytest.raises(PySparkException, match="column timestamp of log .* is string and cannot be read as timestamp"):
        connector.read(log, "timestamp timestamp").collect()
    with connector.conf(spark__sql__caseSensitive="true"):
        assert [tuple(row) for row in connector.read(log, "offset bigint, Offset bigint").collect()] == [
            (0, 10), (0, 11),
        ]  # fmt: skip


# --- ledgers without a log ---


@pytest.mark.every_spark
def test_ledgers_of_a_log(connector: Connector, log: str) -> None:
    frame = _every_type(connector, rows=50, partitions=1).drop("hours", "hours_or_null")
    connector.write(frame, log, entryFormat="arrow", password=SECRET)
    row = connector.read(log, "ledgerId bigint", password=SECRET).first()
    assert row is not None
    read = connector.read_ledger(row.ledgerId, entryFormat="arrow", password=SECRET)
    assert_same(read, frame)
    with_metadata = connector.read_ledger(
        row.ledgerId, "id bigint, ledgerId bigint, offset bigint", entryFormat="arrow", password=SECRET
    )
    assert [tuple(one) for one in with_metadata.collect()] == [(i, row.ledgerId, None) for i in range(50)]
    for schema, text in (
        ("ID bigint", f"ledger {row.ledgerId} has no column ID; it has id, flag"),
        ("id string", f"column id of ledger {row.ledgerId} is bigint and cannot be read as string"),
    ):
        with pytest.raises(PySparkException) as raised:
            connector.read_ledger(row.ledgerId, schema, entryFormat="arrow", password=SECRET).collect()
        assert text in str(raised.value)
    with pytest.raises(PySparkException, match="the ledger has a password, and none was given"):
        connector.read_ledger(row.ledgerId, entryFormat="arrow")


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def test_a_ledger_still_written_by_somebody_else(connector: Connector, client: BlockingClient) -> None:
    """Arrow as another program writes it: large types, another unit, and an entry that lacks a column."""
    moment = pa.array([1_700_000_000_000], pa.timestamp("ms", "Europe/Berlin"))
    batch = pa.record_batch({"text": pa.array(["a"], pa.large_string()), "at": moment})
    writer = client.create()
    with pytest.raises(PySparkException, match="the ledger has none: give one with schema"):
        connector.read_ledger(writer.ledger_id, entryFormat="arrow")
    assert connector.read_ledger(writer.ledger_id, "text string", entryFormat="arrow").collect() == []

    writer.append_many(Payloads.of([_stream(batch)] * 3))
    writer.flush()
    writer.append(_stream(batch.select(["text"])))
    writer.flush()
    read = connector.read_ledger(writer.ledger_id, entryFormat="arrow")
    assert read.schema.simpleString() == "struct<text:string,at:timestamp>"
    rows = read.selectExpr("text", "unix_millis(at) at").collect()
    assert [tuple(row) for row in rows] == [("a", 1_700_000_000_000)] * 3

    writer.close()
    with pytest.raises(PySparkException, match=rf"entry 3 of ledger {writer.ledger_id} has no column at; it has text"):
        connector.read_ledger(writer.ledger_id, entryFormat="arrow").collect()
    assert connector.read_ledger(writer.ledger_id, "text string", entryFormat="arrow").count() == 4


def test_what_is_not_arrow(connector: Connector, client: BlockingClient) -> None:
    writer = client.create()
    writer.append(b"just text")
    writer.close()
    with pytest.raises(
        PySparkException, match=rf"entry 0 of ledger {writer.ledger_id} is not an Arrow stream: was it wr"
    ):
        connector.read_ledger(writer.ledger_id, entryFormat="arrow")
    assert connector.read_ledger(writer.ledger_id).count() == 1


# --- tasks ---


def test_one_ledger_is_read_by_several_tasks(connector: Connector, log: str) -> None:
    frame = _people(connector, 20_000, partitions=1)
    connector.write(frame, log, entryFormat="arrow", entryBytes="16k")
    read = connector.read(log, minPartitions=8)
    assert read.rdd.getNumPartitions() == 8
    assert_same(read, frame)
    by_task = read.groupBy("id").count().where("count != 1")
    assert by_task.count() == 0
