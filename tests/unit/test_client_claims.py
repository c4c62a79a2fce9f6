"""Whether the id of a new ledger was used before, asked of a bookie that may know it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from bk_spark.bookie.connection.interface import ControlConnection
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.bookie.writing.forcing import LacSender
from bk_spark.protocol.codes import Code, DigestType
from bk_spark.protocol.entries.digest import master_key
from bk_spark.protocol.errors import UnauthorizedError
from bk_spark.protocol.quorum import Quorum
from bookie_server.bookie import Bookie
from tests.support.running_storage import OTHER_KEY, Place, delete_ledger, in_loop, running, stored


class Direct:
    """A pool whose only bookie is in this process."""

    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie

    async def get(self, bookie_id: str) -> Direct:
        return self

    async def write_lac(self, ledger_id: int, packet: bytes, key: bytes) -> Code:
        return await self._bookie.write_lac(packet, key)


@in_loop
async def test_an_id_is_used_if_its_bookie_would_refuse_the_ledgers_entries(tmp_path: Path) -> None:
    key = master_key(b"secret")
    async with running(Place.make(tmp_path / "bookie")) as here:
        pool = cast(ConnectionPool[ControlConnection], cast(Any, Direct(here.bookie)))
        sender = LacSender(DigestType.CRC32C, b"secret", pool, 30_000)

        async def claim(ledger_id: int) -> None:
            assert await sender.takes(ledger_id, "b1") == (ledger_id == 1)
            await sender.claim(ledger_id, Quorum(1, 1, 1), ["b1"], pytest.fail)

        await claim(1)
        await claim(1)
        assert await here.add(stored(1, 0), key=key) == [Code.OK]
        # Whoever fences an id that comes later, with a password of their own.
        assert await here.bookie.fence(2, OTHER_KEY) is Code.OK
        with pytest.raises(UnauthorizedError, match="UNAUTHORIZED"):
            await claim(2)
        # No metadata has the id, so garbage collection removes what the bookie knows. The fence is remembered.
        await delete_ledger(here.upkeep, 2)
        with pytest.raises(UnauthorizedError, match="NO_LEDGER: it had a ledger with this id"):
            await claim(2)
        assert await here.add(stored(2, 0), key=key) == [Code.FENCED]
