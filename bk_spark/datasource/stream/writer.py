"""Streaming writes: each micro-batch is in the log once, even if it is repeated or late.

Spark makes new objects for every micro-batch, in several processes. State on ``self`` is not shared, except for what
is pickled with the writer for the tasks. The commit messages therefore say which query writes which batch. Tasks learn
it from Spark's local properties.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from bk_spark.datasource.connections import LogPlace, log_at
from bk_spark.datasource.name_case import names_of
from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.plain_errors import plain_errors
from bk_spark.datasource.pyspark_api import StreamArrowWriter
from bk_spark.datasource.stream.identity import micro_batch
from bk_spark.datasource.writing.idle_ledgers import idle_ledgers
from bk_spark.datasource.writing.target_log import TargetLog, find_or_make_log
from bk_spark.datasource.writing.write_task import (
    TaskMessage,
    commit_batch,
    rows_to_merge,
    task_messages,
    write_task,
)
from bk_spark.log.formats.message import CommitMessage, CommitRequest
from bk_spark.protocol.errors import InvalidArgumentError

_LOG: Final = logging.getLogger(__name__)


class StreamWriter(StreamArrowWriter):
    """One micro-batch of a streaming query on its way to a log.

    The constructor only checks its arguments. :meth:`prepare` finds or makes the log. It is called in the driver, on
    the writer that goes to the tasks. Commit and abort do not need it, and an abort must not fail because of it.
    """

    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgumentError(
                "outputMode complete would write all rows anew with each micro-batch; a log only grows: use "
                'outputMode("append"), or foreachBatch with a batch write of mode("overwrite")'
            )
        self._options = options
        self._schema = schema
        self._target: TargetLog | None = None

    def prepare(self) -> None:
        """Find or make the log. Raises what :func:`bk_spark.datasource.writing.target_log.find_or_make_log` raises."""
        self._target = find_or_make_log(self._options, self._schema)

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append a task's rows to a ledger that this process keeps open for the query's run."""
        assert self._target is not None
        context = TaskContext.get()
        assert context is not None
        batch = micro_batch(context)
        if batch is None:
            raise InvalidArgumentError(
                "Spark does not tell the task its query and batch: streaming writes need a query started by "
                "writeStream.start()"
            )
        app = self._options.txn_app_id or batch.query_id
        partition = context.partitionId()
        names = names_of(context)
        ranges, version = write_task(
            iterator, self._target, self._options, app, batch.run, partition, idle_ledgers(), names
        )
        return TaskMessage(
            CommitMessage(
                self._target.place.log_id,
                app,
                batch.run,
                batch.query_id,
                batch.batch_id,
                partition,
                ranges,
                batch.batch_id,
                version,
                names.case_sensitive,
            )
        )

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Add the tasks' ranges to the log once, in partition order, in one transaction."""
        options = self._options
        assert options.log is not None
        request = CommitRequest.from_messages(
            task_messages(messages),
            fence_tail=options.fence_tail,
            skip_committed=options.skip_committed_batches,
            consecutive=True,
            merge_schema=rows_to_merge(options, self._schema),
        )
        if request.batch_id != batchId:
            raise InvalidArgumentError(f"tasks wrote for batch {request.batch_id}, the commit is of batch {batchId}")
        place = LogPlace(options.metadata_service_uri, options.log_root, options.log, request.log_id, options.client)
        commit_batch(log_at(place, options.password()), request, options)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Do nothing: uncommitted rows are not in the log. Tasks may still be writing, and a commit may already have
        taken effect."""
        _LOG.info("batch %d was aborted; its entries stay for the reaper, unless it was committed", batchId)
