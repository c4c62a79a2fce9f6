"""Status, counters and figures of garbage collection."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Timing:
    """How often something was done since the start, and the time that it took."""

    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    failed_seconds: float = 0.0

    def note(self, seconds: float, ok: bool) -> None:
        if ok:
            self.done += 1
            self.seconds += seconds
        else:
            self.failed += 1
            self.failed_seconds += seconds


@dataclass(slots=True)
class GarbageCollectorCounters:
    """Since the start. Bytes are of files."""

    ledgers_deleted: int = 0
    over_replicated_deleted: int = 0
    failed_deletions: int = 0
    entry_logs_removed: int = 0
    entry_logs_compacted: int = 0
    entries_moved: int = 0
    reclaimed_by_deletion_bytes: int = 0
    reclaimed_by_compaction_bytes: int = 0
    #: A whole pass; its comparison of ledgers; its look at the entry logs; its compaction, where there was one.
    passes: Timing = field(default_factory=Timing)
    ledgers: Timing = field(default_factory=Timing)
    logs: Timing = field(default_factory=Timing)
    compactions: Timing = field(default_factory=Timing)


@dataclass(slots=True)
class GarbageCollectorStatus:
    """Times are epoch ms, 0: never yet. Counts are since the start. ``problem`` is what went wrong in the last pass, ""
    for nothing; ``foreign_cluster``: it found that ZooKeeper is not that of the bookie's cluster."""

    running: bool = False
    forced: bool = False
    in_minor: bool = False
    in_major: bool = False
    minor_count: int = 0
    major_count: int = 0
    last_run_ms: int = 0
    last_minor_ms: int = 0
    last_major_ms: int = 0
    last_over_replicated_ms: int = 0
    problem: str = ""
    foreign_cluster: bool = False


@dataclass(frozen=True, slots=True)
class EntryLogTotals:
    """All entry logs and ledgers, as the last pass saw them. ``live_bytes`` are bytes of ledgers that exist; for entry
    logs where that is unknown, all their bytes count."""

    logs: int
    size_bytes: int
    live_bytes: int
    ledgers: int


@dataclass(frozen=True, slots=True)
class EntryLogStatus:
    """An entry log and the ``reason`` why it is kept. ``size_bytes`` is the size of its file; ``live_bytes`` and
    ``usage`` (0 to 1) are -1 if they are unknown."""

    entry_log_id: int
    directory: str
    size_bytes: int
    live_bytes: int
    usage: float
    reason: str
