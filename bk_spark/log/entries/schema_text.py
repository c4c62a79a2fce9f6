"""The text of a schema in a log's settings: Spark's JSON form of a struct, as ``StructType.json`` writes it.

::

    struct  {"type": "struct", "fields": [{"name": …, "type": …, "nullable": …, "metadata": {…}}, …]}
    array   {"type": "array", "elementType": …, "containsNull": …}
    map     {"type": "map", "keyType": …, "valueType": …, "valueContainsNull": …}
    udt     {"type": "udt", "class": …, "pyClass": …, "sqlType": …}
    others  a name, such as "long" or "decimal(10,2)"

Collations of strings are in the metadata of the field around them, under ``__COLLATIONS``: by the path of the string in
the field (``name``, ``name.element``, ``name.key``, ``name.value``) provider and name of the collation, with a dot
between.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from bk_spark.log.entries.columns import ArrayOf, Atomic, Column, ColumnType, MapOf, Schema, Struct, UserDefined
from bk_spark.protocol.errors import MetadataFormatError

#: The key of a field's metadata that belongs to the types, not to the user.
COLLATIONS: Final = "__COLLATIONS"
_STRING: Final = "string"
_COLLATED: Final = "string collate "


def parse_schema(text: str | None) -> Schema:
    """Parse the schema in a log's settings. Raises MetadataFormatError."""
    try:
        schema = _type_of(json.loads(text or "{}"), "", {})
        if not isinstance(schema, Struct):
            raise TypeError(f"it is {type(schema).__name__}, not a struct")
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise MetadataFormatError(
            f"the schema in the log's settings is not one of Spark's: {type(error).__name__} {str(error)[:200]}"
        ) from error
    return schema


def schema_text(schema: Schema) -> str:
    """Return the text of a schema, which :func:`parse_schema` parses."""
    return json.dumps(_json_of(schema), separators=(",", ":"), sort_keys=True)


def _type_of(found: Any, path: str, collations: Mapping[str, str]) -> ColumnType:
    """Raises TypeError, LookupError, ValueError."""
    if isinstance(found, str):
        if found == _STRING and path in collations:
            return Atomic(_COLLATED + collations[path].partition(".")[2])
        return Atomic(found)
    match _typed(found, "type", str):
        case "struct":
            return Struct(tuple(_column_of(one) for one in _typed(found, "fields", list)))
        case "array":
            element = _type_of(found["elementType"], f"{path}.element", collations)
            return ArrayOf(element, _typed(found, "containsNull", bool))
        case "map":
            key = _type_of(found["keyType"], f"{path}.key", collations)
            value = _type_of(found["valueType"], f"{path}.value", collations)
            return MapOf(key, value, _typed(found, "valueContainsNull", bool))
        case "udt":
            return UserDefined(_type_of(found["sqlType"], path, {}), found)
        case other:
            raise ValueError(f"there is no type {other!r}")


def _column_of(found: Any) -> Column:
    name = _typed(found, "name", str)
    metadata = found.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise TypeError(f"the metadata of {name!r} is {type(metadata).__name__}")
    collations = metadata.get(COLLATIONS) or {}
    if not all(isinstance(one, str) for one in collations.values()):
        raise TypeError(f"a collation of {name!r} is no text")
    nullable = _typed(found, "nullable", bool) if "nullable" in found else True
    return Column(name, _type_of(found["type"], name, collations), nullable, metadata)


def _typed(found: Any, key: str, kind: type[Any]) -> Any:
    value = found[key]
    if not isinstance(value, kind):
        raise TypeError(f"{key!r} is {type(value).__name__}")
    return value


def _json_of(column_type: ColumnType) -> Any:
    match column_type:
        case Atomic(name):
            # The collation is in the metadata of the field.
            return _STRING if name.startswith(_COLLATED) else name
        case ArrayOf(element, contains_null):
            return {"type": "array", "elementType": _json_of(element), "containsNull": contains_null}
        case MapOf(key, value, contains_null):
            return {
                "type": "map",
                "keyType": _json_of(key),
                "valueType": _json_of(value),
                "valueContainsNull": contains_null,
            }
        case UserDefined():
            return column_type.json
        case Struct(fields):
            return {
                "type": "struct",
                "fields": [
                    {"name": one.name, "type": _json_of(one.type), "nullable": one.nullable, "metadata": one.metadata}
                    for one in fields
                ],
            }
