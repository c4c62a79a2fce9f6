"""When a group is written, and how long that took. Source: compatibility.md §5.4.

With ``adaptive_group_writes``, a group is written as soon as the journal's thread is free. Otherwise it is written when
its oldest entry is ``max_group_wait_ms`` old, when its bytes or entries reach their thresholds, or, with
``flush_when_queue_empty``, when the thread is free.

A group of nothing but fences of many ledgers waits even if the thread is free: until none has come for three
milliseconds, for twenty at most. More of them are under way. Written one by one, each would cost a sync. Even in fours,
as those begin that create ledgers, their syncs would take most of the thread's time, and each add would wait for one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from bookie_server.config.config import BookieConfig

FlushReason = Literal["queue_empty", "max_wait", "threshold"]

#: How long fences of many ledgers wait for the next one, and for all others.
NEXT_FENCE_WAIT_S: Final = 0.003
MOST_FENCES_WAIT_S: Final = 0.02


class JournalGroupTiming:
    """Decides when a group is written."""

    def __init__(self, config: BookieConfig) -> None:
        self._max_bytes = config.journal_group_bytes
        self._max_entries = config.journal_group_entries
        self._max_wait_s = config.journal_max_group_wait_ms / 1000
        self._at_once = (
            config.journal_adaptive_group_writes or config.journal_flush_when_queue_empty or self._max_wait_s <= 0
        )

    def is_large(self, size_bytes: int, entries: int) -> bool:
        """Whether a group with so many bytes and entries should not wait for more."""
        return size_bytes > self._max_bytes or 0 < self._max_entries < entries

    def due(
        self, size_bytes: int, entries: int, since_s: float, last_s: float, *, urgent: bool
    ) -> tuple[FlushReason, float]:
        """Return why and when to write a group whose oldest entry came at ``since_s`` and its newest at ``last_s``. 0
        means now. ``urgent``: the group has more than such fences."""
        if self._at_once and urgent:
            return "queue_empty", 0.0
        if self.is_large(size_bytes, entries):
            return "threshold", 0.0
        if not self._at_once:
            return "max_wait", since_s + self._max_wait_s
        return "max_wait", min(since_s + MOST_FENCES_WAIT_S, last_s + NEXT_FENCE_WAIT_S)


@dataclass(frozen=True, slots=True)
class JournalGroupStats:
    """Figures of one group: its records and bytes, how long the oldest record waited for the thread, and the time the
    thread took. ``ok`` is False if the write or sync failed."""

    entries: int
    size_bytes: int
    queue_seconds: float
    write_seconds: float
    sync_seconds: float
    reason: FlushReason
    ok: bool
