"""Bookies in this process and a handle that writes to them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.interface import LedgerConnection
from bk_spark.bookie.connection.pool import ConnectionPool, connects_by
from bk_spark.bookie.connection.v2 import BookieConnection
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.bookie.writing.adv_write_handle import AdvWriteHandle
from bk_spark.bookie.writing.write_handle import WriteHandle
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.quorum import Quorum
from tests.support import patient_loop
from tests.support.connections import listens, live
from tests.support.ledgers import LEDGER, PASSWORD, ledger
from tests.support.served_bookie import ModelServices, ServedBookie

#: For tests in which a bookie hangs. In all others a busy machine is not to be taken for a hanging bookie.
GIVES_UP_SOON = {"add_timeout_ms": 300}
_PATIENCE_S = 60.0


class Stage:
    """Bookies b1 … b5, the first of which are the ensemble, and a handle."""

    def __init__(self, config: ClientConfig, quorum: Quorum, *, deferred_sync: bool = False) -> None:
        self.config = config
        self.bookies = [ServedBookie(f"b{number}") for number in range(1, 6)]
        self.services = ModelServices(self.bookies, ledger(quorum))
        self.pool_v3 = ConnectionPool(connects_by(BookieConnectionV3, self.services.address), config)
        self.pool: ConnectionPool[LedgerConnection] = self.pool_v3
        if config.use_v2_wire_protocol and not deferred_sync:
            self.pool = ConnectionPool(connects_by(BookieConnection, self.services.address), config)
        self.handle = WriteHandle(
            LEDGER,
            self.services.stored,
            DigestType.CRC32C,
            PASSWORD,
            self.services,  # type: ignore[arg-type]
            self.pool,
            config,
            pool_v3=self.pool_v3,
            deferred_sync=deferred_sync,
        )
        self.adv = AdvWriteHandle(self.handle, config)

    def __getitem__(self, number: int) -> ServedBookie:
        return self.bookies[number - 1]

    def connection(self, number: int) -> LedgerConnection:
        connection = self.pool.existing(f"b{number}")
        assert connection is not None
        return connection

    async def lose(self, number: int) -> None:
        """Break the connection to a bookie, and let the handle notice."""
        connection = self.connection(number)
        self[number].break_connections()
        await until(lambda: connection.closed)


Play = Callable[[Stage], Coroutine[Any, Any, None]]


PLAIN = Quorum(3, 3, 2)


def staged(
    quorum: Quorum = PLAIN, *, running: int = 5, deferred_sync: bool = False, **settings: Any
) -> Callable[[Play], Callable[[], None]]:
    """Run a test over a :class:`Stage` with the first ``running`` bookies running. Nothing may be left at its end."""
    config = ClientConfig(**{"add_timeout_ms": 60_000, "connect_timeout_ms": 30_000, **settings})

    def decorate(play: Play) -> Callable[[], None]:
        async def run() -> None:
            stage = Stage(config, quorum, deferred_sync=deferred_sync)
            for bookie in stage.bookies[:running]:
                await bookie.start()
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await stage.handle.start()
                    await play(stage)
                await stage.handle.abandon()
                assert not any(listens(connection) for connection in live(stage.pool, stage.bookies))
                assert stage.services.subscribers == []
            finally:
                await stage.handle.abandon()
                await stage.pool.close()
                await stage.pool_v3.close()
                for bookie in stage.bookies:
                    await bookie.stop()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, left

        @functools.wraps(play)
        def test() -> None:
            patient_loop.run(run())

        del test.__wrapped__  # type: ignore[attr-defined]
        return test

    return decorate


def entries(count: int, size: int = 10) -> Payloads:
    return Payloads.of([b"%08d" % number + bytes(size - 8) for number in range(count)])


async def until(condition: Callable[[], bool]) -> None:
    """Run the loop until ``condition`` holds. Its other peers run in the same loop."""
    while not condition():
        await asyncio.sleep(0.001)
