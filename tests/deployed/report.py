"""Checks with their times, as lines of output."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Found = TypeVar("Found")


@contextmanager
def check(what: str) -> Iterator[list[str]]:
    """Print ``what`` with its seconds, and what was appended to the list. A failure prints nothing and goes on up."""
    figures: list[str] = []
    begin = time.monotonic()
    yield figures
    print(f"ok {time.monotonic() - begin:6.1f} s  {what}{''.join(f'; {each}' for each in figures)}", flush=True)


def wait_for(ask: Callable[[], Found | None], what: str, timeout_s: float = 180) -> Found:
    """The first answer of ``ask`` that is true."""
    deadline = time.monotonic() + timeout_s
    while not (found := ask()):
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.25)
    return found
