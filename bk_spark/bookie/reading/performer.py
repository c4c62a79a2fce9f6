"""Runs the machines of reading, and performs their actions (:mod:`bk_spark.protocol.ledger.reading.read_actions`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from bk_spark.bookie.connection.interface import BatchReads
from bk_spark.bookie.metadata.metadata_calls import call_metadata
from bk_spark.bookie.reading.read_access import ReadAccess
from bk_spark.bookie.runners import AsyncRunner, run_timed
from bk_spark.protocol.codes import LAST_ENTRY, Code
from bk_spark.protocol.entries.entry import Entry, EntryBlock
from bk_spark.protocol.errors import BookieUnavailableError, BookKeeperError
from bk_spark.protocol.ledger.metadata_calls import MetadataFailed, MetadataFound, ReadMetadata
from bk_spark.protocol.ledger.reading.lac import LacRead
from bk_spark.protocol.ledger.reading.ledger_view import LedgerKey
from bk_spark.protocol.ledger.reading.read_actions import (
    AskLac,
    BatchRead,
    BatchRefused,
    EntriesRead,
    LacTold,
    LongPoll,
    PollAnswered,
    ReadBatch,
    ReadEntries,
    ReportFailure,
    RequestFailed,
    WatchMetadata,
)
from bk_spark.protocol.ledger.reading.single_read import SingleRead
from bk_spark.protocol.machine import EndedBy, Machine
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.replication.entry_lists import EntriesListed, ListEntries

_LOG = logging.getLogger(__name__)

Q = TypeVar("Q", ReadEntries, ReadBatch, AskLac, LongPoll, ListEntries)
T = TypeVar("T")
Perform = Callable[[Any], Coroutine[Any, Any, Any] | None]


class Performer:
    """Performs actions on one ledger. Calls ``on_change`` when watched metadata have changed."""

    def __init__(self, ledger: LedgerKey, access: ReadAccess, on_change: Callable[[], None] = lambda: None) -> None:
        self._ledger_id = ledger.ledger_id
        self._access = access
        self._on_change = on_change

    def __call__(self, action: Any) -> Coroutine[Any, Any, Any] | None:
        """Return the coroutine whose result is the action's event, or None for an action that is done at once."""
        match action:
            case ReadEntries():
                self._access.services.counts.read_retries += action.again
                return self._answered(action, self._read)
            case ReadBatch():
                self._access.services.counts.read_retries += action.again
                return self._answered(action, self._read_batch)
            case AskLac():
                return self._answered(action, self._ask_lac)
            case LongPoll():
                return self._answered(action, self._poll)
            case ListEntries():
                return self._answered(action, self._list)
            case ReadMetadata():
                return call_metadata(self._access.services, self._ledger_id, action)
            case WatchMetadata():
                return self._watch_metadata()
            case ReportFailure(bookie_id):
                self._access.services.bookie_failed(bookie_id)
        return None

    def stop_watching(self) -> None:
        """Stop calling ``on_change``."""
        self._access.watches.forget(self._ledger_id, self._on_change)

    async def _answered(self, action: Q, ask: Callable[[Q], Awaitable[T]]) -> T | RequestFailed:
        try:
            return await ask(action)
        except BookKeeperError as error:
            return RequestFailed(action.request_id, error)
        except Exception as error:
            # Report any error to the machine. Otherwise it would wait for ever.
            _LOG.exception("ledger %d: a request to bookie %s failed", self._ledger_id, action.bookie_id)
            return RequestFailed(action.request_id, error)

    async def _read(self, action: ReadEntries) -> EntriesRead:
        connection = await self._access.pool.get(action.bookie_id)
        return EntriesRead(action.request_id, await connection.read(self._ledger_id, action.entry_ids))

    async def _read_batch(self, action: ReadBatch) -> BatchRead | BatchRefused:
        connection = await self._access.pool.get(action.bookie_id)
        assert isinstance(connection, BatchReads)
        entry_ids = action.entry_ids
        try:
            answer = await connection.batch_read(self._ledger_id, entry_ids.start, len(entry_ids), action.max_bytes)
        except BookieUnavailableError:
            if connection.knows_batch_read:
                raise
            return BatchRefused(action.request_id)
        return BatchRead(action.request_id, answer.code, answer.records)

    async def _ask_lac(self, action: AskLac) -> LacTold:
        connection = await self._access.pool_v3.get(action.bookie_id)
        code, explicit_lac, last_entry = await connection.read_lac(self._ledger_id)
        if code is Code.IO_ERROR and explicit_lac is not None:
            # Apache's bookie says so of a ledger without entries, too. A read tells the two cases apart.
            last = (await connection.read(self._ledger_id, range(LAST_ENTRY, LAST_ENTRY + 1)))[LAST_ENTRY]
            if last.code is Code.NO_ENTRY:
                code = last.code
        return LacTold(action.request_id, code, explicit_lac, last_entry)

    async def _list(self, action: ListEntries) -> EntriesListed:
        connection = await self._access.pool_v3.get(action.bookie_id)
        return EntriesListed(action.request_id, await connection.list_entries(self._ledger_id))

    async def _poll(self, action: LongPoll) -> PollAnswered:
        connection = await self._access.pool_v3.get(action.bookie_id)
        answer = await connection.long_poll(self._ledger_id, action.previous_lac, action.wait_ms)
        return PollAnswered(action.request_id, answer.code, answer.max_lac)

    async def _watch_metadata(self) -> MetadataFound | MetadataFailed:
        try:
            stored = await self._access.watches.read(self._ledger_id, self._on_change)
        except BookKeeperError as error:
            return MetadataFailed(error)
        return MetadataFound(stored.metadata, stored.version)


