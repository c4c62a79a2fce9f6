"""How the schema of a log grows: columns are added, and types become wider. Pure, on schemas in Spark's JSON form.

A type becomes wider only where every value stays what it is:

* whole numbers: byte → short → integer → long;
* float → double;
* decimal → a decimal with at least as many digits before and after the point, 38 at most;
* void (only nulls) → any type;
* the same within structs, arrays and maps. A struct gets new fields at its end.

Fields of structs are matched by name, in any order. Nothing is ever dropped or renamed, so an entry that was written
with an earlier version holds some of the columns of a later one, in types that widen to those of the later one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError

#: A type in Spark's JSON form: a name (a text), or an object with the name under "type".
JsonType = Any
#: A column, or a field of a struct: name, type, nullable and metadata.
JsonField = dict[str, Any]

_WHOLE_NUMBERS: Final = ("byte", "short", "integer", "long")
_FLOATS: Final = ("float", "double")
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")
_MAX_DECIMAL_DIGITS: Final = 38
_SQL_NAMES: Final = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
_VOID: Final = "void"


class CannotWidenError(Exception):
    """No type holds the values of both types."""

    def __init__(self, path: str, stored: str, written: str, why: str = "") -> None:
        super().__init__(path, stored, written, why)
        self.path = path
        self.stored = stored
        self.written = written
        self.why = why


@dataclass(frozen=True, slots=True)
class Names:
    """How names of columns and fields are compared: as ``spark.sql.caseSensitive`` says."""

    case_sensitive: bool = False

    def key(self, name: str) -> str:
        """Return the form of ``name`` in which equal names are equal texts."""
        return name if self.case_sensitive else name.lower()

    def for_fields(self, fields: Sequence[JsonField]) -> Names:
        """Return how names are compared with those of ``fields``: exactly, if two of them differ only by case."""
        return EXACT if not self.case_sensitive and _has_twins(fields) else self


class Positions:
    """Where the field of each name is, so that fields can be looked up without a search for each."""

    def __init__(self, fields: Iterable[JsonField], names: Names) -> None:
        self._names = names
        self._exact: dict[str, int] = {}
        self._by_key: dict[str, int] = {}
        self._count = 0
        for one in fields:
            self.append(one["name"])

    def append(self, name: str) -> None:
        """Note the name of the field after the last one."""
        self._exact.setdefault(name, self._count)
        self._by_key.setdefault(self._names.key(name), self._count)
        self._count += 1

    def find(self, name: str) -> int | None:
        """Return the position of the field called ``name``, or None. An exact match takes precedence."""
        exact = self._exact.get(name)
        return self._by_key.get(self._names.key(name)) if exact is None else exact


#: Names as entries have them: exactly those of the log's columns.
EXACT: Final = Names(case_sensitive=True)
ANY_CASE: Final = Names()


def fields_of(schema_json: str) -> list[JsonField]:
    """Return the columns of a schema. Raises MetadataFormatError if it is not a struct in Spark's JSON form."""
    try:
        schema = json.loads(schema_json)
        _check_type(schema)
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise MetadataFormatError(
            f"not a schema in Spark's JSON form: {type(error).__name__} {str(error)[:200]}"
        ) from error
    if _kind(schema) != "struct":
        raise MetadataFormatError(f"not a schema in Spark's JSON form: a {str(_kind(schema))[:40]}, not a struct")
    fields: list[JsonField] = schema["fields"]
    return fields


def field_of(field_json: str) -> JsonField:
    """Return one column. Raises MetadataFormatError as :func:`fields_of`."""
    (one,) = _only(fields_of(f'{{"type":"struct","fields":[{field_json}]}}'))
    return one


def json_of(value: JsonType | JsonField) -> str:
    """Return a type or field as text, as Spark writes it."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def schema_json_of(fields: Iterable[JsonField]) -> str:
    """Return the schema with these columns, in Spark's JSON form."""
    return json_of({"type": "struct", "fields": list(fields)})


def merged(stored: Sequence[JsonField], written: Sequence[JsonField], names: Names) -> list[JsonField]:
    """Return the columns of both, ``stored`` first, in types that hold the values of both.

    Everything new may be null. Raises CannotWidenError, and InvalidArgumentError for two columns of one name in
    ``written``.
    """
    try:
        return _merged_fields(stored, written, names, "")
    except RecursionError as error:
        raise InvalidArgumentError("the schema nests too deeply: use fewer levels") from error


