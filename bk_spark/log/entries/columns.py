"""The columns of a log and their types. They are Spark's, under the names of its JSON form.

Types that this module does not know are kept by name: a newer Spark may have written them. Code that needs their Arrow
form refuses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from bk_spark.log.formats.schema_merge import udt_class

#: Names in messages, where they are not those of the JSON form.
_SIMPLE: Final = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "decimal": "decimal(10,0)",
}


@dataclass(frozen=True, slots=True)
class Atomic:
    """A type without parts: ``long``, ``decimal(10,2)``, ``string collate UNICODE``."""

    name: str

    @property
    def simple(self) -> str:
        """The name that Spark shows."""
        return _SIMPLE.get(self.name, self.name)


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """Lists of one type."""

    element: ColumnType
    contains_null: bool = True

    @property
    def simple(self) -> str:
        """The name that Spark shows: ``array<bigint>``."""
        return f"array<{self.element.simple}>"


@dataclass(frozen=True, slots=True)
class MapOf:
    """Maps. Keys are never null."""

    key: ColumnType
    value: ColumnType
    value_contains_null: bool = True

    @property
    def simple(self) -> str:
        """The name that Spark shows: ``map<string,bigint>``."""
        return f"map<{self.key.simple},{self.value.simple}>"


@dataclass(frozen=True, slots=True)
class UserDefined:
    """A type of the user's: its class is known to Spark only. ``stored`` is how its values are stored."""

    stored: ColumnType
    #: The whole JSON form of the type.
    json: Mapping[str, Any] = field(hash=False)

    @property
    def simple(self) -> str:
        """The class, and how its values are stored. Spark shows what the class says."""
        return f"udt<{udt_class(self.json)}:{self.stored.simple}>"


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a field of a struct. ``metadata`` is Spark's, such as a comment."""

    name: str
    type: ColumnType
    nullable: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Struct:
    """Named fields in order. The schema of a log is one."""

    fields: tuple[Column, ...]

    @property
    def simple(self) -> str:
        """The name that Spark shows: ``struct<id:bigint,name:string>``."""
        return f"struct<{','.join(f'{one.name}:{one.type.simple}' for one in self.fields)}>"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields, in order."""
        return tuple(one.name for one in self.fields)

    def find(self, name: str) -> Column | None:
        """Return the first field of this name, or None."""
        return next((one for one in self.fields if one.name == name), None)


ColumnType: TypeAlias = Atomic | ArrayOf | MapOf | UserDefined | Struct
#: The schema of a log, of a read or of a write.
Schema: TypeAlias = Struct


def same_type(one: ColumnType, other: ColumnType) -> bool:
    """Whether the types are equal, whatever may be null in them."""
    return one.simple == other.simple


def stored_schema(schema: Schema) -> Schema:
    """Return ``schema`` as a log stores it: everything is nullable, including elements and fields.

    Nullability in one write says nothing about the next write. If a schema declares non-null data that contains
    nulls, Spark computes wrong results.
    """
    return Struct(tuple(replace(one, type=_nullable(one.type), nullable=True) for one in schema.fields))


def _nullable(column_type: ColumnType) -> ColumnType:
    match column_type:
        case Struct():
            return stored_schema(column_type)
        case ArrayOf(element):
            return ArrayOf(_nullable(element))
        case MapOf(key, value):
            return MapOf(_nullable(key), _nullable(value))
        case _:
            return column_type
