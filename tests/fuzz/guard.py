"""Bounds of one call of a decoder: memory, time, and the errors that it may raise."""

from __future__ import annotations

import contextlib
import gc
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from bk_spark.protocol.errors import BookKeeperError

#: What a decoder may hold beside what it returns, if the test says nothing else. Its inputs here have a few KiB.
LIMIT_BYTES: Final = 1024 * 1024
#: Time of the processor, not of a clock: no other process's load counts. A decoder takes some milliseconds.
_HANG_S: Final = 20.0
#: A text that repeats what it was given would make a log as large as a peer likes.
MAX_TEXT: Final = 2_000
T = TypeVar("T")


class HangError(Exception):
    """A decoder does not end."""


class Refused:
    """What :func:`outcome` returns for an error."""

    def __init__(self, error: BookKeeperError) -> None:
        self.error = error


def outcome(
    decode: Callable[[], T],
    *errors: type[BookKeeperError],
    names: str = "",
    limit_bytes: int = LIMIT_BYTES,
    max_text: int = MAX_TEXT,
) -> T | Refused:
    """Decode within the limits. The error must be one of ``errors``, say something, and name ``names``."""
    try:
        with bounded(limit_bytes):
            return decode()
    except errors as error:
        refused = Refused(error)
    text = str(refused.error)
    assert text.strip(), f"{type(refused.error).__name__} without a text"
    assert names in text, f"{text!r} does not name {names}"
    assert len(text) <= max_text, f"a text of {len(text)} characters: {text[:200]!r}…"
    return refused


@contextlib.contextmanager
def bounded(limit_bytes: int = LIMIT_BYTES) -> Iterator[None]:
    """Fail if more than ``limit_bytes`` are allocated at a time, by Python or numpy, or if there is no end."""

    def hangs(*_: Any) -> None:
        raise HangError(f"no end after {_HANG_S:.0f} s of processor time")

    before, collects = signal.signal(signal.SIGVTALRM, hangs), gc.isenabled()
    # What earlier tests left allocates, too, when it is collected: to warn that nobody closed it, for one.
    gc.disable()
    tracemalloc.start()
    signal.setitimer(signal.ITIMER_VIRTUAL, _HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        if collects:
            gc.enable()
        signal.signal(signal.SIGVTALRM, before)
    assert peak_bytes <= limit_bytes, f"{peak_bytes} bytes allocated, at most {limit_bytes} expected"
