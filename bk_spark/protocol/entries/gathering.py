"""Gathers single entries to send them together, and cuts large calls into pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

#: Entries are packaged and sent in pieces of about this size, so that sending, syncing and acknowledging overlap.
PIECE_BYTES: Final = 1024 * 1024
PIECE_ENTRIES: Final = 2_000


class EntryGatherer:
    """Entries of single calls, in order, not yet sent. Not thread-safe.

    Parameters
    ----------
    max_bytes, max_entries
        The gatherer is full at either limit.
    """

    def __init__(self, max_bytes: int = PIECE_BYTES, max_entries: int = PIECE_ENTRIES) -> None:
        self.size_bytes = 0
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._entries: list[bytes] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_full(self) -> bool:
        """Whether the entries should be sent before more are added."""
        return self.size_bytes >= self._max_bytes or len(self._entries) >= self._max_entries

    def has_room(self, size_bytes: int) -> bool:
        """Whether an entry of this size fits within the limits."""
        return self.size_bytes + size_bytes <= self._max_bytes and len(self._entries) < self._max_entries

    def add(self, entry: bytes, size_bytes: int) -> None:
        """Add an entry. ``size_bytes`` counts against the limit, and may include the frame."""
        self._entries.append(entry)
        self.size_bytes += size_bytes

    def take(self) -> list[bytes]:
        """Remove and return all entries."""
        entries, self._entries, self.size_bytes = self._entries, [], 0
        return entries


def pieces(offsets: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield half-open ranges of entries to send together. ``offsets`` are those of
    :class:`~bk_spark.protocol.entries.payloads.Payloads`."""
    first, count = 0, len(offsets) - 1
    while first < count:
        last = int(np.searchsorted(offsets, offsets[first] + PIECE_BYTES, side="right")) - 1
        end = min(max(last, first + 1), first + PIECE_ENTRIES, count)
        yield first, end
        first = end
