"""Remembers bookies that failed or were slow lately. Readers ask them last. Source: compatibility.md §4.8."""

from __future__ import annotations

import time
from collections.abc import Callable


class FailureHistory:
    """Shared by all readers of a client. A bookie is forgotten ``expiration_ms`` after its last failure."""

    def __init__(self, expiration_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._expiration_s = expiration_ms / 1000
        self._clock = clock
        self._noted_at: dict[str, float] = {}

    def add(self, bookie_id: str, /) -> None:
        """Record a bookie that failed, lacked an entry that others had, or was slow."""
        self._noted_at[bookie_id] = self._clock()

    def __contains__(self, bookie_id: object, /) -> bool:
        if not isinstance(bookie_id, str) or bookie_id not in self._noted_at:
            return False
        if self._clock() - self._noted_at[bookie_id] < self._expiration_s:
            return True
        del self._noted_at[bookie_id]
        return False
