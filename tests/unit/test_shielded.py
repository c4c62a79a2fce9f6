"""Work goes on if its waiter is cancelled, and what it raises then is nobody's error."""

from __future__ import annotations

import asyncio
import logging

import pytest

from bk_spark.bookie.shielded import shielded


def test_what_work_raises_after_its_waiter_was_cancelled_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        work: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        given_up, patient = (asyncio.ensure_future(shielded(work)) for _ in range(2))
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert not work.done()
        work.set_exception(ValueError("wrong"))
        with pytest.raises(ValueError, match="wrong"):
            await patient

    with caplog.at_level(logging.DEBUG, "asyncio"):
        asyncio.run(test())
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_result_and_the_end_of_cancelled_work_come_to_the_waiter() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        work: asyncio.Future[int] = loop.create_future()
        loop.call_soon(work.set_result, 7)
        assert await shielded(work) == 7
        work.cancel()  # it is done
        assert await shielded(work) == 7
        cancelled: asyncio.Future[int] = loop.create_future()
        loop.call_soon(cancelled.cancel)
        with pytest.raises(asyncio.CancelledError):
            await shielded(cancelled)

    asyncio.run(test())
