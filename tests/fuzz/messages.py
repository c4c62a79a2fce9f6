"""Protobuf messages with any content that their fields allow, or a valid one in which one thing is wrong: what
decoders get from a peer that knows the format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.fuzz.damage import EDGES

_M = TypeVar("_M", bound=Message)
_RANGES: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
#: Of a repeated field.
_MOST: Final = 4


def messages(kind: type[_M], **fields: SearchStrategy[Any]) -> SearchStrategy[_M]:
    """Messages of ``kind``. ``fields`` says which values a field takes; the others take any, or are left out if they
    are optional. A field whose strategy gives None is left out, too."""
    return st.builds(_made, st.just(kind), st.fixed_dictionaries(_fields(kind, fields)))


def _fields(kind: type[Message], given: Mapping[str, SearchStrategy[Any]]) -> dict[str, SearchStrategy[Any]]:
    found = {}
    for field in kind.DESCRIPTOR.fields:
        if field.name in given:
            found[field.name] = given[field.name]
        elif field.is_repeated:
            found[field.name] = st.just([]) if _is_map(field) else st.lists(_value(field), max_size=_MOST)
        else:
            found[field.name] = _value(field) if field.is_required else st.none() | _value(field)
    return found


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _value(field: FieldDescriptor) -> SearchStrategy[Any]:
    if field.cpp_type in _RANGES:
        least, most = _RANGES[field.cpp_type]
        return st.sampled_from([e for e in (*EDGES, 2**63, 2**64 - 1) if least <= e <= most]) | st.integers(least, most)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values])
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return messages(GetMessageClass(field.message_type))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=40)
    return st.text(max_size=20)


def _made(kind: type[_M], values: Mapping[str, Any]) -> _M:
    return kind(**{name: value for name, value in values.items() if value is not None})


def changes(message: _M) -> Iterator[_M]:
    """Every message that differs from ``message`` in one thing: another number, near the old one or far off, an element
    of a column more or less, a field that is left out."""
    for field in message.DESCRIPTOR.fields:
        for value in _other_values(field, getattr(message, field.name)):
            made = type(message)()
            made.CopyFrom(message)
            made.ClearField(field.name)
            if field.is_repeated:
                getattr(made, field.name).extend(value)
            elif field.message_type is not None:
                getattr(made, field.name).CopyFrom(value)
            else:
                setattr(made, field.name, value)
            yield made


def _other_values(field: FieldDescriptor, value: Any) -> Iterator[Any]:
    if field.is_repeated:
        yield from _other_columns(field, list(value))
    elif field.message_type is not None:
        yield from changes(value)
    else:
        yield from _others(field, value)


def _other_columns(field: FieldDescriptor, column: list[Any]) -> Iterator[list[Any]]:
    yield []
    yield [*column, column[-1] if column else next(_others(field, 0))]
    for at, value in enumerate(column):
        yield [*column[:at], *column[at + 1 :]]
        yield [*column[:at], value, *column[at:]]
        for other in _others(field, value):
            yield [*column[:at], other, *column[at + 1 :]]


def _others(field: FieldDescriptor, value: Any) -> Iterator[Any]:
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        yield not value
    elif field.cpp_type in _RANGES:
        least, most = _RANGES[field.cpp_type]
        numbers = {0, 1, -1, value - 1, value + 1, -value, 2**40, 2**46, 2**62, 2**63, most}
        yield from sorted(number for number in numbers - {value} if least <= number <= most)
    elif field.type == FieldDescriptor.TYPE_BYTES:
        yield from (b"", bytes(value)[:-1] + b"x")
    else:
        yield from ("", f"{value}x")
