"""Reads ranges of many ledgers in order. The next ledgers are opened ahead, and small ranges are read ahead.

:mod:`bk_spark.protocol.ledger.reading.range_windows` decides which ranges are read together, how far ahead, and when an
error counts, and restores the order. Reads of spans are plain tasks here, not actions of a machine: each is run by a
runner of its own, and the blocks of a large range go to the caller as fast as it takes them, without events in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from bk_spark.bookie.reading.arrow import taken
from bk_spark.bookie.reading.read_handle import ReadHandle
from bk_spark.protocol.entries.entry import EntryBlock
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.ledger.reading.range_windows import SPANS_AT_ONCE, EntryRanges, ReadAhead, Span, Window, Windows

#: The first of joined parts has this fraction of the bytes of later ones.
_FIRST_PART: Final = 8

OpenLedger = Callable[[int], Awaitable[ReadHandle]]


async def together(parts: AsyncGenerator[Payloads, None], part_bytes: int) -> AsyncGenerator[Payloads, None]:
    """Join neighbouring ``parts`` until they have ``part_bytes``; the first ones are smaller. An error comes after all
    entries before it."""
    held: list[Payloads] = []
    size_bytes, failure = 0, None
    enough_bytes = part_bytes // _FIRST_PART
    async with aclosing(parts):
        try:
            async for part in parts:
                held.append(part)
                size_bytes += part.size_bytes
                if size_bytes >= enough_bytes:
                    yield Payloads.joined(held)
                    held, size_bytes = [], 0
                    enough_bytes = min(2 * enough_bytes, part_bytes)
        except BookKeeperError as error:
            failure = error
    if held:
        yield Payloads.joined(held)
    if failure is not None:
        raise failure


class RangeSeries:
    """Reads ``ranges`` in order, for one reader. ``open_ledger`` returns a handle, which may be an old one."""

    def __init__(self, open_ledger: OpenLedger, ranges: EntryRanges) -> None:
        self._open = open_ledger
        self._windows = Windows(ranges)
        self._begun: deque[_WindowRead] = deque()
        self._slots = asyncio.Semaphore(SPANS_AT_ONCE)

    async def payloads(self) -> AsyncGenerator[Payloads, None]:
        """Yield the payloads in order, any number of entries at a time.

        Errors come after all entries before them: NoSuchLedgerError, NoSuchEntryError (the ledger exists, but not the
        entry), UnauthorizedError, EntryUnknownError.
        """
        try:
            self._begin()
            while self._begun:
                read = self._begun[0]
                given_entries = 0
                async with aclosing(read.payloads()) as parts:
                    async for part in parts:
                        given_entries += len(part)
                        yield part
                if self._windows.end(given_entries, read.ahead.found_bytes):
                    await self._close()
                else:
                    self._begun.popleft()
                self._begin()
        finally:
            await self._close()

    def _begin(self) -> None:
        self._begun.extend(_WindowRead(window, self._open, self._slots) for window in self._windows.begin())

    async def _close(self) -> None:
        """Cancel all reads under way."""
        begun, self._begun = self._begun, deque()
        await asyncio.gather(*(read.close() for read in begun))


class _WindowRead:
    """Reads one window. All its spans begin at once."""

    def __init__(self, window: Window, open_ledger: OpenLedger, slots: asyncio.Semaphore) -> None:
        self.ahead = ReadAhead(window)
        self._window = window
        self._open = open_ledger
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._prepare(number, slots)) for number in range(len(window.spans))]

    async def payloads(self) -> AsyncGenerator[Payloads, None]:
        """Yield payloads in order. Stops before the window's end if it has far more bytes than expected."""
        if self._window.is_large:
            await self._tasks[0]
            self.ahead.check(0)
            async with aclosing(await self._blocks(self._window.spans[0])) as blocks:
                async for block in blocks:
                    yield block.payloads
            return
        await asyncio.gather(*self._tasks)
        parts, gathered = self.ahead.take()
        if len(gathered.positions):
            found = Payloads.joined(parts)
            del parts  # joining has copied them
            yield found if len(self._window.spans) == 1 else taken(found, gathered.positions)
        self.ahead.check(gathered.missing_span)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _prepare(self, number: int, slots: asyncio.Semaphore) -> None:
        async with slots:
            span = self._window.spans[number]
            try:
                if self._window.is_large:
                    await self._open(span.ledger_id)
                elif self.ahead.wants(number):
                    await self._read_ahead(number, span)
            except BookKeeperError as error:
                self.ahead.fail(number, error)

    async def _read_ahead(self, number: int, span: Span) -> None:
        async with aclosing(await self._blocks(span)) as blocks:
            async for block in blocks:
                if not self.ahead.add(number, block.payloads):
                    return

    async def _blocks(self, span: Span) -> AsyncGenerator[EntryBlock, None]:
        handle = await self._open(span.ledger_id)
        return handle.known_blocks(span.first, span.last)
