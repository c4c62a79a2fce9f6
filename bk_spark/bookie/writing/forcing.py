"""FORCE_LEDGER and WRITE_LAC at the bookies of a writer's ensemble. Both exist only over v3."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from bk_spark.bookie.connection.interface import ControlConnection
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.bookie.runners import AsyncRunner
from bk_spark.protocol.codes import NO_ENTRY, Code, DigestType
from bk_spark.protocol.entries.digest import digest_function, master_key
from bk_spark.protocol.entries.entry import pack_lac
from bk_spark.protocol.errors import BookieTimeoutError, BookKeeperError
from bk_spark.protocol.ledger.claiming import (
    ChooseLast,
    ClaimEvent,
    LedgerClaim,
    PasswordTold,
    TellPassword,
    is_used_before,
)
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.wire.code_errors import error_of

_LOG = logging.getLogger(__name__)


async def force_over(connection: ControlConnection, ledger_id: int, timeout_ms: int) -> None:
    """Make a bookie sync its entries of the ledger. Raises PeerError."""
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
    pool: ConnectionPool[ControlConnection], ledger_id: int, bookies: Iterable[str], timeout_ms: int
) -> None:
    """Make all ``bookies`` sync their entries of the ledger. Raises the first error, once all have answered."""

    async def force(bookie_id: str) -> None:
        await force_over(await pool.get(bookie_id), ledger_id, timeout_ms)

    for result in await asyncio.gather(*map(force, bookies), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


class LacSender:
    """Sends WRITE_LAC for one ledger."""

    def __init__(
        self,
        digest_type: DigestType,
        password: bytes,
        pool: ConnectionPool[ControlConnection],
        timeout_ms: int,
    ) -> None:
        self._digest = digest_function(digest_type, password)
        self._key = master_key(password)
        self._pool = pool
        self._timeout_s = timeout_ms / 1000

    async def send(self, ledger_id: int, bookie_id: str, last_add_confirmed: int) -> bool:
        """Send a LAC. Return whether the bookie took it."""
        return await self._send(ledger_id, bookie_id, last_add_confirmed) is Code.OK

    async def claim(
        self, ledger_id: int, quorum: Quorum, ensemble: Sequence[str], choose_last: Callable[[str], None]
    ) -> tuple[str, ...]:
        """Tell the bookies of a new ledger its password: see :class:`LedgerClaim`, also for result and errors."""

        async def told(bookie_id: str) -> PasswordTold:
            return PasswordTold(bookie_id, await self._send(ledger_id, bookie_id, NO_ENTRY))

        def perform(action: TellPassword | ChooseLast) -> Coroutine[Any, Any, PasswordTold] | None:
            if isinstance(action, TellPassword):
                return told(action.bookie_id)
            choose_last(action.bookie_id)
            return None

        machine = LedgerClaim(ledger_id, quorum, ensemble)
        runner = AsyncRunner[TellPassword | ChooseLast, ClaimEvent, tuple[str, ...]](
            machine, perform, what=f"claim of ledger {ledger_id}"
        )
        return await runner.complete()

    async def takes(self, ledger_id: int, bookie_id: str) -> bool:
        """Tell a bookie the ledger's password. Return whether it took it. If it says nothing, it may know another."""
        code = await self._send(ledger_id, bookie_id, NO_ENTRY)
        if is_used_before(code):
            _LOG.warning("ledger %d: bookie %s knows it with another password", ledger_id, bookie_id)
        return code is Code.OK

    async def _send(self, ledger_id: int, bookie_id: str, last_add_confirmed: int) -> Code | None:
        packet = pack_lac(ledger_id, last_add_confirmed, self._digest)
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._pool.get(bookie_id)
                return await connection.write_lac(ledger_id, packet, self._key)
        except (BookKeeperError, TimeoutError) as error:
            _LOG.info("ledger %d: bookie %s did not take the LAC: %r", ledger_id, bookie_id, error)
            return None
