"""When minor or major compaction runs, and what it rewrites."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """Minor or major compaction. It is off if ``interval_ms`` or ``threshold`` is 0 or less.

    Entry logs whose live share is below ``threshold`` are rewritten. No further one is started after ``max_time_ms``;
    0 or less: no limit.
    """

    interval_ms: int
    threshold: float
    max_time_ms: int = 0

    @property
    def enabled(self) -> bool:
        return self.interval_ms > 0 and self.threshold > 0
