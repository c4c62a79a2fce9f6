"""The connections of the admin API: aiohttp's, with a time limit and one request each, in clear or inside TLS."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod, BadStatusLine, InvalidURLError, LineTooLong

from bk_spark.bookie.tls.reasons import reason_of
from bookie_server.admin.heads import MAX_HEAD_BYTES, is_too_long
from bookie_server.admin.places import Places
from bookie_server.admin.routes import HttpError, Response
from bookie_server.net.common.entrance.front_tls import FrontTls

_MAX_LINE_BYTES: Final = MAX_HEAD_BYTES
_MAX_HEADER_BYTES: Final = 8 * 1024
_MAX_HEADERS: Final = 64
#: How long the rest of a refused request is read and dropped, so that its sender reads the response.
_LINGER_S: Final = 2.0
_READ_BYTES: Final = 64 * 1024
#: Names of others are in answers of all kinds, and no browser should take them for HTML.
_ALL_HEADERS: Final = {"X-Content-Type-Options": "nosniff"}
#: The answer to a head that no connection of aiohttp's is made for.
_TOO_LONG: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    b'{\n  "error": "the line and the headers of the request exceed %d bytes"\n}\n' % MAX_HEAD_BYTES
)


class HttpServer(web.Server):
    """Creates connections.

    Parameters
    ----------
    answer
        Returns the response to a request whose headers have arrived.
    places
        Where connections are counted.
    request_timeout_s, connection_timeout_s
        How long a connection may send nothing, and how long it may last.
    tls
        The certificates. None: connections are not encrypted.
    """

    def __init__(
        self,
        answer: Callable[[web.BaseRequest], Any],
        places: Places,
        *,
        request_timeout_s: float,
        connection_timeout_s: float,
        tls: FrontTls | None,
    ) -> None:
        super().__init__(answer)
        self.places = places
        self.request_timeout_s = request_timeout_s
        self.connection_timeout_s = connection_timeout_s
        self._tls = tls
        self._room = memoryview(bytearray(_READ_BYTES))
        self._beginnings: set[asyncio.Task[Any]] = set()
        self._handshakes: set[asyncio.Task[None]] = set()

    def begin(self, accepted: socket.socket) -> None:
        """Serve a connection that has sent the head of a request, or begins a handshake."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(loop.connect_accepted_socket(lambda: _Newcomer(self), accepted))
        self._beginnings.add(task)
        task.add_done_callback(self._beginnings.discard)

    async def begun(self) -> None:
        """Wait until all connections that were begun are in their places. That takes a turn or two."""
        await asyncio.gather(*self._beginnings, return_exceptions=True)

    @property
    def is_encrypted(self) -> bool:
        """Whether a connection begins with a TLS handshake."""
        return self._tls is not None

    async def close(self, timeout_s: float) -> None:
        """Close all connections, and end what encrypts them."""
        await self.shutdown(timeout_s)
        if self._tls is not None:
            await self._tls.close()

    def begin_handshake(self, raw: asyncio.Transport) -> None:
        """Encrypt ``raw``, which is paused, then give it to aiohttp."""
        task = asyncio.ensure_future(self._secure(raw))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _secure(self, raw: asyncio.Transport) -> None:
        connection = Connection(self, raw)
        tls = self._tls
        assert tls is not None
        peer = str(raw.get_extra_info("peername"))
        try:
            await tls.secure(raw, _Decrypted(connection, self._room), self.request_timeout_s)
        except (OSError, TimeoutError) as error:
            connection.end()
            tls.failed_handshakes += 1
            tls.log.tell("http connection from %s closed: TLS handshake failed: %s", peer, reason_of(error))


class Connection(web.RequestHandler):
    """aiohttp's connection. It belongs to the places from its beginning to its end."""

    def __init__(self, server: HttpServer, raw: asyncio.Transport) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            # A connection that sends nothing is closed after this time. There is no second request.
            keepalive_timeout=server.request_timeout_s,
            access_log=None,  # type: ignore[arg-type]  # None is aiohttp's own way to turn it off
            max_line_size=_MAX_LINE_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
            max_headers=_MAX_HEADERS,
            lingering_time=_LINGER_S,
            auto_decompress=False,
        )
        self._server = server
        #: The transport of the socket, below TLS.
        self.raw = raw
        loop = asyncio.get_running_loop()
        self._limit = loop.call_later(server.connection_timeout_s, raw.abort)

    def end(self) -> None:
        """The socket is, or will be, closed."""
        self._server.places.leave(self.raw)
        self._limit.cancel()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Give up the place, and let aiohttp end the request. Called by the event loop."""
        self.end()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the response to bytes that are not a valid request."""
        error = HttpError(HTTPStatus(status), message or HTTPStatus(status).phrase)
        if isinstance(exc, LineTooLong):
            error = HttpError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"the request line exceeds {_MAX_LINE_BYTES} bytes, or a header {_MAX_HEADER_BYTES}",
            )
        elif isinstance(exc, InvalidURLError):
            error = HttpError(HTTPStatus.BAD_REQUEST, "the request's target is not a URL")
        elif isinstance(exc, BadHttpMethod | BadStatusLine):
            error = HttpError(HTTPStatus.BAD_REQUEST, "not an HTTP/1 request")
        self._server.places.answer(self.raw)
        return encode(error.response())


class _Newcomer(asyncio.Protocol):
    """Stands before aiohttp's connection, which has a task and many objects, until the first bytes are decrypted or,
    in clear, received."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._raw: asyncio.Transport | None = None
        self._limit: asyncio.TimerHandle | None = None
        self._is_refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raw = self._raw = cast(asyncio.Transport, transport)
        self._server.places.arrive(raw)
        if self._server.is_encrypted:
            raw.pause_reading()
            self._server.begin_handshake(raw)
        else:
            self._limit = asyncio.get_running_loop().call_later(self._server.request_timeout_s, raw.abort)

    def data_received(self, data: bytes) -> None:
        assert self._raw is not None
        if self._is_refused:
            return
        self._cancel()
        if is_too_long(data):
            self._refuse(self._raw)
            return
        connection = Connection(self._server, self._raw)
        self._raw.set_protocol(connection)
        connection.connection_made(self._raw)
        connection.data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._cancel()
        if self._raw is not None:
            self._server.places.leave(self._raw)

    def _refuse(self, raw: asyncio.Transport) -> None:
        self._is_refused = True
        self._server.places.answer(raw)
        raw.write(_TOO_LONG)
        raw.write_eof()
        self._limit = asyncio.get_running_loop().call_later(_LINGER_S, raw.abort)

    def _cancel(self) -> None:
        if self._limit is not None:
            self._limit.cancel()


class _Decrypted(asyncio.BufferedProtocol):
    """Gives aiohttp's connection what TLS has decrypted. All connections share one buffer, which is empty at once."""

    def __init__(self, connection: Connection, room: memoryview) -> None:
        self._connection = connection
        self._room = room
        self.connection_made = connection.connection_made  # type: ignore[method-assign]
        self.connection_lost = connection.connection_lost  # type: ignore[method-assign]
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.data_received(bytes(self._room[:nbytes]))


def encode(response: Response) -> web.Response:
    """Return the response for aiohttp. It ends the connection."""
    headers = {"Content-Type": response.content_type, "Server": "bookie", **_ALL_HEADERS, **response.headers}
    encoded = web.Response(body=response.content, status=response.status, headers=headers)
    encoded.force_close()
    return encoded
