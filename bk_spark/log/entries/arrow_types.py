"""The Arrow form of columns: the one in which Spark exchanges them with data sources. Times are UTC.

Types of Arrow that have no Spark type of their own, such as large strings and dictionaries, become the type that holds
the same values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from bk_spark.log.entries.columns import ArrayOf, Atomic, Column, ColumnType, MapOf, Schema, Struct, UserDefined
from bk_spark.log.entries.schema_checks import check_no_duplicates
from bk_spark.log.entries.schema_text import COLLATIONS
from bk_spark.protocol.errors import InvalidArgumentError

#: Where Spark keeps a field's metadata in Arrow.
_METADATA_KEY: Final = b"SPARK::metadata::json"
_DECIMAL: Final = re.compile(r"decimal\(\s*(\d{1,9})\s*,\s*(-?\d{1,9})\s*\)")
_MAX_DECIMAL_DIGITS: Final = 38

_VARIANT: Final = pa.struct(
    [pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False, {b"variant": b"true"})]
)
_PLACE: Final = pa.struct([pa.field("srid", pa.int32(), False), pa.field("wkb", pa.binary(), False)])
_ATOMIC: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal": pa.decimal128(10, 0),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
    "variant": _VARIANT,
    "geometry": _PLACE,
    "geography": _PLACE,
}
#: Names with parameters that the Arrow form lacks.
_PARAMETRIC: Final = (
    (re.compile(r"string collate \w+"), pa.string()),
    (re.compile(r"time\(\s*\d+\s*\)"), pa.time64("ns")),
    (re.compile(r"interval (day|hour|minute|second)( to (hour|minute|second))?"), pa.duration("us")),
    (re.compile(r"geometry\(.*\)|geography\(.*\)"), _PLACE),
)
_is: Final = pa.types
#: Atomic types by what tells their Arrow types.
_OF_ARROW: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (_is.is_boolean, "boolean"),
    (_is.is_int8, "byte"),
    (_is.is_int16, "short"),
    (_is.is_int32, "integer"),
    (_is.is_int64, "long"),
    (_is.is_float32, "float"),
    (_is.is_float64, "double"),
    (lambda one: _is.is_string(one) or _is.is_large_string(one) or _is.is_string_view(one), "string"),
    (_is.is_binary, "binary"),
    (lambda one: _is.is_large_binary(one) or _is.is_binary_view(one) or _is.is_fixed_size_binary(one), "binary"),
    (_is.is_date32, "date"),
    (_is.is_time, "time(6)"),
    (_is.is_duration, "interval day to second"),
    (_is.is_null, "void"),
)


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow form of ``schema``. Raises InvalidArgumentError naming a column whose type has none."""
    check_no_duplicates(schema)
    return pa.schema([_field(one, one) for one in schema.fields])


def schema_of_arrow(schema: pa.Schema) -> Schema:
    """Return the columns of an Arrow schema. Raises InvalidArgumentError naming one whose type Spark does not have."""
    return Struct(tuple(_column(one, one.name) for one in schema))


def _field(one: Column, column: Column) -> pa.Field:
    metadata = {key: value for key, value in one.metadata.items() if key != COLLATIONS}
    kept = {_METADATA_KEY: json.dumps(metadata).encode()} if metadata else None
    return _part(one.name, one.type, one.nullable, column, kept)


def _part(
    name: str, column_type: ColumnType, nullable: bool, column: Column, metadata: Mapping[bytes, bytes] | None = None
) -> pa.Field:
    found = _arrow_type(column_type, column)
    if pa.types.is_null(found) and not nullable:
        raise _cannot_carry(column)
    return pa.field(name, found, nullable, metadata)


def _arrow_type(column_type: ColumnType, column: Column) -> pa.DataType:
    match column_type:
        case Atomic(name):
            found = _atomic(name)
            if found is None:
                raise _cannot_carry(column)
            return found
        case ArrayOf(element, contains_null):
            return pa.list_(_part("element", element, contains_null, column))
        case MapOf(key, value, contains_null):
            return pa.map_(_part("key", key, False, column), _part("value", value, contains_null, column))
        case UserDefined(stored):
            return _arrow_type(stored, column)
        case Struct(fields):
            if len(set(column_type.names)) < len(fields):
                raise _cannot_carry(column)
            return pa.struct([_field(one, column) for one in fields])


def _atomic(name: str) -> pa.DataType | None:
    decimal = _DECIMAL.fullmatch(name)
    if decimal is not None:
        digits, scale = int(decimal[1]), int(decimal[2])
        return pa.decimal128(digits, scale) if 1 <= digits <= _MAX_DECIMAL_DIGITS else None
    if name in _ATOMIC:
        return _ATOMIC[name]
    return next((found for pattern, found in _PARAMETRIC if pattern.fullmatch(name)), None)


def _cannot_carry(column: Column) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"column {column.name} has type {column.type.simple}, which Arrow cannot carry here; cast or drop it"
    )


def _column(one: pa.Field, column: str) -> Column:
    metadata: dict[str, Any] = {}
    if one.metadata is not None and _METADATA_KEY in one.metadata:
        metadata = json.loads(one.metadata[_METADATA_KEY])
    return Column(one.name, _column_type(one.type, column), one.nullable, metadata)


def _column_type(found: pa.DataType, column: str) -> ColumnType:
    if _is.is_dictionary(found):
        return _column_type(found.value_type, column)
    if _is.is_timestamp(found):
        return Atomic("timestamp_ntz" if found.tz is None else "timestamp")
    if _is.is_decimal(found) and found.precision <= _MAX_DECIMAL_DIGITS:
        return Atomic(f"decimal({found.precision},{found.scale})")
    if _is.is_map(found):
        key, value = _column_type(found.key_type, column), _column_type(found.item_type, column)
        return MapOf(key, value, found.item_field.nullable)
    if _is.is_list(found) or _is.is_large_list(found) or _is.is_fixed_size_list(found):
        return ArrayOf(_column_type(found.value_type, column), found.value_field.nullable)
    if _is.is_struct(found):
        if found.equals(_VARIANT, check_metadata=True):
            return Atomic("variant")
        return Struct(tuple(_column(one, column) for one in found))
    for tells, name in _OF_ARROW:
        if tells(found):
            return Atomic(name)
    raise InvalidArgumentError(f"column {column} has Arrow type {found}, which Spark does not have: cast or drop it")
