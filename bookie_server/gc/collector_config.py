"""The collector's settings. Which of them may go together is checked where the configuration is read (config.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

from bookie_server.gc.brake import BrakeLimits


@dataclass(frozen=True, slots=True)
class CompactionConfig:
    """One of the two compactions: off where ``interval_ms`` or ``threshold`` is 0 or less.

    Logs whose live share is below ``threshold`` are rewritten. ``max_time_ms``: no further log is begun after it;
    0 or less: no limit.
    """

    interval_ms: int
    threshold: float
    max_time_ms: int = 0

    @property
    def enabled(self) -> bool:
        return self.interval_ms > 0 and self.threshold > 0


@dataclass(frozen=True, slots=True)
class GarbageCollectorConfig:
    """Times in ms, sizes in bytes; the defaults are Apache's (compatibility.md §5.11, §5.12).

    ``over_replicated_wait_ms`` 0 or less: over-replicated ledgers stay. ``rate_by_entries`` and ``rate_by_bytes`` are
    per second; the latter counts where ``throttle_by_bytes``. ``force_allow_compaction``: a forced run may do a
    compaction whose interval is off. ``use_target_entry_log_size``: usage is measured against
    ``entry_log_size_limit_bytes`` where a log is smaller. ``allow_force_when_full``: compaction goes on when the disks
    are full.
    """

    gc_wait_ms: int = 600_000
    over_replicated_wait_ms: int = 86_400_000
    minor: CompactionConfig = CompactionConfig(3_600_000, 0.2)
    major: CompactionConfig = CompactionConfig(86_400_000, 0.8)
    rate_by_entries: int = 1000
    rate_by_bytes: int = 1_000_000
    throttle_by_bytes: bool = False
    metadata_ops_per_second: int = 1000
    force_allow_compaction: bool = False
    use_target_entry_log_size: bool = False
    entry_log_size_limit_bytes: int = 1024 * 1024 * 1024
    allow_force_when_full: bool = False
    brake: BrakeLimits = field(default_factory=BrakeLimits)
