"""The one table of options: it validates what users give, and the reference is printed from it."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from bk_spark.datasource.options.values import (
    anything,
    boolean,
    choice,
    duration,
    ledger_list,
    name_list,
    pattern,
    positions,
    size,
    text,
    timestamp,
    whole,
)

_DAY_MS: Final = 86_400_000


class Use(enum.Flag):
    """What Spark does with the data source."""

    BATCH_READ = enum.auto()
    STREAM_READ = enum.auto()
    BATCH_WRITE = enum.auto()
    STREAM_WRITE = enum.auto()
    READ = BATCH_READ | STREAM_READ
    WRITE = BATCH_WRITE | STREAM_WRITE
    ALL = READ | WRITE


class Group(enum.Enum):
    """Chapters of the reference."""

    WHERE = "Where the data are"
    SOURCE = "What is read"
    RANGE = "Where a read starts and ends"
    FORM = "The form of entries"
    TASKS = "Tasks of a read"
    PACE = "How much one trigger reads"
    NEW_LOG = "A log that is made by the write"
    WRITING = "How a write goes"


@dataclass(frozen=True, slots=True)
class Option:
    """``default`` is the text of the default; None means: no default, the option may be absent."""

    name: str
    parse: Callable[[str], Any]
    default: str | None
    uses: Use
    group: Group
    doc: str
    secret: bool = False


OPTIONS: Final = (
    Option(
        "metadataServiceUri",
        text,
        None,
        Use.ALL,
        Group.WHERE,
        "Where the cluster is, in Apache's syntax: `zk+hierarchical://host:port;host:port/ledgers`. Required.",
    ),
    Option("logRoot", text, "/bk_spark/logs", Use.ALL, Group.WHERE, "Where logs lie in ZooKeeper."),
    Option("password", anything, None, Use.ALL, Group.WHERE, "Password of the logs' or ledgers' ledgers.", secret=True),
    Option(
        "passwordFile",
        text,
        None,
        Use.ALL,
        Group.WHERE,
        "File, readable in driver and executors, that holds the password.",
    ),
    Option(
        "log",
        text,
        None,
        Use.ALL,
        Group.SOURCE,
        "Name of the log. Required to write; writing makes a log that does not exist.",
    ),
    Option("logs", name_list, None, Use.READ, Group.SOURCE, "Names of several logs, with commas between them."),
    Option(
        "logPattern",
        pattern,
        None,
        Use.READ,
        Group.SOURCE,
        "All logs whose whole name matches this regular expression. A stream also takes in those made later.",
    ),
    Option(
        "ledgerId",
        whole(),
        None,
        Use.READ,
        Group.SOURCE,
        "Read this ledger instead of a log, whoever wrote it or is writing it.",
    ),
    Option(
        "ledgerIds",
        ledger_list,
        None,
        Use.BATCH_READ,
        Group.SOURCE,
        "Several such ledgers, with commas between their ids.",
    ),
    Option(
        "startingOffsets",
        positions,
        None,
        Use.READ,
        Group.RANGE,
        '`earliest`, `latest` (streams only), or JSON with the first offset of each log: `{"events": 100}`; '
        "-2 is the log's first, -1 its end. With ledgers: entry ids by ledger id. "
        "Default: `earliest` for a batch, `latest` for a stream. A checkpoint goes before it.",
    ),
    Option(
        "startingTimestamp",
        timestamp,
        None,
        Use.READ,
        Group.RANGE,
        "Start at the first entry committed at this time or later: milliseconds since 1970 (UTC), or ISO 8601 such as "
        "`2026-01-31T12:00:00Z` (UTC where it names no zone). "
        "Where there is none yet, at the end. Not for ledgers.",
    ),
    Option(
        "endingOffsets",
        positions,
        None,
        Use.BATCH_READ,
        Group.RANGE,
        "`latest`, or JSON with the end offset of each log, which is not read itself; -1 is the end. "
        "Default: `latest`: all that is confirmed when the read is planned, also of an open tail.",
    ),
    Option(
        "endingTimestamp",
        timestamp,
        None,
        Use.BATCH_READ,
        Group.RANGE,
        "End before the first entry committed at this time or later, given as startingTimestamp is. Not for ledgers.",
    ),
    Option(
        "failOnDataLoss",
        boolean,
        "true",
        Use.READ,
        Group.RANGE,
        "Whether offsets that are asked for but not in the log (any more) are an error. "
        "With `false` they are skipped, and a warning names them.",
    ),
    Option(
        "pushDownFilters",
        boolean,
        "false",
        Use.BATCH_READ,
        Group.RANGE,
        "Use conditions on `offset`, `ledgerId` and `timestamp` to read less. Set it only where Spark's "
        "`spark.sql.python.filterPushdown.enabled` is `true`: else every read fails.",
    ),
    Option(
        "entryFormat",
        choice("raw", "arrow"),
        None,
        Use.ALL,
        Group.FORM,
        "`raw`: one row, one entry. `arrow`: many rows an entry, as an Arrow IPC stream. "
        "Default: what the log was made with; `raw` for a new log and for ledgers.",
    ),
    Option(
        "includeMetadata",
        boolean,
        "false",
        Use.READ,
        Group.FORM,
        "`arrow` only: add log, offset, ledgerId, entryId, timestamp.",
    ),
    Option(
        "compression",
        choice("none", "lz4", "zstd"),
        "none",
        Use.WRITE,
        Group.FORM,
        "`arrow` only: compression of entries.",
    ),
    Option("entryBytes", size(1024, 2**26), "1m", Use.WRITE, Group.FORM, "`arrow` only: bytes an entry aims at."),
    Option("splitBytes", size(1024, 2**40), "32m", Use.READ, Group.TASKS, "Bytes of entries per task, about."),
    Option(
        "minPartitions", whole(1, 1_000_000), "1", Use.READ, Group.TASKS, "Cut each read into at least so many tasks."
    ),
    Option(
        "maxRecordsPerPartition",
        whole(1),
        None,
        Use.READ,
        Group.TASKS,
        "No task reads more rows than this. Exact for `raw`; for `arrow` about, and never less than one entry.",
    ),
    Option(
        "maxEntriesPerTrigger",
        whole(1),
        None,
        Use.STREAM_READ,
        Group.PACE,
        "At most so many entries in one micro-batch, over all logs.",
    ),
    Option(
        "maxBytesPerTrigger",
        size(1, 2**60),
        None,
        Use.STREAM_READ,
        Group.PACE,
        "At most about so many bytes of entries in one micro-batch; never less than one entry.",
    ),
    Option(
        "minEntriesPerTrigger",
        whole(1),
        None,
        Use.STREAM_READ,
        Group.PACE,
        "Wait for so many entries before a micro-batch, but no longer than maxTriggerDelay.",
    ),
    Option(
        "maxTriggerDelay",
        duration(1, 365 * _DAY_MS),
        "15m",
        Use.STREAM_READ,
        Group.PACE,
        "With minEntriesPerTrigger: the longest wait.",
    ),
    Option("ensembleSize", whole(1, 64), "3", Use.WRITE, Group.NEW_LOG, "Bookies that a ledger is spread over."),
    Option("writeQuorumSize", whole(1, 64), "3", Use.WRITE, Group.NEW_LOG, "Bookies that get each entry."),
    Option("ackQuorumSize", whole(1, 64), "2", Use.WRITE, Group.NEW_LOG, "Bookies that must hold an entry durably."),
    Option(
        "digestType", choice("CRC32C", "CRC32", "HMAC", "DUMMY"), "CRC32C", Use.WRITE, Group.NEW_LOG, "Entry digest."
    ),
    Option(
        "txnAppId",
        text,
        None,
        Use.WRITE,
        Group.WRITING,
        "Name under which a write happens once, however often it is repeated. Batch: needs txnVersion. Stream: "
        "default is the id of the query.",
    ),
    Option(
        "txnVersion",
        whole(),
        None,
        Use.BATCH_WRITE,
        Group.WRITING,
        "Number of the write within txnAppId, increasing.",
    ),
    Option(
        "skipCommittedBatches",
        boolean,
        "false",
        Use.WRITE,
        Group.WRITING,
        "For a streaming query, or a write in its foreachBatch, whose checkpoint was set back: batches that were "
        "committed before are skipped, whatever rows they bring now. Without it the query fails.",
    ),
    Option(
        "fenceTail",
        boolean,
        "false",
        Use.WRITE,
        Group.WRITING,
        "Take an open tail from its writer, who then can write no more, instead of failing.",
    ),
    Option(
        "ledgerRollBytes",
        size(1024, 2**40),
        "1g",
        Use.WRITE,
        Group.WRITING,
        "A ledger with so many bytes gets no more entries; a new one does.",
    ),
    Option(
        "ledgerRollInterval",
        duration(1, 365 * _DAY_MS),
        "1h",
        Use.WRITE,
        Group.WRITING,
        "Nor does a ledger of this age.",
    ),
)
