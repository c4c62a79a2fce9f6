"""A temporary memory of ledgers that were fenced and then removed from this bookie.

A fenced writer that does not know about the fence must not recreate a removed ledger with its next add
(compatibility.md §5.11: Apache's bookie remembers for seven days). Adds of recovery and re-replication may recreate it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_KEEP_S: Final = 7 * 24 * 3600.0
_MOST: Final = 100_000


class DeletedLedgers:
    """Remembers up to ``most`` ledgers; the oldest are dropped first. In memory only, as in Apache's bookie."""

    def __init__(self, most: int = _MOST, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._until: dict[int, float] = {}

    def note(self, ledger_id: int) -> None:
        """Remember a fenced ledger that is now removed."""
        self._until.pop(ledger_id, None)
        self._until[ledger_id] = self._clock() + _KEEP_S
        while len(self._until) > self._most:
            del self._until[next(iter(self._until))]

    def forget(self, ledger_id: int) -> None:
        """Forget a ledger that was recreated."""
        self._until.pop(ledger_id, None)

    def __contains__(self, ledger_id: int) -> bool:
        until = self._until.get(ledger_id)
        if until is None:
            return False
        if until <= self._clock():
            del self._until[ledger_id]
            return False
        return True
