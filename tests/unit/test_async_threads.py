"""Blocking calls from an event loop, and their cancellation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator

import pytest

from bk_spark.log.aio.threads import in_thread, iterated

pytestmark = pytest.mark.unit


def test_a_generator_that_is_given_up_while_it_runs_is_closed_when_it_has_given_its_item() -> None:
    entered, release, closed = threading.Event(), threading.Event(), []

    def items() -> Generator[int, None, None]:
        try:
            entered.set()
            assert release.wait(60)
            yield 1
        finally:
            closed.append(True)

    async def test() -> None:
        numbers = iterated(items())
        taking = asyncio.create_task(anext(numbers))  # type: ignore[arg-type]
        await in_thread(entered.wait, 60)
        taking.cancel()
        done, _ = await asyncio.wait([taking], timeout=0.05)
        assert not done, "the thread still runs"
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert closed == [True]

    asyncio.run(test())


def test_items_and_errors_are_handed_over() -> None:
    def items() -> Generator[int, None, None]:
        yield 1
        yield 2
        raise OSError("broken")

    async def test() -> None:
        numbers = iterated(items())
        assert [await anext(numbers), await anext(numbers)] == [1, 2]
        with pytest.raises(OSError, match="broken"):
            await anext(numbers)

    asyncio.run(test())
