"""Which micro-batch a task works for, according to Spark. Known in tasks of a streaming write and of a batch write in
foreachBatch. Spark tells the committing process nothing, so the commit messages carry the ids to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark import TaskContext

# Local properties of a streaming query's jobs. The job group is the id of the query's run.
_QUERY_ID: Final = "sql.streaming.queryId"
_RUN_ID: Final = "spark.jobGroup.id"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch. ``query_id`` survives restarts of the query, ``run`` does not."""

    query_id: str
    run: str
    batch_id: int


def query_id_of(context: TaskContext) -> str | None:
    """Return the id of the query that a task works for, also if it only reads, or None for a task of a batch."""
    found: str | None = context.getLocalProperty(_QUERY_ID)
    return found


def micro_batch(context: TaskContext | None) -> MicroBatch | None:
    """Return the micro-batch of a task, or None if it has none or Spark does not say. In foreachBatch, jobs that a
    user's own thread starts have the properties only with ``pyspark.inheritable_thread_target``."""
    if context is None:
        return None
    query_id, run, batch_id = (context.getLocalProperty(name) for name in (_QUERY_ID, _RUN_ID, _BATCH_ID))
    if query_id is None or run is None or batch_id is None:
        return None
    return MicroBatch(query_id, run, int(batch_id))
