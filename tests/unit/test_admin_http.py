"""The admin HTTP server on real sockets: what it answers, what it refuses, and that nobody can hold it up."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

import pytest

from bk_spark.protocol.errors import InvalidArgumentError
from bookie_server.admin import places, server as admin_server
from bookie_server.admin.access import AdminAccess
from bookie_server.admin.places import MAX_ANSWERED, MAX_HANDLED
from bookie_server.admin.routes import ANY_METHOD, HttpError, Request, Response, json_response, text_response
from bookie_server.admin.server import AdminServer
from bookie_server.net.common.entrance.newcomers import Newcomer
from tests.support import patient_loop
from tests.support.admin import TOKEN, token_file
from tests.support.bookie_settings import bookie_config
from tests.support.certificates import authority, identity, write_pem


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
            "/heartbeat": {ANY_METHOD: self.echo},
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


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> AdminAccess:
    """Reads are open, changes need the token."""
    return AdminAccess(bookie_config(http_token_file=token_file(tmp_path_factory.mktemp("access"))))


@asynccontextmanager
async def serving(
    routes: Routes,
    access: AdminAccess,
    request_timeout_s: float = 30.0,
    handler_timeout_s: float = 30.0,
    answer_timeout_s: float = 30.0,
) -> AsyncIterator[AdminServer]:
    server = AdminServer(
        "127.0.0.1",
        0,
        routes.routes,
        access,
        request_timeout_s=request_timeout_s,
        handler_timeout_s=handler_timeout_s,
        answer_timeout_s=answer_timeout_s,
    )
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def send(
    server: AdminServer, request: bytes, authorization: str = f"Bearer {TOKEN}", tls: ssl.SSLContext | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Send bytes; the answer's status, headers and body, to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=tls)
    try:
        shown = f"Authorization: {authorization}\r\n".encode() if authorization else b""
        writer.write(request.replace(b" HTTP/1.1\r\n", b" HTTP/1.1\r\nHost: b\r\n" + shown))
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


def test_requests_and_answers(access: AdminAccess) -> None:
    async def check() -> None:
        routes = Routes()
        async with serving(routes, access) as server:
            status, headers, body = await send(
                server, b"PUT /echo?a=1&b=x%20y&a=2 HTTP/1.1\r\ncontent-LENGTH: 5\r\n\r\nhello"
            )
            assert (status, json.loads(body)) == (200, {"method": "PUT", "body": "hello"})
            assert headers["Content-Type"] == "application/json"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert int(headers["Content-Length"]) == len(body)
            assert routes.seen[0].parameters == {"a": "2", "b": "x y"}
            status, headers, body = await send(server, b"HEAD /echo HTTP/1.0\r\n\r\n")
            assert (status, body) == (200, b"")
            assert int(headers["Content-Length"]) > 0
            assert (await send(server, b"DELETE /any HTTP/1.1\r\n\r\n"))[0] == 200
            assert len((await send(server, b"GET /large HTTP/1.1\r\n\r\n"))[2]) == 4_000_000

    patient_loop.run(check())


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
        (b"GET /echo HTTP/1.1\r\nX: " + b"x" * 10_000 + b"\r\n\r\n", 431, "8192"),
        (b"GET /echo HTTP/1.1\r\n" + (b"X: " + b"x" * 5_000 + b"\r\n") * 4 + b"\r\n", 431, "16384"),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400, "not an HTTP/1 request"),
    ],
)
def test_what_is_refused(
    request_bytes: bytes, status: int, says: str, access: AdminAccess, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        routes = Routes()
        async with serving(routes, access) as server:
            found, headers, body = await send(server, request_bytes)
            assert (found, says in error_of(body)) == (status, True), body
            assert headers.get("Allow") == ("GET, PUT" if status == 405 else None)
        assert not routes.seen

    with caplog.at_level(logging.WARNING, "bookie_server"):
        patient_loop.run(check())
    assert len(caplog.records) == (1 if status == 500 else 0)  # and no traceback
    assert all(record.exc_info is None for record in caplog.records)


def test_a_body_that_nobody_would_use_is_not_waited_for(access: AdminAccess) -> None:
    async def check() -> None:
        async with serving(Routes(), access) as server:
            status, _, body = await send(server, b"GET /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\n")
            assert (status, json.loads(body)) == (200, {"method": "GET", "body": ""})

    patient_loop.run(check())


def test_n1_who_sends_a_head_bit_by_bit_remains_a_bare_socket(access: AdminAccess) -> None:
    """So it costs no task, no timer and no turn that it shares with hundreds of others, and is served in the end."""
    request = b"\r\nGET /echo HTTP/1.1\r\nHost: b\r\n\r\n"

    async def check() -> None:
        async with serving(Routes(), access) as server:
            peers = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
            for byte in request[:-1]:
                for _, writer in peers:
                    writer.write(bytes((byte,)))
                await asyncio.sleep(0.001)  # many turns of the loop: each byte is looked at
                assert all(isinstance(each, Newcomer) for each in server.places.held)
            assert (await send(server, b"GET /echo HTTP/1.1\r\n\r\n"))[0] == 200
            for reader, writer in peers:
                writer.write(request[-1:])
                assert (await asyncio.wait_for(reader.read(-1), 30)).startswith(b"HTTP/1.1 200 ")
                await _closed(writer)

    patient_loop.run(check())


def test_a_request_that_does_not_come(access: AdminAccess) -> None:
    async def check() -> None:
        async with serving(Routes(), access, request_timeout_s=0.05) as server:
            status, _, body = await send(server, b"PUT /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\nhel")
            assert (status, error_of(body)) == (408, "the request did not arrive in time")

    patient_loop.run(check())


@pytest.mark.parametrize("sent", [b"", b"GET /echo HTTP/1.1\r\nHost"])
def test_a_connection_without_a_whole_head_is_closed(sent: bytes, access: AdminAccess) -> None:
    async def check() -> None:
        async with serving(Routes(), access, request_timeout_s=0.05) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(sent)
            with contextlib.suppress(ConnectionResetError):  # the time was over before these bytes arrived
                assert await asyncio.wait_for(reader.read(-1), 30) == b""
            await _closed(writer)

    patient_loop.run(check())


def test_a_peer_that_does_not_take_its_answer_loses_its_connection(access: AdminAccess) -> None:
    async def check() -> None:
        async with serving(Routes(), access, 0.1, 0.1, 0.1) as server:
            with socket.socket() as peer:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                peer.setblocking(False)
                await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", server.port))
                peer.send(b"GET /large HTTP/1.1\r\nHost: b\r\n\r\n")
                async with asyncio.timeout(30):
                    while not server.places.held:
                        await asyncio.sleep(0.01)
                    while server.places.held:
                        await asyncio.sleep(0.01)

    patient_loop.run(check())


def test_one_request_per_connection_and_no_access_log(access: AdminAccess, caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        routes = Routes()
        async with serving(routes, access) as server:
            status, headers, body = await send(server, b"GET /echo HTTP/1.1\r\n\r\n" * 2)
            assert (status, headers["Connection"]) == (200, "close")
            assert json.loads(body)["method"] == "GET"
            assert len(routes.seen) == 1

    with caplog.at_level(logging.INFO):
        patient_loop.run(check())
    assert [record.name for record in caplog.records] == ["bookie_server.admin.server"]  # "http on …"


def test_a_handler_that_takes_long_goes_on(access: AdminAccess) -> None:
    async def check() -> None:
        routes = Routes()
        async with serving(routes, access, handler_timeout_s=0.05) as server:
            status, _, body = await send(server, b"GET /wait HTTP/1.1\r\n\r\n")
            assert status == 504
            assert "may still take effect" in error_of(body)
            assert not routes.seen
            routes.go_on.set()
            assert (await send(server, b"GET /wait HTTP/1.1\r\n\r\n"))[0] == 200
            assert len(routes.seen) == 2

    patient_loop.run(check())


def test_slow_callers_give_way_and_liveness_answers(access: AdminAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle ones, ones whose head or body never ends, ones that do not read, and handlers that hang."""
    monkeypatch.setattr(places, "MAX_ARRIVING", 60)

    async def check() -> None:
        routes = Routes()
        async with serving(routes, access) as server, contextlib.AsyncExitStack() as slow:

            async def connect(sent: bytes) -> None:
                _, writer = await asyncio.open_connection("127.0.0.1", server.port)
                slow.push_async_callback(_closed, writer)
                writer.write(sent)

            for _ in range(MAX_HANDLED):
                await connect(b"GET /wait HTTP/1.1\r\nHost: b\r\n\r\n")
            while len(server.places.handling) < MAX_HANDLED:
                await asyncio.sleep(0)
            status, _, body = await send(server, b"GET /echo HTTP/1.1\r\n\r\n")
            assert (status, f"{MAX_HANDLED} requests are being handled" in error_of(body)) == (503, True)
            begun = (
                b"",
                b"GET /echo HTTP/1.1\r\nHost: b\r\n",
                b"PUT /echo HTTP/1.1\r\nHost: b\r\nAuthorization: Bearer %s\r\nContent-Length: 9\r\n\r\nx"
                % TOKEN.encode(),
            )
            for number in range(200):
                await connect(begun[number % 3])
                if number % 50 == 0:
                    assert (await send(server, b"GET /heartbeat HTTP/1.1\r\n\r\n"))[0] == 200
            assert 60 <= len(server.places.held) <= 60 + MAX_HANDLED + MAX_ANSWERED
            assert (await send(server, b"GET /heartbeat HTTP/1.1\r\n\r\n"))[0] == 200
            routes.go_on.set()
            while server.places.handling:
                await asyncio.sleep(0)
            # Nobody waits any more, and slow callers are still there.
            assert (await send(server, b"PUT /echo HTTP/1.1\r\nContent-Length: 1\r\n\r\nx"))[0] == 200
        assert not server.places.held

    patient_loop.run(check())


