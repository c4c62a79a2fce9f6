"""Reading a range of entries from bookies: drives :class:`bk_spark.protocol.ledger.reader.RangeReader`."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator
from typing import Final

from bk_spark.bookie.connection.base import LedgerConnection
from bk_spark.bookie.connection.v2 import BookieConnection
from bk_spark.bookie.reading.read_access import LedgerKey, ReadAccess
from bk_spark.protocol.codes import Code
from bk_spark.protocol.entries.entry import ENTRY_HEADER_BYTES
from bk_spark.protocol.entries.entry_block import EntryBlock, verify_records, verify_stored
from bk_spark.protocol.errors import BookieTimeoutError, BookieUnavailableError, BookKeeperError
from bk_spark.protocol.ledger.reader import RangeReader, ReadEntries, StopReading
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Answer
from bk_spark.protocol.wire.code_errors import error_of

_LOG = logging.getLogger(__name__)
#: Answer bytes aimed at per request.
_REQUEST_BYTES: Final = 1024 * 1024
#: More entries than this in one request bring nothing.
_MAX_REQUEST_ENTRIES: Final = 10_000
_FIRST_REQUEST_ENTRIES: Final = 64
#: As many entries are asked for one by one; the rest of a request follows. Bounds what a bookie has to do at once.
_MAX_SINGLE_READS: Final = 250
#: An answer to a batch read has so much beside the entries.
_BATCH_RESERVE_BYTES: Final = 1024


class _LacksEntryError(Exception):
    """The bookie has the ledger, or not, but surely not the entry."""


class RangeRead:
    """One pass over a range with one state of the metadata."""

    def __init__(
        self,
        ledger: LedgerKey,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        access: ReadAccess,
        *,
        unconfirmed: bool = False,
    ) -> None:
        self._ledger = ledger
        self._access = access
        self._config = access.config
        self._average_bytes = self._estimate(metadata)
        self._machine = RangeReader(
            ledger.ledger_id,
            metadata,
            first,
            last,
            chunk_entries=self._chunk_entries(),
            chunks_in_flight=max(2, self._config.read_ahead_bytes // _REQUEST_BYTES),
            unconfirmed=unconfirmed,
            speculation=access.read_speculation,
            suspects=access.history,
        )
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._progress = asyncio.Event()

    async def blocks(self) -> AsyncGenerator[EntryBlock, None]:
        """The entries in order. Raises NoSuchEntryError, EntryUnknownError, after all that lies before."""
        try:
            self._run()
            while not self._machine.finished:
                block = self._machine.next_block()
                if block is not None:
                    self._learn(block)
                    self._run()
                    yield block
                elif self._machine.error is not None:
                    raise self._machine.error
                else:
                    self._progress.clear()
                    await self._progress.wait()
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @staticmethod
    def _estimate(metadata: LedgerMetadata) -> float:
        """Bytes of an average entry, as far as the metadata of a closed ledger tell; else 0."""
        return metadata.length / (metadata.last_entry_id + 1) if metadata.last_entry_id >= 0 else 0.0

    def _chunk_entries(self) -> int:
        if not self._average_bytes:
            return _FIRST_REQUEST_ENTRIES
        return max(1, min(_MAX_REQUEST_ENTRIES, int(_REQUEST_BYTES / (self._average_bytes + ENTRY_HEADER_BYTES))))

    def _learn(self, block: EntryBlock) -> None:
        average = block.payloads.size_bytes / len(block)
        self._average_bytes = average if not self._average_bytes else (self._average_bytes + average) / 2
        self._machine.chunk_entries = self._chunk_entries()

    def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while actions := self._machine.take_actions():
            for action in actions:
                match action:
                    case ReadEntries(request_id):
                        self._tasks[request_id] = task = loop.create_task(self._ask(action))
                        task.add_done_callback(functools.partial(self._ended, request_id))
                    case StopReading(request_id):
                        self._tasks[request_id].cancel()
        self._progress.set()

    async def _ask(self, action: ReadEntries) -> None:
        request_id = action.request_id
        timer = None
        if action.slow_after_ms is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(action.slow_after_ms / 1000, self._on_slow, request_id)
        try:
            async with asyncio.timeout(self._config.read_timeout_ms / 1000):
                connection = await self._access.pool.get(action.bookie_id)
                block = await self._read(connection, action.entry_ids)
        except _LacksEntryError:
            self._machine.on_error(request_id, Answer.ABSENT, "does not have it")
        except TimeoutError:
            self._machine.on_error(request_id, Answer.UNKNOWN, "did not answer in time")
            self._access.services.bookie_failed(action.bookie_id)
        except BookKeeperError as error:
            self._machine.on_error(request_id, Answer.UNKNOWN, error.message)
            if isinstance(error, BookieUnavailableError | BookieTimeoutError):
                self._access.services.bookie_failed(action.bookie_id)
        except Exception as error:
            # Whatever it is, the reader must hear of it: it would wait for ever.
            _LOG.exception("ledger %d: reading at bookie %s", self._ledger.ledger_id, action.bookie_id)
            self._machine.on_error(request_id, Answer.UNKNOWN, repr(error))
        else:
            self._machine.on_entries(request_id, block)
        finally:
            if timer is not None:
                timer.cancel()
        self._run()

    def _ended(self, request_id: int, task: asyncio.Task[None]) -> None:
        del self._tasks[request_id]

    def _on_slow(self, request_id: int) -> None:
        self._machine.on_slow(request_id)
        self._run()

    async def _read(self, connection: LedgerConnection, entry_ids: range) -> EntryBlock:
        ledger, pool = self._ledger, self._access.pool
        batch = self._config.batch_read_enabled and entry_ids.step == 1 and len(entry_ids) > 1
        if batch and isinstance(connection, BookieConnection) and connection.bookie_id not in pool.without_batch_read:
            try:
                answer = await connection.batch_read(
                    ledger.ledger_id,
                    entry_ids.start,
                    len(entry_ids),
                    self._config.max_frame_bytes - _BATCH_RESERVE_BYTES,
                )
            except BookieUnavailableError:
                if connection.knows_batch_read:
                    raise
                # A bookie older than 4.17 closes the connection at a batch read: go on without. One that
                # cannot be reached again just died.
                connection = await pool.get(connection.bookie_id)
                pool.without_batch_read.add(connection.bookie_id)
            else:
                _check(answer.code, ledger.ledger_id, entry_ids.start, connection.bookie_id)
                return verify_records(
                    answer.records, ledger.ledger_id, entry_ids.start, ledger.digest_type, ledger.digest
                )
        entry_ids = entry_ids[:_MAX_SINGLE_READS]
        answers = await connection.read(ledger.ledger_id, entry_ids)
        stored: list[memoryview] = []
        good = Code.OK
        for entry_id in entry_ids:
            answer_code = answers[entry_id].code
            if answer_code is not good:
                if stored:
                    break
                _check(answer_code, ledger.ledger_id, entry_id, connection.bookie_id)
            stored.append(answers[entry_id].stored)
        return verify_stored(
            stored, ledger.ledger_id, entry_ids.start, ledger.digest_type, ledger.digest, entry_ids.step
        )


def _check(code: Code, ledger_id: int, entry_id: int, bookie_id: str) -> None:
    """Absent is only what the bookie says is; every other code leaves it open."""
    if code in (Code.NO_ENTRY, Code.NO_LEDGER):
        raise _LacksEntryError
    if code is not Code.OK:
        raise error_of(code, ledger_id=ledger_id, entry_id=entry_id, bookie_id=bookie_id)
