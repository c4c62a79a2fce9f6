"""Schemas of logs without Spark: their text, their Arrow form and their names, compared with PySpark's own."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CalendarIntervalType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    UserDefinedType,
    VarcharType,
    VariantType,
    YearMonthIntervalType,
)

from bk_spark.datasource.entries.schemas import columns_of, schema_of_json, spark_schema
from bk_spark.log.entries.arrow_types import arrow_schema, schema_of_arrow
from bk_spark.log.entries.columns import ArrayOf, Atomic, Column, MapOf, Schema, Struct, stored_schema
from bk_spark.log.entries.schema_text import parse_schema, schema_text
from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError


class _Point(UserDefinedType):
    """A type of a user's."""

    @classmethod
    def sqlType(cls) -> DataType:  # noqa: N802 (Spark's)
        return ArrayType(DoubleType(), False)

    @classmethod
    def module(cls) -> str:
        return __name__

    @classmethod
    def scalaUDT(cls) -> str:  # noqa: N802 (Spark's)
        return ""


#: Every type that Spark exchanges in Arrow, and some in others.
CARRIED = [
    BooleanType(),
    ByteType(),
    ShortType(),
    IntegerType(),
    LongType(),
    FloatType(),
    DoubleType(),
    DecimalType(),
    DecimalType(38, 18),
    DecimalType(5, 0),
    StringType(),
    StringType("UNICODE_CI"),
    BinaryType(),
    DateType(),
    TimestampType(),
    TimestampNTZType(),
    TimeType(),
    TimeType(3),
    DayTimeIntervalType(),
    DayTimeIntervalType(0, 1),
    DayTimeIntervalType(2, 2),
    NullType(),
    VariantType(),
    ArrayType(LongType()),
    ArrayType(StringType("UNICODE"), False),
    MapType(StringType(), IntegerType(), False),
    MapType(StringType("UTF8_LCASE"), ArrayType(StringType("UNICODE"))),
    StructType([StructField("a", LongType(), False), StructField("b", MapType(ShortType(), StructType([])))]),
    ArrayType(StructType([StructField("s", StringType("UNICODE"), True, {"comment": "it is ✓"})])),
    _Point(),
]
NOT_CARRIED = [
    VarcharType(5),
    CharType(7),
    YearMonthIntervalType(),
    CalendarIntervalType(),
    ArrayType(YearMonthIntervalType(0, 0)),
]


def _one(data_type: DataType, nullable: bool = True) -> StructType:
    return StructType([StructField("c", data_type, nullable, {"comment": "a comment"})])


@pytest.mark.parametrize("data_type", [*CARRIED, *NOT_CARRIED], ids=lambda t: str(t.simpleString()))
class TestEachType:
    def test_its_text_is_sparks(self, data_type: DataType) -> None:
        text = _one(data_type).json()
        assert schema_text(parse_schema(text)) == text
        assert parse_schema(schema_text(parse_schema(text))) == parse_schema(text)

    def test_spark_gets_it_back(self, data_type: DataType) -> None:
        assert spark_schema(columns_of(_one(data_type))) == _one(data_type)


@pytest.mark.parametrize("data_type", [*CARRIED, *NOT_CARRIED], ids=lambda t: str(t.simpleString()))
def test_its_name_is_sparks(data_type: DataType) -> None:
    if isinstance(data_type, _Point):
        # Spark's says the same of all types of users.
        assert columns_of(_one(data_type)).simple == f"struct<c:udt<{__name__}._Point:array<double>>>"
        return
    assert columns_of(_one(data_type)).simple == _one(data_type).simpleString()


@pytest.mark.parametrize(
    ("data_type", "nullable"),
    [(one, nullable) for one in CARRIED for nullable in (True, False) if nullable or one != NullType()],
    ids=str,
)
def test_its_arrow_form_is_sparks(data_type: DataType, nullable: bool) -> None:
    schema = _one(data_type, nullable)
    assert arrow_schema(columns_of(schema)).equals(to_arrow_schema(schema, timezone="UTC"), check_metadata=True)


