"""FORCE_LEDGER and WRITE_LAC at the bookies of a writer's ensemble: both exist over v3 only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.protocol.codes import Code, DigestType
from bk_spark.protocol.entries.digest import digest_function, master_key
from bk_spark.protocol.entries.entry import pack_lac
from bk_spark.protocol.errors import BookieTimeoutError, BookKeeperError
from bk_spark.protocol.ledger.explicit_lac import ExplicitLac
from bk_spark.protocol.ledger.writer import LedgerWriter
from bk_spark.protocol.wire.code_errors import error_of

_LOG = logging.getLogger(__name__)


async def force_over(connection: BookieConnectionV3, ledger_id: int, timeout_ms: int) -> None:
    """Have a bookie sync what it took of the ledger. Raises PeerError."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            code = await connection.force(ledger_id)
    except TimeoutError as error:
        raise BookieTimeoutError(
            f"force ledger: no answer in {timeout_ms} ms", ledger_id=ledger_id, bookie_id=connection.bookie_id
        ) from error
    if code is not Code.OK:
        raise error_of(code, "force ledger", ledger_id=ledger_id, bookie_id=connection.bookie_id)


async def force_all(
    pool: ConnectionPool[BookieConnectionV3], ledger_id: int, bookies: Iterable[str], timeout_ms: int
) -> None:
    """Have all ``bookies`` sync what they took of the ledger. Raises the first error, once all have answered."""

    async def force(bookie_id: str) -> None:
        await force_over(await pool.get(bookie_id), ledger_id, timeout_ms)

    for result in await asyncio.gather(*map(force, bookies), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


class LacPublisher:
    """Tells readers of an idle writer's LAC, every ``explicitLacInterval``."""

    def __init__(
        self,
        writer: LedgerWriter,
        digest_type: DigestType,
        password: bytes,
        pool: ConnectionPool[BookieConnectionV3],
        config: ClientConfig,
    ) -> None:
        self.told = ExplicitLac()
        self._writer = writer
        self._digest = digest_function(digest_type, password)
        self._key = master_key(password)
        self._pool = pool
        self._interval_s = config.explicit_lac_interval_ms / 1000
        self._timeout_s = config.add_timeout_ms / 1000

    async def run(self) -> None:
        """Until the writer ends or this is cancelled."""
        while self._writer.error is None:
            await asyncio.sleep(self._interval_s)
            lac = self._writer.last_add_confirmed
            if self.told.due(lac) and await self._tell(lac):
                self.told.on_told(lac)

    async def _tell(self, lac: int) -> bool:
        """Whether an ack quorum took it. Failures do no harm: readers know the LAC later."""
        quorum, ensemble = self._writer.metadata.quorum, self._writer.ensemble
        packet = pack_lac(self._writer.ledger_id, lac, self._digest)
        taken = await asyncio.gather(*(self._tell_one(ensemble[index], packet) for index in quorum.write_set(lac)))
        return sum(taken) >= quorum.ack_quorum_size

    async def _tell_one(self, bookie_id: str, packet: bytes) -> bool:
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._pool.get(bookie_id)
                code = await connection.write_lac(self._writer.ledger_id, packet, self._key)
        except (BookKeeperError, TimeoutError) as error:
            _LOG.info("ledger %d: bookie %s did not take the LAC: %r", self._writer.ledger_id, bookie_id, error)
            return False
        return code is Code.OK
