"""Refuses catalog tables that Spark creates and fills in one step: ``saveAsTable``, ``writeTo(…).create()``.

Such a table does not keep the options of a source written in Python. Its rows would go to the log that the write names,
but the table could not be read or written afterwards. Spark tells sources only that there is something to write. It
does run the write as an execution nested in the one that creates the table, and tasks know the ids of both. No other
batch write is nested, except in foreachBatch, whose tasks know their query.
"""

from __future__ import annotations

from typing import Final

from pyspark import TaskContext

from bk_spark.datasource.options.parse import TABLES_REMEDY
from bk_spark.protocol.errors import InvalidArgumentError

_EXECUTION_ID: Final = "spark.sql.execution.id"
_ROOT_EXECUTION_ID: Final = "spark.sql.execution.root.id"
_QUERY_ID: Final = "sql.streaming.queryId"


def refuse_made_table(context: TaskContext) -> None:
    """Raise InvalidArgumentError in a task whose write creates a table."""
    execution, root = context.getLocalProperty(_EXECUTION_ID), context.getLocalProperty(_ROOT_EXECUTION_ID)
    if root is None or execution == root or context.getLocalProperty(_QUERY_ID) is not None:
        return
    raise InvalidArgumentError(
        "saveAsTable and writeTo(…).create() would make a table that has none of the rows, and that cannot be used: "
        f"nothing was written. Use save() to write to the log. {TABLES_REMEDY}"
    )
