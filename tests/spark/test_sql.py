"""SQL on logs: what works, and that what Spark cannot do says so and never reads or writes anything else."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.functions import lit

from bk_spark.log.store import LogStore
from tests.support.connector import Connector, texts

LOST = "In SQL: Spark does not keep the options of CREATE TABLE … USING bookkeeper."
REMEDIES = ("SELECT … FROM t WITH (metadataServiceUri = '…', log = '…')", "CREATE TEMPORARY VIEW v USING bookkeeper")


@pytest.fixture
def table(connector: Connector) -> Iterator[str]:
    """A name that no table or view has; what has it later is dropped."""
    name = f"t_{uuid.uuid4().hex[:8]}"
    yield name
    connector.spark.catalog.dropTempView(name)
    connector.spark.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.fixture
def raw_log(connector: Connector, log: str) -> str:
    connector.write(connector.spark.sql(texts(10)), log)
    return log


def _options(connector: Connector, log: str, **more: object) -> str:
    """For OPTIONS (…)."""
    options = {"metadataServiceUri": connector.metadata_service_uri, "log": log, **more}
    return ", ".join(f"{key} '{value}'" for key, value in options.items())


def _with(connector: Connector, log: str) -> str:
    """For WITH (…)."""
    return f"metadataServiceUri = '{connector.metadata_service_uri}', log = '{log}'"


def _refused(action: Callable[[], object]) -> str:
    with pytest.raises(PySparkException) as raised:
        action()
    (found,) = re.findall(r"^bk_spark\.protocol\.errors\.InvalidArgumentError: (.*)$", str(raised.value), re.MULTILINE)
    return str(found)


def _assert_lost(action: Callable[[], object]) -> None:
    text = _refused(action)
    assert text.startswith("option metadataServiceUri is missing")
    assert LOST in text
    assert all(remedy in text for remedy in REMEDIES)


def _values(connector: Connector, log: str) -> list[str]:
    return sorted(row.value for row in connector.read(log, "value string").collect())


def _x(connector: Connector) -> DataFrame:
    return connector.spark.sql("SELECT cast('x' AS BINARY) AS value")


# --- temporary views ---


def test_a_temporary_view_keeps_its_options(connector: Connector, raw_log: str, table: str) -> None:
    sql = connector.spark.sql
    options = _options(connector, raw_log, startingOffsets=f'{{"{raw_log}": 4}}')
    sql(f"CREATE TEMPORARY VIEW {table} USING bookkeeper OPTIONS ({options})")
    (row,) = sql(f"SELECT count(*) n, min(offset) first, max(cast(value AS STRING)) value FROM {table}").collect()
    assert tuple(row) == (6, 4, "row 9")
    # Nor does a write through it take options for something else.
    assert _refused(lambda: sql(f"INSERT INTO {table} SELECT cast('x' AS BINARY), '', 0L, 0L, 0L, now()")) == (
        "option startingOffsets is for reading only: leave it out of this write"
    )


def test_a_view_with_a_schema_is_read_and_written(connector: Connector, raw_log: str, table: str) -> None:
    sql = connector.spark.sql
    sql(f"CREATE TEMPORARY VIEW {table} (value STRING) USING bookkeeper OPTIONS ({_options(connector, raw_log)})")
    assert sql(f"SELECT value FROM {table} WHERE value LIKE '%7'").collect() == [("row 7",)]
    sql(f"INSERT INTO {table} SELECT 'more'")
    assert _values(connector, raw_log) == ["more", *(f"row {n}" for n in range(10))]
    sql(f"INSERT OVERWRITE {table} VALUES ('only')")
    assert _values(connector, raw_log) == ["only"]


def test_a_view_without_schema_takes_no_rows(connector: Connector, raw_log: str, table: str) -> None:
    sql = connector.spark.sql
    sql(f"CREATE TEMPORARY VIEW {table} USING bookkeeper OPTIONS ({_options(connector, raw_log)})")
    with pytest.raises(PySparkException, match="NOT_ENOUGH_DATA_COLUMNS"):
        sql(f"INSERT INTO {table} SELECT cast('x' AS BINARY)")
    text = _refused(lambda: sql(f"INSERT OVERWRITE {table} SELECT cast('x' AS BINARY), '', 0L, 0L, 0L, now()"))
    assert text.startswith("entryFormat raw writes only the column value, the data also has log, offset, ledgerId")
    assert len(_values(connector, raw_log)) == 10


def test_a_view_keeps_the_rows_of_its_first_use_until_it_is_created_again(
    connector: Connector, raw_log: str, table: str
) -> None:
    """As a DataFrame does, so that an overwrite that is computed from it loses what came later."""
    sql = connector.spark.sql
    create = f"TEMPORARY VIEW {table} (value STRING) USING bookkeeper OPTIONS ({_options(connector, raw_log)})"
    sql(f"CREATE {create}")
    assert sql(f"SELECT * FROM {table}").count() == 10
    sql(f"INSERT INTO {table} SELECT 'more'")
    sql(f"REFRESH TABLE {table}")
    assert sql(f"SELECT * FROM {table}").count() == 10
    sql(f"INSERT OVERWRITE {table} SELECT value FROM {table}")
    assert _values(connector, raw_log) == [f"row {n}" for n in range(10)]
    sql(f"INSERT INTO {table} SELECT 'more'")
    sql(f"CREATE OR REPLACE {create}")
    assert sql(f"SELECT * FROM {table}").count() == 11


# --- tables ---


def test_a_table_with_options_is_not_made(connector: Connector, raw_log: str, table: str) -> None:
    spark = connector.spark
    options = _options(connector, raw_log)
    for statement in (
        f"CREATE TABLE {table} USING bookkeeper OPTIONS ({options})",
        f"CREATE TABLE {table} USING bookkeeper",
    ):
        text = _refused(lambda statement=statement: spark.sql(statement))  # type: ignore[misc]
        assert text.startswith(
            "CREATE TABLE … USING bookkeeper makes a table only with its columns and without options"
        )
        assert all(remedy in text for remedy in REMEDIES)
        assert not spark.catalog.tableExists(table)


def test_a_table_loses_its_options(connector: Connector, raw_log: str, table: str) -> None:
    """Spark does not even ask us when a table has columns."""
    spark = connector.spark
    spark.sql(f"CREATE TABLE {table} (value BINARY) USING bookkeeper OPTIONS ({_options(connector, raw_log)})")
    _assert_lost(lambda: spark.sql(f"SELECT * FROM {table}").collect())
    _assert_lost(lambda: spark.table(table).count())
    _assert_lost(lambda: spark.sql(f"INSERT INTO {table} SELECT cast('x' AS BINARY)"))
    _assert_lost(lambda: spark.sql(f"INSERT OVERWRITE {table} SELECT cast('x' AS BINARY)"))
    _assert_lost(lambda: _x(connector).write.insertInto(table))
    _assert_lost(lambda: _x(connector).writeTo(table).append())
    _assert_lost(lambda: spark.sql(f"CREATE TABLE {table}_2 USING bookkeeper OPTIONS (log 'a') AS SELECT 'x' value"))
    assert len(_values(connector, raw_log)) == 10


def test_a_table_with_options_at_each_use(connector: Connector, raw_log: str, table: str) -> None:
    spark, uri, options = connector.spark, connector.metadata_service_uri, _with(connector, raw_log)
    spark.sql(f"CREATE TABLE {table} (value BINARY) USING bookkeeper")
    assert spark.sql(f"SELECT * FROM {table} WITH ({options})").count() == 10
    assert spark.read.options(metadataServiceUri=uri, log=raw_log).table(table).count() == 10
    spark.sql(f"INSERT INTO {table} WITH ({options}) SELECT cast('x' AS BINARY)")
    assert _values(connector, raw_log)[-1:] == ["x"]
    _x(connector).writeTo(table).options(metadataServiceUri=uri, log=raw_log).append()
    assert _values(connector, raw_log)[-3:] == ["row 9", "x", "x"]
    spark.sql(f"INSERT OVERWRITE {table} WITH ({options}) SELECT cast('y' AS BINARY)")
    assert _values(connector, raw_log) == ["y"]
    _x(connector).writeTo(table).options(metadataServiceUri=uri, log=raw_log).overwrite(lit(True))
    assert _values(connector, raw_log) == ["x"]


def test_a_table_does_not_read_another_kind_of_log(connector: Connector, log: str, table: str) -> None:
    connector.write(connector.spark.range(5), log, entryFormat="arrow")
    connector.spark.sql(f"CREATE TABLE {table} (value BINARY) USING bookkeeper")
    read = connector.spark.sql(f"SELECT * FROM {table} WITH ({_with(connector, log)})")
    assert _refused(read.count) == f"log {log} has no column value; it has id: correct the schema"


@pytest.mark.parametrize("how", ["append", "overwrite", "error", "ignore", "create", "createOrReplace"])
def test_save_as_table_is_refused_where_it_would_make_a_table(
    connector: Connector, raw_log: str, table: str, how: str
) -> None:
    """The rows would go to the log, and the table could not be used."""
    options = {"metadataServiceUri": connector.metadata_service_uri, "log": raw_log}
    if how.startswith("create"):
        maker = _x(connector).writeTo(table).using("bookkeeper").options(**options)
        text = _refused(maker.create if how == "create" else maker.createOrReplace)
    else:
        writer = _x(connector).write.format("bookkeeper").options(**options)
        text = _refused(lambda: writer.mode(how).saveAsTable(table))
    assert text.startswith(
        "saveAsTable and writeTo(…).create() would make a table that has none of the rows, and that cannot be used: "
        "nothing was written. Use save() to write to the log."
    )
    assert all(remedy in text for remedy in REMEDIES)
    assert not connector.spark.catalog.tableExists(table)
    assert _values(connector, raw_log) == [f"row {n}" for n in range(10)]


def test_save_as_table_without_options_makes_nothing(connector: Connector, table: str, logs: LogStore) -> None:
    before = logs.list_logs()
    _assert_lost(lambda: _x(connector).write.format("bookkeeper").mode("append").saveAsTable(table))
    assert not connector.spark.catalog.tableExists(table)
    assert logs.list_logs() == before


def test_save_as_table_into_a_table_that_is_there(connector: Connector, raw_log: str, table: str) -> None:
    """To append is as ``writeTo(table).append()``; to overwrite would make the table anew."""
    connector.spark.sql(f"CREATE TABLE {table} (value BINARY) USING bookkeeper")
    writer = _x(connector).write.format("bookkeeper")
    writer = writer.options(metadataServiceUri=connector.metadata_service_uri, log=raw_log)
    writer.mode("append").saveAsTable(table)
    assert _values(connector, raw_log)[-2:] == ["row 9", "x"]
    writer.mode("ignore").saveAsTable(table)
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        writer.mode("error").saveAsTable(table)
    assert _refused(lambda: writer.mode("overwrite").saveAsTable(table)).startswith("saveAsTable and writeTo(…)")
    assert len(_values(connector, raw_log)) == 11


def test_writes_within_other_statements_are_not_taken_for_tables(
    connector: Connector, raw_log: str, table: str
) -> None:
    spark = connector.spark
    spark.sql(f"CREATE TEMPORARY VIEW {table} (value STRING) USING bookkeeper OPTIONS ({_options(connector, raw_log)})")
    spark.sql(f"EXECUTE IMMEDIATE \"INSERT INTO {table} SELECT 'immediate'\"")
    # Spark 4.0 has scripts, and they are off there.
    with connector.conf(spark__sql__scripting__enabled="true"):
        spark.sql(f"BEGIN INSERT INTO {table} SELECT 'script'; INSERT INTO {table} SELECT 'script'; END")
    spark.sql(f"WITH more AS (SELECT 'with' AS value) INSERT INTO {table} SELECT * FROM more")
    assert sorted(set(_values(connector, raw_log)) - {f"row {n}" for n in range(10)}) == ["immediate", "script", "with"]


def test_statements_that_spark_refuses(connector: Connector, raw_log: str, table: str) -> None:
    sql = connector.spark.sql
    sql(f"CREATE TABLE {table} (value BINARY) USING bookkeeper")
    for statement in (
        f"DELETE FROM {table} WHERE value IS NULL",
        f"UPDATE {table} SET value = NULL",
        f"TRUNCATE TABLE {table}",
        f"SELECT * FROM bookkeeper.`{raw_log}`",
    ):
        with pytest.raises(PySparkException):
            sql(statement)
    assert len(_values(connector, raw_log)) == 10
