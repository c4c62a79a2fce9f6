"""Batch writes: executors append to ledgers of their own, the driver commits them to the log at once."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.plain_errors import plain_errors
from bk_spark.datasource.stream.identity import micro_batch
from bk_spark.datasource.writing.idle_ledgers import idle_ledgers
from bk_spark.datasource.writing.made_tables import refuse_made_table
from bk_spark.datasource.writing.target_log import find_or_make_log
from bk_spark.datasource.writing.write_task import TaskMessage, commit_batch, task_messages, write_task
from bk_spark.log.formats.message import CommitMessage, CommitRequest

#: Stands for a streaming query's id in batch writes outside of foreachBatch.
_BATCH_QUERY: Final = "batch"


class BatchWriter(DataSourceArrowWriter):
    """One batch write to a log. Made in the driver (which finds or makes the log), run in executors,
    committed in the driver.

    With ``txnAppId`` and ``txnVersion`` it may be repeated, in foreachBatch for one: it is in the log once. There its
    tasks tell of which query it is, and of which of its batches: so a query with another checkpoint is known. Its run
    is the query's, whose ledgers live on from batch to batch.
    """

    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        self._options = options
        self._overwrite = overwrite
        self._anonymous = options.txn_app_id is None
        self._app = options.txn_app_id or str(uuid.uuid4())
        self._batch_id = options.txn_version or 0
        self._run = str(uuid.uuid4())
        self._target = find_or_make_log(options, schema)

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append a task's rows to ledgers of its own; an empty task makes none."""
        context = TaskContext.get()
        if context is not None:
            refuse_made_table(context)
        partition = context.partitionId() if context is not None else 0
        batch = micro_batch(context)
        run, cache = self._run, None
        if batch is not None and not self._anonymous and _is_uuid(batch.run):
            # In foreachBatch the next micro-batch goes on in the same ledgers, as in the sink.
            run, cache = batch.run, idle_ledgers()
        ranges = write_task(iterator, self._target, self._options, self._app, run, partition, cache)
        return TaskMessage(
            CommitMessage(
                self._target.place.log_id,
                self._app,
                run,
                _BATCH_QUERY if batch is None else batch.query_id,
                self._batch_id,
                partition,
                ranges,
                None if batch is None else batch.batch_id,
            )
        )

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Put the tasks' ranges into the log, in partition order, in one transaction."""
        commit_batch(
            self._target.open(self._options.password()),
            CommitRequest.from_messages(
                task_messages(messages),
                overwrite=self._overwrite,
                anonymous=self._anonymous,
                fence_tail=self._options.fence_tail,
                skip_committed=self._options.skip_committed_batches,
            ),
            self._options,
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to undo: what was not committed is not in the log. May follow a commit that took effect."""


def _is_uuid(run: str) -> bool:
    """Whether it is the id of a query's run, and not a name that somebody gave to a group of jobs."""
    try:
        return str(uuid.UUID(run)) == run
    except ValueError:
        return False
