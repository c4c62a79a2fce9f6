"""Versions of a topic's schema. Source: docs/design/pulsar.md §1.7.

The znode, a ``SchemaLocator``, names the ledger of each version. That ledger has one entry, a ``SchemaEntry`` with a
``SchemaInfo`` in it, whose type numbers are one higher than those of Pulsar's clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from bk_spark.protocol.errors import MetadataFormatError
from bk_spark.protocol.pulsar.fields import FieldError, Fields

#: SchemaInfo counts its types from 1.
_STORED_OFFSET: Final = 1


class SchemaType(IntEnum):
    """Types of schemas, by the numbers of Pulsar's clients."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    EXTERNAL = 22


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """Where one version of a schema is."""

    version: int
    ledger_id: int
    entry_id: int


@dataclass(frozen=True, slots=True)
class SchemaLocator:
    """All versions of a topic's schema, ascending."""

    versions: tuple[SchemaVersion, ...]

    @classmethod
    def parse(cls, content: bytes, source: str = "the znode of the schema") -> SchemaLocator:
        """Parse the content of a znode. Raises MetadataFormatError, which names ``source``."""
        try:
            found = [_version(one) for one in Fields(content).messages(2)]
        except FieldError as error:
            raise MetadataFormatError(f"{source} is not a list of a schema's versions: {error}") from error
        return cls(tuple(sorted(found, key=lambda one: one.version)))

    def find(self, version: int) -> SchemaVersion | None:
        """Return where a version is, or None if there is no such version."""
        return next((one for one in self.versions if one.version == version), None)

    @property
    def newest(self) -> SchemaVersion | None:
        """The newest version, or None if there is none."""
        return self.versions[-1] if self.versions else None


def _version(message: Fields) -> SchemaVersion:
    position = message.message(2)
    if position is None:
        raise FieldError("a version has no position")
    return SchemaVersion(message.signed(1), position.signed(1), position.signed(2))


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """One version of a schema.

    Parameters
    ----------
    type
        Its type, or the number of a type that this release does not know.
    definition
        What the type needs: Avro's JSON, or both definitions of a key and a value.
    properties
        Its properties.
    version
        Its number.
    deleted
        Whether this version ends those before it: the schema was deleted.
    """

    type: SchemaType | int
    definition: bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    version: int = 0
    deleted: bool = False

    @classmethod
    def parse(cls, entry: bytes, version: int, source: str = "the entry of the schema") -> StoredSchema:
        """Parse the only entry of a version's ledger. Raises MetadataFormatError, which names ``source``."""
        try:
            info = Fields(entry).message(2)
            if info is None:
                raise FieldError("there is no schema in it")
            number = info.number(3) - _STORED_OFFSET
            return cls(
                type=SchemaType(number) if number in SchemaType.__members__.values() else number,
                definition=info.data(4) or b"",
                properties=info.texts(7),
                version=version,
                deleted=bool(info.number(6)),
            )
        except FieldError as error:
            raise MetadataFormatError(f"{source} is not a schema: {error}") from error
