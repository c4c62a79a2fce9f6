"""When a writer must publish its last add confirmed (LAC) by itself. Source: compatibility.md §4.7.

Readers of an open ledger learn the LAC from the headers of later entries. A writer that pauses adds none, so its
last entries stay hidden. When ``explicitLacInterval`` has passed since the LAC moved and no add has carried it, the
writer sends WRITE_LAC to the write set of that entry. If no ack quorum takes it, the writer sends it again after the
interval.
"""

from __future__ import annotations

from collections.abc import Iterable

from bk_spark.protocol.codes import NO_ENTRY
from bk_spark.protocol.ledger.writer_actions import WriteLac, WriterTimer
from bk_spark.protocol.machine import StartTimer


class ExplicitLac:
    """The LAC that the bookies know, and the requests under way."""

    def __init__(self, interval_ms: int, ack_quorum_size: int) -> None:
        self._interval_ms = interval_ms
        self._ack_quorum_size = ack_quorum_size
        self._told = NO_ENTRY
        self._timer_runs = False
        #: The LAC being sent, the number of missing answers, the number of bookies that took it.
        self._telling, self._missing, self._taken = NO_ENTRY, 0, 0

    def on_carried(self, last_add_confirmed: int) -> None:
        """Record that adds with this LAC were sent."""
        self._told = max(self._told, last_add_confirmed)

    def on_confirmed(self, last_add_confirmed: int) -> list[StartTimer]:
        """Record that the LAC is now ``last_add_confirmed``."""
        if self._timer_runs or last_add_confirmed <= self._told or not self._interval_ms:
            return []
        self._timer_runs = True
        return [StartTimer(WriterTimer.EXPLICIT_LAC, self._interval_ms)]

    def on_timer(self, last_add_confirmed: int, write_set: Iterable[str]) -> list[WriteLac | StartTimer]:
        """Handle the end of the interval. ``write_set`` has the bookies of the entry ``last_add_confirmed``."""
        self._timer_runs = False
        requests: list[WriteLac | StartTimer] = []
        if last_add_confirmed > self._told and not self._missing:
            requests += [WriteLac(bookie_id, last_add_confirmed) for bookie_id in write_set]
            self._telling, self._missing, self._taken = last_add_confirmed, len(requests), 0
        return [*requests, *self.on_confirmed(last_add_confirmed)]

    def on_answer(self, last_add_confirmed: int, *, taken: bool) -> None:
        """Record whether a bookie took it. Failures do no harm: readers only learn the LAC later."""
        if last_add_confirmed != self._telling or not self._missing:
            return
        self._missing -= 1
        self._taken += taken
        if self._taken >= self._ack_quorum_size:
            self.on_carried(last_add_confirmed)
