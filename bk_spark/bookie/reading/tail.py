"""Following a ledger that is being written: drives :class:`bk_spark.protocol.ledger.tail.LedgerTail`."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from bk_spark.bookie.reading.lac_reads import read_lac, understand
from bk_spark.bookie.reading.read_access import LedgerKey, ReadAccess
from bk_spark.bookie.tasks import TaskSet
from bk_spark.protocol.codes import NO_ENTRY, Code
from bk_spark.protocol.entries.entry_block import EntryBlock
from bk_spark.protocol.errors import BookieAnswerError, BookKeeperError, EntryUnknownError
from bk_spark.protocol.ledger.tail import (
    Failed,
    Finished,
    LedgerTail,
    LongPoll,
    ReadLac,
    ReadRange,
    RefreshMetadata,
    StopPoll,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.quorum import Answer
from bk_spark.protocol.wire.code_errors import error_of

_LOG = logging.getLogger(__name__)

#: Gives the entries of a range that is confirmed.
ReadBlocks = Callable[[int, int], AsyncGenerator[EntryBlock, None]]
#: Gets metadata (None: as before) and the highest LAC known.
Learn = Callable[[LedgerMetadata | None, int], None]


class Tail:
    """One following of one ledger."""

    def __init__(
        self,
        ledger: LedgerKey,
        metadata: LedgerMetadata,
        first: int,
        max_wait_ms: int | None,
        access: ReadAccess,
        read_blocks: ReadBlocks,
        learn: Learn,
    ) -> None:
        self._ledger = ledger
        self._max_wait_ms = max_wait_ms
        self._access = access
        self._config = access.config
        self._read_blocks = read_blocks
        self._learn = learn
        self._machine = LedgerTail(
            ledger.ledger_id,
            first,
            attempts=self._config.tail_attempts,
            speculation=access.poll_speculation,
            suspects=access.history,
        )
        #: As known at the beginning, then as read.
        self._metadata = metadata
        self._range: ReadRange | None = None
        self._error: BookKeeperError | None = None
        self._polls: dict[int, asyncio.Task[None]] = {}
        self._tasks = TaskSet(f"tail of ledger {ledger.ledger_id}", self._fail)
        self._progress = asyncio.Event()

    async def blocks(self) -> AsyncGenerator[EntryBlock, None]:
        """See :meth:`bk_spark.bookie.reading.read_handle.ReadHandle.tail`."""
        loop = asyncio.get_running_loop()
        wait_until: float | None = None
        try:
            self._run()
            while True:
                if self._range is not None:
                    read, self._range = self._range, None
                    async with aclosing(self._read(read)) as blocks:
                        async for block in blocks:
                            wait_until = None
                            yield block
                elif self._error is not None:
                    raise self._error
                elif self._machine.over:
                    return
                else:
                    self._progress.clear()
                    if self._max_wait_ms is not None and self._machine.waiting and wait_until is None:
                        wait_until = loop.time() + self._max_wait_ms / 1000
                    try:
                        async with asyncio.timeout_at(wait_until):
                            await self._progress.wait()
                    except TimeoutError:
                        return
        finally:
            self._access.watches.forget(self._ledger.ledger_id, self._on_metadata_changed)
            polls = list(self._polls.values())
            for poll in polls:
                poll.cancel()
            await asyncio.gather(self._tasks.cancel(), *polls, return_exceptions=True)

    async def _read(self, read: ReadRange) -> AsyncGenerator[EntryBlock, None]:
        try:
            async with aclosing(self._read_blocks(read.first, read.last)) as blocks:
                async for block in blocks:
                    self._machine.on_entries(len(block), block.max_lac)
                    yield block
        except BookKeeperError as error:
            self._machine.on_range_failed(error)
        else:
            self._machine.on_range_read()
        self._run()

    def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while actions := self._machine.take_actions():
            self._learn(None, self._machine.last_add_confirmed)
            for action in actions:
                match action:
                    case ReadRange():
                        self._range = action
                    case RefreshMetadata(delay_ms):
                        self._tasks.spawn(self._refresh(delay_ms))
                    case ReadLac():
                        self._tasks.spawn(self._read_lac())
                    case LongPoll(request_id):
                        self._polls[request_id] = poll = loop.create_task(self._poll(action))
                        poll.add_done_callback(functools.partial(self._poll_ended, request_id))
                    case StopPoll(request_id):
                        self._polls[request_id].cancel()
                    case Failed(error):
                        self._error = error
                    case Finished():
                        pass
        self._progress.set()

    async def _refresh(self, delay_ms: int) -> None:
        await asyncio.sleep(delay_ms / 1000)
        try:
            # There is nothing to watch in a closed ledger; a watch would stay until it is deleted.
            if self._metadata.state is not LedgerState.CLOSED:
                stored = await self._access.watches.read(self._ledger.ledger_id, self._on_metadata_changed)
                self._metadata = stored.metadata
        except BookKeeperError as error:
            self._machine.on_metadata_failed(error)
        else:
            self._learn(self._metadata, self._machine.last_add_confirmed)
            self._machine.on_metadata(self._metadata)
        self._run()

    def _on_metadata_changed(self) -> None:
        self._machine.on_metadata_changed()
        self._run()

    async def _read_lac(self) -> None:
        lac = None
        try:
            lac = await read_lac(self._ledger, self._metadata, self._access)
        except EntryUnknownError as error:
            _LOG.info("ledger %d: %s; waiting for news all the same", self._ledger.ledger_id, error)
        self._machine.on_lac_read(lac)
        self._run()

    async def _poll(self, action: LongPoll) -> None:
        await asyncio.sleep(action.delay_ms / 1000)
        loop = asyncio.get_running_loop()
        request_id, bookie_id = action.request_id, action.bookie_id
        timer = loop.call_later(action.slow_after_ms / 1000, self._on_poll_slow, request_id)
        wait_ms = self._config.long_poll_timeout_ms
        try:
            async with asyncio.timeout((wait_ms + self._config.read_timeout_ms) / 1000):
                connection = await self._access.pool_v3.get(bookie_id)
                asked_at = loop.time()
                found = await connection.long_poll(self._ledger.ledger_id, action.previous_lac, wait_ms)
                early = loop.time() - asked_at < wait_ms / 2000
                answer, lac = _answer_of(found.code, bookie_id), NO_ENTRY
                if answer is Answer.PRESENT and found.max_lac is not None and found.max_lac > action.previous_lac:
                    # The bookie's word alone: entries are read up to what a right digest proves.
                    said = understand(self._ledger, await connection.read_lac(self._ledger.ledger_id))
                    if said.lac <= action.previous_lac:
                        raise BookieAnswerError(f"claims a last add confirmed of {found.max_lac}, does not prove it")
                    lac = said.lac
        except TimeoutError:
            self._machine.on_poll_failed(request_id, "did not answer in time")
            self._access.services.bookie_failed(bookie_id)
        except BookKeeperError as error:
            self._machine.on_poll_failed(request_id, error.message)
        except Exception as error:
            # Whatever it is, the machine must hear of it: it would wait for ever.
            _LOG.exception("ledger %d: long poll at bookie %s", self._ledger.ledger_id, bookie_id)
            self._machine.on_poll_failed(request_id, repr(error))
        else:
            self._machine.on_poll_answered(request_id, answer, lac, early=early)
        finally:
            timer.cancel()
        self._run()

    def _on_poll_slow(self, request_id: int) -> None:
        self._machine.on_poll_slow(request_id)
        self._run()

    def _poll_ended(self, request_id: int, task: asyncio.Task[None]) -> None:
        del self._polls[request_id]

    def _fail(self, error: BookKeeperError) -> None:
        self._error = error
        self._progress.set()


def _answer_of(code: Code, bookie_id: str) -> Answer:
    if code is Code.OK:
        return Answer.PRESENT
    if code in (Code.NO_LEDGER, Code.NO_ENTRY):
        return Answer.ABSENT
    raise error_of(code, bookie_id=bookie_id)
