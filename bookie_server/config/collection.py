"""Settings of garbage collection and compaction: when they run, and what they rewrite."""

from __future__ import annotations

from dataclasses import dataclass

from bk_spark.settings.kinds import BOOLEAN, MAX_LONG, fraction, whole
from bk_spark.settings.setting import key
from bookie_server.config.access import AccessConfig


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """Minor or major compaction. It is off if ``interval_ms`` or ``threshold`` is 0 or less.

    Entry logs whose live share is below ``threshold`` are rewritten. No further one is started after ``max_time_ms``;
    0 or less: no limit.
    """

    interval_ms: int
    threshold: float
    max_time_ms: int = 0

    @property
    def enabled(self) -> bool:
        """Whether the compaction runs by itself."""
        return self.interval_ms > 0 and self.threshold > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionConfig(AccessConfig):
    """The part of a bookie's configuration that garbage collection uses."""

    gc_interval_ms: int = key(
        "gcWaitTime", "600000", whole(10, MAX_LONG), "Time between two collections of deleted ledgers, ms."
    )
    gc_over_replicated_interval_ms: int = key(
        "gcOverreplicatedLedgerWaitTime",
        "86400000",
        whole(most=MAX_LONG, off=0),
        "Time between two searches for over-replicated ledgers, ms. 0: never.",
    )
    gc_metadata_operations_per_s: int = key(
        "gcMetadataOpRateLimit", "1000", whole(1), "Reads of metadata per second during a collection."
    )
    gc_brake_share: float = key(
        "gcBrakeShare",
        "0.5",
        fraction(),
        "A collection that would delete more than this share of all ledgers stops and waits for an operator "
        "(docs/metrics.md). 1: never.",
    )
    gc_brake_ledgers: int = key(
        "gcBrakeLedgers",
        "100",
        whole(most=MAX_LONG),
        "The share does not stop a collection of up to this many ledgers.",
    )
    gc_brake_ids_not_given: bool = key(
        "gcBrakeIdsNotGiven",
        "true",
        BOOLEAN,
        "A collection that would delete a ledger whose id ZooKeeper's counter has not given stops and waits for an "
        "operator (docs/metrics.md). Set false where clients choose ids and also let ZooKeeper give some.",
    )
    minor_compaction_interval_ms: int = key(
        "minorCompactionInterval", "3600", whole(unit=1000, off=0), "Time between two minor compactions, s. 0: never."
    )
    minor_compaction_threshold: float = key(
        "minorCompactionThreshold",
        "0.2",
        fraction(off=0.0),
        "Minor compaction takes entry logs whose share of live bytes is below this. 0: none.",
    )
    minor_compaction_max_ms: int = key(
        "minorCompactionMaxTimeMillis",
        "0",
        whole(most=MAX_LONG, off=0),
        "Time limit of a minor compaction, ms. 0: none.",
    )
    major_compaction_interval_ms: int = key(
        "majorCompactionInterval", "86400", whole(unit=1000, off=0), "Time between two major compactions, s. 0: never."
    )
    major_compaction_threshold: float = key(
        "majorCompactionThreshold",
        "0.8",
        fraction(off=0.0),
        "Major compaction takes entry logs whose share of live bytes is below this. 0: none.",
    )
    major_compaction_max_ms: int = key(
        "majorCompactionMaxTimeMillis",
        "0",
        whole(most=MAX_LONG, off=0),
        "Time limit of a major compaction, ms. 0: none.",
    )
    compaction_entries_per_s: int = key(
        "compactionRateByEntries",
        "1000",
        whole(1),
        "Entries that compaction copies per second.",
        other_name="compactionRate",
    )
    compaction_bytes_per_s: int = key(
        "compactionRateByBytes", "1000000", whole(1), "Bytes that compaction copies per second."
    )
    compaction_throttle_by_bytes: bool = key(
        "isThrottleByBytes", "false", BOOLEAN, "Limit compaction by bytes instead of entries."
    )
    force_allow_compaction: bool = key(
        "forceAllowCompaction", "false", BOOLEAN, "Let an operator start a compaction whose interval is 0."
    )
    force_gc_when_no_space: bool = key(
        "isForceGCAllowWhenNoSpace",
        "false",
        BOOLEAN,
        "An almost full disk starts a collection instead of suspending compaction.",
    )
    gc_use_target_log_size: bool = key(
        "useTargetEntryLogSizeForGc",
        "false",
        BOOLEAN,
        "Measure the share of live bytes of an entry log against `logSizeLimit` if the log is smaller.",
    )

    @property
    def minor_compaction(self) -> CompactionSettings:
        """The settings of minor compaction."""
        return CompactionSettings(
            self.minor_compaction_interval_ms, self.minor_compaction_threshold, self.minor_compaction_max_ms
        )

    @property
    def major_compaction(self) -> CompactionSettings:
        """The settings of major compaction."""
        return CompactionSettings(
            self.major_compaction_interval_ms, self.major_compaction_threshold, self.major_compaction_max_ms
        )
