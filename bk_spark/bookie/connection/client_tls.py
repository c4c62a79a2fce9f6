"""How a client's connection to a bookie becomes TLS. Belongs to one event loop."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final

from bk_spark.bookie.config import GRPC, ClientConfig
from bk_spark.bookie.connection.base import FramedConnection
from bk_spark.bookie.tls.contexts import TlsContexts
from bk_spark.bookie.tls.pem import PemIdentity
from bk_spark.bookie.tls.reasons import reason_of
from bk_spark.bookie.tls.transport import BUFFER_BYTES, secure
from bk_spark.protocol.errors import TlsError, WireFormatError
from bk_spark.protocol.wire.framing import LENGTH_BYTES, frame_bytes
from bk_spark.protocol.wire.start_tls import MAX_BYTES, is_granted, start_tls_request

_LOG: Final = logging.getLogger(__name__)
#: What is spoken inside TLS on a port of gRPC (ALPN).
HTTP2_NAME: Final = "h2"


class ClientTls:
    """Makes encrypted connections. Never one in clear.

    Raises InvalidArgumentError for wrong certificates, keys or settings. Blocks to read them.
    """

    def __init__(self, config: ClientConfig) -> None:
        self._contexts = TlsContexts(
            config,
            server_side=False,
            key_store=config.key_store(),
            trust_store=config.trust_store(),
            alpn=HTTP2_NAME if config.transport == GRPC else "",
        )
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._timeout_s = config.connect_timeout_ms / 1000
        if not config.tls_hostname_verification:
            _LOG.warning(
                "tlsHostnameVerificationEnabled=false: whoever has a certificate from a trusted authority can pose as "
                "any bookie"
            )

    def pem(self) -> PemIdentity:
        """Return the certificates and the key as they are in the files. Blocks. Raises InvalidArgumentError."""
        return self._contexts.pem()

    async def connect(self, host: str, port: int, connection: FramedConnection) -> None:
        """Connect ``connection``. Its bookie proves to be ``host``.

        Raises TlsError if there is no TLS, OSError if there is no connection.
        """
        loop = asyncio.get_running_loop()
        raw, asking = await loop.create_connection(lambda: _StartTls(loop.create_future()), host, port)
        await self._secure(raw, connection, host, connection.bookie_id, asking.granted)

    async def connect_at_once(self, host: str, port: int, protocol: asyncio.BufferedProtocol, bookie_id: str) -> None:
        """Connect ``protocol`` to a port where TLS begins at once, as gRPC's does. Otherwise as :meth:`connect`."""
        raw, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, host, port)
        raw.pause_reading()
        await self._secure(raw, protocol, host, bookie_id)

    async def _secure(
        self,
        raw: asyncio.Transport,
        protocol: asyncio.BufferedProtocol,
        host: str,
        bookie_id: str,
        granted: asyncio.Future[None] | None = None,
    ) -> None:
        """Do the handshake, when it is ``granted`` if that is waited for."""
        try:
            if self._contexts.is_due:
                await asyncio.to_thread(self._contexts.refresh)
            if granted is not None:
                await granted
            await secure(
                raw,
                protocol,
                self._contexts.context,
                self._buffer,
                server_hostname=host,
                timeout_s=self._timeout_s,
            )
        except BaseException as error:
            raw.abort()
            if isinstance(error, OSError | WireFormatError):
                raise TlsError(f"no TLS connection: {reason_of(error)}", bookie_id=bookie_id) from None
            raise


class _StartTls(asyncio.Protocol):
    """Asks for TLS, and takes the answer: exactly one frame."""

    def __init__(self, granted: asyncio.Future[None]) -> None:
        #: Done when the handshake may begin.
        self.granted = granted
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # A small request, and a peer that would delay its acknowledgement.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.write(start_tls_request())

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < LENGTH_BYTES:
            return
        size = frame_bytes(self._received)
        if len(self._received) < size <= MAX_BYTES:
            return
        assert self._transport is not None
        # What follows belongs to the handshake.
        self._transport.pause_reading()
        problem = self._problem(size)
        if self.granted.done():
            return
        if problem is None:
            self.granted.set_result(None)
        else:
            self.granted.set_exception(WireFormatError(problem))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.granted.done():
            self.granted.set_exception(ConnectionResetError("the bookie closed the connection when TLS was asked for"))

    def _problem(self, size: int) -> str | None:
        if len(self._received) > size:
            # Somebody on the way may have put them there.
            return "the bookie sent bytes in clear after its answer"
        if size > MAX_BYTES:
            return "the peer's answer is not a bookie's"
        try:
            granted = is_granted(self._received)
        except WireFormatError:
            return "the peer's answer is not a bookie's"
        return None if granted else "the bookie does not offer TLS (tlsProviderFactoryClass in its configuration)"
