"""The loop of tests with short limits: a machine that stalls does not make a peer silent, and a pause stays a pause."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine

import pytest

from tests.support import patient_loop

LIMIT_S = 0.3
Run = Callable[[Coroutine[None, None, list[bytes]]], list[bytes]]


async def _asked(limit_s: float) -> list[bytes]:
    """Ask an echo in the same loop three times, while the process stalls for longer than the limit of each answer."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while question := await reader.read(100):
            time.sleep(2 * limit_s)  # the machine runs others, as seen from here
            writer.write(question)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    answers = []
    try:
        for number in range(3):
            time.sleep(2 * limit_s)  # as above
            writer.write(b"%d" % number)
            async with asyncio.timeout(limit_s):
                answers.append(await reader.read(100))
    finally:
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
    return answers


@pytest.mark.parametrize("limit_s", [0.05, 0.1])
def test_a_stall_of_the_machine_is_not_the_silence_of_a_peer(limit_s: float) -> None:
    assert patient_loop.run(_asked(limit_s)) == [b"0", b"1", b"2"]
    with pytest.raises(TimeoutError):  # that is what it is for
        asyncio.run(_asked(limit_s))


def test_a_timer_that_is_due_after_a_stall_waits_until_its_peers_have_had_their_turns() -> None:
    happened: list[str] = []

    async def peers(turns: int) -> None:
        for turn in range(turns):
            await asyncio.sleep(0)
            happened.append(f"turn {turn}")

    async def play() -> None:
        timer = asyncio.get_running_loop().call_later(LIMIT_S, happened.append, "timer")
        time.sleep(1)  # the machine runs others
        await peers(10)
        while happened[-1] != "timer":
            await asyncio.sleep(LIMIT_S / 10)
        timer.cancel()

    patient_loop.run(play())
    assert happened == [*(f"turn {turn}" for turn in range(10)), "timer"]


def test_pauses_are_as_long_as_they_should_be() -> None:
    async def play() -> tuple[float, float]:
        begun_s, loop_begun_s = time.monotonic(), asyncio.get_running_loop().time()
        await asyncio.sleep(LIMIT_S)  # this is what is measured
        return time.monotonic() - begun_s, asyncio.get_running_loop().time() - loop_begun_s

    least_s = float("inf")
    for _ in range(20):  # a busy machine makes pauses longer, never shorter
        took_s, loop_took_s = patient_loop.run(play())
        assert took_s >= LIMIT_S * 0.99
        assert LIMIT_S * 0.99 <= loop_took_s <= took_s + 0.001
        least_s = min(least_s, took_s)
        if least_s < LIMIT_S * 1.2:
            break
    assert least_s < LIMIT_S * 1.2


def test_results_and_errors_come_out() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        patient_loop.run(fail())
