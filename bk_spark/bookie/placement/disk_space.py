"""Disk space as reported by the bookies (GET_BOOKIE_INFO over v3, which Apache's bookies support too; or gRPC)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from bk_spark.bookie.connection.interface import ControlConnection
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.protocol.errors import BookieTimeoutError, BookKeeperError
from bk_spark.protocol.wire.v3.wire_v3 import BookieInfo

#: Bookies asked in parallel.
_AT_ONCE: Final = 64


async def disk_space(
    bookies: Iterable[str], pool: ConnectionPool[ControlConnection], timeout_ms: int
) -> dict[str, BookieInfo | BookKeeperError]:
    """Return the answer of each bookie, or its error. Each is asked for at most ``timeout_ms``, and many at
    once."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def ask(bookie_id: str) -> BookieInfo | BookKeeperError:
        try:
            async with slots, asyncio.timeout(timeout_ms / 1000):
                return await (await pool.get(bookie_id)).bookie_info()
        except TimeoutError:
            return BookieTimeoutError(f"no answer within {timeout_ms} ms", bookie_id=bookie_id)
        except BookKeeperError as error:
            return error

    asked = list(bookies)
    return dict(zip(asked, await asyncio.gather(*map(ask, asked)), strict=True))
