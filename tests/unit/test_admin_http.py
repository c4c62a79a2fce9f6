"""The admin HTTP server on real sockets: what it answers, what it refuses, and that nobody can hold it up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import pytest

from bookie_server.admin.routes import ANY_METHOD, HttpError, Request, Response, json_response, text_response
from bookie_server.admin.server import AdminServer


class Routes:
    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.seen: list[Request] = []
        self.routes = {
            "/echo": {"GET": self.echo, "PUT": self.echo},
            "/any": {ANY_METHOD: self.echo},
            "/wait": {"GET": self.wait},
            "/fail": {"GET": self.fail},
            "/refuse": {"GET": self.refuse},
            "/large": {"GET": self.large},
        }

    async def echo(self, request: Request) -> Response:
        self.seen.append(request)
        return json_response({"method": request.method, "body": request.body.decode()})

    async def wait(self, request: Request) -> Response:
        await self.go_on.wait()
        return await self.echo(request)

    async def fail(self, _: Request) -> Response:
        raise OSError("the disk\nis gone")

    async def refuse(self, _: Request) -> Response:
        raise HttpError(HTTPStatus.CONFLICT, "not now")

    async def large(self, _: Request) -> Response:
        return text_response("x" * 4_000_000)


@asynccontextmanager
async def serving(
    routes: Routes, request_timeout_s: float = 30.0, handler_timeout_s: float = 30.0, answer_timeout_s: float = 30.0
) -> AsyncIterator[AdminServer]:
    server = AdminServer(
        "127.0.0.1",
        0,
        routes.routes,
        request_timeout_s=request_timeout_s,
        handler_timeout_s=handler_timeout_s,
        answer_timeout_s=answer_timeout_s,
    )
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def send(server: AdminServer, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes; the answer's status, headers and body, to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(request.replace(b" HTTP/1.1\r\n", b" HTTP/1.1\r\nHost: b\r\n"))
        answer = await asyncio.wait_for(reader.read(-1), 30)
    finally:
        writer.close()
        await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    line, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert line.startswith("HTTP/1.")
    assert "aiohttp" not in head.decode()
    return int(line.split()[1]), headers, body


def error_of(body: bytes) -> str:
    value = json.loads(body)
    assert list(value) == ["error"]
    assert "\n" not in value["error"]
    return str(value["error"])


def test_requests_and_answers() -> None:
    async def check() -> None:
        routes = Routes()
        async with serving(routes) as server:
            status, headers, body = await send(
                server, b"PUT /echo?a=1&b=x%20y&a=2 HTTP/1.1\r\ncontent-LENGTH: 5\r\n\r\nhello"
            )
            assert (status, json.loads(body)) == (200, {"method": "PUT", "body": "hello"})
            assert headers["Content-Type"] == "application/json"
            assert int(headers["Content-Length"]) == len(body)
            assert routes.seen[0].parameters == {"a": "2", "b": "x y"}
            status, headers, body = await send(server, b"HEAD /echo HTTP/1.0\r\n\r\n")
            assert (status, body) == (200, b"")
            assert int(headers["Content-Length"]) > 0
            assert (await send(server, b"DELETE /any HTTP/1.1\r\n\r\n"))[0] == 200
            assert len((await send(server, b"GET /large HTTP/1.1\r\n\r\n"))[2]) == 4_000_000

    asyncio.run(check())


@pytest.mark.parametrize(
    ("request_bytes", "status", "says"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404, "/nothing"),
        (b"POST /echo HTTP/1.1\r\n\r\n", 405, "accepts GET, PUT, not POST"),
        (b"GET /refuse HTTP/1.1\r\n\r\n", 409, "not now"),
        (b"GET /fail HTTP/1.1\r\n\r\n", 500, "OSError: the disk is gone"),
        (b"nonsense\r\n\r\n", 400, "not an HTTP/1 request"),
        (b"\x80\x00\x01 / HTTP/1.1\r\n\r\n", 400, "not an HTTP/1 request"),
        (b"GET / HTTP/2\r\n\r\n", 400, "not an HTTP/1 request"),
        (b"GET http://[ HTTP/1.1\r\n\r\n", 400, "not a URL"),
        (b"GET /echo?" + b"a=1&" * 200 + b" HTTP/1.1\r\n\r\n", 400, "not a URL"),
        (b"GET /echo HTTP/1.1\r\n" + b"X: x\r\n" * 100 + b"\r\n", 400, "Too many headers"),
        (b"PUT /echo HTTP/1.1\r\nContent-Length: five\r\n\r\nhello", 400, "Content-Length"),
        (b"PUT /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400, "Content-Length"),
        (b"PUT /echo HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000, 413, "65536 bytes"),
        (b"PUT /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411, "Content-Length"),
        (b"GET /echo HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431, "8192"),
    ],
)
def test_what_is_refused(request_bytes: bytes, status: int, says: str, caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        routes = Routes()
        async with serving(routes) as server:
            found, headers, body = await send(server, request_bytes)
            assert (found, says in error_of(body)) == (status, True), body
            assert headers.get("Allow") == ("GET, PUT" if status == 405 else None)
        assert not routes.seen

    with caplog.at_level(logging.WARNING, "bookie_server"):
        asyncio.run(check())
    assert len(caplog.records) == (1 if status == 500 else 0)  # and no traceback
    assert all(record.exc_info is None for record in caplog.records)


def test_a_request_that_does_not_come() -> None:
    async def check() -> None:
        async with serving(Routes(), request_timeout_s=0.05) as server:
            status, _, body = await send(server, b"PUT /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\nhel")
            assert (status, error_of(body)) == (408, "the request did not arrive in time")

    asyncio.run(check())


@pytest.mark.parametrize("sent", [b"", b"GET /echo HTTP/1.1\r\nHost"])
def test_a_connection_without_a_whole_head_is_closed(sent: bytes) -> None:
    async def check() -> None:
        async with serving(Routes(), request_timeout_s=0.05) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(sent)
            assert await asyncio.wait_for(reader.read(-1), 30) == b""
            writer.close()
            await writer.wait_closed()

    asyncio.run(check())


def test_a_peer_that_does_not_take_its_answer_loses_its_connection() -> None:
    async def check() -> None:
        async with serving(Routes(), 0.1, 0.1, 0.1) as server:
            with socket.socket() as peer:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                peer.setblocking(False)
                await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", server.port))
                peer.send(b"GET /large HTTP/1.1\r\nHost: b\r\n\r\n")
                async with asyncio.timeout(30):
                    while not server.transports:
                        await asyncio.sleep(0.01)
                    while server.transports:
                        await asyncio.sleep(0.01)

    asyncio.run(check())


def test_one_request_per_connection_and_no_access_log(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        routes = Routes()
        async with serving(routes) as server:
            status, headers, body = await send(server, b"GET /echo HTTP/1.1\r\n\r\n" * 2)
            assert (status, headers["Connection"]) == (200, "close")
            assert json.loads(body)["method"] == "GET"
            assert len(routes.seen) == 1

    with caplog.at_level(logging.INFO):
        asyncio.run(check())
    assert [record.name for record in caplog.records] == ["bookie_server.admin.server"]  # "http on …"


def test_a_handler_that_takes_long_goes_on() -> None:
    async def check() -> None:
        routes = Routes()
        async with serving(routes, handler_timeout_s=0.05) as server:
            status, _, body = await send(server, b"GET /wait HTTP/1.1\r\n\r\n")
            assert status == 504
            assert "may still take effect" in error_of(body)
            assert not routes.seen
            routes.go_on.set()
            assert (await send(server, b"GET /wait HTTP/1.1\r\n\r\n"))[0] == 200
            assert len(routes.seen) == 2

    asyncio.run(check())


def test_connections_are_bounded_and_given_back() -> None:
    async def check() -> None:
        async with serving(Routes()) as server:
            idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(32)]
            assert not await takes_connections(server)
            for _, each in idle:
                each.close()
                await each.wait_closed()
            while not await takes_connections(server):  # until the server has seen them go
                await asyncio.sleep(0)

    asyncio.run(check())


async def takes_connections(server: AdminServer) -> bool:
    """Whether a new connection is served, or closed at once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(b"GET /echo HTTP/1.1\r\nHost: b\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(-1), 30)
        assert answer.startswith(b"HTTP/1.1 200 ") or not answer
        return bool(answer)
    except ConnectionResetError:
        return False
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def test_closing_does_not_wait_for_peers() -> None:
    async def check() -> None:
        routes = Routes()
        async with serving(routes) as server:
            idle = await asyncio.open_connection("127.0.0.1", server.port)
            waiting = await asyncio.open_connection("127.0.0.1", server.port)
            waiting[1].write(b"GET /wait HTTP/1.1\r\nHost: b\r\n\r\n")
            await asyncio.wait_for(server.close(), 30)
            for reader, writer in (idle, waiting):
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(1), 30) == b""
                    writer.close()
                    await writer.wait_closed()
            assert not server.transports

    asyncio.run(check())


def test_a_port_that_is_taken() -> None:
    async def check() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            server = AdminServer("127.0.0.1", taken.getsockname()[1], {})
            with pytest.raises(OSError, match="in use"):
                await server.start()
            await server.close()

    asyncio.run(check())
