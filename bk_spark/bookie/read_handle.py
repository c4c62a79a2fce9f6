"""The handle of a ledger being read: drives :class:`bk_spark.protocol.reader.RangeReader`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, Final

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection import BookieConnection
from bk_spark.bookie.connection_v3 import BookieConnectionV3
from bk_spark.bookie.lac_reads import LacReader
from bk_spark.bookie.pool import ConnectionPool
from bk_spark.bookie.services import ClusterServices
from bk_spark.protocol.codes import Code, DigestType
from bk_spark.protocol.digest import digest_function
from bk_spark.protocol.entry import ENTRY_HEADER_BYTES
from bk_spark.protocol.entry_block import EntryBlock, verify_records, verify_stored
from bk_spark.protocol.errors import (
    BookieUnavailableError,
    BookKeeperError,
    EntryUnknownError,
    InvalidArgumentError,
    NoSuchEntryError,
    PeerError,
)
from bk_spark.protocol.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.reader import RangeReader, ReadEntries, ReadFailed

_LOG = logging.getLogger(__name__)
#: Answer bytes aimed at per request.
_REQUEST_BYTES: Final = 1024 * 1024
#: More entries than this in one request bring nothing.
_MAX_REQUEST_ENTRIES: Final = 10_000
_FIRST_REQUEST_ENTRIES: Final = 64
_RETRY_DELAY_S: Final = 0.2


class ReadHandle:
    """Reads entries of one ledger. One event loop; any number of readers at a time.

    A closed ledger can be read up to ``metadata.last_entry_id``; one that is still written up to
    ``last_add_confirmed`` (see :meth:`read_last_add_confirmed`). Opening it did not fence it.
    """

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        digest_type: DigestType,
        password: bytes,
        services: ClusterServices,
        pool: ConnectionPool[BookieConnection],
        pool_v3: ConnectionPool[BookieConnectionV3],
        config: ClientConfig,
    ) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.last_add_confirmed = metadata.last_entry_id
        self._digest_type = digest_type
        self._digest = digest_function(digest_type, password)
        self._services = services
        self._pool = pool
        self._config = config
        self._lac_reader = LacReader(ledger_id, digest_type, self._digest, pool_v3, config)

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
                # Closed here and not some time later: what the pass has under way ends with it.
                async with aclosing(_RangeRead(self, first, last).blocks()) as blocks:
                    async for block in blocks:
                        first += len(block)
                        attempts = 0
                        yield block
            except EntryUnknownError:
                # A re-replication may have moved the segment since its metadata was read.
                attempts += 1
                if attempts >= self._config.read_attempts:
                    raise
                await asyncio.sleep(_RETRY_DELAY_S * 2**attempts)
                self.metadata = (await self._services.read_latest(self.ledger_id)).metadata

    async def read(self, first: int, last: int) -> list[bytes]:
        """Payloads of entries ``first`` to ``last`` (inclusive)."""
        payloads: list[bytes] = []
        async for block in self.read_blocks(first, last):
            payloads += [bytes(payload) for payload in block.payloads]
        return payloads

    async def read_last_add_confirmed(self) -> int:
        """The highest LAC that a covering part of the last ensemble knows; never goes back.

        Raises EntryUnknownError where too few bookies answered.
        """
        if self.metadata.state is LedgerState.CLOSED:
            return self.last_add_confirmed
        self.metadata = (await self._services.read_latest(self.ledger_id)).metadata
        if self.metadata.state is LedgerState.CLOSED:
            self.last_add_confirmed = self.metadata.last_entry_id
            return self.last_add_confirmed
        self.last_add_confirmed = max(self.last_add_confirmed, await self._lac_reader.read(self.metadata))
        return self.last_add_confirmed

    def _check_range(self, first: int, last: int, known_to_exist: bool) -> None:
        if first < 0 or last < first:
            raise InvalidArgumentError(f"cannot read entries {first}..{last}", ledger_id=self.ledger_id)
        if last > self.last_add_confirmed and not (known_to_exist and self.metadata.state is not LedgerState.CLOSED):
            raise NoSuchEntryError(
                f"entry {last} lies beyond the last add confirmed, {self.last_add_confirmed}",
                ledger_id=self.ledger_id,
                entry_id=last,
            )


class _RangeRead:
    """One pass over a range with the metadata the handle has now."""

    def __init__(self, handle: ReadHandle, first: int, last: int) -> None:
        self._handle = handle
        self._config = handle._config
        self._average_bytes = self._estimate(handle.metadata)
        self._machine = RangeReader(
            handle.ledger_id,
            handle.metadata,
            first,
            last,
            chunk_entries=self._chunk_entries(),
            chunks_in_flight=max(2, self._config.read_ahead_bytes // _REQUEST_BYTES),
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._progress = asyncio.Event()

    async def blocks(self) -> AsyncGenerator[EntryBlock, None]:
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
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

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
        while actions := self._machine.take_actions():
            for action in actions:
                match action:
                    case ReadEntries():
                        self._spawn(self._ask(action))
                    case ReadFailed():
                        pass
        self._progress.set()

    async def _ask(self, action: ReadEntries) -> None:
        try:
            async with asyncio.timeout(self._config.read_timeout_ms / 1000):
                connection = await self._handle._pool.get(action.bookie_id)
                block = await self._read(connection, action.entry_ids)
        except TimeoutError:
            self._machine.on_error(action.request_id, "did not answer in time")
        except BookKeeperError as error:
            self._machine.on_error(action.request_id, error.message)
        except Exception as error:
            # Whatever it is, the reader must hear of it: it would wait for ever.
            _LOG.exception("ledger %d: reading at bookie %s", self._handle.ledger_id, action.bookie_id)
            self._machine.on_error(action.request_id, repr(error))
        else:
            self._machine.on_entries(action.request_id, block)
        self._run()

    async def _read(self, connection: BookieConnection, entry_ids: range) -> EntryBlock:
        handle = self._handle
        pool = handle._pool
        batch = self._config.batch_read_enabled and entry_ids.step == 1 and len(entry_ids) > 1
        if batch and connection.bookie_id not in pool.without_batch_read:
            try:
                answer = await connection.batch_read(
                    handle.ledger_id, entry_ids.start, len(entry_ids), self._config.max_frame_bytes - 1024
                )
            except BookieUnavailableError:
                if connection.knows_batch_read:
                    raise
                # A bookie older than 4.17 closes the connection at a batch read: go on without. One that
                # cannot be reached again just died.
                connection = await pool.get(connection.bookie_id)
                pool.without_batch_read.add(connection.bookie_id)
            else:
                _check(answer.code, handle.ledger_id, entry_ids.start, connection.bookie_id)
                return verify_records(
                    answer.records, handle.ledger_id, entry_ids.start, handle._digest_type, handle._digest
                )
        answers = await connection.read(handle.ledger_id, entry_ids)
        stored: list[memoryview] = []
        for entry_id in entry_ids:
            if answers[entry_id].code is not Code.OK and stored:
                break
            _check(answers[entry_id].code, handle.ledger_id, entry_id, connection.bookie_id)
            stored.append(answers[entry_id].stored)
        return verify_stored(
            stored, handle.ledger_id, entry_ids.start, handle._digest_type, handle._digest, entry_ids.step
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _check(code: Code, ledger_id: int, entry_id: int, bookie_id: str) -> None:
    if code is Code.OK:
        return
    if code in (Code.NO_ENTRY, Code.NO_LEDGER):
        message = "does not have it"
    else:
        message = f"answered {code.name}"
    raise PeerError(message, ledger_id=ledger_id, entry_id=entry_id, bookie_id=bookie_id, code=code.name)
