"""Makes connections over gRPC, in clear or with TLS."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc

from bk_spark.bookie.connection.client_tls import ClientTls
from bk_spark.bookie.connection.grpc import GrpcConnection
from bk_spark.bookie.connection.grpc_logins import GrpcDialogue
from bk_spark.bookie.connection.interface import ConnectionLimits
from bk_spark.bookie.connection.logins import Logins
from bk_spark.bookie.connection.pool import Connect, Resolver
from bk_spark.protocol.errors import BookieUnavailableError, TlsError

#: Room in a message for everything but its entries.
_HEAD_BYTES: Final = 4096
#: Bytes of answers that gRPC receives before Python asks for them: some reads.
_WINDOW_BYTES: Final = 4 * 1024 * 1024


def grpc_connects(resolve: Resolver, tls: ClientTls | None, logins: Logins | None = None) -> Connect[GrpcConnection]:
    """Return what makes connections to the gRPC addresses of ``resolve``, with ``tls`` and ``logins`` if given."""

    async def connect(bookie_id: str, limits: ConnectionLimits) -> GrpcConnection:
        host, port = await resolve(bookie_id)
        options = [
            ("grpc.max_receive_message_length", limits.max_frame_bytes + _HEAD_BYTES),
            ("grpc.max_send_message_length", -1),
            # Connections of different clients, and of recoveries, are separate.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
            # Answers come while Python handles those before. Otherwise gRPC's measuring keeps the window small.
            ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
            ("grpc.http2.bdp_probe", 0),
            ("grpc.enable_http_proxy", 0),
        ]
        credentials = None
        if tls is not None:
            found = await asyncio.to_thread(tls.pem)
            credentials = grpc.ssl_channel_credentials(found.trusted, found.key, found.chain)
        connection = GrpcConnection(bookie_id, limits, _channel(f"{host}:{port}", credentials, options))
        try:
            if logins is not None:
                dialogue = GrpcDialogue(connection)
                await dialogue.open()
                await logins.log_in(dialogue, host)
            # A channel connects by itself. This shows whether there is a bookie.
            await connection.probe()
        except BookieUnavailableError as error:
            await _closed(connection)
            if tls is not None and _is_about_tls(error.message):
                raise TlsError(f"no TLS connection: {error.message}", bookie_id=bookie_id) from None
            raise
        except BaseException:
            await _closed(connection)
            raise
        return connection

    return connect


def _channel(target: str, credentials: Any, options: list[tuple[str, int]]) -> Any:
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, credentials, options=options)


async def _closed(connection: GrpcConnection) -> None:
    connection.close()
    await connection.wait_closed()


def _is_about_tls(text: str) -> bool:
    return any(word in text.lower() for word in ("ssl", "tls", "handshake", "certificate"))