def test_nothing_but_nulls_that_may_not_be_null_is_refused() -> None:
    for column_type in (Atomic("void"), ArrayOf(Atomic("void"), False), MapOf(Atomic("void"), Atomic("long"))):
        with pytest.raises(InvalidArgumentError, match="column c has type .*void.*, which Arrow cannot carry"):
            arrow_schema(Struct((Column("c", column_type, False),)))


@pytest.mark.parametrize("data_type", NOT_CARRIED, ids=lambda t: str(t.simpleString()))
def test_a_type_without_an_arrow_form_is_named(data_type: DataType) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        arrow_schema(columns_of(StructType([StructField("fine", LongType()), StructField("odd", data_type)])))
    assert f"column odd has type {data_type.simpleString()}, which Arrow cannot carry here" in str(raised.value)


@pytest.mark.parametrize("name", ["quaternion", "decimal(99,0)", "decimal(0,0)", "decimal(" + "9" * 5000 + ",0)"])
def test_a_type_of_another_spark_is_kept_until_its_arrow_form_is_needed(name: str) -> None:
    text = json.dumps({"type": "struct", "fields": [{"name": "c", "type": name}]})
    assert parse_schema(text) == Struct((Column("c", Atomic(name)),))
    with pytest.raises(InvalidArgumentError, match="column c has type .* which Arrow cannot carry"):
        arrow_schema(parse_schema(text))


def _back(*types: pa.DataType) -> Schema:
    return schema_of_arrow(pa.schema([(f"c{n}", one) for n, one in enumerate(types)]))


def _names(*types: pa.DataType) -> list[str]:
    return [one.type.simple for one in _back(*types).fields]


@pytest.mark.parametrize("data_type", CARRIED, ids=lambda t: str(t.simpleString()))
def test_spark_reads_what_an_arrow_schema_becomes(data_type: DataType) -> None:
    """A log that is made from an Arrow table has a schema of which Spark makes the same Arrow form."""
    arrow = arrow_schema(stored_schema(columns_of(_one(data_type))))
    made = schema_of_json(schema_text(schema_of_arrow(arrow)))
    assert to_arrow_schema(made, timezone="UTC").equals(arrow)


def test_arrow_types_that_spark_lacks_become_those_with_the_same_values() -> None:
    assert _names(
        pa.large_string(), pa.string_view(), pa.large_binary(), pa.binary(5), pa.dictionary(pa.int8(), pa.string())
    ) == ["string", "string", "binary", "binary", "string"]
    assert _names(
        pa.large_list(pa.int64()), pa.list_(pa.int8(), 3), pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("s")
    ) == ["array<bigint>", "array<tinyint>", "timestamp", "timestamp_ntz"]
    assert _names(pa.time32("ms"), pa.duration("ns"), pa.decimal128(9, 3), pa.null()) == [
        "time(6)",
        "interval day to second",
        "decimal(9,3)",
        "void",
    ]


@pytest.mark.parametrize(
    "found", [pa.uint64(), pa.float16(), pa.date64(), pa.month_day_nano_interval(), pa.list_(pa.uint8())], ids=str
)
def test_an_arrow_type_without_one_of_sparks_is_named(found: pa.DataType) -> None:
    with pytest.raises(InvalidArgumentError, match="column c1 has Arrow type .*, which Spark does not have: cast"):
        _back(pa.int64(), found)


@pytest.mark.parametrize(
    "stored",
    [
        "[]",
        "7",
        '"long"',
        '{"a": 1}',
        '{"type": "struct", "fields": [1]}',
        '{"type": "struct", "fields": [{"name": 1, "type": "long"}]}',
        '{"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": "no"}]}',
        '{"type": "struct", "fields": [{"name": "a", "type": "long", "metadata": [1]}]}',
        '{"type": "struct", "fields": [{"name": "a", "type": "string", "metadata": {"__COLLATIONS": {"a": 1}}}]}',
        '{"type": "array", "elementType": "long"}',
        '{"type": "list"}',
        "{",
        "[" * 100_000,
    ],
    ids=lambda one: one[:60],
)
def test_a_stored_schema_that_is_none_is_refused(stored: str) -> None:
    with pytest.raises(MetadataFormatError, match="schema in the log's settings is not one of Spark's"):
        parse_schema(stored)
