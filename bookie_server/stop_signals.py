"""Signals that ask a process to stop: the first one raises in the main thread, later ones are ignored."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from types import FrameType


class StopRequestedError(BaseException):
    """A signal asked the process to stop. Not an Exception, so that no code on the way takes it for a failure."""


@contextlib.contextmanager
def stop_on_signal(signals: Sequence[signal.Signals]) -> Iterator[None]:
    """Raise StopRequestedError in the block at the first of ``signals``.

    The error may come where Python drops one, as in a finalizer. It is then raised at the end of the block.
    """
    requested = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal requested
        requested = True
        ignore_signals(signals)
        raise StopRequestedError

    for number in signals:
        signal.signal(number, stop)
    yield
    if requested:
        raise StopRequestedError


def ignore_signals(signals: Sequence[signal.Signals]) -> None:
    """Ignore ``signals`` from now on: the stop is under way and bounded, and must not be cut short."""
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
