"""What batch and streaming writes share: a task's rows go to ledgers, its message goes to the driver, and the driver
commits the messages.

How rows go to ledgers is in :mod:`bk_spark.log.tables`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from bk_spark.datasource.entries.schemas import arrow_schema, spark_schema
from bk_spark.datasource.kept_objects import keep_objects
from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.task_counts import counted
from bk_spark.datasource.writing.idle_ledgers import IdleLedgers, LedgerKey
from bk_spark.datasource.writing.target_log import TargetLog
from bk_spark.log.background import look_after
from bk_spark.log.core.plan import CommitResult
from bk_spark.log.core.tail.roll import RollLimits
from bk_spark.log.entries.columns import Schema
from bk_spark.log.formats.message import CommitMessage, CommitRequest, LedgerRange
from bk_spark.log.formats.schema_merge import EXACT, Names
from bk_spark.log.log import Log
from bk_spark.log.tables.append_ledgers import TaskLedgers
from bk_spark.log.tables.append_rows import EntryForm, append_rows
from bk_spark.protocol.errors import (
    InvalidArgumentError,
)

_LOG: Final = logging.getLogger(__name__)


@dataclass
class TaskMessage(WriterCommitMessage):
    """A task's commit message, as Spark carries it."""

    message: CommitMessage


def write_task(
    batches: Iterator[pa.RecordBatch],
    target: TargetLog,
    options: SourceOptions,
    app: str,
    run: str,
    partition: int,
    cache: IdleLedgers | None,
    names: Names,
) -> tuple[tuple[LedgerRange, ...], int]:
    """Append a task's rows. Returns where they are, and the version of the log's schema that they have.

    A task without rows uses no ledger. With ``cache``, ledgers stay open for the next task of ``run``. ``names`` says
    how Spark compares names.

    Raises InvalidArgumentError for a row that cannot be written, RunRetiredError, errors of the ledger client.
    """
    with counted(options):
        ledgers = task_ledgers(target, options, app, run, cache)
        form, version = entry_form(target, options, names)
        ranges = append_rows(batches, ledgers, form, partition)
    keep_objects()
    return ranges, version


def task_ledgers(
    target: TargetLog, options: SourceOptions, app: str, run: str, cache: IdleLedgers | None = None
) -> TaskLedgers:
    """Return the ledgers to which a task appends. With ``cache``, they stay open for the next task of ``run``."""
    return TaskLedgers(
        target.open(options.password()),
        app,
        run,
        RollLimits(options.ledger_roll_bytes, options.ledger_roll_interval_ms),
        None if cache is None else cache.of(LedgerKey(target.place, app, run)),
    )


def entry_form(target: TargetLog, options: SourceOptions, names: Names) -> tuple[EntryForm, int]:
    """Return how rows become entries of ``target``, and the version of the log's schema that they have then."""
    log = target.open(options.password())
    plan = target.plan(names)
    form = EntryForm(
        None if plan is None else _arrow_schema_of(plan.schema),
        log.ledgers.client.config.max_payload_bytes(log.settings.digest_type),
        options.compression,
        options.entry_bytes,
        EXACT if plan is None else plan.names,
    )
    return form, 0 if plan is None else plan.version


def commit_batch(log: Log, request: CommitRequest, options: SourceOptions) -> CommitResult:
    """Commit, and run maintenance of the log if due. Raises what the commit raises."""
    result = log.commit(request)
    _LOG.info("log %s: batch %d of %s: %s", log.name, request.batch_id, request.app, result)
    look_after(log)
    return result


def task_messages(messages: Sequence[WriterCommitMessage | None]) -> tuple[CommitMessage, ...]:
    """Return the tasks' messages. Raises InvalidArgumentError if one is missing: its rows would be lost."""
    told = tuple(one.message for one in messages if isinstance(one, TaskMessage))
    if len(told) != len(messages):
        raise InvalidArgumentError(
            f"{len(messages) - len(told)} of {len(messages)} tasks left no commit message: the batch is not complete, "
            "run it again"
        )
    return told


def rows_to_merge(options: SourceOptions, schema: StructType) -> str | None:
    """Return the columns that a commit merges into the log's schema. None without option mergeSchema."""
    return schema.json() if options.merge_schema else None


@functools.lru_cache(16)
def _arrow_schema_of(schema: Schema) -> pa.Schema:
    return arrow_schema(spark_schema(schema))
