"""What an endpoint of the admin API gets and gives: requests, responses and errors. No I/O, and nothing of aiohttp."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

JSON_TYPE: Final = "application/json"
TEXT_TYPE: Final = "text/plain; charset=utf-8"
#: As a method in a route: every method.
ANY_METHOD: Final = "*"


@dataclass(frozen=True, slots=True)
class Request:
    """One request, read to its end.

    ``parameters`` are those of the query string. The last value of a repeated name counts.
    """

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
    """The whole answer to a request."""

    content: bytes
    content_type: str = JSON_TYPE
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


class HttpError(Exception):
    """The request failed: ``status``, and one line for the client that says why."""

    def __init__(self, status: HTTPStatus, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}

    def response(self) -> Response:
        """The error as an answer: ``{"error": "..."}``."""
        return json_response({"error": " ".join(str(self).split())}, self.status, self.headers)


Handler = Callable[[Request], Awaitable[Response]]
#: Path -> method -> handler.
Routes = Mapping[str, Mapping[str, Handler]]


def find_handler(routes: Routes, method: str, path: str) -> Handler:
    """The handler of a request; HEAD is served as GET. Raises HttpError (404, 405)."""
    methods = routes.get(path)
    if methods is None:
        raise HttpError(HTTPStatus.NOT_FOUND, f"there is nothing at {path}")
    handler = methods.get("GET" if method == "HEAD" else method, methods.get(ANY_METHOD))
    if handler is None:
        allowed = ", ".join(methods)
        raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, f"{path} takes {allowed}, not {method}", {"Allow": allowed})
    return handler


def json_response(
    value: object, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(json.dumps(value, indent=2).encode() + b"\n", status=status, headers=headers or {})


def text_response(text: str, content_type: str = TEXT_TYPE, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(text.encode(), content_type, status)
