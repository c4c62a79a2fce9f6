"""Recovers a ledger: runs :class:`bk_spark.protocol.ledger.recovery.LedgerRecovery`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.interface import LedgerConnection
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.bookie.metadata.metadata_calls import call_metadata
from bk_spark.bookie.runners import AsyncRunner
from bk_spark.bookie.services import ClusterServices
from bk_spark.bookie.writing.writer_performer import WriterPerformer
from bk_spark.bookie.writing.writer_settings import limits_of, packager_of
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import Buffer, digest_function, master_key
from bk_spark.protocol.entries.entry import Entry, verify_entry
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.ledger.end_search import EntryFailed, EntryRead, ReadEntry, Unclear
from bk_spark.protocol.ledger.metadata_calls import CompareAndSet, ReadMetadata
from bk_spark.protocol.ledger.recovery import (
    AwaitConnections,
    ForWriteBacks,
    LedgerRecovery,
    RecoveryAction,
    RecoveryEvent,
    ToldWriteBacks,
    WriteBacksReady,
)
from bk_spark.protocol.ledger.writer_actions import WriterEvent
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata

_LOG = logging.getLogger(__name__)


async def recover_ledger(
    ledger_id: int,
    digest_type: DigestType,
    password: bytes,
    services: ClusterServices,
    pool: ConnectionPool[LedgerConnection],
    config: ClientConfig,
) -> LedgerMetadata:
    """Fence and close a ledger. Return its final metadata. A closed ledger does not change.

    Do not share ``pool``: v2 answers carry no request id, so answers to a writer of the same ledger could be mistaken
    for ours. Raises EntryUnknownError if the end cannot be proven, and NotEnoughBookiesError. The ledger then stays
    IN_RECOVERY and can be recovered again.
    """
    recovery = _Performer(ledger_id, digest_type, password, services, pool, config)
    recovery.runner.run()
    try:
        metadata = await recovery.runner.result()
    finally:
        await recovery.stop()
    _LOG.info("ledger %d: recovered, last entry %d", ledger_id, metadata.last_entry_id)
    return metadata


class _Performer:
    """Performs the actions of a recovery: metadata calls, reads, and the actions of its writers."""

    def __init__(
        self,
        ledger_id: int,
        digest_type: DigestType,
        password: bytes,
        services: ClusterServices,
        pool: ConnectionPool[LedgerConnection],
        config: ClientConfig,
    ) -> None:
        digest = digest_function(digest_type, password)

        def verify(stored: Buffer, entry_id: int | None) -> Entry:
            return verify_entry(stored, ledger_id, entry_id, digest_type, digest)

        self._ledger_id = ledger_id
        self._key = master_key(password)
        self._services = services
        self._pool = pool
        self._config = config
        self._warned: set[str] = set()
        #: The performer of the current search's write-backs, and the number of the search.
        self._write_backs: WriterPerformer | None = None
        self._attempt = 0
        self._writing: set[asyncio.Task[Any]] = set()
        self._machine = LedgerRecovery(
            ledger_id,
            verify,
            lambda flags: packager_of(config, ledger_id, digest_type, password, flags),
            read_timeout_ms=config.read_timeout_ms,
            limits=limits_of(config, recovers=True),
        )
        self.runner: AsyncRunner[RecoveryAction, RecoveryEvent, LedgerMetadata] = AsyncRunner(
            self._machine, self._perform, what=f"recovery of ledger {ledger_id}"
        )

    async def stop(self) -> None:
        await self.runner.stop()
        if self._write_backs is not None:
            self._write_backs.detach()

    def _perform(self, action: RecoveryAction) -> Coroutine[Any, Any, RecoveryEvent | None] | RecoveryEvent | None:
        match action:
            case ReadMetadata() | CompareAndSet():
                return call_metadata(self._services, self._ledger_id, action)
            case ReadEntry():
                return self._read(action)
            case ForWriteBacks(attempt, for_writer):
                answer = self._writer_performer(attempt).perform(for_writer)
                if isinstance(answer, Coroutine):
                    return self._told(attempt, answer)
                return None if answer is None else ToldWriteBacks(attempt, answer)
            case AwaitConnections(attempt):
                return _connected(attempt, self._writer_performer(attempt))
            case Unclear(bookie_id, reason, silent):
                if silent:
                    self._services.bookie_failed(bookie_id)
                # Warn once per bookie, because a broken connection fails all its requests.
                if bookie_id not in self._warned:
                    self._warned.add(bookie_id)
                    _LOG.warning("ledger %d: recovery: bookie %s: %s", self._ledger_id, bookie_id, reason)
        return None

    async def _read(self, read: ReadEntry) -> EntryRead | EntryFailed:
        bookie_id, entry_id = read.bookie_id, read.entry_id
        try:
            connection = await self._pool.get(bookie_id)
            key = self._key if read.with_key else None
            entry_ids = range(entry_id, entry_id + 1)
            answers = await connection.read(self._ledger_id, entry_ids, flags=read.flags, key=key)
        except BookKeeperError as error:
            return EntryFailed(read.attempt, bookie_id, entry_id, error)
        return EntryRead(read.attempt, bookie_id, entry_id, answers[entry_id])

    def _writer_performer(self, attempt: int) -> WriterPerformer:
        if self._write_backs is None or attempt != self._attempt:
            if self._write_backs is not None:
                # Only one writer may listen to a connection.
                for task in self._writing:
                    task.cancel()
                self._write_backs.detach()
            assert self._machine.writer is not None
            self._attempt = attempt
            self._write_backs = WriterPerformer(
                self._machine.writer,
                self._services,
                self._pool,
                self._config,
                lambda event: self.runner.handle(ToldWriteBacks(attempt, event)),
                gathers=True,
            )
        return self._write_backs

    async def _told(self, attempt: int, work: Coroutine[Any, Any, WriterEvent | None]) -> ToldWriteBacks | None:
        task = asyncio.current_task()
        assert task is not None
        self._writing.add(task)
        try:
            event = await work
        finally:
            self._writing.discard(task)
        return None if event is None else ToldWriteBacks(attempt, event)


async def _connected(attempt: int, write_backs: WriterPerformer) -> WriteBacksReady:
    await write_backs.connections.connected()
    return WriteBacksReady(attempt)