class BlockMachine(Machine[Any, Any, None], Protocol):
    """A machine whose results are blocks of entries, such as RangeReader."""

    def next_block(self) -> EntryBlock | None:
        """Return the next entries in order, or None if they have not arrived."""


async def blocks_of(machine: BlockMachine, perform: Perform, what: str) -> AsyncGenerator[EntryBlock, None]:
    """Yield the blocks of a machine, in order. Raises the machine's error after all blocks before it.

    Closing this generator cancels the requests under way.
    """
    progress = asyncio.Event()
    runner = AsyncRunner(machine, perform, what=what, on_progress=progress.set)
    try:
        while True:
            block = machine.next_block()
            # Taking a block makes room for more.
            runner.run()
            if block is not None:
                yield block
            elif isinstance(machine.outcome, EndedBy):
                raise machine.outcome.error
            elif machine.outcome is not None:
                return
            else:
                # No performer answers at once here, so there was no progress since.
                progress.clear()
                await progress.wait()
    finally:
        await runner.stop()


async def read_lac(ledger: LedgerKey, metadata: LedgerMetadata, access: ReadAccess) -> int:
    """Return the highest LAC that the bookies of the last segment know, once enough of them answered.

    They are asked only over v3, because only READ_LAC returns the *explicit* LAC, by which an idle writer publishes its
    last entries. There is no fallback to reading entry -1 over v2. A bookie serves both protocols on one port, so one
    that refuses a v3 connection would refuse the other too. And such an answer would hide the explicit LAC but count as
    complete. It counts as unknown instead.

    Raises EntryUnknownError if too few bookies answer.
    """
    machine = LacRead(ledger, metadata, timeout_ms=access.read_settings.timeout_ms)
    runner: AsyncRunner[Any, Any, int] = AsyncRunner(
        machine, Performer(ledger, access), what=f"LAC of ledger {ledger.ledger_id}"
    )
    return await runner.complete()


async def try_one_replica(
    ledger: LedgerKey, metadata: LedgerMetadata, entry_id: int, access: ReadAccess
) -> Entry | None:
    """Return the entry if its first replica returns it soon. None says nothing about the entry.

    Runs the machine without a task: a single read is short.
    """

    async def ask(action: ReadEntries) -> EntriesRead | RequestFailed:
        try:
            connection = access.pool.existing(action.bookie_id) or await access.pool.get(action.bookie_id)
            return EntriesRead(action.request_id, await connection.read(ledger.ledger_id, action.entry_ids))
        except BookKeeperError as error:
            return RequestFailed(action.request_id, error)

    return await run_timed(SingleRead(ledger, metadata, entry_id, access.read_settings, access.history), ask)
