"""When a writer rolls to its next ledger. One policy for log writers and Spark tasks. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.errors import InvalidArgumentError

#: Far below the capacity of a segment.
_MAX_BYTES: Final = 1 << 40
_MAX_ENTRIES: Final = 1 << 36
_MAX_AGE_MS: Final = 100 * 365 * 86_400_000


@dataclass(frozen=True, slots=True)
class RollLimits:
    """When a ledger reaches one of these limits, it is closed and the next one begins."""

    size_bytes: int
    age_ms: int
    entries: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.size_bytes <= _MAX_BYTES:
            raise InvalidArgumentError(f"roll_bytes must be 1 to {_MAX_BYTES}, not {self.size_bytes}")
        if not 1 <= self.age_ms <= _MAX_AGE_MS:
            raise InvalidArgumentError(f"roll_ms must be 1 to {_MAX_AGE_MS}, not {self.age_ms}")
        if self.entries is not None and not 1 <= self.entries <= _MAX_ENTRIES:
            raise InvalidArgumentError(f"roll_entries must be 1 to {_MAX_ENTRIES}, or None, not {self.entries}")

    def is_full(self, size_bytes: int, entries: int) -> bool:
        """Whether a ledger of this size accepts no more entries."""
        return size_bytes >= self.size_bytes or (self.entries is not None and entries >= self.entries)

    def is_due(self, size_bytes: int, entries: int, age_ms: float) -> bool:
        """Whether a ledger of this size and age is due to be replaced."""
        return age_ms >= self.age_ms or self.is_full(size_bytes, entries)

    def part_end(self, offsets: Int64s, first: int, size_bytes: int, entries: int) -> int:
        """Return the end index of the payloads, starting at ``first``, that go into a ledger of this size.

        All of them if the ledger is full already. ``offsets`` are those of the payloads.
        """
        end = len(offsets) - 1
        if self.is_full(size_bytes, entries):
            return end
        room_bytes = self.size_bytes - size_bytes
        last = int(np.searchsorted(offsets, offsets[first] + room_bytes, side="left"))
        if self.entries is not None:
            last = min(last, first + self.entries - entries)
        return min(last, end)
