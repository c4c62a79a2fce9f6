"""TLS between a protocol and its socket's transport.

asyncio has such a layer, too. It reports fewer bytes than wait to be sent, keeps 256 KiB for each connection, and does
not send the alert that tells the peer why a handshake failed. Here a protocol gets exact numbers, all connections of
an event loop share one buffer, and the alert is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterable
from typing import Any, Final, Protocol, cast

#: Received bytes, still encrypted, of one receive.
BUFFER_BYTES: Final = 256 * 1024
#: How long the peer of a failed handshake has to read the alert.
_ALERT_TIMEOUT_S: Final = 1.0

Data = bytes | bytearray | memoryview


class Steps(Protocol):
    """Computes the answer to a client's first message outside of the event loop: it needs the private key, which costs
    most."""

    def take(self, handshake: TlsTransport) -> None:
        """Call ``step`` in any thread, then ``stepped`` in the event loop."""

    def leave(self, handshake: TlsTransport) -> None:
        """The connection has ended: no step is wanted."""

    def failed(self, handshake: TlsTransport) -> float:
        """The handshake has failed. Return how long its peer waits until it is told, in seconds."""


async def secure(
    raw: asyncio.Transport,
    protocol: asyncio.BufferedProtocol,
    context: ssl.SSLContext,
    buffer: memoryview,
    *,
    server_hostname: str | None,
    timeout_s: float,
    steps: Steps | None = None,
) -> None:
    """Do the handshake over ``raw``, which is paused. Then ``protocol`` is connected, before it gets any bytes.

    Parameters
    ----------
    raw
        The transport of the socket. It is closed if the handshake fails.
    protocol
        Gets the transport that encrypts. Its methods are not called if the handshake fails.
    context
        The certificates.
    buffer
        A buffer of ``BUFFER_BYTES`` bytes. Connections of one event loop may share it.
    server_hostname
        The host to find in the server's certificate. None: this is the server's side.
    timeout_s
        The time for the handshake.
    steps
        Where a bookie's costly step is computed, and how soon failures are told. None: in the event loop, as the
        others, and at once.

    Raises
    ------
    OSError
        If the handshake fails. An ``ssl.SSLError`` says why.
    TimeoutError
        If it takes too long.
    """
    tls = TlsTransport(raw, protocol, context, buffer, server_hostname, steps)
    raw.set_protocol(tls)
    try:
        async with asyncio.timeout(timeout_s):
            tls.begin()
            await tls.made
    except BaseException:
        tls.abort()
        raise


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The transport of ``protocol``, and the protocol of ``raw``. See :func:`secure`."""

    def __init__(
        self,
        raw: asyncio.Transport,
        protocol: asyncio.BufferedProtocol,
        context: ssl.SSLContext,
        buffer: memoryview,
        server_hostname: str | None,
        steps: Steps | None,
    ) -> None:
        super().__init__()
        self._raw = raw
        self._protocol = protocol
        self._buffer = buffer
        self._steps = steps
        #: Whether what comes next may need the private key.
        self._is_costly = steps is not None
        self._step_error: Exception | None = None
        self._stepping = False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_hostname is None, server_hostname=server_hostname
        )
        self._loop = asyncio.get_running_loop()
        #: Done when the handshake is.
        self.made: asyncio.Future[None] = self._loop.create_future()
        self._is_open = self._is_reading = False
        self._closing = False
        #: Why the connection ends.
        self._problem: Exception | None = None

    def begin(self) -> None:
        """Start the handshake."""
        self._raw.resume_reading()
        if not self._tls.server_side:  # the client speaks first
            self._shake_hands()

    # --- the protocol of ``raw`` ---

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer that all connections of the event loop share."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt what arrived, or go on with the handshake."""
        if self._closing:
            return
        self._incoming.write(self._buffer[:nbytes])
        if self._is_open:
            self._deliver()
        else:
            self._shake_hands()

    def eof_received(self) -> None:
        """Send no more. The raw transport then closes."""
        self._closing = True

    def pause_writing(self) -> None:
        """Pass it on to the protocol, once it has a connection."""
        if self._is_open:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on to the protocol, once it has a connection."""
        if self._is_open:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the protocol why the connection ended, or let the handshake fail."""
        self._closing = True
        if self._steps is not None:
            self._steps.leave(self)
        if self._is_open:
            self._is_open = False
            self._protocol.connection_lost(self._problem or exc)
        elif not self.made.done():
            if self._steps is not None and self._problem is None:
                self._steps.failed(self)
            closed = ConnectionResetError("the peer closed the connection during the handshake")
            self.made.set_exception(self._problem or exc or closed)

    # --- the handshake ---

    def _shake_hands(self) -> None:
        if self._steps is None or not self._is_costly:
            self.step()
            self.stepped()
        else:
            self._stepping = True
            self._raw.pause_reading()  # OpenSSL's buffers belong to the step
            self._steps.take(self)

    def step(self) -> None:
        """Compute what follows from the received bytes."""
        try:
            self._tls.do_handshake()
        except Exception as error:  # it belongs to this connection, wherever the step runs
            self._step_error = error

    def stepped(self) -> None:
        """Send what was computed."""
        if self._closing:
            return
        if self._stepping:
            self._stepping = False
            self._raw.resume_reading()
        error, self._step_error = self._step_error, None
        if error is not None and not isinstance(error, ssl.SSLWantReadError):
            self._refuse(error)
            return
        if self._outgoing.pending:
            self._is_costly = False  # the rest is cheap
            self._flush()
        if error is not None:
            return
        self._is_open = self._is_reading = True
        if not self.made.done():
            self.made.set_result(None)
        self._protocol.connection_made(self)
        self._deliver()

    def _refuse(self, error: Exception) -> None:
        self._closing = True
        self._problem = error
        if self._steps is None:
            self._send_alert()
        else:  # whoever comes again as soon as it is told costs little then
            self._raw.pause_reading()
            self._loop.call_later(self._steps.failed(self), self._send_alert)

    def _send_alert(self) -> None:
        """Tell the peer why. Closing at once could destroy the alert on its way: bytes that were not read reset a
        connection."""
        self._flush()
        if not self._raw.is_closing():
            self._raw.resume_reading()  # to see when the peer closes
            self._raw.write_eof()
            self._loop.call_later(_ALERT_TIMEOUT_S, self._raw.abort)

    def _deliver(self) -> None:
        """Give the protocol what can be decrypted, in as few pieces as its buffers allow."""
        more = True
        while more and self._is_reading and not self._closing:
            view = memoryview(self._protocol.get_buffer(-1))
            filled = 0
            try:
                while filled < len(view):
                    count = cast(int, self._tls.read(len(view) - filled, cast(bytearray, view[filled:])))
                    if not count:
                        self.close()
                        more = False
                        break
                    filled += count
            except ssl.SSLWantReadError:
                more = False
            except ssl.SSLError as error:
                self._fail(error)
                more = False
            if filled:
                self._protocol.buffer_updated(filled)
        self._flush()  # a change of keys must be answered

    def _fail(self, error: ssl.SSLError) -> None:
        self._problem = error
        self._flush()
        self.abort()

    def _flush(self) -> None:
        if self._outgoing.pending and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    # --- the transport of ``protocol`` ---

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return ``ssl_object`` and ``sslcontext`` of the connection. Everything else comes from the raw transport."""
        if name == "ssl_object":
            return self._tls
        if name == "sslcontext":
            return self._tls.context
        return self._raw.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol, which must be a BufferedProtocol."""
        assert isinstance(protocol, asyncio.BufferedProtocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol that gets the decrypted bytes."""
        return self._protocol

    def is_closing(self) -> bool:
        """Return whether the connection ends. Nothing more is delivered then."""
        return self._closing or self._raw.is_closing()

    def is_reading(self) -> bool:
        """Return whether the protocol gets what arrives."""
        return self._is_reading and not self.is_closing()

    def pause_reading(self) -> None:
        """Deliver nothing, and receive nothing, until :meth:`resume_reading`."""
        self._is_reading = False
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Deliver again. What arrived meanwhile comes first."""
        if self._is_reading or self.is_closing():
            return
        self._is_reading = True
        # Some may be decrypted already, or received.
        self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._is_reading and not self.is_closing():
            self._deliver()
        if self._is_reading and not self.is_closing():
            self._raw.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the raw transport's limits, in encrypted bytes."""
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return how many encrypted bytes wait to be sent."""
        return self._raw.get_write_buffer_size()

    def write(self, data: Data) -> None:
        """Encrypt and send. Ignored on a connection that closes. An error of TLS ends the connection."""
        if self._closing:
            return
        view = memoryview(data).cast("B")
        try:
            while view:
                view = view[self._tls.write(view) :]  # a record at a time
        except ssl.SSLError as error:
            self._fail(error)
        self._flush()

    def writelines(self, list_of_data: Iterable[Data]) -> None:
        """Send the pieces joined, in as few TLS records as possible."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """Return False: TLS connections are closed in both directions at once."""
        return False

    def close(self) -> None:
        """Send the alert that ends TLS (close_notify), and close after everything is sent."""
        if self.is_closing():
            return
        self._closing = True
        with contextlib.suppress(ssl.SSLError):  # it does not wait for the peer's close_notify
            self._tls.unwrap()
        self._flush()
        self._raw.close()

    def abort(self) -> None:
        """Reset the connection. What waits to be sent is lost."""
        self._closing = True
        self._raw.abort()
