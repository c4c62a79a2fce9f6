"""What connections of all protocols do with their transports: prepare the socket, and tell why TLS ended."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final

from bk_spark.bookie.tls.reasons import reason_of

_CLOSED_EARLY: Final = (
    "the bookie closed it after the handshake, perhaps because it requires a certificate or does not accept this one "
    "(tlsClientAuthentication); its log says why"
)


def prepare(transport: asyncio.Transport) -> None:
    """Send small requests at once, and leave what the socket does not take in the connection's own queue."""
    transport.set_write_buffer_limits(high=0)
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def tls_problem(transport: asyncio.Transport | None, error: Exception | None, *, has_heard: bool) -> str | None:
    """Return why the connection was lost, if the bookie may have refused the client's certificate; None otherwise.

    With TLS 1.3 the refusal comes after the handshake, so it looks like a connection that breaks before an answer.
    """
    if transport is None or transport.get_extra_info("ssl_object") is None:
        return None
    if isinstance(error, ssl.SSLError):
        return reason_of(error)
    return None if has_heard else _CLOSED_EARLY
