"""The HTTP server of the admin API: aiohttp in the bookie's event loop, one request per connection.

Everything that a client can make the bookie hold is bounded: connections, the size of a request, and the times in which
a request must arrive, be handled and have its response read. As in Apache's bookie, clients are not authenticated:
everybody who can reach the port may use it.

aiohttp needs about 10 MB of memory, so import this module only if the admin API is enabled.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod, BadStatusLine, InvalidURLError, LineTooLong

from bookie_server.admin.routes import Handler, HttpError, Request, Response, Routes, find_handler

_LOG: Final = logging.getLogger(__name__)
_MAX_CONNECTIONS: Final = 32
_MAX_LINE_BYTES: Final = 16 * 1024
_MAX_HEADER_BYTES: Final = 8 * 1024
_MAX_HEADERS: Final = 64
_MAX_BODY_BYTES: Final = 64 * 1024
_MAX_PARAMETERS: Final = 100
_REQUEST_TIMEOUT_S: Final = 10.0
_HANDLER_TIMEOUT_S: Final = 30.0
_ANSWER_TIMEOUT_S: Final = 30.0
#: How long the rest of a refused request is read and dropped, so that its sender reads the response.
_LINGER_S: Final = 2.0
#: Connections are aborted before, so this is never reached.
_CLOSE_TIMEOUT_S: Final = 5.0


class AdminServer:
    """Serves ``routes``. Belongs to the event loop.

    Parameters
    ----------
    host, port
        Where to listen. With port 0 the system chooses one; see :attr:`port`.
    routes
        The handlers, by path and method.
    request_timeout_s
        A request that takes longer to arrive is refused.
    handler_timeout_s
        After this time the client gets an error. The handler continues.
    answer_timeout_s
        A client that takes longer to read its response loses its connection.
    """

    def __init__(
        self,
        host: str,
        port: int,
        routes: Routes,
        *,
        request_timeout_s: float = _REQUEST_TIMEOUT_S,
        handler_timeout_s: float = _HANDLER_TIMEOUT_S,
        answer_timeout_s: float = _ANSWER_TIMEOUT_S,
    ) -> None:
        self._host = host
        self.port = port
        self._routes = routes
        self.request_timeout_s = request_timeout_s
        self._handler_timeout_s = handler_timeout_s
        #: No connection lasts longer.
        self.connection_timeout_s = request_timeout_s + handler_timeout_s + answer_timeout_s
        self._listener: asyncio.Server | None = None
        self._http: _HttpServer | None = None
        #: Transports of the connections, including those whose response is still being sent.
        self.transports: set[asyncio.Transport] = set()
        self._handling: set[asyncio.Task[Response]] = set()

    async def start(self) -> None:
        """Listen. Raises OSError if the port is not available."""
        self._http = _HttpServer(self)
        self._listener = await asyncio.get_running_loop().create_server(self._http, self._host, self.port)
        self.port = self._listener.sockets[0].getsockname()[1]
        _LOG.info("http on %s:%d", self._host, self.port)

    async def close(self) -> None:
        """Stop listening, and abort all requests."""
        if self._listener is None or self._http is None:
            return
        self._listener.close()
        handling = list(self._handling)
        for task in handling:
            task.cancel()
        for transport in list(self.transports):
            transport.abort()
        await asyncio.gather(*handling, return_exceptions=True)
        await self._http.shutdown(_CLOSE_TIMEOUT_S)
        await self._listener.wait_closed()

    @property
    def is_full(self) -> bool:
        """Whether no further connection is accepted. Handlers that outlived their connection count too."""
        return len(self.transports) + len(self._handling) >= _MAX_CONNECTIONS

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the response to a request whose headers have arrived."""
        try:
            async with asyncio.timeout(self.request_timeout_s):
                asked = await _read(request)
            response = await self._handle(find_handler(self._routes, asked.method, asked.path), asked)
        except TimeoutError:
            response = HttpError(HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive in time").response()
        except HttpError as error:
            response = error.response()
        return _encode(response)

    async def _handle(self, handler: Handler, request: Request) -> Response:
        task = asyncio.ensure_future(_guarded(handler, request))
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)
        done, _ = await asyncio.wait([task], timeout=self._handler_timeout_s)
        if not done:
            # Cancelling the handler could leave its work half done.
            raise HttpError(
                HTTPStatus.GATEWAY_TIMEOUT, f"{request.path} did not finish in time; the request may still take effect"
            )
        return task.result()


class _HttpServer(web.Server):
    """Creates the connections of an :class:`AdminServer`."""

    def __init__(self, server: AdminServer) -> None:
        super().__init__(server.answer)
        self._server = server

    def __call__(self) -> _Connection:
        return _Connection(self._server, self)


class _Connection(web.RequestHandler):
    """aiohttp's connection, with limits on the number of connections and on the duration of each."""

    def __init__(self, server: AdminServer, http: _HttpServer) -> None:
        super().__init__(
            http,
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
        self._raw: asyncio.Transport | None = None
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self._server.is_full:
            transport.abort()
            return
        self._raw = transport
        self._server.transports.add(transport)
        loop = asyncio.get_running_loop()
        self._end = loop.call_later(self._server.connection_timeout_s, transport.abort)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._raw is None or self._end is None:
            return
        self._server.transports.discard(self._raw)
        self._end.cancel()
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
        return _encode(error.response())


async def _guarded(handler: Handler, request: Request) -> Response:
    try:
        return await handler(request)
    except HttpError as error:
        return error.response()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        _LOG.error("an admin request failed: method=%s path=%s reason=%s", request.method, request.path, reason)
        return HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, reason).response()


async def _read(request: web.BaseRequest) -> Request:
    """Return the request with its body. Raises HttpError if it is too large."""
    if "Transfer-Encoding" in request.headers:
        raise HttpError(HTTPStatus.LENGTH_REQUIRED, "a body must come with a Content-Length")
    if (request.content_length or 0) > _MAX_BODY_BYTES:
        raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body exceeds {_MAX_BODY_BYTES} bytes")
    try:
        query = request.rel_url.raw_query_string
        parameters = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS))
    except ValueError:
        raise HttpError(HTTPStatus.BAD_REQUEST, "the request's target is not a URL") from None
    return Request(request.method, request.path, parameters, await request.read())


def _encode(response: Response) -> web.Response:
    headers = {"Content-Type": response.content_type, "Server": "bookie", **response.headers}
    encoded = web.Response(body=response.content, status=response.status, headers=headers)
    encoded.force_close()
    return encoded
