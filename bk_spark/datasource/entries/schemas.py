"""Schemas of reads and writes as Spark has them. Their rules are in :mod:`bk_spark.log.entries`."""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from bk_spark.datasource.pyspark_api import spark_arrow_schema
from bk_spark.log.entries import columns, schema_checks
from bk_spark.log.entries.columns import Schema, Struct
from bk_spark.log.entries.schema_text import parse_schema, schema_text
from bk_spark.log.formats.schema_merge import ANY_CASE, Names
from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError


def columns_of(schema: StructType) -> Schema:
    """Return Spark's schema in our form."""
    return parse_schema(schema.json())


def spark_schema(schema: Schema) -> StructType:
    """Return our form of a schema as Spark's. Raises MetadataFormatError for types that this Spark does not have."""
    return schema_of_json(schema_text(schema))


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


RAW_SCHEMA: Final = spark_schema(schema_checks.RAW_SCHEMA)
#: Columns that describe an entry rather than its content.
METADATA_FIELDS: Final = tuple(spark_schema(Struct(schema_checks.METADATA_COLUMNS)).fields)


def stored_schema(schema: StructType) -> StructType:
    """See :func:`bk_spark.log.entries.columns.stored_schema`."""
    return spark_schema(columns.stored_schema(columns_of(schema)))


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark exchanges ``schema`` with a data source (time zone UTC).

    Raises InvalidArgumentError naming a column whose type cannot be exchanged.
    """
    schema_checks.check_no_duplicates(columns_of(schema))
    for one in schema.fields:
        try:
            spark_arrow_schema(StructType([one]))
        except (PySparkException, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"column {one.name} has type {one.dataType.simpleString()}, which Arrow cannot carry here; "
                "cast or drop it"
            ) from error
    return spark_arrow_schema(schema)


def with_metadata(schema: StructType) -> StructType:
    """Return ``schema`` followed by the metadata columns. Raises InvalidArgumentError if names collide."""
    schema_checks.with_metadata(columns_of(schema))
    return StructType([*schema.fields, *METADATA_FIELDS])


def check_has_columns(schema: StructType) -> None:
    """See :func:`bk_spark.log.entries.schema_checks.check_has_columns`."""
    schema_checks.check_has_columns(columns_of(schema))


def check_raw_write(schema: StructType) -> None:
    """See :func:`bk_spark.log.entries.schema_checks.check_raw_write`."""
    schema_checks.check_raw_write(columns_of(schema))


def check_raw_read(schema: StructType) -> None:
    """See :func:`bk_spark.log.entries.schema_checks.check_raw_read`."""
    schema_checks.check_raw_read(columns_of(schema))


def check_arrow_read(
    wanted: StructType, stored: StructType, owner: str, names: Names = ANY_CASE, *, include_metadata: bool = False
) -> None:
    """See :func:`bk_spark.log.entries.schema_checks.check_arrow_read`."""
    schema_checks.check_arrow_read(
        columns_of(wanted), columns_of(stored), owner, names, include_metadata=include_metadata
    )


def check_same_columns(written: StructType, stored: StructType, log: str) -> None:
    """See :func:`bk_spark.log.entries.schema_checks.check_same_columns`."""
    schema_checks.check_same_columns(columns_of(written), columns_of(stored), log)


def check_same_schema(one: StructType, name: str, other: StructType, other_name: str, kind: str = "log") -> None:
    """See :func:`bk_spark.log.entries.schema_checks.check_same_schema`."""
    schema_checks.check_same_schema(columns_of(one), name, columns_of(other), other_name, kind)
