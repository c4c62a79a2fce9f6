"""Batch writes: each executor appends to its own ledgers; the driver commits them to the log in one transaction."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bk_spark.datasource.name_case import names_of
from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.plain_errors import plain_errors
from bk_spark.datasource.stream.identity import micro_batch
from bk_spark.datasource.writing.idle_ledgers import idle_ledgers
from bk_spark.datasource.writing.made_tables import refuse_made_table
from bk_spark.datasource.writing.target_log import find_or_make_log
from bk_spark.datasource.writing.write_task import (
    TaskMessage,
    commit_batch,
    rows_to_merge,
    task_messages,
    write_task,
)
from bk_spark.log.formats.message import CommitMessage, CommitRequest

#: Used in place of a streaming query's id by batch writes outside foreachBatch.
_BATCH_QUERY: Final = "batch"


class BatchWriter(DataSourceArrowWriter):
    """One batch write to a log. Created in the driver (which finds or makes the log), run in executors,
    committed in the driver.

    With ``txnAppId`` and ``txnVersion`` the write may be repeated, for example in foreachBatch, and is still in the
    log only once. In foreachBatch the tasks report their query and batch, so that a query with another checkpoint is
    detected. The write then uses the query's run, whose ledgers stay open between batches.
    """

    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        self._options = options
        self._schema = schema
        self._overwrite = overwrite
        self._anonymous = options.txn_app_id is None
        self._app = options.txn_app_id or str(uuid.uuid4())
        self._batch_id = options.txn_version or 0
        self._run = str(uuid.uuid4())
        self._target = find_or_make_log(options, schema)

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append a task's rows to its own ledgers. An empty task makes none."""
        context = TaskContext.get()
        if context is not None:
            refuse_made_table(context)
        partition = context.partitionId() if context is not None else 0
        batch = micro_batch(context)
        run, cache = self._run, None
        if batch is not None and not self._anonymous and _is_uuid(batch.run):
            # In foreachBatch the next micro-batch continues in the same ledgers, as in the sink.
            run, cache = batch.run, idle_ledgers()
        names = names_of(context)
        ranges, version = write_task(iterator, self._target, self._options, self._app, run, partition, cache, names)
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
                version,
                names.case_sensitive,
            )
        )

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Add the tasks' ranges to the log, in partition order, in one transaction."""
        commit_batch(
            self._target.open(self._options.password()),
            CommitRequest.from_messages(
                task_messages(messages),
                overwrite=self._overwrite,
                anonymous=self._anonymous,
                fence_tail=self._options.fence_tail,
                skip_committed=self._options.skip_committed_batches,
                merge_schema=rows_to_merge(self._options, self._schema),
            ),
            self._options,
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: uncommitted rows are not in the log. May follow a commit that took effect."""


def _is_uuid(run: str) -> bool:
    """Whether ``run`` is the id of a query's run, not a user's name for a job group."""
    try:
        return str(uuid.UUID(run)) == run
    except ValueError:
        return False
