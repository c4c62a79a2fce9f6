"""Logins over gRPC: who gets in, what a session is good for, and bookies that pose as others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from bk_spark.bookie.auth.providers import Peer
from bk_spark.bookie.auth.sasl import SaslBookie
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.client_tls import ClientTls
from bk_spark.bookie.connection.grpc import GrpcConnection
from bk_spark.bookie.connection.grpc_connects import grpc_connects
from bk_spark.bookie.connection.logins import Logins
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.bookie.tls.contexts import TlsContexts
from bk_spark.protocol.auth.digest_md5 import DigestMd5Client
from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import BookieUnavailableError, LoginError, TlsError, UnauthorizedError
from bk_spark.protocol.proto import bookie_pb2 as pb, sessions_pb2
from bk_spark.protocol.wire.auth_frames import SASL, SESSION_METADATA, SESSIONS
from bookie_server.net.common.access.front_access import FrontAccess
from bookie_server.net.common.access.rights import Authorization
from bookie_server.net.common.limits import NetConfig
from bookie_server.net.grpc.access.sessions import Session, Sessions
from tests.support import patient_loop
from tests.support.bookie import free_port
from tests.support.certificates import identity, write_pem
from tests.support.front import HeldBookie
from tests.support.grpc_front import Caller, GrpcFront, caller, grpc_front
from tests.support.instances import instances
from tests.support.jaas import client_keys, write_jaas


def access_of(directory: Path, rights: str | None = None) -> FrontAccess:
    jaas = write_jaas(directory / "bookie" / "jaas.conf")
    table = None
    if rights is not None:
        (directory / "rights").write_text(rights)
        table = Authorization.load(str(directory / "rights"))
    return FrontAccess(SaslBookie(jaas, "Bookie", re.compile("bookkeeper|visitor")), authorization=table)


def config_of(directory: Path, password: str = "golden", **keys: str) -> ClientConfig:
    jaas = write_jaas(directory / "client" / "jaas.conf", password=password, users={})
    return ClientConfig.from_properties({**client_keys(jaas), "transport": "grpc", **keys})


@contextlib.asynccontextmanager
async def pool_of(port: int, config: ClientConfig) -> AsyncIterator[ConnectionPool[GrpcConnection]]:
    async def resolve(_: str) -> tuple[str, int]:
        return "127.0.0.1", port

    tls = ClientTls(config) if config.tls_enabled else None
    pool = ConnectionPool(grpc_connects(resolve, tls, Logins.of(config)), config)
    try:
        yield pool
    finally:
        await pool.close()


def sessions(front: GrpcFront) -> Sessions:
    return front.server.gate.sessions


class Talk:
    """A login by hand."""

    def __init__(self, one: Caller) -> None:
        self.call: Any = one.channel.stream_stream(f"/{SESSIONS}/LogIn")(timeout=60)

    async def say(self, payload: bytes, plugin: str = SASL) -> sessions_pb2.LogInAnswer:
        await self.call.write(sessions_pb2.LogInMessage(plugin=plugin, payload=payload).SerializeToString())
        data = await self.call.read()
        assert data is not grpc.aio.EOF
        return sessions_pb2.LogInAnswer.FromString(data)

    async def log_in(self, user: str = "bookkeeper", password: str = "golden") -> bytes:
        digest = DigestMd5Client(user, password, "a nonce")
        challenge = await self.say(b"")
        assert not challenge.session
        answer = await self.say(digest.respond(challenge.payload))
        digest.check(answer.payload)
        return answer.session


async def asks(one: Caller, session: bytes | None) -> Any:
    """The status of a call, which shows a session if one is given."""
    shown = None if session is None else ((SESSION_METADATA, session),)
    call = one.channel.unary_unary("/bk_spark.v1.Bookie/GetInfo")(
        pb.GetInfoRequest().SerializeToString(), timeout=60, metadata=shown
    )
    return await call.code()


@pytest.mark.parametrize("encrypted", [False, True], ids=["clear", "tls"])
def test_a_client_logs_in_before_its_requests(tmp_path: Path, encrypted: bool) -> None:
    tls = None
    keys = write_pem(tmp_path / "trust", None) if encrypted else {}
    if encrypted:
        tls = TlsContexts(
            ClientConfig.from_properties(write_pem(tmp_path / "tls", identity("bookie"))), server_side=True
        )

    async def play() -> None:
        async with (
            asyncio.timeout(120),
            grpc_front(HeldBookie(), tls=tls, access=access_of(tmp_path)) as front,
            pool_of(front.port, config_of(tmp_path, **keys)) as pool,
        ):
            connection = await pool.get("b1")
            assert len(await connection.read(1, range(3))) == 3
            assert (await connection.bookie_info()).free_disk_bytes == 1
            assert len(sessions(front)) == 1
            connection.close()
            while len(sessions(front)):
                await asyncio.sleep(0.005)

    patient_loop.run(play())


def test_a_wrong_password_is_an_error_that_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    access = access_of(tmp_path)

    async def play() -> None:
        async with (
            asyncio.timeout(120),
            grpc_front(HeldBookie(), access=access) as front,
            pool_of(front.port, config_of(tmp_path, "not it")) as pool,
        ):
            with pytest.raises(LoginError) as refused:
                await pool.get("b1")
            assert str(refused.value).startswith("login failed: the bookie refuses the login")
            assert refused.value.bookie_id == "b1"
            assert len(sessions(front)) == 0

    with caplog.at_level(logging.DEBUG):
        patient_loop.run(play())
    assert access.failed_logins == 1
    assert "not it" not in caplog.text
    assert "golden" not in caplog.text


def test_a_session_is_of_no_use_elsewhere_or_later(tmp_path: Path) -> None:
    bookie = HeldBookie()

    async def play() -> None:
        refused = grpc.StatusCode.UNAUTHENTICATED
        async with (
            asyncio.timeout(120),
            grpc_front(bookie, access=access_of(tmp_path)) as front,
            caller(front.port) as one,
            caller(front.port) as other,
        ):
            assert await asks(one, None) is refused
            talk = Talk(one)
            session = await talk.log_in()
            assert await asks(one, session) is grpc.StatusCode.OK
            for wrong in (None, b"", session[:-1], bytes(len(session))):
                assert await asks(one, wrong) is refused
            assert await asks(other, session) is refused
            # Those of one connection are apart: a proxy may share it.
            second = Talk(one)
            assert await asks(one, await second.log_in("visitor", "silver")) is grpc.StatusCode.OK
            await talk.call.done_writing()
            assert await talk.call.read() is grpc.aio.EOF
            while len(sessions(front)) > 1:
                await asyncio.sleep(0.005)
            assert await asks(one, session) is refused
            second.call.cancel()
            while len(sessions(front)):
                await asyncio.sleep(0.005)

    patient_loop.run(play())
    assert bookie.reads == 0


@pytest.mark.parametrize("method", ["Add", "Read"])
def test_streams_without_a_login_are_refused(tmp_path: Path, method: str) -> None:
    bookie = HeldBookie()

    async def play() -> None:
        async with (
            asyncio.timeout(120),
            grpc_front(bookie, access=access_of(tmp_path)) as front,
            caller(front.port) as one,
        ):
            call = one.stream(method)
            await call.done_writing()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call.read()
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED

    patient_loop.run(play())
    assert (bookie.entries, bookie.reads) == (0, 0)


def test_users_have_their_rights(tmp_path: Path) -> None:
    async def play() -> None:
        access = access_of(tmp_path, "all user:bookkeeper\nread user:visitor\n")
        async with asyncio.timeout(120), grpc_front(HeldBookie(), access=access) as front:
            async with pool_of(front.port, config_of(tmp_path)) as pool:
                assert (await (await pool.get("b1")).bookie_info()).free_disk_bytes == 1
            jaas = write_jaas(tmp_path / "visitor" / "jaas.conf", "visitor", "silver", {})
            config = ClientConfig.from_properties({**client_keys(jaas), "transport": "grpc"})
            async with pool_of(front.port, config) as pool:
                connection = await pool.get("b1")
                assert len(await connection.read(1, range(3))) == 3
                with pytest.raises(UnauthorizedError):
                    await connection.bookie_info()
                assert await connection.force(1) is Code.UNAUTHORIZED

    patient_loop.run(play())


@pytest.mark.parametrize(
    ("plugin", "payload", "status"),
    [
        (SASL, b"no answer to the challenge", grpc.StatusCode.UNAUTHENTICATED),
        ("other", b"", grpc.StatusCode.UNAUTHENTICATED),
        (SASL, bytes(70_000), grpc.StatusCode.UNAUTHENTICATED),
    ],
)
def test_wrong_messages(tmp_path: Path, plugin: str, payload: bytes, status: Any) -> None:
    async def play() -> None:
        async with (
            asyncio.timeout(120),
            grpc_front(HeldBookie(), access=access_of(tmp_path)) as front,
            caller(front.port) as one,
        ):
            talk = Talk(one)
            await talk.say(b"")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await talk.say(payload, plugin)
            assert refused.value.code() is status
            assert len(sessions(front)) == 0

    patient_loop.run(play())


def test_bytes_that_are_no_message_and_messages_after_the_login(tmp_path: Path) -> None:
    async def play() -> None:
        async with (
            asyncio.timeout(120),
            grpc_front(HeldBookie(), access=access_of(tmp_path)) as front,
            caller(front.port) as one,
        ):
            talk = Talk(one)
            await talk.call.write(b"\xff\xff")
            assert await talk.call.code() is grpc.StatusCode.INVALID_ARGUMENT
            talk = Talk(one)
            await talk.log_in()
            with pytest.raises(grpc.aio.AioRpcError, match="the login is over"):
                await talk.say(b"")
            assert (len(sessions(front)), len(front.server.gate.places)) == (0, 0)

    patient_loop.run(play())


def test_a_login_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie_server.net.grpc.access.logins.LOGIN_TIMEOUT_S", 0.2)
    access = access_of(tmp_path)

    async def play() -> None:
        async with asyncio.timeout(120), grpc_front(HeldBookie(), access=access) as front, caller(front.port) as one:
            talk = Talk(one)
            await talk.say(b"")
            assert await talk.call.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    patient_loop.run(play())
    assert access.failed_logins == 1


def test_who_has_logged_in_keeps_no_place_of_a_call(tmp_path: Path) -> None:
    """Sessions last; calls that are quiet give way."""

    async def play() -> None:
        config = NetConfig(max_grpc_calls=2, max_grpc_connections=3)
        async with (
            asyncio.timeout(120),
            grpc_front(HeldBookie(), config, access=access_of(tmp_path)) as front,
            caller(front.port) as one,
            caller(front.port) as other,
        ):
            first = await Talk(other).log_in()
            oldest = Talk(one)
            await oldest.log_in()
            next_one = Talk(one)
            await next_one.log_in()
            assert (len(sessions(front)), len(front.server.gate.places)) == (3, 0)
            # A further one takes the place of the oldest of the same connection.
            session = await Talk(one).log_in()
            assert await oldest.call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await asks(other, first) is grpc.StatusCode.OK
            assert await asks(one, session) is grpc.StatusCode.OK
            assert (len(sessions(front)), sessions(front).evicted) == (3, 1)

    patient_loop.run(play())


def test_a_connection_ends_with_its_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = instances(monkeypatch, Session)

    async def play() -> None:
        async with (
            asyncio.timeout(120),
            grpc_front(HeldBookie(), access=access_of(tmp_path)) as front,
            pool_of(front.port, config_of(tmp_path)) as pool,
        ):
            connection = await pool.get("b1")
            (session,) = begun
            session.end()
            while not connection.closed:
                await asyncio.sleep(0.005)
            again = await pool.get("b1")
            assert len(await again.read(1, range(2))) == 2

    patient_loop.run(play())


def test_a_bookie_that_asks_nobody_to_log_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        async with (
            asyncio.timeout(120),
            grpc_front(HeldBookie()) as front,
            pool_of(front.port, config_of(tmp_path)) as pool,
        ):
            assert len(await (await pool.get("b1")).read(1, range(2))) == 2

    patient_loop.run(play())
    assert "bookie b1 asks nobody to log in" in caplog.text


def test_nobody_there_and_a_wrong_certificate(tmp_path: Path) -> None:
    """The error is not about the login."""
    keys = write_pem(tmp_path / "trust", None, "others")
    tls = TlsContexts(ClientConfig.from_properties(write_pem(tmp_path / "tls", identity("bookie"))), server_side=True)

    async def play() -> None:
        async with asyncio.timeout(120), pool_of(free_port(), config_of(tmp_path)) as pool:
            with pytest.raises(BookieUnavailableError) as missing:
                await pool.get("b1")
            assert not isinstance(missing.value, LoginError)
        async with (
            asyncio.timeout(120),
            grpc_front(HeldBookie(), tls=tls, access=access_of(tmp_path)) as front,
            pool_of(front.port, config_of(tmp_path, **keys)) as pool,
        ):
            with pytest.raises(TlsError, match="no TLS connection"):
                await pool.get("b1")

    patient_loop.run(play())


@pytest.mark.parametrize("says", ["no proof", "no session", "nothing", "no message"])
def test_a_peer_that_is_no_bookie_of_ours(tmp_path: Path, says: str) -> None:
    """It does not know the password."""
    jaas = SaslBookie(write_jaas(tmp_path / "jaas.conf"), "Bookie", re.compile(".*"))

    async def log_in(_: object, context: Any) -> None:
        await context.send_initial_metadata(())
        login, answers = jaas.begin(Peer(context.peer())), 0
        while (data := await context.read()) is not grpc.aio.EOF:
            answer = login.answer(sessions_pb2.LogInMessage.FromString(data).payload)
            answers += 1
            if answers == 2 and says == "nothing":
                return
            payload = b"rspauth=" + b"0" * 32 if says == "no proof" and answers == 2 else answer.message
            session = b"session" if answers == 2 and says != "no session" else b""
            message = sessions_pb2.LogInAnswer(payload=payload, session=session).SerializeToString()
            await context.write(b"\xff\xff" if says == "no message" else message)

    async def play() -> None:
        server = grpc.aio.server()
        handler = grpc.method_handlers_generic_handler(
            SESSIONS, {"LogIn": grpc.stream_stream_rpc_method_handler(log_in)}
        )
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with asyncio.timeout(120), pool_of(port, config_of(tmp_path)) as pool:
                with pytest.raises(LoginError) as refused:
                    await pool.get("b1")
        finally:
            await server.stop(None)
        expected = {
            "no proof": "does not prove that it knows the password",
            "no session": "does not say that the login has succeeded",
        }
        assert expected.get(says, "the peer does not answer the login") in str(refused.value)

    patient_loop.run(play())


# --- the rule -----------------------------------------------------------------------------------


def test_the_connection_with_the_most_sessions_loses_its_oldest(tmp_path: Path) -> None:
    access = access_of(tmp_path).begin(Peer("a"))
    gone: list[str] = []
    all_ = Sessions(4)

    def begin(peer: str, name: str) -> Session:
        return all_.begin(peer, access, lambda: gone.append(name))

    begin("a", "a1")
    kept = [begin("b", "b1"), begin("b", "b2"), begin("c", "c1")]
    begin("d", "d1")
    assert gone == ["b1"]
    assert all_.find("b", kept[0].token) is None
    assert all_.find("b", kept[1].token) is access
    assert all_.find("c", kept[1].token) is None
    for session in kept:
        all_.end(session)
        all_.end(session)
    assert len(all_) == 2
    assert str(kept[1].token) not in repr(kept[1])
