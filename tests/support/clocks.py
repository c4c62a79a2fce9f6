"""Machines whose time of day is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

DAY_MS = 24 * 3_600_000


@contextmanager
def time_of_day(ahead_ms: Callable[[], int]) -> Iterator[None]:
    """Run the code inside as on a machine whose clock is ahead by this much, at every look."""
    real = time.time_ns
    with patch.object(time, "time_ns", lambda: real() + ahead_ms() * 1_000_000):
        yield
