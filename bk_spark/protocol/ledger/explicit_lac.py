"""When a writer must tell its last add confirmed (LAC) by itself. Source: compatibility.md §4.7.

Readers of an open ledger learn the LAC from the headers of later entries. A writer that pauses adds none, so its
last entries stay hidden. Every ``explicitLacInterval`` it therefore sends WRITE_LAC, where the LAC has moved and
no add that was sent since carries it.
"""

from __future__ import annotations

from bk_spark.protocol.codes import NO_ENTRY


class ExplicitLac:
    """What the bookies have been told."""

    def __init__(self) -> None:
        self._told = NO_ENTRY

    def on_told(self, last_add_confirmed: int) -> None:
        """Adds that carry it were sent, or enough bookies took it by WRITE_LAC."""
        self._told = max(self._told, last_add_confirmed)

    def due(self, last_add_confirmed: int) -> bool:
        """Whether ``last_add_confirmed`` has to be told now. Asked again at the next interval where it failed."""
        return last_add_confirmed > self._told
