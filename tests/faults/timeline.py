"""What happened when, from all threads of a run."""

from __future__ import annotations

import threading
import time


class Timeline:
    def __init__(self) -> None:
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._lines: list[str] = []

    def note(self, who: str, what: str) -> None:
        at = time.monotonic() - self._started
        with self._lock:
            self._lines.append(f"{at:8.3f}  {who:9} {what}")

    def __str__(self) -> str:
        with self._lock:
            return "\n".join(self._lines)
