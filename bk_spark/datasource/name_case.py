"""How this session of Spark compares names: ``spark.sql.caseSensitive``. Only tasks can ask Spark for it."""

from __future__ import annotations

from typing import Final

from pyspark import TaskContext

from bk_spark.log.formats.schema_merge import ANY_CASE, EXACT, Names

_CASE_SENSITIVE: Final = "spark.sql.caseSensitive"


def names_of(context: TaskContext | None) -> Names:
    """Return how names are compared. If Spark does not say: without regard to case, as is its default."""
    told = None if context is None else context.getLocalProperty(_CASE_SENSITIVE)
    return EXACT if told is not None and told.lower() == "true" else ANY_CASE
