"""What connections of all protocols do with their transports: prepare sockets, send in pieces, tell why TLS ended."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Iterable
from typing import Final

from bk_spark.bookie.tls.reasons import reason_of
from bk_spark.protocol.entries.digest import Buffer

#: Size of a piece for the transport. It copies bytes that the socket does not take, so pieces stay small.
_SEND_BYTES: Final = 256 * 1024
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


class SendQueue:
    """Buffers that wait for the transport, in order. They are not copied, unless small ones are joined."""

    def __init__(self) -> None:
        self._buffers: deque[memoryview] = deque()

    def __bool__(self) -> bool:
        return bool(self._buffers)

    def extend(self, buffers: Iterable[Buffer]) -> None:
        """Add buffers, which must not change afterwards."""
        self._buffers.extend(memoryview(buffer) for buffer in buffers)

    def clear(self) -> None:
        """Drop everything."""
        self._buffers.clear()

    def next_piece(self) -> memoryview:
        """Take the next piece to write. The queue must not be empty."""
        buffers = self._buffers
        piece = buffers.popleft()
        if len(piece) > _SEND_BYTES:
            buffers.appendleft(piece[_SEND_BYTES:])
            return piece[:_SEND_BYTES]
        if buffers and len(piece) + len(buffers[0]) <= _SEND_BYTES:
            size, small = len(piece), [piece]
            while buffers and size + len(buffers[0]) <= _SEND_BYTES:
                size += len(buffers[0])
                small.append(buffers.popleft())
            return memoryview(b"".join(small))
        return piece


def tls_problem(transport: asyncio.Transport | None, error: Exception | None, *, has_heard: bool) -> str | None:
    """Return why the connection was lost, if the bookie may have refused the client's certificate; None otherwise.

    With TLS 1.3 the refusal comes after the handshake, so it looks like a connection that breaks before an answer.
    """
    if transport is None or transport.get_extra_info("ssl_object") is None:
        return None
    if isinstance(error, ssl.SSLError):
        return reason_of(error)
    return None if has_heard else _CLOSED_EARLY
