"""The options of reads and writes: one table, used to validate them and to print their page of documentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bk_spark.bookie.config import GRPC, NATIVE
from bk_spark.bookie.passwords import password_in
from bk_spark.datasource.options.client_choice import ClientChoice
from bk_spark.datasource.options.option import Group, Option, Use, option
from bk_spark.datasource.options.pulsar_options import PulsarOptions
from bk_spark.datasource.options.values import LEDGERS, NAMES, PATTERN
from bk_spark.log.formats.settings import EntryFormat
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.quorum import Quorum
from bk_spark.settings.kinds import BOOLEAN, MAX_LONG, PASSWORD, TEXT, choice, duration, size, whole
from bk_spark.settings.setting import settings_of

__all__ = ["OPTIONS", "Group", "Option", "SourceOptions", "Use"]

_YEAR_MS: Final = 365 * 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(PulsarOptions):
    """The validated options of one read or write.

    Options that do not apply to this read or write have their defaults. Timestamps are milliseconds of Unix time.
    ``given`` has the names that the user set, in lower case.
    """

    given: frozenset[str]
    metadata_service_uri: str = option(
        "metadataServiceUri",
        None,
        TEXT,
        Use.ALL,
        Group.WHERE,
        "Where the cluster is, in Apache's syntax: `zk+hierarchical://host:port;host:port/ledgers`. Required.",
    )
    log_root: str = option(
        "logRoot",
        "/bk_spark/logs",
        TEXT,
        Use.ALL,
        Group.WHERE,
        "ZooKeeper path under which logs are kept. Clusters that share a ZooKeeper need different ones.",
    )
    _client_conf: str | None = option(
        "clientConf",
        None,
        TEXT,
        Use.ALL,
        Group.WHERE,
        "File with settings of the client, such as those of TLS, under Apache's keys "
        "([client-config.md](client-config.md)). The driver and the executors must be able to read it.",
    )
    _transport: str | None = option(
        "transport",
        None,
        choice({one: one for one in (NATIVE, GRPC)}),
        Use.ALL,
        Group.WHERE,
        "How bookies are reached: `native`, or `grpc`, which only our bookies serve ([grpc.md](grpc.md)). Default: "
        "what `clientConf` says, or `native`.",
    )
    _password: str | None = option(
        "password", None, PASSWORD, Use.ALL, Group.WHERE, "Password of the ledgers.", secret=True
    )
    _password_file: str | None = option(
        "passwordFile",
        None,
        TEXT,
        Use.ALL,
        Group.WHERE,
        "File that holds the password. The driver and the executors must be able to read it.",
    )
    log: str | None = option(
        "log",
        None,
        TEXT,
        Use.ALL,
        Group.SOURCE,
        "Name of the log. Required for writes without logColumn; a write creates the log if it does not exist.",
    )
    logs: tuple[str, ...] | None = option(
        "logs", None, NAMES, Use.READ, Group.SOURCE, "Names of several logs, separated by commas."
    )
    log_pattern: str | None = option(
        "logPattern",
        None,
        PATTERN,
        Use.READ,
        Group.SOURCE,
        "All logs whose whole name matches this regular expression. A stream also reads logs that are created later.",
    )
    ledger_id: int | None = option(
        "ledgerId",
        None,
        whole(most=MAX_LONG),
        Use.READ,
        Group.SOURCE,
        "Read this ledger instead of a log. Any program may have written it, or may still be writing it.",
    )
    ledger_ids: tuple[int, ...] | None = option(
        "ledgerIds", None, LEDGERS, Use.BATCH_READ, Group.SOURCE, "Ids of several such ledgers, separated by commas."
    )
    entry_format: EntryFormat | None = option(
        "entryFormat",
        None,
        choice({one.value: one for one in (EntryFormat.RAW, EntryFormat.ARROW)}),
        Use.ALL,
        Group.FORM,
        "`arrow`: any columns, many rows per entry, as an Arrow IPC stream. `raw`: one row per entry, for readers and "
        "writers that know nothing of Arrow. Default: what the log was created with; `arrow` for new logs, `raw` for "
        "ledgers.",
    )
    include_metadata: bool = option(
        "includeMetadata",
        "false",
        BOOLEAN,
        Use.READ,
        Group.FORM,
        "`arrow` only: add the columns log, offset, ledgerId, entryId and timestamp.",
    )
    compression: str | None = option(
        "compression",
        "lz4",
        choice({"none": None, "lz4": "lz4", "zstd": "zstd"}),
        Use.WRITE,
        Group.FORM,
        "`arrow` only: compression of entries. An entry that it does not make a tenth smaller is written without.",
    )
    entry_bytes: int = option(
        "entryBytes", "1m", size(1024, 2**26), Use.WRITE, Group.FORM, "`arrow` only: target size of an entry."
    )
    merge_schema: bool = option(
        "mergeSchema",
        "false",
        BOOLEAN,
        Use.WRITE,
        Group.FORM,
        "`arrow` only: columns that the log lacks are added to it, and its types become wider if the data needs that "
        "([schemas.md](schemas.md)). By default such data is refused.",
    )
    split_bytes: int = option(
        "splitBytes",
        "32m",
        size(1024, 2**40),
        Use.READ,
        Group.TASKS,
        "Approximate bytes of entries per task. They are more if a read had more than 100,000 tasks otherwise.",
    )
    min_partitions: int = option(
        "minPartitions", "1", whole(1, 1_000_000), Use.READ, Group.TASKS, "Lower bound of the number of tasks."
    )
    max_records_per_partition: int | None = option(
        "maxRecordsPerPartition",
        None,
        whole(1, MAX_LONG),
        Use.READ,
        Group.TASKS,
        "Upper bound of the rows of a task. Exact for `raw`. Approximate for `arrow`, and at least one entry.",
    )
    max_entries_per_trigger: int | None = option(
        "maxEntriesPerTrigger",
        None,
        whole(1, MAX_LONG),
        Use.STREAM_READ,
        Group.PACE,
        "Upper bound of the entries in one micro-batch, over all logs. No effect before Spark 4.2.",
    )
    max_bytes_per_trigger: int | None = option(
        "maxBytesPerTrigger",
        None,
        size(1, 2**60),
        Use.STREAM_READ,
        Group.PACE,
        "Approximate upper bound of the bytes of entries in one micro-batch; at least one entry. No effect before "
        "Spark 4.2.",
    )
    min_entries_per_trigger: int | None = option(
        "minEntriesPerTrigger",
        None,
        whole(1, MAX_LONG),
        Use.STREAM_READ,
        Group.PACE,
        "Wait for this many entries before a micro-batch starts, but no longer than maxTriggerDelay. No effect before "
        "Spark 4.2.",
    )
    max_trigger_delay_ms: int = option(
        "maxTriggerDelay",
        "15m",
        duration(1, _YEAR_MS),
        Use.STREAM_READ,
        Group.PACE,
        "The longest wait for minEntriesPerTrigger.",
    )
    ensemble_size: int = option(
        "ensembleSize", "3", whole(1, 64), Use.WRITE, Group.NEW_LOG, "Number of bookies that store a ledger."
    )
    write_quorum_size: int = option(
        "writeQuorumSize", "3", whole(1, 64), Use.WRITE, Group.NEW_LOG, "Number of bookies that store each entry."
    )
    ack_quorum_size: int = option(
        "ackQuorumSize",
        "2",
        whole(1, 64),
        Use.WRITE,
        Group.NEW_LOG,
        "Number of bookies that must hold an entry durably before it counts as written.",
    )
    digest_type: DigestType = option(
        "digestType",
        "CRC32C",
        choice({one: DigestType[one] for one in ("CRC32C", "CRC32", "HMAC", "DUMMY")}),
        Use.WRITE,
        Group.NEW_LOG,
        "Digest of entries.",
    )
    txn_app_id: str | None = option(
        "txnAppId",
        None,
        TEXT,
        Use.WRITE,
        Group.WRITING,
        "Name under which a write takes effect once, however often it is repeated. A batch also needs txnVersion. "
        "Default for a stream: the id of the query.",
    )
    txn_version: int | None = option(
        "txnVersion",
        None,
        whole(most=MAX_LONG),
        Use.BATCH_WRITE,
        Group.WRITING,
        "Number of the write within txnAppId. Must increase.",
    )
    log_column: str | None = option(
        "logColumn",
        None,
        TEXT,
        Use.WRITE,
        Group.WRITING,
        "Instead of `log`: the name of a string column that says to which log each row goes, as the column `topic` of "
        "Kafka's sink. The column is not stored. The logs must exist. Each log's rows are committed once, but not all "
        "logs' at one moment ([delivery.md](delivery.md#several-logs)).",
    )
    max_logs: int = option(
        "maxLogs",
        "100",
        whole(1, 10_000),
        Use.WRITE,
        Group.WRITING,
        "With logColumn: how many logs one write may name.",
    )
    skip_committed_batches: bool = option(
        "skipCommittedBatches",
        "false",
        BOOLEAN,
        Use.WRITE,
        Group.WRITING,
        "For a streaming query, or a write in its foreachBatch, whose checkpoint was set back. Batches that were "
        "committed before are skipped, even if their rows differ now. Without it the query fails.",
    )
    fence_tail: bool = option(
        "fenceTail",
        "false",
        BOOLEAN,
        Use.WRITE,
        Group.WRITING,
        "Take over an open tail instead of failing. Its writer can no longer write.",
    )
    ledger_roll_bytes: int = option(
        "ledgerRollBytes",
        "1g",
        size(1024, 2**40),
        Use.WRITE,
        Group.WRITING,
        "Roll to a new ledger after this many bytes.",
    )
    ledger_roll_interval_ms: int = option(
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
