"""The bookie's configuration, with Apache's keys (compatibility.md §7.2). ``python -m bookie_server.config`` prints
docs/bookie-config.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bk_spark.protocol.codes import DEFAULT_MAX_FRAME_BYTES
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.settings.kinds import BOOLEAN, MAX_LONG, TEXT, fraction, whole
from bk_spark.settings.setting import Setting, declare, key, settings_of
from bookie_server.config.collection import CollectionConfig
from bookie_server.config.conf_file import DIRECTORIES
from bookie_server.config.config_keys import ALWAYS_SO, FIXED_VALUES, OTHER_KEYS, PAGE_BYTES

_MIB: Final = 1024 * 1024
_MAX_LOG_SIZE: Final = 1024 * _MIB
_DEFAULT_INDEX_CACHE_BYTES: Final = 64 * _MIB


@dataclass(frozen=True, slots=True)
class BookieConfig(CollectionConfig):
    """The configuration of a bookie. Directories are without ``current``; sizes are in bytes, times in ms.

    The first four fields are derived from several keys. Each other field is one key, but ``given``: the texts of the
    file.
    """

    metadata_service_uri: MetadataServiceUri
    bookie_id: str
    advertised_host: str
    listen_host: str
    given: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    port: int = key("bookiePort", "3181", whole(1, 65535), "TCP port.")
    zk_timeout_ms: int = key(
        "zkTimeout", "10000", whole(100, 3_600_000), "Session timeout requested from ZooKeeper, ms."
    )

    # --- directories
    journal_directories: tuple[str, ...] = key(
        "journalDirectories",
        "/tmp/bk-txn",
        DIRECTORIES,
        "Directories of journals, one journal each. Every ledger uses one of them.",
        other_name="journalDirectory",
    )
    ledger_directories: tuple[str, ...] = key(
        "ledgerDirectories", "/tmp/bk-data", DIRECTORIES, "Directories of entry logs."
    )
    index_directories: tuple[str, ...] = declare(
        Setting(
            "indexDirectories",
            None,
            DIRECTORIES,
            "Directories of index files; any number.",
            missing="those of `ledgerDirectories`",
        ),
        absent=(),
    )
    allow_storage_expansion: bool = key(
        "allowStorageExpansion",
        "false",
        BOOLEAN,
        "Allow new, empty directories in addition to those that the cookie names.",
    )
    data_integrity_checking: bool = key(
        "dataIntegrityChecking",
        "false",
        BOOLEAN,
        'After a loss of data, say "unknown" about the ledgers of this bookie, and copy what they lack from others.',
    )
    data_integrity_stamp_missing_cookies: bool = key(
        "dataIntegrityStampMissingCookies",
        "false",
        BOOLEAN,
        "With `dataIntegrityChecking`: start even if directories were lost and are empty now.",
    )

    # --- requests
    max_frame_bytes: int = key(
        "nettyMaxFrameSizeBytes", str(DEFAULT_MAX_FRAME_BYTES), whole(1024, 100 * _MIB), "Largest frame."
    )
    max_batch_read_bytes: int = key(
        "maxBatchReadSize", str(DEFAULT_MAX_FRAME_BYTES), whole(1024, 100 * _MIB), "Largest answer to a batch read."
    )
    tls_required: bool = key(
        "tlsRequired",
        "false",
        BOOLEAN,
        "Refuse all requests that come in clear. Otherwise each client chooses. Not a key of Apache's.",
    )
    max_adds_in_progress: int = key(
        "maxAddsInProgressLimit",
        "0",
        whole(),
        "Unanswered adds, over all connections, at which the bookie stops reading requests. 0: only bytes count.",
    )
    max_reads_in_progress: int = key(
        "maxReadsInProgressLimit",
        "0",
        whole(),
        "Unanswered reads, over all connections, at which the bookie stops reading requests. 0: only bytes count.",
    )
    max_pending_adds: int = key(
        "maxPendingAddRequestsPerThread",
        "10000",
        whole(),
        "Adds that may wait, per connection. Further ones are answered TOO_MANY_REQUESTS. 0: no limit.",
    )
    max_pending_reads: int = key(
        "maxPendingReadRequestsPerThread",
        "10000",
        whole(),
        "Reads that may wait, per connection. Further ones are answered TOO_MANY_REQUESTS. 0: no limit.",
    )

    grpc_enabled: bool = key(
        "grpcServerEnabled",
        "false",
        BOOLEAN,
        "Serve gRPC, too (docs/grpc.md). Needs `pip install bk-spark[grpc]`. Not a key of Apache's.",
    )
    grpc_port: int = key(
        "grpcServerPort",
        "3182",
        whole(most=65535),
        "Port of gRPC, on the address of `bookiePort`. 0: any free one. Not a key of Apache's.",
    )
    grpc_logs_enabled: bool = key(
        "grpcLogServiceEnabled",
        "false",
        BOOLEAN,
        "Serve logs over gRPC, too. Callers act with this bookie's rights in the cluster. Not a key of Apache's.",
    )
    grpc_admin_enabled: bool = key(
        "grpcAdminServiceEnabled",
        "false",
        BOOLEAN,
        "Serve the administration over gRPC, too, with the tokens of the admin API, or for those who have the right "
        "`admin`. Not a key of Apache's.",
    )
    grpc_log_root: str = key(
        "grpcLogRoot", "/bk_spark/logs", TEXT, "ZooKeeper path of the logs that are served. Not a key of Apache's."
    )

    # --- journal
    journal_max_bytes: int = key(
        "journalMaxSizeMB", "2048", whole(1, 1 << 20, unit=_MIB), "Size at which the next journal file begins."
    )
    journal_preallocate_bytes: int = key(
        "journalPreAllocSizeMB", "16", whole(1, 1024, unit=_MIB), "Disk space that a journal file takes at a time."
    )
    journal_max_backups: int = key(
        "journalMaxBackups",
        "5",
        whole(most=1 << 20),
        "Number of journal files to keep after they are no longer needed.",
    )
    journal_sync_data: bool = key("journalSyncData", "true", BOOLEAN, "Sync the journal before an add is acknowledged.")
    journal_adaptive_group_writes: bool = key(
        "journalAdaptiveGroupWrites", "true", BOOLEAN, "Adds that arrive during a sync share the next one."
    )
    journal_max_group_wait_ms: int = key(
        "journalMaxGroupWaitMSec",
        "2",
        whole(most=60_000),
        "Maximum time that an add waits for others to share its sync, ms.",
    )
    journal_group_bytes: int = key(
        "journalBufferedWritesThreshold", "524288", whole(), "A group with more bytes of adds waits no longer."
    )
    journal_group_entries: int = key(
        "journalBufferedEntriesThreshold",
        "0",
        whole(),
        "A group with more adds waits no longer. 0: the number does not count.",
    )
    journal_flush_when_queue_empty: bool = key(
        "journalFlushWhenQueueEmpty", "false", BOOLEAN, "End the wait of a group when no further add is queued."
    )
    journal_page_cache_flush_interval_ms: int = key(
        "journalPageCacheFlushIntervalMSec",
        "1000",
        whole(1, 3_600_000),
        "With `journalSyncData=false`: interval at which the journal is synced, ms.",
    )
    journal_remove_from_page_cache: bool = key(
        "journalRemoveFromPageCache", "true", BOOLEAN, "Drop synced data from the page cache."
    )
    journal_direct_io: bool = key(
        "journalDirectIO",
        "true",
        BOOLEAN,
        "Write the journal directly to the disk, not through the page cache, where the file system can. Not with "
        "`journalSyncData=false`.",
    )
    journal_max_memory_bytes: int = key(
        "journalMaxMemorySizeMb",
        "24",
        whole(1, 1 << 20, unit=_MIB),
        "Bytes of adds that are accepted and not yet durable.",
    )

    # --- entry logs, index files, memory
    entry_log_size_limit_bytes: int = key(
        "logSizeLimit", str(_MAX_LOG_SIZE), whole(64 * 1024, _MAX_LOG_SIZE), "Size at which the next entry log begins."
    )
    large_entry_bytes: int = key(
        "largeEntryMinBytes",
        "65536",
        whole(most=1 << 30, off=0),
        "Entries of at least this many bytes are written to an entry log before they are acknowledged, and the journal "
        "only says where. 0: none. Not with `journalSyncData=false`.",
    )
    entry_log_direct_io: bool = key(
        "dbStorage_directIOEntryLogger",
        "false",
        BOOLEAN,
        "Write entry logs directly to the disk, where the file system can. Saves CPU, but reads of entries that were "
        "just written then come from the disk.",
    )
    flush_interval_ms: int = key(
        "flushInterval",
        "10000",
        whole(10, 3_600_000),
        "Maximum time that entries stay in memory before they are written to entry logs, ms.",
    )
    write_cache_bytes: int = key(
        "skipListSizeLimit",
        "67108864",
        whole(_MIB, 1 << 40),
        "Bytes of entries in memory at which they are written to entry logs. At most twice as many are kept.",
    )
    index_cache_bytes: int = key(
        "pageLimit",
        str(_DEFAULT_INDEX_CACHE_BYTES // PAGE_BYTES),
        whole(-1, 1 << 20, unit=PAGE_BYTES),
        f"Pages of index files in memory, {PAGE_BYTES} bytes each. 0 or less: the default.",
    )
    descriptor_limit: int = key("openFileLimit", "20000", whole(16, 1 << 24), "Ledger descriptors in memory.")

    # --- disks and read-only mode
    disk_check_interval_ms: int = key(
        "diskCheckInterval", "10000", whole(10, 3_600_000), "Time between two checks of the disks, ms."
    )
    disk_usage_threshold: float = key(
        "diskUsageThreshold", "0.95", fraction(), "A disk with a higher usage is full: it gets no new entry log."
    )
    disk_usage_warn_threshold: float = key(
        "diskUsageWarnThreshold",
        "0.9",
        fraction(),
        "A disk with a higher usage suspends major compaction.",
        missing="`0.9`, or `diskUsageThreshold` if that is lower",
    )
    disk_usage_low_water_mark: float = key(
        "diskUsageLwmThreshold",
        "0.95",
        fraction(),
        "After all disks were full: total usage below which the bookie is writable again.",
        missing="that of `diskUsageThreshold`",
    )
    min_usable_index_bytes: int = key(
        "minUsableSizeForIndexFileCreation",
        "104857600",
        whole(most=MAX_LONG),
        "Free bytes that a full disk needs for a new index file.",
    )
    min_usable_entry_log_bytes: int = key(
        "minUsableSizeForEntryLogCreation",
        str(_MAX_LOG_SIZE),
        whole(most=MAX_LONG),
        "Free bytes that a full disk needs for a new entry log (replay, compaction).",
        missing="that of `logSizeLimit`",
    )
    min_usable_high_priority_bytes: int = key(
        "minUsableSizeForHighPriorityWrites",
        str(_MAX_LOG_SIZE),
        whole(most=MAX_LONG),
        "Free bytes above which a read-only bookie takes adds of high priority.",
        missing="that of `minUsableSizeForEntryLogCreation`",
    )
    read_only_mode_enabled: bool = key(
        "readOnlyModeEnabled",
        "true",
        BOOLEAN,
        "If false, the bookie stops (exit code 5) instead of becoming read-only.",
    )
    read_only_on_any_disk_full: bool = key(
        "readOnlyModeOnAnyDiskFullEnabled",
        "true",
        BOOLEAN,
        "One full disk makes the bookie read-only. If false, all disks must be full.",
    )
    force_read_only: bool = key(
        "forceReadOnlyBookie", "false", BOOLEAN, "Keep the bookie read-only, whatever the state of its disks."
    )
    persist_status: bool = key(
        "persistBookieStatusEnabled",
        "false",
        BOOLEAN,
        "Keep the mode in `BOOKIE_STATUS`, so that an operator's choice outlives a restart.",
    )


#: Every setting that is one key, by the name of its field.
SETTINGS: Final[dict[str, Setting]] = settings_of(BookieConfig)
#: Keys that this bookie uses.
SUPPORTED_KEYS: Final = (
    frozenset(OTHER_KEYS)
    | frozenset(FIXED_VALUES)
    | frozenset(ALWAYS_SO)
    | {name for setting in SETTINGS.values() for name in (setting.name, setting.other_name) if name}
)
