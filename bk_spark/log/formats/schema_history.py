"""The versions of a log's schema. Version 0 is the schema that the log was made with. Pure.

A later version is stored as what it changes: columns in their new form, by position. Columns of structs change as a
whole. So a version takes as many bytes as the columns that it touches, and none can drop or rename a column.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from bk_spark.log.formats.schema_merge import (
    CannotWidenError,
    JsonField,
    JsonType,
    Names,
    check_names_differ,
    field_of,
    fields_of,
    first_missing,
    json_of,
    merged,
    same_fields,
    schema_json_of,
    type_text,
)
from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError

#: Each segment names its version. So a schema that grew with each batch would enlarge the settings and every page.
MAX_SCHEMA_VERSIONS: Final = 1000


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """What one version changes: columns by position, in Spark's JSON form. ``time_ms`` is the commit's time."""

    time_ms: int
    columns: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of a log's schema.

    Parameters
    ----------
    number
        The version. The log was made with version 0.
    schema_json
        The schema, in Spark's JSON form.
    time_ms
        When the version was committed, in Unix milliseconds. None for version 0.
    """

    number: int
    schema_json: str
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SchemaHistory:
    """All versions of a log's schema."""

    first_json: str
    changes: tuple[SchemaChange, ...] = ()

    @property
    def version(self) -> int:
        """The number of the current version."""
        return len(self.changes)

    @property
    def current_json(self) -> str:
        """The current version's schema. Raises MetadataFormatError if a change is damaged."""
        return self.at(self.version)

    def at(self, number: int) -> str:
        """Return a version's schema. Raises MetadataFormatError if there is no such version, or it is damaged."""
        if not 0 <= number <= self.version:
            raise MetadataFormatError(f"the log's schema has versions 0 to {self.version}, but no version {number}")
        return _schema_at(self.first_json, self.changes[:number])

    def versions(self) -> list[SchemaVersion]:
        """Return all versions, oldest first. Raises as :meth:`at`."""
        later = zip(self.changes, list(self._fields())[1:], strict=True)
        return [
            SchemaVersion(0, self.first_json),
            *(SchemaVersion(n, schema_json_of(fields), change.time_ms) for n, (change, fields) in enumerate(later, 1)),
        ]

    def grown(self, written_json: str, time_ms: int, names: Names, log: str) -> SchemaHistory:
        """Return a history whose current version can hold rows with the columns ``written_json``: this one, or one with
        one more version.

        The rows need all columns of version 0. Columns that were added later may be missing: a writer that adds columns
        must not stop those that do not know them.

        Raises
        ------
        InvalidArgumentError
            If a column of version 0 is missing, or a column's type cannot hold the values of both. The error names the
            column and the types.
        """
        stored, written = fields_of(self.current_json), fields_of(written_json)
        names = names.for_fields(stored)
        try:
            fields = merged(stored, written, names)
        except CannotWidenError as error:
            raise refused(error, log) from None
        missing = first_missing(fields_of(self.first_json), written, names)
        if missing is not None:
            raise dropped(*missing, log)
        changed = tuple(
            (position, json_of(one))
            for position, one in enumerate(fields)
            if position >= len(stored) or one is not stored[position]
        )
        if not changed:
            return self
        if self.version + 1 >= MAX_SCHEMA_VERSIONS:
            raise InvalidArgumentError(
                f"the schema of log {log} has {self.version + 1} versions, which is the most: write to a new log"
            )
        return replace(self, changes=(*self.changes, SchemaChange(time_ms, changed)))

    def version_of(self, written_json: str, names: Names) -> int | None:
        """Return the latest version that has exactly the columns ``written_json``, in any order, or None."""
        written = fields_of(written_json)
        versions = list(self._fields())
        names = names.for_fields(versions[-1])
        check_names_differ(written, names)
        for number, fields in reversed(list(enumerate(versions))):
            if len(fields) == len(written) and same_fields(fields, written, names):
                return number
        return None

    def _fields(self) -> Iterator[list[JsonField]]:
        """Yield the columns of each version, oldest first. Versions share the columns that they have in common."""
        fields = fields_of(self.first_json)
        yield fields
        for change in self.changes:
            fields = list(fields)
            _apply(change, fields)
            yield fields


def changed_columns(before_json: str, after_json: str) -> list[str]:
    """Return what a version changes, for people: ``day date`` is new, ``id int -> bigint`` became wider."""
    before = {one["name"]: type_text(one["type"]) for one in fields_of(before_json)}
    found = []
    for one in fields_of(after_json):
        name, text = one["name"], type_text(one["type"])
        if name not in before:
            found.append(f"{name} {text}")
        elif before[name] != text:
            found.append(f"{name} {before[name]} -> {text}")
    return found


def refused(error: CannotWidenError, log: str) -> InvalidArgumentError:
    """Return the error for rows that a merge of schemas cannot hold."""
    return InvalidArgumentError(
        f"column {error.path} is {error.written} here and {error.stored} in log {log}, and "
        f"{error.why or 'no type holds both without loss'}: cast it to {error.stored}, give it another name, or write "
        "to a new log"
    )


def dropped(path: str, json_type: JsonType, log: str) -> InvalidArgumentError:
    """Return the error for rows that lack a column."""
    text = type_text(json_type)
    return InvalidArgumentError(
        f"column {path} of log {log} is missing from the data; a merge adds columns, and never drops or renames "
        f"one: add it, for example as a null (CAST(NULL AS {text})), give a renamed column its old name, or write to a "
        "new log"
    )


@functools.lru_cache(maxsize=256)
def _schema_at(first_json: str, changes: tuple[SchemaChange, ...]) -> str:
    if not changes:
        return first_json
    fields = fields_of(first_json)
    for change in changes:
        _apply(change, fields)
    return schema_json_of(fields)


def _apply(change: SchemaChange, fields: list[JsonField]) -> None:
    """Turn ``fields`` into those of the next version."""
    for position, column_json in change.columns:
        column = field_of(column_json)
        if position == len(fields):
            fields.append(column)
        elif position < len(fields) and fields[position]["name"] == column["name"]:
            fields[position] = column
        else:
            raise MetadataFormatError(
                f"the log's schema is damaged: a version has column {column['name'][:80]} at place {position} of "
                f"{len(fields)}"
            )
