"""Makes connections over gRPC, in clear or with TLS."""

from __future__ import annotations

import asyncio
from typing import Final

from bk_spark.bookie.connection.client_tls import ClientTls
from bk_spark.bookie.connection.grpc import GrpcConnection
from bk_spark.bookie.connection.grpc_logins import GrpcDialogue
from bk_spark.bookie.connection.http2.channel import Channel
from bk_spark.bookie.connection.interface import ConnectionLimits
from bk_spark.bookie.connection.logins import Logins
from bk_spark.bookie.connection.pool import Connect, Resolver

#: Room in a message for everything but its entries.
_HEAD_BYTES: Final = 4096


def grpc_connects(resolve: Resolver, tls: ClientTls | None, logins: Logins | None = None) -> Connect[GrpcConnection]:
    """Return what makes connections to the gRPC addresses of ``resolve``, with ``tls`` and ``logins`` if given."""

    async def connect(bookie_id: str, limits: ConnectionLimits) -> GrpcConnection:
        host, port = await resolve(bookie_id)

        async def connect_to(protocol: asyncio.BufferedProtocol) -> None:
            if tls is None:
                await asyncio.get_running_loop().create_connection(lambda: protocol, host, port)
            else:
                await tls.connect_at_once(host, port, protocol, bookie_id)

        channel = Channel(
            connect_to,
            f"{host}:{port}",
            is_secure=tls is not None,
            max_message_bytes=limits.max_frame_bytes + _HEAD_BYTES,
        )
        connection = GrpcConnection(bookie_id, limits, channel)
        try:
            if logins is not None:
                dialogue = GrpcDialogue(connection)
                await dialogue.open()
                await logins.log_in(dialogue, host)
            # A channel connects by itself. This shows whether there is a bookie.
            await connection.probe()
        except BaseException:
            connection.close()
            await connection.wait_closed()
            raise
        return connection

    return connect
