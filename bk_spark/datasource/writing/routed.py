"""Writes to several logs: a column of the rows names the log of each (option logColumn).

Tasks open the logs that their rows name. The driver commits each log in a transaction of its own, in the order of their
names. Each commit takes effect once, but not all at one moment: a reader may see one log's rows before another's.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StringType, StructType

from bk_spark.datasource.connections import LogPlace, log_at
from bk_spark.datasource.kept_objects import keep_objects
from bk_spark.datasource.name_case import names_of
from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.plain_errors import plain_errors
from bk_spark.datasource.pyspark_api import StreamArrowWriter
from bk_spark.datasource.stream.identity import MicroBatch, micro_batch
from bk_spark.datasource.task_counts import counted
from bk_spark.datasource.writing.idle_ledgers import IdleLedgers, idle_ledgers
from bk_spark.datasource.writing.made_tables import refuse_made_table
from bk_spark.datasource.writing.target_log import find_log
from bk_spark.datasource.writing.write_task import commit_batch, entry_form, task_ledgers
from bk_spark.log.formats.message import CommitMessage, CommitRequest
from bk_spark.log.formats.names import check_log_name
from bk_spark.log.tables.append_ledgers import TaskLedgers
from bk_spark.log.tables.append_rows import EntryForm
from bk_spark.log.tables.routed_rows import RoutedRows
from bk_spark.protocol.errors import BookKeeperError, InvalidArgumentError

_LOG: Final = logging.getLogger(__name__)
_BATCH_QUERY: Final = "batch"


@dataclass
class RoutedMessage(WriterCommitMessage):
    """A task's commit messages, by the name of the log."""

    messages: dict[str, CommitMessage]


