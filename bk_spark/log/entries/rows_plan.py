"""How a write's rows fit into a log: as a version of its schema, or merged into it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from bk_spark.log.entries.columns import Schema, stored_schema
from bk_spark.log.entries.schema_checks import check_same_columns
from bk_spark.log.entries.schema_text import parse_schema, schema_text
from bk_spark.log.formats.schema_history import SchemaHistory
from bk_spark.log.formats.schema_merge import Names, Positions, fields_of, schema_json_of


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """How rows are written: with the columns of ``schema``, as version ``version`` of the log's schema. ``names`` says
    how the rows' columns are found.

    If the commit merges columns, it finds or makes the version, and ``version`` means nothing.
    """

    schema: Schema
    version: int
    names: Names


def plan_rows(schemas: SchemaHistory, written: Schema, names: Names, log: str, *, merge: bool) -> RowsPlan:
    """Plan the writing of rows with the columns ``written``.

    Without ``merge``, the rows need exactly the columns of one version of the schema, in any order. So a writer that
    does not know columns added by others continues as before. With ``merge``, the rows get the log's names and types,
    and columns that the rows lack are left out of entries: readers find nulls.

    Raises InvalidArgumentError, which names the column.
    """
    names = names.for_fields(fields_of(schemas.current_json))
    if merge:
        grown = schemas.grown(schema_text(stored_schema(written)), 0, names, log)
        own = Positions(fields_of(schema_text(written)), names)
        fields = [one for one in fields_of(grown.current_json) if own.find(one["name"]) is not None]
        return RowsPlan(parse_schema(schema_json_of(fields)), grown.version, names)
    version = schemas.version_of(schema_text(written), names)
    if version is None:
        check_same_columns(written, parse_schema(schemas.current_json), log, names)
        version = schemas.version
    return RowsPlan(parse_schema(schemas.at(version)), version, names)
