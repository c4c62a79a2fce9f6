"""Single entries that wait to be sent together, and pieces of large calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

#: Entries are packaged and sent in pieces of about this size, so that sending, syncing and acknowledging overlap.
PIECE_BYTES: Final = 1024 * 1024
PIECE_ENTRIES: Final = 2_000


class EntryGatherer:
    """Entries of single calls, in order, not sent yet. Not thread-safe.

    Parameters
    ----------
    max_bytes, max_entries
        With so much in it, it is full.
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
        """Whether what is in it should be sent before more comes."""
        return self.size_bytes >= self._max_bytes or len(self._entries) >= self._max_entries

    def add(self, entry: bytes, size_bytes: int) -> None:
        """``size_bytes`` is what the entry counts, with its frame if that matters."""
        self._entries.append(entry)
        self.size_bytes += size_bytes

    def take(self) -> list[bytes]:
        """All entries. Afterwards none are in it."""
        entries, self._entries, self.size_bytes = self._entries, [], 0
        return entries


def pieces(offsets: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Half-open ranges of entries that are sent together. ``offsets`` are those of
    :class:`~bk_spark.protocol.entries.payloads.Payloads`."""
    first, count = 0, len(offsets) - 1
    while first < count:
        last = int(np.searchsorted(offsets, offsets[first] + PIECE_BYTES, side="right")) - 1
        end = min(max(last, first + 1), first + PIECE_ENTRIES, count)
        yield first, end
        first = end
