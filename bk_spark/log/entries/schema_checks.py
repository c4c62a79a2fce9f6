"""Which columns a read or a write may have, and what is said of those that do not fit."""

from __future__ import annotations

from typing import Final

from bk_spark.log.entries.columns import Atomic, Column, Schema, Struct, same_type
from bk_spark.protocol.errors import InvalidArgumentError

VALUE: Final = "value"
_LONG: Final = Atomic("long")
_BINARY: Final = Atomic("binary")
_STRING: Final = Atomic("string")
#: Columns that describe an entry rather than its content.
METADATA_COLUMNS: Final = (
    Column("log", _STRING),
    Column("offset", _LONG),
    Column("ledgerId", _LONG),
    Column("entryId", _LONG),
    Column("timestamp", Atomic("timestamp")),
)
METADATA_NAMES: Final = frozenset(one.name for one in METADATA_COLUMNS)
RAW_SCHEMA: Final = Struct((Column(VALUE, _BINARY), *METADATA_COLUMNS))


def check_has_columns(schema: Schema) -> None:
    """Raise InvalidArgumentError if there are no columns: such rows have no bytes, so their number would be lost."""
    if not schema.fields:
        raise InvalidArgumentError("the schema has no columns, so that there are no rows to see: select one at least")


def check_no_duplicates(schema: Schema) -> None:
    """Raise InvalidArgumentError naming a column that ``schema`` has twice."""
    names = schema.names
    if len(set(names)) == len(names):
        return
    name = next(name for name in names if names.count(name) > 1)
    raise InvalidArgumentError(f"there are {names.count(name)} columns named {name}: rename or drop one")


def with_metadata(schema: Schema) -> Schema:
    """Return ``schema`` followed by the metadata columns. Raises InvalidArgumentError if names collide."""
    names = {name.lower() for name in schema.names}
    for one in METADATA_COLUMNS:
        if one.name.lower() in names:
            raise InvalidArgumentError(
                f"includeMetadata: the log has a column {one.name} of its own; read without includeMetadata"
            )
    return Struct((*schema.fields, *METADATA_COLUMNS))


def check_raw_write(schema: Schema) -> None:
    """Raise InvalidArgumentError unless the only column is ``value``, binary or string."""
    check_no_duplicates(schema)
    value = schema.find(VALUE)
    if value is None:
        raise InvalidArgumentError(
            f"entryFormat raw needs a column named {VALUE} (binary or string), the data has "
            f"{', '.join(schema.names) or 'none'}; select one AS value, or write with entryFormat arrow"
        )
    if len(schema.fields) > 1:
        others = ", ".join(name for name in schema.names if name != VALUE)
        raise InvalidArgumentError(
            f"entryFormat raw writes only the column {VALUE}, the data also has {others}; drop them, or write with "
            "entryFormat arrow"
        )
    found = value.type.simple
    if found.partition("(")[0].partition(" ")[0] not in ("binary", "string", "varchar", "char"):
        raise InvalidArgumentError(f"column {VALUE} has type {found}; entryFormat raw takes binary or string")


def check_raw_read(schema: Schema) -> None:
    """Raise InvalidArgumentError unless all columns are in RAW_SCHEMA; ``value`` may also be a string."""
    check_has_columns(schema)
    for one in schema.fields:
        known = RAW_SCHEMA.find(one.name)
        if known is None:
            raise InvalidArgumentError(
                f"entryFormat raw has no column {one.name}; it has {', '.join(RAW_SCHEMA.names)}: mend the schema given"
            )
        allowed = (_BINARY, _STRING) if one.name == VALUE else (known.type,)
        if one.type not in allowed:
            raise InvalidArgumentError(
                f"column {one.name} can be read as {' or '.join(each.simple for each in allowed)}, "
                f"not as {one.type.simple}"
            )


def check_arrow_read(wanted: Schema, stored: Schema, owner: str) -> None:
    """Raise InvalidArgumentError unless each wanted column is a stored or metadata column of the same type.

    ``owner`` is for error texts.
    """
    check_has_columns(wanted)
    known = {one.name: one.type for one in (*METADATA_COLUMNS, *stored.fields)}
    for one in wanted.fields:
        if one.name not in known:
            raise InvalidArgumentError(
                f"{owner} has no column {one.name}; it has {', '.join(stored.names)}: mend the schema given"
            )
        if not same_type(known[one.name], one.type):
            raise InvalidArgumentError(
                f"column {one.name} of {owner} is {known[one.name].simple} and cannot be read as "
                f"{one.type.simple}: leave the schema out, and cast what is read"
            )


def check_same_names(written: Schema, stored: Schema, log: str) -> None:
    """Raise InvalidArgumentError, naming the first difference, unless the data has columns of the log's names."""
    for one in written.fields:
        if stored.find(one.name) is None:
            raise _no_such_column(one.name, stored, log)
    for column in stored.fields:
        if written.find(column.name) is None:
            raise InvalidArgumentError(
                f"column {column.name} of log {log} is missing from the data: add it, for example as a null of type "
                f"{column.type.simple}"
            )


def check_same_columns(written: Schema, stored: Schema, log: str) -> None:
    """Raise InvalidArgumentError, naming the first difference, unless the data has exactly the log's columns."""
    check_no_duplicates(written)
    for one in written.fields:
        fixed = stored.find(one.name)
        if fixed is None:
            raise _no_such_column(one.name, stored, log)
        if not same_type(fixed.type, one.type):
            raise InvalidArgumentError(
                f"column {one.name} is {one.type.simple} here and {fixed.type.simple} in log {log}: cast it"
            )
    check_same_names(written, stored, log)


def check_same_schema(one: Schema, name: str, other: Schema, other_name: str, kind: str = "log") -> None:
    """Check that two logs (or other ``kind``) to be read together have the same columns, in any order.

    Raises InvalidArgumentError naming the first column that differs.
    """
    for (has, owner), (lacks, lacking) in (((one, name), (other, other_name)), ((other, other_name), (one, name))):
        for column in has.fields:
            there = lacks.find(column.name)
            if there is None:
                raise InvalidArgumentError(
                    f"{kind} {owner} has a column {column.name}, {kind} {lacking} has none: read them apart, or give "
                    "a schema() with columns that both have"
                )
            if not same_type(column.type, there.type):
                raise InvalidArgumentError(
                    f"column {column.name} is {column.type.simple} in {kind} {owner} and "
                    f"{there.type.simple} in {kind} {lacking}: read them apart, or give a schema() without it"
                )


def _no_such_column(name: str, stored: Schema, log: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"log {log} has no column {name}; it has {', '.join(stored.names)}: drop or rename it")
