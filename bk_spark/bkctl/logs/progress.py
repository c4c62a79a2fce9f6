"""A progress bar on stderr, if that is a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final

_INTERVAL_S: Final = 0.1
_WIDTH: Final = 30
_CLEAR_LINE: Final = "\r\x1b[K"


class Progress:
    """A progress bar. A context manager that removes the bar at its end."""

    def __init__(self) -> None:
        self._shows = sys.stderr.isatty()
        self._drawn = False
        self._next_s = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.clear()

    def update(self, what: str, done: int, total: int, more: str = "") -> None:
        """Show ``done`` of ``total``. Draws at most ten times a second, and when all is done."""
        now_s = time.monotonic()
        if not self._shows or not total or (now_s < self._next_s and done < total):
            return
        self._next_s = now_s + _INTERVAL_S
        filled = _WIDTH * min(done, total) // total
        bar = "#" * filled + "-" * (_WIDTH - filled)
        text = f"{what} [{bar}] {100 * min(done, total) // total:3d}%  {done} of {total}{more}"
        print(_CLEAR_LINE + text, end="", file=sys.stderr, flush=True)
        self._drawn = True

    def clear(self) -> None:
        """Remove the bar before something else is printed. The next update draws it again."""
        if self._drawn:
            print(_CLEAR_LINE, end="", file=sys.stderr, flush=True)
            self._drawn = False
            self._next_s = 0.0
