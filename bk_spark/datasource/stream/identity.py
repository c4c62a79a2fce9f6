"""Which micro-batch a task works for, as Spark tells it; in the tasks of a streaming write and in those that a batch
write of foreachBatch starts. The process that commits is told nothing: there the ids come with the commit messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark import TaskContext

# Local properties of a streaming query's jobs. The group of its jobs is the id of the query's run.
_QUERY_ID: Final = "sql.streaming.queryId"
_RUN_ID: Final = "spark.jobGroup.id"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """``query_id`` stays the same over a query's restarts, ``run`` does not."""

    query_id: str
    run: str
    batch_id: int


def micro_batch(context: TaskContext | None) -> MicroBatch | None:
    """The micro-batch of a task; None where it works for none, or where Spark does not tell: in foreachBatch jobs from
    a thread of one's own have the properties only with ``pyspark.inheritable_thread_target``."""
    if context is None:
        return None
    query_id, run, batch_id = (context.getLocalProperty(name) for name in (_QUERY_ID, _RUN_ID, _BATCH_ID))
    if query_id is None or run is None or batch_id is None:
        return None
    return MicroBatch(query_id, run, int(batch_id))
