"""A small HTTP/1.1 server in the event loop, for operators and scrapers: one request per connection.

Everything a peer can make it hold is bounded: connections, the size of a request's head and body, the time for a
request to come, to be handled and for its answer to be taken. Peers are not authenticated, as with Apache's bookie:
who reaches the port may use it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl, urlsplit

_LOG: Final = logging.getLogger(__name__)
_MAX_CONNECTIONS: Final = 32
_MAX_HEAD_BYTES: Final = 16 * 1024
_MAX_BODY_BYTES: Final = 64 * 1024
_REQUEST_TIMEOUT_S: Final = 10.0
_HANDLER_TIMEOUT_S: Final = 30.0
_ANSWER_TIMEOUT_S: Final = 30.0
#: What is read and dropped of a request that was refused, so that its sender gets to the answer.
_LINGER_BYTES: Final = 1024 * 1024
_LINGER_TIMEOUT_S: Final = 2.0

JSON_TYPE: Final = "application/json"
TEXT_TYPE: Final = "text/plain; charset=utf-8"
#: In a route: whatever the method.
ANY_METHOD: Final = "*"


@dataclass(frozen=True, slots=True)
class Request:
    """``parameters`` are those behind the question mark; of one that is given twice the last counts."""

    method: str
    path: str
    parameters: Mapping[str, str]
    body: bytes

    def json_object(self) -> dict[str, object]:
        """The body, a JSON object. Raises HttpError (400)."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            raise HttpError(HTTPStatus.BAD_REQUEST, "the body is not JSON") from None
        if not isinstance(value, dict):
            raise HttpError(HTTPStatus.BAD_REQUEST, "the body must be a JSON object")
        return value


@dataclass(frozen=True, slots=True)
class Response:
    content: bytes
    content_type: str = JSON_TYPE
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


class HttpError(Exception):
    """What was asked cannot be had, and why: ``status`` and one line for the peer."""

    def __init__(self, status: HTTPStatus, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


Handler = Callable[[Request], Awaitable[Response]]
#: Path -> method -> handler.
Routes = Mapping[str, Mapping[str, Handler]]


def json_response(
    value: object, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(json.dumps(value, indent=2).encode() + b"\n", status=status, headers=headers or {})


def text_response(text: str, content_type: str = TEXT_TYPE, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(text.encode(), content_type, status)


class HttpServer:
    """Serves ``routes`` on a host's port (0: any free one, see :attr:`port`). Belongs to the event loop."""

    def __init__(
        self,
        host: str,
        port: int,
        routes: Routes,
        *,
        request_timeout_s: float = _REQUEST_TIMEOUT_S,
        handler_timeout_s: float = _HANDLER_TIMEOUT_S,
    ) -> None:
        self._host = host
        self.port = port
        self._routes = routes
        self._request_timeout_s = request_timeout_s
        self._handler_timeout_s = handler_timeout_s
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._handling: set[asyncio.Task[Response]] = set()

    async def start(self) -> None:
        """Listen. Raises OSError where the port cannot be had."""
        self._server = await asyncio.start_server(self._accept, self._host, self.port, limit=_MAX_HEAD_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]
        _LOG.info("http on %s:%d", self._host, self.port)

    async def close(self) -> None:
        """Stop listening, and break off what is under way."""
        if self._server is None:
            return
        self._server.close()
        tasks = [*self._connections, *self._handling]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections | self._handling) >= _MAX_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = None
            try:
                async with asyncio.timeout(self._request_timeout_s):
                    request = await _read_request(reader)
                response = await self._handle(request)
            except TimeoutError:
                response = _error_response(HttpError(HTTPStatus.REQUEST_TIMEOUT, "the request did not come in time"))
            except HttpError as error:
                response = _error_response(error)
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                writer.write(_encode(response, with_content=request is None or request.method != "HEAD"))
                await writer.drain()
            if request is None:
                writer.write_eof()
                await _drop_rest(reader)
            writer.close()
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                await writer.wait_closed()
        except (asyncio.IncompleteReadError, TimeoutError, OSError):
            pass  # the peer is gone, or does not take its answer
        finally:
            writer.transport.abort()

    async def _handle(self, request: Request) -> Response:
        methods = self._routes.get(request.path)
        if methods is None:
            raise HttpError(HTTPStatus.NOT_FOUND, f"there is nothing at {request.path}")
        handler = methods.get("GET" if request.method == "HEAD" else request.method, methods.get(ANY_METHOD))
        if handler is None:
            allowed = ", ".join(methods)
            raise HttpError(
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"{request.path} takes {allowed}, not {request.method}",
                {"Allow": allowed},
            )
        task = asyncio.ensure_future(self._guarded(handler, request))
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)
        done, _ = await asyncio.wait([task], timeout=self._handler_timeout_s)
        if not done:
            # Breaking it off could leave half of it done.
            raise HttpError(
                HTTPStatus.GATEWAY_TIMEOUT, f"{request.path} did not end in time; what was asked may still take effect"
            )
        return task.result()

    async def _guarded(self, handler: Handler, request: Request) -> Response:
        try:
            return await handler(request)
        except HttpError as error:
            return _error_response(error)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            _LOG.error("an admin request failed: method=%s path=%s reason=%s", request.method, request.path, reason)
            return _error_response(HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, reason))


async def _read_request(reader: asyncio.StreamReader) -> Request:
    """One request. Raises HttpError where it is none that can be answered, IncompleteReadError where the peer left."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise HttpError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"request line and headers exceed {_MAX_HEAD_BYTES} bytes"
        ) from None
    line, *header_lines = head[:-4].decode("latin-1").split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or not words[0].isalpha() or not words[2].startswith("HTTP/1."):
        raise HttpError(HTTPStatus.BAD_REQUEST, "not an HTTP/1 request")
    headers = {name.strip().lower(): value.strip() for name, _, value in (h.partition(":") for h in header_lines)}
    if "transfer-encoding" in headers:
        raise HttpError(HTTPStatus.LENGTH_REQUIRED, "a body must come with a Content-Length")
    length_text = headers.get("content-length", "0")
    if not (length_text.isascii() and length_text.isdigit() and len(length_text) < 16):
        raise HttpError(HTTPStatus.BAD_REQUEST, "Content-Length is not a number")
    if int(length_text) > _MAX_BODY_BYTES:
        raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body exceeds {_MAX_BODY_BYTES} bytes")
    try:
        target = urlsplit(words[1])
        parameters = dict(parse_qsl(target.query, keep_blank_values=True, max_num_fields=100))
    except ValueError:
        raise HttpError(HTTPStatus.BAD_REQUEST, "the request's target is not a URL") from None
    return Request(words[0].upper(), target.path, parameters, await reader.readexactly(int(length_text)))


async def _drop_rest(reader: asyncio.StreamReader) -> None:
    dropped = 0
    async with asyncio.timeout(_LINGER_TIMEOUT_S):
        while dropped < _LINGER_BYTES and (data := await reader.read(_MAX_BODY_BYTES)):
            dropped += len(data)


def _error_response(error: HttpError) -> Response:
    return json_response({"error": " ".join(str(error).split())}, error.status, error.headers)


def _encode(response: Response, *, with_content: bool) -> bytes:
    headers = {
        "Content-Type": response.content_type,
        "Content-Length": str(len(response.content)),
        "Connection": "close",
        **response.headers,
    }
    head = f"HTTP/1.1 {response.status.value} {response.status.phrase}\r\n" + "".join(
        f"{name}: {value}\r\n" for name, value in headers.items()
    )
    return head.encode("latin-1") + b"\r\n" + (response.content if with_content else b"")
