"""The blocking handle of a ledger being read."""

from __future__ import annotations

from collections.abc import Iterator

from bk_spark.bookie.loop_thread import LoopThread
from bk_spark.bookie.read_handle import ReadHandle
from bk_spark.protocol.entry_block import EntryBlock
from bk_spark.protocol.ledger_metadata import LedgerMetadata


class BlockingReader:
    """As :class:`bk_spark.bookie.read_handle.ReadHandle`."""

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

    def read_blocks(self, first: int, last: int, *, known_to_exist: bool = False) -> Iterator[EntryBlock]:
        """Entries ``first`` to ``last`` (inclusive) in order, in blocks; closing the iterator ends it."""
        blocks = self._handle.read_blocks(first, last, known_to_exist=known_to_exist)
        try:
            while True:
                try:
                    yield self._thread.run(blocks.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            self._thread.finish(blocks.aclose())
