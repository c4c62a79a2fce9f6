"""The rate of compaction and of metadata reads, and stopping while one waits."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from bookie_server.gc.throttle import GarbageCollectorStoppedError, StopSignal, Throttle


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_rate_is_kept_on_average() -> None:
    clock = Clock()
    throttle = Throttle(100, clock)
    begun, units = clock.now, 0
    for _ in range(50):
        clock.now += throttle.take(20)
        units += 20
    assert units / (clock.now - begun) == pytest.approx(100, rel=0.05)


def test_what_was_not_used_is_not_saved_up() -> None:
    clock = Clock()
    throttle = Throttle(10, clock)
    assert throttle.take(10) == 0
    clock.now += 3600
    assert throttle.take(10) == 0
    assert throttle.take(10) == pytest.approx(1)


def test_no_rate_means_no_limit_and_no_wait_is_endless() -> None:
    clock = Clock()
    assert [Throttle(0, clock).take(10**9) for _ in range(3)] == [0, 0, 0]
    throttle = Throttle(1, clock)
    throttle.take(10**9)
    assert throttle.take(1) <= 60


def test_a_stop_ends_waits_in_the_loop_and_in_threads() -> None:
    asyncio.run(_stop_while_waiting())


async def _stop_while_waiting() -> None:
    stop = StopSignal()
    ended = threading.Event()

    def in_thread() -> None:
        with pytest.raises(GarbageCollectorStoppedError):
            stop.sleep_blocking(60)
        ended.set()

    threading.Thread(target=in_thread).start()
    waiting = asyncio.ensure_future(stop.sleep(60))
    await stop.sleep(0.01)
    begun = time.monotonic()
    stop.set()
    with pytest.raises(GarbageCollectorStoppedError):
        await waiting
    assert await asyncio.to_thread(ended.wait, 30)
    assert time.monotonic() - begun < 30
    with pytest.raises(GarbageCollectorStoppedError):
        stop.check()
    with pytest.raises(GarbageCollectorStoppedError):
        await stop.sleep(0)
