"""Which columns a read or a write may have, and the errors for those that do not fit."""

from __future__ import annotations

from typing import Final

from bk_spark.log.entries.columns import ArrayOf, Atomic, Column, ColumnType, MapOf, Schema, Struct, same_type
from bk_spark.log.entries.schema_text import schema_text
from bk_spark.log.formats.schema_merge import ANY_CASE, EXACT, CannotWidenError, Names, fields_of, type_text, wider
from bk_spark.protocol.errors import InvalidArgumentError

VALUE: Final = "value"
_LONG: Final = Atomic("long")
_BINARY: Final = Atomic("binary")
_STRING: Final = Atomic("string")
#: The remedy where a merge of schemas would help.
_MERGE: Final = "set the option mergeSchema (merge_schema of Log.write) to true"
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
        raise InvalidArgumentError("the schema has no columns, so the rows could not be counted: select at least one")


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
                f"entryFormat raw has no column {one.name}; it has {', '.join(RAW_SCHEMA.names)}: correct the schema"
            )
        allowed = (_BINARY, _STRING) if one.name == VALUE else (known.type,)
        if one.type not in allowed:
            raise InvalidArgumentError(
                f"column {one.name} can be read as {' or '.join(each.simple for each in allowed)}, "
                f"not as {one.type.simple}"
            )


def check_arrow_read(
    wanted: Schema, stored: Schema, owner: str, names: Names = ANY_CASE, *, include_metadata: bool = False
) -> None:
    """Raise InvalidArgumentError unless each wanted column is a stored or metadata column, of a type that holds the
    other's values or whose values the other may hold.

    ``owner`` is for error texts. Names are compared exactly if those of ``stored`` differ only by case. A stored column
    takes precedence over a metadata column of its name, but with ``include_metadata``, which has added the latter.
    """
    check_has_columns(wanted)
    names = names.for_fields(fields_of(schema_text(stored)))
    metadata = {one.name: one for one in METADATA_COLUMNS}
    for one in wanted.fields:
        own, described = _named(stored, one.name, names), metadata.get(one.name)
        known = described or own if include_metadata else own or described
        if known is None:
            raise InvalidArgumentError(
                f"{owner} has no column {one.name}; it has {', '.join(stored.names)}: correct the schema"
            )
        _check_type_read(known.type, one.type, one.name, owner, names)


def _check_type_read(stored: ColumnType, wanted: ColumnType, path: str, owner: str, names: Names) -> None:
    match stored, wanted:
        case Struct(), Struct():
            for one in wanted.fields:
                known = _named(stored, one.name, names)
                if known is None:
                    raise InvalidArgumentError(
                        f"column {path} of {owner} has no field {one.name}; it has {', '.join(stored.names)}: correct "
                        "the schema"
                    )
                _check_type_read(known.type, one.type, f"{path}.{one.name}", owner, names)
        case ArrayOf(), ArrayOf():
            _check_type_read(stored.element, wanted.element, f"{path}.element", owner, names)
        case MapOf(), MapOf():
            _check_type_read(stored.key, wanted.key, f"{path}.key", owner, names)
            _check_type_read(stored.value, wanted.value, f"{path}.value", owner, names)
        case _:
            if not same_type(stored, wanted) and not _may_hold(stored, wanted, names):
                raise InvalidArgumentError(
                    f"column {path} of {owner} is {stored.simple} and cannot be read as {wanted.simple}: leave the "
                    "schema out, and cast what is read"
                )


def _may_hold(stored: ColumnType, wanted: ColumnType, names: Names) -> bool:
    """Whether one type widens to the other, or both are decimals. Values that do not fit are refused when read."""
    if not isinstance(stored, Atomic) or not isinstance(wanted, Atomic) or wanted.name == "void":
        return stored == Atomic("void")
    try:
        both = wider(stored.name, wanted.name, names, "")
    except CannotWidenError:
        return False
    return both in (stored.name, wanted.name) or stored.name.startswith("decimal")


def _named(schema: Schema, name: str, names: Names) -> Column | None:
    """Return the column of this name. An exact match takes precedence."""
    return schema.find(name) or next((one for one in schema.fields if names.key(one.name) == names.key(name)), None)


def own_names(schema: Schema, names: Names = ANY_CASE) -> dict[str, str]:
    """Return the names of the columns of ``schema`` that are called as the connector's, by the connector's names.

    Names are compared exactly if those of ``schema`` differ only by case.
    """
    names = names.for_fields(fields_of(schema_text(schema)))
    found = ((one.name, _named(schema, one.name, names)) for one in METADATA_COLUMNS)
    return {name: known.name for name, known in found if known is not None}


def has_names(schema: Schema, wanted: Schema) -> bool:
    """Whether all wanted columns and fields have the very names that ``schema`` has, or those of the connector."""
    return all(
        (one.name in METADATA_NAMES and schema.find(one.name) is None)
        or ((known := schema.find(one.name)) is not None and _has_names_within(known.type, one.type))
        for one in wanted.fields
    )


def _has_names_within(stored: ColumnType, wanted: ColumnType) -> bool:
    match stored, wanted:
        case Struct(), Struct():
            found = [(stored.find(one.name), one) for one in wanted.fields]
            return all(known is not None and _has_names_within(known.type, one.type) for known, one in found)
        case ArrayOf(), ArrayOf():
            return _has_names_within(stored.element, wanted.element)
        case MapOf(), MapOf():
            return _has_names_within(stored.key, wanted.key) and _has_names_within(stored.value, wanted.value)
        case _:
            return True


def check_same_names(written: Schema, stored: Schema, log: str, names: Names = EXACT, *, remedy: str = "") -> None:
    """Raise InvalidArgumentError, naming the first difference, unless the data has columns of the log's names.

    ``remedy`` adds another way to deal with a column that the log lacks.
    """
    for one in written.fields:
        if _named(stored, one.name, names) is None:
            raise _no_such_column(one.name, stored, log, remedy)
    for column in stored.fields:
        if _named(written, column.name, names) is None:
            raise InvalidArgumentError(
                f"column {column.name} of log {log} is missing from the data: add it, for example as a null of type "
                f"{column.type.simple}"
            )


def check_same_columns(written: Schema, stored: Schema, log: str, names: Names = ANY_CASE) -> None:
    """Raise InvalidArgumentError, naming the first difference, unless the data has exactly the log's columns."""
    check_no_duplicates(written)
    for one in written.fields:
        fixed = _named(stored, one.name, names)
        if fixed is None:
            raise _no_such_column(one.name, stored, log, f", or {_MERGE}, which adds it")
        if not same_type(fixed.type, one.type):
            raise InvalidArgumentError(
                f"column {one.name} is {one.type.simple} here and {fixed.type.simple} in log {log}: cast it"
                f"{_merge_remedy(fixed, one, names)}"
            )
    check_same_names(written, stored, log, names)


def _merge_remedy(stored: Column, written: Column, names: Names) -> str:
    """Say what mergeSchema would do, if it can."""
    own, other = (fields_of(schema_text(Struct((one,))))[0]["type"] for one in (stored, written))
    try:
        both = wider(own, other, names, stored.name)
    except CannotWidenError:
        return ""
    if both is own:
        return f", or {_MERGE}"
    return f", or {_MERGE}, which makes it {type_text(both)} in the log"


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


def _no_such_column(name: str, stored: Schema, log: str, remedy: str = "") -> InvalidArgumentError:
    return InvalidArgumentError(
        f"log {log} has no column {name}; it has {', '.join(stored.names)}: drop or rename it{remedy}"
    )
