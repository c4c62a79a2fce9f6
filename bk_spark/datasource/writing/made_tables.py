"""Tables of the catalog that Spark makes and fills in one go: ``saveAsTable``, ``writeTo(…).create()``.

Such a table keeps no options of a source written in Python. Its rows would go to the log that the write names, and the
table could neither be read nor written afterwards. Spark tells sources only that there is something to write. But it
runs the write as an execution within another one, that of making the table, and tasks are told the ids of both. Nothing
else that a batch write comes from does so, but for foreachBatch, whose tasks know their query.
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
    """Raises InvalidArgumentError in a task whose write makes a table."""
    execution, root = context.getLocalProperty(_EXECUTION_ID), context.getLocalProperty(_ROOT_EXECUTION_ID)
    if root is None or execution == root or context.getLocalProperty(_QUERY_ID) is not None:
        return
    raise InvalidArgumentError(
        "saveAsTable and writeTo(…).create() would make a table that has none of the rows, and that cannot be used: "
        f"nothing was written. Use save() to write to the log. {TABLES_REMEDY}"
    )
