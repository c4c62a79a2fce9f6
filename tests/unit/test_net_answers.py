"""Answers of one connection on their way out."""

from __future__ import annotations

import asyncio
from typing import cast

from bk_spark.protocol.entries.digest import Buffer
from bookie_server.net.common.fair_slots import FairSlots
from bookie_server.net.common.limits import NetConfig
from bookie_server.net.common.load import Load
from bookie_server.net.native.answers import Answers
from tests.support.front import MIB, run


class Transport:
    """Takes everything, and notes the writes."""

    def __init__(self) -> None:
        self.writes: list[Buffer] = []

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def write(self, data: Buffer) -> None:
        self.writes.append(data)


def test_small_answers_are_one_write_and_large_ones_are_not_copied() -> None:
    async def test() -> None:
        load = Load(NetConfig(), lambda: None, lambda: None, lambda: 0)
        answers, transport = Answers(load, FairSlots(8), 64 * 1024), Transport()
        answers.begin(cast(asyncio.Transport, transport))
        answers.send(b"a", b"b")
        answers.send(b"c")
        await asyncio.sleep(0)
        assert transport.writes == [b"abc"]
        transport.writes.clear()
        large = memoryview(bytes(MIB))
        answers.send(b"a", b"b", large, b"c" * 100_000, b"d" * 100_000, b"e")
        await asyncio.sleep(0)
        assert transport.writes == [b"ab", large, b"c" * 100_000, b"d" * 100_000 + b"e"]
        assert transport.writes[1] is large

    run(test)
