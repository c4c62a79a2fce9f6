"""The options of reads and writes: one table, used to validate them and to print their page of documentation."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Final

from bk_spark.bookie.config import GRPC, NATIVE
from bk_spark.bookie.passwords import password_in
from bk_spark.datasource.options.client_choice import ClientChoice
from bk_spark.datasource.options.values import LEDGERS, NAMES, PATTERN, POSITIONS, TIMESTAMP, Positions
from bk_spark.log.formats.settings import EntryFormat
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.quorum import Quorum
from bk_spark.settings.kinds import BOOLEAN, MAX_LONG, PASSWORD, TEXT, Kind, choice, duration, size, whole
from bk_spark.settings.setting import Setting, declare, settings_of

_YEAR_MS: Final = 365 * 86_400_000


class Use(enum.Flag):
    """Ways in which Spark uses the data source."""

    BATCH_READ = enum.auto()
    STREAM_READ = enum.auto()
    BATCH_WRITE = enum.auto()
    STREAM_WRITE = enum.auto()
    READ = BATCH_READ | STREAM_READ
    WRITE = BATCH_WRITE | STREAM_WRITE
    ALL = READ | WRITE


class Group(enum.Enum):
    """Chapters of the page of documentation."""

    WHERE = "Where the data is"
    SOURCE = "What is read"
    RANGE = "Where a read starts and ends"
    FORM = "Entry format"
    TASKS = "Tasks of a read"
    PACE = "Size of micro-batches"
    NEW_LOG = "New logs"
    WRITING = "Writing"


@dataclass(frozen=True, slots=True)
class Option(Setting):
    """A setting, the uses in which it may be given, and its chapter."""

    uses: Use = Use.ALL
    group: Group = Group.WHERE


def _option(
    name: str,
    default: str | None,
    kind: Kind,
    uses: Use,
    group: Group,
    doc: str,
    secret: bool = False,
) -> Any:
    return declare(Option(name, default, kind, doc, secret=secret, uses=uses, group=group))


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The validated options of one read or write.

    Options that do not apply to this read or write have their defaults. Timestamps are milliseconds of Unix time.
    ``given`` has the names that the user set, in lower case.
    """

    given: frozenset[str]
    metadata_service_uri: str = _option(
        "metadataServiceUri",
        None,
        TEXT,
        Use.ALL,
        Group.WHERE,
        "Where the cluster is, in Apache's syntax: `zk+hierarchical://host:port;host:port/ledgers`. Required.",
    )
    log_root: str = _option(
        "logRoot",
        "/bk_spark/logs",
        TEXT,
        Use.ALL,
        Group.WHERE,
        "ZooKeeper path under which logs are kept. Clusters that share a ZooKeeper need different ones.",
    )
    _client_conf: str | None = _option(
        "clientConf",
        None,
        TEXT,
        Use.ALL,
        Group.WHERE,
        "File with settings of the client, such as those of TLS, under Apache's keys "
        "([client-config.md](client-config.md)). The driver and the executors must be able to read it.",
    )
    _transport: str | None = _option(
        "transport",
        None,
        choice({one: one for one in (NATIVE, GRPC)}),
        Use.ALL,
        Group.WHERE,
        "How bookies are reached: `native`, or `grpc`, which only our bookies serve ([grpc.md](grpc.md)). Without it: "
        "what `clientConf` says, else `native`.",
    )
    _password: str | None = _option(
        "password", None, PASSWORD, Use.ALL, Group.WHERE, "Password of the ledgers.", secret=True
    )
    _password_file: str | None = _option(
        "passwordFile",
        None,
        TEXT,
        Use.ALL,
        Group.WHERE,
        "File that holds the password. The driver and the executors must be able to read it.",
    )
    log: str | None = _option(
        "log",
        None,
        TEXT,
        Use.ALL,
        Group.SOURCE,
        "Name of the log. Required for writes; a write creates the log if it does not exist.",
    )
    logs: tuple[str, ...] | None = _option(
        "logs", None, NAMES, Use.READ, Group.SOURCE, "Names of several logs, separated by commas."
    )
    log_pattern: str | None = _option(
        "logPattern",
        None,
        PATTERN,
        Use.READ,
        Group.SOURCE,
        "All logs whose whole name matches this regular expression. A stream also reads logs that are created later.",
    )
    ledger_id: int | None = _option(
        "ledgerId",
        None,
        whole(most=MAX_LONG),
        Use.READ,
        Group.SOURCE,
        "Read this ledger instead of a log. Any program may have written it, or may still be writing it.",
    )
    ledger_ids: tuple[int, ...] | None = _option(
        "ledgerIds", None, LEDGERS, Use.BATCH_READ, Group.SOURCE, "Ids of several such ledgers, separated by commas."
    )
    starting_offsets: Positions | None = _option(
        "startingOffsets",
        None,
        POSITIONS,
        Use.READ,
        Group.RANGE,
        '`earliest`, `latest` (streams only), or JSON with the first offset of each log: `{"events": 100}`. '
        "-2 is the first offset of the log, -1 its end. For ledgers: entry ids by ledger id. "
        "Default: `earliest` for a batch, `latest` for a stream. Ignored when a checkpoint exists.",
    )
    starting_timestamp_ms: int | None = _option(
        "startingTimestamp",
        None,
        TIMESTAMP,
        Use.READ,
        Group.RANGE,
        "Start at the first entry committed at this time or later. Milliseconds since 1970 (UTC), or ISO 8601 such as "
        "`2026-01-31T12:00:00Z` (UTC if it names no zone). "
        "Starts at the end if no such entry exists yet. Not for ledgers.",
    )
    ending_offsets: Positions | None = _option(
        "endingOffsets",
        None,
        POSITIONS,
        Use.BATCH_READ,
        Group.RANGE,
        "`latest`, or JSON with the end offset of each log. The end offset itself is not read. -1 is the end. "
        "Default: `latest`, which is everything confirmed when the read is planned, also in an open tail.",
    )
    ending_timestamp_ms: int | None = _option(
        "endingTimestamp",
        None,
        TIMESTAMP,
        Use.BATCH_READ,
        Group.RANGE,
        "End before the first entry committed at this time or later. Same format as startingTimestamp. "
        "Not for ledgers.",
    )
    fail_on_data_loss: bool = _option(
        "failOnDataLoss",
        "true",
        BOOLEAN,
        Use.READ,
        Group.RANGE,
        "Whether requested offsets that are no longer in the log are an error. "
        "With `false` they are skipped, and a warning names them.",
    )
    push_down_filters: bool = _option(
        "pushDownFilters",
        "false",
        BOOLEAN,
        Use.BATCH_READ,
        Group.RANGE,
        "Use conditions on `offset`, `ledgerId` and `timestamp` to read less. Set it only if Spark's "
        "`spark.sql.python.filterPushdown.enabled` is `true`; otherwise every read fails.",
    )
    entry_format: EntryFormat | None = _option(
        "entryFormat",
        None,
        choice({one.value: one for one in (EntryFormat.RAW, EntryFormat.ARROW)}),
        Use.ALL,
        Group.FORM,
        "`raw`: one row per entry. `arrow`: many rows per entry, as an Arrow IPC stream. "
        "Default: what the log was created with; `raw` for new logs and for ledgers.",
    )
    include_metadata: bool = _option(
        "includeMetadata",
        "false",
        BOOLEAN,
        Use.READ,
        Group.FORM,
        "`arrow` only: add the columns log, offset, ledgerId, entryId and timestamp.",
    )
    compression: str | None = _option(
        "compression",
        "none",
        choice({"none": None, "lz4": "lz4", "zstd": "zstd"}),
        Use.WRITE,
        Group.FORM,
        "`arrow` only: compression of entries.",
    )
    entry_bytes: int = _option(
        "entryBytes", "1m", size(1024, 2**26), Use.WRITE, Group.FORM, "`arrow` only: target size of an entry."
    )
    split_bytes: int = _option(
        "splitBytes", "32m", size(1024, 2**40), Use.READ, Group.TASKS, "Approximate bytes of entries per task."
    )
    min_partitions: int = _option(
        "minPartitions", "1", whole(1, 1_000_000), Use.READ, Group.TASKS, "Lower bound of the number of tasks."
    )
    max_records_per_partition: int | None = _option(
        "maxRecordsPerPartition",
        None,
        whole(1, MAX_LONG),
        Use.READ,
        Group.TASKS,
        "Upper bound of the rows of a task. Exact for `raw`. Approximate for `arrow`, and at least one entry.",
    )
    max_entries_per_trigger: int | None = _option(
        "maxEntriesPerTrigger",
        None,
        whole(1, MAX_LONG),
        Use.STREAM_READ,
        Group.PACE,
        "Upper bound of the entries in one micro-batch, over all logs.",
    )
    max_bytes_per_trigger: int | None = _option(
        "maxBytesPerTrigger",
        None,
        size(1, 2**60),
        Use.STREAM_READ,
        Group.PACE,
        "Approximate upper bound of the bytes of entries in one micro-batch; at least one entry.",
    )
    min_entries_per_trigger: int | None = _option(
        "minEntriesPerTrigger",
        None,
        whole(1, MAX_LONG),
        Use.STREAM_READ,
        Group.PACE,
        "Wait for this many entries before a micro-batch starts, but no longer than maxTriggerDelay.",
    )
    max_trigger_delay_ms: int = _option(
        "maxTriggerDelay",
        "15m",
        duration(1, _YEAR_MS),
        Use.STREAM_READ,
        Group.PACE,
        "The longest wait for minEntriesPerTrigger.",
    )
    ensemble_size: int = _option(
        "ensembleSize", "3", whole(1, 64), Use.WRITE, Group.NEW_LOG, "Number of bookies that store a ledger."
    )
    write_quorum_size: int = _option(
        "writeQuorumSize", "3", whole(1, 64), Use.WRITE, Group.NEW_LOG, "Number of bookies that store each entry."
    )
    ack_quorum_size: int = _option(
        "ackQuorumSize",
        "2",
        whole(1, 64),
        Use.WRITE,
        Group.NEW_LOG,
        "Number of bookies that must hold an entry durably before it counts as written.",
    )
    digest_type: DigestType = _option(
        "digestType",
        "CRC32C",
        choice({one: DigestType[one] for one in ("CRC32C", "CRC32", "HMAC", "DUMMY")}),
        Use.WRITE,
        Group.NEW_LOG,
        "Digest of entries.",
    )
    txn_app_id: str | None = _option(
        "txnAppId",
        None,
        TEXT,
        Use.WRITE,
        Group.WRITING,
        "Name under which a write takes effect once, however often it is repeated. A batch also needs txnVersion. "
        "Default for a stream: the id of the query.",
    )
    txn_version: int | None = _option(
        "txnVersion",
        None,
        whole(most=MAX_LONG),
        Use.BATCH_WRITE,
        Group.WRITING,
        "Number of the write within txnAppId. Must increase.",
    )
    skip_committed_batches: bool = _option(
        "skipCommittedBatches",
        "false",
        BOOLEAN,
        Use.WRITE,
        Group.WRITING,
        "For a streaming query, or a write in its foreachBatch, whose checkpoint was set back. Batches that were "
        "committed before are skipped, even if their rows differ now. Without it the query fails.",
    )
    fence_tail: bool = _option(
        "fenceTail",
        "false",
        BOOLEAN,
        Use.WRITE,
        Group.WRITING,
        "Take over an open tail instead of failing. Its writer can no longer write.",
    )
    ledger_roll_bytes: int = _option(
        "ledgerRollBytes",
        "1g",
        size(1024, 2**40),
        Use.WRITE,
        Group.WRITING,
        "Roll to a new ledger after this many bytes.",
    )
    ledger_roll_interval_ms: int = _option(
        "ledgerRollInterval",
        "1h",
        duration(1, _YEAR_MS),
        Use.WRITE,
        Group.WRITING,
        "Roll to a new ledger after this long.",
    )

    @property
    def quorum(self) -> Quorum:
        """The quorum of a new log."""
        return Quorum(self.ensemble_size, self.write_quorum_size, self.ack_quorum_size)

    @property
    def ledgers(self) -> tuple[int, ...] | None:
        """The ids of the ledgers to read, or None if the read names logs."""
        return self.ledger_ids if self.ledger_id is None else (self.ledger_id,)

    @property
    def client(self) -> ClientChoice:
        """The settings of the client."""
        return ClientChoice(self._client_conf, self._transport)

    def password(self) -> bytes:
        """Return the password, empty if none was given. Raises InvalidArgumentError for an unreadable file."""
        if self._password_file is None:
            return (self._password or "").encode()
        remedy = "it must be readable where the driver and the executors run"
        return password_in(self._password_file, "option passwordFile", remedy)


#: All options, by field name.
OPTIONS: Final[dict[str, Option]] = settings_of(SourceOptions)
