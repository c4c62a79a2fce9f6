"""Reading ranges of many ledgers one after another: the next ones are opened, and small ones read, ahead."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from bk_spark.bookie.read_handle import ReadHandle
from bk_spark.protocol.entry_block import EntryBlock
from bk_spark.protocol.errors import BookKeeperError, NoSuchEntryError

#: Ranges begun ahead of the one that is read, and bytes of those that are read ahead.
_AHEAD: Final = 16
_AHEAD_BYTES: Final = 4 * 1024 * 1024
#: A range of more bytes is only opened ahead: it reads ahead by itself.
_SMALL_BYTES: Final = 256 * 1024
#: Some kilobytes each: metadata, no connection.
_MAX_HANDLES: Final = 1024


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Entries ``first`` to ``last`` (inclusive) of a ledger, which are known to exist; of about ``size_bytes``."""

    ledger_id: int
    first: int
    last: int
    size_bytes: int


class ReadHandles:
    """The handles used last, so that a ledger that is read again is not opened again. One event loop.

    A handle may have been opened long ago: who finds an entry missing opens the ledger anew before he believes it.
    """

    def __init__(self, open_ledger: Callable[[int, bytes], Awaitable[ReadHandle]]) -> None:
        self._open = open_ledger
        self._handles: OrderedDict[tuple[int, bytes], ReadHandle] = OrderedDict()

    async def get(self, ledger_id: int, password: bytes) -> ReadHandle:
        """Raises NoSuchLedgerError, UnauthorizedError."""
        key = (ledger_id, password)
        handle = self._handles.get(key)
        if handle is None:
            return await self.open(ledger_id, password)
        self._handles.move_to_end(key)
        return handle

    async def open(self, ledger_id: int, password: bytes) -> ReadHandle:
        """The same with metadata as they are now."""
        key = (ledger_id, password)
        self._handles.pop(key, None)
        handle = self._handles[key] = await self._open(ledger_id, password)
        while len(self._handles) > _MAX_HANDLES:
            self._handles.popitem(last=False)
        return handle


class RangeSeries:
    """Reads ``ranges`` in order; one reader."""

    def __init__(self, handles: ReadHandles, ranges: Iterable[EntryRange], password: bytes) -> None:
        self._handles = handles
        self._password = password
        self._todo: Iterator[EntryRange] = iter(ranges)
        self._begun: deque[_Begun] = deque()
        self._begun_bytes = 0

    async def blocks(self) -> AsyncGenerator[list[EntryBlock], None]:
        """The entries in order, in lists of blocks: what is there at once comes together. A block is of one range.

        Raises, after all that lies before: NoSuchLedgerError, NoSuchEntryError (the ledger is there, the entry is
        not), UnauthorizedError, EntryUnknownError.
        """
        ready: list[EntryBlock] = []
        try:
            self._begin()
            while self._begun:
                begun = self._begun[0]
                if ready and not begun.task.done():
                    yield ready
                    ready = []
                try:
                    prepared = await begun.task
                    ready += prepared.blocks
                    async with aclosing(prepared.rest) as rest:
                        async for block in rest:
                            yield [*ready, block]
                            ready = []
                except BookKeeperError:
                    if ready:
                        yield ready
                    raise
                self._begun.popleft()
                self._begun_bytes -= _bytes_ahead(begun.entries)
                self._begin()
            if ready:
                yield ready
        finally:
            for begun in self._begun:
                begun.task.cancel()
            for outcome in await asyncio.gather(*(begun.task for begun in self._begun), return_exceptions=True):
                if isinstance(outcome, _Prepared):
                    await outcome.rest.aclose()

    def _begin(self) -> None:
        while len(self._begun) < _AHEAD and self._begun_bytes < _AHEAD_BYTES:
            entries = next(self._todo, None)
            if entries is None:
                return
            self._begun.append(_Begun(entries, asyncio.get_running_loop().create_task(self._prepare(entries))))
            self._begun_bytes += _bytes_ahead(entries)

    async def _prepare(self, entries: EntryRange) -> _Prepared:
        """Opens the ledger; of a small range also the blocks."""
        await self._handles.get(entries.ledger_id, self._password)
        blocks, found, size_bytes = self._read(entries), list[EntryBlock](), 0
        if _bytes_ahead(entries):
            async for block in blocks:
                found.append(block)
                size_bytes += block.payloads.size_bytes
                # It was only about that small.
                if size_bytes > _SMALL_BYTES:
                    break
        return _Prepared(found, blocks)

    async def _read(self, entries: EntryRange) -> AsyncGenerator[EntryBlock, None]:
        first, missing = entries.first, -1
        handle = await self._handles.get(entries.ledger_id, self._password)
        while first <= entries.last:
            try:
                async with aclosing(handle.read_blocks(first, entries.last, known_to_exist=True)) as blocks:
                    async for block in blocks:
                        first += len(block)
                        yield block
            except NoSuchEntryError:
                if first == missing:
                    raise
                missing = first
                # With metadata of long ago bookies are asked that were replaced since; or the ledger was deleted.
                handle = await self._handles.open(entries.ledger_id, self._password)


def _bytes_ahead(entries: EntryRange) -> int:
    """Bytes of a range that are read ahead; 0 where its ledger is only opened."""
    return max(1, entries.size_bytes) if entries.size_bytes <= _SMALL_BYTES else 0


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The first blocks of a range, and the others."""

    blocks: list[EntryBlock]
    rest: AsyncGenerator[EntryBlock, None]


@dataclass(frozen=True, slots=True)
class _Begun:
    entries: EntryRange
    task: asyncio.Task[_Prepared]