def test_a_burst_gives_way_after_whoever_came_with_it_is_served(
    access: AdminAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "MAX_ARRIVING", 20)
    monkeypatch.setattr(places, "MAX_BURST", 200)

    async def check() -> None:
        routes = Routes()
        held_when_served = []

        async def heartbeat(request: Request) -> Response:
            held_when_served.append(len(server.places.held))
            return await routes.echo(request)

        routes.routes["/heartbeat"] = {ANY_METHOD: heartbeat}
        async with serving(routes, access) as server:
            with _peers(server, 200), socket.socket() as caller:
                caller.connect(("127.0.0.1", server.port))
                caller.sendall(b"GET /heartbeat HTTP/1.1\r\nHost: b\r\n\r\n")
                caller.setblocking(False)
                answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(caller, 100), 30)
                assert answer.startswith(b"HTTP/1.1 200 ")
                # A few in each of the turns that it took.
                assert held_when_served[0] > 100
                while len(server.places.held) > 20:
                    await asyncio.sleep(0)

    patient_loop.run(check())


def test_a_burst_has_a_bound(access: AdminAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MAX_ARRIVING", 20)
    monkeypatch.setattr(places, "MAX_BURST", 30)

    async def check() -> None:
        async with serving(Routes(), access) as server:
            with _peers(server, 200):
                served = asyncio.ensure_future(send(server, b"GET /heartbeat HTTP/1.1\r\n\r\n"))
                most_held = 0
                while not served.done() or len(server.places.held) > 20:
                    await asyncio.sleep(0)
                    most_held = max(most_held, len(server.places.held))
                assert (most_held, served.result()[0]) == (50, 200)

    patient_loop.run(check())


@contextlib.contextmanager
def _peers(server: AdminServer, count: int) -> Iterator[list[socket.socket]]:
    """Connections that have sent nothing. The loop of ``server`` does not run while they come."""
    with contextlib.ExitStack() as ends:
        peers = [ends.enter_context(socket.socket()) for _ in range(count)]
        for peer in peers:
            peer.connect(("127.0.0.1", server.port))
        yield peers


def test_a_probe_is_answered_without_a_task_of_its_own(access: AdminAccess) -> None:
    """Each task is further turns of the event loop."""

    async def check() -> None:
        routes = Routes()
        handled = []

        async def count(request: Request) -> Response:
            handled.append(len(server.places.handling))
            return await routes.echo(request)

        routes.routes |= {"/heartbeat": {ANY_METHOD: count}, "/echo": {"GET": count}}
        async with serving(routes, access) as server:
            for path in (b"/heartbeat", b"/echo"):
                assert (await send(server, b"GET %s HTTP/1.1\r\n\r\n" % path))[0] == 200
        assert handled == [0, 1]

    patient_loop.run(check())


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def test_callers_that_do_not_read_give_way(access: AdminAccess) -> None:
    async def check() -> None:
        async with serving(Routes(), access) as server, contextlib.AsyncExitStack() as slow:
            for _ in range(MAX_ANSWERED + 5):
                peer = slow.enter_context(socket.socket())
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                peer.setblocking(False)
                await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", server.port))
                peer.send(b"GET /large HTTP/1.1\r\nHost: b\r\n\r\n")
            assert (await send(server, b"GET /large HTTP/1.1\r\n\r\n"))[0] == 200
            assert len(server.places.held) <= MAX_ANSWERED

    patient_loop.run(check())


def test_of_requests_that_come_together_none_gives_way(access: AdminAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those for which there is no room yet wait in the kernel."""
    monkeypatch.setattr(places, "MAX_ARRIVING", 40)
    monkeypatch.setattr(admin_server, "_MOST_READY", 4)

    async def check() -> None:
        async with serving(Routes(), access) as server:
            with _peers(server, 200) as peers:
                for peer in peers:
                    peer.sendall(b"GET /heartbeat HTTP/1.1\r\nHost: b\r\n\r\n")
                    peer.setblocking(False)
                for peer in peers:
                    answer = asyncio.get_running_loop().sock_recv(peer, 100)
                    assert (await asyncio.wait_for(answer, 30)).startswith(b"HTTP/1.1 200 ")

    patient_loop.run(check())


def test_closing_does_not_wait_for_peers(access: AdminAccess) -> None:
    async def check() -> None:
        routes = Routes()
        async with serving(routes, access) as server:
            idle = await asyncio.open_connection("127.0.0.1", server.port)
            waiting = await asyncio.open_connection("127.0.0.1", server.port)
            waiting[1].write(b"GET /wait HTTP/1.1\r\nHost: b\r\n\r\n")
            await asyncio.wait_for(server.close(), 30)
            for reader, writer in (idle, waiting):
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(1), 30) == b""
                    writer.close()
                    await writer.wait_closed()
            assert not server.places.held

    patient_loop.run(check())


def test_a_port_that_is_taken(access: AdminAccess) -> None:
    async def check() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            server = AdminServer("127.0.0.1", taken.getsockname()[1], {}, access)
            with pytest.raises(OSError, match="in use"):
                await server.start()
            await server.close()

    patient_loop.run(check())


# --- tokens ----------------------------------------------------------------------------------------

READ_TOKEN = "only-for-those-who-read"
CHANGE = b"PUT /echo HTTP/1.1\r\nContent-Length: 1\r\n\r\nx"
READ = b"GET /echo HTTP/1.1\r\n\r\n"


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anybody:{password}".encode()).decode()


def ask_all(access: AdminAccess, *asked: tuple[bytes, str]) -> list[int]:
    """The statuses of the answers to requests with these headers."""

    async def ask() -> list[int]:
        async with serving(Routes(), access) as server:
            return [(await send(server, request, shown))[0] for request, shown in asked]

    return patient_loop.run(ask())


def test_changes_need_the_token_always(access: AdminAccess, caplog: pytest.LogCaptureFixture) -> None:
    wrong = "", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer", "Bearer \xe9", basic(TOKEN)
    with caplog.at_level(logging.INFO):
        assert ask_all(access, *((CHANGE, shown) for shown in wrong)) == [401] * len(wrong)
        assert ask_all(access, (CHANGE, f"Bearer {TOKEN}"), (CHANGE, f"bearer  {TOKEN} ")) == [200, 200]
        assert ask_all(access, (b"DELETE /any HTTP/1.1\r\n\r\n", ""), (READ, "")) == [401, 200]
        assert ask_all(access, (b"POST /heartbeat HTTP/1.1\r\n\r\n", "")) == [200]
    assert "changed by http: method=PUT path=/echo peer=127.0.0.1 status=200" in caplog.text
    assert TOKEN[:-1] not in caplog.text


def test_without_a_token_file_nothing_is_changed() -> None:
    async def check() -> None:
        routes = Routes()
        async with serving(routes, AdminAccess(bookie_config())) as server:
            status, _, body = await send(server, CHANGE)
            assert (status, "httpServerTokenFile is not set" in error_of(body)) == (403, True)
            assert not routes.seen
            assert (await send(server, READ))[0] == 200

    patient_loop.run(check())


def test_a_token_for_reads(tmp_path: Path) -> None:
    config = bookie_config(
        http_token_file=token_file(tmp_path / "change"),
        http_read_token_file=token_file(tmp_path / "read", READ_TOKEN),
    )
    shown = "", "Basic !", basic(""), basic("x" * 30), f"Bearer {READ_TOKEN}", basic(READ_TOKEN), basic(TOKEN)
    access = AdminAccess(config)
    assert ask_all(access, *((READ, each) for each in shown)) == [401] * 4 + [200] * 3
    # It allows no change. Liveness needs no token.
    assert ask_all(access, (CHANGE, f"Bearer {READ_TOKEN}"), (b"GET /heartbeat HTTP/1.1\r\n\r\n", "")) == [401, 200]


def test_a_changed_token_is_used_and_a_wrong_one_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    access = AdminAccess(bookie_config(http_token_file=token_file(tmp_path)))
    token_file(tmp_path, "another-token-of-tests")
    asked = (CHANGE, f"Bearer {TOKEN}"), (CHANGE, "Bearer another-token-of-tests")
    assert ask_all(access, *asked) == [401, 200]
    token_file(tmp_path, "short")
    assert ask_all(access, *asked) == [401, 200]
    assert "the token that was loaded before stays in use: httpServerTokenFile" in caplog.text


def test_a_token_file_that_gets_another_mode_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It was written without the right to read it, and chmod alone mends that."""
    access = AdminAccess(bookie_config(http_token_file=token_file(tmp_path)))
    path = Path(token_file(tmp_path, "short"))
    for reads, mode in enumerate((0o400, 0o600), start=1):
        path.chmod(mode)
        ask_all(access, (CHANGE, ""), (CHANGE, ""))
        assert caplog.text.count("the token that was loaded before stays in use") == reads


@pytest.mark.parametrize("content", [None, b"", b"fifteen-letters\n", b"two words in one token", b"\xe9" * 20])
def test_a_token_file_that_is_wrong(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=r"^httpServerReadTokenFile: .*openssl rand") as caught:
        AdminAccess(bookie_config(http_read_token_file=str(path)))
    assert not content or content.decode("latin-1").strip() not in str(caught.value)


# --- TLS -------------------------------------------------------------------------------------------


def encrypted(directory: Path, name: str = "bookie", **settings: object) -> AdminAccess:
    files = write_pem(directory, identity(name))
    return AdminAccess(
        bookie_config(
            http_tls_enabled=True,
            http_key_store_type="PEM",
            http_key_store=files["tlsKeyStore"],
            http_certificate_path=files["tlsCertificatePath"],
            **settings,
        )
    )


def client(directory: Path, own: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority("ours").pem.decode())
    if own:
        files = write_pem(directory / "client", identity("client"))
        context.load_cert_chain(files["tlsCertificatePath"], files["tlsKeyStore"])
    return context


def test_https_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(places, "MAX_ARRIVING", 60)

    async def check() -> None:
        async with serving(Routes(), encrypted(tmp_path)) as server:
            status, _, body = await send(server, READ, tls=client(tmp_path))
            assert (status, json.loads(body)["method"]) == (200, "GET")
            # The head and a large answer are each more than one record.
            long = b"GET /large HTTP/1.1\r\nX: " + b"x" * 8000 + b"\r\n\r\n"
            assert len((await send(server, long, tls=client(tmp_path)))[2]) == 4_000_000
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /echo HTTP/1.1\r\nHost: b\r\n\r\n")
            assert not (await asyncio.wait_for(reader.read(-1), 30)).startswith(b"HTTP")
            await _closed(writer)
            with pytest.raises(ssl.SSLCertVerificationError):
                await send(server, READ, tls=ssl.create_default_context())
            # Who does not finish the handshake gives way, too.
            idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(80)]
            assert (await send(server, b"GET /heartbeat HTTP/1.1\r\n\r\n", tls=client(tmp_path)))[0] == 200
            assert len(server.places.held) <= 60 + MAX_ANSWERED
            for _, each in idle:
                await _closed(each)

    patient_loop.run(check())
    assert "the peer sent an HTTP request in clear" in caplog.text


def test_clients_need_a_certificate_where_authorities_are_set(tmp_path: Path) -> None:
    async def check() -> None:
        trusted = {"http_trust_store_type": "PEM", "http_trust_store": str(tmp_path / "ca.pem")}
        async with serving(Routes(), encrypted(tmp_path, **trusted)) as server:
            assert (await send(server, READ, tls=client(tmp_path, own=True)))[0] == 200
            with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
                await send(server, READ, tls=client(tmp_path))

    patient_loop.run(check())


def test_changed_certificates_are_used_without_a_restart(tmp_path: Path) -> None:
    async def served_name(server: AdminServer) -> bytes:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=client(tmp_path))
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        await _closed(writer)
        return found

    async def check() -> None:
        async with serving(Routes(), encrypted(tmp_path, tls_refresh_ms=1)) as server:
            assert await served_name(server) == identity("bookie").der
            write_pem(tmp_path, identity("renewed"))
            async with asyncio.timeout(30):
                while await served_name(server) != identity("renewed").der:
                    await asyncio.sleep(0.01)

    patient_loop.run(check())


def test_wrong_certificates_name_the_keys_of_the_admin_api(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="httpServerKeyStorePath is missing"):
        AdminAccess(bookie_config(http_tls_enabled=True))
    files = write_pem(tmp_path, identity("bookie"))
    keys = {"http_tls_enabled": True, "http_key_store_type": "PEM", "http_key_store": files["tlsKeyStore"]}
    with pytest.raises(InvalidArgumentError, match="httpServerCertificatePath is missing"):
        AdminAccess(bookie_config(**keys))
    (tmp_path / "old.jks").write_bytes(bytes.fromhex("feedfeed") + bytes(100))
    with pytest.raises(InvalidArgumentError, match=r"keytool .*httpServerKeyStoreType=PKCS12"):
        AdminAccess(bookie_config(http_tls_enabled=True, http_key_store=str(tmp_path / "old.jks")))
