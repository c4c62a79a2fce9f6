"""Reads ranges of many ledgers in order. The next ledgers are opened ahead, and small ranges are read ahead.

:mod:`bk_spark.bookie.reading.range_windows` decides which ranges are read together, and restores their order.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from bk_spark.bookie.reading.arrow import taken
from bk_spark.bookie.reading.range_windows import WINDOW_BYTES, EntryRanges, Span, Window, Windows
from bk_spark.bookie.reading.read_handle import ReadHandle
from bk_spark.protocol.entries.entry_block import EntryBlock
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import BookKeeperError, NoSuchEntryError
from bk_spark.protocol.metadata.ledger_metadata import LedgerState

#: Spans read at the same time.
_AT_ONCE: Final = 16
#: The number of windows begun ahead, and the bytes of those that are read ahead.
_AHEAD: Final = 16
_AHEAD_BYTES: Final = 4 * 1024 * 1024
#: A window with more bytes than this shows that the known sizes are wrong. It is then cut into smaller ones.
_MOST_WINDOW_BYTES: Final = 2 * WINDOW_BYTES
#: A handle takes some kilobytes: it holds metadata and no connection.
_MAX_HANDLES: Final = 1024


class ReadHandles:
    """Caches the handles used last, so that a ledger read again is not opened again. One event loop.

    A handle may be outdated. If an entry seems missing, the ledger is opened again.
    """

    def __init__(self, open_ledger: Callable[[int, bytes], Awaitable[ReadHandle]]) -> None:
        self._open = open_ledger
        self._handles: OrderedDict[tuple[int, bytes], ReadHandle] = OrderedDict()

    async def get(self, ledger_id: int, password: bytes) -> ReadHandle:
        """Return a handle. Raises NoSuchLedgerError, UnauthorizedError."""
        key = (ledger_id, password)
        handle = self._handles.get(key)
        if handle is None:
            return await self.open(ledger_id, password)
        self._handles.move_to_end(key)
        return handle

    async def open(self, ledger_id: int, password: bytes) -> ReadHandle:
        """Do the same as :meth:`get`, with fresh metadata."""
        key = (ledger_id, password)
        self._handles.pop(key, None)
        handle = self._handles[key] = await self._open(ledger_id, password)
        while len(self._handles) > _MAX_HANDLES:
            self._handles.popitem(last=False)
        return handle


class RangeSeries:
    """Reads ``ranges`` in order, for one reader."""

    def __init__(self, handles: ReadHandles, ranges: EntryRanges, password: bytes) -> None:
        self._handles = handles
        self._password = password
        self._ranges = ranges
        self._windows = Windows(ranges)
        #: The number of entries of ``_ranges`` returned so far.
        self._given_entries = 0
        self._begun: deque[_WindowRead] = deque()
        self._begun_bytes = 0
        self._slots = asyncio.Semaphore(_AT_ONCE)

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
                self._given_entries += given_entries
                if given_entries < read.window.entries:
                    await self._plan_anew(read)
                else:
                    self._begun.popleft()
                    self._begun_bytes -= read.window.size_bytes
                self._begin()
        finally:
            await self._close()

    def _begin(self) -> None:
        while len(self._begun) < _AHEAD and self._begun_bytes < _AHEAD_BYTES:
            window = self._windows.next()
            if window is None:
                return
            self._begun.append(_WindowRead(window, self._handles, self._password, self._slots))
            self._begun_bytes += window.size_bytes

    async def _plan_anew(self, read: _WindowRead) -> None:
        """Cut the rest into smaller windows, because entries are larger than expected."""
        factor = read.times_larger
        await self._close()
        self._ranges = self._ranges.after(self._given_entries).scaled(factor)
        self._windows = Windows(self._ranges)
        self._given_entries = 0

    async def _close(self) -> None:
        """Cancel all reads under way."""
        begun, self._begun, self._begun_bytes = self._begun, deque(), 0
        await asyncio.gather(*(read.close() for read in begun))


class _WindowRead:
    """Reads one window. All its spans begin at once. Of a large window only the ledger is opened ahead."""

    def __init__(self, window: Window, handles: ReadHandles, password: bytes, slots: asyncio.Semaphore) -> None:
        self.window = window
        self._handles = handles
        self._password = password
        self._found: list[list[EntryBlock]] = [[] for _ in window.spans]
        self._found_bytes = 0
        self._errors: dict[int, BookKeeperError] = {}
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._prepare(number, slots)) for number in range(len(window.spans))]

    async def payloads(self) -> AsyncGenerator[Payloads, None]:
        """Yield payloads in order. Stops before the window's end if it has far more bytes than expected."""
        if self.window.is_large:
            await self._tasks[0]
            if self._errors:
                raise self._errors[0]
            async with aclosing(self._read(self.window.spans[0])) as blocks:
                async for block in blocks:
                    yield block.payloads
            return
        await asyncio.gather(*self._tasks)
        counts = [sum(map(len, blocks)) for blocks in self._found]
        gathered = self.window.gathered(counts)
        if len(gathered.positions):
            found = Payloads.joined([block.payloads for blocks in self._found for block in blocks])
            self._found = []
            yield found if len(self.window.spans) == 1 else taken(found, gathered.positions)
        if gathered.missing_span in self._errors:
            raise self._errors[gathered.missing_span]

    @property
    def times_larger(self) -> int:
        """The approximate factor by which entries are larger than expected, at least 2."""
        return max(2, -(-self._found_bytes // max(1, self.window.size_bytes)))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _prepare(self, number: int, slots: asyncio.Semaphore) -> None:
        async with slots:
            span = self.window.spans[number]
            try:
                if self.window.is_large:
                    await self._handles.get(span.ledger_id, self._password)
                elif number == 0 or self._found_bytes <= _MOST_WINDOW_BYTES:
                    await self._read_ahead(number, span)
            except BookKeeperError as error:
                # Raised when the reader gets to the entry that could not be read.
                self._errors[number] = error

    async def _read_ahead(self, number: int, span: Span) -> None:
        async with aclosing(self._read(span)) as blocks:
            async for block in blocks:
                self._found[number].append(block)
                self._found_bytes += block.payloads.size_bytes
                if self._found_bytes > _MOST_WINDOW_BYTES:
                    return

    async def _read(self, span: Span) -> AsyncGenerator[EntryBlock, None]:
        first, missing = span.first, -1
        handle = await self._handles.get(span.ledger_id, self._password)
        while first <= span.last:
            try:
                async with aclosing(handle.read_blocks(first, span.last, known_to_exist=True)) as blocks:
                    async for block in blocks:
                        first += len(block)
                        yield block
            except NoSuchEntryError:
                if first == missing:
                    async with aclosing(_as_far_as_it_goes(handle, first)) as blocks:
                        async for block in blocks:
                            yield block
                    raise
                missing = first
                # Old metadata may name bookies that were replaced since. Or the ledger was deleted.
                handle = await self._handles.open(span.ledger_id, self._password)


async def _as_far_as_it_goes(handle: ReadHandle, first: int) -> AsyncGenerator[EntryBlock, None]:
    """Yield the entries of a closed ledger from ``first`` on."""
    if handle.metadata.state is LedgerState.CLOSED and first <= handle.last_add_confirmed:
        async with aclosing(handle.read_blocks(first, handle.last_add_confirmed)) as blocks:
            async for block in blocks:
                yield block
