"""The handle of a ledger being read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import pyarrow as pa

from bk_spark.bookie.reading.arrow import MAX_COLUMN_BYTES, entries_batch
from bk_spark.bookie.reading.lac_reads import read_lac
from bk_spark.bookie.reading.range_read import RangeRead
from bk_spark.bookie.reading.read_access import LedgerKey, ReadAccess
from bk_spark.bookie.reading.single_read import try_one_replica
from bk_spark.bookie.reading.tail import Tail
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.entries.entry_block import EntryBlock
from bk_spark.protocol.errors import EntryUnknownError, InvalidArgumentError, NoSuchEntryError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState

_RETRY_DELAY_S: Final = 0.2


class ReadHandle:
    """Reads entries of one ledger. One event loop; any number of readers at a time.

    A closed ledger can be read up to ``metadata.last_entry_id``; one that is still written up to
    ``last_add_confirmed`` (see :meth:`read_last_add_confirmed` and :meth:`tail`). Opening it did not fence it.
    """

    def __init__(
        self, ledger_id: int, metadata: LedgerMetadata, digest_type: DigestType, password: bytes, access: ReadAccess
    ) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        #: The last entry of a closed ledger; else the highest LAC heard of so far, which never goes back.
        self.last_add_confirmed = metadata.last_entry_id
        self._ledger = LedgerKey(ledger_id, digest_type, digest_function(digest_type, password))
        self._access = access

    async def read_blocks(
        self, first: int, last: int, *, known_to_exist: bool = False
    ) -> AsyncGenerator[EntryBlock, None]:
        """Entries ``first`` to ``last`` (inclusive) in order, in blocks, read ahead within bounds.

        ``known_to_exist``: the caller knows from elsewhere (a log's list) that they were acknowledged,
        whatever the last add confirmed known here.

        Raises NoSuchEntryError beyond the end, EntryUnknownError where no replica could give an entry.
        """
        self._check_range(first, last, known_to_exist)
        attempts = 0
        while first <= last:
            try:
                async with aclosing(self._pass(first, last)) as blocks:
                    async for block in blocks:
                        first += len(block)
                        attempts = 0
                        yield block
            except EntryUnknownError as error:
                attempts += 1
                await self._retry(attempts, error)

    async def read_unconfirmed(self, first: int, last: int) -> AsyncGenerator[EntryBlock, None]:
        """Entries ``first`` to ``last`` (inclusive) of which it is not known whether they are there, as
        :meth:`read_blocks`.

        What it gives of an open ledger may never be acknowledged: recovery can still cut it off. Raises, after
        all entries before it, NoSuchEntryError at an entry that every replica says it lacks (on an open ledger:
        now; it may yet come) or beyond the end of a closed ledger, and EntryUnknownError where a replica that
        may have it could not tell.
        """
        _check_order(self.ledger_id, first, last)
        attempts = 0
        while first <= last:
            before = self.metadata
            if first > self.last_add_confirmed and before.state is LedgerState.CLOSED:
                raise self._beyond(first)
            unconfirmed = first > self.last_add_confirmed
            end = last if unconfirmed else min(last, self.last_add_confirmed)
            try:
                async with aclosing(self._pass(first, end, unconfirmed=unconfirmed)) as blocks:
                    async for block in blocks:
                        first += len(block)
                        attempts = 0
                        yield block
            except NoSuchEntryError:
                # Bookies of an ensemble that was replaced meanwhile know nothing of later entries.
                attempts += 1
                await self._refresh()
                if attempts >= self._access.config.read_attempts or self.metadata == before:
                    raise
            except EntryUnknownError as error:
                attempts += 1
                await self._retry(attempts, error)

    async def read(self, first: int, last: int) -> list[bytes]:
        """Payloads of entries ``first`` to ``last`` (inclusive)."""
        self._check_range(first, last, known_to_exist=False)
        if first == last:
            entry = await try_one_replica(self._ledger, self.metadata, first, self._access)
            if entry is not None:
                self._learn(None, entry.last_add_confirmed)
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
        if self.metadata.state is not LedgerState.CLOSED:
            await self._refresh()
        if self.metadata.state is not LedgerState.CLOSED:
            self._learn(None, await read_lac(self._ledger, self.metadata, self._access))
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
        if max_wait_ms is not None and max_wait_ms < 0:
            raise InvalidArgumentError(f"max_wait_ms must not be negative, got {max_wait_ms}")
        tail = Tail(self._ledger, self.metadata, from_entry, max_wait_ms, self._access, self.read_blocks, self._learn)
        async with aclosing(tail.blocks()) as blocks:
            async for block in blocks:
                yield block

    async def _pass(self, first: int, last: int, *, unconfirmed: bool = False) -> AsyncGenerator[EntryBlock, None]:
        """Read with the metadata that the handle has now."""
        one_pass = RangeRead(self._ledger, self.metadata, first, last, self._access, unconfirmed=unconfirmed)
        # Closed here and not some time later: what the pass has under way ends with it.
        async with aclosing(one_pass.blocks()) as blocks:
            async for block in blocks:
                self._learn(None, block.max_lac)
                yield block

    async def _retry(self, attempts: int, error: EntryUnknownError) -> None:
        """Pause and read the metadata anew: a re-replication may have moved the segment since they were read.
        Raises ``error`` after enough attempts."""
        if attempts >= self._access.config.read_attempts:
            raise error
        await asyncio.sleep(_RETRY_DELAY_S * 2**attempts)
        await self._refresh()

    async def _refresh(self) -> None:
        metadata = (await self._access.services.read_latest(self.ledger_id)).metadata
        self._learn(metadata, self.last_add_confirmed)

    def _learn(self, metadata: LedgerMetadata | None, last_add_confirmed: int) -> None:
        """Several may read metadata at once, and an older state come last: what is closed stays closed."""
        closed = self.metadata.state is LedgerState.CLOSED
        if metadata is not None and (metadata.state is LedgerState.CLOSED or not closed):
            self.metadata = metadata
        if self.metadata.state is LedgerState.CLOSED:
            self.last_add_confirmed = self.metadata.last_entry_id
        else:
            self.last_add_confirmed = max(self.last_add_confirmed, last_add_confirmed)

    def _check_range(self, first: int, last: int, known_to_exist: bool) -> None:
        _check_order(self.ledger_id, first, last)
        if last > self.last_add_confirmed and not (known_to_exist and self.metadata.state is not LedgerState.CLOSED):
            raise self._beyond(last)

    def _beyond(self, entry_id: int) -> NoSuchEntryError:
        return NoSuchEntryError(
            f"entry {entry_id} lies beyond the last add confirmed, {self.last_add_confirmed}",
            ledger_id=self.ledger_id,
            entry_id=entry_id,
        )


def _check_order(ledger_id: int, first: int, last: int) -> None:
    if first < 0 or last < first:
        raise InvalidArgumentError(f"cannot read entries {first}..{last}", ledger_id=ledger_id)
