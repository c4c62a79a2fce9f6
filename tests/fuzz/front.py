"""A connection of the bookie's front end, given bytes without a socket."""

from __future__ import annotations

import asyncio
from typing import Any

from bookie_server.net.native.connection import NativeConnection
from bookie_server.net.native.server import NativeServer
from tests.fuzz.damage import parts_of
from tests.fuzz.guard import LIMIT_BYTES, bounded
from tests.fuzz.transport import Transport
from tests.support.front import HeldBookie

#: What is waiting is handled so many times.
_TURNS = 3


class Owner:
    """Lets every connection in. ``silent``: none may become active."""

    def __init__(self, *, silent: bool = False) -> None:
        self._silent = silent

    def joins(self, _: NativeConnection) -> bool:
        return True

    def active(self, _: NativeConnection) -> None:
        assert not self._silent, "it has logged in"

    def left(self, _: NativeConnection) -> None:
        pass


async def serve(bookie: HeldBookie, stream: bytes, sizes: list[int], owner: Owner, **parts: Any) -> None:
    """Give a new connection of ``bookie`` the bytes of ``stream``, in parts of these sizes, and then lose it.

    ``parts`` are those of the server. After each part the bookie answers what waits.
    """
    server = NativeServer(bookie, disk_space=lambda: (1, 2), **parts)  # type: ignore[arg-type]
    connection, transport = NativeConnection(server.shared, owner), Transport()
    connection.connection_made(transport)
    for part in parts_of(stream, sizes):
        if transport.ended:
            break
        with bounded(8 * LIMIT_BYTES):
            room = connection.get_buffer(-1)
            room[: len(part)] = part
            connection.buffer_updated(len(part))
        for _ in range(_TURNS):
            connection.handle_backlog()
            bookie.answer()
            await asyncio.sleep(0)
    connection.connection_lost(None)
    for _ in range(_TURNS):
        await asyncio.sleep(0)
