"""What a write's rows become in a log: a version of its schema, or a merge into it."""

from __future__ import annotations

from typing import Final

import pytest

from bk_spark.log.entries.columns import Atomic, Column, ColumnType, Schema, Struct
from bk_spark.log.entries.rows_plan import plan_rows
from bk_spark.log.entries.schema_text import schema_text
from bk_spark.log.formats.schema_history import SchemaHistory, changed_columns
from bk_spark.log.formats.schema_merge import ANY_CASE, EXACT
from bk_spark.protocol.errors import InvalidArgumentError

INT, LONG, TEXT, DATE = Atomic("integer"), Atomic("long"), Atomic("string"), Atomic("date")


def columns(**types: ColumnType) -> Schema:
    return Struct(tuple(Column(name, one) for name, one in types.items()))


FIRST: Final = columns(Id=INT, s=Struct((Column("a", INT), Column("B", TEXT))))
GROWN: Final = SchemaHistory(schema_text(FIRST)).grown(
    schema_text(columns(Id=LONG, s=Struct((Column("a", INT), Column("B", TEXT))), day=DATE)), 7, EXACT, "x"
)


def test_rows_with_the_columns_of_a_version_are_that_version() -> None:
    plan = plan_rows(
        GROWN, columns(s=Struct((Column("b", TEXT), Column("a", INT))), ID=INT), ANY_CASE, "x", merge=False
    )
    assert (plan.version, plan.schema) == (0, FIRST)
    plan = plan_rows(GROWN, columns(day=DATE, s=FIRST.fields[1].type, Id=LONG), EXACT, "x", merge=False)
    assert (plan.version, plan.schema.names) == (1, ("Id", "s", "day"))


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (columns(Id=LONG, s=FIRST.fields[1].type), "column day of log x is missing from the data"),
        (
            columns(Id=INT, s=FIRST.fields[1].type, day=DATE),
            "column Id is int here and bigint .*: cast it, or set",
        ),
        (columns(Id=LONG, s=FIRST.fields[1].type, day=TEXT), "column day is string here and date in log x: cast it$"),
        (columns(Id=LONG, s=FIRST.fields[1].type, day=DATE, more=TEXT), "no column more; .* which adds it"),
        (columns(Id=LONG, s=TEXT, day=DATE), "column s is string here and struct<a:int,B:string> in log x: cast it$"),
    ],
)
def test_other_rows_are_refused_without_merging(written: Schema, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        plan_rows(GROWN, written, ANY_CASE, "x", merge=False)


def test_merged_rows_get_the_names_and_types_of_the_log_and_lack_what_they_lack() -> None:
    more = Struct((Column("c", DATE, nullable=False), Column("b", TEXT), Column("A", LONG)))
    plan = plan_rows(GROWN, columns(more=TEXT, s=more, ID=INT), ANY_CASE, "x", merge=True)
    assert plan.schema.names == ("Id", "s", "more"), "nothing is written for day"
    assert plan.schema.simple == "struct<Id:bigint,s:struct<a:bigint,B:string,c:date>,more:string>"
    with pytest.raises(InvalidArgumentError, match=r"column s\.a of log x is missing"):
        plan_rows(GROWN, columns(s=Struct((Column("B", TEXT),)), Id=INT), ANY_CASE, "x", merge=True)
    with pytest.raises(InvalidArgumentError, match="column Id of log x is missing"):
        plan_rows(GROWN, columns(s=FIRST.fields[1].type, ID=INT), EXACT, "x", merge=True)


def test_what_a_version_changes_is_told() -> None:
    first, second = GROWN.versions()
    assert changed_columns(first.schema_json, second.schema_json) == ["Id int -> bigint", "day date"]
    assert changed_columns(first.schema_json, first.schema_json) == []
