"""Schemas of reads and writes, and their Arrow equivalents."""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
)

from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError

VALUE: Final = "value"
#: Columns that describe an entry rather than its content.
METADATA_FIELDS: Final = (
    StructField("log", StringType()),
    StructField("offset", LongType()),
    StructField("ledgerId", LongType()),
    StructField("entryId", LongType()),
    StructField("timestamp", TimestampType()),
)
METADATA_NAMES: Final = frozenset(one.name for one in METADATA_FIELDS)
RAW_SCHEMA: Final = StructType([StructField(VALUE, BinaryType()), *METADATA_FIELDS])


def schema_of_json(schema_json: str | None) -> StructType:
    """Parse the schema in a log's settings. Raises MetadataFormatError."""
    try:
        schema = StructType.fromJson(json.loads(schema_json or "{}"))
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        PySparkException,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        # fromJson looks at nothing before it uses it.
        raise MetadataFormatError(
            f"the schema in the log's settings is not one of Spark's: {type(error).__name__} {str(error)[:200]}"
        ) from error
    return schema


def stored_schema(schema: StructType) -> StructType:
    """Return ``schema`` as a log stores it: everything is nullable, including elements and fields.

    Nullability in one write says nothing about the next write. If a schema declares non-null data that contains
    nulls, Spark computes wrong results.
    """
    return StructType([_nullable_field(one) for one in schema.fields])


def _nullable_field(one: StructField) -> StructField:
    return StructField(one.name, _nullable(one.dataType), True, one.metadata)


