"""Reads a log on an event loop: the machines of :class:`bk_spark.log.reader.LogReader`, and their actions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import aclosing, suppress

from bk_spark.bookie.runners import HandOver, iterate_in_turn, run_in_turn
from bk_spark.log.aio.threads import in_thread
from bk_spark.log.core.readers.follow import Follow
from bk_spark.log.core.readers.read_range import ReadRange
from bk_spark.log.core.readers.reader_actions import (
    Arm,
    Armed,
    AskTailEnd,
    AwaitChange,
    Changed,
    CheckListed,
    Ended,
    FollowTail,
    LookAtTail,
    More,
    ReaderAction,
    ReaderEvent,
    ReadSealed,
    ReadTail,
    TakeList,
    TimeIsUp,
)
from bk_spark.log.formats.segment import Segment
from bk_spark.log.io.blocking import BlockingLog
from bk_spark.log.io.znode_watch import ZnodeWatch
from bk_spark.log.reader import (
    BlockFound,
    ListPerformer,
    LogBlock,
    SegmentSeries,
    block_found,
    block_of_tail,
    part_of_tail,
)
from bk_spark.protocol.machine import StepMachine


async def read(log: BlockingLog, start: int, end: int) -> AsyncGenerator[LogBlock, None]:
    """See :meth:`bk_spark.log.reader.LogReader.read`."""
    machine = ReadRange(log.name, start, end)
    performer = Performer(log)
    await run_in_turn(StepMachine(machine.plan_steps()), performer.perform_event)
    async with aclosing(performer.blocks(machine.read_steps())) as blocks:
        async for block in blocks:
            yield block


async def follow(log: BlockingLog, start: int, max_wait_ms: int | None) -> AsyncGenerator[LogBlock, None]:
    """See :meth:`bk_spark.log.reader.LogReader.follow`."""
    async with aclosing(Performer(log).blocks(Follow(log.name, start, max_wait_ms).steps())) as blocks:
        async for block in blocks:
            yield block


class _LoopEvent:
    """An event of one event loop, which any thread may set."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.event = asyncio.Event()

    def set(self) -> None:
        with suppress(RuntimeError):  # the loop has ended: nobody waits
            self._loop.call_soon_threadsafe(self.event.set)


class Performer:
    """Performs the actions of machines that read entries, as that of the blocking reader does."""

    def __init__(self, log: BlockingLog) -> None:
        self._ledgers = log.ledgers
        self._changed = _LoopEvent()
        self._watch = ZnodeWatch(log.zk, log.paths.head, self._changed)
        self._list = ListPerformer(log, log.ledgers.reader)
        self._blocks: AsyncGenerator[LogBlock, None] | None = None

    async def blocks(self, steps: Generator[ReaderAction, ReaderEvent, None]) -> AsyncGenerator[LogBlock, None]:
        """Run a machine and yield the blocks that it reads. Raises the machine's error."""
        try:
            async with aclosing(iterate_in_turn(StepMachine(steps), self._perform)) as blocks:
                async for block in blocks:
                    yield block
        finally:
            await self._end()

    async def perform_event(self, action: ReaderAction) -> ReaderEvent:
        """Perform an action that gives no block. Raises the action's error."""
        found = await self._perform(action)
        assert not isinstance(found, HandOver), action
        return found

    async def _perform(self, action: ReaderAction) -> ReaderEvent | BlockFound:
        match action:
            case Arm():
                self._changed.event.clear()
                await in_thread(self._watch.arm)
                return Armed(_now_ms())
            case TakeList() | CheckListed() | LookAtTail() | AskTailEnd():
                return await in_thread(self._list.perform, action)
            case ReadSealed(start, end):
                return await self._begin(self._sealed(self._list.parts(start, end)))
            case ReadTail(tail, start, end):
                return await self._begin(self._series([part_of_tail(tail, start, end)]))
            case FollowTail():
                return await self._begin(self._follow_tail(action))
            case More():
                return await self._next()
            case AwaitChange(until_ms):
                return await self._await_change(until_ms)

    async def _sealed(self, pages: Iterator[list[Segment]]) -> AsyncGenerator[LogBlock, None]:
        while (parts := await in_thread(next, pages, None)) is not None:
            async with aclosing(self._series(parts)) as blocks:
                async for block in blocks:
                    yield block

    async def _series(self, parts: list[Segment]) -> AsyncGenerator[LogBlock, None]:
        series = SegmentSeries(parts)
        async with aclosing(self._ledgers.read_series_for(series.ranges)) as lists:
            async for payloads in lists:
                for block in series.blocks(payloads):
                    yield block

    async def _follow_tail(self, action: FollowTail) -> AsyncGenerator[LogBlock, None]:
        tail = action.tail
        left_ms = None if action.until_ms is None else int(max(0.0, action.until_ms - _now_ms()))
        followed = self._ledgers.tail_for(tail.ledger_id, action.first_entry, max_wait_ms=left_ms)
        async with aclosing(followed) as blocks:
            async for block in blocks:
                yield block_of_tail(tail, block)

    async def _await_change(self, until_ms: float | None) -> ReaderEvent:
        if self._changed.event.is_set():
            # With no time left, Python 3.11's wait_for does not even look.
            return Changed()
        left_s = None if until_ms is None else max(0.0, until_ms - _now_ms()) / 1000
        try:
            await asyncio.wait_for(self._changed.event.wait(), left_s)
        except TimeoutError:
            return TimeIsUp()
        return Changed()

    async def _begin(self, blocks: AsyncGenerator[LogBlock, None]) -> ReaderEvent | BlockFound:
        await self._end()
        self._blocks = blocks
        return await self._next()

    async def _next(self) -> ReaderEvent | BlockFound:
        assert self._blocks is not None
        block = await anext(self._blocks, None)
        return Ended() if block is None else block_found(block, _now_ms)

    async def _end(self) -> None:
        if self._blocks is not None:
            await self._blocks.aclose()


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
