"""Option mergeSchema: columns are added and types become wider; who reads or writes with older columns goes on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import DataFrame
from pyspark.testing.objects import PythonOnlyPoint

from bk_spark.log.store import LogStore
from tests.support.connector import Connector
from tests.support.streams import running, wait_until

OLD = (
    "cast(id as int) as id, string(id) as name, cast(id / 2 as float) as ratio, named_struct('a', cast(id as int)) as s"
)
NEW = (
    "id + 10000000000 as id, string(id) as name, id / 3D as ratio, named_struct('b', 'x', 'a', id) as s, "
    "date'2026-01-02' as day"
)


def rows(connector: Connector, columns: str, start: int = 0, end: int = 3) -> DataFrame:
    return connector.spark.sql(f"select {columns} from range({start}, {end}, 1, 2)")


def write(connector: Connector, log: str, columns: str, *, start: int = 0, end: int = 3, **options: object) -> None:
    connector.write(rows(connector, columns, start, end), log, **({"entryFormat": "arrow"} | options))


def versions(logs: LogStore, log: str) -> list[int]:
    return [segment.schema_version for segment in logs.open_log(log).snapshot().segments()]


def text_of(error: PySparkException) -> str:
    return str(error).replace("\n", " ")


def test_columns_are_added_and_widened_and_older_rows_follow(connector: Connector, logs: LogStore, log: str) -> None:
    write(connector, log, OLD)
    before = connector.read(log)
    write(connector, log, NEW, start=5, end=6, mergeSchema="true")
    read = connector.read(log)
    assert read.schema.simpleString() == (
        "struct<id:bigint,name:string,ratio:double,s:struct<a:bigint,b:string>,day:date>"
    )
    found = {row.id: row.asDict(recursive=True) for row in read.collect()}
    assert found[1] == {"id": 1, "name": "1", "ratio": 0.5, "s": {"a": 1, "b": None}, "day": None}
    assert found[10000000005]["s"] == {"a": 5, "b": "x"}
    assert found[10000000005]["ratio"] == pytest.approx(5 / 3, rel=1e-15)
    assert set(versions(logs, log)) == {0, 1}
    settings = logs.open_log(log).settings
    assert [one.number for one in settings.schema_versions()] == [0, 1]
    assert [one["name"] for one in json.loads(settings.schema_json or "")["fields"]] == [
        "id", "name", "ratio", "s", "day",
    ]  # fmt: skip

    # A DataFrame from before keeps its columns, as long as values fit.
    with pytest.raises(PySparkException, match="column id in entry .* cannot be read as int32"):
        before.collect()
    assert sorted(row.name for row in connector.read(log, "name string, s struct<b: string>").collect()) == [
        "0", "1", "2", "5",
    ]  # fmt: skip

    # Explicit schemas: fewer columns, wider types, fields of structs in any order.
    wide = connector.read(log, "ratio double, s struct<b: string, a: bigint>, id bigint").orderBy("id").collect()
    assert [row.asDict(recursive=True) for row in wide][1] == {"ratio": 0.5, "s": {"b": None, "a": 1}, "id": 1}

    # Who still writes the old columns goes on, with the option and without.
    write(connector, log, OLD, start=7, end=8)
    write(connector, log, OLD, start=8, end=9, mergeSchema="true")
    assert sorted(connector.read(log, "id bigint").toPandas().id) == [0, 1, 2, 7, 8, 10000000005]
    assert connector.read(log).where("id in (7, 8)").where("day is null").count() == 2
    assert logs.open_log(log).settings.schema_version == 1, "nothing was to be added"


def test_what_would_lose_data_is_refused_with_the_way_out(connector: Connector, logs: LogStore, log: str) -> None:
    write(connector, log, "cast(id as int) as id, string(id) as name")
    end = logs.open_log(log).snapshot().next_offset
    kept, number = "cast(id as int) as id", "cast(id as int) as id, 'x'"
    for columns, merge, text in (
        (f"{number} as name, 1 as more", False, "no column more; .* option mergeSchema .* to true, which adds"),
        (
            "id, 'x' as name",
            False,
            "column id is bigint here and int in .*: cast it, or .*mergeSchema .* makes it bigint",
        ),
        (kept, False, "column name of log .* is missing from the data: add it"),
        ("string(id) as id, 'x' as name", True, "column id is string here and int in log .*, and no type holds both"),
        ("id / 2D as id, 'x' as name", True, "column id is double here and int in log"),
        (kept, True, r"column name of log .* is missing .*never drops or renames .*CAST\(NULL AS string\)"),
        (f"{number} as title", True, "column name of log .* is missing .* its old name, or write to a new"),
    ):
        with pytest.raises(PySparkException) as refused:
            write(connector, log, columns, mergeSchema=str(merge).lower())
        assert re.search(text, text_of(refused.value)), text_of(refused.value)[:600]
    assert (logs.open_log(log).settings.schema_version, logs.open_log(log).snapshot().next_offset) == (0, end)
    raw = f"{log}-raw"
    write(connector, raw, "string(id) as value", entryFormat="raw")
    with pytest.raises(PySparkException, match="option mergeSchema is for entryFormat arrow; log .* is raw"):
        write(connector, raw, "string(id) as value", entryFormat="raw", mergeSchema="true")


def test_a_write_that_fails_leaves_the_schema_as_it_was(connector: Connector, logs: LogStore, log: str) -> None:
    write(connector, log, "cast(id as int) as id")
    with pytest.raises(PySparkException, match="no more"):
        write(connector, log, "id, if(id = 2, raise_error('no more'), 'x') as more", mergeSchema="true")
    assert logs.open_log(log).settings.schema_version == 0
    assert connector.read(log).schema.simpleString() == "struct<id:int>"
    assert connector.read(log).count() == 3


def test_types_of_users_do_not_mix(connector: Connector, logs: LogStore, log: str) -> None:
    spark = connector.spark
    vectors = spark.createDataFrame([(Vectors.dense(1.0, 2.5),), (Vectors.sparse(3, [1], [4.0]),)], ["v"])
    points = spark.createDataFrame([(PythonOnlyPoint(1.0, 2.0),)], ["v"])
    connector.write(vectors, log)
    for options in ({}, {"mergeSchema": "true"}):
        connector.write(vectors.limit(1), log, **options)
        with pytest.raises(PySparkException) as refused:
            connector.write(points, log, **options)
        text = text_of(refused.value)
        assert "udt<org.apache.spark.ml.linalg.VectorUDT:" in text
        assert "udt<pyspark.testing.objects.PythonOnlyUDT:array<double>>" in text
    read = connector.read(log)
    assert isinstance(read.schema["v"].dataType, VectorUDT)
    found = [row.v for row in read.collect()]
    assert sorted(map(str, found)) == sorted(map(str, [Vectors.dense(1.0, 2.5)] * 3 + [Vectors.sparse(3, [1], [4.0])]))
    assert logs.open_log(log).settings.schema_version == 0


def test_names_by_case(connector: Connector, logs: LogStore, log: str) -> None:
    write(connector, log, "cast(id as int) as Id, named_struct('Lat', 1) as Place")
    write(connector, log, "id as ID, named_struct('lat', 2) as place, 'x' as More", start=5, end=6, mergeSchema="true")
    read = connector.read(log)
    assert read.schema.simpleString() == "struct<Id:bigint,Place:struct<Lat:int>,More:string>"
    assert sorted((row.Id, row.Place.Lat, row.More) for row in read.collect()) == [
        (0, 1, None), (1, 1, None), (2, 1, None), (5, 2, "x"),
    ]  # fmt: skip
    assert sorted(row.ID for row in connector.read(log, "ID bigint").collect()) == [0, 1, 2, 5]
    with connector.conf(spark__sql__caseSensitive="true"):
        with pytest.raises(PySparkException, match="columns ID differ .* in the case of a name, and .*caseSensitive"):
            connector.read(log, "ID bigint").collect()
        # It is another column there.
        write(connector, log, "id as Id, named_struct('Lat', 3) as Place, 'y' as more, 'z' as More", start=7, end=8,
              mergeSchema="true")  # fmt: skip
        found = connector.read(log).where("Id = 7").collect()
        assert (found[0]["more"], found[0]["More"]) == ("y", "z")
        assert connector.read(log).where("more is null").count() == 4
        assert connector.read(log, "more string").where("more is null").count() == 4
    assert logs.open_log(log).settings.schema_version == 2


def test_a_stream_goes_on_over_the_change_and_another_writes_it(
    connector: Connector, logs: LogStore, log: str, tmp_path: Path
) -> None:
    write(connector, log, "cast(id as int) as id, string(id) as name")
    copy = f"{log}-copy"
    options = {"metadataServiceUri": connector.metadata_service_uri}
    source = connector.spark.readStream.format("bookkeeper").options(log=log, startingOffsets="earliest", **options)
    stream = source.load()
    writer = stream.writeStream.format("bookkeeper").options(
        log=copy, entryFormat="arrow", mergeSchema="true", checkpointLocation=str(tmp_path / "a"), **options
    )

    def names(of: str) -> list[str]:
        return sorted(row.name for row in connector.read(of, "name string").collect()) if logs.exists(of) else []

    with running(writer.start()) as query:
        wait_until(lambda: len(names(copy)) == 3 or query.exception() is not None, "the first rows")
        write(connector, log, "id, string(id) as name, 'x' as more", start=3, end=6, mergeSchema="true")
        wait_until(lambda: len(names(copy)) == 6 or query.exception() is not None, "rows of the next version")
        assert query.exception() is None
    assert connector.read(copy).schema.simpleString() == "struct<id:int,name:string>"

    # Started again, it takes the log's present schema, and its sink grows.
    stream = source.load()
    writer = stream.writeStream.format("bookkeeper").options(
        log=copy, mergeSchema="true", checkpointLocation=str(tmp_path / "a"), **options
    )
    write(connector, log, "id, string(id) as name, 'y' as more", start=6, end=7)
    with running(writer.start()) as query:
        wait_until(lambda: len(names(copy)) == 7 or query.exception() is not None, "rows after the restart")
        assert query.exception() is None
    assert connector.read(copy).schema.simpleString() == "struct<id:bigint,name:string,more:string>"
    assert {row.more for row in connector.read(copy).collect()} == {None, "y"}

    # A value that no longer fits ends a stream whose columns are narrower, with what to do.
    narrow = connector.spark.readStream.format("bookkeeper").options(log=log, startingOffsets="earliest", **options)
    memory = narrow.schema("id int").load().writeStream.format("memory").queryName("narrow").outputMode("append")
    with running(memory.start()) as query:
        wait_until(lambda: connector.spark.table("narrow").count() == 7 or query.exception() is not None, "all rows")
        write(connector, log, "id + 10000000000 as id, 'z' as name, 'z' as more", end=1)
        with pytest.raises(StreamingQueryException, match="column id in entry .* as int32.* must be started again"):
            query.awaitTermination(240)


def test_each_batch_of_foreach_batch_may_add_columns(
    connector: Connector, logs: LogStore, log: str, tmp_path: Path
) -> None:
    source = connector.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 4).load()
    uri = connector.metadata_service_uri

    def has_grown() -> bool:
        return logs.exists(log) and set(versions(logs, log)) >= {0, 1, 2}

    def add(batch: DataFrame, batch_id: int) -> None:
        added = [f"'{batch_id}' as c{number}" for number in range(min(batch_id, 2) + 1)]
        options = {"metadataServiceUri": uri, "log": log, "entryFormat": "arrow", "mergeSchema": "true"}
        frame = batch.selectExpr("cast(value as int) as id", *added)
        frame.write.format("bookkeeper").mode("append").options(txnAppId="app", txnVersion=batch_id, **options).save()

    with running(
        source.writeStream.foreachBatch(add).option("checkpointLocation", str(tmp_path / "b")).start()
    ) as query:
        wait_until(
            lambda: query.exception() is not None or (logs.exists(log) and len(set(versions(logs, log))) == 3),
            "batches",
        )
        assert query.exception() is None
    found = connector.read(log).where("c0 <= '2'").orderBy("id").collect()
    assert [(row.c0, row.c1, row.c2) for row in found[::4]] == [("0", None, None), ("1", "1", None), ("2", "2", "2")]
