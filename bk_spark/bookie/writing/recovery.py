"""Recovering a ledger: drives :class:`bk_spark.protocol.ledger.recovery.LedgerRecovery`, then closes it."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.base import LedgerConnection
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.bookie.metadata.ledger_store import StoredMetadata
from bk_spark.bookie.services import ClusterServices
from bk_spark.bookie.tasks import TaskSet
from bk_spark.bookie.writing.write_handle import RecoveryStart, WriteHandle
from bk_spark.protocol.codes import LAST_ENTRY, Code, DigestType, FlagV2
from bk_spark.protocol.entries.digest import digest_function, master_key
from bk_spark.protocol.entries.entry import Entry, verify_entry
from bk_spark.protocol.errors import (
    BookKeeperError,
    DigestMismatchError,
    MetadataConflictError,
    OutcomeUnknownError,
    PeerError,
)
from bk_spark.protocol.ledger.recovery import (
    EndFound,
    FenceBookie,
    FencingRead,
    LedgerRecovery,
    LengthRead,
    RecoveryFailed,
    StartWriteBack,
    WriteBack,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.quorum import Answer
from bk_spark.protocol.wire.code_errors import error_of

_LOG = logging.getLogger(__name__)
_ATTEMPTS: Final = 5


async def recover_ledger(
    ledger_id: int,
    digest_type: DigestType,
    password: bytes,
    services: ClusterServices,
    pool: ConnectionPool[LedgerConnection],
    config: ClientConfig,
) -> LedgerMetadata:
    """Fence and close a ledger; its final metadata. A closed one is left as it is.

    ``pool`` must serve nobody else: v2 answers carry no request id, so those to a writer of the same
    ledger could be taken for ours. Raises EntryUnknownError where the end cannot be proven, and
    NotEnoughBookiesError; the ledger then stays IN_RECOVERY and can be recovered again.
    """
    for _ in range(_ATTEMPTS):
        stored = await services.update(
            ledger_id, lambda found: found.in_recovery() if found.state is LedgerState.OPEN else None
        )
        if stored.metadata.state is LedgerState.CLOSED:
            return stored.metadata
        attempt = _Recovery(ledger_id, stored, digest_type, password, services, pool, config)
        try:
            return await attempt.run()
        except MetadataConflictError:
            # Somebody else changed the ledger's metadata: begin again from what it is now.
            continue
        finally:
            await attempt.stop()
    raise MetadataConflictError("the ledger's metadata keeps changing", ledger_id=ledger_id)


class _Recovery:
    def __init__(
        self,
        ledger_id: int,
        stored: StoredMetadata,
        digest_type: DigestType,
        password: bytes,
        services: ClusterServices,
        pool: ConnectionPool[LedgerConnection],
        config: ClientConfig,
    ) -> None:
        self._ledger_id = ledger_id
        self._stored = stored
        self._digest_type = digest_type
        self._password = password
        self._key = master_key(password)
        self._digest = digest_function(digest_type, password)
        self._services = services
        self._pool = pool
        self._config = config
        self._machine = LedgerRecovery(ledger_id, stored.metadata)
        self._tasks = TaskSet(f"recovery of ledger {ledger_id}", self._fail)
        self._warned: set[str] = set()
        self._writer: WriteHandle | None = None
        #: Write-backs in order; None marks the end.
        self._to_write: asyncio.Queue[StartWriteBack | WriteBack | EndFound | RecoveryFailed] = asyncio.Queue()

    async def run(self) -> LedgerMetadata:
        self._run()
        while True:
            match await self._to_write.get():
                case StartWriteBack(last_entry_id, length):
                    self._writer = WriteHandle(
                        self._ledger_id,
                        self._stored,
                        self._digest_type,
                        self._password,
                        self._services,
                        self._pool,
                        self._config,
                        recovery=RecoveryStart(last_entry_id, length),
                    )
                    await self._writer.start()
                case WriteBack(payloads, last_add_confirmed):
                    assert self._writer is not None
                    written_back = await self._writer.append_many(payloads, last_add_confirmed)
                    self._machine.on_written_back(written_back)
                    self._run()
                case EndFound(last_entry_id):
                    return await self._close(last_entry_id)
                case RecoveryFailed(error):
                    raise error

    async def stop(self) -> None:
        await self._tasks.cancel()
        if self._writer is not None:
            await self._writer.abandon()

    async def _close(self, last_entry_id: int) -> LedgerMetadata:
        writer = self._writer
        assert writer is not None
        written_back = await writer.flush()
        assert written_back == last_entry_id, (written_back, last_entry_id)
        closed = writer.metadata.closed(last_entry_id, writer.length)
        try:
            stored = await self._services.write(self._ledger_id, closed, self._stored.version)
        except (MetadataConflictError, OutcomeUnknownError) as error:
            found = await self._services.read_latest(self._ledger_id)
            if found.metadata.state is LedgerState.CLOSED:
                return found.metadata
            raise MetadataConflictError("the metadata changed during recovery", ledger_id=self._ledger_id) from error
        _LOG.info("ledger %d: recovered, last entry %d", self._ledger_id, last_entry_id)
        return stored.metadata

    def _run(self) -> None:
        while actions := self._machine.take_actions():
            for action in actions:
                match action:
                    case FenceBookie(bookie_id):
                        self._tasks.spawn(self._fence(bookie_id))
                    case FencingRead(bookie_id, entry_id):
                        self._tasks.spawn(self._read(bookie_id, entry_id, FlagV2.FENCING | FlagV2.HIGH_PRIORITY))
                    case LengthRead(bookie_id, entry_id):
                        self._tasks.spawn(self._read(bookie_id, entry_id, FlagV2.NONE))
                    case _:
                        self._to_write.put_nowait(action)

    async def _fence(self, bookie_id: str) -> None:
        answer, entry = await self._ask(bookie_id, LAST_ENTRY, FlagV2.FENCING)
        self._machine.on_fence_answer(bookie_id, answer, entry)
        self._run()

    async def _read(self, bookie_id: str, entry_id: int, flags: FlagV2) -> None:
        answer, entry = await self._ask(bookie_id, entry_id, flags)
        self._machine.on_read_answer(bookie_id, entry_id, answer, entry)
        self._run()

    async def _ask(self, bookie_id: str, entry_id: int, flags: FlagV2) -> tuple[Answer, Entry | None]:
        """What the bookie knows of the entry. Whatever is not a clear yes or no is unknown."""
        try:
            async with asyncio.timeout(self._config.read_timeout_ms / 1000):
                connection = await self._pool.get(bookie_id)
                key = self._key if flags & FlagV2.FENCING else None
                answers = await connection.read(self._ledger_id, range(entry_id, entry_id + 1), flags=flags, key=key)
            answer = answers[entry_id]
            if answer.code in (Code.NO_ENTRY, Code.NO_LEDGER):
                return Answer.ABSENT, None
            if answer.code is Code.UNAUTHORIZED:
                raise error_of(
                    answer.code,
                    "recovery",
                    ledger_id=self._ledger_id,
                    entry_id=entry_id,
                    bookie_id=bookie_id,
                    with_key=key is not None,
                )
            if answer.code is not Code.OK:
                self._warn(bookie_id, f"answered {answer.code.name}")
                return Answer.UNKNOWN, None
            expected = None if entry_id == LAST_ENTRY else entry_id
            entry = verify_entry(answer.stored, self._ledger_id, expected, self._digest_type, self._digest)
            return Answer.PRESENT, entry
        except (PeerError, TimeoutError) as error:
            self._warn(bookie_id, str(error) or "no answer in time")
            if not isinstance(error, DigestMismatchError):
                self._services.bookie_failed(bookie_id)
            return Answer.UNKNOWN, None
        except BookKeeperError as error:
            self._fail(error)
            return Answer.UNKNOWN, None

    def _warn(self, bookie_id: str, what: str) -> None:
        """Once per bookie: a broken connection fails all that was asked there."""
        if bookie_id not in self._warned:
            self._warned.add(bookie_id)
            _LOG.warning("ledger %d: recovery: bookie %s: %s", self._ledger_id, bookie_id, what)

    def _fail(self, error: BookKeeperError) -> None:
        self._to_write.put_nowait(RecoveryFailed(error))
