"""Batch writes: executors append to ledgers of their own, the driver commits them to the log at once."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.blocking_writer import BlockingWriter
from bk_spark.datasource import arrow_format, raw_format
from bk_spark.datasource.connections import client_of, logs_of
from bk_spark.datasource.options import SourceOptions
from bk_spark.datasource.plain_errors import plain_errors
from bk_spark.datasource.schemas import (
    arrow_schema,
    check_raw_write,
    check_same_columns,
    schema_of_json,
    stored_schema,
)
from bk_spark.log.log import Log
from bk_spark.log.message import CommitMessage, CommitRequest, LedgerRange
from bk_spark.log.settings import EntryFormat, LogSettings
from bk_spark.protocol.errors import InvalidArgumentError, LogExistsError
from bk_spark.protocol.payloads import Payloads

_LOG = logging.getLogger(__name__)
#: Stands for a streaming query's id in batch writes.
_BATCH_QUERY = "batch"


@dataclass
class TaskMessage(WriterCommitMessage):
    """A task's commit message, as Spark carries it."""

    message: CommitMessage


class BatchWriter(DataSourceArrowWriter):
    """One batch write to a log. Made in the driver (which finds or makes the log), run in executors,
    committed in the driver."""

    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        assert options.log is not None
        self._options = options
        self._schema = schema
        self._overwrite = overwrite
        self._log_name = options.log
        self._password = options.password()
        self._anonymous = options.txn_app_id is None
        self._app = options.txn_app_id or str(uuid.uuid4())
        self._batch_id = options.txn_version or 0
        self._run = str(uuid.uuid4())
        self._log_id = self._find_or_make_log().log_id

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append a task's rows to a new ledger; an empty task makes none."""
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        log = self._open_log()
        client = client_of(self._options.metadata_service_uri)
        task = _TaskLedger(self, log, client)
        try:
            limit = client.config.max_payload_bytes(log.settings.digest_type)
            if log.settings.entry_format is EntryFormat.RAW:
                for payloads in raw_format.rows(iterator, partition, limit):
                    task.append(payloads, len(payloads))
            else:
                entries = arrow_format.entries_of(
                    iterator,
                    arrow_schema(schema_of_json(log.settings.schema_json)),
                    compression=self._options.compression,
                    entry_bytes=min(self._options.entry_bytes, limit),
                    max_entry_bytes=limit,
                    partition=partition,
                )
                for entry, rows in entries:
                    task.append(Payloads.of([memoryview(entry)]), rows)
            ranges = task.finish()
        except BaseException:
            task.abandon()
            raise
        return TaskMessage(
            CommitMessage(log.log_id, self._app, self._run, _BATCH_QUERY, self._batch_id, partition, ranges)
        )

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Put the tasks' ranges into the log, in partition order, in one transaction."""
        ours = tuple(one.message for one in messages if isinstance(one, TaskMessage))
        log = self._open_log()
        result = log.commit(
            CommitRequest(
                self._log_id,
                self._app,
                self._run,
                _BATCH_QUERY,
                self._batch_id,
                ours,
                overwrite=self._overwrite,
                anonymous=self._anonymous,
            ),
            recover=self._recover,
        )
        _LOG.info("log %s: %s", self._log_name, result)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to undo: what was not committed is not in the log. May follow a commit that took effect."""

    def _recover(self, ledger_ids: Sequence[int]) -> None:
        """Fence and close what runs that this one took over from may still be writing."""
        client = client_of(self._options.metadata_service_uri)
        for ledger_id in ledger_ids:
            client.recover_and_open(ledger_id, self._password)

    def _find_or_make_log(self) -> Log:
        options = self._options
        logs = logs_of(options.metadata_service_uri, options.log_root)
        if not logs.exists(self._log_name):
            settings = self._new_settings()
            # Better no log than one that nobody can write to.
            client_of(options.metadata_service_uri).check_enough_bookies(options.quorum)
            try:
                return logs.create_log(self._log_name, settings)
            except LogExistsError:
                pass  # another writer was first: its settings count, as for any log that exists
        log = logs.open_log(self._log_name)
        self._check_settings(log.settings)
        return log

    def _new_settings(self) -> LogSettings:
        options = self._options
        entry_format = options.entry_format or EntryFormat.RAW
        schema_json = None
        if entry_format is EntryFormat.RAW:
            check_raw_write(self._schema)
            self._refuse_arrow_options()
        else:
            arrow_schema(self._schema)
            schema_json = stored_schema(self._schema).json()
        return LogSettings.create(options.quorum, options.digest_type, entry_format, self._password, schema_json)

    def _check_settings(self, settings: LogSettings) -> None:
        options = self._options
        settings.check_password(self._password, self._log_name)
        asked: tuple[tuple[str, object, object], ...] = (
            ("entryFormat", options.entry_format and options.entry_format.value, settings.entry_format.value),
            ("ensembleSize", options.quorum.ensemble_size, settings.quorum.ensemble_size),
            ("writeQuorumSize", options.quorum.write_quorum_size, settings.quorum.write_quorum_size),
            ("ackQuorumSize", options.quorum.ack_quorum_size, settings.quorum.ack_quorum_size),
            ("digestType", options.digest_type.name, settings.digest_type.name),
        )
        for name, wanted, fixed in asked:
            if name.lower() in options.given and wanted != fixed:
                raise InvalidArgumentError(
                    f"option {name}: log {self._log_name} was made with {fixed}, which cannot be changed to {wanted}; "
                    "leave the option out, or write to another log"
                )
        if settings.entry_format is EntryFormat.RAW:
            check_raw_write(self._schema)
            self._refuse_arrow_options()
        else:
            check_same_columns(self._schema, schema_of_json(settings.schema_json), self._log_name)

    def _refuse_arrow_options(self) -> None:
        for name in ("compression", "entryBytes"):
            if name.lower() in self._options.given:
                raise InvalidArgumentError(f"option {name} is for entryFormat arrow; log {self._log_name} is raw")

    def _open_log(self) -> Log:
        logs = logs_of(self._options.metadata_service_uri, self._options.log_root)
        return logs.open_log(self._log_name, log_id=self._log_id)


class _TaskLedger:
    """The ledger of one task, made at its first rows."""

    def __init__(self, writer: BatchWriter, log: Log, client: BlockingClient) -> None:
        self._task = writer
        self._log = log
        self._client = client
        self._ledger: BlockingWriter | None = None
        self._rows = 0

    def append(self, payloads: Payloads, rows: int) -> None:
        if self._ledger is None:
            task, log = self._task, self._log
            self._ledger = self._client.create(
                quorum=log.settings.quorum,
                digest_type=log.settings.digest_type,
                password=task._password,
                create_with=log.ledger_registrar(task._app, task._run),
            )
        self._ledger.append_many(payloads)
        self._rows += rows

    def finish(self) -> tuple[LedgerRange, ...]:
        """Wait for every acknowledgement, close the ledger; what it holds."""
        if self._ledger is None:
            return ()
        closed = self._ledger.close()
        return (LedgerRange(self._ledger.ledger_id, 0, closed.last_entry_id, self._rows, closed.length),)

    def abandon(self) -> None:
        if self._ledger is not None:
            self._ledger.abandon()