def _nullable(data_type: DataType) -> DataType:
    match data_type:
        case StructType():
            return StructType([_nullable_field(one) for one in data_type.fields])
        case ArrayType():
            return ArrayType(_nullable(data_type.elementType), True)
        case MapType():
            return MapType(_nullable(data_type.keyType), _nullable(data_type.valueType), True)
        case _:
            return data_type


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark exchanges ``schema`` with a data source (time zone UTC).

    Raises InvalidArgumentError naming a column whose type cannot be exchanged.
    """
    check_no_duplicates(schema)
    for one in schema.fields:
        try:
            to_arrow_schema(StructType([one]), timezone="UTC", error_on_duplicated_field_names_in_struct=True)
        except (PySparkException, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"column {one.name} has type {one.dataType.simpleString()}, which Arrow cannot carry here; "
                "cast or drop it"
            ) from error
    return to_arrow_schema(schema, timezone="UTC")


def check_has_columns(schema: StructType) -> None:
    """Raise InvalidArgumentError if there are no columns: such rows have no bytes, so their number would be lost."""
    if not schema.fields:
        raise InvalidArgumentError("the schema has no columns, so that there are no rows to see: select one at least")


def check_no_duplicates(schema: StructType) -> None:
    """Raise InvalidArgumentError naming a column that ``schema`` has twice."""
    names = schema.fieldNames()
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgumentError(f"there are {names.count(name)} columns named {name}: rename or drop one")


def with_metadata(schema: StructType) -> StructType:
    """Return ``schema`` followed by the metadata columns. Raises InvalidArgumentError if names collide."""
    names = {name.lower() for name in schema.fieldNames()}
    for one in METADATA_FIELDS:
        if one.name.lower() in names:
            raise InvalidArgumentError(
                f"includeMetadata: the log has a column {one.name} of its own; read without includeMetadata"
            )
    return StructType([*schema.fields, *METADATA_FIELDS])


def check_raw_write(schema: StructType) -> None:
    """Raise InvalidArgumentError unless the only column is ``value``, binary or string."""
    check_no_duplicates(schema)
    names = schema.fieldNames()
    if VALUE not in names:
        raise InvalidArgumentError(
            f"entryFormat raw needs a column named {VALUE} (binary or string), the data has "
            f"{', '.join(names) or 'none'}; select one AS value, or write with entryFormat arrow"
        )
    if len(names) > 1:
        others = ", ".join(name for name in names if name != VALUE)
        raise InvalidArgumentError(
            f"entryFormat raw writes only the column {VALUE}, the data also has {others}; drop them, or write with "
            "entryFormat arrow"
        )
    if not isinstance(schema[VALUE].dataType, BinaryType | StringType | VarcharType | CharType):
        raise InvalidArgumentError(
            f"column {VALUE} has type {schema[VALUE].dataType.simpleString()}; entryFormat raw takes binary or string"
        )


def check_raw_read(schema: StructType) -> None:
    """Raise InvalidArgumentError unless all columns are in RAW_SCHEMA; ``value`` may also be a string."""
    check_has_columns(schema)
    for one in schema.fields:
        if one.name not in RAW_SCHEMA.fieldNames():
            raise InvalidArgumentError(
                f"entryFormat raw has no column {one.name}; it has {', '.join(RAW_SCHEMA.fieldNames())}: mend the "
                "schema given"
            )
        allowed: tuple[DataType, ...] = (RAW_SCHEMA[one.name].dataType,)
        if one.name == VALUE:
            allowed = (BinaryType(), StringType())
        if one.dataType not in allowed:
            raise InvalidArgumentError(
                f"column {one.name} can be read as {' or '.join(t.simpleString() for t in allowed)}, "
                f"not as {one.dataType.simpleString()}"
            )


def check_arrow_read(wanted: StructType, stored: StructType, owner: str) -> None:
    """Raise InvalidArgumentError unless each wanted column is a stored or metadata column of the same type.

    ``owner`` is for error texts.
    """
    check_has_columns(wanted)
    known = {one.name: one.dataType for one in (*METADATA_FIELDS, *stored.fields)}
    for one in wanted.fields:
        if one.name not in known:
            raise InvalidArgumentError(
                f"{owner} has no column {one.name}; it has {', '.join(stored.fieldNames())}: mend the schema given"
            )
        if not _same_type(known[one.name], one.dataType):
            raise InvalidArgumentError(
                f"column {one.name} of {owner} is {known[one.name].simpleString()} and cannot be read as "
                f"{one.dataType.simpleString()}: leave the schema out, and cast what is read"
            )


def check_same_columns(written: StructType, stored: StructType, log: str) -> None:
    """Raise InvalidArgumentError, naming the first difference, unless the data has exactly the log's columns."""
    check_no_duplicates(written)
    for one in written.fields:
        if one.name not in stored.fieldNames():
            raise InvalidArgumentError(
                f"log {log} has no column {one.name}; it has {', '.join(stored.fieldNames())}: drop or rename it"
            )
        fixed = stored[one.name].dataType
        if not _same_type(fixed, one.dataType):
            raise InvalidArgumentError(
                f"column {one.name} is {one.dataType.simpleString()} here and {fixed.simpleString()} in log "
                f"{log}: cast it"
            )
    for name in stored.fieldNames():
        if name not in written.fieldNames():
            raise InvalidArgumentError(
                f"column {name} of log {log} is missing from the data: add it, for example as a null of type "
                f"{stored[name].dataType.simpleString()}"
            )


def check_same_schema(one: StructType, name: str, other: StructType, other_name: str, kind: str = "log") -> None:
    """Check that two logs (or other ``kind``) to be read together have the same columns, in any order.

    Raises InvalidArgumentError naming the first column that differs.
    """
    for (has, owner), (lacks, lacking) in (((one, name), (other, other_name)), ((other, other_name), (one, name))):
        for column in has.fields:
            if column.name not in lacks.fieldNames():
                raise InvalidArgumentError(
                    f"{kind} {owner} has a column {column.name}, {kind} {lacking} has none: read them apart, or give "
                    "a schema() with columns that both have"
                )
            there = lacks[column.name].dataType
            if not _same_type(column.dataType, there):
                raise InvalidArgumentError(
                    f"column {column.name} is {column.dataType.simpleString()} in {kind} {owner} and "
                    f"{there.simpleString()} in {kind} {lacking}: read them apart, or give a schema() without it"
                )


def _same_type(one: DataType, other: DataType) -> bool:
    # Not ==, which also compares nullability; that does not matter here.
    return one.simpleString() == other.simpleString()
