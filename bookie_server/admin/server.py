"""The HTTP server of the admin API: aiohttp in the bookie's event loop, one request per connection.

Everything that a client can make the bookie hold is bounded: connections, the size of a request, and the times in which
a request must arrive, be handled and have its response read. Slow callers give way to others (places.py).

aiohttp needs about 10 MB of memory, so import this module only if the admin API is enabled.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from http import HTTPStatus
from typing import Final, cast
from urllib.parse import parse_qsl

from aiohttp import web

from bk_spark.protocol.wire.start_tls import hello_bytes
from bookie_server.admin.access import OPEN_PATHS, READING, AdminAccess
from bookie_server.admin.connection import Connection, HttpServer, encode
from bookie_server.admin.heads import MAX_HEAD_BYTES, wanted_head_bytes
from bookie_server.admin.places import MAX_ARRIVING, Places
from bookie_server.admin.routes import Handler, HttpError, Request, Response, Routes, find_handler
from bookie_server.net.common.entrance.front_tls import FrontTls
from bookie_server.net.common.entrance.newcomers import LOOKED_AT_BYTES, Newcomer, Newcomers

_LOG: Final = logging.getLogger(__name__)
_MAX_BODY_BYTES: Final = 64 * 1024
_MAX_PARAMETERS: Final = 100
#: Connections that have sent something and wait to be heard. Fewer than may arrive, so that none of them gives way.
_MOST_READY: Final = MAX_ARRIVING // 2
#: How often to look for connections that have sent no whole request in time.
_LOOK_INTERVAL_S: Final = 1.0
_REQUEST_TIMEOUT_S: Final = 10.0
_HANDLER_TIMEOUT_S: Final = 30.0
_ANSWER_TIMEOUT_S: Final = 30.0
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
    access
        Who may do what, and the certificates.
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
        access: AdminAccess,
        *,
        request_timeout_s: float = _REQUEST_TIMEOUT_S,
        handler_timeout_s: float = _HANDLER_TIMEOUT_S,
        answer_timeout_s: float = _ANSWER_TIMEOUT_S,
    ) -> None:
        self._host = host
        self.port = port
        self._routes = routes
        self._access = access
        self._request_timeout_s = request_timeout_s
        self._handler_timeout_s = handler_timeout_s
        #: No connection lasts longer.
        self._connection_timeout_s = request_timeout_s + handler_timeout_s + answer_timeout_s
        self._newcomers: list[Newcomers] = []
        self._look: asyncio.TimerHandle | None = None
        self._http: HttpServer | None = None
        self.places = Places()

    async def start(self) -> None:
        """Listen. Raises OSError if the port is not available."""
        tls = self._access.tls
        self._http = HttpServer(
            self._answer,
            self.places,
            request_timeout_s=self._request_timeout_s,
            connection_timeout_s=self._connection_timeout_s,
            tls=None if tls is None else FrontTls(tls, required=True),
        )
        # asyncio binds all addresses of the host, and hands the sockets over.
        bound = await asyncio.get_running_loop().create_server(
            asyncio.Protocol, self._host, self.port, start_serving=False
        )
        try:
            self.port = bound.sockets[0].getsockname()[1]
            for each in bound.sockets:
                self._newcomers.append(self._hear(socket.socket(fileno=os.dup(each.fileno()))))
        finally:
            bound.close()
        self._look_around()
        _LOG.info("%s on %s:%d", "http" if tls is None else "https", self._host, self.port)

    async def close(self) -> None:
        """Stop listening, and abort all requests."""
        for newcomers in self._newcomers:
            newcomers.close()
        if self._look is None or self._http is None:
            return
        self._look.cancel()
        await self._http.begun()
        handling = list(self.places.handling)
        for task in handling:
            task.cancel()
        self.places.close()
        await asyncio.gather(*handling, return_exceptions=True)
        await self._http.close(_CLOSE_TIMEOUT_S)

    def _hear(self, listener: socket.socket) -> Newcomers:
        """Accept on ``listener``. Raises OSError."""
        assert self._http is not None
        newcomers = Newcomers(
            listener,
            came=self._came,
            spoke=self._spoke,
            left=self.places.leave,
            # A caller that stalls in a handshake's first message, or in the head of a request, remains a bare socket.
            wanted_bytes=wanted_head_bytes if self._access.tls is None else hello_bytes,
            looked_at_bytes=MAX_HEAD_BYTES if self._access.tls is None else LOOKED_AT_BYTES,
            most_ready=_MOST_READY,
        )
        try:
            newcomers.start()
        except OSError:
            newcomers.close()
            raise
        return newcomers

    def _came(self, newcomer: Newcomer) -> bool:
        self.places.arrive(newcomer)
        return True

    def _spoke(self, newcomer: Newcomer) -> None:
        assert self._http is not None
        self.places.leave(newcomer)
        self._http.begin(newcomer.socket)

    def _look_around(self) -> None:
        self.places.expire(self._request_timeout_s)
        self._look = asyncio.get_running_loop().call_later(_LOOK_INTERVAL_S, self._look_around)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the response to a request whose headers have arrived."""
        connection = cast(Connection, request.protocol).raw
        try:
            handler = find_handler(self._routes, request.method, request.path)
            self._access.check(request.method, request.path, request.headers.get("Authorization", ""))
            async with asyncio.timeout(self._request_timeout_s):
                asked = await _read(request)
            self.places.ask(connection)
            response = await self._handle(handler, asked)
            if request.method not in READING and asked.path not in OPEN_PATHS:
                _LOG.info(
                    "changed by http: method=%s path=%s peer=%s status=%d",
                    request.method, asked.path, request.remote, response.status,
                )  # fmt: skip
        except TimeoutError:
            response = HttpError(HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive in time").response()
        except HttpError as error:
            response = error.response()
        self.places.answer(connection)
        return encode(response)

    async def _handle(self, handler: Handler, request: Request) -> Response:
        if request.path in OPEN_PATHS:
            # They wait for nothing. A task of their own would take two turns of the event loop.
            return await _guarded(handler, request)
        self.places.require_room()
        task = asyncio.ensure_future(_guarded(handler, request))
        self.places.handle(cast("asyncio.Task[object]", task))
        done, _ = await asyncio.wait([task], timeout=self._handler_timeout_s)
        if not done:
            # Cancelling the handler could leave its work half done.
            raise HttpError(
                HTTPStatus.GATEWAY_TIMEOUT, f"{request.path} did not finish in time; the request may still take effect"
            )
        return task.result()


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
    # A request that changes nothing has no body that anybody would use.
    body = b"" if request.method in READING else await request.read()
    return Request(request.method, request.path, parameters, body)
