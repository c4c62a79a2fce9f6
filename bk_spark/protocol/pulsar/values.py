"""Values of messages, decoded by the schema of their topic. Source: docs/design/pulsar.md §2.9.

Producers may write without a schema, so any topic can hold values that do not have its form. Such a value is an error
or null, as the reader chooses. STRING and JSON are text, in which bytes that are not UTF-8 are replaced, as Java does.
Types that are not decoded here (PROTOBUF, EXTERNAL and unknown ones) stay bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from bk_spark.protocol.arrays import Bools, Int64s
from bk_spark.protocol.errors import InvalidArgumentError, MessageFormatError
from bk_spark.protocol.pulsar.avro_values import avro_type, decode_avro
from bk_spark.protocol.pulsar.choices import ValueErrors
from bk_spark.protocol.pulsar.messages.gathering import gathered, text_of
from bk_spark.protocol.pulsar.messages.words import PADDING_BYTES, Words
from bk_spark.protocol.pulsar.primitive_values import PRIMITIVES, decode_primitives, scattered
from bk_spark.protocol.pulsar.topics.schemas import SchemaType, StoredSchema

_TEXTS: Final = (SchemaType.STRING, SchemaType.JSON)
_LENGTH_BYTES: Final = 4
_NULL_LENGTH: Final = (1 << 32) - 1
_SEPARATED: Final = "SEPARATED"


class ValueDecodeError(MessageFormatError):
    """A value does not have the form of its schema.

    ``row`` is its index in the column.
    """

    def __init__(self, message: str, row: int = 0) -> None:
        super().__init__(message)
        self.row = row


@dataclass(frozen=True, slots=True)
class KeyValueSchema:
    """The two schemas of a KEY_VALUE.

    Parameters
    ----------
    key, value
        The schemas.
    separated
        Whether the key is the message's key, not a part of the value.
    """

    key: StoredSchema
    value: StoredSchema
    separated: bool

    @classmethod
    def of(cls, schema: StoredSchema) -> KeyValueSchema:
        """Take a schema of type KEY_VALUE apart. Raises InvalidArgumentError."""
        definition, parts = schema.definition, []
        at = 0
        for _ in range(2):
            size = int.from_bytes(definition[at : at + _LENGTH_BYTES], "big")
            size = 0 if size == _NULL_LENGTH else size
            at += _LENGTH_BYTES
            if at + size > len(definition):
                raise InvalidArgumentError("the topic's schema of a key and a value is cut: read value as bytes")
            parts.append(definition[at : at + size])
            at += size
        key, value = (_part(schema, name, part) for name, part in zip(("key", "value"), parts, strict=True))
        return cls(key, value, schema.properties.get("kv.encoding.type") == _SEPARATED)


def _part(schema: StoredSchema, name: str, definition: bytes) -> StoredSchema:
    kind = SchemaType.__members__.get(schema.properties.get(f"{name}.schema.type", "NONE"))
    # Pulsar's enum has two names for the type without a schema.
    return StoredSchema(SchemaType.NONE if kind is None else kind, definition, version=schema.version)


def value_type(schema: StoredSchema) -> pa.DataType:
    """Return the type of a column of decoded values.

    Parameters
    ----------
    schema
        The topic's schema.

    Raises
    ------
    InvalidArgumentError
        If it cannot be a type of Spark. The message says why, and what to do.
    """
    kind = schema.type
    if kind in _TEXTS:
        return pa.string()
    if isinstance(kind, SchemaType) and kind in PRIMITIVES:
        return PRIMITIVES[kind][1]
    if kind == SchemaType.AVRO:
        return avro_type(schema.definition)
    if kind == SchemaType.KEY_VALUE:
        both = KeyValueSchema.of(schema)
        return pa.struct([pa.field("key", value_type(both.key)), pa.field("value", value_type(both.value))])
    return pa.binary()


def decode_values(
    schema: StoredSchema,
    values: pa.BinaryArray,
    *,
    keys: pa.BinaryArray | None = None,
    read_as: StoredSchema | None = None,
    on_error: ValueErrors = ValueErrors.FAIL,
) -> pa.Array:
    """Decode a column of values.

    Parameters
    ----------
    schema
        The schema that they were written with.
    values
        The values. A null stays null.
    keys
        The keys of the messages, for a KEY_VALUE whose parts are separated.
    read_as
        The schema of the column, such as the topic's newest. None if it is ``schema``.
    on_error
        What to do with values that do not have the form of the schema.

    Returns
    -------
    pyarrow.Array
        The values, of the type that :func:`value_type` gives for ``read_as``.

    Raises
    ------
    ValueDecodeError
        If a value does not have the form of the schema, and that is an error. It says which row.
    InvalidArgumentError
        If the schema cannot be decoded, or not as ``read_as``.
    """
    found, wrong = _decoded(schema, read_as or schema, values, keys)
    if on_error is ValueErrors.FAIL and wrong.any():
        row = int(np.argmax(wrong))
        name = schema.type.name if isinstance(schema.type, SchemaType) else str(schema.type)
        part = values if values[row].is_valid or keys is None else keys
        size = len(part[row].as_py() or b"")
        raise ValueDecodeError(
            f"a value of {size} bytes does not have the form of schema version {schema.version}, of type {name}: a "
            "producer wrote it without the schema; read value as bytes, or let such values be null",
            row,
        )
    return found


def _decoded(
    schema: StoredSchema, read_as: StoredSchema, values: pa.BinaryArray, keys: pa.BinaryArray | None
) -> tuple[pa.Array, Bools]:
    """Return the decoded values, and which ones do not have the form of the schema."""
    sound = np.zeros(len(values), np.bool_)
    if schema.type == SchemaType.AVRO and read_as.type == SchemaType.AVRO:
        return decode_avro(schema.definition, read_as.definition, values)
    if schema.type == SchemaType.KEY_VALUE and read_as.type == SchemaType.KEY_VALUE:
        return _decoded_pairs(KeyValueSchema.of(schema), KeyValueSchema.of(read_as), values, keys)
    if schema.type != read_as.type and not {schema.type, read_as.type} <= set(_TEXTS):
        return pa.nulls(len(values), value_type(read_as)), np.asarray(values.is_valid())
    if schema.type in _TEXTS:
        return text_of(values), sound
    if isinstance(schema.type, SchemaType) and schema.type in PRIMITIVES:
        return decode_primitives(schema.type, values)
    return values, sound


def _decoded_pairs(
    schema: KeyValueSchema, read_as: KeyValueSchema, values: pa.BinaryArray, keys: pa.BinaryArray | None
) -> tuple[pa.Array, Bools]:
    if schema.separated:
        if keys is None:
            raise InvalidArgumentError(
                "the keys of the messages are needed to decode a KEY_VALUE whose parts are separated"
            )
        wrong, null = np.zeros(len(values), np.bool_), np.asarray(values.is_null()) & np.asarray(keys.is_null())
    else:
        keys, values, wrong, null = _inline_pairs(values)
    key, wrong_key = _decoded(schema.key, read_as.key, keys, None)
    value, wrong_value = _decoded(schema.value, read_as.value, values, None)
    wrong = wrong | wrong_key | wrong_value
    fields = [pa.field("key", key.type), pa.field("value", value.type)]
    return pa.StructArray.from_arrays([key, value], fields=fields, mask=pa.array(wrong | null)), wrong


def _inline_pairs(values: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BinaryArray, Bools, Bools]:
    """Cut values into keys and values. Return also which ones cannot be cut, and which ones are null."""
    begins, sizes, data, present = scattered(values)
    ends = begins + sizes
    words = Words(data.tobytes() + bytes(PADDING_BYTES))
    sound = present & (sizes >= 2 * _LENGTH_BYTES)
    parts: list[tuple[Int64s, Int64s, Bools]] = []
    at = begins
    for _ in range(2):
        at = np.where(sound, at, begins)
        lengths = words.big_endian_32(np.minimum(at, len(data)))
        there = lengths != _NULL_LENGTH
        part_begins, lengths = at + _LENGTH_BYTES, np.where(there, lengths, 0)
        # The second length has to be there, too.
        at = part_begins + lengths
        sound &= at <= ends - (0 if parts else _LENGTH_BYTES)
        parts.append((part_begins, lengths, there))
    sound &= at == ends
    cut = [
        gathered(words.data, part_begins, np.where(sound, lengths, 0), there & sound)
        for part_begins, lengths, there in parts
    ]
    return cut[0], cut[1], present & ~sound, ~present
