"""The blocking handle of a ledger being read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import TypeVar

import pyarrow as pa

from bk_spark.bookie.loop_thread import LoopThread
from bk_spark.bookie.reading.read_handle import ReadHandle
from bk_spark.protocol.entries.entry_block import EntryBlock
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata

_T = TypeVar("_T")


class BlockingReader:
    """As :class:`bk_spark.bookie.reading.read_handle.ReadHandle`. Closing an iterator ends what it has under way."""

    def __init__(self, thread: LoopThread, handle: ReadHandle) -> None:
        self._thread = thread
        self._handle = handle

    @property
    def ledger_id(self) -> int:
        return self._handle.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._handle.metadata

    @property
    def last_add_confirmed(self) -> int:
        return self._handle.last_add_confirmed

    def read_last_add_confirmed(self) -> int:
        return self._thread.run(self._handle.read_last_add_confirmed())

    def read(self, first: int, last: int) -> list[bytes]:
        """Payloads of entries ``first`` to ``last`` (inclusive)."""
        return self._thread.run(self._handle.read(first, last))

    def read_range(self, first: int, last: int, *, max_bytes: int | None = None) -> pa.RecordBatch:
        """Entries ``first`` to ``last`` (inclusive) as one batch: ``entry_id`` int64, ``value`` binary."""
        return self._thread.run(self._handle.read_range(first, last, max_bytes=max_bytes))

    def read_blocks(self, first: int, last: int, *, known_to_exist: bool = False) -> Generator[EntryBlock, None, None]:
        """Entries ``first`` to ``last`` (inclusive) in order, in blocks."""
        return iterate(self._thread, self._handle.read_blocks(first, last, known_to_exist=known_to_exist))

    def read_unconfirmed(self, first: int, last: int) -> Generator[EntryBlock, None, None]:
        """Entries of which it is not known whether they are there."""
        return iterate(self._thread, self._handle.read_unconfirmed(first, last))

    def tail(self, from_entry: int, *, max_wait_ms: int | None = None) -> Generator[EntryBlock, None, None]:
        """Entries from ``from_entry`` on as they are confirmed."""
        return iterate(self._thread, self._handle.tail(from_entry, max_wait_ms=max_wait_ms))


def iterate(thread: LoopThread, items: AsyncGenerator[_T, None]) -> Generator[_T, None, None]:
    """``items``, made on ``thread``. Closing this closes them."""
    try:
        while True:
            try:
                yield thread.run(items.__anext__())
            except StopAsyncIteration:
                return
    finally:
        thread.finish(items.aclose())
