"""The blocking handle of a ledger being read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import TypeVar

import pyarrow as pa

from bk_spark.bookie.loop_thread import LoopThread
from bk_spark.bookie.reading.read_handle import ReadHandle
from bk_spark.bookie.same_docs import documented_as
from bk_spark.protocol.entries.entry_block import EntryBlock
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata

_T = TypeVar("_T")


class BlockingReader:
    """Reads entries of one ledger. Opening it did not fence the ledger.

    A closed ledger can be read up to ``metadata.last_entry_id``. A ledger that is being written can be read up to
    ``last_add_confirmed``. Closing an iterator (``contextlib.closing``) cancels its requests.

    Create it with ``open_ledger_for_reading`` of a connection, or ``open_for_reading`` of a client.
    """

    def __init__(self, thread: LoopThread, handle: ReadHandle) -> None:
        self._thread = thread
        self._handle = handle

    @property
    def ledger_id(self) -> int:
        """The ledger's id."""
        return self._handle.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this reader last read them."""
        return self._handle.metadata

    @property
    def last_add_confirmed(self) -> int:
        """The last add confirmed that this reader knows of. It never decreases. -1 if there is none."""
        return self._handle.last_add_confirmed

    @documented_as(ReadHandle.read_last_add_confirmed)
    def read_last_add_confirmed(self) -> int:
        return self._thread.run(self._handle.read_last_add_confirmed())

    @documented_as(ReadHandle.read)
    def read(self, first: int, last: int) -> list[bytes]:
        return self._thread.run(self._handle.read(first, last))

    @documented_as(ReadHandle.read_range)
    def read_range(self, first: int, last: int, *, max_bytes: int | None = None) -> pa.RecordBatch:
        return self._thread.run(self._handle.read_range(first, last, max_bytes=max_bytes))

    @documented_as(ReadHandle.read_blocks)
    def read_blocks(self, first: int, last: int, *, known_to_exist: bool = False) -> Generator[EntryBlock, None, None]:
        return iterate(self._thread, self._handle.read_blocks(first, last, known_to_exist=known_to_exist))

    @documented_as(ReadHandle.read_unconfirmed)
    def read_unconfirmed(self, first: int, last: int) -> Generator[EntryBlock, None, None]:
        return iterate(self._thread, self._handle.read_unconfirmed(first, last))

    @documented_as(ReadHandle.tail)
    def tail(self, from_entry: int, *, max_wait_ms: int | None = None) -> Generator[EntryBlock, None, None]:
        return iterate(self._thread, self._handle.tail(from_entry, max_wait_ms=max_wait_ms))


def iterate(thread: LoopThread, items: AsyncGenerator[_T, None]) -> Generator[_T, None, None]:
    """Run an asynchronous iterator on ``thread``. Closing the result closes the iterator."""
    try:
        while True:
            try:
                yield thread.run(items.__anext__())
            except StopAsyncIteration:
                return
    finally:
        thread.finish(items.aclose())
