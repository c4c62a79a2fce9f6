"""Values in Avro, as bare datums of the schema that they were written with. Source: docs/design/pulsar.md §2.9.

Needs the package fastavro, of the extra ``pulsar``. Values become Python's objects on their way to Arrow: Avro's
encoding has no offsets that would allow more.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bk_spark.protocol.arrays import Bools
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.pulsar.columns import TIME

_PRIMITIVES: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
#: Type of the column, and Arrow's type of the number that Avro stores.
_LOGICAL: Final = {
    ("int", "date"): (pa.date32(), pa.date32()),
    ("long", "timestamp-millis"): (TIME, pa.timestamp("ms", tz="UTC")),
    ("long", "timestamp-micros"): (TIME, TIME),
    ("long", "local-timestamp-millis"): (pa.timestamp("us"), pa.timestamp("ms")),
    ("long", "local-timestamp-micros"): (pa.timestamp("us"), pa.timestamp("us")),
}
_MAX_PRECISION: Final = 38
_MAX_DEPTH: Final = 64
#: Definitions that are kept parsed.
_KEPT_DEFINITIONS: Final = 64
_REMEDY: Final = "read value as bytes, and decode it with from_avro or in Python"


def avro_type(definition: bytes) -> pa.DataType:
    """Return the type of a column of values of a schema. Raises InvalidArgumentError if it has none."""
    return _parsed(definition).column_type


def decode_avro(written: bytes, read: bytes, values: pa.BinaryArray) -> tuple[pa.Array, Bools]:
    """Decode a column.

    Parameters
    ----------
    written, read
        The definitions of the schema that the values were written with, and of the one to read them as.
    values
        The encoded values.

    Returns
    -------
    tuple
        The values, and which ones do not have the form of the schema; these are null.

    Raises
    ------
    InvalidArgumentError
        If a definition is wrong, or the package for Avro is missing.
    """
    decode, target = _reader(written, read)
    found: list[Any] = []
    wrong = np.zeros(len(values), np.bool_)
    for row, value in enumerate(values.to_pylist()):
        if value is None:
            found.append(None)
            continue
        stream = io.BytesIO(value)
        try:
            one = decode(stream)
            if stream.tell() != len(value):
                raise ValueError("bytes are left")
        except Exception:  # fastavro raises whatever its code meets: EOFError, IndexError, ValueError, ...
            one, wrong[row] = None, True
        found.append(one)
    try:
        return pa.array(found, target.stored_type).cast(target.column_type), wrong
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return _one_by_one(found, target, wrong), wrong


def _one_by_one(found: list[Any], target: _Definition, wrong: Bools) -> pa.Array:
    """Make a column of which some values do not fit their types, such as a time in the year 300000."""
    parts = []
    for row, value in enumerate(found):
        try:
            parts.append(pa.array([value], target.stored_type).cast(target.column_type))
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            wrong[row] = True
            parts.append(pa.nulls(1, target.column_type))
    return pa.concat_arrays(parts)


class _Definition:
    """A schema: its types in Arrow, and the definition without logical types that Arrow makes of the numbers."""

    def __init__(self, definition: bytes) -> None:
        try:
            found = json.loads(definition)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"the topic's schema is not an Avro schema: {_REMEDY}") from error
        self._types: dict[str, tuple[pa.DataType, pa.DataType, bool] | None] = {}
        self.column_type, self.stored_type, _ = self._type(found, "", "value", _MAX_DEPTH)
        self.schema = found

    def _type(self, found: Any, namespace: str, where: str, depth: int) -> tuple[pa.DataType, pa.DataType, bool]:
        """Return the type of a column, the type as Avro stores it, and whether a value may have no bytes at all."""
        if not depth:
            raise _refusal(where, "nests too deep")
        if isinstance(found, list):
            return self._union(found, namespace, where, depth)
        if isinstance(found, str):
            if found in _PRIMITIVES:
                return _PRIMITIVES[found], _PRIMITIVES[found], found == "null"
            return self._named(found, namespace, where)
        if not isinstance(found, dict) or "type" not in found:
            raise _refusal(where, "is not an Avro schema")
        kind = found["type"]
        if not isinstance(kind, str):
            return self._type(kind, namespace, where, depth - 1)
        if found.get("logicalType") == "decimal" and kind in ("bytes", "fixed"):
            return self._decimal(found, namespace, where)
        logical = _LOGICAL.get((kind, str(found.pop("logicalType", None))))
        if logical is not None:
            return *logical, False
        if kind in ("record", "error"):
            return self._record(found, namespace, where, depth)
        if kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            item = self._type(found.get(inner), namespace, f"{where}[]", depth - 1)
            if kind == "array" and item[2]:
                # A few bytes could claim any number of them.
                raise _refusal(where, "is an array of values without bytes")
            column, stored = (pa.list_(one) if kind == "array" else pa.map_(pa.string(), one) for one in item[:2])
            return column, stored, False
        if kind == "enum":
            return self._known(found, namespace, (pa.string(), pa.string(), False))
        if kind == "fixed":
            return self._known(found, namespace, (pa.binary(), pa.binary(), not found.get("size")))
        return self._type(kind, namespace, where, depth - 1)

    def _union(self, found: list[Any], namespace: str, where: str, depth: int) -> tuple[pa.DataType, pa.DataType, bool]:
        others = [one for one in found if one != "null"]
        if len(others) != 1:
            if found == ["null"]:
                return pa.null(), pa.null(), False
            raise _refusal(where, f"is a union of {len(others)} types")
        column, stored, _ = self._type(others[0], namespace, where, depth - 1)
        return column, stored, False

    def _record(
        self, found: dict[str, Any], namespace: str, where: str, depth: int
    ) -> tuple[pa.DataType, pa.DataType, bool]:
        name, inner = _full_name(found, namespace)
        self._types[name] = None
        fields = found.get("fields")
        if not isinstance(fields, list) or not all(isinstance(one, dict) and "name" in one for one in fields):
            raise _refusal(where, "is a record without fields")
        names = [str(one["name"]) for one in fields]
        types = [
            self._type(one.get("type"), inner, f"{where}.{field}", depth - 1)
            for field, one in zip(names, fields, strict=True)
        ]
        column, stored = (
            pa.struct([pa.field(field, one[which]) for field, one in zip(names, types, strict=True)])
            for which in (0, 1)
        )
        self._types[name] = column, stored, all(one[2] for one in types)
        return column, stored, all(one[2] for one in types)

    def _decimal(self, found: dict[str, Any], namespace: str, where: str) -> tuple[pa.DataType, pa.DataType, bool]:
        precision, scale = found.get("precision"), found.get("scale", 0)
        if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision <= _MAX_PRECISION:
            raise _refusal(where, f"is a decimal of more than {_MAX_PRECISION} digits")
        kind = pa.decimal128(precision, scale)
        if found["type"] == "fixed":
            return self._known(found, namespace, (kind, kind, False))
        return kind, kind, False

    def _known(
        self, found: dict[str, Any], namespace: str, types: tuple[pa.DataType, pa.DataType, bool]
    ) -> tuple[pa.DataType, pa.DataType, bool]:
        self._types[_full_name(found, namespace)[0]] = types
        return types

    def _named(self, name: str, namespace: str, where: str) -> tuple[pa.DataType, pa.DataType, bool]:
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        key = full if full in self._types else name
        if key not in self._types:
            raise _refusal(where, f"has the unknown type {name[:100]}")
        types = self._types[key]
        if types is None:
            raise _refusal(where, f"contains itself, as {name[:100]}")
        return types


def _full_name(found: dict[str, Any], namespace: str) -> tuple[str, str]:
    """Return the full name of a named type, and the namespace within it."""
    name, space = str(found.get("name", "")), found.get("namespace", namespace)
    if "." in name:
        return name, name.rpartition(".")[0]
    return (f"{space}.{name}" if space else name), str(space)


def _refusal(where: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"the topic's Avro schema has no type of Spark: {where[:200]} {why}; {_REMEDY}")


def _renamed(reader: _Definition, writer: _Definition) -> Any:
    """Return the reader's schema with the writer's name as an alias: versions may come from other classes."""
    if not (isinstance(reader.schema, dict) and isinstance(writer.schema, dict) and "name" in writer.schema):
        return reader.schema
    name, _ = _full_name(writer.schema, "")
    return {**reader.schema, "aliases": [*reader.schema.get("aliases", ()), name]}


@lru_cache(_KEPT_DEFINITIONS)
def _parsed(definition: bytes) -> _Definition:
    return _Definition(definition)


@lru_cache(_KEPT_DEFINITIONS)
def _reader(written: bytes, read: bytes) -> tuple[Callable[[io.BytesIO], Any], _Definition]:
    """Return what decodes one value, and the definition of the column."""
    try:
        import fastavro
        from fastavro.schema import SchemaParseException
    except ImportError as error:
        raise InvalidArgumentError(
            'values in Avro need the package fastavro: pip install "bk-spark[pulsar]" where Spark\'s workers run, or '
            "read value as bytes"
        ) from error
    target = _parsed(read)
    try:
        writer_schema = fastavro.parse_schema(_parsed(written).schema)
        reader_schema = writer_schema if written == read else fastavro.parse_schema(_renamed(target, _parsed(written)))
    except (SchemaParseException, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidArgumentError(
            f"the topic's schema is not an Avro schema: {str(error)[:200]}; {_REMEDY}"
        ) from error
    return lambda stream: fastavro.schemaless_reader(stream, writer_schema, reader_schema), target
