"""The limit of entries and bytes that a process copies per second, shared by all of its repairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bk_spark.protocol.replication.copying.copy_limits import CopyLimits

#: Tokens that may be saved up, as a time at the full rate.
_BURST_MS: Final = 100.0


class CopyRate:
    """Two token buckets without a clock: each call of :meth:`take` says the time.

    A batch larger than the bucket passes, and the next one waits until the bucket has recovered. Waits have no limit of
    their own, since a limited wait would let batches pass that nobody paid for. The number of callers bounds them: a
    repair has few batches under way, and a process has few repairs.

    Parameters
    ----------
    entries_per_s, bytes_per_s
        0 or less: no limit.
    """

    def __init__(self, entries_per_s: float = 0, bytes_per_s: float = 0) -> None:
        self._per_s = (entries_per_s, bytes_per_s)
        #: The time up to which the tokens of each bucket are spent.
        self._paid_until_ms = [0.0, 0.0]

    def take(self, entries: int, size_bytes: int, now_ms: float) -> float:
        """Take tokens for a batch. Return how long to wait before it may be copied, in milliseconds.

        Callers wait in the order of their calls.
        """
        wait_ms = 0.0
        for index, (units, per_s) in enumerate(zip((entries, size_bytes), self._per_s, strict=True)):
            if per_s > 0:
                begin_ms = max(self._paid_until_ms[index], now_ms - _BURST_MS)
                wait_ms = max(wait_ms, begin_ms - now_ms)
                self._paid_until_ms[index] = begin_ms + units * 1000 / per_s
        return wait_ms

    def batches(self, limits: CopyLimits) -> CopyLimits:
        """Return ``limits`` with batches that take a second at most. Larger ones would be copied in bursts."""
        entries_per_s, bytes_per_s = self._per_s
        if entries_per_s > 0:
            limits = replace(limits, batch_entries=max(1, min(limits.batch_entries, int(entries_per_s))))
        if bytes_per_s > 0:
            limits = replace(limits, batch_bytes=max(1, min(limits.batch_bytes, int(bytes_per_s))))
        return limits