def check_names_differ(written: Iterable[JsonField], names: Names) -> None:
    """Raise InvalidArgumentError for two columns of one name."""
    known: dict[str, str] = {}
    for one in written:
        key = names.key(one["name"])
        if key in known:
            raise _twice(known[key], one["name"])
        known[key] = one["name"]


def first_missing(
    stored: Sequence[JsonField], written: Sequence[JsonField], names: Names
) -> tuple[str, JsonType] | None:
    """Return path and type of the first column or field that ``stored`` has and ``written`` lacks."""
    return next(_missing(stored, written, names, ""), None)


def type_text(json_type: JsonType) -> str:
    """Return a type as in SQL and in Spark's error texts."""
    match json_type:
        case {"type": "struct", "fields": fields}:
            texts = (f"{one['name']}:{type_text(one['type'])}" for one in fields)
            return f"struct<{','.join(texts)}>"
        case {"type": "array", "elementType": element}:
            return f"array<{type_text(element)}>"
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"map<{type_text(key)},{type_text(value)}>"
        case {"type": "udt", **rest}:
            # The class in Python may be in the text as well, pickled. That differs from process to process.
            return f"udt<{udt_class(rest)}:{type_text(rest.get('sqlType'))}>"
        case {"type": other}:
            return str(other)
        case _:
            return _SQL_NAMES.get(str(json_type), str(json_type))


def udt_class(json_type: Mapping[Any, Any]) -> str:
    """Return the name of a user-defined type's class: in Java if it has one, otherwise in Python."""
    return str(json_type.get("class") or json_type.get("pyClass"))


def same_fields(one: Sequence[JsonField], other: Sequence[JsonField], names: Names) -> bool:
    """Whether both have the same columns with the same types, in any order. Nullability and comments do not matter."""
    try:
        return all(
            _all_same(_merged_fields(left, right, names, ""), left) for left, right in ((one, other), (other, one))
        )
    except CannotWidenError:
        return False


def wider(stored: JsonType, written: JsonType, names: Names, path: str) -> JsonType:
    """Return the narrowest type that holds the values of both: ``stored`` itself if that does.

    Raises CannotWidenError, which names ``path``.
    """
    if type_text(stored) == type_text(written):
        return stored
    if stored == _VOID:
        return _nullable(written)
    if written == _VOID:
        return stored
    match stored, written:
        case {"type": "struct", "fields": own}, {"type": "struct", "fields": others}:
            fields = _merged_fields(own, others, names, f"{path}.")
            return stored if _all_same(fields, own) else {**stored, "fields": fields}
        case {"type": "array", "elementType": own}, {"type": "array", "elementType": other}:
            element = wider(own, other, names, f"{path}.element")
            return stored if element is own else {**stored, "elementType": element}
        case {"type": "map", "keyType": key, "valueType": value}, {
            "type": "map",
            "keyType": other_key,
            "valueType": other_value,
        }:
            wide_key = wider(key, other_key, names, f"{path}.key")
            wide_value = wider(value, other_value, names, f"{path}.value")
            if wide_key is key and wide_value is value:
                return stored
            return {**stored, "keyType": wide_key, "valueType": wide_value}
        case str(), str():
            for family in (_WHOLE_NUMBERS, _FLOATS):
                if stored in family and written in family:
                    return max(stored, written, key=family.index)
            decimals = _digits(stored), _digits(written)
            if decimals[0] is not None and decimals[1] is not None:
                decimal = _wider_decimal(decimals[0], decimals[1], path)
                return stored if decimal == stored else decimal
    raise CannotWidenError(path, type_text(stored), type_text(written))


def _merged_fields(
    stored: Sequence[JsonField], written: Sequence[JsonField], names: Names, path: str
) -> list[JsonField]:
    fields = list(stored)
    positions = Positions(fields, names)
    taken: dict[int, str] = {}
    for one in written:
        position = positions.find(one["name"])
        if position is None:
            position = len(fields)
            fields.append(_nullable_field(one))
            positions.append(one["name"])
        elif position in taken:
            raise _twice(f"{path}{taken[position]}", f"{path}{one['name']}")
        else:
            own = fields[position]
            found = wider(own["type"], one["type"], names, f"{path}{own['name']}")
            if found is not own["type"]:
                fields[position] = {**own, "type": found}
        taken[position] = one["name"]
    return fields


def _all_same(fields: Sequence[JsonField], stored: Sequence[JsonField]) -> bool:
    """Whether a merge changed nothing."""
    return len(fields) == len(stored) and all(one is own for one, own in zip(fields, stored, strict=True))


