"""When a writer must tell its last add confirmed (LAC) by itself. Source: compatibility.md §4.7.

Readers of an open ledger learn the LAC from the headers of later entries. A writer that pauses adds none, so its
last entries stay hidden. When ``explicitLacInterval`` has passed since the LAC moved and no add has carried it, the
writer sends WRITE_LAC to the write set of that entry. Where no ack quorum takes it, it asks again after the interval.
"""

from __future__ import annotations

from collections.abc import Iterable

from bk_spark.protocol.codes import NO_ENTRY
from bk_spark.protocol.ledger.writer_actions import WriteLac, WriterTimer
from bk_spark.protocol.machine import StartTimer


class ExplicitLac:
    """What the bookies have been told."""

    def __init__(self, interval_ms: int, ack_quorum_size: int) -> None:
        self._interval_ms = interval_ms
        self._ack_quorum_size = ack_quorum_size
        self._told = NO_ENTRY
        self._timer_runs = False
        #: What is being told, answers that are missing, bookies that took it.
        self._telling, self._missing, self._taken = NO_ENTRY, 0, 0

    def on_carried(self, last_add_confirmed: int) -> None:
        """Adds that carry it were sent."""
        self._told = max(self._told, last_add_confirmed)

    def on_confirmed(self, last_add_confirmed: int) -> list[StartTimer]:
        """The LAC is ``last_add_confirmed`` now."""
        if self._timer_runs or last_add_confirmed <= self._told or not self._interval_ms:
            return []
        self._timer_runs = True
        return [StartTimer(WriterTimer.EXPLICIT_LAC, self._interval_ms)]

    def on_timer(self, last_add_confirmed: int, write_set: Iterable[str]) -> list[WriteLac | StartTimer]:
        """The interval has passed. ``write_set`` are the bookies of the entry ``last_add_confirmed``."""
        self._timer_runs = False
        requests: list[WriteLac | StartTimer] = []
        if last_add_confirmed > self._told and not self._missing:
            requests += [WriteLac(bookie_id, last_add_confirmed) for bookie_id in write_set]
            self._telling, self._missing, self._taken = last_add_confirmed, len(requests), 0
        return [*requests, *self.on_confirmed(last_add_confirmed)]

    def on_answer(self, last_add_confirmed: int, *, taken: bool) -> None:
        """A bookie took it, or did not. Failures do no harm: readers know the LAC later."""
        if last_add_confirmed != self._telling or not self._missing:
            return
        self._missing -= 1
        self._taken += taken
        if self._taken >= self._ack_quorum_size:
            self.on_carried(last_add_confirmed)
