"""Data that programs write to a log, as Arrow batches with the columns of the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from bk_spark.log.entries.arrow_types import arrow_schema, schema_of_arrow
from bk_spark.log.entries.columns import Schema, stored_schema
from bk_spark.log.entries.schema_checks import (
    VALUE,
    check_has_columns,
    check_no_duplicates,
    check_raw_write,
    check_same_names,
)
from bk_spark.log.entries.schema_text import schema_text
from bk_spark.protocol.errors import InvalidArgumentError

_MERGE: Final = ", or write with merge_schema=True, which adds it"
_WIDEN: Final = ", or write with merge_schema=True, which widens columns"
#: Types whose values an entry of a raw log takes as they are.
_BYTES: Final = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())


def new_schema_text(given: object) -> str:
    """Return the text of the schema of a new arrow log. ``given`` is an Arrow schema, or has one.

    Raises InvalidArgumentError naming a column whose type a log cannot have.
    """
    schema = stored_schema(schema_of_arrow(_as_schema(given)))
    check_has_columns(schema)
    arrow_schema(schema)
    return schema_text(schema)


def reader_of(data: object) -> pa.RecordBatchReader:
    """Return the rows of Arrow, pandas or polars data, or of anything that hands over an Arrow stream.

    Raises InvalidArgumentError for other data.
    """
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.Table):
        return data.to_reader()
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    kind = f"{type(data).__module__}.{type(data).__qualname__}"
    try:
        if kind.startswith("pandas.") and kind.endswith(".DataFrame"):
            return pa.Table.from_pandas(data).replace_schema_metadata(None).to_reader()
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{kind} has no Arrow form: {error}; convert the column that is named") from error
    raise InvalidArgumentError(
        f"a log takes Arrow tables, batches and readers, DataFrames of pandas and polars, and whatever hands over an "
        f"Arrow stream, not {kind}: make a pyarrow.Table of it"
    )


def raw_columns(given: pa.Schema) -> pa.Schema:
    """Return the column of a raw log as entries take it. Raises InvalidArgumentError for any other columns."""
    check_raw_write(schema_of_arrow(given))
    value = given.field(VALUE).type
    return pa.schema([pa.field(VALUE, value if value in _BYTES else pa.large_binary())])


def table_columns(given: pa.Schema, stored: Schema, log: str) -> pa.Schema:
    """Return the columns of an arrow log. Raises InvalidArgumentError if rows lack some, have more or other types."""
    written = schema_of_arrow(given)
    check_no_duplicates(written)
    wanted = arrow_schema(stored)
    check_same_names(written, stored, log, remedy=_MERGE)
    _check_types(arrow_schema(stored_schema(written)), written, wanted, stored, log)
    return wanted


def _check_types(found: pa.Schema, given: Schema, wanted: pa.Schema, stored: Schema, log: str) -> None:
    # Arrow types are compared, not the names of Spark's: Arrow has neither the precision of a time nor users' types.
    for column, fixed in zip(wanted, stored.fields, strict=True):
        if found.field(column.name).type != column.type:
            own = given.find(column.name)
            assert own is not None
            raise InvalidArgumentError(
                f"column {column.name} is {own.type.simple} here and {fixed.type.simple} in log {log}: cast it{_WIDEN}"
            )


def cast_rows(rows: pa.RecordBatchReader, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield ``rows`` with exactly the columns ``wanted``, to whose types theirs can be cast.

    Raises InvalidArgumentError for a value that does not fit, such as a time with nanoseconds.
    """
    for batch in rows:
        arrays = []
        for column in wanted:
            array = batch.column(column.name)
            try:
                arrays.append(array if array.type == column.type else array.cast(column.type))
            except pa.ArrowException as error:
                raise InvalidArgumentError(
                    f"column {column.name} does not fit into {column.type}: {error}; cast it before the write"
                ) from error
        yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _as_schema(given: Any) -> pa.Schema:
    if isinstance(given, pa.Schema):
        return given
    if hasattr(given, "__arrow_c_schema__"):
        return pa.schema(given)
    return reader_of(given).schema
