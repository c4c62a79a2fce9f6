"""The bookies that have yet to sync the entries of a writer with deferred sync. Source: compatibility.md §4.10."""

from __future__ import annotations

from collections.abc import Iterable

from bk_spark.protocol.ledger.writer_actions import ForceBookie


class Forces:
    """The force requests under way, by the last entry that each confirms."""

    def __init__(self) -> None:
        #: The bookies that have not yet synced, and the payload bytes up to the entry.
        self._missing: dict[int, tuple[set[str], int]] = {}

    def begin(self, last_entry_id: int, length: int, bookies: Iterable[str]) -> list[ForceBookie]:
        """Return requests to all ``bookies``, or none if they are under way already."""
        if last_entry_id in self._missing:
            return []
        self._missing[last_entry_id] = set(bookies), length
        return [ForceBookie(bookie_id, last_entry_id) for bookie_id in sorted(self._missing[last_entry_id][0])]

    def on_forced(self, bookie_id: str, last_entry_id: int) -> int | None:
        """Record a sync. Return the payload bytes up to ``last_entry_id`` once the last bookie has synced."""
        missing, length = self._missing.get(last_entry_id, (None, 0))
        if missing is None:
            return None
        missing.discard(bookie_id)
        if missing:
            return None
        del self._missing[last_entry_id]
        return length

    def clear(self) -> None:
        """Forget all requests, because the writer ended. Later syncs confirm nothing."""
        self._missing.clear()
