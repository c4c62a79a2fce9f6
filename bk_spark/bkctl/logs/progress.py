"""A progress bar on stderr, if that is a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final

_INTERVAL_S: Final = 0.1
_WIDTH: Final = 30
_CLEAR_LINE: Final = "\r\x1b[K"
#: No estimate is made from less time than this.
_ESTIMATE_AFTER_S: Final = 3.0


class Progress:
    """A progress bar. A context manager that removes the bar at its end."""

    def __init__(self) -> None:
        self._shows = sys.stderr.isatty()
        self._drawn = False
        self._next_s = 0.0
        #: What is being counted, when that began, and how much was done then. For the estimate.
        self._began: tuple[str, float, int] | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.clear()

    def update(self, what: str, done: int, total: int, more: str = "") -> None:
        """Show ``done`` of ``total``, and the time that is left. Draws at most ten times a second, and when all is
        done."""
        now_s = time.monotonic()
        if self._began is None or self._began[0] != what:
            self._began = what, now_s, done
        if not self._shows or not total or (now_s < self._next_s and done < total):
            return
        filled = _WIDTH * min(done, total) // total
        bar = "#" * filled + "-" * (_WIDTH - filled)
        left = self._time_left(done, total, now_s)
        self._draw(f"{what} [{bar}] {100 * min(done, total) // total:3d}%  {done} of {total}{more}{left}", now_s)

    def count(self, what: str, done: int) -> None:
        """Show how much is done of what has no known total. Draws at most ten times a second."""
        now_s = time.monotonic()
        if self._shows and now_s >= self._next_s:
            self._draw(f"{what}: {done}", now_s)

    def _draw(self, text: str, now_s: float) -> None:
        self._next_s = now_s + _INTERVAL_S
        print(_CLEAR_LINE + text, end="", file=sys.stderr, flush=True)
        self._drawn = True

    def _time_left(self, done: int, total: int, now_s: float) -> str:
        assert self._began is not None
        _, began_s, done_before = self._began
        if now_s - began_s < _ESTIMATE_AFTER_S or not done_before < done < total:
            return ""
        left_s = (total - done) * (now_s - began_s) / (done - done_before)
        return f", about {left_s:.0f} s left" if left_s < 90 else f", about {left_s / 60:.0f} min left"

    def clear(self) -> None:
        """Remove the bar before something else is printed. The next update draws it again."""
        if self._drawn:
            print(_CLEAR_LINE, end="", file=sys.stderr, flush=True)
            self._drawn = False
            self._next_s = 0.0
