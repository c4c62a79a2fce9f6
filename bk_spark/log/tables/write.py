"""Writes rows to a log and commits them, without Spark: the work of one of Spark's tasks and that of its driver."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from bk_spark.log.background import look_after
from bk_spark.log.core.plan import CommitResult
from bk_spark.log.core.tail.roll import RollLimits
from bk_spark.log.entries.arrow_types import arrow_schema, schema_of_arrow
from bk_spark.log.entries.columns import stored_schema
from bk_spark.log.entries.rows_plan import plan_rows
from bk_spark.log.entries.schema_checks import check_has_columns
from bk_spark.log.entries.schema_text import parse_schema, schema_text
from bk_spark.log.formats.message import CommitMessage, CommitRequest
from bk_spark.log.formats.schema_merge import ANY_CASE, EXACT, Names
from bk_spark.log.formats.settings import EntryFormat, LogSettings
from bk_spark.log.gc.maintenance import MaintenanceReport
from bk_spark.log.tables.append_ledgers import TaskLedgers, WrittenLog
from bk_spark.log.tables.append_rows import EntryForm, append_rows
from bk_spark.log.tables.table_data import cast_rows, raw_columns, reader_of, table_columns
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.settings.kinds import MAX_LONG

#: In place of the id of a streaming query, as in Spark's batch writes.
_QUERY: Final = "batch"
_MODES: Final = ("append", "overwrite")
#: The compression if a write names none: lz4 for an arrow log. A raw log has none.
AUTO: Final = "auto"
_USUAL: Final = "lz4"
_COMPRESSIONS: Final = (None, AUTO, "lz4", "zstd")
_ENTRY_BYTES: Final = 1024 * 1024
_MIN_ENTRY_BYTES, _MAX_ENTRY_BYTES = 1024, 2**26


class CommittedLog(WrittenLog, Protocol):
    """A log, as writes need it: see :class:`bk_spark.log.log.Log`."""

    log_id: str

    @property
    def settings(self) -> LogSettings:
        """What entries hold, and the schema: the current one after :meth:`learn_settings`."""
        ...

    def learn_settings(self) -> None:
        """Read the settings anew. Raises MetadataUnavailableError, MetadataFormatError."""
        ...

    def commit(self, request: CommitRequest) -> CommitResult:
        """Append the batch once. Raises what :meth:`bk_spark.log.log.Log.commit` raises."""
        ...

    def maintain(self) -> MaintenanceReport:
        """Do what is due of the log's maintenance. May raise any error."""
        ...


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How :meth:`bk_spark.log.log.Log.write` writes. Its parameters of the same names say more.

    Raises InvalidArgumentError for a value that is wrong.
    """

    mode: str
    txn_app_id: str | None
    txn_version: int | None
    compression: str | None
    entry_bytes: int | None
    merge_schema: bool
    fence_tail: bool
    roll: RollLimits

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise InvalidArgumentError(f"mode must be append or overwrite, got {self.mode!r}")
        if (self.txn_app_id is None) != (self.txn_version is None):
            raise InvalidArgumentError("txn_app_id and txn_version go together: give both or neither")
        if self.txn_app_id is not None and not (isinstance(self.txn_app_id, str) and self.txn_app_id):
            raise InvalidArgumentError(f"txn_app_id must be a name, got {self.txn_app_id!r}")
        if self.txn_version is not None and not (type(self.txn_version) is int and 0 <= self.txn_version <= MAX_LONG):
            raise InvalidArgumentError(f"txn_version must be a whole number, 0 or more, got {self.txn_version!r}")
        if self.compression not in _COMPRESSIONS:
            raise InvalidArgumentError(f"compression must be auto, lz4, zstd or None, got {self.compression!r}")
        if type(self.merge_schema) is not bool:
            raise InvalidArgumentError(f"merge_schema must be True or False, got {self.merge_schema!r}")
        size = self.entry_bytes
        if size is not None and (type(size) is not int or not _MIN_ENTRY_BYTES <= size <= _MAX_ENTRY_BYTES):
            raise InvalidArgumentError(
                f"entry_bytes must be a whole number from {_MIN_ENTRY_BYTES} to {_MAX_ENTRY_BYTES}, got "
                f"{self.entry_bytes!r}"
            )


def write_rows(log: CommittedLog, data: object, options: WriteOptions) -> CommitResult:
    """See :meth:`bk_spark.log.log.Log.write`."""
    if options.merge_schema:
        # Others may have added columns since the log was opened.
        log.learn_settings()
    with reader_of(data) as rows:
        plan = _plan(log, rows.schema, options)
        app, run = options.txn_app_id or str(uuid.uuid4()), str(uuid.uuid4())
        form = EntryForm(
            plan.entries,
            log.ledgers.client.config.max_payload_bytes(log.settings.digest_type),
            _USUAL if options.compression == AUTO else options.compression,
            options.entry_bytes or _ENTRY_BYTES,
            plan.names,
        )
        batches = cast_rows(rows, plan.rows)
        ranges = append_rows(batches, TaskLedgers(log, app, run, options.roll), form, partition=0)
    message = CommitMessage(
        log.log_id,
        app,
        run,
        _QUERY,
        options.txn_version or 0,
        0,
        ranges,
        schema_version=plan.version,
        case_sensitive=plan.names.case_sensitive,
    )
    result = log.commit(
        CommitRequest.from_messages(
            [message],
            overwrite=options.mode == "overwrite",
            anonymous=options.txn_app_id is None,
            fence_tail=options.fence_tail,
            merge_schema=plan.merged,
        )
    )
    if options.merge_schema:
        log.learn_settings()
    look_after(log)
    return result


@dataclass(frozen=True, slots=True)
class _Plan:
    """How rows are written. ``rows`` has the columns of the data in the types that a log has, ``entries`` those of the
    entries (None: the log is raw). ``merged`` are the columns that the commit merges, ``version`` is that of the schema
    otherwise."""

    rows: pa.Schema
    entries: pa.Schema | None
    names: Names = EXACT
    version: int = 0
    merged: str | None = None


def _plan(log: CommittedLog, given: pa.Schema, options: WriteOptions) -> _Plan:
    settings = log.settings
    if settings.entry_format is EntryFormat.RAW:
        _refuse_arrow_options(options, log.name)
        return _Plan(raw_columns(given), None)
    if not options.merge_schema:
        columns = table_columns(given, parse_schema(settings.schema_json), log.name)
        return _Plan(columns, columns, version=settings.schema_version)
    written = stored_schema(schema_of_arrow(given))
    check_has_columns(written)
    # As Spark's default: names that differ only by case are one column.
    assert settings.schemas is not None
    plan = plan_rows(settings.schemas, written, ANY_CASE, log.name, merge=True)
    return _Plan(arrow_schema(written), arrow_schema(plan.schema), plan.names, 0, schema_text(written))


def _refuse_arrow_options(options: WriteOptions, log: str) -> None:
    given = {
        "compression": options.compression not in (AUTO, None),
        "entry_bytes": options.entry_bytes is not None,
        "merge_schema": options.merge_schema,
    }
    for name, is_given in given.items():
        if is_given:
            raise InvalidArgumentError(f"{name} is for logs with entryFormat arrow; log {log} is raw: leave it out")
