"""The handle of a ledger being read."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import pyarrow as pa

from bk_spark.bookie.reading.arrow import MAX_COLUMN_BYTES, entries_batch
from bk_spark.bookie.reading.performer import Performer, blocks_of, read_lac
from bk_spark.bookie.reading.read_access import ReadAccess
from bk_spark.bookie.reading.single_read import try_one_replica
from bk_spark.bookie.reading.tail import Tail
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.entries.entry_block import EntryBlock
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.ledger.ledger_view import LedgerKey, LedgerView
from bk_spark.protocol.ledger.reader import RangeReader
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata


class ReadHandle:
    """Reads entries of one ledger. One event loop; any number of readers at a time.

    A closed ledger can be read up to ``metadata.last_entry_id``; one that is still written up to
    ``last_add_confirmed`` (see :meth:`read_last_add_confirmed` and :meth:`tail`). Opening it did not fence it.
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
        """As they were read last."""
        return self._view.metadata

    @property
    def last_add_confirmed(self) -> int:
        """The last entry of a closed ledger; else the highest LAC heard of so far, which never goes back."""
        return self._view.last_add_confirmed

    async def read_blocks(
        self, first: int, last: int, *, known_to_exist: bool = False
    ) -> AsyncGenerator[EntryBlock, None]:
        """Entries ``first`` to ``last`` (inclusive) in order, in blocks, read ahead within bounds.

        Parameters
        ----------
        known_to_exist
            The caller knows from elsewhere (a log's list) that the entries were acknowledged, whatever the last add
            confirmed known here.

        Raises NoSuchEntryError beyond the end, EntryUnknownError where no replica could give an entry.
        """
        self._view.check_range(first, last, known_to_exist=known_to_exist)
        async with aclosing(self._blocks(first, last)) as blocks:
            async for block in blocks:
                yield block

    async def read_unconfirmed(self, first: int, last: int) -> AsyncGenerator[EntryBlock, None]:
        """Entries ``first`` to ``last`` (inclusive) of which it is not known whether they are there, as
        :meth:`read_blocks`.

        What it gives of an open ledger may never be acknowledged: recovery can still cut it off. Raises, after all
        entries before it, NoSuchEntryError at an entry that every replica says it lacks (on an open ledger: now; it may
        yet come) or beyond the end of a closed ledger, and EntryUnknownError where a replica that may have it could not
        tell.
        """
        async with aclosing(self._blocks(first, last, unconfirmed=True)) as blocks:
            async for block in blocks:
                yield block

    async def read(self, first: int, last: int) -> list[bytes]:
        """Payloads of entries ``first`` to ``last`` (inclusive)."""
        self._view.check_range(first, last, known_to_exist=False)
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
        """Entries ``first`` to ``last`` (inclusive) as one batch: ``entry_id`` int64, ``value`` binary.

        Raises as :meth:`read_blocks`, and InvalidArgumentError where the payloads have more than ``max_bytes``
        (``max_read_range_bytes`` of the configuration; never more than 2 GiB).
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
                        f"entries {first}..{last} have more than {limit} bytes, the most that read_range gives at "
                        "once (max_bytes, maxReadRangeBytes): read fewer, or iterate over read_blocks",
                        ledger_id=self.ledger_id,
                    )
                found.append(block)
        return entries_batch(found)

    async def read_last_add_confirmed(self) -> int:
        """The highest LAC that a covering part of the last ensemble knows; never goes back.

        Raises EntryUnknownError where too few bookies answered.
        """
        view = self._view
        if not view.closed:
            view.learn_metadata((await self._access.services.read_latest(self.ledger_id)).metadata)
        if not view.closed:
            view.learn_lac(await read_lac(self._ledger, view.metadata, self._access))
        return self.last_add_confirmed

    async def tail(self, from_entry: int, *, max_wait_ms: int | None = None) -> AsyncGenerator[EntryBlock, None]:
        """Entries from ``from_entry`` on in order, in blocks, as they are confirmed, each once; ends when the
        ledger is closed and its last entry was given.

        ``max_wait_ms`` bounds the wait for each block: it ends also when nothing new was confirmed for so long.
        The next call goes on after the last entry given. Whatever was confirmed before the call is given even
        with 0, since the last add confirmed is read first. To see whether there is more to come look at
        ``metadata.state``, which the tail keeps up to date: CLOSED, and nothing left up to
        ``last_add_confirmed``, is the end. Without ``max_wait_ms`` it waits for ever, also on a ledger in
        recovery that nobody closes.

        Closing the iterator (``aclosing``) ends what is under way. Raises NoSuchLedgerError when the ledger is
        deleted, NoSuchEntryError where it was closed before ``from_entry - 1``, and after ``tailAttempts``
        failures in a row a retriable error: calling again with the next entry goes on.
        """
        tail = Tail(self._ledger, self._view, from_entry, max_wait_ms, self._access)
        async with aclosing(tail.blocks()) as blocks:
            async for block in blocks:
                yield block

    def _blocks(self, first: int, last: int, *, unconfirmed: bool = False) -> AsyncGenerator[EntryBlock, None]:
        access = self._access
        reader = RangeReader(
            self._ledger,
            self._view,
            first,
            last,
            access.read_settings,
            unconfirmed=unconfirmed,
            suspects=access.history,
            without_batch_reads=access.without_batch_reads,
        )
        return blocks_of(reader, Performer(self._ledger, access), f"reading of ledger {self.ledger_id}")
