"""The ledger that a log writer is writing."""

from __future__ import annotations

import time

from bk_spark.bookie.blocking_writer import BlockingWriter
from bk_spark.log.core.roll import RollLimits
from bk_spark.log.core.tail import TailPlace
from bk_spark.protocol.arrays import Int64s


class WrittenTail:
    """The ledger being written, and how much was sent to it."""

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
        """Seconds until the next ledger is due; 0 or less if it is due now. An empty ledger is kept."""
        age_s = self._limits.age_ms / 1000
        if not self.entries:
            return age_s
        due_s = 0.0 if self._limits.is_full(self.size_bytes, self.entries) else self._opened_s + age_s
        return max(due_s, self._not_before_s) - time.monotonic()

    def put_off(self, delay_s: float) -> None:
        """Delay the next roll, because no new ledger could be created."""
        self._not_before_s = time.monotonic() + delay_s

    def part_end(self, offsets: Int64s, first: int) -> int:
        """Like :meth:`RollLimits.part_end`, for this ledger."""
        return self._limits.part_end(offsets, first, self.size_bytes, self.entries)
