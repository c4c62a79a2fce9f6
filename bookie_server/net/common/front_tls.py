"""How a connection to a front end becomes TLS.

The first frame of a connection may be START_TLS, in clear. It is taken from the socket alone: whatever else came in
clear stays in the kernel, where only the handshake finds it, and fails. So nobody on the way can put a request before
the handshake (STARTTLS injection). For the same reason a connection that began with another request stays in clear.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import Final, cast

from bk_spark.bookie.tls.contexts import TlsContexts
from bk_spark.bookie.tls.reasons import reason_of
from bk_spark.bookie.tls.transport import BUFFER_BYTES, secure
from bk_spark.protocol.wire.framing import frame_bytes
from bk_spark.protocol.wire.start_tls import start_tls_answer, start_tls_txn_id, wanted_bytes
from bookie_server.net.common.newcomers import LOOKED_AT_BYTES

_LOG: Final = logging.getLogger(__name__)
_HANDSHAKE_TIMEOUT_S: Final = 10.0
#: At most one line of a kind is logged in this time, so that a flood does not fill the disk.
_TELL_EVERY_S: Final = 1.0


class FrontTls:
    """Belongs to the event loop.

    Parameters
    ----------
    contexts
        The bookie's certificates.
    required
        Whether requests in clear are refused.
    """

    def __init__(self, contexts: TlsContexts, *, required: bool) -> None:
        self.contexts = contexts
        self.required = required
        #: Handshakes that failed, and connections that came in clear and were refused.
        self.failed_handshakes = 0
        self.refused_connections = 0
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        #: For each kind of line: when one was logged, and how many were not since then.
        self._told: dict[str, tuple[float, int]] = {}

    def greeting(self, accepted: socket.socket) -> Greeting:
        """Look at what the peer of ``accepted`` has sent, which suffices (see wanted_bytes)."""
        greeting = Greeting(self, accepted)
        if greeting.is_refused:
            self.refused_connections += 1
            self.tell("connection from %s refused: it is not encrypted, and tlsRequired=true", greeting.peer)
        return greeting

    def tell(self, line: str, *values: object) -> None:
        """Log a line about a peer, unless one of this kind was logged just now."""
        told_at, untold = self._told.get(line, (-_TELL_EVERY_S, 0))
        if time.monotonic() - told_at < _TELL_EVERY_S:
            self._told[line] = told_at, untold + 1
            return
        more = f" ({untold} more such connections since the last such line)" if untold else ""
        self._told[line] = time.monotonic(), 0
        _LOG.warning(line + more, *values)


class Greeting:
    """The beginning of one connection."""

    def __init__(self, front: FrontTls, accepted: socket.socket) -> None:
        self._front = front
        self._socket = accepted
        try:
            self.peer = str(accepted.getpeername())
            first = accepted.recv(LOOKED_AT_BYTES, socket.MSG_PEEK)
        except OSError:  # it is gone: whoever reads next finds out
            self.peer, first = "?", b""
        size = wanted_bytes(first)
        self._first = first[:size] if len(first) >= size and frame_bytes(first) == size else b""
        self._txn_id = start_tls_txn_id(self._first) if self._first else None

    @property
    def asks_for_tls(self) -> bool:
        return self._txn_id is not None

    @property
    def is_refused(self) -> bool:
        """Whether its requests must not be obeyed."""
        return self._front.required and not self.asks_for_tls

    async def secure(self, protocol: asyncio.BufferedProtocol) -> None:
        """Grant START_TLS, and do the handshake. Then ``protocol`` is connected. If it fails, the socket is closed."""
        front = self._front
        assert self._txn_id is not None
        try:
            self._socket.recv(len(self._first))
            self._socket.send(start_tls_answer(self._txn_id))  # nothing was sent before, so there is room
            if front.contexts.is_due:
                await asyncio.to_thread(front.contexts.refresh)
            raw, _ = await asyncio.get_running_loop().connect_accepted_socket(_NotReading, self._socket)
            await secure(
                raw,
                protocol,
                front.contexts.context,
                front.buffer,
                server_hostname=None,
                timeout_s=_HANDSHAKE_TIMEOUT_S,
            )
        except (OSError, TimeoutError) as error:
            front.failed_handshakes += 1
            front.tell("connection from %s closed: TLS handshake failed: %s", self.peer, reason_of(error))


class _NotReading(asyncio.BufferedProtocol):
    """Leaves everything in the socket until the handshake begins."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).pause_reading()
