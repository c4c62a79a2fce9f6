"""Schemas of reads and writes, and what is said of those that do not fit."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
    YearMonthIntervalType,
)

from bk_spark.datasource.entries.schemas import (
    METADATA_FIELDS,
    RAW_SCHEMA,
    arrow_schema,
    check_arrow_read,
    check_has_columns,
    check_raw_read,
    check_raw_write,
    check_same_columns,
    columns_of,
    schema_of_json,
    stored_schema,
    with_metadata,
)
from bk_spark.datasource.options.parse import parse_options
from bk_spark.datasource.pulsar.topic_schemas import topic_schema
from bk_spark.log.entries import schema_checks
from bk_spark.log.formats.schema_merge import EXACT
from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError
from bk_spark.protocol.pulsar.columns import COLUMNS

LONG, TEXT = LongType(), StringType()


def _schema(*fields: tuple[str, DataType], nullable: bool = True) -> StructType:
    return StructType([StructField(name, data_type, nullable) for name, data_type in fields])


STORED = _schema(("id", LONG), ("text", TEXT), ("tags", ArrayType(TEXT)))


class TestStored:
    def test_all_of_it_may_be_null(self) -> None:
        strict = _schema(
            ("id", LONG),
            ("s", _schema(("a", LONG), ("l", ArrayType(LONG, False)), nullable=False)),
            ("m", MapType(TEXT, _schema(("b", TEXT), nullable=False), False)),
            nullable=False,
        )
        loose = _schema(
            ("id", LONG),
            ("s", _schema(("a", LONG), ("l", ArrayType(LONG, True)))),
            ("m", MapType(TEXT, _schema(("b", TEXT)), True)),
        )
        assert stored_schema(strict) == loose
        assert stored_schema(loose) == loose

    def test_metadata_and_json_are_kept(self) -> None:
        schema = StructType([StructField("c", TEXT, True, {"comment": "a comment"})])
        assert schema_of_json(stored_schema(schema).json()) == schema


class TestArrow:
    def test_timestamps_are_utc(self) -> None:
        assert arrow_schema(_schema(("t", TimestampType()))).field("t").type == pa.timestamp("us", "UTC")

    @pytest.mark.parametrize(
        "data_type",
        [YearMonthIntervalType(), ArrayType(YearMonthIntervalType()), _schema(("a", LONG), ("a", LONG))],
        ids=lambda t: str(t.simpleString()),
    )
    def test_a_type_that_cannot_be_carried_is_named(self, data_type: DataType) -> None:
        with pytest.raises(InvalidArgumentError) as raised:
            arrow_schema(_schema(("fine", LONG), ("odd", data_type)))
        assert f"column odd has type {data_type.simpleString()}" in str(raised.value)
        assert "cast or drop it" in str(raised.value)

    def test_a_name_twice(self) -> None:
        with pytest.raises(InvalidArgumentError, match="2 columns named a: rename or drop one"):
            arrow_schema(_schema(("a", LONG), ("b", LONG), ("a", TEXT)))


class TestMetadata:
    def test_follows_the_written_columns(self) -> None:
        assert with_metadata(STORED).fieldNames() == ["id", "text", "tags", *(one.name for one in METADATA_FIELDS)]

    @pytest.mark.parametrize("name", ["offset", "LEDGERID"])
    def test_does_not_hide_a_column(self, name: str) -> None:
        with pytest.raises(InvalidArgumentError, match="read without includeMetadata"):
            with_metadata(_schema((name, LONG)))


class TestRawWrite:
    @pytest.mark.parametrize("data_type", [BinaryType(), TEXT, VarcharType(5), CharType(5)], ids=str)
    def test_takes_bytes_and_text(self, data_type: DataType) -> None:
        check_raw_write(_schema(("value", data_type)))

    @pytest.mark.parametrize(
        ("schema", "text"),
        [
            (_schema(("id", LONG)), "needs a column named value (binary or string), the data has id; select one AS"),
            (_schema(("Value", TEXT)), "the data has Value"),
            (_schema(), "the data has none"),
            (_schema(("value", TEXT), ("key", TEXT)), "also has key; drop them, or write with entryFormat arrow"),
            (_schema(("value", LONG)), "column value has type bigint; entryFormat raw takes binary or string"),
            (_schema(("value", TEXT), ("value", TEXT)), "2 columns named value"),
        ],
    )
    def test_refuses_the_rest(self, schema: StructType, text: str) -> None:
        with pytest.raises(InvalidArgumentError) as raised:
            check_raw_write(schema)
        assert text in str(raised.value)


class TestRawRead:
    @pytest.mark.parametrize(
        "schema",
        [RAW_SCHEMA, _schema(("value", TEXT)), _schema(("offset", LONG), ("value", BinaryType()))],
        ids=lambda s: str(s.simpleString()),
    )
    def test_takes_any_of_its_columns(self, schema: StructType) -> None:
        check_raw_read(schema)

    @pytest.mark.parametrize(
        ("schema", "text"),
        [
            (_schema(("valu", TEXT)), "no column valu; it has value, log, offset, ledgerId, entryId, timestamp"),
            (_schema(("value", LONG)), "column value can be read as binary or string, not as bigint"),
            (_schema(("offset", IntegerType())), "column offset can be read as bigint, not as int"),
        ],
    )
    def test_refuses_the_rest(self, schema: StructType, text: str) -> None:
        with pytest.raises(InvalidArgumentError) as raised:
            check_raw_read(schema)
        assert text in str(raised.value)


class TestArrowRead:
    @pytest.mark.parametrize(
        "schema",
        [
            STORED,
            _schema(("tags", ArrayType(TEXT, False)), ("id", LONG), nullable=False),
            _schema(("id", LONG), ("offset", LONG), ("timestamp", TimestampType())),
        ],
        ids=lambda s: str(s.simpleString()),
    )
    def test_takes_any_of_its_columns(self, schema: StructType) -> None:
        check_arrow_read(schema, STORED, "log x")

    def test_types_may_be_narrower_or_wider_and_fields_fewer_in_any_order(self) -> None:
        place = StructType([StructField("lat", FloatType()), StructField("lon", FloatType())])
        stored = _schema(("id", LONG), ("place", place), ("price", DecimalType(10, 2)))
        wanted = StructType([StructField("lon", DoubleType()), StructField("lat", FloatType())])
        check_arrow_read(_schema(("ID", IntegerType()), ("place", wanted)), stored, "log x")
        check_arrow_read(
            _schema(("price", DecimalType(12, 4)), ("place", StructType([wanted["lat"]]))), stored, "log x"
        )
        check_arrow_read(_schema(("price", DecimalType(8, 3))), stored, "log x")
        with pytest.raises(InvalidArgumentError, match="column place of log x has no field alt; it has lat, lon:"):
            check_arrow_read(_schema(("place", StructType([StructField("alt", LONG)]))), stored, "log x")
        with pytest.raises(InvalidArgumentError, match="column place.lat of log x is float and cannot"):
            check_arrow_read(_schema(("place", StructType([StructField("lat", LONG)]))), stored, "log x")
        with pytest.raises(InvalidArgumentError, match="no column ID"):
            schema_checks.check_arrow_read(columns_of(_schema(("ID", LONG))), columns_of(stored), "log x", EXACT)

    def test_a_column_of_the_logs_own_goes_before_metadata(self) -> None:
        check_arrow_read(_schema(("offset", TEXT)), _schema(("offset", TEXT)), "log x")

    @pytest.mark.parametrize(
        ("schema", "text"),
        [
            (_schema(("no", LONG)), "log x has no column no; it has id, text, tags"),
            (_schema(("id", TEXT)), "column id of log x is bigint and cannot be read as string"),
            (_schema(("tags", ArrayType(LONG))), "column tags.element of log x is string and cannot be read as bigint"),
            (_schema(("tags", TEXT)), "column tags of log x is array<string> and cannot be read as string"),
            (_schema(("id", DoubleType())), "column id of log x is bigint and cannot be read as double"),
            (_schema(("timestamp", TEXT)), "column timestamp of log x is timestamp and cannot be read as string"),
        ],
    )
    def test_refuses_the_rest(self, schema: StructType, text: str) -> None:
        with pytest.raises(InvalidArgumentError) as raised:
            check_arrow_read(schema, STORED, "log x")
        assert text in str(raised.value)


class TestAppendingColumns:
    def test_order_and_nullability_may_differ(self) -> None:
        check_same_columns(
            _schema(("tags", ArrayType(TEXT, False)), ("text", TEXT), ("id", LONG), nullable=False), STORED, "x"
        )

    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            (
                [("id", LONG), ("text", TEXT)],
                "column tags of log x is missing from the data: add it, for example as a null",
            ),
            (
                [("id", LONG), ("txt", TEXT)],
                "log x has no column txt; it has id, text, tags: drop or rename it, or set the option mergeSchema",
            ),
            (
                [("id", IntegerType())],
                "column id is int here and bigint in log x: cast it, or set the option mergeSchema (merge_schema "
                "of Log.write) to true",
            ),
            ([("id", TEXT)], "column id is string here and bigint in log x: cast it"),
            ([("id", LONG), ("id", LONG)], "2 columns named id"),
        ],
    )
    def test_anything_else_is_refused(self, fields: list[tuple[str, DataType]], text: str) -> None:
        with pytest.raises(InvalidArgumentError) as raised:
            check_same_columns(_schema(*fields), STORED, "x")
        assert text in str(raised.value)


def test_a_schema_without_columns_is_refused_whoever_gives_it() -> None:
    """Its rows could not be counted in entries: written rows would read as none."""
    for check in (
        lambda: check_has_columns(StructType()),
        lambda: check_raw_read(StructType()),
        lambda: check_arrow_read(StructType(), STORED, "log x"),
    ):
        with pytest.raises(InvalidArgumentError, match="the schema has no columns.*select at least one"):
            check()


@pytest.mark.parametrize(
    "stored", ["[]", "7", '{"a": 1}', '{"type": "struct", "fields": [1]}', "{", "[" * 100_000], ids=lambda one: one[:20]
)
def test_a_stored_schema_that_is_none_is_refused(stored: str) -> None:
    with pytest.raises(MetadataFormatError, match="schema in the log's settings is not one of Spark's"):
        schema_of_json(stored)


def test_a_topic_has_the_column_of_encryption_where_it_may_not_be_null() -> None:
    where = {"metadataServiceUri": "zk+hierarchical://127.0.0.1/ledgers", "pulsarTopic": "persistent://a/b/c"}
    names = {
        choice: topic_schema(
            parse_options(where | {"pulsarEncrypted": choice}, writing=False, streaming=False)
        ).fieldNames()
        for choice in ("fail", "skip", "raw")
    }
    assert names["raw"] == COLUMNS.names
    assert names["fail"] == names["skip"] == [name for name in COLUMNS.names if name != "__encryption"]
