"""Signals that ask a process to stop: the first one raises in the main thread, later ones are ignored."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from types import FrameType


class StopRequestedError(BaseException):
    """A signal asked the process to stop. Not an Exception, so that no handler takes it for a failure."""


@contextlib.contextmanager
def stop_on_signal(signals: Sequence[signal.Signals]) -> Iterator[None]:
    """Raise StopRequestedError in the block at the first of ``signals``.

    Python may drop the error, as in a finalizer. It is then raised at the end of the block.
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
    """Ignore ``signals`` from now on: the stop is running, has a time limit, and must not be interrupted."""

    for number in signals:
        signal.signal(number, signal.SIG_IGN)
