"""When a log writer goes on to its next ledger."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.bookie.blocking_writer import BlockingWriter
from bk_spark.log.core.tail import TailPlace
from bk_spark.protocol.errors import InvalidArgumentError

#: Far below what a segment can hold.
_MAX_BYTES: Final = 1 << 40
_MAX_ENTRIES: Final = 1 << 36
_MAX_AGE_MS: Final = 100 * 365 * 86_400_000


@dataclass(frozen=True, slots=True)
class RollLimits:
    """A ledger that has reached one of them is closed, and the next one begun."""

    size_bytes: int
    age_ms: int
    entries: int | None

    def __post_init__(self) -> None:
        if not 1 <= self.size_bytes <= _MAX_BYTES:
            raise InvalidArgumentError(f"roll_bytes must be 1 to {_MAX_BYTES}, not {self.size_bytes}")
        if not 1 <= self.age_ms <= _MAX_AGE_MS:
            raise InvalidArgumentError(f"roll_ms must be 1 to {_MAX_AGE_MS}, not {self.age_ms}")
        if self.entries is not None and not 1 <= self.entries <= _MAX_ENTRIES:
            raise InvalidArgumentError(f"roll_entries must be 1 to {_MAX_ENTRIES}, or None, not {self.entries}")


class WrittenTail:
    """The ledger being written, and what was sent to it."""

    def __init__(self, place: TailPlace, ledger: BlockingWriter, limits: RollLimits) -> None:
        self.place = place
        self.ledger = ledger
        self.entries = 0
        self.size_bytes = 0
        self._limits = limits
        self._opened_s = time.monotonic()
        self._not_before_s = 0.0

    @property
    def acknowledged_offset(self) -> int:
        return self.place.base_offset + self.ledger.last_add_confirmed + 1

    @property
    def due_in_s(self) -> float:
        """Seconds until the next ledger is due; 0 or less where it is now. An empty ledger is kept."""
        age_s = self._limits.age_ms / 1000
        if not self.entries:
            return age_s
        due_s = 0.0 if self._is_full else self._opened_s + age_s
        return max(due_s, self._not_before_s) - time.monotonic()

    def put_off(self, delay_s: float) -> None:
        """The next ledger cannot be had now."""
        self._not_before_s = time.monotonic() + delay_s

    def part_end(self, offsets: npt.NDArray[np.int64], first: int) -> int:
        """How many of the payloads between ``offsets`` go into this ledger, ``first`` of them being sent: all, where
        it is over its limits already."""
        end = len(offsets) - 1
        if self._is_full:
            return end
        room_bytes = self._limits.size_bytes - self.size_bytes
        last = int(np.searchsorted(offsets, offsets[first] + room_bytes, side="left"))
        if self._limits.entries is not None:
            last = min(last, first + self._limits.entries - self.entries)
        return min(last, end)

    @property
    def _is_full(self) -> bool:
        limits = self._limits
        return self.size_bytes >= limits.size_bytes or (limits.entries is not None and self.entries >= limits.entries)
