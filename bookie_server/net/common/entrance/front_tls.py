"""How a connection to a front end becomes TLS.

The first frame of a connection may be START_TLS, in clear. It is taken from the socket alone: whatever else came in
clear stays in the kernel, where only the handshake finds it, and fails. So nobody on the way can put a request before
the handshake (STARTTLS injection). For the same reason a connection that began with another request stays in clear.

Except for the first message of a login by SASL, which is empty. Java's client sends it in clear although it logs in
inside TLS: behind START_TLS, but before it if the thread that connects is interrupted between its two steps. It
sends both without waiting for an answer.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, cast

from bk_spark.bookie.tls.contexts import TlsContexts
from bk_spark.bookie.tls.reasons import reason_of
from bk_spark.bookie.tls.transport import BUFFER_BYTES, secure
from bk_spark.protocol.wire.auth_frames import begins_login
from bk_spark.protocol.wire.framing import LENGTH_BYTES, frame_bytes
from bk_spark.protocol.wire.start_tls import (
    HANDSHAKE_RECORD,
    MAX_BYTES,
    start_tls_answer,
    start_tls_txn_id,
    wanted_bytes,
)
from bookie_server.net.common.entrance.handshakes import Handshakes
from bookie_server.net.common.sparing_log import SparingLog

_HANDSHAKE_TIMEOUT_S: Final = 10.0
#: How long START_TLS may come behind the beginning of a login. Who logs in in clear waits for so long.
LOGIN_ALONE_S: Final = 0.05
#: Room for the beginning of a login and START_TLS.
GREETING_BYTES: Final = 2 * MAX_BYTES


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
        #: Handshakes that succeeded, that failed, and connections that came in clear and were refused.
        self.handshakes = 0
        self.failed_handshakes = 0
        self.refused_connections = 0
        self.log = SparingLog()
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._steps = Handshakes()

    @property
    def handshake_timeout_s(self) -> float:
        """The time for a handshake, and before it for its first message."""
        return _HANDSHAKE_TIMEOUT_S

    async def close(self) -> None:
        """End the thread of the handshakes, after all connections."""
        await self._steps.close()

    async def secure(self, raw: asyncio.Transport, protocol: asyncio.BufferedProtocol, timeout_s: float) -> None:
        """Do the handshake over ``raw``, as :func:`bk_spark.bookie.tls.transport.secure` does."""
        if self.contexts.is_due:
            await asyncio.to_thread(self.contexts.refresh)
        await secure(
            raw,
            protocol,
            self.contexts.context,
            self._buffer,
            server_hostname=None,
            timeout_s=timeout_s,
            steps=self._steps,
        )
        self.handshakes += 1


def wanted_behind_login(beginning: bytes) -> int:
    """Return how many bytes must have come to tell whether START_TLS is behind a first frame, which has come."""
    size = frame_bytes(beginning)
    return size + wanted_bytes(beginning[size:])


class Greeting:
    """The beginning of one connection.

    Parameters
    ----------
    front
        What it came to.
    accepted
        Its socket. It has sent enough; see wanted_bytes.
    logs_in
        Whether clients log in by messages.
    """

    def __init__(self, front: FrontTls, accepted: socket.socket, *, logs_in: bool) -> None:
        self._front = front
        self._socket = accepted
        try:
            self.peer = str(accepted.getpeername())
            beginning = accepted.recv(GREETING_BYTES, socket.MSG_PEEK)
        except OSError:  # it is gone: whoever reads next finds out
            self.peer, beginning = "?", b""
        #: The beginning of a login that came before anything else.
        self._login = _login_in(beginning) if logs_in else b""
        rest = beginning[len(self._login) :]
        #: Whether it has begun a login, and what comes next is not known yet.
        self.may_ask_for_tls = bool(self._login) and len(rest) < wanted_bytes(rest)
        self._first = _first_frame(rest)
        self._txn_id = start_tls_txn_id(self._first) if self._first else None

    @property
    def asks_for_tls(self) -> bool:
        """Whether the first frame is START_TLS, or the first behind the beginning of a login."""
        return self._txn_id is not None

    def refuse_in_clear(self) -> bool:
        """Return whether its requests must not be obeyed, because they come in clear. If so, count and log it."""
        if not self._front.required:
            return False
        self._front.refused_connections += 1
        self._front.log.tell("connection from %s refused: it is not encrypted, and tlsRequired=true", self.peer)
        return True

    def grant(self) -> bool:
        """Take START_TLS from the socket, and grant it. Return whether the peer is still there."""
        assert self._txn_id is not None
        try:
            self._socket.recv(len(self._login) + len(self._first))
            self._socket.send(start_tls_answer(self._txn_id))  # nothing was sent before, so there is room
        except OSError as error:
            self.failed(error)
            return False
        return True

    async def secure(
        self, protocol: asyncio.BufferedProtocol, on_early_login: Callable[[bytes], None] | None = None
    ) -> None:
        """Do the handshake, after :meth:`grant`. Then ``protocol`` is connected. If it fails, the socket is closed.

        With ``on_early_login`` the beginning of a login that came in clear is passed to it.
        """
        try:
            if self._login and on_early_login is not None:
                on_early_login(self._login)
            elif on_early_login is not None:
                async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
                    await self._take_early_login(on_early_login)
            raw, _ = await asyncio.get_running_loop().connect_accepted_socket(_NotReading, self._socket)
            await self._front.secure(raw, protocol, _HANDSHAKE_TIMEOUT_S)
        except (OSError, TimeoutError) as error:
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """Count and log a handshake that failed."""
        self._front.failed_handshakes += 1
        self._front.log.tell("connection from %s closed: TLS handshake failed: %s", self.peer, reason_of(error))

    async def _take_early_login(self, on_early_login: Callable[[bytes], None]) -> None:
        """Take the beginning of a login from the socket, if that comes before the handshake."""
        wanted, beginning = 1, b""
        while len(beginning) < wanted:
            beginning = await self._look(wanted)
            if len(beginning) < wanted or beginning[0] == HANDSHAKE_RECORD:
                return
            wanted = wanted_bytes(beginning)
        login = _login_in(beginning)
        if login:
            self._socket.recv(len(login))
            on_early_login(login)

    async def _look(self, wanted: int) -> bytes:
        """Wait for this many bytes, or the end. Return what has arrived, and leave it in the socket."""
        loop, fd = asyncio.get_running_loop(), self._socket.fileno()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
        readable = asyncio.Event()
        loop.add_reader(fd, readable.set)
        try:
            await readable.wait()
            return self._socket.recv(GREETING_BYTES, socket.MSG_PEEK)
        finally:
            loop.remove_reader(fd)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


def _first_frame(beginning: bytes) -> bytes:
    """Return the first frame, if it is whole and short enough. Else nothing."""
    size = wanted_bytes(beginning)
    return beginning[:size] if len(beginning) >= size > LENGTH_BYTES and frame_bytes(beginning) == size else b""


def _login_in(beginning: bytes) -> bytes:
    """Return the first frame, if it begins a login. Else nothing."""
    first = _first_frame(beginning)
    return first if first and begins_login(first[LENGTH_BYTES:]) else b""


class _NotReading(asyncio.BufferedProtocol):
    """Leaves everything in the socket until the handshake begins."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).pause_reading()
