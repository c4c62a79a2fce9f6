"""The handle of a ledger being read."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import pyarrow as pa

from bk_spark.bookie.reading.arrow import MAX_COLUMN_BYTES, entries_batch
from bk_spark.bookie.reading.performer import Performer, blocks_of, read_lac, try_one_replica
from bk_spark.bookie.reading.read_access import ReadAccess
from bk_spark.bookie.reading.tail import Tail
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.entries.entry import EntryBlock
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.ledger.reading.ledger_view import LedgerKey, LedgerView
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState


class ReadHandle:
    """Reads entries of one ledger, for any number of tasks of one event loop. Opening it did not fence the ledger.

    A closed ledger can be read up to ``metadata.last_entry_id``. A ledger that is being written can be read up to
    ``last_add_confirmed``. Closing an iterator (``contextlib.aclosing``) cancels its requests.

    Create it with :meth:`Client.open_for_reading`.
    """

    def __init__(
        self, ledger_id: int, metadata: LedgerMetadata, digest_type: DigestType, password: bytes, access: ReadAccess
    ) -> None:
        self.ledger_id = ledger_id
        self._view = LedgerView(ledger_id, metadata)
        self._ledger = LedgerKey(ledger_id, digest_type, digest_function(digest_type, password))
        self._access = access

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this reader last read them."""
        return self._view.metadata

    @property
    def last_add_confirmed(self) -> int:
        """The last add confirmed that this reader knows of. It never decreases. -1 if there is none."""
        return self._view.last_add_confirmed

    async def read_length(self) -> int | None:
        """Ask how many bytes the entries up to the last add confirmed have together.

        If the ledger is open, that entry says so: one replica is asked for it.

        Returns
        -------
        int or None
            Bytes of payload. None if the replica does not answer soon.
        """
        if self.metadata.state is LedgerState.CLOSED:
            return self.metadata.length
        last = self.last_add_confirmed
        if last < 0:
            return 0
        entry = await try_one_replica(self._ledger, self.metadata, last, self._access)
        return None if entry is None else entry.length

    async def read_blocks(
        self, first: int, last: int, *, known_to_exist: bool = False
    ) -> AsyncGenerator[EntryBlock, None]:
        """Read entries in order, in blocks. The next blocks are read ahead, within ``read_ahead_bytes``.

        Parameters
        ----------
        first, last
            The ids of the first and of the last entry.
        known_to_exist
            The caller knows that the entries were acknowledged, for example from a log's list. They are read even
            beyond the last add confirmed that this reader knows of.

        Returns
        -------
        iterator of EntryBlock
            The entries, each once.

        Raises
        ------
        NoSuchEntryError
            If ``last`` is beyond the last add confirmed. With ``known_to_exist``: if the ledger was closed before
            ``last``, after all its entries.
        NoSuchLedgerError
            If the ledger was deleted.
        EntryUnknownError
            If no replica could give an entry.
        """
        if not known_to_exist:
            self._view.check_range(first, last)
        async with aclosing(self._blocks(first, last)) as blocks:
            async for block in blocks:
                yield block

    def known_blocks(self, first: int, last: int) -> AsyncGenerator[EntryBlock, None]:
        """Read entries that are known to exist, as :meth:`read_blocks` does. Call it on the event loop.

        Parameters
        ----------
        first, last
            The ids of the first and of the last entry.

        Returns
        -------
        iterator of EntryBlock
            The entries, each once. Raises what :meth:`read_blocks` raises.
        """
        return self._blocks(first, last)

    async def read_unconfirmed(self, first: int, last: int) -> AsyncGenerator[EntryBlock, None]:
        """Read entries that may not exist. Recovery may still remove the returned entries of an open ledger.

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
            After all entries before it: if every replica lacks an entry, or the closed ledger ends before it. In an
            open ledger the entry may still come.
        EntryUnknownError
            After all entries before it: if a replica that may have an entry could not tell.
        """
        async with aclosing(self._blocks(first, last, unconfirmed=True)) as blocks:
            async for block in blocks:
                yield block

    async def read(self, first: int, last: int) -> list[bytes]:
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
        self._view.check_range(first, last)
        if first == last:
            entry = await try_one_replica(self._ledger, self.metadata, first, self._access)
            if entry is not None:
                self._view.learn_lac(entry.last_add_confirmed)
                return [bytes(entry.payload)]
        payloads: list[bytes] = []
        async for block in self.read_blocks(first, last):
            payloads += [bytes(payload) for payload in block.payloads]
        return payloads

    async def read_range(self, first: int, last: int, *, max_bytes: int | None = None) -> pa.RecordBatch:
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
        limit = self._access.config.max_read_range_bytes if max_bytes is None else max_bytes
        limit = min(limit, MAX_COLUMN_BYTES)
        found: list[EntryBlock] = []
        size = 0
        async with aclosing(self.read_blocks(first, last)) as blocks:
            async for block in blocks:
                size += block.payloads.size_bytes
                if size > limit:
                    raise InvalidArgumentError(
                        f"entries {first}..{last} have more than {limit} bytes, the limit of read_range "
                        "(max_bytes, maxReadRangeBytes): read fewer entries, or use read_blocks",
                        ledger_id=self.ledger_id,
                    )
                found.append(block)
        return entries_batch(found)

    async def read_last_add_confirmed(self) -> int:
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
        view = self._view
        if not view.closed:
            view.learn_metadata((await self._access.services.read_latest(self.ledger_id)).metadata)
        if not view.closed:
            view.learn_lac(await read_lac(self._ledger, view.metadata, self._access))
        return self.last_add_confirmed

    async def tail(self, from_entry: int, *, max_wait_ms: int | None = None) -> AsyncGenerator[EntryBlock, None]:
        """Read entries as they are confirmed. Ends when the ledger is closed and read to its end.

        A ledger in recovery that nobody closes has no end. If the iterator ended after ``max_wait_ms``, check
        ``metadata.state``, which it keeps up to date. If that is CLOSED, and all entries up to ``last_add_confirmed``
        were returned, the ledger is at its end.

        Parameters
        ----------
        from_entry
            The id of the first entry.
        max_wait_ms
            End also when nothing new was confirmed for this long, in milliseconds. By default wait without limit.
            Entries that were confirmed before the call are always returned. To continue, call again with the id after
            the last entry.

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
        tail = Tail(self._ledger, self._view, from_entry, max_wait_ms, self._access)
        async with aclosing(tail.blocks()) as blocks:
            async for block in blocks:
                yield block

    def _blocks(self, first: int, last: int, *, unconfirmed: bool = False) -> AsyncGenerator[EntryBlock, None]:
        reader = self._access.range_reader(self._ledger, self._view, first, last, unconfirmed=unconfirmed)
        return blocks_of(reader, Performer(self._ledger, self._access), f"reading of ledger {self.ledger_id}")