def _missing(
    stored: Sequence[JsonField], written: Sequence[JsonField], names: Names, path: str
) -> Iterator[tuple[str, JsonType]]:
    positions = Positions(written, names)
    for one in stored:
        position = positions.find(one["name"])
        if position is None:
            yield f"{path}{one['name']}", one["type"]
        else:
            yield from _missing_within(one["type"], written[position]["type"], names, f"{path}{one['name']}")


def _missing_within(stored: JsonType, written: JsonType, names: Names, path: str) -> Iterator[tuple[str, JsonType]]:
    match stored, written:
        case {"type": "struct", "fields": own}, {"type": "struct", "fields": others}:
            yield from _missing(own, others, names, f"{path}.")
        case {"type": "array", "elementType": own}, {"type": "array", "elementType": other}:
            yield from _missing_within(own, other, names, f"{path}.element")
        case {"type": "map", "keyType": key, "valueType": value}, {
            "type": "map",
            "keyType": other_key,
            "valueType": other_value,
        }:
            yield from _missing_within(key, other_key, names, f"{path}.key")
            yield from _missing_within(value, other_value, names, f"{path}.value")


def _digits(json_type: str) -> tuple[int, int] | None:
    """Return the digits of a decimal before and after its point, or None for another type."""
    found = _DECIMAL.fullmatch("decimal(10,0)" if json_type == "decimal" else json_type)
    if found is None:
        return None
    precision, scale = map(int, found.groups())
    return precision - scale, scale


def _wider_decimal(stored: tuple[int, int], written: tuple[int, int], path: str) -> str:
    before, after = max(stored[0], written[0]), max(stored[1], written[1])
    if before + after > _MAX_DECIMAL_DIGITS:
        raise CannotWidenError(
            path,
            f"decimal({sum(stored)},{stored[1]})",
            f"decimal({sum(written)},{written[1]})",
            f"both together need decimal({before + after},{after}), and {_MAX_DECIMAL_DIGITS} digits are the most",
        )
    return f"decimal({before + after},{after})"


def _nullable_field(one: JsonField) -> JsonField:
    return {**one, "nullable": True, "type": _nullable(one["type"])}


def _nullable(json_type: JsonType) -> JsonType:
    match json_type:
        case {"type": "struct", "fields": fields}:
            return {**json_type, "fields": [_nullable_field(one) for one in fields]}
        case {"type": "array", "elementType": element}:
            return {**json_type, "elementType": _nullable(element), "containsNull": True}
        case {"type": "map", "keyType": key, "valueType": value}:
            types = {"keyType": _nullable(key), "valueType": _nullable(value)}
            return {**json_type, **types, "valueContainsNull": True}
        case _:
            return json_type


def _twice(one: str, other: str) -> InvalidArgumentError:
    if one == other:
        return InvalidArgumentError(f"the data has two columns named {one}: rename or drop one")
    return InvalidArgumentError(
        f"the data has two columns of one name, {one} and {other}: rename or drop one, or set spark.sql.caseSensitive "
        "to true"
    )


def _has_twins(fields: Sequence[JsonField]) -> bool:
    names = {one["name"].lower() for one in fields}
    return len(names) < len(fields) or any(_has_twins_within(one["type"]) for one in fields)


def _has_twins_within(json_type: JsonType) -> bool:
    match json_type:
        case {"type": "struct", "fields": fields}:
            return _has_twins(fields)
        case {"type": "array", "elementType": element}:
            return _has_twins_within(element)
        case {"type": "map", "keyType": key, "valueType": value}:
            return _has_twins_within(key) or _has_twins_within(value)
        case _:
            return False


def _kind(json_type: object) -> object:
    return json_type.get("type") if isinstance(json_type, dict) else json_type


def _only(fields: list[JsonField]) -> list[JsonField]:
    if len(fields) != 1:
        raise MetadataFormatError(f"not one column in Spark's JSON form, but {len(fields)}")
    return fields


def _check_type(json_type: object) -> None:
    """Raise KeyError, TypeError or ValueError for a value that is not a type. Unknown types are left to Spark."""
    if isinstance(json_type, str):
        return
    if not isinstance(json_type, dict):
        raise TypeError(f"a type is a name or an object, not {str(json_type)[:40]}")
    match json_type["type"]:
        case "struct":
            for one in json_type["fields"]:
                if not isinstance(one["name"], str):
                    raise TypeError(f"a name is a text, not {str(one['name'])[:40]}")
                _check_type(one["type"])
        case "array":
            _check_type(json_type["elementType"])
        case "map":
            _check_type(json_type["keyType"])
            _check_type(json_type["valueType"])
