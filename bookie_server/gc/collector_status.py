"""Status and counters of garbage collection."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class CollectionTiming:
    """How often a kind of work was done since the start, and how long it took."""

    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    failed_seconds: float = 0.0

    def note(self, seconds: float, ok: bool) -> None:
        """Count one piece of work, by whether it succeeded."""
        if ok:
            self.done += 1
            self.seconds += seconds
        else:
            self.failed += 1
            self.failed_seconds += seconds


@dataclass(slots=True)
class GarbageCollectorCounters:
    """Counts since the start. Bytes are sizes of files."""

    ledgers_deleted: int = 0
    over_replicated_deleted: int = 0
    failed_deletions: int = 0
    entry_logs_removed: int = 0
    entry_logs_compacted: int = 0
    entries_moved: int = 0
    reclaimed_by_deletion_bytes: int = 0
    reclaimed_by_compaction_bytes: int = 0
    #: Whole passes, and three of their parts: comparing ledgers, examining entry logs, compacting.
    passes: CollectionTiming = field(default_factory=CollectionTiming)
    ledgers: CollectionTiming = field(default_factory=CollectionTiming)
    logs: CollectionTiming = field(default_factory=CollectionTiming)
    compactions: CollectionTiming = field(default_factory=CollectionTiming)


@dataclass(slots=True)
class GarbageCollectorStatus:
    """Times are epoch milliseconds; 0 means never. Counts are since the start. ``problem`` says what went wrong in the
    last pass ("": nothing). ``foreign_cluster``: ZooKeeper was not that of the bookie's cluster."""

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
    """All entry logs and ledgers, as the last pass saw them. ``live_bytes`` counts bytes of existing ledgers, and all
    bytes of entry logs whose share is unknown."""

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