class _Routing:
    """What batches and streams share. Small and picklable."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        assert options.log_column is not None
        self._options = options
        self._column = options.log_column
        self._stored = _without(schema, self._column)

    def _append(
        self,
        iterator: Iterator[pa.RecordBatch],
        app: str,
        run: str,
        query: tuple[str, int, int | None],
        context: TaskContext | None,
        cache: IdleLedgers | None,
    ) -> RoutedMessage:
        """``query``: its id, the application's batch, and the query's own number of it."""
        places: dict[str, LogPlace] = {}
        versions: dict[str, int] = {}
        names, partition = names_of(context), _partition(context)

        def open_log(name: str) -> tuple[TaskLedgers, EntryForm]:
            check_log_name(name)
            target = find_log(replace(self._options, log=name), self._stored)
            form, versions[name] = entry_form(target, self._options, names)
            places[name] = target.place
            return task_ledgers(target, self._options, app, run, cache), form

        with counted(self._options):
            found = RoutedRows(self._column, open_log, self._options.max_logs, partition).append(iterator)
        keep_objects()
        query_id, batch_id, query_batch_id = query
        return RoutedMessage(
            {
                name: CommitMessage(
                    places[name].log_id,
                    app,
                    run,
                    query_id,
                    batch_id,
                    partition,
                    ranges,
                    query_batch_id,
                    versions[name],
                    names.case_sensitive,
                )
                for name, ranges in found.items()
            }
        )

    def _commit(
        self, messages: Sequence[WriterCommitMessage | None], *, batch_id: int | None = None, anonymous: bool = False
    ) -> None:
        """``batch_id``: the batch of a streaming query that Spark commits."""
        options = self._options
        by_log: dict[str, list[CommitMessage]] = {}
        for one in messages:
            if not isinstance(one, RoutedMessage):
                raise InvalidArgumentError(
                    f"one of {len(messages)} tasks left no commit message: the batch is not complete, run it again"
                )
            for name, message in one.messages.items():
                by_log.setdefault(name, []).append(message)
        if len(by_log) > options.max_logs:
            raise InvalidArgumentError(
                f"column {self._column} names {len(by_log)} logs, more than {options.max_logs}: nothing was committed; "
                "write to fewer logs at once, or raise option maxLogs"
            )
        # All are checked before the first one takes effect.
        requests = {
            name: CommitRequest.from_messages(
                by_log[name],
                anonymous=anonymous,
                fence_tail=options.fence_tail,
                skip_committed=options.skip_committed_batches,
            )
            for name in sorted(by_log)
        }
        for request in requests.values():
            if batch_id is not None and request.batch_id != batch_id:
                raise InvalidArgumentError(
                    f"tasks wrote for batch {request.batch_id}, the commit is of batch {batch_id}"
                )
        done: list[str] = []
        for name, request in requests.items():
            place = LogPlace(options.metadata_service_uri, options.log_root, name, request.log_id, options.client)
            try:
                commit_batch(log_at(place, options.password()), request, options)
            except BookKeeperError as error:
                if done:
                    raise type(error)(f"{error.message}{self._told(done, [*requests][len(done) :])}") from error
                raise
            done.append(name)

    def _told(self, done: list[str], left: list[str]) -> str:
        remedy = (
            "the same write with its txnAppId and txnVersion adds only what is missing"
            if self._options.txn_version is not None
            else "a streaming query repeats the batch and adds only what is missing; a batch needs txnAppId and "
            "txnVersion for that"
        )
        return (
            f". The rows for {len(done)} logs ({_some(done)}) are committed, those for {len(left)} ({_some(left)}) are "
            f"not: {remedy}"
        )


class RoutedBatchWriter(_Routing, DataSourceArrowWriter):
    """One batch write to several logs."""

    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema)
        if overwrite:
            raise InvalidArgumentError(
                'mode("overwrite") with option logColumn would not say which logs to overwrite: use mode("append"), or '
                "overwrite one log with option log"
            )
        self._app = options.txn_app_id or str(uuid.uuid4())
        self._run = str(uuid.uuid4())

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append a task's rows to ledgers of its own, one for each log that they name."""
        context = TaskContext.get()
        if context is not None:
            refuse_made_table(context)
        batch = micro_batch(context)
        version = self._options.txn_version or 0
        query: tuple[str, int, int | None] = (_BATCH_QUERY, version, None)
        if batch is not None:
            query = (batch.query_id, version, batch.batch_id)
        return self._append(iterator, self._app, self._run, query, context, None)

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Add the tasks' ranges to each log, in partition order."""
        self._commit(messages, anonymous=self._options.txn_app_id is None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: uncommitted rows are not in the logs."""


class RoutedStreamWriter(_Routing, StreamArrowWriter):
    """One micro-batch of a streaming query on its way to several logs."""

    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema)
        if overwrite:
            raise InvalidArgumentError(
                "outputMode complete would write all rows anew with each micro-batch; logs only grow: use "
                'outputMode("append")'
            )

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append a task's rows to ledgers that this process keeps open for the query's run."""
        context = TaskContext.get()
        batch: MicroBatch | None = micro_batch(context)
        if batch is None:
            raise InvalidArgumentError(
                "Spark does not tell the task its query and batch: streaming writes need a query started by "
                "writeStream.start()"
            )
        app = self._options.txn_app_id or batch.query_id
        query = (batch.query_id, batch.batch_id, batch.batch_id)
        return self._append(iterator, app, batch.run, query, context, idle_ledgers())

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Add the tasks' ranges to each log once, in partition order."""
        self._commit(messages, batch_id=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Do nothing: uncommitted rows are not in the logs, and a commit may already have taken effect."""
        _LOG.info("batch %d was aborted; its entries stay for the reaper, unless it was committed", batchId)


def _without(schema: StructType, column: str) -> StructType:
    """Return the columns that are stored. Raises InvalidArgumentError."""
    names = [field.name for field in schema.fields if field.name == column]
    if len(names) != 1:
        raise InvalidArgumentError(
            f"option logColumn: the rows have {'no' if not names else 'more than one'} column {column}; they have "
            f"{', '.join(schema.fieldNames()[:20])}"
        )
    if not isinstance(schema[column].dataType, StringType):
        raise InvalidArgumentError(
            f"option logColumn: column {column} is {schema[column].dataType.simpleString()}, and names of logs are "
            f"strings: cast it"
        )
    return StructType([field for field in schema.fields if field.name != column])


def _partition(context: TaskContext | None) -> int:
    return 0 if context is None else context.partitionId()


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
