"""What clients wrote to a bookie and read from it; told once per batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class BookieCounters:
    """Since the start. Bytes are of stored entries. Hits are entries that were read from the write cache, misses those
    that were read from entry logs. Belongs to the event loop."""

    entries_added: int = 0
    bytes_added: int = 0
    entries_read: int = 0
    bytes_read: int = 0
    cache_hits: int = 0
    cache_misses: int = 0

    def read(self, entries: int, size_bytes: int) -> None:
        self.entries_read += entries
        self.bytes_read += size_bytes
