"""Requests, responses, errors and routes of the admin API. No I/O, and no aiohttp."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

JSON_TYPE: Final = "application/json"
TEXT_TYPE: Final = "text/plain; charset=utf-8"
#: The method of a route that serves every method.
ANY_METHOD: Final = "*"


@dataclass(frozen=True, slots=True)
class Request:
    """One complete request.

    ``parameters`` are those of the query string. The last value of a repeated name counts.
    """

    method: str
    path: str
    parameters: Mapping[str, str]
    body: bytes

    def json_object(self, example: str) -> dict[str, object]:
        """Return the body as a JSON object, such as ``example``. Raises HttpError (400)."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            raise HttpError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: send {example}") from None
        if not isinstance(value, dict):
            raise HttpError(HTTPStatus.BAD_REQUEST, f"the body must be a JSON object: send {example}")
        return value


@dataclass(frozen=True, slots=True)
class Response:
    """The complete response to a request."""

    content: bytes
    content_type: str = JSON_TYPE
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


class HttpError(Exception):
    """The request failed with ``status``. The message tells the client why, in one line."""

    def __init__(self, status: HTTPStatus, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}

    def response(self) -> Response:
        """Return the error as a response: ``{"error": "..."}``."""
        return json_response({"error": " ".join(str(self).split())}, self.status, self.headers)


Handler = Callable[[Request], Awaitable[Response]]
#: Path → method → handler.
Routes = Mapping[str, Mapping[str, Handler]]


def find_handler(routes: Routes, method: str, path: str) -> Handler:
    """Return the handler of a request. HEAD is served as GET. Raises HttpError (404, 405)."""
    methods = routes.get(path)
    if methods is None:
        raise HttpError(HTTPStatus.NOT_FOUND, f"no endpoint at {path}")
    handler = methods.get("GET" if method == "HEAD" else method, methods.get(ANY_METHOD))
    if handler is None:
        allowed = ", ".join(methods)
        raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, f"{path} accepts {allowed}, not {method}", {"Allow": allowed})
    return handler


def json_response(
    value: object, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Response:
    """A response with ``value`` as indented JSON, for programs and people."""
    return Response(json.dumps(value, indent=2).encode() + b"\n", status=status, headers=headers or {})


def text_response(text: str, content_type: str = TEXT_TYPE, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """A response with ``text`` in UTF-8."""
    return Response(text.encode(), content_type, status)
