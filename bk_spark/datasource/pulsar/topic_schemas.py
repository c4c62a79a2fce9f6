"""The columns of a read of topics."""

from __future__ import annotations

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from bk_spark.datasource.entries.schemas import arrow_schema, check_has_columns
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.pulsar.columns import COLUMNS


def topic_schema() -> StructType:
    """Return the schema of a read without one."""
    found: StructType = from_arrow_schema(COLUMNS)
    return found


def check_topic_read(schema: StructType) -> None:
    """Raise InvalidArgumentError, naming the column, if a topic cannot be read as ``schema``."""
    check_has_columns(schema)
    arrow_schema(schema)
    known = {one.name: one for one in from_arrow_schema(COLUMNS).fields}
    for one in schema.fields:
        if one.name not in known:
            raise InvalidArgumentError(
                f"a topic of Pulsar has no column {one.name}; it has {', '.join(known)}: leave the column out of the "
                "schema"
            )
        _check_type(one, known[one.name])


def _check_type(wanted: StructField, known: StructField) -> None:
    text = wanted.dataType.simpleString()
    allowed = [known.dataType.simpleString()]
    if allowed == ["binary"]:
        allowed.append("string")
    if text not in allowed:
        raise InvalidArgumentError(
            f"column {wanted.name} of a topic is {allowed[0]}, not {text}: give it as {' or '.join(allowed)}"
        )
