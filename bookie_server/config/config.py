"""The bookie's configuration: a ``.conf`` file with Apache's keys (compatibility.md §7.2).

``key=value`` lines, ``#`` comments, lists separated by commas. A key of Apache's that this bookie has no use for is
accepted and named in a warning; a key that nobody knows is a warning with the nearest known one; a
value of the wrong kind is an error. ``python -m bookie_server.config`` prints docs/bookie-config.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any, Final

from bk_spark.protocol.codes import DEFAULT_MAX_FRAME_BYTES
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.config.addresses import find_addresses
from bookie_server.config.conf_file import MAX_LONG, ConfFile, key, settings_table
from bookie_server.config.config_keys import ALWAYS_SO, FIXED_VALUES, KNOWN_KEYS, OTHER_KEYS, PAGE_BYTES

_MIB: Final = 1024 * 1024
_MAX_LOG_SIZE: Final = 1024 * _MIB
_DEFAULT_INDEX_CACHE_BYTES: Final = 64 * _MIB


@dataclass(frozen=True, slots=True)
class BookieConfig:
    """What a bookie runs with. Directories are as configured, without ``current``; sizes in bytes, times in ms.

    The first fields are made of several keys; the rest each have one.
    """

    metadata_service_uri: MetadataServiceUri
    bookie_id: str
    advertised_host: str
    listen_host: str

    port: int = key("bookiePort", 3181, "TCP port.", least=1, most=65535)
    zk_timeout_ms: int = key("zkTimeout", 10_000, "Session timeout asked of ZooKeeper, ms.", least=100, most=3_600_000)

    # --- directories
    journal_directories: tuple[str, ...] = key(
        "journalDirectories",
        ("/tmp/bk-txn",),
        "Journals, one in each. A ledger's adds go to one of them.",
        other_name="journalDirectory",
    )
    ledger_directories: tuple[str, ...] = key("ledgerDirectories", ("/tmp/bk-data",), "Entry logs.")
    index_directories: tuple[str, ...] = key(
        "indexDirectories", (), "Index files; any number of directories.", otherwise="those of `ledgerDirectories`"
    )
    allow_storage_expansion: bool = key(
        "allowStorageExpansion", False, "New, empty directories may be added to those that the cookie names."
    )

    # --- requests
    max_frame_bytes: int = key(
        "nettyMaxFrameSizeBytes", DEFAULT_MAX_FRAME_BYTES, "Largest frame.", least=1024, most=100 * _MIB
    )
    max_batch_read_bytes: int = key(
        "maxBatchReadSize", DEFAULT_MAX_FRAME_BYTES, "Largest answer to a batch read.", least=1024, most=100 * _MIB
    )
    max_adds_in_progress: int = key(
        "maxAddsInProgressLimit",
        0,
        "Adds accepted and not answered, all connections; beyond them nothing is read. 0: bytes alone count.",
    )
    max_reads_in_progress: int = key("maxReadsInProgressLimit", 0, "The same of reads.")
    max_pending_adds: int = key(
        "maxPendingAddRequestsPerThread", 10_000, "Adds waiting; further ones are answered TOO_MANY_REQUESTS. 0: any."
    )
    max_pending_reads: int = key("maxPendingReadRequestsPerThread", 10_000, "The same of reads.")

    # --- journal
    journal_max_bytes: int = key(
        "journalMaxSizeMB",
        2048,
        "A journal file is followed by the next at this size.",
        unit=_MIB,
        least=1,
        most=1 << 20,
    )
    journal_preallocate_bytes: int = key(
        "journalPreAllocSizeMB", 16, "Room on the disk taken at a time.", unit=_MIB, least=1, most=1024
    )
    journal_max_backups: int = key("journalMaxBackups", 5, "Journal files kept that are not needed.", most=1 << 20)
    journal_sync_data: bool = key("journalSyncData", True, "Sync the journal before an add is acknowledged.")
    journal_adaptive_group_writes: bool = key(
        "journalAdaptiveGroupWrites", True, "Adds that come in during a sync share the next one."
    )
    journal_max_group_wait_ms: int = key(
        "journalMaxGroupWaitMSec", 2, "The longest that an add waits for others to be synced with, ms.", most=60_000
    )
    journal_group_bytes: int = key(
        "journalBufferedWritesThreshold", 512 * 1024, "A group of adds of so many bytes waits no longer.", least=0
    )
    journal_group_entries: int = key(
        "journalBufferedEntriesThreshold", 0, "A group of so many adds waits no longer. 0: the number does not count."
    )
    journal_flush_when_queue_empty: bool = key(
        "journalFlushWhenQueueEmpty", False, "A group waits no longer when no further add is there."
    )
    journal_page_cache_flush_interval_ms: int = key(
        "journalPageCacheFlushIntervalMSec",
        1000,
        "With `journalSyncData=false`: the journal is handed to the disk so often, ms.",
        least=1,
        most=3_600_000,
    )
    journal_remove_from_page_cache: bool = key(
        "journalRemoveFromPageCache", True, "What was synced need not stay in the page cache."
    )
    journal_max_memory_bytes: int = key(
        "journalMaxMemorySizeMb", 24, "Bytes of adds accepted and not durable yet.", unit=_MIB, least=1, most=1 << 20
    )

    # --- entry logs, index files, memory
    entry_log_size_limit_bytes: int = key(
        "logSizeLimit",
        _MAX_LOG_SIZE,
        "An entry log is followed by the next at this size.",
        least=64 * 1024,
        most=_MAX_LOG_SIZE,
    )
    flush_interval_ms: int = key(
        "flushInterval",
        10_000,
        "Entries in memory are written to entry logs at least so often, ms.",
        least=10,
        most=3_600_000,
    )
    write_cache_bytes: int = key(
        "skipListSizeLimit",
        64 * _MIB,
        "Entries in memory that make it time to write them; twice as many are kept at most.",
        least=_MIB,
        most=1 << 40,
    )
    index_cache_bytes: int = key(
        "pageLimit",
        _DEFAULT_INDEX_CACHE_BYTES // PAGE_BYTES,
        f"Pages of index files in memory, {PAGE_BYTES} bytes each.",
        unit=PAGE_BYTES,
        least=-1,
        most=1 << 20,
    )
    descriptor_limit: int = key("openFileLimit", 20_000, "Ledgers known in memory.", least=16, most=1 << 24)

    # --- garbage collection and compaction
    gc_interval_ms: int = key(
        "gcWaitTime", 600_000, "Time between two collections of deleted ledgers, ms.", least=10, most=MAX_LONG
    )
    gc_over_replicated_interval_ms: int = key(
        "gcOverreplicatedLedgerWaitTime",
        86_400_000,
        "Time between two looks for ledgers that are kept here without need, ms. 0: never.",
        most=MAX_LONG,
        off=True,
    )
    gc_metadata_operations_per_s: int = key(
        "gcMetadataOpRateLimit", 1000, "Reads of metadata per second in a collection.", least=1
    )
    gc_brake_share: float = key(
        "gcBrakeShare",
        0.5,
        "A collection that would delete more than this share of all ledgers here stops and waits for an operator "
        "(docs/metrics.md). 1: none does.",
        most=1,
    )
    gc_brake_ledgers: int = key(
        "gcBrakeLedgers", 100, "Up to so many deleted ledgers are never too many.", most=MAX_LONG
    )
    minor_compaction_interval_ms: int = key(
        "minorCompactionInterval", 3600, "Time between two minor compactions, s. 0: never.", unit=1000, off=True
    )
    minor_compaction_threshold: float = key(
        "minorCompactionThreshold",
        0.2,
        "Logs that are used less than this are compacted. 0: none.",
        most=1,
        off=True,
    )
    minor_compaction_max_ms: int = key(
        "minorCompactionMaxTimeMillis", 0, "The longest that one may take, ms. 0: as it needs.", most=MAX_LONG, off=True
    )
    major_compaction_interval_ms: int = key(
        "majorCompactionInterval", 86_400, "The same of major compaction.", unit=1000, off=True
    )
    major_compaction_threshold: float = key(
        "majorCompactionThreshold", 0.8, "The same of major compaction.", most=1, off=True
    )
    major_compaction_max_ms: int = key(
        "majorCompactionMaxTimeMillis", 0, "The same of major compaction.", most=MAX_LONG, off=True
    )
    compaction_entries_per_s: int = key(
        "compactionRateByEntries",
        1000,
        "Entries that compaction copies per second.",
        least=1,
        other_name="compactionRate",
    )
    compaction_bytes_per_s: int = key(
        "compactionRateByBytes", 1_000_000, "Bytes that compaction copies per second.", least=1
    )
    compaction_throttle_by_bytes: bool = key(
        "isThrottleByBytes", False, "The rate of bytes counts, not that of entries."
    )
    force_allow_compaction: bool = key(
        "forceAllowCompaction", False, "An operator may ask for a compaction whose interval is 0."
    )
    force_gc_when_no_space: bool = key(
        "isForceGCAllowWhenNoSpace", False, "A disk that is almost full starts a collection, and suspends none."
    )
    gc_use_target_log_size: bool = key(
        "useTargetEntryLogSizeForGc", False, "A log smaller than `logSizeLimit` counts as used by its share of that."
    )

    # --- disks and read-only mode
    disk_check_interval_ms: int = key(
        "diskCheckInterval", 10_000, "Time between two looks at the disks, ms.", least=10, most=3_600_000
    )
    disk_usage_threshold: float = key(
        "diskUsageThreshold", 0.95, "A disk used more than this is full: no new entry log there.", most=1
    )
    disk_usage_warn_threshold: float = key(
        "diskUsageWarnThreshold",
        0.90,
        "A disk used more than this suspends major compaction.",
        most=1,
        otherwise="`0.9`, or `diskUsageThreshold` where that is less",
    )
    disk_usage_low_water_mark: float = key(
        "diskUsageLwmThreshold",
        0.95,
        "Where all were full: the bookie is writable again when all disks together are used less than this.",
        most=1,
        otherwise="that of `diskUsageThreshold`",
    )
    min_usable_index_bytes: int = key(
        "minUsableSizeForIndexFileCreation",
        100 * _MIB,
        "Room that a full disk must have for a new index file.",
        most=MAX_LONG,
    )
    min_usable_entry_log_bytes: int = key(
        "minUsableSizeForEntryLogCreation",
        _MAX_LOG_SIZE,
        "Room that a full disk must have for a new entry log (replay, compaction).",
        most=MAX_LONG,
        otherwise="that of `logSizeLimit`",
    )
    min_usable_high_priority_bytes: int = key(
        "minUsableSizeForHighPriorityWrites",
        _MAX_LOG_SIZE,
        "Room above which adds of high priority are taken in read-only mode.",
        most=MAX_LONG,
        otherwise="that of `minUsableSizeForEntryLogCreation`",
    )
    read_only_mode_enabled: bool = key(
        "readOnlyModeEnabled", True, "Without it the bookie ends (exit code 5) where it would become read-only."
    )
    read_only_on_any_disk_full: bool = key(
        "readOnlyModeOnAnyDiskFullEnabled", True, "One full disk makes the bookie read-only, not only all."
    )
    force_read_only: bool = key("forceReadOnlyBookie", False, "Be read-only, whatever the disks say.")
    persist_status: bool = key(
        "persistBookieStatusEnabled",
        False,
        "Keep the mode in `BOOKIE_STATUS`: what an operator set outlives a restart.",
    )

    # --- administration
    http_enabled: bool = key("httpServerEnabled", False, "Serve the admin API.")
    http_port: int = key("httpServerPort", 8080, "Its port; 0: any free one.", most=65535)
    http_host: str = key("httpServerHost", "0.0.0.0", "Its address.")
    statistics_enabled: bool = key("enableStatistics", True, "Count and time what the bookie does.")
    statistics_port: int = key(
        "prometheusStatsHttpPort", 0, "Serve the metrics on a port of their own, too. 0: no.", most=65535
    )


def _supported_keys() -> frozenset[str]:
    names = set(OTHER_KEYS) | set(FIXED_VALUES) | set(ALWAYS_SO)
    for setting in fields(BookieConfig):
        if setting.metadata:
            names |= {setting.metadata["name"], setting.metadata["other_name"]} - {""}
    return frozenset(names)


#: Keys that have a meaning here.
SUPPORTED_KEYS: Final = _supported_keys()


def load_config(path: str) -> tuple[BookieConfig, list[str]]:
    """The configuration in the file at ``path``, and warnings. Raises InvalidArgumentError naming key and file."""
    conf = ConfFile(path)
    warnings = conf.unknown_warnings(SUPPORTED_KEYS, KNOWN_KEYS)
    for name, (wanted, why) in FIXED_VALUES.items():
        if conf.text(name).lower() not in ("", wanted):
            raise conf.error(name, f"must be {wanted}: {why}")
    for name, how in ALWAYS_SO.items():
        if not conf.flag(name, True):
            warnings.append(conf.warning(name, how))
    uri = conf.text("metadataServiceUri")
    if not uri:
        raise conf.error("metadataServiceUri", "is missing; give e.g. zk+hierarchical://localhost:2181/ledgers")
    values: dict[str, Any] = {}
    for setting in fields(BookieConfig):
        if setting.metadata and (value := conf.setting(setting)) is not None:
            values[setting.name] = value
    _add_derived(values)
    addresses = find_addresses(conf, values.get("port", 3181))
    config = BookieConfig(
        metadata_service_uri=MetadataServiceUri.parse(uri),
        bookie_id=addresses.bookie_id,
        advertised_host=addresses.advertised_host,
        listen_host=addresses.listen_host,
        **values,
    )
    _check_together(config, conf)
    return config, warnings


def _add_derived(values: dict[str, Any]) -> None:
    """What a missing key takes from another one."""
    for name, source in (
        ("index_directories", "ledger_directories"),
        ("disk_usage_low_water_mark", "disk_usage_threshold"),
        ("min_usable_entry_log_bytes", "entry_log_size_limit_bytes"),
        ("min_usable_high_priority_bytes", "min_usable_entry_log_bytes"),
    ):
        if name not in values:
            values[name] = values.get(source, _DEFAULTS[source])
    if "disk_usage_warn_threshold" not in values:
        usage = values.get("disk_usage_threshold", _DEFAULTS["disk_usage_threshold"])
        values["disk_usage_warn_threshold"] = min(_DEFAULTS["disk_usage_warn_threshold"], usage)
    if values.get("index_cache_bytes", 1) <= 0:
        values["index_cache_bytes"] = _DEFAULT_INDEX_CACHE_BYTES


_DEFAULTS: Final = {setting.name: setting.default for setting in fields(BookieConfig)}


def _check_together(config: BookieConfig, conf: ConfFile) -> None:
    """Settings that must fit each other (compatibility.md §5.10, §5.12). Raises InvalidArgumentError."""
    for name, value in (
        ("diskUsageThreshold", config.disk_usage_threshold),
        ("diskUsageWarnThreshold", config.disk_usage_warn_threshold),
        ("diskUsageLwmThreshold", config.disk_usage_low_water_mark),
    ):
        if not 0 < value < 1:
            raise conf.error(name, f"is {value}; it must be more than 0 and less than 1")
    for name, value in (
        ("diskUsageWarnThreshold", config.disk_usage_warn_threshold),
        ("diskUsageLwmThreshold", config.disk_usage_low_water_mark),
    ):
        if value > config.disk_usage_threshold:
            raise conf.error(name, f"is {value}, more than diskUsageThreshold, {config.disk_usage_threshold}")
    minor = (config.minor_compaction_interval_ms, config.minor_compaction_threshold)
    major = (config.major_compaction_interval_ms, config.major_compaction_threshold)
    for name, (interval_ms, threshold) in (("minorCompactionInterval", minor), ("majorCompactionInterval", major)):
        if interval_ms > 0 and threshold > 0 and interval_ms < config.gc_interval_ms:
            raise conf.error(
                name, f"is {interval_ms // 1000} s; it must not be shorter than gcWaitTime, {config.gc_interval_ms} ms"
            )
    if min(*minor, *major) > 0:
        for name, of_minor, of_major in zip(
            ("minorCompactionInterval", "minorCompactionThreshold"), minor, major, strict=True
        ):
            if of_minor >= of_major:
                raise conf.error(name, f"must be smaller than {name.replace('minor', 'major')}")
    others = {os.path.realpath(path) for path in (*config.ledger_directories, *config.index_directories)}
    shared = {path for path in config.journal_directories if os.path.realpath(path) in others}
    if shared and len(config.journal_directories) > 1:
        raise conf.error(
            "journalDirectories", f"and ledgerDirectories or indexDirectories both name {', '.join(sorted(shared))}"
        )


def reference() -> str:
    """docs/bookie-config.md: the keys of the configuration file."""
    return "\n".join(
        [
            "# Configuration of the bookie",
            "",
            "Keys of the file given to `bookie-server start --conf`; names and units are Apache's. This page is",
            "printed by `python -m bookie_server.config`.",
            "",
            "| key | meaning |",
            "|---|---|",
            *(f"| `{name}` | {meaning} |" for name, meaning in OTHER_KEYS.items()),
            "",
            *settings_table(BookieConfig),
            "",
            "Keys that may only have one value, because the bookie is made so:",
            *(f"`{name}={wanted}` ({why})." for name, (wanted, why) in FIXED_VALUES.items()),
            "",
            "Keys that are accepted, and whose good value always holds:",
            *(f"`{name}` {how}." for name, how in ALWAYS_SO.items()),
            "",
            "Apache's other keys are accepted with a warning and have no effect:",
            ", ".join(f"`{name}`" for name in sorted(KNOWN_KEYS)) + ".",
            "",
        ]
    )
