"""The bookie's event loop gives way to a thread that wants the GIL for an instant, as a journal's after each write."""

from __future__ import annotations

import asyncio
import selectors
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import pytest

from bookie_server import event_loop
from bookie_server.event_loop import GivingWaySelector, new_event_loop
from bookie_server.process import SWITCH_INTERVAL_S


@pytest.fixture(autouse=True)
def _as_in_a_bookie() -> Iterator[None]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    yield
    sys.setswitchinterval(before_s)


def _writes(loop: asyncio.AbstractEventLoop) -> int:
    """Return how many times a second a thread writes and pauses, beside a loop that is always busy, in short turns."""
    count = 0

    def write() -> None:
        nonlocal count
        until_s = time.monotonic() + 1
        with tempfile.TemporaryFile(buffering=0) as file:
            while time.monotonic() < until_s:
                file.write(b"x" * 100)
                time.sleep(0.001)
                count += 1

    thread = threading.Thread(target=write)

    def turn() -> None:
        sum(range(5_000))
        if thread.is_alive():
            loop.call_soon(turn)
        else:
            loop.stop()

    loop.call_soon(thread.start)
    loop.call_later(0.01, turn)
    try:
        loop.run_forever()
    finally:
        loop.close()
        thread.join()
    return count


def test_a_thread_does_not_starve_beside_a_busy_loop() -> None:
    """A selector that keeps the GIL leaves it some dozen writes a second, unless other processes stop the loop."""
    counts: list[int] = []
    while len(counts) < 3:
        counts.append(_writes(new_event_loop(lambda: 0.0)))
        if counts[-1] > 100:
            return
    raise AssertionError(f"writes in a second: {counts}")


class Clock:
    """A clock for a selector: it advances by what is slept, and by what a poll takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.poll_s = 0.0
        self.slept = 0
        self.busy_since_s: float | None = None
        monkeypatch.setattr(event_loop, "time", self)
        monkeypatch.setattr(selectors.DefaultSelector, "select", self._poll)
        self.selector = GivingWaySelector(lambda: self.busy_since_s)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds < 0.001
        self.now_s += seconds + 0.0001
        self.slept += 1

    def turns(self, count: int, timeout: float | None = 0) -> int:
        """Make turns of 0.1 ms. Return in how many the loop gave way."""
        before = self.slept
        for _ in range(count):
            self.now_s += 0.0001
            self.selector.select(timeout)
        return self.slept - before

    def _poll(self, _: object, timeout: float | None = None) -> list[object]:
        self.now_s += self.poll_s
        return []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    with monkeypatch.context() as patch:
        clock = Clock(patch)
        yield clock
    clock.selector.close()


def test_the_loop_gives_way_once_a_millisecond_while_a_group_takes_long(clock: Clock) -> None:
    clock.busy_since_s = 90.0
    assert clock.turns(9) == 0
    assert 8 <= clock.turns(100) <= 10


def test_the_loop_keeps_on_while_nobody_needs_it_to_give_way(clock: Clock) -> None:
    assert clock.turns(100) == 0, "no group is written"
    clock.busy_since_s = clock.now_s
    assert clock.turns(9) == 0, "it has been written for less than two milliseconds"
    assert clock.turns(100, timeout=1.0) == 0, "the loop waits anyway"
    clock.poll_s = 0.0002
    assert clock.turns(100) <= 1, "each poll takes long enough"
