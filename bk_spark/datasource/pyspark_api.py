"""What releases of PySpark name differently, or lack. Other modules ask here, not for a version.

=====================================  =================================================
Spark                                  what it has
=====================================  =================================================
4.0                                    sources in Python; batch writes get Arrow batches
4.1                                    filters of batch reads; streaming writes get Arrow batches
4.2                                    limits of streaming reads
=====================================  =================================================
"""

from __future__ import annotations

import importlib.util
from inspect import signature
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

#: Whether Spark passes the filters of a query to a batch read.
HAS_FILTERS: Final = hasattr(datasource, "Filter")
#: Whether Spark passes the start and the limit of a micro-batch to a streaming read.
HAS_LIMITS: Final = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None

if hasattr(datasource, "DataSourceStreamArrowWriter"):
    #: Base of a streaming write that gets Arrow batches.
    StreamArrowWriter = datasource.DataSourceStreamArrowWriter
else:
    # Spark 4.0 gives Arrow batches to every writer of this class, in streams, too.
    class StreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[no-redef, misc]
        """Base of a streaming write that gets Arrow batches."""


# Before 4.2 the time zone is UTC, and there is no such argument.
_UTC: Final[dict[str, Any]] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}


def spark_arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark exchanges ``schema``, in time zone UTC. Raises PySparkException, TypeError
    or ValueError for what Arrow cannot carry, which includes a struct with two fields of one name."""
    return to_arrow_schema(schema, error_on_duplicated_field_names_in_struct=True, **_UTC)


def spark_struct(schema: pa.Schema) -> StructType:
    """Return Spark's columns for an Arrow schema, with ``timestamp_ntz`` for a timestamp without zone. Raises
    PySparkException for a type that Spark lacks."""
    # Before 4.2 the default is a timestamp with zone, whose values the session's zone would shift.
    found: StructType = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    return found
