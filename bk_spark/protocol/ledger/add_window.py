"""The entries that a writer has under way, and the bookies that delay it. Time is counted in ticks of a timer.

A tick is a quarter of the shortest timeout, at most one second. So a timeout is noticed at most a quarter late, and a
process that was suspended for a while does not blame the bookies.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from bk_spark.protocol.ledger.writer_actions import WriterLimits


@dataclass(frozen=True, slots=True)
class _Piece:
    """Entries that were added together and that some bookie has not answered."""

    last_entry_id: int
    size_bytes: int
    added_at: int


class AddWindow:
    """The pieces under way, and the bookies that owe answers."""

    def __init__(self, limits: WriterLimits) -> None:
        self._limits = limits
        timeouts = [limits.add_timeout_ms, limits.add_quorum_timeout_ms or limits.add_timeout_ms]
        self.tick_ms = min(1_000.0, min(timeouts) / 4)
        #: Bytes of frames that some bookie of the ensemble has not answered.
        self.pending_bytes = 0
        self._pieces: deque[_Piece] = deque()
        self._ticks = 0
        #: For each bookie that owes adds: ticks since it took one, or since the first was sent to it.
        self._idle_ticks: dict[str, int] = {}

    def added(self, last_entry_id: int, size_bytes: int) -> None:
        self._pieces.append(_Piece(last_entry_id, size_bytes, self._ticks))
        self.pending_bytes += size_bytes

    def release(self, oldest_retained: int) -> None:
        """Forget entries before ``oldest_retained``, which all bookies have answered."""
        pieces = self._pieces
        while pieces and pieces[0].last_entry_id < oldest_retained:
            self.pending_bytes -= pieces.popleft().size_bytes

    def has_room(self, entries: int, size_bytes: int, waiting_bytes: int, unanswered: int) -> bool:
        """Return whether ``entries`` of ``size_bytes`` may be added, after ``waiting_bytes``. ``unanswered`` is the
        number of entries that the slowest bookie owes. If nothing is under way, the answer is yes."""
        limits, pending = self._limits, self.pending_bytes + waiting_bytes
        return not (
            (pending and pending + size_bytes > limits.max_pending_bytes)
            or (unanswered and unanswered + entries > limits.max_unanswered_entries)
        )

    # --- time ---

    def sent(self, bookie_id: str) -> None:
        self._idle_ticks.setdefault(bookie_id, 0)

    def took(self, bookie_id: str, *, owes: bool) -> None:
        """Record that the bookie took an add, or owes nothing."""
        if owes:
            self._idle_ticks[bookie_id] = 0
        else:
            self._idle_ticks.pop(bookie_id, None)

    @property
    def waits(self) -> bool:
        """Whether the timer is needed."""
        return bool(self._idle_ticks or self._pieces)

    def tick(self) -> list[str]:
        """Count a tick. Return the bookies that took nothing for the add timeout."""
        self._ticks += 1
        for bookie_id in self._idle_ticks:
            self._idle_ticks[bookie_id] += 1
        most = self._ticks_of(self._limits.add_timeout_ms)
        return [bookie_id for bookie_id, idle in self._idle_ticks.items() if idle >= most]

    def is_overdue(self, last_add_acknowledged: int) -> bool:
        """Return whether the oldest entry without its ack quorum has waited for the add quorum timeout."""
        limit_ms = self._limits.add_quorum_timeout_ms
        oldest = next((piece for piece in self._pieces if piece.last_entry_id > last_add_acknowledged), None)
        return limit_ms is not None and oldest is not None and self._ticks - oldest.added_at >= self._ticks_of(limit_ms)

    def clear(self) -> None:
        self.pending_bytes = 0
        self._pieces.clear()
        self._idle_ticks.clear()

    def _ticks_of(self, time_ms: int) -> int:
        """Return the number of ticks in at least ``time_ms``. Adds one, because the first tick may come early."""
        return int(-(-time_ms // self.tick_ms)) + 1
