"""Totals of what clients wrote to and read from a bookie, updated once per batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class BookieCounters:
    """Totals since the start. Bytes are of stored entries. Hits are entries read from the write cache, misses are
    entries read from entry logs. Belongs to the event loop."""

    entries_added: int = 0
    bytes_added: int = 0
    entries_read: int = 0
    bytes_read: int = 0
    cache_hits: int = 0
    cache_misses: int = 0

    def read(self, entries: int, size_bytes: int) -> None:
        """Count a batch of reads."""
        self.entries_read += entries
        self.bytes_read += size_bytes
