"""Writes rows to a log and commits them, without Spark: the work of one of Spark's tasks and that of its driver."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final, Protocol

from bk_spark.log.background import look_after
from bk_spark.log.core.plan import CommitResult
from bk_spark.log.core.tail.roll import RollLimits
from bk_spark.log.entries.arrow_types import arrow_schema
from bk_spark.log.entries.schema_text import parse_schema
from bk_spark.log.formats.message import CommitMessage, CommitRequest
from bk_spark.log.formats.settings import EntryFormat, LogSettings
from bk_spark.log.gc.maintenance import MaintenanceReport
from bk_spark.log.tables.append_ledgers import TaskLedgers, WrittenLog
from bk_spark.log.tables.append_rows import EntryForm, append_rows
from bk_spark.log.tables.table_data import batches_for, reader_of
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.settings.kinds import MAX_LONG

#: In place of the id of a streaming query, as in Spark's batch writes.
_QUERY: Final = "batch"
_MODES: Final = ("append", "overwrite")
_COMPRESSIONS: Final = (None, "lz4", "zstd")
_MIN_ENTRY_BYTES, _MAX_ENTRY_BYTES = 1024, 2**26


class CommittedLog(WrittenLog, Protocol):
    """A log, as writes need it: see :class:`bk_spark.log.log.Log`."""

    log_id: str
    settings: LogSettings

    def commit(self, request: CommitRequest) -> CommitResult: ...

    def maintain(self) -> MaintenanceReport: ...


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How :meth:`bk_spark.log.log.Log.write` writes. Its parameters of the same names say more.

    Raises InvalidArgumentError for a value that is wrong.
    """

    mode: str
    txn_app_id: str | None
    txn_version: int | None
    compression: str | None
    entry_bytes: int
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
            raise InvalidArgumentError(f"compression must be lz4, zstd or None, got {self.compression!r}")
        if type(self.entry_bytes) is not int or not _MIN_ENTRY_BYTES <= self.entry_bytes <= _MAX_ENTRY_BYTES:
            raise InvalidArgumentError(
                f"entry_bytes must be a whole number from {_MIN_ENTRY_BYTES} to {_MAX_ENTRY_BYTES}, got "
                f"{self.entry_bytes!r}"
            )


def write_rows(log: CommittedLog, data: object, options: WriteOptions) -> CommitResult:
    """See :meth:`bk_spark.log.log.Log.write`."""
    settings = log.settings
    is_raw = settings.entry_format is EntryFormat.RAW
    stored = None if is_raw else parse_schema(settings.schema_json)
    with reader_of(data) as rows:
        batches = batches_for(rows, stored, log.name)
        app, run = options.txn_app_id or str(uuid.uuid4()), str(uuid.uuid4())
        form = EntryForm(
            None if stored is None else arrow_schema(stored),
            log.ledgers.client.config.max_payload_bytes(settings.digest_type),
            options.compression,
            options.entry_bytes,
        )
        ranges = append_rows(batches, TaskLedgers(log, app, run, options.roll), form, partition=0)
    message = CommitMessage(
        log.log_id, app, run, _QUERY, options.txn_version or 0, 0, ranges, None, settings.schema_version
    )
    result = log.commit(
        CommitRequest.from_messages(
            [message],
            overwrite=options.mode == "overwrite",
            anonymous=options.txn_app_id is None,
            fence_tail=options.fence_tail,
        )
    )
    look_after(log)
    return result
