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
    """Reads entries of one ledger. Opening it did not fence the ledger.

    A closed ledger can be read up to ``metadata.last_entry_id``. A ledger that is being written can be read up to
    ``last_add_confirmed``. The iterators stop what they have under way when they are closed (``contextlib.closing``).

    Made by ``open_ledger_for_reading`` of a connection, or ``open_for_reading`` of a client.
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

    def read_last_add_confirmed(self) -> int:
        """Ask the bookies for the last add confirmed.

        Returns
        -------
        int
            The id of the last confirmed entry, -1 if there is none. It never decreases.

        Raises
        ------
        EntryUnknownError
            If too few bookies answer.
        """
        return self._thread.run(self._handle.read_last_add_confirmed())

    def read(self, first: int, last: int) -> list[bytes]:
        """Read a few entries.

        Parameters
        ----------
        first, last
            The ids of the first and of the last entry.

        Returns
        -------
        list of bytes
            The payloads.

        Raises
        ------
        NoSuchEntryError
            If ``last`` is beyond the last add confirmed.
        EntryUnknownError
            If no replica could give an entry.
        """
        return self._thread.run(self._handle.read(first, last))

    def read_range(self, first: int, last: int, *, max_bytes: int | None = None) -> pa.RecordBatch:
        """Read entries as one Arrow batch.

        Parameters
        ----------
        first, last
            The ids of the first and of the last entry.
        max_bytes
            The most bytes of payload to return. Default: ``max_read_range_bytes`` of the configuration. Never more than
            2 GiB.

        Returns
        -------
        pyarrow.RecordBatch
            A row for each entry, with the columns ``entry_id`` (int64) and ``value`` (binary).

        Raises
        ------
        InvalidArgumentError
            If the payloads have more bytes.
        NoSuchEntryError
            If ``last`` is beyond the last add confirmed.
        EntryUnknownError
            If no replica could give an entry.
        """
        return self._thread.run(self._handle.read_range(first, last, max_bytes=max_bytes))

    def read_blocks(self, first: int, last: int, *, known_to_exist: bool = False) -> Generator[EntryBlock, None, None]:
        """Read entries in order, in blocks. The next blocks are read ahead, within ``read_ahead_bytes``.

        Parameters
        ----------
        first, last
            The ids of the first and of the last entry.
        known_to_exist
            The caller knows that the entries were acknowledged, for example from a log's list. They are then read even
            beyond the last add confirmed.

        Returns
        -------
        iterator of EntryBlock
            The entries, each once.

        Raises
        ------
        NoSuchEntryError
            If ``last`` is beyond the last add confirmed.
        EntryUnknownError
            If no replica could give an entry.
        """
        return iterate(self._thread, self._handle.read_blocks(first, last, known_to_exist=known_to_exist))

    def read_unconfirmed(self, first: int, last: int) -> Generator[EntryBlock, None, None]:
        """Read entries that may not exist. Recovery may still remove what this returns of an open ledger.

        Parameters
        ----------
        first, last
            The ids of the first and of the last entry.

        Returns
        -------
        iterator of EntryBlock
            The entries, each once.

        Raises
        ------
        NoSuchEntryError
            After all entries before it: if every replica says that it lacks an entry, or the closed ledger ends before
            it. In an open ledger the entry may still come.
        EntryUnknownError
            After all entries before it: if a replica that may have an entry could not tell.
        """
        return iterate(self._thread, self._handle.read_unconfirmed(first, last))

    def tail(self, from_entry: int, *, max_wait_ms: int | None = None) -> Generator[EntryBlock, None, None]:
        """Read entries as they are confirmed. Ends when the ledger is closed and read to its end.

        Parameters
        ----------
        from_entry
            The id of the first entry.
        max_wait_ms
            End also when nothing new was confirmed for so long, in milliseconds. By default wait without limit. Entries
            that were confirmed before the call are returned in any case. To go on, call again with the id after the
            last entry.

        Returns
        -------
        iterator of EntryBlock
            The entries, each once.

        Raises
        ------
        NoSuchLedgerError
            If the ledger is deleted.
        NoSuchEntryError
            If the ledger was closed before ``from_entry - 1``.
        BookKeeperError
            After ``tailAttempts`` failures in a row. It is retriable: call again with the id after the last entry.
        """
        return iterate(self._thread, self._handle.tail(from_entry, max_wait_ms=max_wait_ms))


def iterate(thread: LoopThread, items: AsyncGenerator[_T, None]) -> Generator[_T, None, None]:
    """Run an asynchronous iterator on ``thread``. Closing the result closes it."""
    try:
        while True:
            try:
                yield thread.run(items.__anext__())
            except StopAsyncIteration:
                return
    finally:
        thread.finish(items.aclose())
