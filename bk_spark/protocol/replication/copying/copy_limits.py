"""Limits and result of the machine that copies a fragment (:mod:`.fragment_copy`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

#: Most entries of a batch while their size is unknown.
_FIRST_ENTRIES: Final = 16
#: Bytes of an answer to a batch read besides the entries.
_BATCH_RESERVE_BYTES: Final = 1024
#: Most entries of a batch that are read by requests of their own.
_MAX_SINGLE_READS: Final = 250


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """Limits of a copy.

    Parameters
    ----------
    batches
        Batches under way, read or written. While the size of an entry is unknown, it is one.
    batch_entries, batch_bytes
        The intended size of a batch. If its entries turn out larger, an answer to a batch read has at most twice the
        bytes, and the rest is read again.
    pending_bytes
        No further batch is read while this many bytes are not yet acknowledged. Adds of other clients wait behind these
        bytes in the journal of a bookie.
    fragment_bytes
        What a fragment counts for in the pace besides its entries: checks, and changes of metadata, marks and locks.
    timeout_ms
        A bookie that does not answer for this long has failed.
    max_answer_bytes
        The largest answer to a batch read. None: entries are read one by one.
    busy_pause_ms, busy_attempts
        How often, and after which pause, entries are sent again to a target that has too many requests.
    """

    batches: int = 8
    batch_entries: int = 2_000
    batch_bytes: int = 256 * 1024
    pending_bytes: int = 2 * 1024 * 1024
    fragment_bytes: int = 256 * 1024
    timeout_ms: int = 5_000
    max_answer_bytes: int | None = None
    busy_pause_ms: int = 100
    busy_attempts: int = 50

    def batches_at_once(self, average_bytes: float) -> int:
        """Return how many batches may be under way. While the size of an entry is unknown (0), one batch shows it."""
        return self.batches if average_bytes else 1

    def entries_at_once(self, average_bytes: float) -> int:
        """Return the number of entries in a batch if an entry has ``average_bytes`` bytes (0: unknown)."""
        if not average_bytes:
            return min(_FIRST_ENTRIES, self.batch_entries)
        return max(1, min(self.batch_entries, int(self.batch_bytes / average_bytes)))

    def single_reads_at_once(self, average_bytes: float) -> int:
        """Return the entries of a batch that are read one by one. Nothing limits the bytes of the answers, so while the
        size of an entry is unknown (0), it is one."""
        return min(_MAX_SINGLE_READS, self.entries_at_once(average_bytes)) if average_bytes else 1

    def answer_bytes(self, average_bytes: float) -> int:
        """Return the most bytes of entries to ask a batch read for. An answer has at least one entry, of any size."""
        wanted = 2 * self.batch_bytes if average_bytes else self.batch_bytes
        return wanted if self.max_answer_bytes is None else min(wanted, self.max_answer_bytes - _BATCH_RESERVE_BYTES)


@dataclass(frozen=True, slots=True)
class CopyResult:
    """What was copied.

    Parameters
    ----------
    copied
        The positions whose target has acknowledged every entry.
    unreadable
        Entries that no bookie returned, and why. After the first, no others of the same write set are looked for.
    failed_targets
        Targets that failed, and why.
    entries, size_bytes
        What was written. An entry counts once for each target.
    """

    copied: frozenset[int]
    unreadable: Mapping[int, str] = field(default_factory=dict)
    failed_targets: Mapping[str, str] = field(default_factory=dict)
    entries: int = 0
    size_bytes: int = 0
